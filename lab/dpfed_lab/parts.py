# SPDX-License-Identifier: Apache-2.0
"""A study on several machines: its parts by hand or by a launcher, and one folder of them again.

    dpfed sweep NAME --part 3/8 --out OUT         on any machine: OUT/part-3-of-8
    dpfed sweep NAME --parts 8 --launcher slurm   all of them, as jobs of Slurm, then joined
    dpfed sweep NAME --join --out OUT             all of OUT/part-*: one study's folder

A part has its own folder, so that no file has two writers; a killed one resumes by its command.
Joined, the study is what one machine would have made: the same runs under the same keys.

| edge case                                         | what happens                                 |
|---------------------------------------------------|----------------------------------------------|
| a part is missing, killed, or runs again          | refused, with the commands that are left     |
| a part lacks a run that it says it has            | the same                                     |
| parts of different studies, or divisions          | refused, with both                           |
| a part twice, a run in two parts, or in a part    | refused, with the run: nothing says which    |
| that it does not belong to                        | one is right                                 |
| two settings for one cell and method              | refused                                      |
| the folder has runs of its own                    | refused                                      |
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from dpfed.core.checks import refuse
from dpfed.core.errors import RecipeError
from dpfed.core.extras import require_extra
from dpfed.core.files import replace_file
from dpfed_lab.jobs import Row, Store
from dpfed_lab.published import PAPER
from dpfed_lab.reproduce import PART, reproduce, write_final
from dpfed_lab.study import STUDY, Study, cells, load_study
from dpfed_lab.sweep import RUNS, SETTINGS, Part, Settings, Workspace, label_of

LAUNCHERS = ("slurm", "local")
"""Submitit's clusters: ``local`` starts processes on this machine."""


@dataclass(frozen=True)
class _Found:
    """A part's folder, as it says itself."""

    folder: Path
    part: Part
    study: Study
    finals: tuple[str, ...]
    rows: Mapping[str, Row]
    settings: Settings


def join(out: Path, folders: Sequence[Path] = ()) -> Study:
    """Put the parts of a study together in one folder, as one machine would have left it.

    Args:
        out: the study's folder, which has no runs yet.
        folders: the parts' folders; none is all of ``out``/part-*.

    Returns:
        the study.
    """
    given = sorted(folders or out.glob("part-*-of-*"))
    if not given:
        raise refuse("folders", "of at least one part", str(out), "give the parts' folders")
    if (out / RUNS).exists() and (out / RUNS).stat().st_size:
        raise RecipeError(f"{out / RUNS} has runs of its own; join the parts into another folder")
    _refuse_missing([Part.parse(_told(each)[0]) for each in given if (each / PART).exists()], given)
    parts = [_read(each) for each in given]
    study = parts[0].study
    rows, settings = _all_rows(parts), _all_settings(parts)
    finals = _finals(study, parts)
    out.mkdir(parents=True, exist_ok=True)
    replace_file(out / STUDY, (parts[0].folder / STUDY).read_bytes(), 0o644)
    if (parts[0].folder / PAPER).exists():
        shutil.copyfile(parts[0].folder / PAPER, out / PAPER)
    text = json.dumps(settings, indent=1) + "\n"
    replace_file(out / SETTINGS, text.encode(), 0o644)
    lines = "".join(json.dumps(row) + "\n" for row in rows.values())
    replace_file(out / RUNS, lines.encode(), 0o644)
    write_final(study, finals, out)
    return study


def _told(folder: Path) -> tuple[str, list[str]]:
    """What part.json says: the part, and the keys of its final runs."""
    try:
        facts = json.loads((folder / PART).read_text(encoding="utf-8"))
        return f"{facts['part']}/{facts['parts']}", list(map(str, facts["finals"]))
    except (ValueError, KeyError, TypeError) as error:
        raise RecipeError(
            f"{folder / PART} cannot be read ({error}); run that part again"
        ) from error


def _refuse_missing(parts: Sequence[Part], folders: Sequence[Path]) -> None:
    """Refuse divisions that differ, a part twice, and parts that are not there or not complete."""
    counts = {part.count for part in parts}
    if len(counts) > 1:
        raise refuse("parts", "of one division", sorted(counts), "join those of one sweep")
    twice = sorted({part.number for part in parts if [*parts].count(part) > 1})
    if twice:
        raise RecipeError(
            f"part {twice[0]} is in two of the folders, and nothing says which one is right; "
            f"leave one out"
        )
    begun = {Part.parse("/".join(each.name.split("-")[1::2])) for each in folders if _named(each)}
    count = max(counts | {part.count for part in begun}, default=0)
    left = sorted(set(range(1, count + 1)) - {part.number for part in parts})
    if left or not parts:
        commands = ", ".join(f"--part {number}/{count}" for number in left[:20])
        raise RecipeError(
            f"{len(left)} of {count} parts are missing or not complete; run the sweep's command "
            f"with {commands}"
        )


def _named(folder: Path) -> bool:
    words = folder.name.split("-")
    return len(words) == 4 and words[0] == "part" and all(word.isdecimal() for word in words[1::2])


def _read(folder: Path) -> _Found:
    text, finals = _told(folder)
    part = Part.parse(text)
    rows = Store.open(folder / RUNS).rows
    lost = [key for key in finals if key not in rows]
    if lost:
        raise RecipeError(
            f"{folder} lacks {len(lost)} of its {len(finals)} final runs; run the sweep's command "
            f"with --part {part} again"
        )
    settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    found = _Found(
        folder=folder,
        part=part,
        study=load_study(folder / STUDY),
        finals=tuple(finals),
        rows=rows,
        settings=settings,
    )
    _refuse_strangers(found)
    return found


def _refuse_strangers(found: _Found) -> None:
    """Refuse a part with a run of an entry that is another part's."""
    workspace = Workspace(study=found.study, folder=found.folder, part=found.part)
    own = {label_of(cell, method.label) for cell, _, method in workspace.entries}
    for row in found.rows.values():
        if "entry" in row:
            mine = row["entry"] in own
        else:
            axes = [axis.label for axis in found.study.axes]
            cell = {name: str(row.get(name)) for name in axes}
            mine = _is_cell(found.study, cell) and workspace.has(cell, str(row.get("method")))
        if not mine:
            raise RecipeError(
                f"{found.folder} has a run that does not belong to part {found.part}: "
                f"{_words(row)}; make that part anew, in an empty folder"
            )


def _is_cell(study: Study, cell: Mapping[str, str]) -> bool:
    return any(dict(each) == dict(cell) for each, _ in cells(study))


def _words(row: Mapping[str, Any]) -> str:
    told = row.get("entry") or {k: v for k, v in row.items() if k in ("method", "seed")}
    return f"{told} (key {row.get('key')})"


def _all_rows(parts: Sequence[_Found]) -> dict[str, Row]:
    """Every run once; a study that differs, or a run in two parts, is refused."""
    rows: dict[str, Row] = {}
    for each in parts:
        if each.study != parts[0].study:
            raise RecipeError(
                f"{each.folder} and {parts[0].folder} are parts of different studies; join those "
                f"of one"
            )
        for key, row in each.rows.items():
            if key in rows:
                raise RecipeError(
                    f"{_words(row)} is in two parts, as {_words(rows[key])}; make part {each.part} "
                    f"anew, in an empty folder"
                )
            rows[key] = row
    return rows


def _all_settings(parts: Sequence[_Found]) -> Settings:
    settings: Settings = {}
    for each in parts:
        for name, chosen in each.settings.items():
            if settings.setdefault(name, chosen) != chosen:
                raise RecipeError(
                    f"{each.folder / SETTINGS} has other settings for {name!r} than another part; "
                    f"run all parts with the same settings"
                )
    return settings


def _finals(study: Study, parts: Sequence[_Found]) -> list[Row]:
    """The final runs in the study's own order; one that is missing, or there twice, is refused."""
    names = [*(axis.label for axis in study.axes), "method", "seed"]
    found: dict[tuple[str, ...], Row] = {}
    for each in parts:
        for key in each.finals:
            row = each.rows[key]
            place = tuple(str(row.get(name)) for name in names)
            if place in found:
                raise RecipeError(f"{_words(row)} has two final runs; make part {each.part} anew")
            found[place] = row
    wanted = [
        (*cell.values(), method.label, str(seed))
        for (cell, _), method, seed in product(cells(study), study.methods, study.final.seeds)
    ]
    lost = [place for place in wanted if place not in found]
    if lost:
        raise RecipeError(
            f"{len(lost)} of {len(wanted)} final runs are in no part, such as {lost[0]}; run that "
            f"part again"
        )
    return [found[place] for place in wanted]


# ------------------------------------------------------------------------------------- a launcher


def launch(
    source: str,
    out: Path,
    parts: int,
    launcher: str = "slurm",
    *,
    tune: bool = True,
    quick: bool = False,
    workers: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Study:
    """Run a study's parts as jobs of a cluster, wait for them, and join them.

    If this process ends, the jobs go on: ``--join`` is what is left to do.

    Args:
        source: the study, by name or path.
        out: the study's folder, on a disk that all machines have.
        parts: how many jobs.
        launcher: slurm, or local: processes on this machine.
        tune: search settings first.
        quick: a miniature.
        workers: processes of each job; None is one per core.
        options: submitit's parameters, such as timeout_min, cpus_per_task, slurm_partition.
    """
    if launcher not in LAUNCHERS:
        raise refuse("launcher", f"one of {', '.join(LAUNCHERS)}", launcher)
    whole = Part.parse(f"{parts}/{parts}")
    with require_extra("slurm", "--launcher", "submitit"):
        import submitit
    place = str(Path(source).resolve()) if Path(source).suffix == ".toml" else source
    executor = submitit.AutoExecutor(folder=out.resolve() / "launcher", cluster=launcher)
    executor.update_parameters(name="dpfed", **(options or {}))
    with executor.batch():
        jobs = [
            executor.submit(
                _run_part, place, str(out.resolve()), f"{n + 1}/{whole.count}", tune, quick, workers
            )
            for n in range(whole.count)
        ]
    for job in jobs:
        job.result()
    return join(out)


def _run_part(
    source: str, out: str, part: str, tune: bool, quick: bool, workers: int | None
) -> None:
    reproduce(source, Path(out), tune=tune, quick=quick, workers=workers, part=Part.parse(part))
