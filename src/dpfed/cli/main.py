# SPDX-License-Identifier: Apache-2.0
"""The command line: ``dpfed run``, ``dpfed features``, ``dpfed calibrate``, ``dpfed methods``, ...

What is heavy is imported inside of commands, so that all of them are read in 0.2 s.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Annotated

import click
import typer
from typer.core import TyperGroup

from dpfed.cli import (
    audit,
    calibrate,
    checkpoint,
    data,
    export,
    features,
    ledger,
    methods,
    predict,
    run,
    silo,
    start,
    stats,
    verify,
)
from dpfed.cli.deploy import command as deploy
from dpfed.core.errors import DpfedError, MissingExtra, as_sentence
from dpfed.core.extras import require_extra
from dpfed.core.log import shown

LAB = {
    "sweep": "Search settings for every method of a study on training records, then run it.",
    "reproduce": "Reproduce a paper's table with one command, at settings that were found earlier.",
    "report": "Write tables, figures and an HTML page from a study's runs; nothing is run.",
    "leaderboard": "Write all studies' final runs on one page: method, data set, epsilon, trust.",
}
"""The commands of the distribution dpfed-lab, shown in the help whether or not it is installed."""


_PANELS: dict[str, dict[str, typer.Typer | Callable[..., None]]] = {
    "Start": {"demo": start.demo, "new": start.new, "doctor": start.doctor, "data": data.data_app},
    "Train and account": {
        "run": run.run_command,
        "calibrate": calibrate.calibrate_command,
        "explain": start.explain,
        "audit": audit.audit_command,
        "stats": stats.stats_app,
    },
    "Compare": {"features": features.features_command, "methods": methods.methods},
    "Operate": {
        "verify": verify.verify,
        "checkpoint": checkpoint.checkpoint_app,
        "deploy": deploy.deploy_app,
        "ledger": ledger.ledger_app,
        "silo": silo.silo_app,
    },
    "Use a model": {"predict": predict.predict, "export": export.export},
}
"""The panels of the help, and their commands, in the order in which they are shown."""


def _not_installed(context: typer.Context) -> None:
    raise MissingExtra(
        f"'dpfed {context.info_name}' is in the package dpfed-lab, which is not installed; "
        "run 'pip install ./lab' in a clone, or, once dpfed is on PyPI, "
        "'pip install \"dpfed[lab]\"'"
    )


class _Commands(TyperGroup):
    """dpfed's own commands, and the four of dpfed-lab, which are loaded when one of them is typed.

    No other command loads the entry points of a package: a gate runs the code of dpfed alone.
    """

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, (_of_the_lab(name) if name in LAB else None) or command, rest


def _of_the_lab(name: str) -> click.Command | None:
    """A command by its entry point; None if the lab is not installed."""
    from importlib.metadata import entry_points  # no other command here reads what is installed

    for found in entry_points(group="dpfed.commands", name=name):
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        with require_extra("lab", f"'dpfed {name}'", "dpfed-lab"):
            alone.command(name)(found.load())
        return typer.main.get_command(alone)
    return None


app = typer.Typer(
    cls=_Commands, no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False
)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Train one model across silos that never share data, with an exact privacy guarantee."""
    if version:
        from dpfed._version import VERSION

        typer.echo(VERSION)
        raise typer.Exit


for panel, commands in _PANELS.items():
    for name, command in commands.items():
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, rich_help_panel=panel)
        else:
            app.command(name, rich_help_panel=panel)(command)
for name, about in LAB.items():
    app.command(
        name,
        help=about,
        rich_help_panel="Compare",
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(_not_installed)


def main() -> None:
    """Run a command; an error of recipe, run or command is one sentence, and exit code 2."""
    try:
        sys.exit(app(standalone_mode=False, prog_name="dpfed"))
    except click.UsageError as error:
        if error.format_message():
            _fail(_usage(error))
        sys.exit(2)  # a group without a command: its help was shown
    except click.Abort:  # Ctrl-C
        sys.exit(130)
    except (DpfedError, OSError) as error:
        _fail(as_sentence(error))


def _usage(error: click.UsageError) -> str:
    """Click's words about a wrong option or command, with the way out."""
    said = error.format_message().replace(". (", " (").rstrip(".")
    first, *more = re.split(r"[.?] (?=[A-Z])", said)
    hints = [each.rstrip("?") for each in more if each.startswith("Did you mean")]
    where = error.ctx.command_path if error.ctx else "dpfed"
    way_out = f"d{hints[0][1:]}?" if hints else f"'{where} --help' lists what there is"
    return f"{first[0].lower()}{first[1:]}; {way_out}"


def _fail(sentence: str) -> None:
    said = shown(sentence, 2000)  # it may quote a file that somebody else wrote
    typer.secho(f"error: {said}", err=True, fg=typer.colors.RED)
    sys.exit(2)


if __name__ == "__main__":
    main()
