# SPDX-License-Identifier: Apache-2.0
"""What CONTRIBUTING says: its marks are asked for, its groups take turns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
SOURCE = REPOSITORY / "src" / "dpfed"
PAGES = ("CONTRIBUTING.md", ".github/pull_request_template.md")


def test_both_ask_the_same_about_a_claim() -> None:
    for name in PAGES:
        text = (REPOSITORY / name).read_text(encoding="utf-8")
        for word in (
            "adversary",
            "unit",
            "adjacency",
            "arithmetic",
            "enforces",
            "second reader",
            "planted",
            "goldens",
            "dpfed audit",
            ".privacy.md",
        ):
            assert word.removesuffix("ed") in text.lower(), (name, word)


def test_a_test_that_starts_python_is_asked_for_its_mark() -> None:
    with pytest.raises(RuntimeError, match="this test starts python"):
        subprocess.run([sys.executable, "-c", ""], check=True)


@pytest.mark.xdist_group("turns")
def test_groups_take_turns(request: pytest.FixtureRequest) -> None:
    """What pytest-xdist does not see, it does not keep on one worker; it says nothing then."""
    if getattr(request.config.option, "loadgroup", False):
        assert request.node.nodeid.endswith("@turns"), f"use pytest < 9.2, not {pytest.__version__}"
