# SPDX-License-Identifier: Apache-2.0
"""Noise correlated by a few buffers (BLT): release_t = S_t + std (C^-1 z)_t, z standard normal.

Dvijotham et al. 2024 (2404.16706), McMahan et al. 2024 (2408.08868). C is lower triangular Toeplitz
with the coefficients 1, then sum_i scale_i decay_i^(j-1), so a step needs one vector per buffer,
whatever the number of rounds, where a banded C needs one per band:

    noise = z - sum_i scale_i buffer_i;   buffer_i = decay_i buffer_i + noise.

Guarantee: ``event(n)`` accounts for n calls of ``release`` (or ``finish``), each from the state
that the last one returned, in idealized arithmetic. The coefficients are nowhere negative and never
rise, so the worst unit adds the same in each release that it is in: in all of them, or, with
``participation`` (central trust, a client as the unit; b rounds apart, at most k times), in the
first ones, exactly b apart (_toeplitz.py):

    mu^2 = (D / std)^2 s(n),    s(n) = squared_sensitivity(n) = |C u|^2,  u that pattern.

S may depend on earlier releases, and when a unit takes part as well: given those, a release is
Gaussian with fresh noise, and the squares of how far a unit moves them sum to s(n) at most.

Under participation the default is the best C by mean squared error of prefix sums times squared
sensitivity. Without it, decays and scales are those for units that take part once in 70 releases,
while the accounting is for units that are in all of them: 'gaussian' has less noise then.

| edge case                                              | what happens                            |
|--------------------------------------------------------|-----------------------------------------|
| std or clip zero, negative, NaN or infinite            | refused when built                      |
| decays not within 0 and 1, scales that are not above 0 | refused when built: the worst unit      |
| or sum to more than 1, not as many of both             | would be another one                    |
| DISTRIBUTED trust, more than one share, sampling       | refused when built                      |
| rows beyond the bounds, of another size, off the grid  | BadRelease, nothing is released         |
| a client misses rounds (LOCAL)                         | the total's std is for those in step    |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from dpfed.core.checks import refuse
from dpfed.core.grid import EXACT_BITS, NOISY_BITS, pack, step_below
from dpfed.core.types import Facts, Release, Trust
from dpfed.mechanisms._noise import GaussianNoise
from dpfed.mechanisms._toeplitz import (
    Error,
    best_buffers,
    buffered,
    buffered_inverse,
    separated_squared,
)

if TYPE_CHECKING:
    from dp_accounting import DpEvent

    from dpfed.core.types import Rows, Stream, Total, Vector

PAPER = "Dvijotham et al. 2024; McMahan et al. 2024 (BLT)"

_DECAYS, _SCALES = (0.9599, 0.605), (0.2459, 0.2541)


class Buffers(NamedTuple):
    """The buffers, in units of std, and the step."""

    noise: tuple[Vector, ...]
    t: int


@dataclass(frozen=True)
class Blt(GaussianNoise):
    """Gaussian noise that is correlated over all rounds by a few buffers."""

    decays: tuple[float, ...] = _DECAYS
    scales: tuple[float, ...] = _SCALES

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_pooling(
            "noises of clients that drop out go out of step, so their sum is not C^-1 z"
        )
        if not (self.decays and all(0 < decay < 1 for decay in self.decays)):
            raise refuse("blt.decays", "one or more numbers above 0 and below 1", self.decays)
        alike = len(self.scales) == len(self.decays)
        if not (alike and all(s > 0 for s in self.scales) and math.fsum(self.scales) <= 1):
            bound = f"{len(self.decays)} numbers above 0 that sum to at most 1, one per decay"
            raise refuse("blt.scales", bound, self.scales)

    @property
    def step(self) -> float:
        """The grid: fine for the first release, which has the least noise."""
        if self.trust is Trust.CENTRAL:
            return step_below(self.clip, EXACT_BITS)
        return step_below(self.std, NOISY_BITS)

    @property
    def independent(self) -> bool:
        """False: noises depend on each other."""
        return False

    def init(self, size: int) -> Buffers:
        """The state before any noise."""
        import torch

        return Buffers(tuple(torch.zeros(size, dtype=torch.float64) for _ in self.decays), 0)

    def release(self, rows: Rows, state: Buffers, rng: Stream) -> tuple[Release, Buffers]:
        """Clip, sum, add the noise of this step, round to the grid."""
        if self.trust is Trust.CENTRAL:  # there the server adds the noise
            return Release(self.rounded(rows, self.step), 0.0, self.step), state
        bounded = self.bounded(rows)
        noise, state = self._advance(bounded.vector.numel(), state, rng)
        vector = pack(noise.add_(bounded.vector), self.step)
        return Release(vector, self._std_at(state.t), self.step), state

    def finish(self, total: Total, state: Buffers, rng: Stream) -> tuple[Release, Buffers]:
        """Add the server's noise under CENTRAL; otherwise the clients' noises are in the total."""
        std = self._std_at(state.t + 1)
        if self.trust is Trust.CENTRAL:
            noise, state = self._advance(total.vector.numel(), state, rng)
            return Release(total.vector.add_(pack(noise, self.step)), std, self.step), state
        std *= math.sqrt(math.fsum(w * w for w in total.weights))
        return Release(total.vector, std, self.step), state._replace(t=state.t + 1)

    def _advance(self, size: int, state: Buffers, rng: Stream) -> tuple[Vector, Buffers]:
        """The noise of the next release, and the state after it."""
        import torch

        self.check_size(size, state.noise)
        noise = torch.from_numpy(rng.normal(size))
        for scale, kept in zip(self.scales, state.noise, strict=True):
            noise.sub_(kept, alpha=scale)
        pairs = zip(self.decays, state.noise, strict=True)
        buffers = tuple((kept * decay).add_(noise) for decay, kept in pairs)
        return noise * self.std, Buffers(buffers, state.t + 1)

    def _std_at(self, t: int) -> float:
        """The noise level of release t: std times the norm of row t of C^-1."""
        ahead = 1 << (t - 1).bit_length()  # a power of two, so that the cache is used for many t
        return self.std * math.hypot(*buffered_inverse(self.decays, self.scales, ahead)[:t])

    def squared_sensitivity(self, releases: int) -> float:
        """The squared sensitivity of the first releases together, over that of a single one."""
        import numpy as np

        column = buffered(self.decays, self.scales, releases)
        if self.participation is not None:
            return separated_squared(column, releases, self.participation)
        return math.fsum(np.square(np.cumsum(column)))

    def event(self, releases: int, shares: float | None = None) -> DpEvent:
        """One Gaussian event for all releases together."""
        return self.joint_event(self.squared_sensitivity(releases), shares)


def blt(
    facts: Facts = Facts(),
    std: float = 1.0,
    rounds: int = 70,
    decays: list[float] | None = None,
    scales: list[float] | None = None,
    error: Error = "mean",
) -> Blt:
    """Add noise that is correlated by a few buffers (BLT), for units that take part now and then.

    Args:
        facts: what the plan decides: clip, unit, adjacency, bounds, participation, and trust, which
            is local or central: correlated noise cannot be shared out.
        std: the noise level, in units of the sum, above 0; calibration replaces it.
        rounds: how many releases the best C is made for, at least 1.
        decays: what each buffer keeps from one step to the next; None are the best ones.
        scales: how much of each buffer is in the noise; given or left out with the decays.
        error: which prefix sums the best C under participation is for: their mean, or the last.

    Returns:
        a mechanism whose state is one vector per buffer, however many rounds there are.

    >>> blt(Facts(clip=1.0), decays=[0.5], scales=[0.25]).squared_sensitivity(2)
    2.5625
    """
    if (decays is None) != (scales is None):
        raise refuse("blt.decays", "given together with blt.scales", decays, "give both of them")
    found = (tuple(map(float, decays or ())), tuple(map(float, scales or ())))
    if decays is None:
        limits = facts.participation
        found = best_buffers(rounds, limits, error) if limits else (_DECAYS, _SCALES)
    return Blt(facts, std, decays=found[0], scales=found[1])
