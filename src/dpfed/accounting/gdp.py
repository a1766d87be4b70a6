# SPDX-License-Identifier: Apache-2.0
"""The exact curve of Gaussian releases: mu^2 adds, and (mu) gives every (epsilon, delta).

Balle and Wang 2018, Dong et al. 2022: T releases of sensitivity D and noise std s have
mu = sqrt(T) D / s, and

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu).

With a, b the two arguments, e^epsilon phi(b) = phi(a), so for small a

    delta = exp(-a^2/2) / 2 * (erfcx(-a/sqrt2) - erfcx(-b/sqrt2)),

and Phi(a) takes the place of the first term for large a,
which neither overflows at large epsilon nor cancels (measured against 60 digits: to 1.5e-10). Both
delta and what is returned are rounded towards caution by a part in 10^9, more than the rounding of
the formula: mu_for never overshoots its target, and epsilon_for is never below the true figure.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy.special import erfcx, ndtr

from dpfed.core.errors import RecipeError
from dpfed.core.types import Adjacency

CAUTION = 1e-9


SENSITIVITY = {Adjacency.REPLACE_ONE: 2.0, Adjacency.ADD_REMOVE: 1.0, Adjacency.ZERO_OUT: 1.0}
"""How far one unit moves a sum of rows of norm at most 1: the only place where this is written."""


def mu_squared(noise_multiplier: float, releases: float, adjacency: Adjacency) -> float:
    """The squared mu of releases with noise std / clip = ``noise_multiplier``.

    ``releases`` need not be whole: correlated ones are worth so many independent ones.
    """
    if releases == 0:
        return 0.0
    if noise_multiplier == 0:
        return math.inf
    mu = SENSITIVITY[adjacency] / noise_multiplier
    return releases * mu * mu


def delta_for(epsilon: float, mu: float) -> float:
    """The smallest delta at which mu-GDP is (epsilon, delta)-DP."""
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    a, b = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    if a == -math.inf:
        return 0.0
    if a < 1:
        return math.exp(-a * a / 2) / 2 * _erfcx_gap(-a / math.sqrt(2), mu / math.sqrt(2))
    return float(ndtr(a)) - math.exp(-a * a / 2) / 2 * float(erfcx(-b / math.sqrt(2)))


def _cautious(epsilon: float, mu: float) -> float:
    """An upper bound of delta, whatever the formula's rounding."""
    return delta_for(epsilon, mu) * (1 + CAUTION)


def _erfcx_gap(x: float, width: float) -> float:
    """erfcx(x) - erfcx(x + width): by the derivative in the middle where it would cancel."""
    if width > 1e-5:
        return float(erfcx(x)) - float(erfcx(x + width))
    middle = x + width / 2
    return 2 * width * (1 / math.sqrt(math.pi) - middle * float(erfcx(middle)))


def epsilon_for(delta: float, mu: float) -> float:
    """An upper bound, tight to a part in 10^9, of the epsilon of mu-GDP at this delta."""
    check_delta(delta)
    if not mu >= 0:
        raise RecipeError(f"mu is {mu}, and must be a number from 0 on")
    if math.isinf(mu):
        return math.inf
    if _cautious(0.0, mu) <= delta:
        return 0.0
    # delta(epsilon) <= Phi(mu/2 - epsilon/mu), below every positive float 40 deviations out
    _, enough = bisect(lambda e: _cautious(e, mu) <= delta, 0.0, mu * (mu / 2 + 40))
    return enough * (1 + CAUTION)


def mu_for(epsilon: float, delta: float) -> float:
    """The largest mu whose (epsilon, delta) does not exceed the target, less a part in 10^9."""
    check_epsilon(epsilon)
    check_delta(delta)
    above = 1.0
    while _cautious(epsilon, above) <= delta:
        above *= 2
    still, _ = bisect(lambda mu: _cautious(epsilon, mu) > delta, 0.0, above)
    return still * (1 - CAUTION)


def bisect(holds: Callable[[float], bool], below: float, above: float) -> tuple[float, float]:
    """Neighbouring floats between which ``holds`` turns from false to true."""
    while True:
        middle = below + (above - below) / 2
        if not below < middle < above:
            return below, above
        below, above = (below, middle) if holds(middle) else (middle, above)


def check_epsilon(epsilon: float) -> None:
    """A target epsilon is a finite number above 0."""
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise RecipeError(
            f"epsilon is {epsilon}, and must be a finite number above 0; 1 is usual, and less is "
            f"more private"
        )


def check_delta(delta: float) -> None:
    """A delta is strictly between 0 and 1."""
    if not 1e-300 <= delta < 1:
        raise RecipeError(
            f"delta is {delta}, and must be above 0 (at least 1e-300) and below 1; 1e-5 is usual"
        )
