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
from dpfed_lab import commands


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
    assert commands._judged(row) == word


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
