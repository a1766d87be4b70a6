# SPDX-License-Identifier: Apache-2.0
"""The main paper's table in miniature on real data, by the command line, from search to page.

That a sweep killed half-way goes on and gives the same table is in test_sweep.py.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpfed_lab import study as studies
from dpfed_lab.reproduce import TIMING

# two processes train for a minute; one of pytest's makes the folders for all tests
pytestmark = [pytest.mark.long, pytest.mark.xdist_group("miniature")]

METHODS = [method.label for method in studies.load_study("sofim-cifar10").methods]
TABLES = {
    "final",
    "mcnemar",
    "paired",
    "progress-epsilon-1",
    "progress-epsilon-5",
    "settings",
    "speed",
}
FIGURES = {
    "convergence-epsilon-1",
    "convergence-epsilon-5",
    "final-epsilon-1",
    "final-epsilon-5",
    "frontier",
}


def dpfed(data: Path, *words: str) -> None:
    environment = os.environ | {"DPFED_DATA": str(data), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", "from dpfed.cli.main import main; main()", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "final.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [{name: v for name, v in row.items() if name not in TIMING} for row in rows]


@pytest.fixture(scope="module")
def twice(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Over a pool of two processes, then in one."""
    folders = [tmp_path_factory.mktemp(f"workers-{count}") for count in (2, 1)]
    for count, folder in zip((2, 1), folders, strict=True):
        dpfed(
            shared_data,
            "reproduce",
            "sofim-cifar10",
            "--quick",
            "--tune",
            "--workers",
            str(count),
            "--out",
            str(folder),
        )
    return folders


def test_the_same_command_gives_the_same_table_but_for_timing(twice: list[Path]) -> None:
    first, second = map(table, twice)
    assert first == second
    assert [(row["epsilon"], row["method"]) for row in first] == [
        (epsilon, method) for epsilon in ("1", "5") for method in METHODS
    ]
    assert all(0.05 < float(row["accuracy"]) < 1 for row in first)
    settings = [(folder / "settings.json").read_text(encoding="utf-8") for folder in twice]
    assert settings[0] == settings[1]
    assert settings[0].count('"tried"') == 2 * len(METHODS)


def test_the_report_is_complete_and_sound_in_a_browser(
    twice: list[Path], shared_data: Path, repository: Path
) -> None:
    folder = twice[0]
    dpfed(shared_data, "report", str(folder))
    for kind in ("md", "csv", "tex"):
        assert {path.stem for path in (folder / "tables").glob(f"*.{kind}")} == TABLES
    for kind in ("png", "pdf"):
        assert {path.stem for path in (folder / "figures").glob(f"*.{kind}")} == FIGURES
    assert {"study.toml", "paper.csv", "runs.jsonl"} <= {path.name for path in folder.iterdir()}
    page = [sys.executable, str(repository / "scripts/check_page.py"), str(folder / "report.html")]
    looked = subprocess.run(page, capture_output=True, text=True, timeout=300)
    assert looked.returncode == 0, looked.stderr
