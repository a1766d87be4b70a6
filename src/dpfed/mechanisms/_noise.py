# SPDX-License-Identifier: Apache-2.0
"""What Gaussian mechanisms share: bounds, the noise level, and the noise multiplier.

Each mechanism is one frozen value; its own file says what it draws and how it accounts for several
releases together. The sensitivity of one release, and the noise multiplier that follows from it and
from the noise level, are computed here and nowhere else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from dpfed.core.checks import refuse
from dpfed.core.errors import BadRelease, RecipeError
from dpfed.core.grid import pack
from dpfed.core.sampling import EVERYONE
from dpfed.core.types import Adjacency, Facts, Trust, Unit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dp_accounting import DpEvent

    from dpfed.core.participation import Participation
    from dpfed.core.types import BoundedSum, Rows, Sampling, Total, Vector


@dataclass(frozen=True)
class HoldsFacts:
    """A mechanism's facts, each readable by its own name too."""

    facts: Facts

    def __post_init__(self) -> None:
        if not isinstance(self.facts, Facts):
            raise refuse("facts", "a value of Facts", self.facts, "write Facts(clip=...)")

    @property
    def clip(self) -> float:
        """The norm that a unit's row is clipped to."""
        return self.facts.clip

    @property
    def unit(self) -> Unit:
        """What one row stands for."""
        return self.facts.unit

    @property
    def adjacency(self) -> Adjacency:
        """Which data sets count as neighbours."""
        return self.facts.adjacency

    @property
    def trust(self) -> Trust:
        """Who adds the noise, and what the server sees."""
        return self.facts.trust

    @property
    def replace_bound(self) -> float:
        """How far replacing one unit moves the sum."""
        return self.facts.replace_bound

    @property
    def participation(self) -> Participation | None:
        """How often a unit takes part, and how far apart; None means in every release."""
        return self.facts.participation

    def with_facts(self, **changes: Any) -> Self:
        """The same mechanism under other facts.

        Args:
            **changes: fields of ``Facts``; the others stay as they are.
        """
        return replace(self, facts=replace(self.facts, **changes))


@dataclass(frozen=True)
class GaussianNoise(HoldsFacts):
    """The plan's facts and a noise level; ``std`` is the noise level that a run uses."""

    std: float = 1.0
    sampling: Sampling = EVERYONE
    shares: float = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.std) and self.std > 0):
            way_out = "give privacy.epsilon instead, and it is calibrated"
            raise refuse("std", "a finite number above 0", self.std, way_out)
        if self.participation is not None:
            self._check_participation()

    def _check_participation(self) -> None:
        """Refuse participation limits without client units and central trust.

        Each client counts its own rounds, and only the server adds one noise vector per round.
        """
        fits = self.unit is Unit.CLIENT and self.trust is Trust.CENTRAL
        if not fits or self.sampling != EVERYONE:
            raise RecipeError(
                f"privacy.participation must have unit 'client', central trust and no draw, got "
                f"unit {self.unit.value!r}, {self.trust} trust and {self.sampling}; change these, "
                f"or leave it out"
            )

    @property
    def exact(self) -> bool:
        """False: float normals and float sums are accounted for as if they were real numbers."""
        return False

    def refuse_pooling(self, why: str) -> None:
        """Refuse shared or sampled noise, which must be independent from release to release.

        Args:
            why: what would go wrong, for the error.
        """
        if self.trust is Trust.DISTRIBUTED or self.shares != 1 or self.sampling != EVERYONE:
            raise RecipeError(
                f"correlated noise must have local or central trust, 1 share and no sampling, got "
                f"{self.trust} trust, {self.shares} shares and {self.sampling}: {why}; use "
                f"mechanism 'gaussian'"
            )

    def check_size(self, size: int, kept: Iterable[Vector]) -> None:
        """Refuse a release whose size is not that of the stored noise: torch would broadcast it."""
        for vector in kept:
            if vector.numel() != size:
                raise BadRelease(
                    f"a release must have size {vector.numel()}, as those before it, got {size}; "
                    f"keep the model, or begin a new training"
                )

    def bounded(self, rows: Rows) -> BoundedSum:
        """The clipped sum of the rows; refused if it exceeds the bounds accounted for."""
        made = rows.clipped_sum(self.clip)
        if not (made.bound <= self.clip and made.replace_bound <= self.replace_bound):
            raise BadRelease(
                f"rows must be bounded by {self.clip} (replace_bound {self.replace_bound}), got "
                f"{made.bound} ({made.replace_bound}); give the mechanism these bounds"
            )
        return made

    def rounded(self, rows: Rows, step: float) -> Vector:
        """The clipped sum on a grid, where noise is added later.

        Rounding moves a coordinate by half a step, in each of two neighbouring data sets, and by
        another half where the server rounds again after weighting. The sum is scaled down by the
        norm of that error, so that it stays within the clip.
        """
        vector = self.bounded(rows).vector
        size = vector.numel()
        lost = 2 * step * math.sqrt(size) / self.clip
        if not lost < 0.5:
            raise BadRelease(
                f"a step of the grid must be below clip / (4 sqrt(size)), got {step:.3g} for a "
                f"clip of {self.clip:.3g} and size {size}; use less noise, or "
                f"mechanism 'gaussian' with local trust"
            )
        return pack(vector, step, factor=1 - lost)

    def noise_multiplier(self, shares: float | None = None) -> float:
        """Noise over sensitivity, in dp_accounting's convention: it doubles for replace-one."""
        replaced = self.adjacency is Adjacency.REPLACE_ONE
        bound = self.replace_bound / 2 if replaced else self.clip
        return self.std * math.sqrt(self.shares if shares is None else shares) / bound

    def joint_event(self, squared_sensitivity: float, shares: float | None = None) -> DpEvent:
        """One event for correlated releases; an infinite sensitivity is not private."""
        import dp_accounting as dp

        if squared_sensitivity in {0, math.inf}:
            return dp.NonPrivateDpEvent() if squared_sensitivity else dp.NoOpDpEvent()
        return dp.GaussianDpEvent(self.noise_multiplier(shares) / math.sqrt(squared_sensitivity))

    def with_sampling(self, sampling: Sampling) -> Self:
        """The same mechanism on a draw of the units."""
        return replace(self, sampling=sampling)

    def with_std(self, std: float) -> Self:
        """The same mechanism at another noise level."""
        return replace(self, std=std)


@dataclass(frozen=True)
class FreshNoise(GaussianNoise):
    """Independent noise of the same level in each release: shares may be pooled, units sampled."""

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
        """True: each release has its own noise."""
        return True

    def pooled_std(self, total: Total) -> float:
        """The standard deviation of a total whose terms carry noise, by their weights."""
        return self.std * math.sqrt(math.fsum(w * w for w in total.weights))

    def event(self, releases: int, shares: float | None = None) -> DpEvent:
        """Gaussian releases, if the adversary cannot subtract ``shares`` shares of noise."""
        from dp_accounting import GaussianDpEvent, NoOpDpEvent, SelfComposedDpEvent

        if releases == 0:
            return NoOpDpEvent()
        event = GaussianDpEvent(self.noise_multiplier(shares))
        return SelfComposedDpEvent(self.sampling.amplify(event), self._participations(releases))

    def squared_sensitivity(self, releases: int) -> float:
        """The squared sensitivity of the first releases together, over that of a single one."""
        return float(self._participations(releases))

    def _participations(self, releases: int) -> int:
        """How many of these releases a unit can be in."""
        return min(releases, self.participation.at_most) if self.participation else releases
