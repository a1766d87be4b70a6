# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch

from dpfed.core.errors import RecipeError
from dpfed.core.types import Aggregate
from dpfed.server.schedule import schedule
from tests.refusals import named


def rate_at(t: int, **options: object) -> float:
    one = torch.ones(1, dtype=torch.float64)
    optimizer = schedule(**options)  # type: ignore[arg-type]
    direction, _ = optimizer.update(one, (), Aggregate(t, one, one, 0.0, 1))
    return float(direction)


def test_constant() -> None:
    assert [rate_at(t, rate=0.3, shape="constant") for t in (0, 5, 69)] == [0.3] * 3


def test_cosine_falls_from_the_rate_to_the_floor() -> None:
    options = {"rate": 2.0, "shape": "cosine", "rounds": 10, "floor": 0.5}
    assert rate_at(0, **options) == 2.0
    assert rate_at(5, **options) == pytest.approx(1.25)
    assert rate_at(10, **options) == pytest.approx(0.5)
    assert rate_at(50, **options) == pytest.approx(0.5)  # does not rise again


def test_inverse_halves_after_one_period() -> None:
    options = {"rate": 2.0, "shape": "inverse", "period": 7.0, "floor": 0.1}
    assert rate_at(0, **options) == 2.0
    assert rate_at(7, **options) == pytest.approx(1.0)
    assert rate_at(10_000, **options) == 0.1


def test_an_unknown_shape_is_refused_with_the_known_ones() -> None:
    with pytest.raises(RecipeError, match="got 'cosin'"):
        schedule(shape="cosin")
    with pytest.raises(RecipeError, match=named("schedule", ["rounds"])):
        schedule(rounds=0)
