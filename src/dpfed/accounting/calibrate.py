# SPDX-License-Identifier: Apache-2.0
"""From a target (epsilon, delta) to a mechanism that keeps it: the noise is never too small.

The closed form answers at once where releases are Gaussian. Otherwise the noise level is searched
for with the accountant that will price the run, and the answer is a level at which that accountant
confirmed the target (opacus issue 346: a search that stops on the wrong side overspends).
"""

from __future__ import annotations

import math
from typing import TypeVar

from dpfed.accounting import gdp
from dpfed.accounting.guarantee import GaussianRelease, is_gaussian, price
from dpfed.errors import RecipeError, Unpriceable
from dpfed.types import Mechanism

M = TypeVar("M", bound=Mechanism)

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
        return _closed_form(mechanism, gdp.mu_for(epsilon, delta) * math.sqrt(share), releases)
    gdp.check_epsilon(epsilon)
    gdp.check_delta(delta)
    if share != 1.0:
        raise Unpriceable(
            f"a share of {share} of the budget is defined for Gaussian releases only; "
            f"use one channel, or Gaussian mechanisms without sampling"
        )
    return _search(mechanism, epsilon, delta, releases)


def _closed_form(mechanism: M, mu: float, releases: int) -> M:
    """The noise is inversely proportional to mu."""
    assert isinstance(mechanism, GaussianRelease)  # noqa: S101 (tells mypy what is_gaussian saw)
    unit = mechanism.noise_multiplier() / mechanism.std
    now = gdp.mu_squared(unit, releases, mechanism.adjacency)
    return mechanism.with_std(math.sqrt(now) / mu)


def _search(mechanism: M, epsilon: float, delta: float, releases: int) -> M:
    def keeps(std: float) -> bool:
        event = mechanism.with_std(std).event(releases)
        return price(event, delta, mechanism.adjacency)[0] <= epsilon

    above = mechanism.clip
    while not keeps(above):
        above *= 2
        if above > 1e9 * mechanism.clip:
            raise Unpriceable(f"no noise keeps epsilon {epsilon} over {releases} releases")
    below = above / 2
    while keeps(below):
        below, above = below / 2, below
    while above / below > 1 + _TIGHT:
        middle = math.sqrt(below * above)
        below, above = (below, middle) if keeps(middle) else (middle, above)
    return mechanism.with_std(above)  # type: ignore[return-value]
