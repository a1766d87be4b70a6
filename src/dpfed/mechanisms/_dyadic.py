# SPDX-License-Identifier: Apache-2.0
"""The worst participation for a tree of noise: b rounds apart, at most k times, searched exactly.

Step t of a tree opens one node, the largest dyadic block that ends there (mechanisms/tree.py). A
unit that takes part m times in a block moves its node by m D at most, by as much if it always adds
the same, so the squared sensitivity of n steps is the most that the sum of m^2 over opened nodes
can be. ``worst_squared`` finds it: blocks are put together from halves, and of each it is known
what it gives for m participations, the first at least f steps from its begin, the last at least e
steps from its end (both up to b: what is further away is free).

| edge case                            | what happens                                             |
|--------------------------------------|----------------------------------------------------------|
| a search of more than 3 10^9 steps   | Unpriceable: it would take too long                      |
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from dpfed.core.errors import Unpriceable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Table: TypeAlias = NDArray[np.float64]
    """[m, f, e] -> the most that the nodes inside give: its own is not among them."""

_MAX_STEPS = 3e9  # elementary steps of a search; longer ones are refused


@lru_cache(maxsize=4096)
def worst_squared(releases: int, separation: int, most: int) -> float:
    """The squared sensitivity of a tree's first releases, over that of one node.

    Args:
        releases: how many steps the tree has made, at least 0.
        separation: the least difference of two steps that a unit takes part in.
        most: in how many steps it takes part at most.
    """
    times = min(most, -(-releases // separation))
    if times == 0:
        return 0.0
    _refuse_long(releases, separation)
    found, size = None, 0
    for level in reversed(range(releases.bit_length())):
        if releases >> level & 1:  # blocks from the left, each a node of its own
            block = _with_own(_prefix(level, separation, times))
            if found is not None:
                right = _with_own(_inside(level, separation, times))
                block = _joined(found, right, size, level, times)
            found, size = block, size + (1 << level)
    assert found is not None  # noqa: S101 (there is a release)
    return float(found.max())


def _refuse_long(releases: int, separation: int) -> None:
    half = 1 << max(0, releases.bit_length() - 2)
    if half > separation and half * half * separation > _MAX_STEPS:
        raise Unpriceable(
            f"a tree of {releases} releases under a separation of {separation} takes too long to "
            f"account for; use mechanism 'banded' or 'blt'"
        )


@lru_cache(maxsize=256)
def _inside(level: int, separation: int, times: int) -> Table:
    """The table of a block of 2^level steps."""
    if level == 0:
        return _leaf(separation, times)
    half = _inside(level - 1, separation, times)
    return _joined(_with_own(half), half, 1 << (level - 1), level - 1, times)


@lru_cache(maxsize=256)
def _prefix(level: int, separation: int, times: int) -> Table:
    """The table of the first block: nothing is before it, so f is only 0."""
    if level == 0:
        return _leaf(separation, times)[:, :1]
    left = _with_own(_prefix(level - 1, separation, times))
    half = _inside(level - 1, separation, times)
    return _joined(left, half, 1 << (level - 1), level - 1, times)


def _leaf(separation: int, times: int) -> Table:
    """A block of one step, without the unit or with it (0 steps from its start, 1 from its end)."""
    import numpy as np

    table = np.full((min(times, 1) + 1, separation + 1, separation + 1), -math.inf)
    table[0] = 0.0
    table[1, :1, :2] = 0.0
    return table


def _with_own(table: Table) -> Table:
    """The table with the block's own node counted, too."""
    import numpy as np

    return table + np.square(np.arange(len(table), dtype=np.float64))[:, None, None]


def _joined(left: Table, right: Table, size: int, level: int, times: int) -> Table:
    """Two blocks, of ``size`` and 2^level steps, one after the other.

    Args:
        left: the first block's table; its f is 0 only where nothing is before it.
        right: the second block's.
        size: how many steps the first one has.
        level: the second one has 2^level.
        times: in how many steps a unit takes part at most.
    """
    import numpy as np

    gap = right.shape[1] - 1
    most = min(times, -(-(size + (1 << level)) // gap))
    made = np.full((most + 1, left.shape[1], gap + 1), -math.inf)
    made[0] = 0.0
    for m in range(1, min(len(left), most + 1)):  # the unit is not in the right block
        made[m] = np.maximum(made[m], _shifted(left[m], 1 << level, axis=1))
    for m in range(1, min(len(right), most + 1)):  # the unit is not in the left block
        rows = right[m] if left.shape[1] > 1 else right[m][:1]
        made[m] = np.maximum(made[m], _shifted(rows, size, axis=0) if len(rows) > 1 else rows)
    for m in range(1, len(left)):
        up_to = min(len(right) - 1, most - m)
        for e in range(gap + 1):
            column = left[m][:, e]
            if up_to < 1 or not np.isfinite(column).any():
                continue
            both = column[None, :, None] + right[1 : up_to + 1, gap - e][:, None, :]
            part = made[m + 1 : m + up_to + 1]
            np.maximum(part, both, out=part)
    return made


def _shifted(table: Table, steps: int, axis: int) -> Table:
    """The table after ``steps`` steps without the unit: distances grow by as much."""
    import numpy as np

    last = table.shape[axis] - 1
    at = np.clip(np.arange(last + 1) - steps, 0, last)
    return np.asarray(np.take(table, at, axis=axis))
