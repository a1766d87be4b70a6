# SPDX-License-Identifier: Apache-2.0
"""Bounds of options: what is at the edge passes, what is beyond is refused in one form."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from dpfed.core import checks
from dpfed.core.errors import RecipeError
from tests.refusals import named

NAN, INF = math.nan, math.inf
CASES: dict[str, tuple[Callable[..., None], list[Any], list[Any]]] = {
    "positive": (checks.check_positive, [5e-324, 1, 1e308], [0, 0.0, -1e-300, NAN, INF, -INF]),
    "not negative": (checks.check_not_negative, [0, 0.0, 1e308], [-5e-324, NAN, INF, -INF]),
    "decay": (checks.check_decay, [0, 0.5, 1 - 2**-53], [-5e-324, 1, NAN, INF]),
    "part": (checks.check_fraction, [5e-324, 0.5, 1 - 2**-53], [0, 1, -1, NAN, INF]),
    "stabilizer": (checks.check_stabilizer, [1e-30, 1.0], [0.0, 9e-31, -1, NAN, INF]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_edges_pass_and_what_is_beyond_does_not(name: str) -> None:
    check, fine, wrong = CASES[name]
    for value in fine:
        check("adam", rate=value)
    for value in wrong:
        with pytest.raises(RecipeError, match=named("adam", ["rate"])):
            check("adam", rate=value)


@pytest.mark.parametrize("least", [0, 1])
def test_counts(least: int) -> None:
    checks.check_at_least(least, "fedavg", steps=least)
    for value in (least - 1, NAN):
        with pytest.raises(RecipeError, match=f"a whole number, at least {least}, got"):
            checks.check_at_least(least, "fedavg", steps=value)  # type: ignore[arg-type]


def test_the_first_of_several_that_breaks_its_bound_is_named() -> None:
    with pytest.raises(RecipeError, match=named("adam", ["floor"])):
        checks.check_positive("adam", rate=1.0, floor=-1.0, eps=-2.0)


def test_the_way_out_can_be_said() -> None:
    error = checks.refuse("sum.bits", "32 or 64", 16, "use 64")
    assert str(error) == "sum.bits must be 32 or 64, got 16; use 64"
