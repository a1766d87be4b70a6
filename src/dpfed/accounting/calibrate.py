# SPDX-License-Identifier: Apache-2.0
"""From a target (epsilon, delta) to a mechanism that keeps it: the noise is never too small.

The closed form answers at once where releases are Gaussian. Otherwise the noise level is searched
for with the accountant that will price the run, and the answer is a level at which that accountant
confirmed the target (opacus issue 346: a search that stops on the wrong side overspends).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from dpfed.accounting import gdp
from dpfed.accounting.guarantee import is_gaussian, mechanism_mu_squared, price
from dpfed.core.errors import RecipeError, Unpriceable
from dpfed.core.types import Mechanism

M = TypeVar("M", bound=Mechanism)

_LOUDEST = 1e9
_TIGHT = 1e-4  # how close a search comes to the least noise; it ends on the safe side


def calibrate(
    mechanism: M, *, epsilon: float, delta: float, releases: int, share: float = 1.0
) -> M:
    """The mechanism with the least noise at which ``releases`` releases stay within the target.

    ``share`` is the part of the squared mu that this mechanism may use, where several channels
    divide one budget.
    """
    if not 0 < share <= 1:
        raise RecipeError(f"share is {share}, and must be above 0 and at most 1")
    if releases < 1:
        raise RecipeError(f"releases is {releases}, and must be at least 1")
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
    """The level for a mu, as if every unit took part: noise is inversely proportional to it."""
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
            raise Unpriceable(f"no noise up to {_LOUDEST:g} times the first guess keeps the target")
    below = above / 2
    while keeps(below):
        below, above = below / 2, below
    while above / below > 1 + _TIGHT:
        middle = math.sqrt(below * above)
        below, above = (below, middle) if keeps(middle) else (middle, above)
    return above
