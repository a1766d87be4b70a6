# SPDX-License-Identifier: Apache-2.0
"""A sweep on several machines: joined, it is what one machine makes; anything else is refused."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from lab.tests.studies import write

from dpfed.core.errors import MissingExtra, RecipeError
from dpfed_lab.jobs import Store
from dpfed_lab.parts import join, launch
from dpfed_lab.reproduce import TIMING, reproduce
from dpfed_lab.study import load_study
from dpfed_lab.sweep import RUNS, Part, entries_of

SMALL: dict[str, Any] = {"final": {"seeds": [0], "every": 4}}
PARTS = 3


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study whole, and in three parts."""
    folder = tmp_path_factory.mktemp("sweep")
    study = write(folder, **SMALL)
    reproduce(study, folder / "whole", tune=True, workers=1)
    for number in range(1, PARTS + 1):
        part = Part(number, PARTS)
        reproduce(study, folder / "parts", tune=True, workers=1, part=part)
    return folder


@pytest.fixture
def parts(made: Path, tmp_path: Path) -> Path:
    """A copy of the parts, to be spoilt."""
    return shutil.copytree(made / "parts", tmp_path / "parts")


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [{name: cell for name, cell in row.items() if name not in TIMING} for row in rows]


def test_each_entry_is_in_exactly_one_part(tmp_path: Path) -> None:
    entries = [str(each[0]) + each[2].label for each in entries_of(load_study(write(tmp_path)))]
    for count in (1, 2, 3, 8):
        found = [Part(number + 1, count).of_list(entries) for number in range(count)]
        assert sorted(each for part in found for each in part) == sorted(entries)


@pytest.mark.parametrize("text", ["", "3", "0/8", "9/8", "3/", "/8", "-1/8", "a/b", "1/10001"])
def test_a_part_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(RecipeError, match="like 3/8: the third of eight parts"):
        Part.parse(text)


@pytest.mark.long
@pytest.mark.slow
def test_joined_parts_are_the_sweep_of_one_machine(made: Path, parts: Path) -> None:
    join(parts)
    whole = made / "whole"
    assert lines(parts / "final.csv") == lines(whole / "final.csv")
    assert json.loads((parts / "settings.json").read_text()) == json.loads(
        (whole / "settings.json").read_text()
    )
    assert (parts / "study.toml").read_bytes() == (whole / "study.toml").read_bytes()
    ours, theirs = (Store.open(each / RUNS).rows for each in (parts, whole))
    assert set(ours) == set(theirs)
    with pytest.raises(RecipeError, match="has runs of its own"):
        join(parts)


@pytest.mark.slow
def test_missing_and_killed_parts_are_named(parts: Path) -> None:
    shutil.rmtree(parts / "part-2-of-3")
    (parts / "part-3-of-3" / "part.json").unlink()  # it was killed
    with pytest.raises(RecipeError, match=r"2 of 3 parts .* with --part 2/3, --part 3/3$"):
        join(parts)
    with pytest.raises(RecipeError, match="at least one part"):
        join(parts / "nowhere")


@pytest.mark.slow
def test_a_part_that_lost_a_run_is_named(parts: Path) -> None:
    path = parts / "part-1-of-3" / RUNS
    kept = path.read_text().splitlines()
    path.write_text("\n".join(kept[:-1]) + "\n")
    with pytest.raises(RecipeError, match=r"part-1-of-3 lacks 1 of its \d+ final runs.*1/3 again"):
        join(parts)


@pytest.mark.slow
@pytest.mark.parametrize("forged", [False, True])
def test_a_run_that_two_parts_have_is_refused(forged: bool, parts: Path) -> None:
    """Also one that contradicts another part's, under its key: the first must not win."""
    mine, other = (parts / f"part-{n}-of-3" / RUNS for n in (1, 2))
    row, theirs = (json.loads(each.read_text().splitlines()[0]) for each in (mine, other))
    if forged:
        row = {**theirs, "key": row["key"], "accuracy": 0.0}
    with other.open("a") as file:
        file.write(json.dumps(row) + "\n")
    said = "is in two parts, as" if forged else "does not belong to part 2/3: .*key"
    with pytest.raises(RecipeError, match=said):
        join(parts)


@pytest.mark.slow
def test_overlapping_parts_are_refused(made: Path, parts: Path) -> None:
    copied = shutil.copytree(parts / "part-1-of-3", parts / "part-1-again-of-3")
    every = sorted(parts.glob("part-?-of-3"))
    with pytest.raises(RecipeError, match="part 1 is in two of the folders"):
        join(parts / "out", [*every, copied])
    facts = json.loads((copied / "part.json").read_text())
    (copied / "part.json").write_text(json.dumps({**facts, "parts": 4}))
    with pytest.raises(RecipeError, match="of one division"):
        join(parts / "out", [*every, copied])


@pytest.mark.slow
def test_a_run_with_two_results_is_refused(parts: Path) -> None:
    """Two final runs of one cell, method and seed, at different settings, under two keys."""
    folder = parts / "part-1-of-3"
    facts = json.loads((folder / "part.json").read_text())
    row = Store.open(folder / RUNS).rows[facts["finals"][0]]
    with (folder / RUNS).open("a") as file:
        file.write(json.dumps({**row, "key": "another", "accuracy": 0.0}) + "\n")
    facts["finals"].append("another")
    (folder / "part.json").write_text(json.dumps(facts))
    with pytest.raises(RecipeError, match="has two final runs"):
        join(parts)


@pytest.mark.slow
def test_parts_of_other_studies_or_settings_are_refused(parts: Path) -> None:
    path = parts / "part-2-of-3" / "settings.json"
    kept, first = (
        json.loads(path.read_text()),
        (parts / "part-1-of-3" / "settings.json").read_text(),
    )
    name, chosen = next(iter(json.loads(first).items()))
    path.write_text(json.dumps({**kept, name: {**chosen, "tried": 99}}))
    with pytest.raises(RecipeError, match="has other settings for"):
        join(parts)
    path.write_text(json.dumps(kept))
    study = parts / "part-3-of-3" / "study.toml"
    study.write_text(study.read_text().replace('title = "small"', 'title = "other"'))
    with pytest.raises(RecipeError, match="parts of different studies"):
        join(parts)


def test_a_launcher_without_submitit_or_of_another_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    with pytest.raises(RecipeError, match="launcher must be one of slurm, local, got 'ssh'"):
        launch("x", tmp_path, 2, "ssh")
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(MissingExtra, match=r"pip install 'dpfed\[slurm\]'"):
        launch("x", tmp_path, 2)


@pytest.mark.long
def test_submitits_local_executor_runs_all_parts(made: Path, tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    study, out = write(tmp_path, **SMALL), tmp_path / "out"
    launch(str(study), out, 2, "local", workers=1, options={"timeout_min": 5})
    assert lines(out / "final.csv") == lines(made / "whole" / "final.csv")
    assert {"part-1-of-2", "part-2-of-2", "launcher"} <= {path.name for path in out.iterdir()}
