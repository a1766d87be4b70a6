# SPDX-License-Identifier: Apache-2.0
"""The estimate from all records: a minimiser, near the truth, and refused where there is none."""

from __future__ import annotations

import pytest
import torch

from dpfed.core.errors import RecipeError
from dpfed.data.datasets import load
from dpfed.data.estimate import estimate
from dpfed.data.models import Linear


@pytest.mark.parametrize("link", ["logistic", "poisson"])
def test_the_gradient_is_zero_there_and_the_truth_is_near(link: str) -> None:
    data = load("synthetic", kind="glm", link=link, clients=5, records=4000, features=4)
    model = Linear(link, 4)
    found = estimate(model, data.train)
    assert model.problem(data.train).doubled().gradient(found).abs().max() < 1e-5
    truth = torch.as_tensor(data.truth, dtype=torch.float64)
    assert torch.dist(found, truth) < 0.15


def test_a_model_with_many_minimisers_is_refused() -> None:
    data = load("synthetic", kind="mixed", clients=2, records=40, features=3, classes=3)
    with pytest.raises(RecipeError, match="needs one minimiser"):
        estimate(Linear("softmax", 3, 3), data.train)
