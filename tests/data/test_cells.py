# SPDX-License-Identifier: Apache-2.0
"""A cell as a number or a word."""

import datetime as dt
import math
import time

import numpy as np
import pytest

from dpfed.data.cells import NO_DAY, date_of, day, number, spelling, text, word


@pytest.mark.parametrize(
    ("cell", "read"),
    [
        ("3.5", 3.5),
        (" 3 ", 3.0),
        (True, 1.0),
        ("false", 0.0),
        (b"7", 7.0),
        (np.bool_(True), 1.0),
        ("1e999", math.inf),
    ],
)
def test_numbers(cell, read) -> None:
    assert number(cell) == read


@pytest.mark.parametrize("cell", ["", None, "3,5", "abc", "nan"])
def test_no_numbers(cell) -> None:
    assert math.isnan(number(cell))


def test_a_long_cell_takes_no_longer_than_its_length() -> None:
    """With "0*[0-9]+" 50,000 zeros and a letter took minutes: one record stopped its whole silo."""
    began = time.process_time()
    for cell in ("0" * 50_000 + "x", "1" + ".000" * 50_000, "7" * 50_000 + ".0" * 3):
        assert spelling(cell) == cell
    assert time.process_time() - began < 5


def test_one_word_has_one_spelling() -> None:
    assert {word(each) for each in (3, 3.0, "03", "3.0", " 3 ", "+3")} == {"3"}
    assert word("NA") == word(None) == ""
    assert spelling("NA") == "NA", "whether it means missing is not the spelling's business"
    assert spelling("12345678901234567890") == "12345678901234567890"
    assert spelling("-0012345678901234567890.0") == "-12345678901234567890"
    assert text(b"\xff") == "�"


@pytest.mark.parametrize(
    ("cell", "read"),
    [
        ("2026-03-31", "2026-03-31"),
        (" 2026-03-31T23:59:59+02:00 ", "2026-03-31"),
        (dt.date(2026, 3, 31), "2026-03-31"),
        (dt.datetime(2026, 3, 31, 12, tzinfo=dt.UTC), "2026-03-31"),
        (np.datetime64("2026-03-31"), "2026-03-31"),
        ("0999-01-01", "0999-01-01"),
    ],
)
def test_days(cell, read) -> None:
    assert str(date_of(day(cell))) == read


@pytest.mark.parametrize(
    "cell",
    ["", None, "2026-02-30", "31.03.2026", "2026-3-1", "2026-03-311", "0000-01-01", 20260331],
)
def test_no_days(cell) -> None:
    assert day(cell) == NO_DAY
