# SPDX-License-Identifier: Apache-2.0
"""Epsilon in plain words: how often an attacker who knows all other records can be right.

The attacker sees all that a claim covers, and guesses which of two data sets was used; they differ
in one unit. The claim bounds the trade-off between its two kinds of error (Wasserman and Zhou 2010;
Kairouz et al. 2015; Dong et al. 2022), for any attack that does not break the cipher which noise is
made with (core/randomness.py: ChaCha20, so every claim is computational, whatever the trust):

    claim               right guesses at even odds           units found at false alarms a
    (epsilon, delta)    1 - (1 - delta) / (1 + e^epsilon)    min(e^epsilon a + delta,
                                                                 1 - (1 - delta - a) / e^epsilon)
    Gaussian, mu        Phi(mu / 2)                          Phi(Phi^-1(a) + mu)

Guarantee: no figure is below its bound. Where the accounting was exact Gaussian accounting, mu is
computed from (epsilon, delta) and rounded up. The part of delta that a secure sum reserves is
added, and whole guesses are rounded up.

| edge case                     | what happens                                      |
|-------------------------------|---------------------------------------------------|
| epsilon is infinite           | 100 of 100                                        |
| epsilon is 0                  | the first row, which is exact there               |
| accounting by PLD or RDP      | the first row: no mu is known                     |
"""

from __future__ import annotations

import math
from typing import NamedTuple

from scipy.special import ndtr, ndtri

from dpfed.accounting import gdp
from dpfed.accounting.guarantee import EXACT, Claim
from dpfed.core.types import Trust

FALSE_ALARM_RATE = 0.01
"""The rate of false alarms at which the number of units found is stated."""


class Reading(NamedTuple):
    """Upper bounds on an attacker's success, as fractions from 0 to 1."""

    right: float
    """Right guesses; guessing blindly gives one half."""
    found: float
    """Units found; guessing blindly gives FALSE_ALARM_RATE."""


def read_odds(claim: Claim, trust: Trust = Trust.LOCAL) -> Reading:
    """The bounds that a claim gives."""
    epsilon, delta = claim.epsilon, claim.delta
    if math.isinf(epsilon):
        return Reading(1.0, 1.0)
    if claim.accounting != EXACT or epsilon == 0:
        return Reading(*map(_up, (any_right(epsilon, delta), any_found(epsilon, delta))))
    reserved = gdp.MAX_RESERVED_FRACTION * delta if trust is Trust.DISTRIBUTED else 0.0
    mu = gdp.mu_for(epsilon, delta) * (1 + 3 * gdp.CAUTION)  # more than mu_for rounds down
    right, found = float(ndtr(mu / 2)), float(ndtr(float(ndtri(FALSE_ALARM_RATE)) + mu))
    return Reading(_up(right + reserved), _up(found + reserved))


def any_right(epsilon: float, delta: float) -> float:
    """The largest fraction of right guesses that (epsilon, delta) allows at even odds."""
    return 1 - (1 - delta) / (1 + math.exp(min(epsilon, 700.0)))


def any_found(epsilon: float, delta: float, alarms: float = FALSE_ALARM_RATE) -> float:
    """The largest fraction of units that is found at this rate of false alarms.

    Args:
        epsilon: the epsilon of the claim, at least 0.
        delta: the delta of the claim, from 0 to 1.
        alarms: the rate of false alarms that the attacker accepts, from 0 to 1.
    """
    few = math.exp(min(epsilon, 700.0)) * alarms + delta
    return min(few, 1 - (1 - delta - alarms) * math.exp(-epsilon), 1.0)


def of_100(fraction: float) -> int:
    """A fraction as a whole number of 100, rounded up."""
    return min(100, math.ceil(100 * _up(fraction)))


def _up(value: float) -> float:
    return min(1.0, value * (1 + 1e-12))
