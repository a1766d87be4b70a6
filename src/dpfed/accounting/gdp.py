# SPDX-License-Identifier: Apache-2.0
"""The exact curve of Gaussian releases: mu^2 adds, and (mu) gives every (epsilon, delta).

Balle and Wang 2018, Dong et al. 2022: T releases of sensitivity D and noise std s have
mu = sqrt(T) D / s, and

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu).

With a, b the two arguments, e^epsilon phi(b) = phi(a), so for small a

    delta = exp(-a^2/2) / 2 * (erfcx(-a/sqrt2) - erfcx(-b/sqrt2)),

and Phi(a) replaces the first term for large a. This neither overflows at large epsilon nor cancels:
its relative error against 80 digits is below 8e-10. Delta and the result are rounded to the safe
side by 10^-9 of their value, more than the formula's own error: mu_for never exceeds its target,
and epsilon_for is never too small.

SciPy, whose import takes half a second, is imported where a curve is asked for: most that an owner
types asks for none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

from dpfed.core.checks import refuse
from dpfed.core.types import Adjacency

CAUTION = 1e-9
"""Relative margin by which figures are rounded to the safe side; the formula errs by less."""

MAX_RESERVED_FRACTION = 0.01
"""The fraction of delta that secure sums may reserve for their failure: of a plan, and of a budget.

Whether delta goes to these or to Gaussian releases may be chosen after outputs were seen. So the
whole of a budget is within (epsilon, 1.01 delta): docs/privacy.md."""

SENSITIVITY = {Adjacency.REPLACE_ONE: 2.0, Adjacency.ADD_REMOVE: 1.0, Adjacency.ZERO_OUT: 1.0}
"""How far one unit moves a sum of rows of norm at most 1; the accounting defines it only here."""


def mu_squared(noise_multiplier: float, releases: float, adjacency: Adjacency) -> float:
    """The squared mu of releases with noise std / clip = ``noise_multiplier``.

    Args:
        noise_multiplier: the noise's standard deviation in clips; 0 gives an infinite mu.
        releases: the number of independent releases, at least 0; for correlated ones their squared
            sensitivity, which need not be a whole number.
        adjacency: what neighbouring data sets are; it sets the sensitivity.
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
    from scipy.special import erfcx, ndtr

    return float(ndtr(a)) - math.exp(-a * a / 2) / 2 * float(erfcx(-b / math.sqrt(2)))


def _cautious(epsilon: float, mu: float) -> float:
    """An upper bound of delta that allows for the formula's rounding errors."""
    return delta_for(epsilon, mu) * (1 + CAUTION)


def _erfcx_gap(x: float, width: float) -> float:
    """erfcx(x) - erfcx(x + width); a small width uses the derivative, to avoid cancellation."""
    from scipy.special import erfcx

    if width > 1e-5:
        return float(erfcx(x)) - float(erfcx(x + width))
    middle = x + width / 2
    return 2 * width * (1 / math.sqrt(math.pi) - middle * float(erfcx(middle)))


@lru_cache(maxsize=1024)  # a round asks for the same one several times
def epsilon_for(delta: float, mu: float) -> float:
    """An upper bound, tight to a part in 10^9, of the epsilon of mu-GDP at this delta."""
    check_delta(delta)
    if not mu >= 0:
        raise refuse("mu", "a number, at least 0", mu, "check the noise that it was computed from")
    if math.isinf(mu):
        return math.inf
    if _cautious(0.0, mu) <= delta:
        return 0.0
    # delta(epsilon) <= Phi(mu/2 - epsilon/mu), and Phi(-40) is below every positive float
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
    """Neighbouring floats between which ``holds`` turns from false to true.

    Args:
        holds: the condition; false up to some number, and true above it.
        below: a number at which it is false.
        above: a larger number at which it is true.
    """
    while True:
        middle = below + (above - below) / 2
        if not below < middle < above:
            return below, above
        below, above = (below, middle) if holds(middle) else (middle, above)


def check_epsilon(epsilon: float) -> None:
    """Refuse an epsilon that is not a finite number above 0."""
    if not (math.isfinite(epsilon) and epsilon > 0):
        way_out = "1 is usual, and less is more private"
        raise refuse("epsilon", "a finite number above 0", epsilon, way_out)


def check_delta(delta: float) -> None:
    """Refuse a delta that is not at least 1e-300 and below 1."""
    if not 1e-300 <= delta < 1:
        raise refuse("delta", "at least 1e-300 and below 1", delta, "1e-5 is usual")
