# SPDX-License-Identifier: Apache-2.0
"""Is the noise as large as was accounted for? Releases without rows are pure noise: measure them.

With N coordinates of known mean 0, N (measured / true)^2 follows chi-square with N degrees of
freedom, which gives an upper limit of the true level with a relative error of about 3 / sqrt(2 N).
The epsilon of the run at this limit is a lower bound of its true epsilon, and is computed
independently (recount.py).

Guarantee: sound code is flagged with probability at most ERROR_PROBABILITY. A third of it is for
the noise level of all coordinates, a third for the coordinate with the least noise, and a third for
releases that share noise.

| edge case                                           | what happens                              |
|-----------------------------------------------------|-------------------------------------------|
| a coordinate without noise                          | its own level is tested: infinite epsilon |
| two releases with the same noise (a key used twice) | they correlate: infinite epsilon          |
| several channels                                    | each is measured; their costs add up      |
| more noise than was accounted for                   | not flagged: it only costs accuracy       |
| correlated noise (tree, banded)                     | the first release, against its own level  |
| a channel of two numbers (metrics)                  | 25,000 releases at most: less power       |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import special, stats

from dpfed.audit.adversary_view import calls, see, stated
from dpfed.audit.finding import ERROR_PROBABILITY, Finding, Subject, judged
from dpfed.audit.recount import epsilon_with, level
from dpfed.audit.statistics import spread_at_most
from dpfed.training.reply import EmptyRows

if TYPE_CHECKING:
    from numpy.typing import NDArray

NAME = "noise-scale"

_MIN_RELEASES = 8  # releases, to measure the level of each coordinate
_MAX_RELEASES = 25_000  # releases, to limit the time for channels of a few numbers


@dataclass(frozen=True)
class ChannelNoise:
    """The noise of one channel, over the level that was accounted for."""

    level: float
    limit: float
    """The upper limit: the smaller one of all coordinates and of the one with least noise."""
    shared: float
    """The correlation of each release with the next."""
    samples: int


def noise_scale(target: Subject) -> Finding:
    """Measure every channel's noise, and compute the epsilon that the measured noise gives."""
    plan, dimension = target.plan, target.dimension
    error = ERROR_PROBABILITY / 3 / len(plan.channels)
    found = {name: _measured(target, name, error) for name in plan.channels}
    noise = {name: level(plan, name) * found[name].limit for name in found}
    repeats = [name for name, each in found.items() if _repeats(each, error)]
    epsilon = math.inf if repeats else epsilon_with(target, noise)
    samples = min(each.samples for each in found.values())
    sees = _sees(samples, error)
    words = [f"{name}: {each.level:.4f} of the accounted level" for name, each in found.items()]
    words += [f"{name}: releases share noise" for name in repeats]
    detail = f"{'; '.join(words)} ({samples:,} coordinates of {dimension:,} parameters)"
    return judged(
        NAME, target.claimed, epsilon, f"sees noise {100 * (1 - sees):.2g} % short", detail, sees
    )


def _measured(target: Subject, channel: str, error: float) -> ChannelNoise:
    plan = target.plan
    size = plan.size(channel, target.dimension)
    count = min(_MAX_RELEASES, max(_MIN_RELEASES, math.ceil(target.effort.samples / size)))
    independent = plan.channels[channel].independent
    accounted = level(plan, channel) if independent else stated(plan, size, channel)
    squares, products = np.zeros(size), 0.0
    before: NDArray[np.float64] = np.zeros(size)
    for call in calls(plan, channel, count):
        noise = see(plan, EmptyRows(size), size, call, channel) / accounted
        squares += noise * noise
        products += float(noise @ before)
        before = noise
    samples, variance = count * size, float(squares.sum()) / (count * size)
    limit = min(
        spread_at_most(variance, samples, error),
        spread_at_most(float(squares.min()) / count, count, error / size),
    )
    shared = products / ((count - 1) * size * variance) if variance else 1.0
    return ChannelNoise(math.sqrt(variance), limit, shared, samples)


def _repeats(measured: ChannelNoise, error: float) -> bool:
    """Whether releases correlate by more than chance allows, which is about 1 / sqrt(N)."""
    return abs(measured.shared) * math.sqrt(measured.samples) > -float(special.ndtri(error / 2))


def _sees(samples: int, error: float) -> float:
    """The largest part of the noise that is flagged 19 times in 20."""
    limit, loud = stats.chi2.ppf([error, 0.95], samples)
    return math.sqrt(limit / loud)
