# SPDX-License-Identifier: Apache-2.0
"""Questions about a table: each is a short row per record, of a known bound.

    record --> [columns, as a contract made them] --> a row per question, side by side --> sum

Every question's row is divided by its own bound, so that each has norm at most 1 and gets the same
share of the noise. Joint bounds are those of federated metrics (core/metric.py): K questions, of
which replacing a unit moves each by at most r_k of its bounds, have rows of norm at most sqrt(K),
and replacing a unit moves their sum by at most sqrt(r_1^2 + ... + r_K^2).

Features are as a data contract encodes them: numbers from -1 to 1, words one-hot. Edges are encoded
the same way and compared as features, so that no rounding puts a value into another cell.

With v = (x - middle) / half of a column's range, C the matrix whose square adds up
(``halved_sum``), and e_i a 1 in cell i:

| kind      | row                          | bound          | replacing one                   |
|-----------|------------------------------|----------------|---------------------------------|
| count     | 1                            | 1              | 1: entries lie in [0, 1]        |
| mean      | (1, v, v^2)                  | sqrt 3         | 2: (v - v')^2 (1 + (v + v')^2)  |
| histogram | e_cell                       | 1              | sqrt 2                          |
| quantiles | C e_cell                     | max |C e_i|    | max |C (e_i - e_j)|             |
| table     | e_(cell of one, of another)  | 1              | sqrt 2                          |
| survival  | C e_cell, of event or not    | max |C e_i|    | max over both                   |

Removing a unit, or making it zero, moves a sum by at most the bound. A zero row is always possible
(a value that is missing, or a ``where`` that does not hold), so replacing one never counts less
than the bound. A person's row is the mean over their own records: rows lie in a convex set, whose
diameter is that of its corners, so that both bounds stay, however many records a person has.

| edge case                                     | what happens                                |
|-----------------------------------------------|---------------------------------------------|
| a value that is missing, or not finite        | the record's row is zero in that question   |
| a number out of its column's public range     | it counts as the nearest end of the range   |
| a number outside of a histogram's edges       | in no bin                                   |
| a category with none of its words             | missing                                     |
| an exit after the last of the public times    | at risk at all of them, and no event there  |
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec
import torch

from dpfed.client.questions.cells import (
    MOST_CELLS,
    cell_labels,
    cell_of,
    check_ascending,
    check_cells,
    one_hot,
    summed_bounds,
    summed_rows,
    upper_cell,
)
from dpfed.client.questions.columns import Column, Columns, read_column
from dpfed.core.checks import refuse
from dpfed.core.metric import KEPT

Where: TypeAlias = dict[str, str | list[float] | float]
"""By column a word, a number, or [from, below]."""


class _Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What all questions have: a name, and which records they are about."""

    name: str
    where: Where = {}

    @property
    def numbers(self) -> tuple[str, ...]:
        """Columns that must hold numbers."""
        return ()

    @property
    def used(self) -> tuple[str, ...]:
        """All columns that it reads."""
        return (*self.numbers, *self.where)

    def check(self, columns: Columns) -> None:
        """Refuse what does not fit the columns."""

    def values(self, read: Mapping[str, torch.Tensor], columns: Columns) -> torch.Tensor:
        """Rows [records, size] in double precision, before ``where`` and the bound."""
        raise NotImplementedError

    @property
    def size(self) -> int:
        """The length of a row."""
        raise NotImplementedError

    @property
    def bound(self) -> float:
        """The largest norm of a row."""
        return 1.0

    @property
    def replace_bound(self) -> float:
        """The largest distance of two rows, one of which may be zero."""
        return math.sqrt(2)

    @property
    def about(self) -> str:
        """Which records, in words; "" is all of them."""
        return " and ".join(_condition(name, value) for name, value in self.where.items())

    @property
    def said(self) -> str:
        """What is asked, in one phrase."""
        return f"{self._said}, where {self.about}" if self.where else self._said

    @property
    def _said(self) -> str:
        raise NotImplementedError


def _condition(name: str, value: str | float | list[float]) -> str:
    if isinstance(value, list):
        return f"{name} is from {value[0]:g} to {value[1]:g}"
    return f"{name} is {value if isinstance(value, str) else format(value, 'g')}"


class Count(_Question, frozen=True, tag="count", tag_field="kind"):
    """How many units there are, or of how many ``where`` holds."""

    @property
    def size(self) -> int:
        """One number."""
        return 1

    @property
    def replace_bound(self) -> float:
        """Entries lie in [0, 1]."""
        return 1.0

    def values(self, read: Mapping[str, torch.Tensor], columns: Columns) -> torch.Tensor:
        """A one."""
        del columns
        return torch.ones(len(next(iter(read.values()))), 1, dtype=torch.float64)

    @property
    def _said(self) -> str:
        return "how many there are"


class Mean(_Question, frozen=True, tag="mean", tag_field="kind"):
    """The mean and the variance of a column of numbers."""

    column: str

    @property
    def numbers(self) -> tuple[str, ...]:
        """Its column."""
        return (self.column,)

    def check(self, columns: Columns) -> None:
        """A mean needs a range."""
        if columns[self.column].raw:
            raise refuse(f"column {self.column!r}", "of a known range", "none", "ask for quantiles")

    @property
    def size(self) -> int:
        """Count, sum, sum of squares."""
        return 3

    @property
    def bound(self) -> float:
        """At an end of the range."""
        return math.sqrt(3)

    @property
    def replace_bound(self) -> float:
        """From one end of the range to the other.

        With a = |v| and b = |v'| at most 1, s = a + b: s^2 (1 + (a - b)^2) <= s^2 (1 + (2 - s)^2),
        which is at most 4, at s = 2.
        """
        return 2.0

    def values(self, read: Mapping[str, torch.Tensor], columns: Columns) -> torch.Tensor:
        """(1, v, v^2)."""
        column, v = columns[self.column], read[self.column]
        if column.log:
            low, high = column.stretched
            value = torch.exp((low + high) / 2 + v * ((high - low) / 2))
            v = ((value - column.middle) / column.half).clamp(min=-1, max=1)
        return torch.stack([torch.ones_like(v), v, v * v], dim=1)

    @property
    def _said(self) -> str:
        return f"mean and variance of {self.column}"


class _Cells(_Question, frozen=True, kw_only=True):
    """Questions about one column that is cut into cells."""

    column: str
    edges: list[float] = []

    @property
    def used(self) -> tuple[str, ...]:
        """Its column, and those of ``where``."""
        return (self.column, *self.where)


class Histogram(_Cells, frozen=True, tag="histogram", tag_field="kind"):
    """How many units lie in each bin [a, b) of public edges, or have each word of a category."""

    words: list[str] = []

    @property
    def size(self) -> int:
        """Its bins."""
        return len(self.words) or len(self.edges) - 1

    def check(self, columns: Columns) -> None:
        """Edges for numbers, and the words of a category."""
        check_cells(self.name, columns[self.column], self.edges, self.words)

    def values(self, read: Mapping[str, torch.Tensor], columns: Columns) -> torch.Tensor:
        """A one in its bin."""
        return one_hot(cell_of(read[self.column], columns[self.column], self.edges), self.size)

    @property
    def labels(self) -> list[str]:
        """Of its bins."""
        return cell_labels(self.edges, self.words)

    @property
    def _said(self) -> str:
        return f"histogram of {self.column} in {self.size} bins"


class Quantiles(_Cells, frozen=True, tag="quantiles", tag_field="kind"):
    """Quantiles of a column of numbers, from a noisy cumulative histogram over public edges."""

    at: tuple[float, ...] = (0.25, 0.5, 0.75)

    @property
    def numbers(self) -> tuple[str, ...]:
        """Its column."""
        return (self.column,)

    @property
    def size(self) -> int:
        """Its cells."""
        return len(self.edges) - 1

    def check(self, columns: Columns) -> None:
        """Edges that ascend, and parts between 0 and 1."""
        check_cells(self.name, columns[self.column], self.edges, [])
        if not self.at or not all(0 < part < 1 for part in self.at):
            raise refuse(f"at of question {self.name!r}", "parts above 0 and below 1", self.at)

    @property
    def bound(self) -> float:
        """The longest column of C."""
        return summed_bounds(self.size)[0]

    @property
    def replace_bound(self) -> float:
        """The two columns of C that are farthest apart, one of which may be zero."""
        return summed_bounds(self.size)[1]

    def values(self, read: Mapping[str, torch.Tensor], columns: Columns) -> torch.Tensor:
        """A column of C."""
        cell = upper_cell(read[self.column], columns[self.column], self.edges)
        return summed_rows(cell, self.size)

    @property
    def _said(self) -> str:
        parts = ", ".join(f"{part:g}" for part in self.at)
        return f"quantiles of {self.column} at {parts}, over {self.size} cells"


class Table(_Cells, frozen=True, tag="table", tag_field="kind"):
    """How many units there are in each pair of cells of two columns."""

    by: str
    by_edges: list[float] = []
    words: list[str] = []
    by_words: list[str] = []

    @property
    def used(self) -> tuple[str, ...]:
        """Its two columns, and those of ``where``."""
        return (self.column, self.by, *self.where)

    @property
    def shape(self) -> tuple[int, int]:
        """Cells of the first column, and of the second."""
        first = len(self.words) or len(self.edges) - 1
        return first, len(self.by_words) or len(self.by_edges) - 1

    @property
    def size(self) -> int:
        """Its pairs of cells."""
        return math.prod(self.shape)

    def check(self, columns: Columns) -> None:
        """Cells of both."""
        check_cells(self.name, columns[self.column], self.edges, self.words)
        check_cells(self.name, columns[self.by], self.by_edges, self.by_words)
        if self.size > MOST_CELLS:
            raise refuse(f"the cells of question {self.name!r}", f"at most {MOST_CELLS}", self.size)

    def values(self, read: Mapping[str, torch.Tensor], columns: Columns) -> torch.Tensor:
        """A one in its pair of cells."""
        first = cell_of(read[self.column], columns[self.column], self.edges)
        second = cell_of(read[self.by], columns[self.by], self.by_edges)
        pair = torch.where((first < 0) | (second < 0), -1, first * self.shape[1] + second)
        return one_hot(pair, self.size)

    @property
    def labels(self) -> list[str]:
        """Of its pairs, the second column's cells running fastest."""
        first = cell_labels(self.edges, self.words)
        second = cell_labels(self.by_edges, self.by_words)
        return [f"{one}, {other}" for one in first for other in second]

    @property
    def _said(self) -> str:
        return f"table of {self.column} by {self.by}, {self.shape[0]} x {self.shape[1]} cells"


class Survival(_Question, frozen=True, tag="survival", tag_field="kind"):
    """The Kaplan-Meier curve over public times: exits count at the next of these times."""

    time: str
    event: str
    times: list[float]

    @property
    def numbers(self) -> tuple[str, ...]:
        """The time."""
        return (self.time,)

    @property
    def used(self) -> tuple[str, ...]:
        """Its two columns, and those of ``where``."""
        return (self.time, self.event, *self.where)

    @property
    def cells(self) -> int:
        """The times, and what is after the last one."""
        return len(self.times) + 1

    @property
    def size(self) -> int:
        """Cells of those with an event, then of those without."""
        return 2 * self.cells

    def check(self, columns: Columns) -> None:
        """Times that ascend, and an event that is 0 or 1."""
        check_ascending(self.name, "times", self.times, 1)
        if not self.times[0] > 0:
            raise refuse(f"times of question {self.name!r}", "above 0", self.times[0])
        if len(columns[self.event].words) != 2:
            raise refuse(
                f"the event column of question {self.name!r}",
                "a flag, or of two words, the second where the event was seen",
                list(columns[self.event].words)[:5],
                "name another column",
            )

    @property
    def bound(self) -> float:
        """The longest column of C."""
        return summed_bounds(self.cells)[0]

    @property
    def replace_bound(self) -> float:
        """Two columns in different halves: the first one twice."""
        return math.sqrt(2) * self.bound

    def values(self, read: Mapping[str, torch.Tensor], columns: Columns) -> torch.Tensor:
        """A column of C, the last time first, so that those at risk late have the least noise."""
        time, event = read[self.time], read[self.event]
        place = upper_cell(time, columns[self.time], [0.0, *self.times, math.inf])
        known = (place >= 0) & torch.isfinite(event)
        place = torch.where(known, self.cells - 1 - place, -1)
        made = summed_rows(place, self.cells)
        seen = (event == 1)[:, None]
        return torch.cat([torch.where(seen, made, 0.0), torch.where(seen, 0.0, made)], dim=1)

    @property
    def _said(self) -> str:
        return (
            f"Kaplan-Meier curve of {self.event} over {self.time} at {len(self.times)} times up to "
            f"{self.times[-1]:g}"
        )


Question: TypeAlias = Count | Mean | Histogram | Quantiles | Table | Survival


def joint_rows(
    questions: Sequence[Question], columns: Columns, x: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    """All questions' rows side by side, each of norm at most 1, [records, sum of sizes].

    Args:
        questions: as they were asked.
        columns: what is public of the columns.
        x: features [records, features].
        y: labels [records].
    """
    read = {name: read_column(x, y, column) for name, column in columns.items()}
    parts = [_part(question, columns, read) for question in questions]
    return torch.cat(parts, dim=1)


def _part(question: Question, columns: Columns, read: Mapping[str, torch.Tensor]) -> torch.Tensor:
    made = question.values(read, columns)
    held = torch.isfinite(made).all(dim=1)
    for name, value in question.where.items():
        held &= _holds(read[name], columns[name], value)
    return torch.where(held[:, None], made, 0.0) * (KEPT / question.bound)


def _holds(values: torch.Tensor, column: Column, wanted: str | float | list[float]) -> torch.Tensor:
    if isinstance(wanted, str):
        return values == float(column.words.index(wanted))
    if isinstance(wanted, list):
        return cell_of(values, column, wanted) == 0
    return values == column.feature(wanted)
