# SPDX-License-Identifier: Apache-2.0
"""What a train function in shards has where its recipe says nothing: shards, clip, rounds, server.

All of it follows from public numbers. With n records in each of S silos, d parameters, T rounds and
noise for mu, the noise of one round's mean is, beside the clip, as long as

    r(m) = 2 sqrt(T d c) / mu * m / (n S)        m records a shard; c = S, or S / (S - 1) where
                                                 the silos add the noise together

and m is where that is 0.3, between 4 and 50: a larger shard teaches more in a round, a smaller one
leaves less noise. (The secure sum as it is by default counts on fewer silos for the noise, seven of
ten: then it is 0.34. Counting on those here, too, was tried, and is no better.) The clip follows
the quantile 0.3 of the updates' norms, since nobody knows a function's scale beforehand, from a
small first one: beginning too small loses a round, too large drowns the model. The server has a
momentum of 1/2, so that a steady update moves it twice as far. The constants were fitted on two
data sets, and tried on others: lab/studies/shards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dpfed.accounting.gdp import mu_for
from dpfed.core.types import Trust, Unit

NOISE_LENGTH = 0.3
"""The length of a round's noise in the mean, beside the clip, that shards are made for."""
LEAST_RECORDS, MOST_RECORDS = 4.0, 50.0
"""Of a shard: fewer teach a wrong thing where one class is rare, more are too few rows."""
PLAIN_RECORDS = 25.0
"""Of a shard, where there is no epsilon to go by."""
PLAIN_PARAMETERS = 650
"""A head of ten classes on 64 features: where nobody says how many there are."""
MOST_SHARDS = 2000
"""More take too long: each is a process of its own."""
DEFAULT_CLIP = 0.2
"""The first one."""
DEFAULT_ADAPTIVE = {"quantile": 0.3, "rate": 1.0, "share": 0.02}
"""A round moves the clip by a factor of two at most upwards, since bad first clips are small."""
PERSONS_CLIP = 1.0
"""Where persons are protected, whose clip cannot adapt: half of it is for each of two rows."""
DEFAULT_ROUNDS = 10
"""More rounds share the budget, and a function has trained for some steps in each."""
DEFAULT_MOMENTUM = 0.5
"""Of the server: in the end a steady update moves the model by twice its length."""


def default_shards(
    records: float,
    epsilon: float | None,
    trust: Trust,
    *,
    delta: float = 1e-5,
    silos: int = 10,
    parameters: int = PLAIN_PARAMETERS,
    rounds: int = DEFAULT_ROUNDS,
) -> int:
    """Into how many shards a silo's records are divided: fewer records in each at small epsilon.

    Args:
        records: the silo's public size.
        epsilon: of the whole run; None where the noise is given in another way.
        trust: who adds the noise.
        delta: of the whole run.
        silos: how many there are.
        parameters: how many the model has.
        rounds: how many the run has.

    Returns:
        at least 1, at most ``MOST_SHARDS``.

    >>> default_shards(5000, 8.0, Trust.LOCAL), default_shards(5000, 1.0, Trust.LOCAL)
    (102, 634)
    """
    size = PLAIN_RECORDS
    if epsilon is not None:
        copies = {Trust.CENTRAL: 1.0, Trust.DISTRIBUTED: silos / max(1, silos - 1)}.get(
            trust, silos
        )
        length = 2 * math.sqrt(rounds * parameters * copies) / mu_for(epsilon, delta)
        wanted = NOISE_LENGTH * records * silos / length
        size = min(MOST_RECORDS, max(LEAST_RECORDS, wanted))
    return max(1, min(MOST_SHARDS, round(records / size)))


def default_privacy(given: Mapping[str, Any]) -> dict[str, Any]:
    """The clip, where the recipe gives none.

    Args:
        given: the recipe's table ``privacy``.

    >>> default_privacy({"clip": 1.0}), default_privacy({"unit": "group"})
    ({}, {'clip': 1.0})
    """
    if "clip" in given:
        return {}
    if given.get("unit") == Unit.GROUP:
        return {"clip": PERSONS_CLIP}
    return {"clip": DEFAULT_CLIP, "adaptive": dict(DEFAULT_ADAPTIVE)}


def default_tables() -> dict[str, Any]:
    """The recipe's tables that a train function in shards has without a method."""
    rate = 1 / (1 - DEFAULT_MOMENTUM)
    return {
        "rounds": DEFAULT_ROUNDS,
        "client": {"name": "gradient"},
        "server": [{"name": "ema", "beta": DEFAULT_MOMENTUM}, {"name": "scale", "rate": rate}],
    }
