# SPDX-License-Identifier: Apache-2.0
"""Every code block of the README runs as it is written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python|bash)\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


def test_the_readme_has_a_quickstart_in_both_languages() -> None:
    assert {language for language, _ in BLOCKS} == {"python", "bash"}


def test_the_quickstart_runs_as_written(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for language, text in BLOCKS:
        if "pip install" in text:
            continue
        command = [sys.executable, "-c", text] if language == "python" else ["bash", "-ec", text]
        done = subprocess.run(
            command, cwd=tmp_path, env={**os.environ, "PATH": path, "MPLBACKEND": "agg"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    assert (tmp_path / "convergence.png").stat().st_size > 10_000
    assert (tmp_path / "first" / "guarantee.json").exists()


def test_the_sentence_in_the_readme_is_the_one_a_run_prints() -> None:
    from dpfed.recipes.noise_for import noise_for

    quoted = re.search(r"^> \((.*?)\)-DP.*$", README, flags=re.MULTILINE)
    if quoted is None:
        pytest.fail("the README quotes no guarantee sentence")
    promise = noise_for(epsilon=1.0, delta=1e-5, rounds=40, clients=10)["guarantee"]
    assert quoted.group(0).removeprefix("> ") == promise
