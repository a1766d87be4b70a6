# SPDX-License-Identifier: Apache-2.0
"""The page check finds what is wrong with a page in a browser, and passes a sound one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # a browser looks at pages

SCRIPT = Path(__file__).parent.parent / "scripts" / "check_page.py"

BROKEN = """<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>broken</title></head>
<body><figure><img alt="a lost figure" src="nowhere.png"></figure>
<div style="width: 700px">wide</div>
<script>console.error("an error"); console.warn("a warning"); console.log("no fault");
undefinedFunction();</script></body></html>
"""


def look(page: Path, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(page)],
        capture_output=True,
        text=True,
        env=environment or None,
        timeout=300,
    )
    return done.returncode, done.stderr


def test_every_fault_is_found_and_said(tmp_path: Path) -> None:
    page = tmp_path / "broken.html"
    page.write_text(BROKEN, encoding="utf-8")
    code, said = look(page)
    assert code == 1
    for width in (1280, 390):
        for fault in (
            "the console says: an error.",
            "the console says: a warning.",
            "the console says: ReferenceError: undefinedFunction is not defined.",
            "an image did not load: a lost figure.",
            "it has 1 figures, figures/ has 0.",
        ):
            assert f"at {width} px {fault}" in said
    assert "nowhere.png" in said  # the console's own words about the image
    assert "no fault" not in said
    # 700 px fit into 1280, not into 390
    assert "at 1280 px it is" not in said
    assert "at 390 px it is 7" in said


def test_what_cannot_be_checked_does_not_pass(tmp_path: Path) -> None:
    code, said = look(tmp_path / "none.html")
    assert code == 1
    assert "there is no page" in said
    page = tmp_path / "page.html"
    page.write_text("<!DOCTYPE html><title>x</title>", encoding="utf-8")
    code, said = look(page, PATH=str(tmp_path))
    assert code == 1
    assert "no Chromium to look with; install it: apt-get install chromium" in said


def test_a_browser_that_does_not_answer_is_a_fault(tmp_path: Path) -> None:
    page, fake = tmp_path / "page.html", tmp_path / "chromium"
    page.write_text("<!DOCTYPE html><title>x</title>", encoding="utf-8")
    fake.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    fake.chmod(0o755)
    code, said = look(page, PATH=f"{tmp_path}:/usr/bin:/bin")
    assert code == 1
    assert "Chromium gave no answer" in said
