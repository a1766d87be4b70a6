# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: D301  click cuts the help at \f
"""The command ``dpfed stats``: what a query costs, how wide its intervals will be, its answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def stats_command(
    query: Annotated[Path, typer.Argument(help="A query in TOML; see docs/statistics.md.")],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override one value, e.g. --set privacy.epsilon=1. Repeatable."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the answers. Default: runs/<query's name>.")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="in-process, or flower-simulation: the same through 'flwr run'.")
    ] = "in-process",
    cost: Annotated[
        bool, typer.Option("--cost", help="Say what it would cost, and ask nothing.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Overwrite another run's result in the folder.")
    ] = False,
) -> None:
    """Ask questions about a table: counts, means, quantiles, tables, survival; one private release.

    First it says what the query costs and how wide the intervals will be. All questions share the
    epsilon, so that fewer questions have narrower intervals. Asking again costs again.

    Example: dpfed stats query.toml --cost

    \f

    Args:
        query: a query's TOML file.
        overrides: ``key=value`` texts that change the query; None changes nothing.
        out: the folder for answers.csv, answers.png and guarantee.json; None is runs/NAME.
        engine: in-process or flower-simulation.
        cost: stop before anything is asked.
        overwrite: write over another run's result in ``out``.
    """
    from dpfed.recipes.answers import answers_text, cost_text
    from dpfed.recipes.result import free_folder
    from dpfed.recipes.run import resolve, run
    from dpfed.recipes.session import prepare

    changes = tuple(overrides or ())
    session = prepare(resolve(query, None, changes, {}), query.resolve().parent)
    typer.echo(cost_text(session.plan, session.federation.model))
    if cost:
        return
    folder = out or Path("runs") / query.stem
    folder = free_folder(folder) if out is None and not overwrite else folder
    result = run(query, out=folder, overrides=changes, engine=engine, overwrite=overwrite)
    for warning in result.warnings:
        typer.secho(f"warning: {warning}", err=True, fg=typer.colors.YELLOW)
    typer.echo(f"\n{answers_text(result.answers)}\n\n{result.guarantee.sentence}")
    typer.echo(f"results in {folder}/")
