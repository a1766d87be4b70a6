# SPDX-License-Identifier: Apache-2.0
"""No noise: the same clipped sums in clear, the reference that private runs are compared with.

Its price is infinite, and a run that uses it says that it gives no privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dpfed.core.errors import RecipeError
from dpfed.core.grid import EXACT_BITS, pack, step_below
from dpfed.core.sampling import EVERYONE, drawn
from dpfed.core.types import Adjacency, Release, State, Trust, Unit

if TYPE_CHECKING:
    from dp_accounting import DpEvent

    from dpfed.core.randomness import Stream
    from dpfed.core.sampling import Sampling
    from dpfed.core.types import Rows, Total


@dataclass(frozen=True)
class Clear:
    """Clips, sums and releases without noise."""

    clip: float
    unit: Unit = Unit.RECORD
    adjacency: Adjacency = Adjacency.REPLACE_ONE
    trust: Trust = Trust.LOCAL
    sampling: Sampling = EVERYONE
    std: float = 0.0
    shares: float = 1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.clip) and self.clip > 0):
            raise RecipeError(f"clip is {self.clip}, and must be a finite number above 0; set it")
        if self.std != 0:
            raise RecipeError(f"'clear' adds no noise, but std is {self.std}; use 'gaussian'")

    @property
    def step(self) -> float:
        """The grid, from the clip alone."""
        return step_below(self.clip, EXACT_BITS)

    @property
    def independent(self) -> bool:
        """There is no noise that two releases could share."""
        return True

    @property
    def exact(self) -> bool:
        """There is no noise that could be."""
        return False

    def init(self, size: int) -> State:
        """Nothing to keep."""
        del size
        return ()

    def release(self, rows: Rows, state: State, rng: Stream) -> tuple[Release, State]:
        """The clipped sum of those drawn, on the grid, in clear."""
        total = drawn(rows, self.sampling, rng).clipped_sum(self.clip).vector
        return Release(pack(total, self.step), 0.0, self.step), state

    def finish(self, total: Total, state: State, rng: Stream) -> tuple[Release, State]:
        """The total as it is."""
        del rng
        return Release(total.vector, 0.0, self.step), state

    def event(self, releases: int, shares: float | None = None) -> DpEvent:
        """Not private, from the first release on."""
        from dp_accounting import NonPrivateDpEvent, NoOpDpEvent

        del shares
        return NonPrivateDpEvent() if releases else NoOpDpEvent()

    def with_sampling(self, sampling: Sampling) -> Clear:
        """The same mechanism on a draw of the units."""
        return replace(self, sampling=sampling)

    def with_std(self, std: float) -> Clear:
        """There is no noise to set."""
        raise RecipeError(f"'clear' cannot be given noise of std {std}; use mechanism 'gaussian'")


def clear(
    clip: float = 1.0,
    unit: Unit = Unit.RECORD,
    adjacency: Adjacency = Adjacency.REPLACE_ONE,
    trust: Trust = Trust.LOCAL,
) -> Clear:
    """No noise, for comparison only."""
    return Clear(clip, Unit(unit), Adjacency(adjacency), Trust(trust))
