# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import pytest
import torch

from dpfed.accounting.guarantee import epsilon_of_event
from dpfed.core.errors import RecipeError
from dpfed.core.randomness import Noise
from dpfed.core.rows import Dense
from dpfed.core.types import Adjacency, Facts
from dpfed.mechanisms.clear import Clear, clear


def test_the_sum_is_clipped_and_in_clear() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    release, _ = clear(Facts(clip=1.0)).release(Dense(rows), (), Noise(0).stream("release"))
    values = release.vector.double() * release.step
    assert torch.allclose(values, torch.tensor([0.9, 1.2]).double(), atol=1e-5)


@pytest.mark.parametrize("adjacency", Adjacency)
def test_it_costs_everything_from_the_first_release_on(adjacency: Adjacency) -> None:
    mechanism = clear(Facts(adjacency=adjacency))
    assert epsilon_of_event(mechanism.event(1), 1e-5, adjacency)[0] == math.inf
    assert epsilon_of_event(mechanism.event(0), 1e-5, adjacency)[0] == 0.0


def test_it_cannot_be_given_noise_or_a_useless_clip() -> None:
    with pytest.raises(RecipeError, match=r"std = 1\.0; use mechanism 'gaussian'"):
        clear().with_std(1.0)
    with pytest.raises(RecipeError, match=r"adds no noise, got std = 2\.0;"):
        Clear(Facts(clip=1.0), std=2.0)
    with pytest.raises(RecipeError, match=r"clip.*above 0, got inf; 1 is usual"):
        clear(Facts(clip=math.inf))
