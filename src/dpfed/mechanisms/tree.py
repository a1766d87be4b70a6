# SPDX-License-Identifier: Apache-2.0
"""Tree aggregation: the noise of t releases together is that of the nodes that make up t.

Kairouz et al. 2021 (DP-FTRL). A node of level k covers 2^k steps; the bits of t split the first t
steps into nodes, and Z_t sums their noises, each N(0, std^2 I). Step t opens one node, of level
k = trailing zeros of t, and closes the k nodes that it takes over:

    release_t = S_t + Z_t - Z_(t-1) = S_t + opened - closed

Nodes are integers on the grid, so sums of releases telescope exactly. ``restart`` > 0 begins a new
tree after this many releases; the last Z of the old one stays in all later prefixes.

Guarantee: ``event(n)`` accounts for n calls of ``release`` (or ``finish``), each from the state
that the last one returned (two from one state would share closed nodes), in idealized arithmetic,
whatever releases a unit takes part in. To one who knows all earlier outputs, release_t tells as
much as the noisy sum of the node that it opens, since those of the closed nodes are known. However
the S in it were chosen, a unit moves it by at most 2^k D, and its noise is fresh: a Gaussian
release, made adaptively. So mu^2 adds (with equality for a unit that adds the same in each step):

    mu^2 = (D / std)^2 s(n),    s(n) = squared_sensitivity(n) = sum over t <= n of 4^(zeros of t).

Only opened nodes count: s(70) = 6139 = 78.35^2, where independent noise has 70. Trees are made
for units that take part once; dp_accounting's event for these would understate mu by 29.6 there.
With ``participation`` (central trust, a client as the unit) the worst unit is searched for exactly
(_dyadic.py): s(2000) is 315 for 20 times, 100 rounds apart, where independent noise has 20.
The grid is clip / 2^36, since sums are rounded before noise is added (and are shorter by what that
may add): 8 bytes a coordinate. The state is such a vector per level (11 for a horizon of 1024);
only open nodes take up memory.

| edge case                                              | what happens                            |
|--------------------------------------------------------|-----------------------------------------|
| std or clip zero, negative, NaN or infinite            | refused when built                      |
| horizon below 1, restart negative or above the horizon | refused when built                      |
| DISTRIBUTED trust, more than one share, sampling       | refused when built                      |
| ``participation`` and restarts                         | refused when built: no accounting for it|
| more than ``horizon`` releases, without restarts       | BadRelease; their cost is infinite      |
| rows beyond the bounds, of another size, off the grid  | BadRelease, nothing is released         |
| a client misses rounds (LOCAL)                         | the total's std is for those in step    |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from dpfed.core.checks import check_at_least, refuse
from dpfed.core.errors import BadRelease
from dpfed.core.grid import EXACT_BITS, pack, step_below
from dpfed.core.types import Facts, Release, Trust
from dpfed.mechanisms._dyadic import worst_squared
from dpfed.mechanisms._noise import GaussianNoise

if TYPE_CHECKING:
    from dp_accounting import DpEvent

    from dpfed.core.types import Rows, Stream, Total, Vector

PAPER = "Kairouz et al. 2021 (DP-FTRL)"


class Nodes(NamedTuple):
    """The noise of the open node of each level, in grid steps (0 if none is), and the step."""

    noise: tuple[Vector, ...]
    t: int


@dataclass(frozen=True)
class Tree(GaussianNoise):
    """Gaussian noise along a binary tree of releases: sums over rounds have little noise."""

    horizon: int = 1024
    restart: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_pooling(
            "trees of clients that drop out go out of step, so their shares are no tree"
        )
        check_at_least(1, "tree", horizon=self.horizon)
        if not 0 <= self.restart <= self.horizon:
            bound = f"between 0, for never, and horizon = {self.horizon}"
            raise refuse("tree.restart", bound, self.restart)
        if self.restart and self.participation is not None:
            bound = "0 under privacy.participation, where no accounting covers a sequence of trees"
            raise refuse("tree.restart", bound, self.restart)

    @property
    def step(self) -> float:
        """The grid; coarser if the noise of many clients might not fit int64."""
        return step_below(max(self.clip, self.std / 64), EXACT_BITS)

    @property
    def independent(self) -> bool:
        """False: a release subtracts noise of earlier ones."""
        return False

    def init(self, size: int) -> Nodes:
        """The state in which no node is open."""
        import numpy as np
        import torch

        levels = range((self.restart or self.horizon).bit_length())
        # numpy's zeros take no memory until they are written to
        return Nodes(tuple(torch.from_numpy(np.zeros(size, np.int64)) for _ in levels), 0)

    def release(self, rows: Rows, state: Nodes, rng: Stream) -> tuple[Release, Nodes]:
        """Clip, sum, round to the grid; then open a node, and close those that it takes over."""
        sums = self.rounded(rows, self.step)
        if self.trust is Trust.CENTRAL:  # there the server adds the noise
            return Release(sums, 0.0, self.step), state
        std = self.std * math.sqrt(1 + self._level(state.t + 1))
        noise, state = self._advance(sums.numel(), state, rng)
        return Release(noise.add_(sums), std, self.step), state

    def finish(self, total: Total, state: Nodes, rng: Stream) -> tuple[Release, Nodes]:
        """Add the server's tree under CENTRAL; otherwise the clients' trees are in the total."""
        std = self.std * math.sqrt(1 + self._level(state.t + 1))
        if self.trust is Trust.CENTRAL:
            noise, state = self._advance(total.vector.numel(), state, rng)
            return Release(total.vector.add_(noise), std, self.step), state
        std *= math.sqrt(math.fsum(w * w for w in total.weights))
        return Release(total.vector, std, self.step), state._replace(t=state.t + 1)

    def _advance(self, size: int, state: Nodes, rng: Stream) -> tuple[Vector, Nodes]:
        """The noise of the next release, and the state after it."""
        self.check_size(size, state.noise[:1])
        level = self._level(t := state.t + 1)
        zeros = state.noise[0].new_zeros(1).expand(size)
        opened = pack(zeros, self.step, lambda count: self.std * rng.normal(count)).long()
        noise = opened.clone()
        for closed in state.noise[:level]:
            noise -= closed
        nodes = self.init(size).noise
        if not (self.restart and t % self.restart == 0):  # else the tree is complete
            nodes = (*nodes[:level], opened, *state.noise[level + 1 :])
        return noise, Nodes(nodes, t)

    def _level(self, t: int) -> int:
        """The level of the node that step t opens, and the number of those that it closes."""
        if t > self.horizon and not self.restart:
            raise BadRelease(
                f"tree.horizon must be at least {t} for release {t}, got {self.horizon}; raise it, "
                f"or set restart"
            )
        place = (t - 1) % self.restart + 1 if self.restart else t
        return (place & -place).bit_length() - 1

    def opened(self, releases: int) -> list[int]:
        """How many nodes of each level the first releases open: those at odd positions."""
        trees, rest = divmod(releases, self.restart or releases + 1)
        sizes = [1 << k for k in range(max(self.restart, rest).bit_length())]
        return [trees * ((self.restart // s + 1) // 2) + (rest // s + 1) // 2 for s in sizes]

    def squared_sensitivity(self, releases: int) -> float:
        """The squared sensitivity of the first releases together, over that of a single one."""
        if releases > self.horizon and not self.restart:
            return math.inf
        if self.participation is not None:
            limits = self.participation
            return worst_squared(releases, limits.min_separation, limits.at_most)
        return float(sum(count * 4**k for k, count in enumerate(self.opened(releases))))

    def event(self, releases: int, shares: float | None = None) -> DpEvent:
        """A Gaussian event for each node that the releases open."""
        import dp_accounting as dp

        squared = self.squared_sensitivity(releases)
        if math.isinf(squared) or (squared and self.participation is not None):
            return self.joint_event(squared, shares)
        node = self.noise_multiplier(shares)
        parts = [(dp.GaussianDpEvent(node / 2**k), n) for k, n in enumerate(self.opened(releases))]
        return dp.ComposedDpEvent([dp.SelfComposedDpEvent(part, n) for part, n in parts if n])


def tree(
    facts: Facts = Facts(),
    std: float = 1.0,
    horizon: int = 1024,
    restart: int = 0,
) -> Tree:
    """Add noise along a binary tree, as in DP-FTRL: prefix sums have noise that grows like log t.

    Args:
        facts: what the plan decides: clip, unit, adjacency, bounds, participation, and trust, which
            is local or central: correlated noise cannot be shared out.
        std: the noise level of a node, in units of the sum, above 0; calibration replaces it.
        horizon: the most releases without a restart, at least 1.
        restart: begin a new tree after this many releases, up to horizon; 0 is never.

    Returns:
        a mechanism whose noise depends on earlier releases; its state holds the open nodes.

    >>> tree(Facts(clip=1.0), horizon=70).squared_sensitivity(70)  # independent noise: 70
    6139.0
    """
    return Tree(facts, std, horizon=horizon, restart=restart)
