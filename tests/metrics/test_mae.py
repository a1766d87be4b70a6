# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import pytest
import torch

from dpfed.core.errors import DataError, RecipeError
from dpfed.metrics.mae import mae
from tests.metrics.units import UNITS, holds_its_word, scored


def test_it_is_the_mean_of_clipped_errors_with_the_noise_that_it_says() -> None:
    generator = torch.Generator().manual_seed(0)
    predicted, targets = torch.randn(2, UNITS, 2, generator=generator, dtype=torch.float64) * 2
    exact = float((predicted - targets).abs().clamp(max=3.0).mean())
    holds_its_word(mae(bound=3.0), scored(predicted, targets), exact, "mae")


def test_an_infinite_prediction_counts_as_the_bound_and_a_nan_as_nothing() -> None:
    predicted = torch.tensor([[math.inf], [1e300], [math.nan], [0.5]], dtype=torch.float64)
    made = mae(bound=1.0).row(scored(predicted, torch.zeros(4)))
    assert made.flatten()[[0, 1, 3]].tolist() == [1.0, 1.0, 0.5]
    assert made[2].isnan()


def test_classes_have_no_error() -> None:
    with pytest.raises(DataError, match="got 3 for 1"):
        mae().row(scored(torch.zeros(4, 3), torch.zeros(4)))
    with pytest.raises(RecipeError, match=r"mae\.bound must be"):
        mae(bound=0.0)
