# SPDX-License-Identifier: Apache-2.0
"""Epsilon in plain words: how often an attacker who knows all other records can be right.

The attacker is shown all that a claim covers, and says which of two data sets was used; they differ
in one unit. The trade-off between its two errors is bounded by the claim (Wasserman and Zhou 2010;
Kairouz et al. 2015; Dong et al. 2022), for any attack and any computing power:

    claim               right guesses at even odds           units found at false alarms a
    (epsilon, delta)    1 - (1 - delta) / (1 + e^epsilon)    min(e^epsilon a + delta,
                                                                 1 - (1 - delta - a) / e^epsilon)
    Gaussian, mu        Phi(mu / 2)                          Phi(Phi^-1(a) + mu)

Guarantee: never a figure below the bound. mu is taken from (epsilon, delta), rounded up, where the
accounting was the exact Gaussian one; what a secure sum may lose of delta is added; whole guesses
are rounded up.

| edge case                     | what happens                                      |
|-------------------------------|---------------------------------------------------|
| epsilon is infinite           | 100 of 100                                        |
| epsilon is 0                  | the first line, which is exact there              |
| accounting by PLD or RDP      | the first line: no mu is known                    |
"""

from __future__ import annotations

import math
from typing import NamedTuple

from scipy.special import ndtr, ndtri

from dpfed.accounting import gdp
from dpfed.accounting.guarantee import EXACT, Claim
from dpfed.core.types import Trust

ALARMS = 0.01
"""The false alarms at which it is said how many units are found."""

LOST = 0.01
"""The part of delta that a secure sum's own chance of failure may take: a plan refuses more."""


class Reading(NamedTuple):
    """What an attacker can do at most, as parts of 1."""

    right: float
    """Right guesses, where one half is chance."""
    found: float
    """Units found, where ALARMS is chance."""


def read_odds(claim: Claim, trust: Trust = Trust.LOCAL) -> Reading:
    """The bounds that a claim gives."""
    epsilon, delta = claim.epsilon, claim.delta
    if math.isinf(epsilon):
        return Reading(1.0, 1.0)
    if claim.accounting != EXACT or epsilon == 0:
        return Reading(*map(_up, (any_right(epsilon, delta), any_found(epsilon, delta))))
    lost = LOST * delta if trust is Trust.DISTRIBUTED else 0.0
    mu = gdp.mu_for(epsilon, delta) * (1 + 3 * gdp.CAUTION)  # mu_for rounds down by less
    right, found = float(ndtr(mu / 2)), float(ndtr(float(ndtri(ALARMS)) + mu))
    return Reading(_up(right + lost), _up(found + lost))


def any_right(epsilon: float, delta: float) -> float:
    """The best part of right guesses that (epsilon, delta) allows at even odds."""
    return 1 - (1 - delta) / (1 + math.exp(min(epsilon, 700.0)))


def any_found(epsilon: float, delta: float, alarms: float = ALARMS) -> float:
    """The largest part of units that is found at so many false alarms."""
    few = math.exp(min(epsilon, 700.0)) * alarms + delta
    return min(few, 1 - (1 - delta - alarms) * math.exp(-epsilon), 1.0)


def of_100(part: float) -> int:
    """A part of 1 as a whole number of 100, rounded up."""
    return min(100, math.ceil(100 * _up(part)))


def _up(value: float) -> float:
    return min(1.0, value * (1 + 1e-12))
