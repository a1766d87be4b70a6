# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: D301  click cuts the help at \f
"""The command line: ``dpfed run``, ``dpfed features``, ``dpfed calibrate``, ``dpfed methods``, ...

Heavy imports happen inside commands, so that ``--help`` answers at once.
"""

from __future__ import annotations

import json
import math
import re
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from typer.core import TyperGroup

from dpfed.cli.audit import audit_command
from dpfed.cli.calibrate import calibrate_command
from dpfed.cli.checkpoint import checkpoint_app
from dpfed.cli.data import data_app
from dpfed.cli.deploy.command import deploy_app
from dpfed.cli.export import export
from dpfed.cli.ledger import ledger_app
from dpfed.cli.methods import methods
from dpfed.cli.predict import predict
from dpfed.cli.push import push_command
from dpfed.cli.silo import silo_app
from dpfed.cli.start import demo, doctor, explain, new
from dpfed.cli.stats import stats_app
from dpfed.cli.verify import verify
from dpfed.core.errors import DpfedError, MissingExtra, RecipeError, as_sentence
from dpfed.core.extras import require_extra
from dpfed.core.log import shown
from dpfed.recipes.display import bar, percent

if TYPE_CHECKING:
    from dpfed.recipes.result import Result

LAB = {
    "sweep": "Search settings for every method of a study on training records, then run it.",
    "reproduce": "Reproduce a paper's table with one command, at settings that were found earlier.",
    "report": "Write tables, figures and an HTML page from a study's runs; nothing is run.",
    "leaderboard": "Write all studies' final runs on one page: method, data set, epsilon, trust.",
}
"""The commands of the distribution dpfed-lab, shown in the help whether or not it is installed."""


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
    for found in entry_points(group="dpfed.commands", name=name):
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        with require_extra("lab", f"'dpfed {name}'", "dpfed-lab"):
            alone.command(name)(found.load())
        return typer.main.get_command(alone)
    return None


app = typer.Typer(
    cls=_Commands, no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False
)
START, TRAIN, USE, COMPARE, OPERATE = (
    "Start",
    "Train and account",
    "Use a model",
    "Compare",
    "Operate",
)

for first in (demo, new, doctor):  # panels and commands are shown in the order of this file
    app.command(rich_help_panel=START)(first)
app.add_typer(data_app, name="data", rich_help_panel=START)
app.add_typer(checkpoint_app, name="checkpoint", rich_help_panel=OPERATE)
app.add_typer(deploy_app, name="deploy", rich_help_panel=OPERATE)
app.add_typer(ledger_app, name="ledger", rich_help_panel=OPERATE)
app.add_typer(silo_app, name="silo", rich_help_panel=OPERATE)
app.add_typer(stats_app, name="stats", rich_help_panel=TRAIN)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Train one model across silos that never share data, with an exact privacy guarantee."""
    if version:
        from dpfed._version import VERSION

        typer.echo(VERSION)
        raise typer.Exit


# ------------------------------------------------------------------------------------------ run


@app.command("run", rich_help_panel=TRAIN)
def run_command(
    recipe: Annotated[
        Path | None, typer.Argument(help="A recipe in TOML; see examples/recipes/.")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="A method by name, e.g. dp-fedsofim; 'dpfed methods'.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help=".npz, .parquet, .csv, an image folder, hf:NAME. Default: generated."),
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="The guarantee over all rounds, at delta = 1e-5.")
    ] = None,
    clip: Annotated[
        float | None, typer.Option(help="The norm of a record's gradient, at most. Default: 1.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override one value, e.g. --set rounds=30. Repeatable."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Override the recipe's seed.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results. Default: runs/<recipe's name>.")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="in-process, or flower-simulation: the same through 'flwr run'.")
    ] = "in-process",
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Save the run after each round, and continue a saved one."),
    ] = False,
    sinks: Annotated[
        list[str] | None,
        typer.Option(
            "--sink",
            help="Also send each round's row to: csv, tensorboard, mlflow, wandb. Repeatable.",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Overwrite another run's result in the folder.")
    ] = False,
    quiet: Annotated[bool, typer.Option(help="Show no progress.")] = False,
) -> None:
    """Train by a recipe, or by a method's name, and write metrics, model, picture and guarantee.

    Without a recipe: 20 clients with the same number of records, one record protected against the
    server, and the method's own settings. --method, --data, --epsilon and --clip override a
    recipe's, too.

    No result is overwritten without --overwrite: without --out, another run of the same recipe
    gets the folder NAME-2, and so on.

    A run with --resume survives the end of its process: the same command continues after the last
    committed round, and repeats none. A --sink gets the rows of the run's own metrics.csv, and no
    other figure of a client.

    Example: dpfed run --method dp-fedsofim --epsilon 1 --clip 5

    Example: dpfed run examples/recipes/quickstart.toml --sink csv --set privacy.epsilon=2

    \f

    Args:
        recipe: a recipe's TOML file; None if ``method``, ``data`` or ``epsilon`` is given.
        method: the name of a method, as in ``method=NAME``; None keeps the recipe's.
        data: the records' source, as in ``data.source=DATA``; None keeps the recipe's.
        epsilon: as in ``privacy.epsilon=EPSILON``; None keeps the recipe's.
        clip: as in ``privacy.clip=CLIP``; None keeps the recipe's.
        overrides: ``key=value`` texts that change the recipe; None changes nothing.
        seed: replaces the recipe's seed; None keeps it.
        out: the folder for the results; None is runs/ and the file's name without its ending.
        engine: in-process or flower-simulation.
        resume: write a checkpoint into ``out`` after each round, and continue from the one there.
        sinks: any of csv, tensorboard, mlflow and wandb; None is none of them.
        overwrite: write over another run's result in ``out``.
        quiet: show no progress bar.
    """
    from dpfed.recipes.display import View
    from dpfed.recipes.result import free_folder
    from dpfed.recipes.run import resolve
    from dpfed.recipes.run import run as run_recipe

    source = _source(recipe, method, data, epsilon)
    given = {
        "method": method,
        "data.source": data,
        "privacy.epsilon": epsilon,
        "privacy.clip": clip,
    }
    named = (
        f"{key}={json.dumps(value, ensure_ascii=False)}"
        for key, value in given.items()
        if value is not None
    )
    changes = (*named, *(overrides or ()))
    folder = out or Path("runs") / (recipe.stem if recipe else method or "run")
    if out is None and not resume and not overwrite:
        folder = free_folder(folder)
    planned = resolve(source, seed, changes, {})
    with View(planned.name, planned.privacy.epsilon, quiet) as view:
        result = run_recipe(
            source,
            seed=seed,
            out=folder,
            overrides=changes,
            engine=engine,
            resume=folder / "checkpoint" if resume else None,
            watch=view,
            sinks=sinks or (),
            overwrite=overwrite,
        )
    _report(result, folder)


def _source(
    recipe: Path | None, method: str | None, data: str | None, epsilon: float | None
) -> Path | dict[str, Any]:
    """The recipe's file, or the tables of a run that the command line alone describes."""
    from dpfed.recipes.schema import read_toml

    if recipe is None:
        if method is None and data is None and epsilon is None:
            raise RecipeError("there is nothing to run; give a recipe, or --method and --epsilon")
        return {"name": method or "run"}
    if method and (own := [key for key in ("client", "server") if key in read_toml(recipe)]):
        raise RecipeError(
            f"recipe {str(recipe)!r} has its own {' and '.join(own)}, which --method "
            f"{method} would not replace; remove that, or leave --method out"
        )
    return recipe


def _report(result: Result, folder: Path) -> None:
    for warning in result.warnings:
        typer.secho(f"warning: {warning}", err=True, fg=typer.colors.YELLOW)
    for words in filter(None, (result.divided, result.rows)):
        typer.echo(words)
    if not math.isnan(result.accuracy):
        typer.echo(f"accuracy {percent(result.accuracy)}, {result.evaluation}")
    typer.echo(result.guarantee.sentence)
    typer.echo(f"results in {folder}/")


# --------------------------------------------------------------------------- commands of dpfed-lab


def _not_installed(context: typer.Context) -> None:
    raise MissingExtra(
        f"'dpfed {context.info_name}' is in the package dpfed-lab, which is not installed; "
        "run 'pip install ./lab' in a clone, or, once dpfed is on PyPI, "
        "'pip install \"dpfed[lab]\"'"
    )


for _name, _help in LAB.items():
    app.command(
        _name,
        help=_help,
        rich_help_panel=COMPARE,
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(_not_installed)


# ------------------------------------------------------------------------------------- features


@app.command("features", rich_help_panel=COMPARE)
def features_command(
    images: Annotated[str, typer.Argument(help="A data set of images, as data.source takes it.")],
    out: Annotated[Path, typer.Option(help="The .npz to write.")],
    backbone: Annotated[str, typer.Option(help="resnet32-cifar100, efficientnet-lite0, ...")],
    size: Annotated[int, typer.Option(help="Images get this height and width.", min=1)] = 32,
    fit: Annotated[str, typer.Option(help="How they get it: pad or resize.")] = "pad",
    weights: Annotated[Path | None, typer.Option(help="The backbone's weights.")] = None,
    quiet: Annotated[bool, typer.Option(help="No progress bar.")] = False,
) -> None:
    """Turn images into features of a frozen public backbone, once, for many runs to read.

    The backbone maps each image on its own and never learns from it: no privacy is spent.

    Example: dpfed features images/cifar10.npz --backbone efficientnet-lite0 --size 128 --fit resize
    --out data/features/cifar10-efficientnet-lite0.npz

    \f

    Args:
        images: a data set of images, as data.source takes it.
        out: the .npz file to write.
        backbone: the name of a frozen model, e.g. efficientnet-lite0.
        size: the height and width in pixels that images get, at least 1.
        fit: how they get it, pad or resize.
        weights: the file of the backbone's weights; None looks in $DPFED_DATA and its package.
        quiet: show no progress bar.
    """
    from dpfed.data.datasets import load
    from dpfed.data.featurize import write_features

    dataset = load(images)
    total = len(dataset.train) + (0 if dataset.test is None else len(dataset.test))
    with bar(quiet) as shown:
        task = shown.add_task("images", total=total, figures="")
        made = write_features(
            dataset,
            out,
            backbone,
            size=size,
            fit=fit,
            weights=weights,
            watch=lambda added: shown.advance(task, added),
        )
    typer.echo(f"{total} x {made.train.x.shape[1]} features in {out}")


# -------------------------------------------------------------------------------------- methods


app.command("calibrate", rich_help_panel=TRAIN)(calibrate_command)
app.command("methods", rich_help_panel=COMPARE)(methods)
app.command("explain", rich_help_panel=TRAIN)(explain)
app.command("verify", rich_help_panel=OPERATE)(verify)
app.command("audit", rich_help_panel=TRAIN)(audit_command)
app.command("predict", rich_help_panel=USE)(predict)
app.command("export", rich_help_panel=USE)(export)
app.command("push", rich_help_panel=USE)(push_command)


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
