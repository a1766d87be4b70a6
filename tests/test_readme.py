# SPDX-License-Identifier: Apache-2.0
"""The README: every block runs as it is written, and its figures are those of results/."""

from __future__ import annotations

import html
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.guarantees import check_short_guarantee
from tests.helpers.pages import load_script

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


REHEARSED = "rehearse.py"
"""Starts Flower and gates for minutes: tests/cli/test_start.py has it, in the long suite."""


def do(language: str, text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c"] if language == "python" else ["bash", "-ec"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [*program, text],
        cwd=folder,
        env={**os.environ, "PATH": path, "MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_the_blocks_run_as_written(tmp_path: Path) -> None:
    said = ""
    for language, text in BLOCKS:
        if "pip install" in text or language == "diff" or REHEARSED in text:
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
    with load_script("run_page").own_flower():
        for _ in range(3):  # Flower gives its link 15 s, which a busy machine does not keep
            done = do("bash", FLOWER + text.partition(FLOWER)[2], tmp_path)
            if "Failed to start local SuperLink" not in done.stderr:
                break
    assert done.returncode == 0, done.stderr
    assert re.search(r"accuracy 0\.\d+; \(1, 1e-05\)-DP for each record", done.stdout), done.stdout


def test_the_changed_lines_are_those_that_make_the_app_private() -> None:
    """Of both diffs; tests/test_from_flower.py applies the whole ones, and trains."""
    shown = [text for language, text in BLOCKS if language == "diff"]
    page = (ROOT / "docs" / "from-flower.md").read_text(encoding="utf-8")
    whole = re.findall(r"^```diff\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    both = [line for line in changed(shown[0]) if "strategy = " in line]
    for part, all_of_it in zip(shown, whole, strict=False):
        lines, said = changed(all_of_it), {*changed(part), *both}
        assert said <= set(lines)
        left = [line for line in lines if line not in said]
        assert all(re.match(r"\+from |-", line) for line in left), left


@pytest.mark.slow
def test_the_short_guarantee_is_the_demos() -> None:
    from dpfed.cli import demo
    from dpfed.recipes.build import plan_for_clients
    from dpfed.recipes.federation import federation
    from dpfed.recipes.schema import parse

    recipe = parse(demo.tables(demo.RUNS[1], 1.0))
    silos = federation(recipe)
    plan = plan_for_clients(recipe, silos.clients, silos.model)
    check_short_guarantee(ROOT / "README.md", plan.guarantee())


# ---------------------------------------------------------------------------- the demo's picture


def lines_of_the_picture(svg: str) -> list[str]:
    """The lines of a terminal's picture, with one digit for every figure: noise is drawn anew."""
    rows: dict[float, str] = {}
    pattern = r'<text [^>]*?y="([\d.]+)"[^>]*clip-path[^>]*>(.*?)</text>'
    for y, text in re.findall(pattern, svg, re.DOTALL):
        rows[float(y)] = rows.get(float(y), "") + html.unescape(text).replace("\xa0", " ")
    return [re.sub(r" *\d+\.\d", " 0.0", rows[y]).rstrip() for y in sorted(rows)]


@pytest.mark.long
@pytest.mark.slow
def test_the_picture_shows_what_the_demo_prints() -> None:
    script = runpy.run_path(str(ROOT / "scripts/demo_picture.py"))
    drawn = script["TARGET"].read_text(encoding="utf-8")
    assert len(drawn) < 200_000
    assert "http" not in drawn.replace("http://www.w3.org/2000/svg", "")  # nothing is loaded
    now = script["draw"](script["shown"](script["demo_output"]()))
    assert lines_of_the_picture(drawn) == lines_of_the_picture(now), "run scripts/demo_picture.py"
    assert any("secure sum" in line and "0.0 clips" in line for line in lines_of_the_picture(now))


# --------------------------------------------------------------------- figures, and where they are


def test_what_the_secure_sum_is_worth() -> None:
    table = (ROOT / "lab/studies/secure-sum/results/tables/final.csv").read_text(encoding="utf-8")
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

    assert f"{len(METHODS)} methods, those of the papers" in README
