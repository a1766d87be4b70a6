# SPDX-License-Identifier: Apache-2.0
"""Noise correlated by a banded matrix: release_t = S_t + std (C^-1 z)_t, with z standard normal.

Denisov et al. 2022, Choquette-Choo et al. 2023. C is lower triangular with few bands, so the noise
n = C^-1 z of a step follows from the last ones: n_t = (z_t - sum_j C[t,t-j] n_(t-j)) / C[t,t].

Guarantee: ``event(n)`` accounts for n calls of ``release`` (or ``finish``), each from the state
that the last one returned, in idealized arithmetic, whatever releases a unit takes part in. They
are a map of C S + std z, and a unit moves each S_t by at most D, so with X = C^T C (and equality
if X >= 0)

    mu^2 = (D / std)^2 s(n),    s(n) = squared_sensitivity(n) = sum over s, t <= n of |X_st|.

S may depend on earlier releases: Denisov et al. 2022, Theorem 2.1.

The best C for prefix sums under full participation, the default, is diagonal. The squared error of
all n prefixes is std^2 trace(A^T A X^-1), A the lower triangle of ones: convex in X, as is the
bound sum |X_st| <= n. So X is best if X^-1 A^T A X^-1 = c G, c > 0, G the signs of X (and between
-1 and 1 where X is 0). Here (A^T A)_st = n - max(s,t) + 1, and the diagonal X with x_t proportional
to sqrt(n-t+1) gives G_st = (n - max(s,t) + 1) / sqrt((n-s+1) (n-t+1)): 1 on the diagonal, at most 1
elsewhere. No correlation beats independent noise on this schedule, and that gains over constant
noise only (sum_t sqrt(t))^2 / (n n(n+1)/2) -> 8/9 of the mean squared error, 6 % of noise; the last
prefix loses (up to 4/3). It is scaled to s(rounds) = rounds, as Gaussian at the same std.

With ``participation`` (central trust, a client as the unit; b rounds apart, at most k times) C has
at most b bands, so no two releases of a unit share one: s(n) is the sum of the squared norms of
the columns 0, b, 2b, ... (_toeplitz.py). The default is then the best Toeplitz C of b bands.

| edge case                                              | what happens                            |
|--------------------------------------------------------|-----------------------------------------|
| std, clip or rounds zero, negative, NaN or infinite    | refused when built                      |
| coefficients not finite, or the first one not above 0  | refused when built                      |
| DISTRIBUTED trust, more than one share, sampling       | refused when built                      |
| more bands than ``participation`` has rounds apart     | refused when built                      |
| more than ``rounds`` releases on the schedule          | BadRelease; their cost is infinite      |
| rows beyond the bounds, of another size, off the grid  | BadRelease, nothing is released         |
| a client misses rounds (LOCAL)                         | the total's std is for those in step    |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from dpfed.core.checks import refuse
from dpfed.core.errors import BadRelease
from dpfed.core.grid import EXACT_BITS, NOISY_BITS, pack, step_below
from dpfed.core.types import Facts, Release, Trust
from dpfed.mechanisms._noise import GaussianNoise
from dpfed.mechanisms._toeplitz import Error, best_bands, inverse_column, separated_squared

if TYPE_CHECKING:
    from dp_accounting import DpEvent

    from dpfed.core.types import Rows, Stream, Total, Vector

PAPER = "Denisov et al. 2022; Choquette-Choo et al. 2023"


class Past(NamedTuple):
    """The last noises, newest first, as many as C has bands below the diagonal, and the step."""

    noise: tuple[Vector, ...]
    t: int


@dataclass(frozen=True)
class Banded(GaussianNoise):
    """Gaussian noise that is correlated over a few rounds by a banded matrix C."""

    rounds: int = 70
    coefficients: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_pooling(
            "noises of clients that drop out go out of step, so their sum is not C^-1 z"
        )
        if not 1 <= self.rounds < math.inf:
            raise refuse("banded.rounds", "a whole number, at least 1", self.rounds)
        column = (1.0,) if self.coefficients is None else self.coefficients
        if not (column and column[0] > 0 and all(map(math.isfinite, column))):
            raise refuse("banded.coefficients", "finite, the first one above 0", column)
        apart = self.participation and self.participation.min_separation
        if apart and not (self.coefficients and len(column) <= apart):
            bound = f"at most privacy.participation.min_separation = {apart} numbers"
            raise refuse("banded.coefficients", bound, len(column), "leave them out for the best")

    @property
    def step(self) -> float:
        """The grid: fine for the first release, which has the least noise."""
        if self.trust is Trust.CENTRAL:
            return step_below(self.clip, EXACT_BITS)
        return step_below(self._std_at(1), NOISY_BITS)

    @property
    def independent(self) -> bool:
        """False: noises depend on each other, or differ in their standard deviation."""
        return False

    def init(self, size: int) -> Past:
        """The state before any noise."""
        import torch

        below = (self.coefficients or (1.0,))[1:]
        return Past(tuple(torch.zeros(size, dtype=torch.float64) for _ in below), 0)

    def release(self, rows: Rows, state: Past, rng: Stream) -> tuple[Release, Past]:
        """Clip, sum, add the noise of this step, round to the grid."""
        if self.trust is Trust.CENTRAL:  # there the server adds the noise
            return Release(self.rounded(rows, self.step), 0.0, self.step), state
        bounded = self.bounded(rows)
        if not state.noise:  # C is diagonal: no noise vector is kept for the next release
            noise_std = self._std_at(t := state.t + 1)
            vector = pack(bounded.vector, self.step, lambda count: noise_std * rng.normal(count))
            return Release(vector, noise_std, self.step), Past((), t)
        noise, state = self._advance(bounded.vector.numel(), state, rng)
        vector = pack(noise.add_(bounded.vector), self.step)
        return Release(vector, self._std_at(state.t), self.step), state

    def finish(self, total: Total, state: Past, rng: Stream) -> tuple[Release, Past]:
        """Add the server's noise under CENTRAL; otherwise the clients' noises are in the total."""
        std = self._std_at(state.t + 1)
        if self.trust is Trust.CENTRAL:
            noise, state = self._advance(total.vector.numel(), state, rng)
            return Release(total.vector.add_(pack(noise, self.step)), std, self.step), state
        std *= math.sqrt(math.fsum(w * w for w in total.weights))
        return Release(total.vector, std, self.step), state._replace(t=state.t + 1)

    def _advance(self, size: int, state: Past, rng: Stream) -> tuple[Vector, Past]:
        """The noise of the next release, and the state after it."""
        import torch

        self.check_size(size, state.noise)
        first, *others = self._row(t := state.t + 1)
        noise = torch.from_numpy(rng.normal(size))
        for coefficient, past in zip(others, state.noise, strict=True):
            noise.sub_(past, alpha=coefficient)
        noise /= first
        return noise * self.std, Past((noise, *state.noise)[: len(others)], t)

    def _row(self, t: int) -> tuple[float, ...]:
        """C[t,t], C[t,t-1], ..."""
        if self.coefficients is not None:
            return self.coefficients
        if t > self.rounds:
            raise BadRelease(
                f"banded.rounds must be at least {t} for release {t}, got {self.rounds}; raise it"
            )
        return (math.sqrt(self._diagonal()[t - 1]),)

    def _diagonal(self) -> list[float]:
        """The diagonal of the best C^T C."""
        roots = [math.sqrt(self.rounds - t) for t in range(self.rounds)]
        scale = self.rounds / math.fsum(roots)
        return [scale * root for root in roots]

    def _std_at(self, t: int) -> float:
        """The noise level of release t: std times the norm of row t of C^-1."""
        first, *others = self._row(t)
        if self.participation is not None:
            return self.std * math.hypot(*inverse_column(self._row(t), t))
        inverse = [1 / first]  # the first column of C^-1 where C is Toeplitz
        while others and len(inverse) < t:
            products = zip(others, reversed(inverse), strict=False)
            inverse.append(-math.fsum(c * past for c, past in products) / first)
        return self.std * math.hypot(*inverse)

    def squared_sensitivity(self, releases: int) -> float:
        """The squared sensitivity of the first releases together, over that of a single one."""
        import numpy as np

        if self.coefficients is None:
            return math.fsum(self._diagonal()[:releases]) if releases <= self.rounds else math.inf
        total, column = 0.0, np.array(self.coefficients)
        if self.participation is not None:
            return separated_squared(column, releases, self.participation)
        for lag in range(min(releases, column.size)):  # of C^T C, from its last row upwards
            entries = np.cumsum(column[lag:] * column[: column.size - lag])
            padded = np.pad(np.abs(entries), (0, releases), "edge")[: releases - lag]
            total += float(padded.sum()) * (2 if lag else 1)
        return total

    def event(self, releases: int, shares: float | None = None) -> DpEvent:
        """One Gaussian event for all releases together."""
        return self.joint_event(self.squared_sensitivity(releases), shares)


def banded(
    facts: Facts = Facts(),
    std: float = 1.0,
    rounds: int = 70,
    coefficients: list[float] | None = None,
    error: Error = "mean",
) -> Banded:
    """Add noise that is correlated over at most ``len(coefficients)`` rounds (a matrix mechanism).

    Args:
        facts: what the plan decides: clip, unit, adjacency, bounds, participation, and trust, which
            is local or central: correlated noise cannot be shared out.
        std: the noise level, in units of the sum, above 0; calibration replaces it.
        rounds: how many releases the best C is made for, at least 1.
        coefficients: the first column of C, finite, the first one above 0; None means the best C.
        error: which prefix sums the best C under participation is for: their mean, or the last.

    Returns:
        a mechanism whose sensitivity counts how often a unit takes part.

    >>> banded(Facts(clip=1.0), rounds=4, coefficients=[1.0, 0.5]).squared_sensitivity(4)
    7.75
    """
    column = None if coefficients is None else tuple(map(float, coefficients))
    if column is None and facts.participation is not None:
        column = best_bands(rounds, facts.participation.min_separation, error)
    return Banded(facts, std, rounds=rounds, coefficients=column)
