# SPDX-License-Identifier: Apache-2.0
"""tests/soak/month.py: its commands are the pages'; the long suite runs it, in short and whole."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from dpfed.cli.doctor import simulations_only
from tests.helpers.pages import DOCS, REPOSITORY, pages

SCRIPT = REPOSITORY / "tests/soak/month.py"


def test_its_commands_are_the_marked_blocks_of_the_pages_and_all_of_them() -> None:
    text = SCRIPT.read_text(encoding="utf-8")
    asked = re.findall(r"month\.(?:do|start|text)\(\s*\"([\w-]+)\"", text)
    asked += re.findall(r"self\.start\(\"([\w-]+)\"", text)
    found = [
        block.month
        for page in ("data", "deployment", "ledger")
        for block in pages.blocks(DOCS / f"{page}.md")
        if block.month
    ]
    assert sorted(found) == sorted(set(found)), "a name means one block"
    assert set(asked) == set(found)
    marked = [path.name for path in DOCS.glob("*.md") if "<!-- month: " in path.read_text()]
    assert sorted(marked) == ["data.md", "deployment.md", "ledger.md"]


def test_every_word_that_it_changes_is_on_the_pages() -> None:
    """Else a page was edited, and the month goes on with the page's own epsilon or path."""
    text = SCRIPT.read_text(encoding="utf-8")
    blocks = "".join(b.text for page in DOCS.glob("*.md") for b in pages.blocks(page) if b.month)
    for word in (
        "fl.example.org",
        "--port 8000",
        "8001",
        "/srv/dpfed",
        "/var/lib/dpfed",
        "NAME",
        "Random(0)",
        "epsilon=2.0",
        "num-server-rounds=20",
        "explain out",
        "visits.csv --y ill --groups patient",
    ):
        assert word in text
        assert word in blocks, word


def walk(*options: str) -> str:
    """What tests/soak/month.py says; it must end well."""
    done = subprocess.run(
        [sys.executable, SCRIPT, *options],
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=3 * 3600,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "month: ok" in done.stdout
    assert re.search(r"wasted in the crashes: epsilon 0\.\d+ at the silo", done.stdout)
    return done.stdout


@pytest.mark.long
@pytest.mark.xdist_group("flower")
def test_the_short_month() -> None:
    """Beside the other worker's tests: its processes wait for each other most of the time."""
    if said := simulations_only():
        pytest.skip(said)
    assert walk("--short").count("ledger verified") == 6


@pytest.mark.long
@pytest.mark.xdist_group("flower")
def test_the_whole_month_from_the_wheel() -> None:
    walk()


@pytest.mark.long
def test_months_in_which_data_arrives() -> None:
    script = REPOSITORY / "tests/soak/arrivals.py"
    done = subprocess.run([sys.executable, script, "--short"], text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "dear without ['2025-01']" in done.stdout
