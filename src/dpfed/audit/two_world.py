# SPDX-License-Identifier: Apache-2.0
"""Two neighbouring worlds, many runs in each: can they be told apart better than is guaranteed?

The worst pair under the recipe's adjacency: a row v against -v (replace-one), or against nothing.
The row is long, so that the clip has to act, and is the same in all releases of a run. The best
statistic of an adversary who knows everything else is then the sum of the releases along v. The
runs go through the plan's PricedReleaser, and each coordinate of a release is a run of its own: row
j lies along coordinate j, and a coin chooses its world. They give two bounds:

    epsilon   TPR <= e^epsilon FPR + delta, Clopper and Pearson's limits; assumes nothing
    mu        Phi^-1(TPR) - Phi^-1(FPR) <= mu: the whole curve that Gaussian accounting claims

The first has little power, since so few runs cannot show events with a delta of 1e-5. The second
tests the mu that the claimed epsilon was computed from; it is stated as the epsilon of that mu.

Guarantee: sound code is flagged with probability at most ERROR_PROBABILITY, half of it for each
bound.

| edge case                                         | what happens                               |
|---------------------------------------------------|--------------------------------------------|
| correlated noise (tree, banded)                   | one release, against its part of the claim |
| units drawn at random: no closed form             | only the first bound                       |
| several channels                                  | the update's releases, against its part    |
| rows of a channel that has its own size           | as many coordinates as it has              |
| a method that bounds its rows itself (fednew)     | skipped: it would refuse the audit's rows  |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy import special

from dpfed.accounting import gdp
from dpfed.audit.adversary_view import calls, see
from dpfed.audit.finding import ERROR_PROBABILITY, Finding, Subject, judged, skipped
from dpfed.audit.recount import claimed_mu, is_drawn, level, movement, mu_with, squared_sensitivity
from dpfed.audit.statistics import Bits, Floats, epsilon_of, worlds_epsilon, worlds_mu
from dpfed.core.randomness import Noise
from dpfed.core.rows import Dense
from dpfed.core.types import UPDATE, Adjacency

NAME = "two-world"

_RUNS_PER_RELEASE = 256  # runs in one release
_ROW_NORM_CLIPS = 4.0  # the norm of a row, in clips


@dataclass(frozen=True, eq=False)
class Worlds:
    """The statistic of every run by world, and the middle between the two means."""

    inside: Floats
    outside: Floats
    middle: float


def two_world(target: Subject) -> Finding:
    """Run both worlds, and compare how well they can be told apart with what is claimed."""
    plan = target.plan
    if plan.client.channels[UPDATE].replace_bound is not None:
        return skipped(NAME, target.claimed, "this method bounds its rows itself, by other means")
    releases = plan.planned(UPDATE) if plan.update.independent else 1
    seen = worlds(target, releases, target.effort.pairs)
    claimed, mu = _claim(target, releases)
    plain = worlds_epsilon(seen.inside, seen.outside, target.delta, ERROR_PROBABILITY / 2)
    runs = min(len(seen.inside), len(seen.outside))
    detail = f"{runs:,} runs of {releases} releases in each world; by counts alone {plain:.3f}"
    if is_drawn(plan):
        return judged(NAME, claimed, plain, "depends on the draw", detail)
    curve = worlds_mu(seen.inside, seen.outside, seen.middle, ERROR_PROBABILITY / 2)
    found = max(plain, gdp.epsilon_for(target.delta, curve))
    sees, alone = sees_by_curve(mu, runs), sees_by_counts(mu, runs, claimed, target.delta)
    power = f"sees {sees:.2f} of the noise"
    detail += (
        f", which would see {alone:.2f} of the noise; mu at least {curve:.4f}, claimed {mu:.4f}"
    )
    return judged(NAME, claimed, found, power, detail, sees)


def _claim(target: Subject, releases: int) -> tuple[float, float]:
    """(epsilon, mu) that is claimed for ``releases`` releases on the update channel only."""
    plan = target.plan
    if is_drawn(plan):
        return target.claimed, math.nan
    noise = {name: level(plan, name) for name in plan.channels}
    moves = {name: movement(plan, name) for name in plan.channels}
    part = math.sqrt(squared_sensitivity(plan, UPDATE, releases)) * moves[UPDATE] / noise[UPDATE]
    mu = claimed_mu(target) * part / mu_with(plan, noise, moves)
    return gdp.epsilon_for(target.delta, mu), mu


def worlds(target: Subject, releases: int, pairs: int) -> Worlds:
    """Sums of releases along the row in which the worlds differ.

    Args:
        target: the run under audit.
        releases: how many releases a run has, at least 1.
        pairs: about how many runs each world has.
    """
    plan, coins = target.plan, Noise(target.seed)
    size = plan.client.channels[UPDATE].size or _RUNS_PER_RELEASE
    batches = math.ceil(2 * pairs / size)
    keys = iter(calls(plan, UPDATE, batches * releases))
    sums, sides = [], []
    for batch in range(batches):
        side = (coins.stream("worlds", batch).words(size) & np.uint64(1)).astype(bool)
        rows = _rows(side, plan.update.clip, replaced=_replaces(target))
        seen = (see(plan, Dense(rows), len(rows), next(keys)) for _ in range(releases))
        sums.append(sum(seen))
        sides.append(side)
    total, inside = np.concatenate(sums), np.concatenate(sides)
    middle = (
        0.0 if _replaces(target) else releases * plan.update.sampling.rate * plan.update.clip / 2
    )
    return Worlds(total[inside], total[~inside], middle)


def _replaces(target: Subject) -> bool:
    return target.plan.update.adjacency is Adjacency.REPLACE_ONE


def _rows(side: Bits, clip: float, *, replaced: bool) -> torch.Tensor:
    """Row j lies along coordinate j; the other world has its negative, or zeros."""
    other = -1.0 if replaced else 0.0
    signs = torch.where(torch.from_numpy(side), 1.0, other)
    return torch.diag(signs * (_ROW_NORM_CLIPS * clip))


def sees_by_curve(mu: float, runs: int) -> float:
    """The largest part of the noise at which the bound of mu flags 19 times in 20."""
    sure, often = -float(special.ndtri(ERROR_PROBABILITY / 8)), float(special.ndtri(0.95))

    def flags(part: float) -> bool:
        rate = float(special.ndtr(mu / part / 2))
        error = math.sqrt(rate * (1 - rate) / runs)
        density = math.exp(-((mu / part / 2) ** 2) / 2) / math.sqrt(2 * math.pi)
        return mu / part - (2 * sure + math.sqrt(2) * often) * error / density > mu

    return _largest(flags)


def sees_by_counts(mu: float, runs: int, claimed: float, delta: float) -> float:
    """As ``sees_by_curve``, for the bound of epsilon from counts at the best threshold.

    Args:
        mu: the mu that is claimed, above 0.
        runs: how many runs each world has; half of them are tested.
        claimed: the epsilon that is claimed.
        delta: its delta, from 0 to 1.
    """
    sure, thresholds = -float(special.ndtri(ERROR_PROBABILITY / 8)), np.linspace(-1.0, 4.5, 56)

    def flags(part: float) -> bool:
        return any(_bound(mu / part, float(z), runs / 2, sure, delta) > claimed for z in thresholds)

    return _largest(flags)


def _bound(mu: float, z: float, runs: float, sure: float, delta: float) -> float:
    true, false = float(special.ndtr(mu - z)), float(special.ndtr(-z))
    if false * runs < 20:  # too few for the approximation, and for any bound worth having
        return 0.0
    low = true - (sure + 1.16) * math.sqrt(true * (1 - true) / runs)
    high = false + (sure + 1.16) * math.sqrt(false * (1 - false) / runs)
    return epsilon_of(max(0.0, low), high, delta)


def _largest(flags: Callable[[float], bool]) -> float:
    """The largest part of the noise that is flagged, to a part in 100; 0 if none is."""
    parts = [number / 100 for number in range(99, 0, -1)]
    return next((part for part in parts if flags(part)), 0.0)
