# SPDX-License-Identifier: Apache-2.0
"""The Gaussian mechanism in exact integers: a truncated sum plus a rounded Gaussian, on a grid.

Adding float noise to a float sum is not exactly private: the low bits of the result tell which
sums could have made it (Mironov 2012). Here nothing is added in floats. Rows are clipped and
truncated onto a grid of step std / r, with r = 2^bits to 2^(bits+1); their integers are checked
and added up, S, and the noise is K = round(r Z), drawn exactly (_rounded.py). As S is an integer,

    S + K = round(S + r Z):

a function of the ideal Gaussian release, so the closed form of ``gaussian`` accounts for it.

Guarantee: ``event(k)`` accounts exactly for what k calls of ``release`` (and ``finish``) made, in
the arithmetic that really ran. It rests on the stream's bits, on ndtri and mpmath as _rounded.py
says, and on rows that are each a function of their own unit. Two things are part of the cost:

- The clip counts as clip (1 + SLACK), SLACK = 2^-12: rows that are products (a linear layer's) are
  summed in double precision and then rounded, and this covers the error, proven in advance from
  public numbers; where it would not, and always where the number of rows is private (add-remove),
  rows are made and truncated one by one.
- Under DISTRIBUTED trust a sum of h rounded shares is, up to a total variation of about
  exp(-pi^2 r^2), a function of the ideal release with h shares: below 10^-4000000 for 10 bits.

Noise is drawn before any row is touched, so the time it takes tells nothing about them.
docs/exact-noise.md has the proofs.

| edge case                                              | what happens                          |
|--------------------------------------------------------|---------------------------------------|
| std or clip zero, negative, NaN or infinite            | refused when built                    |
| bits below 10 or above 30                              | refused when built                    |
| a replace_bound other than 2 clip (matrices)           | refused when built                    |
| clip of more than 2^30 steps: very little noise        | refused when built                    |
| more than one share counted where the server sees one  | refused when built                    |
| rows that cannot be made one by one (matrices)         | BadRelease, nothing is released       |
| rows of another size than the channel's                | BadRelease, nothing is released       |
| a row that is not finite, or too long in integers      | the unit's row is taken as zero       |
| rows that cannot be drawn from, under sampling         | BadRelease, nothing is released       |
| CENTRAL, terms rounded after a weight close to 1       | BadRelease, nothing is released       |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpfed.core.checks import refuse
from dpfed.core.errors import BadRelease, RecipeError
from dpfed.core.grid import SLACK, narrow, squared_limit, step_below, truncated_sum
from dpfed.core.sampling import drawn
from dpfed.core.types import Adjacency, Facts, Release, Trust, Unit
from dpfed.mechanisms._noise import FreshNoise
from dpfed.mechanisms._rounded import rounded_normal

if TYPE_CHECKING:
    import torch

    from dpfed.core.types import Rows, Stream, Total

PAPER = "Mironov 2012; Kairouz et al. 2021 (distributed discrete Gaussian)"


@dataclass(frozen=True)
class DiscreteGaussian(FreshNoise):
    """A sum of rows on a grid plus an exactly drawn rounded Gaussian; the grid is std / 2^bits."""

    bits: int = 24

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 10 <= self.bits <= 30:
            raise refuse("discrete_gaussian.bits", "between 10 and 30", self.bits)
        if self.replace_bound != 2 * self.clip:
            raise RecipeError(
                f"discrete_gaussian.replace_bound must be 2 clip = {2 * self.clip}, got "
                f"{self.replace_bound}: rows are summed one by one; use mechanism 'gaussian'"
            )
        try:
            squared_limit(self.clip, self.step)
        except BadRelease as error:
            raise RecipeError(str(error)) from error

    @property
    def step(self) -> float:
        """The grid: a power of two, from public numbers only; the same under any trust."""
        return step_below(self.std, self.bits)

    @property
    def exact(self) -> bool:
        """Integers, and draws of the law that is accounted for.

        Not where neighbours may have another number of records: under add-remove, and where a unit
        is a person. A batch of gradients then changes its size, and the others' last bits with it.
        """
        return self.adjacency is not Adjacency.ADD_REMOVE and self.unit is not Unit.GROUP

    def noise_multiplier(self, shares: float | None = None) -> float:
        """Noise over sensitivity, the latter enlarged by what rounding a sum may add."""
        return super().noise_multiplier(shares) / (1 + SLACK)

    def init(self, size: int) -> int:
        """The size of a release, since noise is drawn before there are rows."""
        return size

    def release(self, rows: Rows, state: int, rng: Stream) -> tuple[Release, int]:
        """Draw the noise, then who takes part; clip, truncate, sum, add."""
        if self.trust is Trust.CENTRAL:  # there the server adds the noise
            sums = self._sum(drawn(rows, self.sampling, rng), state, _units(rows))
            return Release(narrow(sums), 0.0, self.step), state
        noise = self._noise(state, rng)
        sums = self._sum(drawn(rows, self.sampling, rng), state, _units(rows))
        return Release(narrow(sums.add_(noise)), self.std, self.step), state

    def finish(self, total: Total, state: int, rng: Stream) -> tuple[Release, int]:
        """Add the server's noise to the total under CENTRAL; otherwise it is private already."""
        if self.trust is not Trust.CENTRAL:
            return Release(total.vector, self.pooled_std(total), self.step), state
        self._check_weights(total)
        noise = self._noise(total.vector.numel(), rng)
        return Release(total.vector.add_(noise), self.std, self.step), state

    def _check_weights(self, total: Total) -> None:
        """A weighted term was rounded again, and the clip must leave room for that."""
        moved = 2 * self.step * math.sqrt(total.vector.numel())
        close = [w for w in total.weights if w != 1 and w * self.clip + moved > self.clip]
        if close:
            raise BadRelease(
                f"a term of weight {close[0]} is rounded once more, which is not accounted for; "
                f"use weights = 'sum', or raise privacy.options.bits"
            )

    def _noise(self, size: int, rng: Stream) -> torch.Tensor:
        import torch

        return torch.from_numpy(rounded_normal(self.std / self.step, size, rng.words))

    def _sum(self, rows: Rows, size: int, units: int) -> torch.Tensor:
        """The clipped sum in steps: rounded as a whole if that is covered, else row by row.

        Which of them follows from the number of all units, never from how many were drawn.
        """
        from dpfed.core.rows import Outer, UnitRows

        if not isinstance(rows, UnitRows):
            raise BadRelease(
                f"{type(rows).__name__} rows cannot be made one by one, so they are not summed "
                f"exactly; use mechanism 'gaussian'"
            )
        if isinstance(rows, Outer) and self.adjacency is not Adjacency.ADD_REMOVE:
            total = rows.rounded_sum(self.clip, self.step, units)
            if total is not None and total.numel() == size:
                return total
        return truncated_sum(rows.clipped_rows(self.clip), size, self.clip, self.step)


def _units(rows: Rows) -> int:
    """How many units there are, whoever is drawn of them."""
    from dpfed.core.rows import Outer

    return rows.units if isinstance(rows, Outer) else 0


def discrete_gaussian(
    facts: Facts = Facts(),
    std: float = 1.0,
    shares: float = 1,
    bits: int = 24,
) -> DiscreteGaussian:
    """Add Gaussian noise in exact integers, so that no float rounding can leak a record.

    Args:
        facts: what the plan decides: clip, unit, adjacency, trust, bounds and participation.
        std: one share of noise, in units of the sum, above 0; calibration replaces it.
        shares: shares of noise that the adversary cannot subtract; 1 unless trust is distributed.
        bits: how fine the grid is: a step is at most std / 2^bits; 10 to 30.

    Returns:
        a mechanism whose guarantee says "exact integer arithmetic" where that holds.

    >>> mechanism = discrete_gaussian(Facts(clip=1.0), std=2.0, bits=20)
    >>> mechanism.exact, mechanism.std / mechanism.step >= 2**20
    (True, True)
    """
    return DiscreteGaussian(facts, std, shares=shares, bits=bits)
