# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch

from dpfed.core.errors import RecipeError
from dpfed.core.types import Aggregate
from dpfed.server.ema import ema
from tests.refusals import named


def test_the_average_follows_its_equation() -> None:
    plain, corrected = ema(beta=0.8), ema(beta=0.8, corrected=True)
    zero = torch.zeros(3, dtype=torch.float64)
    state, other, M = plain.init(zero), corrected.init(zero), zero
    for t in range(5):
        G = torch.randn(3, dtype=torch.float64)
        M = 0.8 * M + 0.2 * G
        seen = Aggregate(t, zero, G, 0.0, 1)
        got, state = plain.update(G, state, seen)
        unbiased, other = corrected.update(G, other, seen)
        assert torch.allclose(got, M)
        assert torch.allclose(unbiased, M / (1 - 0.8 ** (t + 1)))


def test_beta_of_one_is_refused() -> None:
    with pytest.raises(RecipeError, match=named("ema", ["beta"])):
        ema(beta=1.0)
