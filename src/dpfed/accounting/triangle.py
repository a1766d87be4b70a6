# SPDX-License-Identifier: Apache-2.0
"""Poisson draws under replace-one, priced through the data set in which the record is zeroed.

D and D' differ in one unit, D0 has it zeroed. Let P, Q, R be the laws of all that is released on D,
D0 and D'. For each set S of outcomes and each e1,

    P(S) - exp(e) R(S) = [P(S) - exp(e1) Q(S)] + exp(e1) [Q(S) - exp(e - e1) R(S)],

so delta_replace(e) <= delta_remove(e1) + exp(e1) delta_add(e - e1), and each e1 gives a bound. Both
curves are dp_accounting's, of the whole composition under zero-out: the triangle is applied once,
at the end. docs/privacy.md has the conditions. In all leaves, undrawn ones too, the multiplier is
std / clip, as event_tree.py writes it below the mark; std / (replace_bound / 2) would print 6.5e-10
where 2.07e-4 is true.

Guarantee: what is returned is an upper bound, infinite where none can be computed.

| edge case                                        | what happens                                  |
|--------------------------------------------------|-----------------------------------------------|
| negative masses, which a transform leaves        | are 0                                         |
| a mass that is no number                         | infinite                                      |
| a large e1, which multiplies the transform's     | not used                                      |
| error by exp(e1)                                 |                                               |
| no draw (rate 1)                                 | one direction, used twice                     |
| a release in clear, or too little noise          | infinite                                      |
| so many losses that composing has no end         | infinite, before it begins                    |
| a leaf that is neither Gaussian nor a draw of it | Unpriceable                                   |
"""

from __future__ import annotations

import json
import math
from collections import Counter
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfed.accounting import gdp
from dpfed.accounting.event_tree import gaussian_leaves
from dpfed.core.dsse import Json, canonical_json
from dpfed.core.errors import Unpriceable

Floats = NDArray[np.float64]

INTERVAL = 1e-4
"""The grid of losses, dp_accounting's own."""
TRANSFORM_ERROR = 1e-13
"""How much of a delta the transforms of a composition may lose."""
ERROR_SHARE = 1e-3
"""The part of delta that this error, times exp(e1), may be."""
LEAST_DELTA = 1e-9
"""Below it, hardly any e1 is small enough."""
LEAST_NOISE = 0.05
"""The least noise in clips: with less, the grid of losses has no end."""
MOST_LOSS = 500.0
"""The largest mean of the whole loss; epsilon is as large, and the grid ten million points long."""
_SPLITS = 4001  # the points among which e1 is chosen: any of them is a bound


class Direction(NamedTuple):
    """One direction of a loss: of a unit that is zeroed, or of one that comes in its place.

    With the losses from some place on, delta(e) = upper - exp(e) lower at each e up to the first
    of them.
    """

    losses: Floats
    upper: Floats
    lower: Floats

    def deltas(self, epsilons: Floats) -> Floats:
        """The deltas at some epsilons, each at least 0."""
        place = np.searchsorted(self.losses, epsilons)
        found = self.upper[place] - np.exp(epsilons) * self.lower[place]
        above: Floats = np.maximum(found, self.upper[-1])
        return above

    def epsilons(self, deltas: Floats) -> Floats:
        """The least epsilons, at least 0, at these deltas; infinite if there are none."""
        at_losses = self.upper[:-1] - np.exp(self.losses) * self.lower[:-1]
        # from this place on, delta is small enough: it falls
        place = np.searchsorted(-at_losses, -deltas)
        upper, lower = self.upper[place], self.lower[place]
        with np.errstate(all="ignore"):
            found = np.log((upper - deltas) / lower)
        enough = np.where(upper > deltas, np.maximum(found, 0.0), 0.0)
        return np.where(deltas > self.upper[-1], enough, math.inf)


def epsilon_of(event: Json, delta: float, interval: float = INTERVAL) -> float:
    """An upper bound of the epsilon under replace-one.

    Args:
        event: the tree below the mark: its multipliers are std / clip.
        delta: at which epsilon is wanted.
        interval: the grid of losses; a coarser one is faster, and gives more.
    """
    curves = _curves_of(event, interval)
    if curves is None or not delta >= LEAST_DELTA:
        return math.inf
    remove, add = curves
    most = math.log(ERROR_SHARE * delta / TRANSFORM_ERROR)
    least = float(remove.epsilons(np.array([delta]))[0])
    if not least < most:
        return math.inf
    best, low, high = math.inf, least, most
    for _ in range(2):  # once more around the best
        splits = np.linspace(low, high, _SPLITS)
        left = (delta - remove.deltas(splits) - TRANSFORM_ERROR) * np.exp(-splits)
        sums = splits + add.epsilons(left - TRANSFORM_ERROR)
        at = int(np.argmin(sums))
        best = min(best, float(sums[at]))
        low, high = float(splits[max(0, at - 1)]), float(splits[min(_SPLITS - 1, at + 1)])
    return best * (1 + gdp.CAUTION)


def delta_of(event: Json, epsilon: float) -> float:
    """An upper bound of the delta under replace-one.

    Args:
        event: the tree below the mark: its multipliers are std / clip.
        epsilon: at which delta is wanted, at least 0.
    """
    curves = _curves_of(event, INTERVAL)
    if curves is None:
        return 1.0
    remove, add = curves
    splits = np.linspace(0.0, epsilon, _SPLITS)
    with np.errstate(over="ignore", invalid="ignore"):
        error = (1 + np.exp(splits)) * TRANSFORM_ERROR
        found = remove.deltas(splits) + np.exp(splits) * add.deltas(epsilon - splits) + error
        sure = error <= ERROR_SHARE * found
    return min(1.0, float(np.min(found[sure], initial=1.0)) * (1 + gdp.CAUTION))


def _curves_of(event: Json, interval: float) -> tuple[Direction, Direction] | None:
    """Both directions of the composition; None if nothing finite can be said."""
    leaves = gaussian_leaves(event)
    if leaves is None:
        raise Unpriceable(
            f"under replace-one, draws are accounted for with Gaussian releases only, got "
            f"{str(event)[:80]}; use mechanism 'gaussian', or a rate of 1"
        )
    merged = _merged(leaves)
    if not all(z >= LEAST_NOISE for z, _ in merged) or _mean_loss(merged) > MOST_LOSS:
        return None
    text = canonical_json({"leaves": sorted([z, rate, many] for (z, rate), many in merged.items())})
    return _curves(text, interval)


def _merged(leaves: Counter[tuple[float, float]]) -> Counter[tuple[float, float]]:
    """The leaves with all undrawn ones as a single Gaussian release, which they are together."""
    drawn = Counter({leaf: many for leaf, many in leaves.items() if leaf[1] < 1 and many})
    undrawn = [(z, many) for (z, rate), many in leaves.items() if rate == 1 and many]
    if any(z == 0 for z, _ in undrawn):
        return Counter({(0.0, 1.0): 1})
    if undrawn:
        drawn[1 / math.sqrt(math.fsum(many / z / z for z, many in undrawn)), 1.0] = 1
    return drawn


def _mean_loss(leaves: Counter[tuple[float, float]]) -> float:
    """An upper bound of the mean loss in either direction: convexity, or chi-squared."""
    return math.fsum(
        many * min(rate / (2 * z * z), rate * rate * math.expm1(min(1 / (z * z), 700.0)))
        for (z, rate), many in leaves.items()
    )


@lru_cache(maxsize=4)  # two million numbers each
def _curves(text: str, interval: float) -> tuple[Direction, Direction] | None:
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as pld

    total = pld.identity(interval)
    for z, rate, many in json.loads(text)["leaves"]:
        one = pld.from_gaussian_mechanism(
            z,
            sampling_prob=rate,
            value_discretization_interval=interval,
            neighboring_relation=NeighboringRelation.REPLACE_SPECIAL,
        )
        total = total.compose(one.self_compose(many))
    remove = _direction(total._pmf_remove)
    add = remove if total._symmetric else _direction(total._pmf_add)
    return None if remove is None or add is None else (remove, add)


def _direction(pmf: Any) -> Direction | None:
    """The curve of one direction at epsilons of at least 0; None if a mass is no number."""
    pmf = pmf.to_dense_pmf()
    losses = (np.arange(pmf.size) + pmf._lower_loss) * pmf._discretization
    probs, infinite = np.maximum(pmf._probs, 0.0), float(pmf._infinity_mass)
    if not (np.isfinite(probs).all() and math.isfinite(infinite)):
        return None
    losses, probs = losses[losses >= 0], probs[losses >= 0]
    infinite = max(0.0, infinite)

    def sums_from_above(terms: Floats) -> Floats:
        return np.concatenate((np.cumsum(terms[::-1])[::-1], [0.0]))

    return Direction(
        losses, infinite + sums_from_above(probs), sums_from_above(probs * np.exp(-losses))
    )
