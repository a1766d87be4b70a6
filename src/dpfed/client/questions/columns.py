# SPDX-License-Identifier: Apache-2.0
"""What is public of a table's columns, and their values as a data contract encodes them.

A number is a feature from -1 to 1, even in its value or its logarithm; a category is one feature
per word, a flag is -1 or 1. Numbers are compared as features: an edge is encoded as a value is, to
the last bit, so that no rounding puts a value into another cell.

| edge case                                     | what happens                                |
|-----------------------------------------------|---------------------------------------------|
| a feature beyond [-1, 1]                      | the nearest end                             |
| a NaN or an infinity                          | missing                                     |
| a category with none of its words, or several | missing                                     |
| a flag that is neither                        | missing                                     |
| a label that is no class                      | missing                                     |
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

import msgspec
import torch


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is public of a column, and where its features are: a data contract's encoding.

    Args:
        at: the place of its first feature, from 0; -1 is the label.
        low: the least number that it can hold, which is the feature -1.
        high: the largest one, which is the feature 1.
        words: of a category, one feature each; of a flag, for -1 and 1; of a label, by class.
        log: whether features are even in a number's logarithm.
        flag: whether it is a flag, with one feature.
        raw: whether its feature is the number as it is, whose range nobody knows: it is then
            compared by its magnitude, from 1e-6 to 1e12 on both sides of 0.

    >>> age = Column(at=0, low=20, high=100)
    >>> age.middle, age.feature(100), age.feature(120)
    (60.0, 1.0, 1.0)
    """

    at: int
    low: float = -1.0
    high: float = 1.0
    words: tuple[str, ...] = ()
    log: bool = False
    flag: bool = False
    raw: bool = False

    @property
    def middle(self) -> float:
        """Of its range."""
        return (self.low + self.high) / 2

    @property
    def half(self) -> float:
        """Half of its range."""
        return (self.high - self.low) / 2

    @property
    def stretched(self) -> tuple[float, float]:
        """The ends of the range, by the scale."""
        return (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)

    def feature(self, value: float) -> float:
        """A number as a contract makes it a feature, to the last bit: cut, then in float32.

        Args:
            value: the number, in the column's unit.
        """
        if self.raw:
            return float(_magnitude(torch.tensor(value, dtype=torch.float32).double()))
        low, high = self.stretched
        cut = min(max(value, self.low), self.high)
        at = math.log(cut) if self.log else cut
        made = (at - (low + high) / 2) / ((high - low) / 2)
        return float(torch.tensor(min(max(made, -1.0), 1.0), dtype=torch.float32))

    def grid(self, cells: int) -> list[float]:
        """So many cells over the range: their ends, of equal distance, or of equal ratio.

        Args:
            cells: how many; of a raw column there are those of 10^(1/4) and their negatives.
        """
        if self.raw:
            powers = [10 ** (k / 4) for k in range(-24, 49)]
            return [*(-each for each in reversed(powers)), 0.0, *powers]
        low, high = self.stretched
        inner = (low + (high - low) * step / cells for step in range(1, cells))
        return [self.low, *(math.exp(each) if self.log else each for each in inner), self.high]


Columns: TypeAlias = Mapping[str, Column]


def read_column(x: torch.Tensor, y: torch.Tensor, column: Column) -> torch.Tensor:
    """A column in double precision: features cut to [-1, 1], or codes; NaN where one is missing.

    Args:
        x: features [records, ...].
        y: labels [records].
        column: what is public of it.
    """
    if column.at < 0:
        return _read_label(y.double(), column)
    if column.words and not column.flag:
        hot = x[:, column.at : column.at + len(column.words)] == 1
        code = hot.double() @ torch.arange(len(column.words), dtype=torch.float64)
        return torch.where(hot.sum(dim=1) == 1, code, math.nan)
    given = x[:, column.at].double()
    if column.raw:
        return torch.where(torch.isfinite(given), _magnitude(given), math.nan)
    if column.flag:  # 0 is neither
        return torch.where(given.abs() == 1, (given + 1) / 2, math.nan)
    return torch.where(torch.isfinite(given), given.clamp(min=-1, max=1), math.nan)


def _magnitude(values: torch.Tensor) -> torch.Tensor:
    """From -1 to 1: the logarithm of a size from 1e-6 to 1e12, on both sides of 0."""
    size = torch.log1p(values.abs().clamp(max=1e12) * 1e6) / math.log1p(1e18)
    return torch.sign(values) * size.clamp(max=1.0)


def _read_label(y: torch.Tensor, column: Column) -> torch.Tensor:
    """A class is a code; a number, which is in its own unit, becomes a feature."""
    if column.words:
        known = torch.isfinite(y) & (y >= 0) & (y < len(column.words))
        return torch.where(known, y, math.nan)
    made = ((y - column.middle) / column.half).float().double()
    return torch.where(torch.isfinite(y), made.clamp(min=-1, max=1), math.nan)
