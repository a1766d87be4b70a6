# SPDX-License-Identifier: Apache-2.0
"""From a target (epsilon, delta) to a mechanism that keeps it: the noise is never too small.

Where releases are Gaussian, the closed form gives the noise level directly. Otherwise a search uses
the accountant that will account for the run, and returns a level at which that accountant confirmed
the target (opacus issue 346: a search that stops on the wrong side overspends).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from dpfed.accounting import gdp
from dpfed.accounting.guarantee import is_gaussian, mechanism_mu_squared, price
from dpfed.core.checks import refuse
from dpfed.core.errors import Unpriceable
from dpfed.core.types import Mechanism

M = TypeVar("M", bound=Mechanism)

_LOUDEST = 1e9
_TIGHT = 1e-4  # the relative precision of a search; it ends on the safe side


def calibrate(
    mechanism: M, *, epsilon: float, delta: float, releases: int, share: float = 1.0
) -> M:
    """The mechanism with the least noise at which ``releases`` releases stay within the target.

    Args:
        mechanism: a mechanism with any noise level; only the level is changed.
        epsilon: the target epsilon, finite and above 0.
        delta: the target delta, at least 1e-300 and below 1.
        releases: how many releases the target covers, at least 1.
        share: the part of the squared mu for this mechanism, above 0 and at most 1, where several
            channels divide one budget; less than 1 needs Gaussian releases.
    """
    if not 0 < share <= 1:
        raise refuse("share", "above 0 and at most 1", share)
    if releases < 1:
        raise refuse("releases", "a whole number, at least 1", releases, "plan at least one round")
    if is_gaussian(mechanism):
        return closed_form(mechanism, gdp.mu_for(epsilon, delta) * math.sqrt(share), releases)
    gdp.check_epsilon(epsilon)
    gdp.check_delta(delta)
    if share != 1.0:
        raise Unpriceable(
            f"a share of {share} of the budget is defined for Gaussian releases only; "
            f"use one channel, or Gaussian mechanisms without sampling"
        )
    return _search(mechanism, epsilon, delta, releases)


def closed_form(mechanism: M, mu: float, releases: int) -> M:
    """The mechanism at the noise level of a mu, where every unit takes part in each release.

    Args:
        mechanism: a Gaussian mechanism with noise; only its level is changed.
        mu: the mu of all releases together, above 0; the noise is inversely proportional to it.
        releases: how many releases there are, at least 1.
    """
    now = math.sqrt(mechanism_mu_squared(mechanism, releases))
    return mechanism.with_std(mechanism.std * now / mu)  # type: ignore[return-value]


def _search(mechanism: M, epsilon: float, delta: float, releases: int) -> M:
    def keeps(factor: float) -> bool:
        event = mechanism.with_std(mechanism.clip * factor).event(releases)
        return price(event, delta, mechanism.adjacency)[0] <= epsilon

    return mechanism.with_std(mechanism.clip * least_factor(keeps))  # type: ignore[return-value]


def least_factor(keeps: Callable[[float], bool]) -> float:
    """The least factor on the noise, to a part in 10^4, at which the target was confirmed."""
    above = 1.0
    while not keeps(above):
        above *= 2
        if above > _LOUDEST:
            raise Unpriceable(
                f"no noise up to {_LOUDEST:g} times the first guess keeps the target; raise "
                f"epsilon or delta, or plan fewer rounds"
            )
    below = above / 2
    while keeps(below):
        below, above = below / 2, below
    while above / below > 1 + _TIGHT:
        middle = math.sqrt(below * above)
        below, above = (below, middle) if keeps(middle) else (middle, above)
    return above
