# SPDX-License-Identifier: Apache-2.0
"""What Gaussian mechanisms share: bounds, the noise level, and its ratio to the sensitivity.

Each mechanism is one frozen value; what it draws and how it prices several releases together is its
own file's. How far a unit moves one release, and what that makes of a noise level, is written here
and nowhere else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from dpfed.core.errors import BadRelease, RecipeError
from dpfed.core.sampling import EVERYONE
from dpfed.core.types import Adjacency, Trust, Unit

if TYPE_CHECKING:
    from dp_accounting import DpEvent

    from dpfed.core.sampling import Sampling
    from dpfed.core.types import BoundedSum, Rows, Total


@dataclass(frozen=True)
class GaussianNoise:
    """``std`` is where the noise level of a run is written."""

    clip: float
    std: float
    unit: Unit = Unit.RECORD
    adjacency: Adjacency = Adjacency.REPLACE_ONE
    trust: Trust = Trust.LOCAL
    sampling: Sampling = EVERYONE
    shares: float = 1
    replace_bound: float = math.nan
    """How far exchanging two units moves the sum; 2 clip unless rows are known to be closer."""

    def __post_init__(self) -> None:
        for name, way_out in (("clip", "1 is usual"), ("std", "privacy.epsilon finds it")):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise RecipeError(
                    f"{name} is {value}, and must be a finite number above 0; {way_out}"
                )
        if math.isnan(self.replace_bound):
            object.__setattr__(self, "replace_bound", 2 * self.clip)

    @property
    def exact(self) -> bool:
        """Float normals and float sums: priced as if they were real numbers."""
        return False

    def alone(self, why: str) -> None:
        """Refuse whatever needs noises that are independent of each other."""
        if self.trust is Trust.DISTRIBUTED or self.shares != 1 or self.sampling != EVERYONE:
            asked = f"{self.trust} trust, {self.shares} shares and {self.sampling}"
            raise RecipeError(f"{asked} need mechanism 'gaussian': {why}")

    def bounded(self, rows: Rows) -> BoundedSum:
        """The clipped sum of the rows, if it is bounded as was priced."""
        made = rows.clipped_sum(self.clip)
        if not (made.bound <= self.clip and made.replace_bound <= self.replace_bound):
            raise BadRelease(
                f"rows must be bounded by {self.clip} (replace_bound {self.replace_bound}), got "
                f"{made.bound} ({made.replace_bound}); give the mechanism these bounds"
            )
        return made

    def noise_multiplier(self, shares: float | None = None) -> float:
        """Noise over sensitivity, in dp_accounting's convention: it doubles for replace-one."""
        replaced = self.adjacency is Adjacency.REPLACE_ONE
        bound = self.replace_bound / 2 if replaced else self.clip
        return self.std * math.sqrt(self.shares if shares is None else shares) / bound

    def with_sampling(self, sampling: Sampling) -> Self:
        """The same mechanism on a draw of the units."""
        return replace(self, sampling=sampling)

    def with_std(self, std: float) -> Self:
        """The same mechanism at another noise level."""
        return replace(self, std=std)


@dataclass(frozen=True)
class FreshNoise(GaussianNoise):
    """Each release has noise of its own at the same level: shares may be pooled, units drawn."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.shares >= 1 and math.isfinite(self.shares)):
            raise RecipeError(
                f"shares is {self.shares}, and must be at least 1; lower the colluders"
            )
        if self.shares != 1 and self.trust is not Trust.DISTRIBUTED:
            raise RecipeError(
                f"shares is {self.shares}, but under {self.trust} trust the strongest adversary "
                f"faces one share of noise; leave it at 1"
            )

    @property
    def independent(self) -> bool:
        """Each release has noise of its own."""
        return True

    def pooled_std(self, total: Total) -> float:
        """The noise level of a sum whose terms have noise already."""
        return self.std * math.sqrt(math.fsum(w * w for w in total.weights))

    def event(self, releases: int, shares: float | None = None) -> DpEvent:
        """``releases`` Gaussian releases, to one who cannot subtract ``shares`` shares of noise."""
        from dp_accounting import GaussianDpEvent, NoOpDpEvent, SelfComposedDpEvent

        if releases == 0:
            return NoOpDpEvent()
        event = GaussianDpEvent(self.noise_multiplier(shares))
        return SelfComposedDpEvent(self.sampling.amplify(event), releases)

    def worth(self, releases: int) -> float:
        """The squared sensitivity of so many releases, over that of one: they are independent."""
        return float(releases)
