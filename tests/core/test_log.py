# SPDX-License-Identifier: Apache-2.0
"""Text from elsewhere can neither steer a screen nor forge a line of a log."""

from __future__ import annotations

import io
import logging
import threading
import time

import pytest

from dpfed.core.log import OneLine, say_if_slow, shown


@pytest.mark.parametrize(
    "text",
    ["\x1b[31mred", "two\nlines", "\u202eright to left", "\x00", "zero\u200bwidth", "a\u0301"],
)
def test_text_from_elsewhere_cannot_steer_a_screen(text: str) -> None:
    said = shown(text)
    assert "\N{REPLACEMENT CHARACTER}" in said
    assert said.isprintable()


def test_long_text_is_cut() -> None:
    assert shown("x" * 1000) == "x" * 80 + "..."


def test_an_errors_text_forges_no_line_and_fills_no_disk() -> None:
    written, log = io.StringIO(), logging.Logger("test")
    handler = logging.StreamHandler(written)
    handler.setFormatter(OneLine())
    log.addHandler(handler)
    try:
        try:
            raise KeyError("x" * 10_000_000)
        except KeyError as error:
            raise ValueError("no such array\nINFO the gate is fine\x1b[2J") from error
    except ValueError:
        log.exception("client %s\nfailed", "\u202e0")
    said = written.getvalue()
    assert len(said) < 5000
    assert "\nINFO" not in said
    assert "ERROR client \N{REPLACEMENT CHARACTER}0\N{REPLACEMENT CHARACTER}failed\n" in said
    assert "KeyError: 'xxx" in said
    assert "\x1b" not in said


def test_what_takes_long_is_said_and_what_does_not_is_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = threading.active_count()
    with say_if_slow("reading data.sepsis", seconds=60.0):
        pass
    assert capsys.readouterr().err == ""
    with say_if_slow("reading data.sepsis", seconds=0.0):
        time.sleep(0.2)
    assert capsys.readouterr().err == "reading data.sepsis ...\n"
    assert threading.active_count() == before, "a gate forks, and must have one thread"
