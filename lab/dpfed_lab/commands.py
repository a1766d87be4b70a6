# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: D301  click cuts the help at \f
"""The lab's commands: ``dpfed sweep``, ``reproduce``, ``report`` and ``leaderboard``.

The command line of dpfed finds them by the entry points of this distribution, and loads them when
one of the four is typed. Heavy imports happen inside of them, so that ``--help`` answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

Shard = Annotated[
    str,
    typer.Option(help="Run one part only, e.g. 3/8, into OUT/part-3-of-8; then --join."),
]
Workers = Annotated[int | None, typer.Option(help="Processes. Default: one per core.", min=1)]


def sweep(
    study: Annotated[str, typer.Argument(help="A study in TOML, or the name of a built-in one.")],
    out: Annotated[Path | None, typer.Option(help="Folder. Default: runs/<study>.")] = None,
    workers: Workers = None,
    part: Shard = "",
    join: Annotated[
        bool, typer.Option("--join", help="Join OUT/part-*, wherever they were run: no runs.")
    ] = False,
    parts: Annotated[int, typer.Option(help="How many jobs the launcher starts.", min=1)] = 1,
    launcher: Annotated[
        str, typer.Option(help="slurm, or local: run all parts as jobs, then join them.")
    ] = "",
    launcher_option: Annotated[
        list[str] | None,
        typer.Option(help="Submitit's KEY=VALUE, e.g. timeout_min=600. Repeatable."),
    ] = None,
) -> None:
    """Search settings for every method of a study on held-out training records, then run it.

    Grids in two stages, or Optuna where the study says trials = 40. A killed sweep continues where
    it was. Test records are used for the final figures only. Tuning looks at private data, which
    the runs' epsilon does not cover; the report says what it would cost.

    Example: DPFED_DATA=data dpfed sweep sofim-cifar10

    Example: dpfed sweep sofim-cifar10 --parts 8 --launcher slurm

    \f

    Args:
        study: a TOML file, or the name of a study of the package.
        out: the folder for runs and report; None is runs/ and the study's name.
        workers: how many processes, at least 1; None means one per core.
        part: the part to run, such as 3/8; "" runs all of it.
        join: put the parts of ``out`` together; parts that are missing are named, and a run that
            two parts have is refused.
        parts: how many jobs a launcher starts.
        launcher: slurm or local; "" runs in this process.
        launcher_option: ``key=value`` texts for submitit; None is none.
    """
    if join:
        _join(study, out)
        return
    if launcher:
        _launch(study, out, parts, launcher, workers, launcher_option or [])
        return
    _study(study, out, tune=True, quick=False, workers=workers, part=part)


def _join(study: str, out: Path | None) -> None:
    from dpfed_lab.parts import join as join_parts
    from dpfed_lab.report import write_report
    from dpfed_lab.study import name_of

    folder = out or Path("runs") / name_of(study)
    join_parts(folder)
    typer.echo(f"report in {write_report(folder)}")


def _launch(
    study: str, out: Path | None, parts: int, launcher: str, workers: int | None, options: list[str]
) -> None:
    from dpfed_lab.parts import launch
    from dpfed_lab.report import write_report
    from dpfed_lab.study import name_of

    folder = out or Path("runs") / name_of(study)
    typer.echo(
        f"{parts} jobs of {launcher}; if this command ends first: dpfed sweep {study} --join"
    )
    launch(study, folder, parts, launcher, workers=workers, options=_keyed(options))
    typer.echo(f"report in {write_report(folder)}")


def _keyed(options: list[str]) -> dict[str, Any]:
    """``key=value`` texts as submitit's parameters: whole numbers as numbers."""
    pairs = [each.partition("=") for each in options]
    return {key: int(value) if value.isdecimal() else value for key, _, value in pairs}


def reproduce(
    name: Annotated[
        str, typer.Argument(help="A study by name; without one, they are listed.")
    ] = "",
    out: Annotated[Path | None, typer.Option(help="Folder. Default: runs/<name>.")] = None,
    tune: Annotated[bool, typer.Option(help="Search the settings anew.")] = False,
    quick: Annotated[bool, typer.Option(help="A miniature: few rounds, one seed.")] = False,
    workers: Workers = None,
    part: Shard = "",
) -> None:
    """Reproduce a paper's table with one command, at settings that were found earlier.

    Example: DPFED_DATA=data dpfed reproduce sofim-cifar10

    \f

    Args:
        name: a study, as ``sweep`` takes it; empty lists those of the package.
        out: the folder for runs and report; None is runs/ and the study's name.
        tune: search the settings rather than use those that were searched before.
        quick: a miniature with few rounds and one seed.
        workers: how many processes, at least 1; None means one per core.
        part: the part to run, such as 3/8; "" runs all of it.
    """
    from dpfed_lab import study as studies

    if not name:
        titles = {each: studies.load_study(each).title for each in studies.study_names()}
        width = max(map(len, titles))
        for each, title in sorted(titles.items()):
            typer.echo(f"{each:{width}} {title}")
        typer.echo("\nsofim-fashion-public needs no data; what the others need: lab/README.md")
        return
    _study(name, out, tune=tune, quick=quick, workers=workers, part=part)


def _study(
    name: str, out: Path | None, *, tune: bool, quick: bool, workers: int | None, part: str
) -> None:
    from dpfed_lab.figures import require_plots
    from dpfed_lab.progress import StudyView
    from dpfed_lab.report import write_report
    from dpfed_lab.reproduce import reproduce as run_study
    from dpfed_lab.study import name_of
    from dpfed_lab.sweep import WHOLE, Part

    require_plots()
    here = Part.parse(part) if part else WHOLE
    folder = out or Path("runs") / name_of(name)
    with StudyView(folder) as view:
        run_study(
            name,
            folder,
            tune=tune,
            quick=quick,
            workers=workers,
            begin=view.begin,
            watch=view.run_ended,
            watch_images=view.images,
            part=here,
        )
    if here != WHOLE:
        typer.echo(f"part {here} in {folder / here.folder}; once all are there: --join")
        return
    typer.echo(f"report in {write_report(folder)}")


def report(
    folder: Annotated[Path, typer.Argument(help="A folder that sweep or reproduce wrote.")],
) -> None:
    """Write tables, figures and an HTML page from a study's runs, without running anything."""
    from dpfed_lab.report import write_report

    typer.echo(f"report in {write_report(folder)}")


def leaderboard(
    results: Annotated[Path, typer.Argument(help="A folder with one folder per study.")],
    out: Annotated[Path | None, typer.Option(help="Folder. Default: the same.")] = None,
) -> None:
    """Write all studies' final runs on one page: method x data set x epsilon x trust.

    Writes leaderboard.html and leaderboard.md into the folder, without running anything. Tuned and
    untuned lines stand apart; the best of each column is bold, and what is within noise of it is
    marked. A file withdrawn.md in a study's folder takes it off the board, with its text as why.

    Example: dpfed leaderboard runs

    \f

    Args:
        results: a folder with one folder per study, as ``sweep`` writes it.
        out: the folder for the page; None is ``results``.
    """
    from dpfed_lab.leaderboard_page import write_leaderboard

    typer.echo(f"leaderboard in {write_leaderboard(results, out)}")
