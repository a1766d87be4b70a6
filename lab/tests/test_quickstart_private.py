# SPDX-License-Identifier: Apache-2.0
"""The apps of quickstart-private: each diff applies, compiles, and is counted as git does."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

STUDY = Path(__file__).resolve().parents[1] / "studies" / "quickstart-private"
DIFFS = sorted((STUDY / "apps").glob("*.diff"))
LINE = re.compile(r"^\| `(\S+)\.diff` \|[^|]*\| (\d+) \| (\d+) \|", re.MULTILINE)


def changed(diff: Path) -> tuple[int, int]:
    lines = [each for each in diff.read_text().splitlines() if each[:3] not in ("+++", "---")]
    return sum(x.startswith("+") for x in lines), sum(x.startswith("-") for x in lines)


@pytest.mark.parametrize("diff", DIFFS, ids=lambda each: str(each.stem))
def test_a_diff_applies_to_its_app(diff: Path, tmp_path: Path) -> None:
    git = shutil.which("git")
    if git is None:
        pytest.skip("needs git")
    folder = tmp_path / "app"
    shutil.copytree(STUDY / "apps" / diff.stem.partition("-")[0], folder)
    subprocess.run([git, "apply", str(diff)], cwd=folder, check=True)
    for path in folder.rglob("*.py"):
        compile(path.read_text(), str(path), "exec")


def test_the_page_counts_lines_as_git_does() -> None:
    page = (STUDY / "results" / "README.md").read_text()
    said = {name: (int(added), int(removed)) for name, added, removed in LINE.findall(page)}
    assert said == {diff.stem: changed(diff) for diff in DIFFS}
