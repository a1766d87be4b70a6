# SPDX-License-Identifier: Apache-2.0
"""How many shards, where nobody says it: from public numbers alone."""

from __future__ import annotations

import math

import pytest

from dpfed.accounting.gdp import mu_for
from dpfed.core.types import Trust
from dpfed.recipes.shard_rule import MOST_SHARDS, NOISE_LENGTH, default_shards


@pytest.mark.parametrize("trust", list(Trust))
def test_smaller_epsilon_has_no_fewer_shards(trust: Trust) -> None:
    found = [default_shards(5000, epsilon, trust) for epsilon in (0.1, 1.0, 3.0, 8.0)]
    assert found == sorted(found, reverse=True)
    assert all(1 <= each <= 5000 for each in found)


def test_bounds() -> None:
    assert default_shards(3, 1.0, Trust.LOCAL) >= 1
    assert default_shards(1e9, 8.0, Trust.LOCAL) == MOST_SHARDS
    assert default_shards(5000, None, Trust.LOCAL) == 200


def test_a_rounds_noise_is_as_long_as_the_rule_says() -> None:
    """Where neither bound holds: beside the clip, the mean's noise has the length 0.3."""
    n, silos, d, rounds = 5000, 10, 650, 10
    for trust, copies in ((Trust.LOCAL, silos), (Trust.DISTRIBUTED, silos / (silos - 1))):
        k = default_shards(n, 2.0, trust, silos=silos, parameters=d, rounds=rounds)
        assert 4 < n / k < 50
        std = 2 * math.sqrt(rounds * copies) / mu_for(2.0, 1e-5) / (k * silos)
        assert math.sqrt(d) * std == pytest.approx(NOISE_LENGTH, rel=0.01)


def test_a_server_that_adds_the_noise_needs_fewer_shards() -> None:
    found = [default_shards(5000, 2.0, trust) for trust in (Trust.CENTRAL, Trust.LOCAL)]
    assert found[0] < found[1]
