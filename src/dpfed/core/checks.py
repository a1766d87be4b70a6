# SPDX-License-Identifier: Apache-2.0
"""Bounds of options: each function refuses values outside of one bound, with errors of one form.

positive("adam", rate=rate, floor=floor)
RecipeError: adam.rate must be a finite number above 0, got nan; leave it out for the default
"""

from __future__ import annotations

import math
from typing import Any

from dpfed.core.errors import RecipeError


def refuse(name: str, bound: str, value: Any, way_out: str = "") -> RecipeError:
    """The error of a value that breaks its bound.

    Args:
        name: the option, as a user writes it.
        bound: what it must be.
        value: what it is.
        way_out: what to do about it; empty is to leave it out.
    """
    hint = way_out or "leave it out for the default"
    return RecipeError(f"{name} must be {bound}, got {value!r}; {hint}")


def positive(owner: str, **values: float) -> None:
    """Refuse what is not a finite number above 0."""
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise refuse(f"{owner}.{name}", "a finite number above 0", value)


def not_negative(owner: str, **values: float) -> None:
    """Refuse what is not a finite number from 0 on."""
    for name, value in values.items():
        if not (math.isfinite(value) and value >= 0):
            raise refuse(f"{owner}.{name}", "a finite number, at least 0", value)


def at_least(least: int, owner: str, **values: int) -> None:
    """Refuse a count below ``least``.

    Args:
        least: the smallest count that is allowed.
        owner: the plug-in that has the options; it stands before their names in the error.
        **values: the counts, by option.
    """
    for name, value in values.items():
        if not value >= least:
            raise refuse(f"{owner}.{name}", f"a whole number, at least {least}", value)


def decay(owner: str, **values: float) -> None:
    """Refuse what is not at least 0 and below 1: how much of the past is kept."""
    for name, value in values.items():
        if not 0 <= value < 1:
            raise refuse(f"{owner}.{name}", "at least 0 and below 1", value)


def part(owner: str, **values: float) -> None:
    """Refuse what is not between 0 and 1, both excluded: a part of a budget."""
    for name, value in values.items():
        if not 0 < value < 1:
            raise refuse(f"{owner}.{name}", "above 0 and below 1", value)


def stabilizer(owner: str, **values: float) -> None:
    """Refuse an eps that float32 may take for 0: 0 / 0 is not a direction."""
    for name, value in values.items():
        if not 1e-30 <= value < math.inf:
            raise refuse(f"{owner}.{name}", "a finite number, at least 1e-30", value)
