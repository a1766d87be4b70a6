# SPDX-License-Identifier: Apache-2.0
"""What Gaussian mechanisms share: bounds, the noise level, and its ratio to the sensitivity.

Each mechanism is one frozen value; its own file says what it draws and how it accounts for several
releases together. How far a unit moves one release, and what that makes of a noise level, is
written here and nowhere else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from dpfed.core.checks import refuse
from dpfed.core.errors import BadRelease, RecipeError
from dpfed.core.grid import Releases, pack, pack_lines
from dpfed.core.participation import Participation
from dpfed.core.sampling import EVERYONE
from dpfed.core.types import Adjacency, Trust, Unit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dp_accounting import DpEvent

    from dpfed.core.sampling import Sampling
    from dpfed.core.stacked import BoundedSums
    from dpfed.core.types import BoundedSum, Rows, Total, Vector


def above_zero(name: str, value: float, way_out: str = "1 is usual") -> None:
    """Refuse a clip or a noise level that is not a finite number above 0.

    Args:
        name: the option, as a user writes it.
        value: what it is.
        way_out: what to do about it.
    """
    if not (math.isfinite(value) and value > 0):
        raise refuse(name, "a finite number above 0", value, way_out)


@dataclass(frozen=True)
class GaussianNoise:
    """A clip and a noise level; ``std`` is the noise level that a run uses."""

    clip: float
    std: float
    unit: Unit = Unit.RECORD
    adjacency: Adjacency = Adjacency.REPLACE_ONE
    trust: Trust = Trust.LOCAL
    sampling: Sampling = EVERYONE
    shares: float = 1
    replace_bound: float = math.nan
    """How far replacing one unit moves the sum; 2 clip unless rows are known to be closer."""
    participation: Participation | None = None
    """How often a unit takes part, and how far apart; None is in every release."""

    def __post_init__(self) -> None:
        above_zero("clip", self.clip)
        above_zero("std", self.std, "give privacy.epsilon instead, and it is calibrated")
        if math.isnan(self.replace_bound):
            object.__setattr__(self, "replace_bound", 2 * self.clip)
        if self.participation is not None:
            self._check_participation()

    def _check_participation(self) -> None:
        """A client can bound how often it takes part; only the server's noise has its steps."""
        fits = self.unit is Unit.CLIENT and self.trust is Trust.CENTRAL
        if not fits or self.sampling != EVERYONE:
            raise RecipeError(
                f"privacy.participation must have unit 'client', central trust and no draw, got "
                f"unit {self.unit.value!r}, {self.trust} trust and {self.sampling}; change these, "
                f"or leave it out"
            )

    @property
    def exact(self) -> bool:
        """Float normals and float sums: accounted for as if they were real numbers."""
        return False

    def alone(self, why: str) -> None:
        """Refuse what needs noises that are independent of each other."""
        if self.trust is Trust.DISTRIBUTED or self.shares != 1 or self.sampling != EVERYONE:
            raise RecipeError(
                f"correlated noise must have local or central trust, 1 share and no sampling, got "
                f"{self.trust} trust, {self.shares} shares and {self.sampling}: {why}; use "
                f"mechanism 'gaussian'"
            )

    def check_size(self, size: int, kept: Iterable[Vector]) -> None:
        """Refuse a release of another size than the noise that is kept: it would be broadcast."""
        for vector in kept:
            if vector.numel() != size:
                raise BadRelease(
                    f"a release must have size {vector.numel()}, as those before it, got {size}; "
                    f"keep the model, or begin a new training"
                )

    def bounded(self, rows: Rows) -> BoundedSum:
        """The clipped sum of the rows, if it keeps the bounds that are accounted for."""
        made = rows.clipped_sum(self.clip)
        self.check_bounds(made)
        return made

    def check_bounds(self, made: BoundedSum | BoundedSums) -> None:
        """Refuse sums whose bounds are not those that are accounted for."""
        if not (made.bound <= self.clip and made.replace_bound <= self.replace_bound):
            raise BadRelease(
                f"rows must be bounded by {self.clip} (replace_bound {self.replace_bound}), got "
                f"{made.bound} ({made.replace_bound}); give the mechanism these bounds"
            )

    def rounded(self, rows: Rows, step: float) -> Vector:
        """The clipped sum on a grid, where noise comes later: shorter by what rounding may add.

        A coordinate is off by half a step, in each of two neighbouring worlds; by another half,
        where the server rounds it again after a weight.
        """
        vector = self.bounded(rows).vector
        return pack(vector, step, factor=self._shorter(vector.numel(), step))

    def _shorter(self, size: int, step: float) -> float:
        lost = 2 * step * math.sqrt(size) / self.clip
        if not lost < 0.5:
            raise BadRelease(
                f"a step of the grid must be below clip / (4 sqrt(size)), got {step:.3g} for a "
                f"clip of {self.clip:.3g} and size {size}; use less noise, or "
                f"mechanism 'gaussian' with local trust"
            )
        return 1 - lost

    def rounded_many(self, sums: BoundedSums, step: float) -> Releases | None:
        """Several clients' releases where the server adds the noise; None where clients do."""
        if self.trust is not Trust.CENTRAL or self.sampling != EVERYONE:
            return None
        self.check_bounds(sums)
        values = sums.matrix.numpy().astype("float64")
        values *= self._shorter(values.shape[1], step)
        return Releases(pack_lines(values, step), 0.0, step)

    def noise_multiplier(self, shares: float | None = None) -> float:
        """Noise over sensitivity, in dp_accounting's convention: it doubles for replace-one."""
        replaced = self.adjacency is Adjacency.REPLACE_ONE
        bound = self.replace_bound / 2 if replaced else self.clip
        return self.std * math.sqrt(self.shares if shares is None else shares) / bound

    def together(self, worth: float, shares: float | None = None) -> DpEvent:
        """One event for correlated releases of this worth; an infinite one is not private."""
        import dp_accounting as dp

        if worth in {0, math.inf}:
            return dp.NonPrivateDpEvent() if worth else dp.NoOpDpEvent()
        return dp.GaussianDpEvent(self.noise_multiplier(shares) / math.sqrt(worth))

    def with_sampling(self, sampling: Sampling) -> Self:
        """The same mechanism on a draw of the units."""
        return replace(self, sampling=sampling)

    def with_std(self, std: float) -> Self:
        """The same mechanism at another noise level."""
        return replace(self, std=std)


@dataclass(frozen=True)
class FreshNoise(GaussianNoise):
    """Each release has its own noise at the same level: shares may be pooled, units drawn."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.shares >= 1 and math.isfinite(self.shares)):
            raise refuse(
                "shares", "a finite number, at least 1", self.shares, "lower privacy.colluders"
            )
        if self.shares != 1 and self.trust is not Trust.DISTRIBUTED:
            bound = f"1 under {self.trust} trust, where the adversary faces one share of noise"
            raise refuse("shares", bound, self.shares)

    @property
    def independent(self) -> bool:
        """Each release has its own noise."""
        return True

    def pooled_std(self, total: Total) -> float:
        """The noise level of a sum whose terms have noise already."""
        return self.std * math.sqrt(math.fsum(w * w for w in total.weights))

    def event(self, releases: int, shares: float | None = None) -> DpEvent:
        """Gaussian releases, against one who cannot subtract ``shares`` shares of their noise."""
        from dp_accounting import GaussianDpEvent, NoOpDpEvent, SelfComposedDpEvent

        if releases == 0:
            return NoOpDpEvent()
        event = GaussianDpEvent(self.noise_multiplier(shares))
        return SelfComposedDpEvent(self.sampling.amplify(event), self._times(releases))

    def worth(self, releases: int) -> float:
        """The squared sensitivity of so many releases, over that of one: they are independent."""
        return float(self._times(releases))

    def _times(self, releases: int) -> int:
        """In how many of them a unit is; they need not be of consecutive rounds."""
        return min(releases, self.participation.at_most) if self.participation else releases
