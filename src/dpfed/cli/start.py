# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: D301  click cuts the help at \f
"""The commands of the first hour: ``dpfed demo``, ``new``, ``doctor`` and ``explain``.

Guarantee: nothing is downloaded or sent, and no folder that exists is written into by ``new``.

| edge case                                 | what happens                              |
|-------------------------------------------|-------------------------------------------|
| ``new`` with a folder that exists         | an error: nothing is overwritten          |
| ``new --recipe --rows``                   | an error: one of them                     |
| ``new`` without a kind, in a script       | nothing is asked: the first kind          |
| ``doctor`` finds a problem                | exit code 1; warnings alone are 0         |
| ``explain`` of a folder that is no run    | an error that says what to give           |
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(help="Folder for runs, picture and table.")] = Path(
        "dpfed-demo"
    ),
    epsilon: Annotated[float, typer.Option(help="The private runs' guarantee.")] = 1.0,
    quiet: Annotated[bool, typer.Option(help="No progress bar.")] = False,
) -> None:
    """See it work: train one model three ways on generated data, in seconds.

    Without privacy; with it, where the server reads every message; and with the secure sum, where
    the server sees only the total, so that far less noise gives the same guarantee.

    Example: dpfed demo --epsilon 0.5

    \f

    Args:
        out: the folder for the runs and the picture.
        epsilon: of the two private runs, above 0.
        quiet: show no progress bar.
    """
    from rich.console import Console

    from dpfed.cli import demo as first
    from dpfed.recipes.display import advance, bar

    with bar(quiet) as shown:
        tasks = {
            each.name: shown.add_task(each.title, total=None, figures="") for each in first.RUNS
        }
        results = first.play(
            out,
            epsilon,
            lambda each, row, rounds: advance(shown, tasks[each.name], row, rounds, each.title),
        )
    console = Console(highlight=False)
    console.print(first.demo_table(results))
    for line in first.words(results, out):
        console.print(line, soft_wrap=True)


def new(
    folder: Annotated[Path, typer.Argument(help="The app's folder, which must not exist yet.")],
    rows: Annotated[
        bool,
        typer.Option("--rows", "--app", help="Each record: your model, our rows. The default."),
    ] = False,
    clients: Annotated[
        bool, typer.Option("--clients", help="Each client: your train function, many devices.")
    ] = False,
    recipe: Annotated[
        bool, typer.Option("--recipe", help="Configured by a recipe in TOML, without code.")
    ] = False,
    gated: Annotated[
        bool, typer.Option("--gated", help="Data behind its owners' gates, and a rehearsal.")
    ] = False,
    engine: Annotated[
        str, typer.Option(help="Who carries the bytes of --gated: flower or nvflare.")
    ] = "flower",
) -> None:
    """Write a private Flower app that runs with 'flwr run .', for you to change.

    Without a kind, at a terminal, it asks which of the first two; elsewhere it writes --rows.

    Example: dpfed new my-app --clients

    \f

    Args:
        folder: the app's folder, which must not exist yet.
        rows: protect each record: write an app with a model and data; the default.
        clients: protect each client: write an app with a train function that runs as it is.
        recipe: write an app that is a recipe without code.
        gated: write a training whose data is behind its owners' gates, with a rehearsal.
        engine: flower, or nvflare for a job of NVIDIA FLARE's; only with ``gated``.
    """
    from dpfed.cli.new import write_app
    from dpfed.core.errors import RecipeError

    given = {"rows": rows, "clients": clients, "recipe": recipe, "gated": gated}
    kinds = [kind for kind, asked in given.items() if asked]
    if len(kinds) > 1:
        raise RecipeError(
            f"--{kinds[0]} and --{kinds[1]} are two kinds of app; give only one of them"
        )
    for path in write_app(folder, kinds[0] if kinds else _which_app(), engine):
        typer.echo(path)
    typer.echo(f"next: cd {folder}, then read README.md")


def _which_app() -> str:
    """One of the two kinds, as somebody at a terminal chooses; the first where nobody is."""
    from click import Choice

    from dpfed.cli.new import PRIVATE

    first = next(iter(PRIVATE))
    if not _at_terminal():
        return first
    typer.echo("Which app? (Without code: --recipe; behind gates: --gated)")
    for kind, about in PRIVATE.items():
        typer.echo(f"  {kind:8} {about}")
    asked: str = typer.prompt("One of them", default=first, type=Choice(list(PRIVATE)))
    return asked


def _at_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON array.")] = False,
) -> None:
    """Check whether this machine is ready, and say how to fix what is not.

    Exits with 1 if there is a problem, and with 0 if there are only warnings.

    Example: dpfed doctor

    \f

    Args:
        as_json: print one JSON array of the checks instead of lines.
    """
    from dpfed.cli.doctor import Health, check_all

    if as_json:
        found = list(check_all())
        typer.echo(json.dumps([line._asdict() for line in found]))
        if any(line.verdict is Health.PROBLEM for line in found):
            raise typer.Exit(1)
        return

    colours = {
        Health.OK: typer.colors.GREEN,
        Health.WARNING: typer.colors.YELLOW,
        Health.PROBLEM: typer.colors.RED,
    }
    problems = 0
    for verdict, what, said in check_all():
        typer.secho(f"{verdict:8}", fg=colours[verdict], nl=False)
        typer.echo(f" {what:14} {said}")
        problems += verdict is Health.PROBLEM
    if problems:
        typer.echo(f"{problems} problem{'' if problems == 1 else 's'}: see above for the way out")
        raise typer.Exit(1)


def explain(
    run: Annotated[Path, typer.Argument(help="A folder that 'dpfed run --out' wrote.")],
    out: Annotated[Path | None, typer.Option(help="Another folder for the statement.")] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(help="Add up this ledger. Without it, none is opened."),
    ] = None,
) -> None:
    """Write a run's guarantee on one page for decision makers: statement.md and statement.html.

    Who is protected, against whom, how strongly (in guesses that an attacker gets right), what
    that rests on and what it does not cover.

    Example: dpfed explain runs/quickstart

    \f

    Args:
        run: a folder that ``dpfed run`` wrote.
        out: the folder for the statement; None is ``run``.
        ledger: a ledger's file to sum up; None opens none, whatever the recipe names.
    """
    from dpfed.cli.explain import write_statement
    from dpfed.cli.limits import in_limits

    for path in in_limits(lambda: [str(each) for each in write_statement(run, out or run, ledger)]):
        typer.echo(path)
