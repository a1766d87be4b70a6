# SPDX-License-Identifier: Apache-2.0
"""A study from its name to its report: settings, final runs, tables, figures, one HTML page.

``dpfed sweep`` searches settings first; ``dpfed reproduce`` takes those that come with the study
(``studies/NAME/settings.json``), unless told to search. Both write into one folder:

    study.toml, settings.json     what was run
    paper.csv                     what the paper prints, where the study has it
    runs.jsonl                    every finished run: a killed command resumes from here
    final.csv                     one row per final run
    report.html, tables/, figures/
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from dpfed.recipes.features import cache_features
from dpfed.recipes.result import write_csv
from dpfed.recipes.schema import DataRecipe, to_toml
from dpfed_lab import study as studies
from dpfed_lab.jobs import Begin, Progress, Row, make_job
from dpfed_lab.published import PAPER
from dpfed_lab.study import Study
from dpfed_lab.sweep import (
    SETTINGS,
    WHOLE,
    Part,
    Workspace,
    check_settings,
    final,
    search,
    stored_settings,
)

FIRST = ("accuracy", "loss", "worst_silo")
TIMING = ("seconds",)
PART = "part.json"


def reproduce(
    source: str | Path,
    out: Path,
    *,
    tune: bool = False,
    quick: bool = False,
    workers: int | None = None,
    watch: Progress | None = None,
    begin: Begin | None = None,
    watch_images: Callable[[int, int], None] | None = None,
    part: Part = WHOLE,
) -> list[Row]:
    """Run a study into a folder; returns the final rows.

    Args:
        source: the name of a study that comes with the package, or a TOML file.
        out: the folder, which is made if need be; finished runs in it are not run again.
        tune: search the settings first; otherwise stored settings are used.
        quick: run a miniature of the study, with few rounds and one seed.
        workers: how many processes run jobs; None means one per CPU.
        watch: called with (done, all, the row) after each run.
        begin: called with (done before, all) before a search, and before the final runs.
        watch_images: called with (done, all) while images become features, which is done first.
        part: of a study on several machines, the part that is run here, into a folder of its own
            inside of ``out``; ``dpfed_lab.parts.join`` puts the parts together.
    """
    study = studies.load_study(source)
    if quick:
        study = miniature(study)
    out = out if part == WHOLE else out / part.folder
    out.mkdir(parents=True, exist_ok=True)
    (out / PART).unlink(missing_ok=True)  # it says that a part is complete
    (out / "study.toml").write_text(dump_study(study), encoding="utf-8")
    _copy_published(source, out)
    root = None if str(source) in studies.study_names() else Path(source).resolve().parent
    workspace = Workspace(
        study=study,
        folder=out,
        root=root,
        workers=workers,
        watch=watch,
        begin=begin,
        part=part,
    )
    _cache_features(study, root, watch_images)
    settings = search(workspace) if tune else stored_settings(str(source), study, out)
    check_settings(study, settings, str(source), part)
    (out / SETTINGS).write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    rows = final(workspace, settings)
    if part == WHOLE:
        write_final(study, rows, out)
    else:
        write_part(part, [row["key"] for row in rows], out)
    return rows


def write_final(study: Study, rows: list[Row], out: Path) -> None:
    """final.csv: one line per final run.

    Args:
        study: the study.
        rows: its final runs, in their order.
        out: the study's folder.
    """
    write_csv(flat_rows(study, rows), out / "final.csv")


def write_part(part: Part, finals: list[str], out: Path) -> None:
    """part.json, by which a part says that it is complete, and which final runs are its own.

    Args:
        part: the part.
        finals: the keys of its final runs.
        out: the part's folder.
    """
    facts = {"part": part.number, "parts": part.count, "finals": finals}
    (out / PART).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def _cache_features(
    study: Study, root: Path | None, watch: Callable[[int, int], None] | None
) -> None:
    """Images become features once, on all cores: the processes to come have one each."""
    done: list[DataRecipe] = []
    for (_, base), method in product(studies.cells(study), study.methods):
        table = make_job(study.base, {}, {**method.set, **base}).recipe.data
        if table not in done:
            cache_features(table, root, watch)
            done.append(table)


def _copy_published(source: str | Path, out: Path) -> None:
    """Copy the paper's own figures, where the study has them: the folder is complete by itself."""
    path = studies.path_of(source)
    printed = path.with_name(PAPER if path.name == studies.STUDY else f"{path.stem}.{PAPER}")
    if printed.exists():
        shutil.copyfile(printed, out / PAPER)


def dump_study(study: Study) -> str:
    """The study as TOML, complete: it does not refer to another study."""
    return to_toml(msgspec.structs.replace(study, like=""))


def miniature(study: Study) -> Study:
    """The same study in a few rounds, with one seed and two values of each axis.

    Of an axis, the first and the last value that settings are searched for are kept: a value that
    borrows settings would miss the one that it borrows from.
    """
    axes = [_shortened(axis) for axis in study.axes]
    return msgspec.structs.replace(
        study,
        title=f"{study.title} (miniature)",
        axes=axes,
        base={**study.base, "rounds": 6},
        methods=[_thinned(method) for method in study.methods],
        tune=msgspec.structs.replace(study.tune, rounds=4, trials=min(2, study.tune.trials)),
        final=msgspec.structs.replace(study.final, seeds=(0,), every=2),
    )


def _shortened(axis: studies.Axis) -> studies.Axis:
    own = [(name, changes) for name, changes in axis.options().items() if name not in axis.borrow]
    kept = dict(_ends(own))
    values = [changes[axis.key] for changes in kept.values()] if axis.key is not None else []
    choices = kept if axis.key is None else {}
    return msgspec.structs.replace(axis, values=values, choices=choices, borrow={})


def _ends(values: list[Any]) -> list[Any]:
    return values if len(values) < 3 else [values[0], values[-1]]


def _thinned(method: studies.Contestant) -> studies.Contestant:
    coarse = {key: [values[len(values) // 2]] for key, values in method.coarse.items()}
    return msgspec.structs.replace(method, coarse=coarse, fine={})


def flat_rows(study: Study, rows: list[Row]) -> list[Row]:
    """A run as one line: labels, figures, accuracy by round, and the timing columns last."""
    labels = [*(axis.label for axis in study.axes), "method", "seed"]
    measured = sorted({int(r) for row in rows for r in row["by_round"]})
    claims = ("epsilon_server", "epsilon_others")
    columns = [*labels, *FIRST, *(f"round_{r}" for r in measured), *claims, *TIMING]
    return [_flat(row, columns) for row in rows]


def _flat(row: Mapping[str, Any], columns: list[str]) -> dict[str, Any]:
    rounds = {f"round_{r}": value for r, value in row["by_round"].items()}
    return {name: {**row, **rounds}.get(name) for name in columns}
