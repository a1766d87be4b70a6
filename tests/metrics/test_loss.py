# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import pytest
import torch

from dpfed.core.errors import RecipeError
from dpfed.metrics.loss import loss
from tests.metrics.units import UNITS, holds_its_word, scored


def test_it_is_the_mean_of_clipped_losses_with_the_noise_that_it_says() -> None:
    losses = torch.randn(UNITS, generator=torch.Generator().manual_seed(0)).abs() * 3
    records = scored(torch.zeros(UNITS, 2), torch.zeros(UNITS), losses=losses)
    exact = float(losses.double().clamp(max=4.0).mean())
    holds_its_word(loss(bound=4.0), records, exact, "loss")


def test_an_infinite_loss_counts_as_the_bound() -> None:
    losses = torch.tensor([math.inf, -1.0, 2.0])
    made = loss(bound=4.0).row(scored(torch.zeros(3, 2), torch.zeros(3), losses=losses))
    assert made.flatten().tolist() == [1.0, 0.0, 0.5]


@pytest.mark.parametrize("bound", [0.0, -1.0, math.inf, math.nan])
def test_the_bound_is_a_number(bound: float) -> None:
    with pytest.raises(RecipeError, match=r"loss\.bound must be"):
        loss(bound=bound)
