# SPDX-License-Identifier: Apache-2.0
"""What a train function in shards has where its recipe says nothing: shards, clip, rounds, server.

All of it follows from public numbers: declared sizes, epsilon and trust.
"""

from __future__ import annotations

from typing import Any

from dpfed.core.types import Trust

RECORDS_A_SHARD = 25
"""Records of a shard where epsilon is about 3 or more."""
LEAST_RECORDS = 5
"""... and at least, however small epsilon is."""
MOST_SHARDS = 2000
"""More take too long: each is a process of its own."""
DEFAULT_CLIP = 0.5
"""The longest update of a shard that counts in full."""
DEFAULT_ROUNDS = 10
"""More rounds share the budget, and a function has trained for some steps in each."""


def default_shards(records: float, epsilon: float | None, trust: Trust) -> int:
    """Into how many shards a silo's records are divided: fewer records in each at small epsilon.

    Args:
        records: the silo's public size.
        epsilon: of the whole run; None where the noise is given in another way.
        trust: who adds the noise.

    >>> default_shards(5000, 8.0, Trust.LOCAL), default_shards(5000, 1.0, Trust.LOCAL)
    (200, 500)
    """
    size = float(RECORDS_A_SHARD)
    if epsilon is not None and trust is Trust.LOCAL and epsilon < 3:
        size = max(LEAST_RECORDS, RECORDS_A_SHARD * epsilon / 2.5)
    return max(1, min(MOST_SHARDS, round(records / size)))


def default_tables() -> dict[str, Any]:
    """The recipe's tables that a train function in shards has without a method."""
    return {
        "rounds": DEFAULT_ROUNDS,
        "client": {"name": "gradient"},
        "server": [{"name": "scale", "rate": 1.0}],
    }
