# SPDX-License-Identifier: Apache-2.0
"""The Gaussian mechanism: a clipped sum plus N(0, std^2 I), accounted for exactly.

Nair et al. 2026, eq. (2): client i releases S_i + E_i with E_i ~ N(0, (C sigma_g)^2 / n I). Here
``std`` is the standard deviation of one share of noise, C sigma_g / sqrt(n); dividing by a public
size comes later and is post-processing.

    LOCAL        each client adds std; the server reads each release   multiplier std / C
    DISTRIBUTED  each client adds std; only the sum is opened          multiplier std sqrt(h) / C
    CENTRAL      the server adds std to the sum                        multiplier std / C

with h the number of shares that the adversary cannot subtract. Under replace-one the sum moves by
``replace_bound`` (2C for ordinary rows): dp_accounting doubles a Gaussian event's sensitivity for
that relation, so the event has std / (replace_bound / 2), and the doubling happens once, in the
accountant.

Guarantee: ``event(k)`` accounts exactly for what k calls of ``release`` (and ``finish``) drew, in
idealized arithmetic: float normals, rounded to the grid after they were added (post-processing;
under CENTRAL before, and the sum is then shorter by as much). The rounding of the float sum itself
is not idealized: rows are short of the clip by more than it (core/clipping.py).

| edge case                                              | what happens                          |
|--------------------------------------------------------|---------------------------------------|
| rows whose bound or replace_bound is too large         | BadRelease, nothing is released       |
| std or clip zero, negative, NaN or infinite            | refused when built                    |
| more than one share counted where the server sees one  | refused when built                    |
| a sum that is not finite                               | BadRelease, nothing is released       |
| a value beyond int64 on the grid                       | BadRelease, nothing is released       |
| rows that cannot be drawn from, under sampling         | BadRelease, nothing is released       |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpfed.core.grid import BLOCK, EXACT_BITS, NOISY_BITS, pack, step_below
from dpfed.core.sampling import drawn
from dpfed.core.types import Facts, Release, State, Trust
from dpfed.mechanisms._noise import FreshNoise

if TYPE_CHECKING:
    from dpfed.core.grid import Drawn
    from dpfed.core.types import Rows, Stream, Total


@dataclass(frozen=True)
class Gaussian(FreshNoise):
    """A clipped sum plus fresh N(0, std^2) noise in each coordinate of each release."""

    @property
    def step(self) -> float:
        """The grid: a power of two, from public numbers only."""
        if self.trust is Trust.CENTRAL:
            return step_below(self.clip, EXACT_BITS)
        return step_below(self.std, NOISY_BITS)

    def init(self, size: int) -> State:
        """Independent noise needs no state."""
        del size
        return ()

    def release(self, rows: Rows, state: State, rng: Stream) -> tuple[Release, State]:
        """Draw who takes part, clip, sum, add this client's share of noise, round to the grid."""
        taking_part = drawn(rows, self.sampling, rng)
        if self.trust is Trust.CENTRAL:  # there the server adds the noise
            return Release(self.rounded(taking_part, self.step), 0.0, self.step), state
        vector = self.bounded(taking_part).vector
        noisy = pack(vector, self.step, lambda size: self._noise(size, rng))
        return Release(noisy, self.std, self.step), state

    def finish(self, total: Total, state: State, rng: Stream) -> tuple[Release, State]:
        """Add the server's noise to the total under CENTRAL; otherwise it is private already."""
        import torch

        if self.trust is not Trust.CENTRAL:
            return Release(total.vector, self.pooled_std(total), self.step), state
        nothing = torch.zeros(1)
        for part in torch.split(total.vector, BLOCK):
            zeros = nothing.expand(part.numel())
            part.add_(pack(zeros, self.step, lambda size: self._noise(size, rng)))
        return Release(total.vector, self.std, self.step), state

    def _noise(self, size: int, rng: Stream) -> Drawn:
        return rng.draws(size, self.std, self.step)


def gaussian(
    facts: Facts = Facts(),
    std: float = 1.0,
    shares: float = 1,
) -> Gaussian:
    """Add independent Gaussian noise to each clipped sum (the Gaussian mechanism).

    Args:
        facts: what the plan decides: clip, unit, adjacency, trust, bounds and participation.
        std: one share of noise, in units of the sum, above 0; calibration replaces it.
        shares: shares of noise that the adversary cannot subtract; 1 unless trust is distributed.

    Returns:
        a mechanism that releases and accounts for itself; ``dpfed.calibrate`` sets its ``std``.

    >>> mechanism = gaussian(Facts(clip=1.5), std=3.0)
    >>> mechanism.noise_multiplier(), mechanism.squared_sensitivity(70)
    (2.0, 70.0)
    """
    return Gaussian(facts, std, shares=shares)
