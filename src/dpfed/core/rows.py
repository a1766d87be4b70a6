# SPDX-License-Identifier: Apache-2.0
"""Per-unit vectors that clip and sum themselves.

Guarantee: ``clipped_sum(clip)`` is a sum over units of vectors of norm at most ``clip``, made in
double precision; whatever a record or a server chose, removing one unit moves it by at most
``bound`` and replacing one by at most ``replace_bound``, its rounding included (clipping.py).
``clipped_rows(clip)`` gives the same vectors as rows, in blocks, for sums in exact integers
(grid.truncated_sum). There the clip factor is reduced by 2^-40, so that truncated rows stay within
the clip, and each row depends on its own unit only, to the last bit: not on its place, nor on other
rows.

| edge case                                     | what happens                           |
|-----------------------------------------------|----------------------------------------|
| a row with a NaN or an infinity               | the unit is ignored                    |
| a finite row whose square overflows (1e300)   | scaled first, then clipped to ``clip`` |
| a row whose square underflows (1e-300)        | scaled first, kept as it is            |
| a zero row                                    | adds zero, no division by zero         |
| rounding pushes a scaled row above ``clip``   | cannot: the factor is reduced by 2^-20 |
|                                               | (``clipped_rows``: by 2^-40)           |
| no rows                                       | a zero vector                          |
| ``clip`` is zero, negative, NaN or infinite   | refused                                |
| more than 2^25 units                          | refused                                |
| groups: one record of a person is not finite  | the whole person is ignored            |
| Scaled: a scale that is not finite            | all units are ignored                  |
| Scaled Outer: a number below 2^-160           | counts as 0                            |
| Scaled Outer: a number above 2^160            | its unit is ignored; if the number is  |
|                                               | in the scale, all units are            |
| exact: a product of factors overflows (1e308) | the unit is ignored                    |
| exact: Outer factors beyond 2^-250 .. 2^250   | the unit may be ignored                |

`Dense` is the oracle. `Outer` never builds a per-record gradient: the gradient of a linear layer
is residual x feature, its norm |residual| |feature|. `Chunks` takes any model, a bounded number of
records at a time. `groups` makes all records of one person one row. `Scaled` multiplies each
coordinate by a public number before the clip. Rows that are matrices are in matrices.py.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch

from dpfed.core.clipping import (
    ProductSum,
    all_finite,
    bounded,
    checked_clip,
    clip_alone,
    clip_factors,
    covered,
    few,
    moderate,
    normalised,
    ordinary,
    product_error,
    product_sum,
    row_norms,
    rows_in_block,
    scaled_factors,
    stacked,
    weighted,
)
from dpfed.core.grid import SHORTFALL
from dpfed.core.types import BoundedSum, Rows, Vector


@runtime_checkable
class UnitRows(Rows, Protocol):
    """Rows that can be made one by one, for sums in exact integers. Sensitive."""

    def clipped_rows(self, clip: float) -> Iterator[torch.Tensor]:
        """Blocks [rows, size] in double precision, one row per unit; memory is bounded."""


@runtime_checkable
class Selectable(Protocol):
    """Rows from which units can be drawn, and that do not show how many were."""

    @property
    def units(self) -> int:
        """The number of units."""

    def select(self, kept: torch.Tensor, room: int = 0) -> Rows:
        """The rows of the units that are True in ``kept``, and rows of zeros.

        Args:
            kept: which units are drawn. Sensitive, as is their number.
            room: for how many units rows are computed whoever is drawn, where that takes time.
        """


class _ByUnit:
    """Common base: materialise each unit's row, then clip it."""

    @property
    def units(self) -> int:
        """Records, or groups if there are any."""
        raise NotImplementedError

    @property
    def _length(self) -> int:
        """The number of coordinates of a row, and of the sum."""
        raise NotImplementedError

    def unit_rows(self) -> Iterator[torch.Tensor]:
        """Blocks of rows before the clip, in double precision, one row per unit. Sensitive."""
        raise NotImplementedError

    def _blocks(self) -> Iterator[torch.Tensor]:
        """The blocks of ``unit_rows``, in any precision."""
        return self.unit_rows()

    def clipped_sum(self, clip: float) -> BoundedSum:
        """Clip each unit's row, then add them up."""
        bound = checked_clip(clip)
        total = ProductSum(self.units, (1, self._length))
        for block in self._blocks():
            total.add(*weighted(block, bound))
        return bounded(total.matrix.view(-1), bound)

    def clipped_rows(self, clip: float) -> Iterator[torch.Tensor]:
        """Blocks of clipped rows, one row per unit, at most 2^21 numbers (or one row) each."""
        bound = checked_clip(clip)
        return (clip_alone(block, bound) for block in self.unit_rows())


@dataclass(frozen=True, eq=False, repr=False)
class Dense(_ByUnit):
    """One row per record in a matrix [records, d]: the oracle of all other kinds."""

    matrix: torch.Tensor
    groups: torch.Tensor | None = None

    @property
    def units(self) -> int:
        """Records, or groups if there are any."""
        return count_units(len(self.matrix), self.groups)

    def select(self, kept: torch.Tensor, room: int = 0) -> Dense:
        """The rows of the units in ``kept``; zeros for the others."""
        del room
        counted = counted_records(kept, self.groups)
        return replace(self, matrix=or_zero(counted, self.matrix))

    @property
    def _length(self) -> int:
        return self.matrix.shape[1]

    def _blocks(self) -> Iterator[torch.Tensor]:
        if self.groups is None:
            return iter(torch.split(self.matrix, rows_in_block(self._length)))
        return stacked(self._people(rows_in_block(self._length)), self._length)

    def unit_rows(self) -> Iterator[torch.Tensor]:
        """Rows as they are, or summed person by person."""
        return (block.double() for block in self._blocks())

    def _people(self, chunk: int) -> Iterator[Vector]:
        for members in members_of(self.groups):
            parts = torch.split(members, chunk)
            yield sum_of(self.matrix[index].double().sum(dim=0) for index in parts)


@dataclass(frozen=True, eq=False, repr=False)
class MetricRows(Dense):
    """Joint rows of metrics, one per unit; replacing one moves the sum by at most ``distance``."""

    distance: float = math.inf  # infinity: only the bound that all clipped rows have

    def clipped_sum(self, clip: float) -> BoundedSum:
        """The sum, with ``distance`` as its replace bound if that is smaller."""
        made = super().clipped_sum(clip)
        return replace(made, replace_bound=min(self.distance, made.replace_bound))


@dataclass(frozen=True, eq=False, repr=False)
class MeanRows(_ByUnit):
    """Rows of records, made some at a time; a person's row is the mean over their own records.

    ``make(index)`` gives the rows [len(index), size] of the records at ``index``, in double
    precision, each of its own record alone. Replacing a unit moves the sum by at most ``distance``.
    """

    make: Callable[[torch.Tensor], torch.Tensor]
    records: int
    size: int
    groups: torch.Tensor | None = None
    distance: float = math.inf  # infinity: only the bound that all clipped rows have

    @property
    def units(self) -> int:
        """Records, or groups where there are any."""
        return count_units(self.records, self.groups)

    @property
    def _length(self) -> int:
        return self.size

    def clipped_sum(self, clip: float) -> BoundedSum:
        """The sum, with the bound of these rows where the clip leaves them as they are."""
        made = super().clipped_sum(clip)
        return replace(made, replace_bound=min(self.distance, made.replace_bound))

    def unit_rows(self) -> Iterator[torch.Tensor]:
        """Records' rows, or persons' means."""
        if self.groups is not None:
            return self._people(rows_in_block(self.size))
        parts = torch.split(torch.arange(self.records), rows_in_block(self.size))
        return (self.make(part) for part in parts if part.numel())

    def _people(self, most: int) -> Iterator[torch.Tensor]:
        """Blocks of persons, with about ``most`` records; one person alone may have more."""
        _, person, counts = torch.unique(self.groups, return_inverse=True, return_counts=True)
        order, ends = torch.argsort(person, stable=True), counts.cumsum(0)
        _, sizes = torch.unique_consecutive((ends - 1) // most, return_counts=True)
        first = 0
        for size in sizes.tolist():
            those = slice(first, first + size)
            begin = int(ends[first - 1]) if first else 0
            sums = torch.zeros(size, self.size, dtype=torch.float64)
            for part in torch.split(order[begin : int(ends[those][-1])], most):
                sums.index_add_(0, person[part] - first, self.make(part))
            yield sums / counts[those, None]
            first += size


def sum_of(terms: Iterable[torch.Tensor]) -> torch.Tensor:
    """The sum of one or more tensors, one after the other."""
    return functools.reduce(torch.Tensor.add, terms)


def group_sums(matrix: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """The sum of each group's rows, in the order of the groups' numbers."""
    _, index = torch.unique(groups, return_inverse=True)
    count = int(index.max()) + 1 if index.numel() else 0
    return matrix.new_zeros(count, matrix.shape[1]).index_add_(0, index, matrix)


def count_units(records: int, groups: torch.Tensor | None) -> int:
    """The number of units among ``records`` records."""
    return records if groups is None else len(torch.unique(groups))


def counted_records(kept: torch.Tensor, groups: torch.Tensor | None) -> torch.Tensor:
    """Which records are of the units in ``kept``; groups are in the order of their numbers."""
    if groups is None:
        return kept
    _, unit = torch.unique(groups, return_inverse=True)
    return kept[unit]


def computed(
    kept: torch.Tensor, groups: torch.Tensor | None, room: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The records whose rows are computed, those that were drawn first, and which of them count.

    Others fill the room: reading and computing them takes the time and the memory that drawn ones
    take. Persons have any number of records, so that all of them are computed.

    Args:
        kept: which units are drawn. Sensitive, as is their number.
        groups: whose record each one is; None if nobody has several.
        room: for how many units rows are computed whoever is drawn.
    """
    if groups is not None:
        return torch.arange(len(groups)), counted_records(kept, groups)
    order = torch.argsort(kept.logical_not(), stable=True)
    index = order[: max(room, int(kept.sum()))]
    return index, kept[index]


def or_zero(counted: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The values of the records that count, and zeros for the rest (0 times a NaN is a NaN)."""
    shape = (len(counted),) + (1,) * (values.dim() - 1)
    return torch.where(counted.to(values.device).view(shape), values, 0.0)


def _part(values: torch.Tensor | None, index: torch.Tensor) -> torch.Tensor | None:
    return None if values is None else values[index]


@dataclass(frozen=True, eq=False, repr=False)
class Outer(_ByUnit):
    """Gradients of one linear layer: row i is residual_i x feature_i, never materialised.

    ``residual`` [records, c] is the gradient of the loss with respect to the scores, ``feature``
    [records, f] the layer's input; with a bias, its last column is 1. ``feature_norms`` may be
    given, since features stay the same from round to round; norms in single precision are not used.
    The sum is a vector: nn.Linear's weight, then its bias.
    """

    residual: torch.Tensor
    feature: torch.Tensor
    bias: bool = True
    groups: torch.Tensor | None = None
    feature_norms: torch.Tensor | None = None

    @property
    def units(self) -> int:
        """Records, or groups if there are any."""
        return count_units(len(self.residual), self.groups)

    def select(self, kept: torch.Tensor, room: int = 0) -> Outer:
        """The rows of the units in ``kept``; zeros for the others."""
        del room
        return replace(self, residual=or_zero(counted_records(kept, self.groups), self.residual))

    @property
    def _length(self) -> int:
        return math.prod(self._widths)

    def clipped_sum(self, clip: float) -> BoundedSum:
        """Scale each residual by its row's factor; one matrix product then makes the sum."""
        if self.groups is not None:
            return super().clipped_sum(clip)
        total = product_sum(*self._clipped(checked_clip(clip)))
        return bounded(linear_vector(total, self.bias), clip)

    def _clipped(self, clip: float) -> tuple[torch.Tensor, torch.Tensor]:
        """The two factors of each row; the first is scaled so that their product is clipped."""
        # squares of float32 fit a double; a feature whose square underflows is below any clip
        if self.residual.dtype == torch.float32:
            residual = self.residual.double()
            norms = row_norms(residual).mul_(self._feature_norms())
            if all_finite(norms):
                return residual.mul_(clip_factors(norms, clip)[:, None]), self.feature
        residual, first = normalised(self.residual)
        feature, second = normalised(self.feature)
        norms = row_norms(residual) * row_norms(feature)
        factors = scaled_factors(norms, first + second, clip * (1 - SHORTFALL))
        return residual * factors[:, None], feature

    def _feature_norms(self) -> torch.Tensor:
        given = self.feature_norms
        return row_norms(self.feature) if given is None or given.dtype != torch.float64 else given

    def unit_rows(self) -> Iterator[torch.Tensor]:
        """The rows, materialised in blocks: the oracle of ``rounded_sum``, needed for groups."""
        if self.groups is not None:
            return stacked(self._people(), self._length)
        parts = torch.split(torch.arange(len(self.residual)), rows_in_block(self._length))
        return (self._products(part) for part in parts)

    def _products(self, index: torch.Tensor) -> torch.Tensor:
        residual, feature = self.residual[index].double(), self.feature[index].double()
        wide = residual[:, :, None] * feature[:, None, :]
        if not self.bias:
            return wide.flatten(1)
        return torch.cat([wide[:, :, :-1].flatten(1), wide[:, :, -1]], dim=1)

    def _people(self) -> Iterator[Vector]:
        most = rows_in_block(sum(self._widths))
        for members in members_of(self.groups):
            parts = torch.split(members, most) if len(members) > most else (members,)
            person = sum_of(self.residual[i].double().T @ self.feature[i].double() for i in parts)
            yield linear_vector(person, self.bias)

    @property
    def _widths(self) -> tuple[int, int]:
        return self.residual.shape[1], self.feature.shape[1]

    def rounded_sum(self, clip: float, step: float, units: int) -> Vector | None:
        """The clipped sum in steps of a grid, no row made; None if that is not accurate enough.

        In double precision, then rounded: within SLACK clip / 2 of a sum of vectors of norm at most
        ``clip`` (docs/exact-noise.md). Whether the sum is accurate enough is decided from
        public numbers alone: ``units`` is a public number of rows, these or more.
        """
        bound = checked_clip(clip)
        if self.groups is not None or not covered(units, self._widths, bound, step):
            return None
        residual, feature = self._shortened(bound)
        total = linear_vector(residual.T @ feature, self.bias)
        return total.mul_(1 / step).round_().long()

    def _shortened(self, clip: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Factors of rows that, taken as real numbers, have norm at most ``clip``.

        The rounding error of a computed norm grows with the number of coordinates, and the factor
        adds a few roundings: it is reduced by ``product_error``, at least twice all of them. Rows
        too large or too small for that bound are left out; ``feature_norms`` may be in single
        precision, and are not used.
        """
        plain = ordinary(self.residual) & ordinary(self.feature)
        residual, feature = self.residual.double(), self.feature.double()
        if not bool(plain.all()):  # zero times NaN is NaN: drop these rows
            residual, feature = residual[plain], feature[plain]
        norms = row_norms(residual) * row_norms(feature)
        return residual * clip_factors(norms, clip, product_error(self._widths))[:, None], feature


def linear_vector(matrix: torch.Tensor, bias: bool) -> Vector:
    """A matrix [outputs, inputs (+ 1)] as a vector: nn.Linear's weight, then its bias."""
    if not bias:
        return matrix.reshape(-1)
    return torch.cat([matrix[:, :-1].reshape(-1), matrix[:, -1]])


def members_of(groups: torch.Tensor | None) -> Iterator[torch.Tensor]:
    """The record indices of each group."""
    if groups is None or groups.numel() == 0:
        return iter(())
    order = torch.argsort(groups, stable=True)
    _, counts = torch.unique_consecutive(groups[order], return_counts=True)
    return iter(torch.split(order, counts.tolist()))


@dataclass(frozen=True, eq=False, repr=False)
class Chunks(_ByUnit):
    """Per-record gradients of any model, at most ``chunk`` records at a time.

    ``gradients(index)`` gives the rows [len(index), size] of the records at ``index``. Memory is
    ``chunk + 2`` vectors, whatever the number of records or the size of a group.
    """

    gradients: Callable[[torch.Tensor], torch.Tensor]
    records: int
    size: int
    chunk: int = 64
    groups: torch.Tensor | None = None

    @property
    def units(self) -> int:
        """Records, or groups if there are any."""
        return count_units(self.records, self.groups)

    def select(self, kept: torch.Tensor, room: int = 0) -> Chunks:
        """The rows of the units in ``kept``, and as many rows of zeros as fill the room.

        Gradients are computed for the others, too, and put away: see ``computed``.
        """
        index, counted = computed(kept, self.groups, room)
        groups = _part(self.groups, index)
        return replace(
            self,
            gradients=lambda part: or_zero(counted[part], self.gradients(index[part])),
            records=len(index),
            groups=groups,
        )

    @property
    def _length(self) -> int:
        return self.size

    def _blocks(self) -> Iterator[torch.Tensor]:
        return self._records() if self.groups is None else self.unit_rows()

    def _records(self) -> Iterator[torch.Tensor]:
        for index in torch.split(torch.arange(self.records), self.chunk):
            if index.numel():
                yield self.gradients(index)

    def unit_rows(self) -> Iterator[torch.Tensor]:
        """Gradients chunk by chunk, or summed person by person."""
        if self.groups is not None:
            return stacked(map(self.sum_over, members_of(self.groups)), self.size)
        parts = (torch.split(rows, rows_in_block(self.size)) for rows in self._records())
        return (part.double() for part in itertools.chain.from_iterable(parts))

    def sum_over(self, members: torch.Tensor) -> Vector:
        """The sum of some records' gradients, ``chunk`` of them at a time. Sensitive."""
        parts = torch.split(members, self.chunk)
        return sum_of(self.gradients(i).sum(dim=0, dtype=torch.float64) for i in parts)


def made_rows(rows: Rows) -> Rows:
    """The rows as vectors, also if they were never materialised (ghost clipping)."""
    made: Rows = getattr(rows, "alone", rows)
    return made


@dataclass(frozen=True, eq=False, repr=False)
class Scaled(_ByUnit):
    """Rows whose coordinates are multiplied by public numbers before they are clipped.

    Per-record gradients of a linear layer stay factored: the squared norm of a scaled row is
    sum_ab (residual_a feature_b scale_ab)^2, one matrix product for all records.
    """

    rows: Dense | Outer | Chunks
    scale: Vector

    @property
    def units(self) -> int:
        """The number of units of ``rows``."""
        return self.rows.units

    def select(self, kept: torch.Tensor, room: int = 0) -> Scaled:
        """The rows of the units in ``kept``, and rows of zeros."""
        return Scaled(self.rows.select(kept, room), self.scale)

    @property
    def _length(self) -> int:
        return self.scale.numel()

    def clipped_sum(self, clip: float) -> BoundedSum:
        """Scale, clip, add up."""
        rows, bound = self.rows, checked_clip(clip)
        if isinstance(rows, Outer) and rows.groups is None and few(rows.units, sum(rows._widths)):
            return self._outer(rows, bound)
        return super().clipped_sum(clip)

    def unit_rows(self) -> Iterator[torch.Tensor]:
        """Each row times the scale, materialised."""
        scale = self.scale.double()
        return (block * scale for block in self.rows.unit_rows())

    def _outer(self, rows: Outer, clip: float) -> BoundedSum:
        """Factored rows: records' numbers times the server's in double precision, then the clip."""
        residual, feature = moderate(rows.residual), moderate(rows.feature)
        scale = linear_matrix(moderate(self.scale[None])[0], feature.shape[1], rows.bias)
        norms = _scaled_outer_norms(residual, feature, scale)
        total = product_sum(residual.double() * clip_factors(norms, clip)[:, None], feature)
        vector = linear_vector(total.mul_(scale), rows.bias)
        return bounded(vector, clip)


def _scaled_outer_norms(
    residual: torch.Tensor, feature: torch.Tensor, scale: torch.Tensor
) -> torch.Tensor:
    """The norms of scaled rows, some columns at a time: no other vector of the model's size."""
    squares = torch.zeros(len(residual), dtype=torch.float64)
    squared = residual.double().square()
    for part in (slice(at, at + 1024) for at in range(0, feature.shape[1], 1024)):
        x, s = feature[:, part].double().square(), scale[:, part].double().square()
        squares += (squared @ s).mul_(x).sum(dim=1)
    return squares.sqrt_()


def linear_matrix(vector: Vector, inputs: int, bias: bool) -> torch.Tensor:
    """The inverse of ``linear_vector``: [outputs, inputs], the bias in the last column.

    Args:
        vector: the layer's flat parameters: weight, then bias.
        inputs: how many inputs the layer has, the bias included.
        bias: whether there is one.
    """
    if not bias:
        return vector.view(-1, inputs)
    outputs = vector.numel() // inputs
    weight, last = vector[: outputs * (inputs - 1)], vector[outputs * (inputs - 1) :]
    return torch.cat([weight.view(outputs, inputs - 1), last[:, None]], dim=1)
