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
from dpfed.accounting.event_tree import mechanism_event
from dpfed.accounting.guarantee import epsilon_of, is_gaussian, mechanism_mu_squared
from dpfed.core.checks import is_count, refuse
from dpfed.core.errors import Unpriceable
from dpfed.core.types import Mechanism

M = TypeVar("M", bound=Mechanism)

_MAX_NOISE_FACTOR = 1e9  # times the first guess; a search that needs more noise gives up
_RELATIVE_PRECISION = 1e-4  # of the noise that a search finds; it ends on the safe side


def calibrate(
    mechanism: M, *, epsilon: float, delta: float, releases: int, budget_fraction: float = 1.0
) -> M:
    """The mechanism with the least noise at which ``releases`` releases stay within the target.

    Args:
        mechanism: a mechanism with any noise level; only the level is changed.
        epsilon: the target epsilon, finite and above 0.
        delta: the target delta, at least 1e-300 and below 1.
        releases: how many releases the target covers, at least 1.
        budget_fraction: the fraction of the squared mu for this mechanism, above 0 and at most 1,
            where several channels divide one budget; less than 1 needs Gaussian releases.

    Returns:
        the same mechanism at the calibrated ``std``.

    Raises:
        Unpriceable: no noise level keeps the target.

    >>> from dpfed.mechanisms.gaussian import gaussian
    >>> round(calibrate(gaussian(), epsilon=1.0, delta=1e-5, releases=70).std, 1)
    62.4
    """
    if not 0 < budget_fraction <= 1:
        raise refuse("budget_fraction", "above 0 and at most 1", budget_fraction)
    if not is_count(releases, 1):
        raise refuse("releases", "a whole number, at least 1", releases, "plan at least one round")
    if is_gaussian(mechanism):
        mu = gdp.mu_for(epsilon, delta) * math.sqrt(budget_fraction)
        return closed_form(mechanism, mu, releases)
    gdp.check_epsilon(epsilon)
    gdp.check_delta(delta)
    if budget_fraction != 1.0:
        raise Unpriceable(
            f"a fraction of {budget_fraction} of the budget is defined for Gaussian releases only; "
            f"use one channel, or Gaussian mechanisms without sampling"
        )
    return _search(mechanism, epsilon, delta, releases)


def closed_form(mechanism: M, mu: float, releases: int) -> M:
    """The mechanism at the noise level of a mu, if every unit takes part in each release.

    Args:
        mechanism: a Gaussian mechanism with noise; only its level is changed.
        mu: the mu of all releases together, above 0; the noise is inversely proportional to it.
        releases: how many releases there are, at least 1.
    """
    now = math.sqrt(mechanism_mu_squared(mechanism, releases))
    return mechanism.with_std(mechanism.std * now / mu)  # type: ignore[return-value]


def _search(mechanism: M, epsilon: float, delta: float, releases: int) -> M:
    def epsilon_at(factor: float) -> float:
        event = mechanism_event(mechanism.with_std(mechanism.clip * factor), releases)
        return epsilon_of(event, delta, mechanism.adjacency)[0]

    factor = least_factor(epsilon_at, epsilon)
    return mechanism.with_std(mechanism.clip * factor)  # type: ignore[return-value]


def least_factor(
    epsilon_at: Callable[[float], float],
    epsilon: float,
    rough: Callable[[float], float] | None = None,
) -> float:
    """The least factor on the noise, to a part in 10^4, at which the target was confirmed.

    A privacy loss distribution takes longer to compute the less noise there is. So the search comes
    from above in short steps, and then interpolates between the last two points (log-log).

    Args:
        epsilon_at: the epsilon at a factor; it falls with the factor.
        epsilon: the target.
        rough: about the same, but faster: where the search begins; None is at 1.
    """
    if rough is None:
        return _search_from(epsilon_at, epsilon, 1.0, 0.8)
    return _search_from(
        epsilon_at, epsilon, _search_from(rough, epsilon, 1.0, 0.8), 1 - 5 * _RELATIVE_PRECISION
    )


def _search_from(
    epsilon_at: Callable[[float], float], epsilon: float, guess: float, step: float
) -> float:
    """The least factor at which the target was confirmed.

    Args:
        epsilon_at: the epsilon at a factor.
        epsilon: the target.
        guess: a factor to begin with.
        step: the first step down from a factor with enough noise, above 0 and below 1.
    """
    above, high = guess, epsilon_at(guess)
    while high > epsilon:
        above /= step
        step = max(0.5, step * step)
        high = epsilon_at(above)
        if above > _MAX_NOISE_FACTOR * guess:
            raise Unpriceable(
                f"no noise up to {_MAX_NOISE_FACTOR:g} times the first guess keeps the target; "
                f"raise epsilon or delta, or plan fewer rounds"
            )
    below, low = above, high
    while low <= epsilon:
        above, high = below, low
        below *= step
        low = epsilon_at(below)
        step = max(_LONGEST_STEP, step * step) if step > _LONGEST_STEP else step
    while above / below > 1 + _RELATIVE_PRECISION:
        middle = _between(below, low, above, high, epsilon)
        found = epsilon_at(middle)
        if found <= epsilon:
            above, high = middle, found
        else:
            below, low = middle, found
    return above


_LONGEST_STEP = 0.6


def _between(below: float, low: float, above: float, high: float, epsilon: float) -> float:
    """Where the line through two points meets the target, shifted slightly to the safe side.

    Args:
        below: a factor with too little noise.
        low: its epsilon.
        above: a factor with enough.
        high: its epsilon.
        epsilon: the target.
    """
    width = math.log(above / below)
    if not (0 < high < low < math.inf):
        return below * math.exp(width / 2)
    part = math.log(low / epsilon) / math.log(low / high)
    # both ends move: a point that lies on the line falls to either side of it
    part = min(1 - _NEAR, max(_NEAR, part + _RELATIVE_PRECISION / (3 * width)))
    return below * math.exp(width * part)


_NEAR = 0.05
