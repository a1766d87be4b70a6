# SPDX-License-Identifier: Apache-2.0
"""Ghost clipping: per-record gradients of a network, clipped and summed, never materialised.

A layer's gradient at one record is a sum over its positions (tokens, places of an image) t of
products left_t x right_t: of the loss's gradient by the layer's output, and of its input. The norm
follows from the factors (Goodfellow 2015; Li, Tramer, Liang and Hashimoto 2022, "ghost norms"), and
once the norms are known, one matrix product per layer makes the sum of clipped rows (Bu, Wang, Zha
and Karypis 2023, "book-keeping"): one pass through the network, and no row in memory.

Where a layer's gradient is no larger than its factors (convolutions, adapters, norms), it is made
in single precision and kept (``Made``): one product instead of two.

Guarantee: that of rows.py. What is made is clipped as the numbers that it is: its norm is double
and rounded upwards, and no rounding before matters. Factors are single precision or less, all that
is done with them here is double. With A = sqrt(sum over layers of (sum_t |left_t| |right_t|)^2),
the magnitude of a record (of a made part its norm), which is never below its norm and far above it
where positions cancel:

    norms     are rounded upwards by what they can be off: T u A where a layer's gradient is made,
              (T^2 + p + q) u A^2 in the square where Gram matrices of its T positions are used
    the sum   of m rows f_i g_i, N products at a time, is off by (N + 16) u sum_i f_i A_i (Higham
              2002, section 3.1). A row with f_i A_i above K clips is not in it. N is chosen so that
              N m K <= 2^31, hence the error is 2^-22 of a clip; such parts are added in pairs of
              floats, which is as good as exact
    the rest  rows beyond K clips of magnitude, are made one by one in double precision and clipped
              as they come out: what rounding has left of them is no longer than the clip

So whatever a server chooses as parameters (activations of 1e5 that cancel in two tokens gave a row
of 116 clips with norms in single precision), a row moves the sum by no more than the clip.

| edge case                                      | what happens                               |
|------------------------------------------------|--------------------------------------------|
| a factor with a NaN or an infinity             | the record is ignored                      |
| factors of any size of single precision        | their fourth powers are within a double    |
| positions that cancel                          | the row is materialised, then clipped      |
| a record that is not usable                    | is ignored                                 |
| exact integers (``clipped_rows``)              | rows one by one, by ``alone``              |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch.nn import functional

from dpfed.core.clipping import (
    ProductSum,
    bounded,
    checked_clip,
    clip_factors,
    folded,
    rows_in_block,
    weighted,
)
from dpfed.core.rows import Chunks, computed, members_of, or_zero, sum_of
from dpfed.core.types import BoundedSum, Vector

CANCELLING = 32.0
"""K: a row whose magnitude, once clipped, exceeds K clips is materialised, then clipped."""

_MAX_PRODUCTS = 2.0**31  # N m K at most
_U = 2.0**-52  # twice the unit roundoff
_TILE_WIDTH = 1 << 12  # columns that are made double at a time


class Norms(NamedTuple):
    """For each record's gradient at one layer: an upper bound of its norm, and its magnitude."""

    norms: torch.Tensor
    term_norms: torch.Tensor


class Layer(Protocol):
    """The factors of some records' gradients at one parameter. Sensitive."""

    @property
    def size(self) -> int:
        """How many numbers the parameter has."""

    @property
    def positions(self) -> int:
        """How many products are added up for one record."""

    def norms(self) -> Norms:
        """The records' norms, in double precision, on the layer's device."""

    def add_to(self, total: torch.Tensor, weights: torch.Tensor) -> None:
        """Add the records' gradients, each times its weight, to ``total`` [size] in place."""

    def row(self, record: int) -> Vector:
        """One record's gradient in double precision."""

    def part(self, kept: slice | torch.Tensor) -> Layer:
        """The factors of the records in ``kept``."""

    def joined(self) -> Layer:
        """All records as one, whose gradient is the sum of theirs: a person's."""


@dataclass(frozen=True, eq=False, repr=False)
class Products:
    """The sum over positions of left_t x right_t: [records, T, p] and [records, T, q]."""

    left: torch.Tensor
    right: torch.Tensor

    @property
    def size(self) -> int:
        """The size p q of the matrix [p, q]."""
        return self.left.shape[2] * self.right.shape[2]

    @property
    def positions(self) -> int:
        """T."""
        return self.left.shape[1]

    def norms(self) -> Norms:
        """The norms of the matrices, if large by the Gram matrices of the positions."""
        if self.positions == 1:
            norms = _line_norms(self.left[:, 0]) * _line_norms(self.right[:, 0])
            return _upwards(norms, norms, 0.0, sum(self._widths))
        found = [self._norms(part) for part in self._parts()]
        return Norms(*(torch.cat(each) for each in zip(*found, strict=True)))

    def _parts(self) -> Iterator[slice]:
        """Records of which a few MiB are made double at a time; the last part may be shorter."""
        widest = max(self.positions * sum(self._widths), min(self.size, self.positions**2))
        step = rows_in_block(widest)
        return (slice(at, at + step) for at in range(0, len(self.left), step))

    @property
    def _widths(self) -> tuple[int, int]:
        return self.left.shape[2], self.right.shape[2]

    def _norms(self, part: slice) -> Norms:
        left, right, T = _aligned(self.left[part]), _aligned(self.right[part]), self.positions
        squared_norms = left.square().sum(dim=2), right.square().sum(dim=2)
        term_norms = (squared_norms[0] * squared_norms[1]).sqrt_().sum(dim=1)
        if self.size <= T * sum(self._widths):
            made = torch.bmm(left.mT, right).flatten(1)
            norms = made.square_().sum(dim=1).sqrt_()
            return _upwards(norms, term_norms, T * _U, self.size)
        grams = torch.bmm(left, left.mT).mul_(torch.bmm(right, right.mT))
        error = (T**2 + sum(self._widths) + 16) * _U
        squares = grams.sum(dim=(1, 2)).clamp_(min=0.0)
        return _upwards((squares + error * term_norms.square()).sqrt_(), term_norms, 0.0, 1)

    def add_to(self, total: torch.Tensor, weights: torch.Tensor) -> None:
        """One product of [p, records T] and [records T, q]."""
        left, right = self.left.double() * weights[:, None, None], self.right.double()
        total.view(self._widths).addmm_(left.flatten(0, 1).T, right.flatten(0, 1))

    def row(self, record: int) -> Vector:
        """One record's gradient: a product of its own, whatever the other records are."""
        made: Vector = (self.left[record].double().T @ self.right[record].double()).reshape(-1)
        return made

    def part(self, kept: slice | torch.Tensor) -> Products:
        """The factors of the records in ``kept``."""
        return Products(_zero_or(self.left, kept), _zero_or(self.right, kept))

    def joined(self) -> Products:
        """The positions of all records, one after the other."""
        return Products(_as_one(self.left), _as_one(self.right))


@dataclass(frozen=True, eq=False, repr=False)
class Lookups:
    """The gradient of a table of vectors: row ``ids[t]`` of it gets ``left_t``, [records, T, q]."""

    ids: torch.Tensor
    left: torch.Tensor
    entries: int

    @property
    def size(self) -> int:
        """The size of the table [entries, q]."""
        return self.entries * self.left.shape[2]

    @property
    def positions(self) -> int:
        """T."""
        return self.ids.shape[1]

    def norms(self) -> Norms:
        """The norms of what a record adds to entries, summed in the order of its positions."""
        left, records = self.left.double(), len(self.ids)
        term_norms = left.square().sum(dim=2).sqrt_().sum(dim=1)
        which = torch.arange(records, device=left.device)[:, None] * self.entries + self.ids
        found, place = torch.unique(which.flatten(), return_inverse=True)
        sums = left.new_zeros(len(found), left.shape[2]).index_add_(0, place, left.flatten(0, 1))
        squares = left.new_zeros(records)
        squares.index_add_(0, found // self.entries, sums.square_().sum(dim=1))
        width = self.positions * left.shape[2]
        return _upwards(squares.sqrt_(), term_norms, self.positions * _U, width)

    def add_to(self, total: torch.Tensor, weights: torch.Tensor) -> None:
        """Add each vector, times its record's weight, to its entry of the table."""
        left = self.left.double() * weights[:, None, None]
        total.view(self.entries, -1).index_add_(0, self.ids.flatten(), left.flatten(0, 1))

    def row(self, record: int) -> Vector:
        """One record's gradient of the whole table."""
        left = self.left[record].double()
        table = left.new_zeros(self.entries, left.shape[1])
        return table.index_add_(0, self.ids[record], left).reshape(-1)

    def part(self, kept: slice | torch.Tensor) -> Lookups:
        """The factors of the records in ``kept``."""
        ids = self.ids[kept] if isinstance(kept, slice) else self.ids
        return replace(self, ids=ids, left=_zero_or(self.left, kept))

    def joined(self) -> Lookups:
        """The positions of all records, one after the other."""
        return replace(self, ids=self.ids.reshape(1, -1), left=_as_one(self.left))


@dataclass(frozen=True, eq=False, repr=False)
class Made:
    """Gradients that are there: [records, size], in the precision that they were made in."""

    rows: torch.Tensor

    @property
    def size(self) -> int:
        """How many numbers a record has."""
        return self.rows.shape[1]

    @property
    def positions(self) -> int:
        """1: nothing is added up for a record any more."""
        return 1

    def norms(self) -> Norms:
        """The norms of the numbers, in double precision."""
        norms = _line_norms(self.rows)
        return _upwards(norms, norms, 0.0, self.size)

    def add_to(self, total: torch.Tensor, weights: torch.Tensor) -> None:
        """One product of the weights and the rows, a few columns at a time."""
        tiles = torch.split(self.rows, _TILE_WIDTH, dim=1)
        for part, tile in zip(torch.split(total, _TILE_WIDTH), tiles, strict=True):
            part.addmv_(tile.double().T, weights)

    def row(self, record: int) -> Vector:
        """One record's gradient."""
        return self.rows[record].double()

    def part(self, kept: slice | torch.Tensor) -> Made:
        """The gradients of the records in ``kept``."""
        return Made(_zero_or(self.rows, kept))

    def joined(self) -> Made:
        """The sum of all records' gradients."""
        return Made(self.rows.double().sum(dim=0, keepdim=True))


def _line_norms(rows: torch.Tensor) -> torch.Tensor:
    """The norms of rows in double precision, some columns at a time; the rows stay as they are."""
    tiles = (tile.double() for tile in torch.split(rows, _TILE_WIDTH, dim=1))
    squares = [torch.linalg.vecdot(tile, tile, dim=1) for tile in tiles]
    return (squares[0] if len(squares) == 1 else torch.stack(squares).sum(dim=0)).sqrt_()


def _upwards(norms: torch.Tensor, term_norms: torch.Tensor, error: float, width: int) -> Norms:
    """Round up by the worst-case floating-point error.

    Args:
        norms: as computed.
        term_norms: as computed, of lengths that are right to a few hundred roundings.
        error: what the rows that norms were taken of are off by, over the magnitude.
        width: how many squares a norm is the root of.
    """
    above = term_norms * (1 + 2.0**-30)
    return Norms(norms * (1 + (width + 16) * _U) + error * above, above)


def products(left: torch.Tensor, right: torch.Tensor) -> Products | Made:
    """The sum over positions of left_t x right_t, made if that takes no more room than the factors.

    Args:
        left: [records, p, T], positions last.
        right: [records, q, T].

    >>> products(torch.ones(1, 2, 4), torch.ones(1, 3, 4)).size
    6
    """
    (p, T), q = left.shape[1:], right.shape[1]
    if not worth_making(p, q, T):
        return Products(left.mT, right.mT)
    left, right = (_in_lines(each.float()) for each in (left, right))
    # the longer side first is faster; what is cut off was added for the lines
    rows = torch.bmm(right, left.mT).mT if q > p else torch.bmm(left, right.mT)
    return Made(rows[:, :p, :q].flatten(1))


def worth_making(p: int, q: int, positions: int) -> bool:
    """Whether a record's matrix takes no more room than the factors it is the sum of.

    Args:
        p: how many rows it has.
        q: how many columns.
        positions: how many products are added up.
    """
    return positions > 1 and p * q <= positions * (p + q)


def _in_lines(tensor: torch.Tensor) -> torch.Tensor:
    """Each matrix and each of its rows at the same place in a line of the memory; see _aligned.

    A linear layer's factors have their width in the lines: whole lines that begin where one of the
    memory does (64 bytes, 16 numbers) are not copied.
    """
    lines, positions = -tensor.shape[1] % 4, -tensor.shape[2] % 16
    if lines or positions:
        return functional.pad(tensor, (0, positions, 0, lines))
    across = tensor.mT
    if tensor.shape[1] % 16 or not across.is_contiguous():
        return tensor.contiguous()
    return tensor if tensor.data_ptr() % 64 == 0 else across.clone().mT


def _aligned(part: torch.Tensor) -> torch.Tensor:
    """In double precision, each record's matrix at the same place in a line of the memory.

    A library may add up in another order where a matrix begins elsewhere, and the norms of others
    must not depend on how many records are before them. Zeros at the end change no norm.
    """
    missing = -part.shape[2] % 8
    wide = part.new_zeros(*part.shape[:2], part.shape[2] + missing, dtype=torch.float64)
    wide[:, :, : part.shape[2]] = part
    return wide


def _as_one(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(1, -1, tensor.shape[2])


def _zero_or(tensor: torch.Tensor, kept: slice | torch.Tensor) -> torch.Tensor:
    """A slice of records; or all, with zeros for those not kept (0 times a NaN is a NaN)."""
    if isinstance(kept, slice):
        return tensor[kept]
    return or_zero(kept, tensor)


# ------------------------------------------------------------------------------------------- rows

Factors = Callable[[torch.Tensor], tuple[Sequence[Layer], torch.Tensor]]
"""Index of records -> the layers in the order of the flat vector, and which records are usable."""


@dataclass(frozen=True, eq=False, repr=False)
class Ghost:
    """Per-record gradients of a network, by the factors of its layers; or those of persons.

    ``alone`` are the same rows, made: for sums in exact integers, and the oracle of this class. It
    knows whose record each one is, if anyone has several: a person's gradient is one of a record
    with the positions of all of theirs. Of one who has more records than a chunk it is made.
    """

    factors: Factors
    alone: Chunks

    @property
    def units(self) -> int:
        """The records, or the persons."""
        return self.alone.units

    def select(self, kept: torch.Tensor, room: int = 0) -> Ghost:
        """The rows of the units in ``kept``, and rows of zeros of those that fill the room."""
        index, counted = computed(kept, self.alone.groups, room)

        def factors(part: torch.Tensor) -> tuple[Sequence[Layer], torch.Tensor]:
            layers, usable = self.factors(index[part])
            chosen = usable & counted[part]  # all blocks are copied, whoever is in them
            return [layer.part(chosen) for layer in layers], torch.ones_like(usable)

        return Ghost(factors, self.alone.select(kept, room))

    def unit_rows(self) -> Iterator[torch.Tensor]:
        """Rows before the clip, materialised. Sensitive."""
        return self.alone.unit_rows()

    def clipped_rows(self, clip: float) -> Iterator[torch.Tensor]:
        """Rows one by one, for exact integers."""
        return self.alone.clipped_rows(clip)

    def clipped_sum(self, clip: float) -> BoundedSum:
        """Norms, then weighted sums; rows that cancel are materialised, and clipped as rows."""
        bound, size = checked_clip(clip), self.alone.size
        total = _Total(self.units, size)
        if self.alone.groups is not None:
            for members in members_of(self.alone.groups):
                self._add_person(members, bound, total)
            return bounded(total.vector, bound)
        for index in torch.split(torch.arange(self.alone.records), self.alone.chunk):
            if index.numel():
                layers, usable = self.factors(index)
                _add(layers, usable, bound, total)
        return bounded(total.vector, bound)

    def _add_person(self, members: torch.Tensor, clip: float, total: _Total) -> None:
        if len(members) > self.alone.chunk:
            return total.add_made(self.alone.sum_over(members), clip)
        layers, usable = self.factors(members)
        joined = [layer.part(usable).joined() for layer in layers]
        return _add(joined, torch.ones(1, dtype=torch.bool), clip, total)


def _add(layers: Sequence[Layer], usable: torch.Tensor, clip: float, total: _Total) -> None:
    """Add the clipped rows of some records: to the sum of factors or to that of made rows."""
    norms, term_norms = _whole([layer.norms() for layer in layers])
    weights = clip_factors(norms, clip)
    usable = usable.to(norms.device) & torch.isfinite(norms) & torch.isfinite(term_norms)
    positions = max(layer.positions for layer in layers)
    most = total.cancelling(positions) * clip
    plain = usable & (weights * term_norms <= most)
    weights = torch.where(plain, weights, 0.0)
    if not bool(usable.all()):
        layers = [layer.part(usable) for layer in layers]
    total.add(layers, weights, positions)
    for at in torch.nonzero(usable & ~plain).squeeze(1).tolist():
        row = torch.cat([layer.row(at) for layer in layers])
        total.add_made(row, clip)


def _whole(found: Sequence[Norms]) -> Norms:
    """The norms and magnitudes of all layers together."""
    norms = torch.stack([each.norms for each in found]).square_().sum(dim=0).sqrt_()
    term_norms = torch.stack([each.term_norms for each in found]).square_().sum(dim=0).sqrt_()
    return Norms(norms * (1 + (len(found) + 16) * _U), term_norms * (1 + 2.0**-30))


class _Total:
    """A sum of weighted rows that begins anew before its rounding matters."""

    def __init__(self, rows: int, size: int) -> None:
        self._rows, self._size, self._held = max(1, rows), size, 0
        self._part: torch.Tensor | None = None
        self._sum: tuple[torch.Tensor, torch.Tensor] | None = None
        self._made: ProductSum | None = None

    def cancelling(self, positions: int) -> float:
        """K: 32, or less if the error bound does not cover 32 with this many records."""
        return min(CANCELLING, _MAX_PRODUCTS / (self._rows * positions))

    def add(self, layers: Sequence[Layer], weights: torch.Tensor, positions: int) -> None:
        """Add rows that are not beyond K clips of magnitude."""
        span = _MAX_PRODUCTS / (self._rows * positions * self.cancelling(positions))
        step = max(1, min(len(weights), math.floor(span)))
        sizes = [layer.size for layer in layers]
        for at in range(0, len(weights), step):
            some = slice(at, at + step)
            total = self._with_room(weights[some], span)
            for layer, part in zip(layers, torch.split(total, sizes), strict=True):
                chosen = layer if step == len(weights) else layer.part(some)
                chosen.add_to(part, weights[some])

    def add_made(self, row: Vector, clip: float) -> None:
        """Add a materialised row, clipped as a row."""
        if self._made is None:
            self._made = ProductSum(self._rows, (1, self._size))
        self._made.add(*weighted(row[None].cpu(), clip))

    def _with_room(self, weights: torch.Tensor, span: float) -> torch.Tensor:
        """The partial sum to which the next rows may be added; a full one is put away first."""
        part = self._part
        if part is not None and self._held + len(weights) > span:
            self._sum, part = folded(self._sum, part), None
        if part is None:
            part = self._part = weights.new_zeros(self._size)
            self._held = 0
        self._held += len(weights)
        return part

    @property
    def vector(self) -> Vector:
        """The sum of all that was added, in the main memory."""
        whole = torch.zeros(self._size, dtype=torch.float64)
        if self._part is not None:
            both = self._part if self._sum is None else sum_of(folded(self._sum, self._part))
            whole = both.cpu()
        return whole if self._made is None else whole + self._made.matrix.view(-1)
