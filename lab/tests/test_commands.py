# SPDX-License-Identifier: Apache-2.0
"""The lab's commands, as ``dpfed`` runs them by their entry points."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from lab.tests.studies import write

from dpfed.cli import main
from dpfed_lab import commands, progress
from dpfed_lab.jobs import ProgressFile


def dpfed(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dpfed.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_entry_points_are_the_commands_that_the_library_names() -> None:
    found = {each.name: each.load() for each in entry_points(group="dpfed.commands")}
    assert set(found) >= set(main.LAB)
    for name in main.LAB:
        assert found[name] is getattr(commands, name)


@pytest.mark.parametrize(
    ("row", "word"),
    [
        ({"accuracy": 0.713, "loss": 0.9}, "71.3 %"),
        ({"accuracy": None, "loss": 0.01234}, "loss 0.0123"),
        ({"accuracy": None, "loss": None, "refused": "no such rate"}, "refused"),
        ({"accuracy": None, "loss": None}, "--"),
    ],
)
def test_the_bar_of_a_study_says_what_came_of_a_run(row: dict[str, Any], word: str) -> None:
    assert progress.judged(row) == word


def test_a_log_file_gets_a_line_at_the_start_in_between_and_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with progress.StudyView(tmp_path) as view:
        view.begin(12, 16)
        for done in range(13, 17):
            now[0] += 200.0
            row = {"method": "DP-FedGD", "seed": done - 12, "accuracy": 0.713, "loss": 0.9}
            view.run_ended(done, 16, row)
    first, second, *_, last = capsys.readouterr().err.splitlines()
    assert first == "4 runs to do, 12 are done"
    assert second == "run 13/16: DP-FedGD seed 1: 71.3 %, about 10 min left"
    assert last == "run 16/16: DP-FedGD seed 4: 71.3 %"


def test_runs_of_an_earlier_process_do_not_count_for_the_pace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 30.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    kept = ProgressFile(tmp_path)
    kept.begin(90)
    assert kept.write(91, 100, "m seed 1: 50 %") == 9 * 30


@pytest.mark.long
def test_a_study_from_sweep_to_report(tmp_path: Path) -> None:
    study, out = write(tmp_path), tmp_path / "out"
    done = dpfed("sweep", str(study), "--out", str(out), "--workers", "1")
    assert "report in" in done.stdout
    assert {"report.html", "final.csv", "settings.json"} <= {path.name for path in out.iterdir()}
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "tuning" in page.lower()
    (out / "report.html").unlink()
    assert "report in" in dpfed("report", str(out)).stdout
    assert (out / "report.html").exists()
    assert "leaderboard in" in dpfed("leaderboard", str(tmp_path)).stdout
    assert "DP-FedGD" in (tmp_path / "leaderboard.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_reproduce_lists_the_studies() -> None:
    assert "sofim-cifar10" in dpfed("reproduce").stdout
