# SPDX-License-Identifier: Apache-2.0
"""No noise: the same clipped sums in clear, the reference that private runs are compared with.

Its cost is infinite, and a run that uses it says that it gives no privacy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dpfed.core.errors import RecipeError
from dpfed.core.grid import EXACT_BITS, pack, step_below
from dpfed.core.sampling import EVERYONE, drawn
from dpfed.core.types import Adjacency, Release, State, Trust, Unit
from dpfed.mechanisms._noise import above_zero

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
        above_zero("clip", self.clip)
        if self.std != 0:
            raise _no_noise(self.std)

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
        """There is no noise that could be exact."""
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
        raise _no_noise(std)


def _no_noise(std: float) -> RecipeError:
    return RecipeError(
        f"mechanism 'clear' adds no noise, got std = {std}; use mechanism 'gaussian'"
    )


def clear(
    clip: float = 1.0,
    unit: Unit = Unit.RECORD,
    adjacency: Adjacency = Adjacency.REPLACE_ONE,
    trust: Trust = Trust.LOCAL,
) -> Clear:
    """No noise, for comparison only.

    Args:
        clip: the norm that a unit's row is clipped to, above 0.
        unit: what one row stands for.
        adjacency: which data sets count as neighbours; the cost is infinite under each.
        trust: who would add the noise.
    """
    return Clear(clip, Unit(unit), Adjacency(adjacency), Trust(trust))
