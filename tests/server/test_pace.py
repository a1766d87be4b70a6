# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

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


def test_the_rate_is_that_of_the_start_and_falls_to_zero() -> None:
    start = torch.tensor([0.3, -0.4], dtype=torch.float64)  # of length 0.5
    first = 2.0 * 0.5 / math.sqrt(2) / math.sqrt(4)
    found = [rate_at(t, start, 4, strength=2.0) for t in range(6)]
    assert found == pytest.approx([first, first * 3 / 4, first / 2, first / 4, 0.0, 0.0])


def test_a_start_at_zero_counts_as_the_least_size() -> None:
    assert rate_at(0, torch.zeros(3), 1, strength=1.0, least=0.25) == pytest.approx(0.25)


def test_a_strength_of_zero_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"strength.*got 0"):
        pace(strength=0.0)
