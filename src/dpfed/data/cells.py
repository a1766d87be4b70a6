# SPDX-License-Identifier: Apache-2.0
"""A cell of a table as a number or a word: each by itself, so that no record decides for another.

| edge case                                    | what happens                             |
|----------------------------------------------|------------------------------------------|
| 3, 3.0, "03", " 3 "                          | one word: "3"                            |
| true and false, or a table's own flags       | as numbers 1 and 0                       |
| a whole number that no float holds           | a word of its own digits                 |
| nothing, or what usually stands for it (NA)  | the word "", and no number               |
| a date that is not written as 2026-03-31,    | no day                                   |
| with or without a time                       |                                          |
"""

from __future__ import annotations

import datetime as dt
import math
import re
from typing import Any

_MISSING = frozenset(
    {"", "nan", "-nan", "na", "n/a", "#n/a", "#n/a n/a", "#na", "null", "none", "<na>"}
)
_FLAGS = {"true": 1.0, "false": 0.0}
_WHOLE = re.compile(
    r"([+-]?)([0-9]+)(?:\.0*)?"
)  # leading zeros go later: "0*[0-9]+" takes n^2 steps


def number(cell: Any) -> float:
    """A cell as a number; NaN if it is none.

    >>> number(" 3.5"), number("abc")
    (3.5, nan)
    """
    try:
        written = text(cell)
        return _FLAGS[written.lower()] if written.lower() in _FLAGS else float(written)
    except (ValueError, OverflowError):
        return math.nan


def word(cell: Any) -> str:
    """A cell as a word: 3, 3.0, "03" and "3.0" are the same one; "" if there is nothing in it.

    >>> word("03"), word(3.0), word(" yes "), word("NA")
    ('3', '3', 'yes', '')
    """
    written = text(cell)
    return "" if written.lower() in _MISSING else spelling(written)


_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?![0-9])")
_FIRST_DAY = dt.date(1970, 1, 1)
NO_DAY = -(1 << 40)
"""The day of a cell that is no date."""


def day(cell: Any) -> int:
    """A cell's date, in days since 1970-01-01; NO_DAY if it is none.

    A time of the day, and its zone, are left out.

    >>> day("1970-01-11"), day("1970-01-11 23:59"), day("11.1.1970") == NO_DAY
    (10, 10, True)
    """
    found = _DAY.match(text(cell))
    try:
        return NO_DAY if found is None else (dt.date.fromisoformat(found[0]) - _FIRST_DAY).days
    except ValueError:  # such as the 31st of February
        return NO_DAY


def date_of(number: int) -> dt.date:
    """The date that is so many days after 1970-01-01.

    >>> str(date_of(10))
    '1970-01-11'
    """
    return _FIRST_DAY + dt.timedelta(days=number)


def spelling(written: str) -> str:
    """A text in the one spelling of its number, if it is one; otherwise as it is.

    >>> spelling("03"), spelling("2.50"), spelling("none")
    ('3', '2.5', 'none')
    """
    read = number(written) if written.lower() not in _FLAGS else math.nan
    if read.is_integer() and abs(read) < 2**53:
        return str(int(read))
    if whole := _WHOLE.fullmatch(written):  # as text: two long numbers may be one float
        return f"{whole[1].replace('+', '')}{whole[2].lstrip('0') or '0'}"
    return repr(read) if math.isfinite(read) else written


def text(cell: Any) -> str:
    """What is written in a cell, without spaces around it; "" if there is nothing."""
    if isinstance(cell, str):
        return cell.strip()
    if isinstance(cell, bytes):
        return cell.decode("utf-8", "replace").strip()
    import numpy as np  # an owner's status, which reads a contract and no cell, does without it

    if isinstance(cell, bool | np.bool_):
        return str(int(cell))
    return "" if cell is None else str(cell).strip()
