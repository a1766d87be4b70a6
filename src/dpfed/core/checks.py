# SPDX-License-Identifier: Apache-2.0
"""Bounds of options: each function refuses values outside of one bound, with errors of one form.

check_positive("adam", rate=rate, floor=floor)
RecipeError: adam.rate must be a finite number above 0, got nan; leave it out for the default
"""

from __future__ import annotations

import math
from collections.abc import Sized
from enum import Enum
from numbers import Integral, Number
from pathlib import Path
from typing import Any

from dpfed.core.errors import RecipeError

_MOST_TEXT = 200
"""Characters of a text in an error: a longer one is no name, path or number."""


def refuse(name: str, bound: str, value: Any, way_out: str = "") -> RecipeError:
    """Build the error for an out-of-range value.

    Args:
        name: the option, as a user writes it.
        bound: what it must be.
        value: what it is.
        way_out: what to do about it; if empty, the hint is to leave the option out.
    """
    hint = way_out or "leave it out for the default"
    return RecipeError(f"{name} must be {bound}, got {value_in_words(value)}; {hint}")


def value_in_words(value: Any) -> str:
    """A value for an error: one number, word or path as it is, of all else the kind and the size.

    Whoever gives a wrong argument may have given records, and errors end in logs. A list of words
    is a list of names, since no argument takes texts as records.

    >>> value_in_words(-1), value_in_words(["x", "y"]), value_in_words([1.5, 2.5])
    ('-1', "['x', 'y']", 'a list of 2')
    """
    if isinstance(value, str):
        return repr(value if len(value) <= _MOST_TEXT else f"{value[:_MOST_TEXT]}...")
    if value is None or isinstance(value, Number | Enum | Path):
        return repr(value)
    if type(value).__name__ == "Size":  # torch's, of a shape; torch is not imported for it
        return repr(tuple(value))
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        return repr(value) if len(repr(value)) <= _MOST_TEXT else _kind(value)
    if isinstance(value, type) or callable(value):
        return str(getattr(value, "__qualname__", _kind(value)))
    return _kind(value)


def _kind(value: Any) -> str:
    """The class of a value and its size, never what is in it."""
    name = type(value).__name__
    article = "an" if name[0].lower() in "aeiou" or name == "ndarray" else "a"
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return f"{article} {name} of shape {tuple(shape)}"
    return f"{article} {name} of {len(value)}" if isinstance(value, Sized) else f"{article} {name}"


def check_positive(owner: str, **values: float) -> None:
    """Refuse what is not a finite number above 0."""
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise refuse(f"{owner}.{name}", "a finite number above 0", value)


def check_not_negative(owner: str, **values: float) -> None:
    """Refuse what is not a finite number, 0 or greater."""
    for name, value in values.items():
        if not (math.isfinite(value) and value >= 0):
            raise refuse(f"{owner}.{name}", "a finite number, at least 0", value)


def check_at_least(least: int, owner: str, **values: int) -> None:
    """Refuse what is not a whole number, or is below ``least``.

    Args:
        least: the smallest count that is allowed.
        owner: the plug-in that has the options; it stands before their names in the error.
        **values: the counts, by option.
    """
    for name, value in values.items():
        if not is_count(value, least):
            raise refuse(f"{owner}.{name}", f"a whole number, at least {least}", value)


def is_count(value: object, least: int) -> bool:
    """Whether a value is a whole number, also one of NumPy's, and at least ``least``.

    Args:
        value: whatever was given: 2.5 releases would be three, at the noise of fewer.
        least: the smallest count that is allowed.
    """
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def check_decay(owner: str, **values: float) -> None:
    """Refuse what is not at least 0 and below 1: how much of the past is kept."""
    for name, value in values.items():
        if not 0 <= value < 1:
            raise refuse(f"{owner}.{name}", "at least 0 and below 1", value)


def check_fraction(owner: str, **values: float) -> None:
    """Refuse what is not between 0 and 1, both excluded: a part of a budget."""
    for name, value in values.items():
        if not 0 < value < 1:
            raise refuse(f"{owner}.{name}", "above 0 and below 1", value)


def check_stabilizer(owner: str, **values: float) -> None:
    """Refuse an eps that would round to 0 in float32 and cause 0 / 0."""
    for name, value in values.items():
        if not 1e-30 <= value < math.inf:
            raise refuse(f"{owner}.{name}", "a finite number, at least 1e-30", value)
