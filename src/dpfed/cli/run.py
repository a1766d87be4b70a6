# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: D301  click cuts the help at \f
"""The command ``dpfed run``: a recipe, or a method by its name, becomes a run and its files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfed.core.errors import RecipeError

if TYPE_CHECKING:
    from dpfed.recipes.result import Result


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
    from dpfed.recipes.display import percent, steps_text

    for warning in result.warnings:
        typer.secho(f"warning: {warning}", err=True, fg=typer.colors.YELLOW)
    for words in filter(None, (result.divided, result.rows)):
        typer.echo(words)
    if not math.isnan(result.accuracy):
        typer.echo(f"accuracy {percent(result.accuracy)}, {result.evaluation}")
    if result.steps:
        typer.echo(f"steps: {steps_text(result.steps)}")
    typer.echo(result.guarantee.sentence)
    typer.echo(f"results in {folder}/")
