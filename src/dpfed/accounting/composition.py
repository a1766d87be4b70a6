# SPDX-License-Identifier: Apache-2.0
"""Composing one drawn release with itself, ever more often: what does not change is kept.

A run's account asks after each round what one release more has cost. dp_accounting's PLD takes half
a second for that, most of it for 40 moments of the one release, which are the same in every round,
and for a loop over 10^5 losses in Python. Here moments are computed once, and the loop is one pass.

Guarantee: all figures are those of dp_accounting's own ``self_compose`` and
``get_epsilon_for_delta`` to the last bit: the same operations in the same order. The transforms are
made anew, since a product that is kept from round to round would round in another way.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
from dp_accounting.pld.pld_pmf import DensePLDPmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from numpy.typing import NDArray
from scipy import fft, special

Floats = NDArray[np.float64]

_TAIL = 1e-15  # dp_accounting's own default: mass that is cut off, and counted as infinite
_ORDERS = np.concatenate((np.arange(-20, 0), np.arange(1, 21)))
_BLOCK = 1 << 14
_SLACK = 1e-9  # far above what two logarithms differ by
_SAFE = 700.0  # exp of less is a number


class Release:
    """The privacy loss of one release, with what its compositions have in common.

    Args:
        loss: dp_accounting's distribution of one release.
    """

    def __init__(self, loss: Any) -> None:
        self._loss = loss

    def composed(self, count: int) -> Any:
        """The distribution of ``count`` releases, as dp_accounting's ``self_compose`` gives it."""
        if count < 1 or not all(isinstance(part.pmf, DensePLDPmf) for part in self._parts):
            return self._loss.self_compose(count)
        made = PrivacyLossDistribution(*(part.composed(count) for part in self._parts))
        _forget_transforms()
        return made

    @cached_property
    def _parts(self) -> tuple[_Part, ...]:
        return tuple(map(_Part, _pmfs(self._loss)))


class _Part:
    """One direction of a loss: of a unit that is taken away, or of one that is added."""

    def __init__(self, pmf: Any) -> None:
        self.pmf = pmf

    @cached_property
    def moments(self) -> Floats:
        """The logarithms of the moments that bound the tails."""
        probs, orders = self.pmf._probs, _ORDERS / len(self.pmf._probs)
        places = np.arange(len(probs))
        return np.array([special.logsumexp(places * order, b=probs) for order in orders])

    def composed(self, count: int) -> DensePLDPmf:
        """The distribution of ``count`` losses, by dp_accounting's steps."""
        pmf = self.pmf
        low, high = self.bounds(count)
        size = high - low + 1
        length = fft.next_fast_len(max(size, pmf.size))
        whole = np.real(fft.ifft(fft.fft(pmf._probs, length) ** count))
        probs = np.array(np.roll(whole, -low)[:size])
        infinite = _TAIL - math.expm1(count * math.log1p(-pmf._infinity_mass))
        lowest = pmf._lower_loss * count + low
        return DensePLDPmf(pmf._discretization, lowest, probs, infinite, pmf._pessimistic_estimate)

    def bounds(self, count: int) -> tuple[int, int]:
        """The places outside of which is no more than the mass that is cut off (Chernoff)."""
        low, high = 0, (self.pmf.size - 1) * count
        for order, moment in zip(_ORDERS / self.pmf.size, self.moments, strict=True):
            bound = (count * moment + math.log(2 / _TAIL)) / order
            if not math.isfinite(bound):
                continue
            if order > 0:
                high = min(high, math.ceil(bound))
            else:
                low = max(low, math.floor(bound))
        return low, high


def _forget_transforms() -> None:
    """Push large tables out of scipy's cache: of the last 16 lengths, one or two megabytes each.

    No composition has the length of another, and a server would hold all 16 for nothing.
    """
    for length in range(1, 17):
        fft.fft(np.zeros(length))
        fft.fft(np.zeros(length, np.complex128))


def epsilon_for(loss: Any, delta: float) -> float:
    """The epsilon at this delta, as dp_accounting's ``get_epsilon_for_delta`` gives it.

    Args:
        loss: a distribution of dp_accounting's.
        delta: the delta at which epsilon is wanted.
    """
    return max(_epsilon(pmf, delta) for pmf in _pmfs(loss))


def _pmfs(loss: Any) -> tuple[Any, ...]:
    """The directions of a loss: one, if both are alike."""
    return (loss._pmf_remove,) if loss._symmetric else (loss._pmf_remove, loss._pmf_add)


def _epsilon(pmf: Any, delta: float) -> float:
    """Adds up masses from the largest loss down, until epsilon is above the losses that are left.

    Sums are in their order, and exponentials and the last logarithm are those of ``math``.
    """
    if not isinstance(pmf, DensePLDPmf) or pmf._lower_loss * pmf._discretization < -_SAFE:
        return float(pmf.get_epsilon_for_delta(delta))
    if pmf._infinity_mass > delta:
        return math.inf
    step, probs = -pmf._discretization, np.flip(pmf._probs)
    loss = (pmf._lower_loss + pmf.size - 1) * pmf._discretization
    upper, lower = float(pmf._infinity_mass), 0.0
    for at in range(0, pmf.size, _BLOCK):
        some = probs[at : at + _BLOCK]
        losses = _sums(loss, np.full(len(some), step))
        factors = np.fromiter(map(math.exp, (-losses[:-1]).tolist()), np.float64, len(some))
        uppers, lowers = _sums(upper, some), _sums(lower, factors * some)
        if found := _end(losses, uppers, lowers, delta):
            return found[0]
        loss, upper, lower = float(losses[-1]), float(uppers[-1]), float(lowers[-1])
    return _at(upper, lower, delta)


def _sums(first: float, terms: Floats) -> Floats:
    """``first``, then what it becomes when terms are added one after the other."""
    return np.add.accumulate(np.concatenate(([first], terms)))


def _end(losses: Floats, uppers: Floats, lowers: Floats, delta: float) -> tuple[float] | None:
    """The epsilon if it lies among these losses; None if the sums go on.

    Place i of the sums is before loss i is added.
    """
    with np.errstate(all="ignore"):
        near = np.log((uppers[:-1] - delta) / lowers[:-1]) >= losses[:-1] - _SLACK
    near &= (uppers[:-1] > delta) & (lowers[:-1] > 0)
    all_zero = np.flatnonzero((uppers[1:] >= delta) & (lowers[1:] == 0))
    first_zero = int(all_zero[0]) if len(all_zero) else len(losses)
    for at in np.flatnonzero(near).tolist():
        if at > first_zero:
            break
        if math.log((uppers[at] - delta) / lowers[at]) >= losses[at]:
            return (_at(float(uppers[at]), float(lowers[at]), delta),)
    return (max(0.0, float(losses[first_zero])),) if first_zero < len(losses) else None


def _at(upper: float, lower: float, delta: float) -> float:
    return 0.0 if upper <= lower + delta else math.log((upper - delta) / lower)
