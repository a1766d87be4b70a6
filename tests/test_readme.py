# SPDX-License-Identifier: Apache-2.0
"""The README: short, every block runs as it is written, and its figures are those of results/."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.test_docs import load_script

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


def changed(diff: str) -> list[str]:
    return [
        line for line in diff.splitlines() if re.match(r"[+-](?![+-])", line) and line.strip("+-")
    ]


def test_it_has_each_kind_of_block() -> None:
    assert {language for language, _ in BLOCKS} == {"python", "bash", "diff"}


FLOWER = "export FLWR_"
"""From this line on a block starts Flower's daemons."""


def do(language: str, text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c"] if language == "python" else ["bash", "-ec"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [*program, text], cwd=folder, env={**os.environ, "PATH": path, "MPLBACKEND": "agg"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_the_blocks_run_as_written(tmp_path: Path) -> None:
    said = ""
    for language, text in BLOCKS:
        if "pip install" in text or language == "diff":
            continue
        done = do(language, text.partition(FLOWER)[0], tmp_path)
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        said += done.stdout
    assert len(re.findall(r"^accuracy \d", said, re.MULTILINE)) == 2, said
    for folder in ("first", "runs/dp-fedsofim"):
        assert 'method = "dp-fedsofim"' in (tmp_path / folder / "recipe.toml").read_text()
        assert (tmp_path / folder / "guarantee.json").exists()


@pytest.mark.long
@pytest.mark.xdist_group("flower")
def test_flwr_run_does_the_same_as_an_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPFED_STATE", str(tmp_path / "state"))
    shutil.copytree(ROOT / "examples/flower_app", tmp_path / "examples/flower_app")
    (text,) = [text for _, text in BLOCKS if FLOWER in text]
    with load_script("run-page").own_flower():
        for _ in range(3):  # Flower gives its link 15 s, which a busy machine does not keep
            done = do("bash", FLOWER + text.partition(FLOWER)[2], tmp_path)
            if "Failed to start local SuperLink" not in done.stderr:
                break
    assert done.returncode == 0, done.stderr
    assert re.search(r"accuracy 0\.\d+; \(1, 1e-05\)-DP for each record", done.stdout), done.stdout


def test_the_changed_lines_are_those_that_make_the_app_private() -> None:
    """tests/test_from_flower.py applies the whole diff, and trains."""
    (shown,) = [text for language, text in BLOCKS if language == "diff"]
    page = (ROOT / "docs" / "from-flower.md").read_text(encoding="utf-8")
    whole = re.search(r"^```diff\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    assert whole is not None
    left = set(changed(whole.group(1))) - set(changed(shown))
    assert set(changed(shown)) <= set(changed(whole.group(1)))
    assert all("from quickstart.task import" in line for line in left), left


def test_the_sentence_is_the_one_that_the_app_prints() -> None:
    from dpfed.accounting.guarantee import SHIPPED
    from dpfed.flower import make_plan

    quoted = re.search(r"^> (\(.*)$", README, flags=re.MULTILINE)
    assert quoted is not None
    privacy = {"epsilon": 8.0, "delta": 1e-3, "clip": 1.0, "unit": "client"}
    agreed = make_plan([1] * 10, rounds=3, privacy=privacy).guarantee()
    assert quoted.group(1) == replace(agreed, enforced=SHIPPED).sentence


# --------------------------------------------------------------------- figures, and where they are


def test_what_the_secure_sum_is_worth() -> None:
    table = (ROOT / "results/secure-sum/tables/final.csv").read_text(encoding="utf-8")
    rows = [line.split(",") for line in table.splitlines()]
    first = rows[0].index("epsilon 0.5")
    by_trust = {row[0]: float(row[first]) for row in rows if row[1] == "DP-FedGD"}
    assert f"+{by_trust['distributed'] - by_trust['local']:.1f} points" in README


def test_the_kills_of_the_ledger() -> None:
    found = json.loads((ROOT / "results/ledger/soak.json").read_text(encoding="utf-8"))
    assert f"{found['kills']:,} kills, {found['overspent']} overspent" in README
    assert found["releases_without_an_entry"] == 0


def test_the_methods_are_as_many_as_it_says() -> None:
    from dpfed.recipes.methods import METHODS

    assert f"**{len(METHODS)} methods" in README


def test_every_link_leads_somewhere() -> None:
    targets = re.findall(r"(?:\]\(|src=\"|srcset=\")([^)\"#]+)", README)
    missing = [each for each in targets if "://" not in each and not (ROOT / each).exists()]
    assert missing == []
