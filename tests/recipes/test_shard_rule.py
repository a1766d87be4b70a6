# SPDX-License-Identifier: Apache-2.0
"""How many shards, where nobody says it: from public numbers alone."""

from __future__ import annotations

import pytest

from dpfed.core.types import Trust
from dpfed.recipes.shard_rule import MOST_SHARDS, default_shards


@pytest.mark.parametrize("trust", list(Trust))
def test_smaller_epsilon_has_no_fewer_shards(trust: Trust) -> None:
    found = [default_shards(5000, epsilon, trust) for epsilon in (0.1, 1.0, 3.0, 8.0)]
    assert found == sorted(found, reverse=True)
    assert all(1 <= each <= 5000 for each in found)


def test_bounds() -> None:
    assert default_shards(3, 1.0, Trust.LOCAL) >= 1
    assert default_shards(1e9, 8.0, Trust.LOCAL) == MOST_SHARDS
    assert default_shards(5000, None, Trust.LOCAL) == 200
