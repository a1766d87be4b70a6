# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch

from dpfed.core.errors import RecipeError
from dpfed.core.types import Aggregate
from dpfed.server.pace import pace


def rate_at(t: int, start: torch.Tensor, rounds: int, **options: float) -> float:
    optimizer = pace(**options)
    seen = Aggregate(t, torch.zeros_like(start), start, 0.0, 1, rounds=rounds)
    one = torch.ones_like(start)
    return float(optimizer.update(one, optimizer.init(start), seen)[0][0])


def test_the_rate_is_that_of_the_rounds_and_falls_to_zero() -> None:
    found = [rate_at(t, torch.zeros(2), 4, strength=2.0) for t in range(6)]
    assert found == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0, 0.0])


def test_a_training_of_a_hundred_rounds_begins_at_a_twentieth_whatever_the_start() -> None:
    for size in (0.0, 0.1, 10.0):
        assert rate_at(0, torch.full((3,), size), 100) == pytest.approx(0.05)


def test_a_strength_of_zero_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"strength.*got 0"):
        pace(strength=0.0)
