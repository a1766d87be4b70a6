# SPDX-License-Identifier: Apache-2.0
"""Rows for an adaptive clip: rows divided by the clip that was broadcast, and who is within it.

``ScaledByClip`` divides each unit's row by the broadcast clip, ``by``. ``ClipIndicator`` has one
number per unit: 1/2 if the norm of its row is at most ``by``, else -1/2. The mechanism's own clip
and noise are constants in these units, so no value of ``by`` changes what a release costs.

Guarantee: for any ``by``, a unit moves the sum of ``ScaledByClip`` by at most ``clip`` (twice that
if it is replaced), as rows.py says: rows are clipped to clip * by, and their sum is divided after.
For m <= 2^25 rows the division rounds by 2^-28 clip, less than the margin that clipping.py leaves.
A unit's number in ``ClipIndicator`` is -1/2, 0 or 1/2 and depends on its own row only, to the last
bit: norms are added up by halves, whatever lies beside a row. Otherwise a server could choose
``by`` as the norm of many equal records, and one record more would move all of their counts.

| edge case                                          | what happens                              |
|----------------------------------------------------|-------------------------------------------|
| ``by`` is NaN, infinite, 0, negative, or not       | every row is zero, and so is every count  |
| between 2^-40 and 2^40                             |                                           |
| clip * by is not between 2^-300 and 2^300          | every row is zero                         |
| a row that is zero, or not finite                  | adds nothing, and counts 0: neither       |
| a norm beyond the largest float                    | is not within                             |
| rows that cannot be made one by one (matrices)     | BadRelease                                |
| ``ScaledByClip`` rows in exact integers            | are made one by one, also a linear layer's |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from dpfed.core.clipping import checked_clip, row_norms_alone, rows_in_block
from dpfed.core.errors import BadRelease
from dpfed.core.rows import Dense, Outer
from dpfed.core.types import BoundedSum, Rows

MIN_CLIP, MAX_CLIP = 2.0**-40, 2.0**40
"""Clips that a server may broadcast; with any other, every row is zero."""

_MAX_SINGLE_CLIP = 2.0**60  # up to it, a quotient fits single precision


def usable(by: float) -> bool:
    """Whether rows can be divided by it."""
    return MIN_CLIP <= by <= MAX_CLIP  # False for a NaN


@dataclass(frozen=True, eq=False)
class _Wrapped:
    """Base of rows that are divided by a number: rows of any kind, and that number."""

    rows: Any
    by: float

    @property
    def units(self) -> int:
        """The number of units of the rows that are wrapped."""
        return int(self.rows.units)


class ScaledByClip(_Wrapped):
    """The rows, each divided by ``by``."""

    def select(self, kept: torch.Tensor, room: int = 0) -> ScaledByClip:
        """The rows of the units in ``kept``, and rows of zeros."""
        return ScaledByClip(self.rows.select(kept, room), self.by)

    def clipped_sum(self, clip: float) -> BoundedSum:
        """Clip in the rows' own units, add up, divide."""
        bound, by = checked_clip(clip), self._by(clip)
        inner = bound * (by or 1.0)
        made = self.rows.clipped_sum(inner)
        if not (made.bound <= inner and made.replace_bound <= 2 * inner):
            raise BadRelease(
                f"rows must be bounded by {inner:g} (replace_bound {2 * inner:g}), got "
                f"{made.bound:g} ({made.replace_bound:g}); give rows that clip themselves"
            )
        far = (
            not 1 / _MAX_SINGLE_CLIP <= bound <= _MAX_SINGLE_CLIP
        )  # single precision would not hold the quotient
        return BoundedSum(_over(made.vector.double() if far else made.vector, by), bound, 2 * bound)

    def clipped_rows(self, clip: float) -> Iterator[torch.Tensor]:
        """Blocks of clipped rows, each number divided by itself: no row depends on another."""
        bound, by = checked_clip(clip), self._by(clip)
        return (_over(block, by) for block in self.rows.clipped_rows(bound * (by or 1.0)))

    def _by(self, clip: float) -> float:
        """The number that rows are divided by; 0 if all of them are ignored."""
        return self.by if usable(self.by) and 2.0**-300 <= clip * self.by <= 2.0**300 else 0.0


def _over(made: torch.Tensor, by: float) -> torch.Tensor:
    return made / by if by else torch.zeros_like(made)


class ClipIndicator(_Wrapped):
    """One number per unit: 1/2 if its row's norm is at most ``by``, else -1/2."""

    def select(self, kept: torch.Tensor, room: int = 0) -> ClipIndicator:
        """The numbers of the units in ``kept``; a row of zeros counts as 0."""
        return ClipIndicator(self.rows.select(kept, room), self.by)

    def clipped_sum(self, clip: float) -> BoundedSum:
        """The sum of the units' numbers."""
        return self._numbers().clipped_sum(clip)

    def clipped_rows(self, clip: float) -> Iterator[torch.Tensor]:
        """The units' numbers as blocks of rows, for sums in exact integers."""
        return self._numbers().clipped_rows(clip)

    def _numbers(self) -> Dense:
        if not usable(self.by):
            return Dense(torch.zeros(self.units, 1, dtype=torch.float64))
        found = unit_norms(self.rows)
        half = torch.where(found <= self.by, 0.5, -0.5).double()  # a NaN is not within
        return Dense(torch.where(found != 0, half, 0.0)[:, None])


def unit_norms(rows: Rows) -> torch.Tensor:
    """The norm of each unit's row before the clip; 0 if it is not finite. Sensitive."""
    if isinstance(rows, Outer) and rows.groups is None:
        return _in_blocks(rows.residual) * _in_blocks(rows.feature)
    if not hasattr(rows, "unit_rows"):
        raise BadRelease(
            f"{type(rows).__name__} rows cannot be made one by one, so they are not counted; leave "
            f"out privacy.adaptive"
        )
    found = [row_norms_alone(block) for block in rows.unit_rows()]
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.float64)


def _in_blocks(matrix: torch.Tensor) -> torch.Tensor:
    parts = torch.split(matrix, rows_in_block(matrix.shape[1]))
    return torch.cat([row_norms_alone(part) for part in parts])
