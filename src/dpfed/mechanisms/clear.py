# SPDX-License-Identifier: Apache-2.0
"""No noise: the same clipped sums in clear, the reference that private runs are compared with.

Its cost is infinite, and a run that uses it says that it gives no privacy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dpfed.core.checks import refuse
from dpfed.core.errors import RecipeError
from dpfed.core.grid import EXACT_BITS, pack, step_below
from dpfed.core.sampling import EVERYONE, drawn
from dpfed.core.types import Facts, Release, State
from dpfed.mechanisms._noise import HoldsFacts

if TYPE_CHECKING:
    from dp_accounting import DpEvent

    from dpfed.core.types import Rows, Sampling, Stream, Total


@dataclass(frozen=True)
class Clear(HoldsFacts):
    """Clips, sums and releases without noise."""

    sampling: Sampling = EVERYONE
    std: float = 0.0
    shares: float = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.std != 0:
            raise _no_noise(self.std)
        if self.participation is not None:
            bound = "one with an accounting for privacy.participation"
            way_out = "use gaussian, tree, banded or blt"
            raise refuse("privacy.mechanism", bound, "clear", way_out)

    @property
    def step(self) -> float:
        """The grid, from the clip alone."""
        return step_below(self.clip, EXACT_BITS)

    @property
    def independent(self) -> bool:
        """True: there is no noise that two releases could share."""
        return True

    @property
    def exact(self) -> bool:
        """False: there is no noise that could be exact."""
        return False

    def init(self, size: int) -> State:
        """No state."""
        del size
        return ()

    def release(self, rows: Rows, state: State, rng: Stream) -> tuple[Release, State]:
        """The clipped sum of those drawn, on the grid, in clear."""
        total = drawn(rows, self.sampling, rng).clipped_sum(self.clip).vector
        return Release(pack(total, self.step), 0.0, self.step), state

    def finish(self, total: Total, state: State, rng: Stream) -> tuple[Release, State]:
        """The total, unchanged."""
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


def clear(facts: Facts = Facts()) -> Clear:
    """Clip and sum without any noise: the reference that private runs are compared with.

    Args:
        facts: what the plan decides: clip, unit, adjacency and trust. The cost is infinite under
            each of them.

    Returns:
        a mechanism that gives no privacy, and says so in its guarantee.

    >>> clear(Facts(clip=1.0)).event(1)
    NonPrivateDpEvent()
    """
    return Clear(facts)
