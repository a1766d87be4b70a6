# SPDX-License-Identifier: Apache-2.0
"""Rows of many small clients, clipped in one pass: with the bits of each client's own rows.

An engine that has many clients in one process stacks those of one model and one number of records
(training/batched.py). Here is what a problem, an algorithm and a mechanism offer for that, and the
arithmetic of a stack.

Guarantee: line i of ``clipped_sums`` is the ``clipped_sum`` of client i's own rows, to the last
bit. Products of matrices are batched where the library then rounds as it does for each alone, which
is tried once for a shape; else they are made client by client. All other operations are on single
numbers, or sums along an axis that lies in memory as it does for one client.

| edge case                                   | what happens                            |
|---------------------------------------------|-----------------------------------------|
| a client with a number that is not finite   | not ``usable``: it is made alone        |
| a clip or sizes at which one client's rows  | no client is ``usable``                 |
| are added up in several pieces              |                                         |
| an algorithm whose work was wrapped or      | ``rows_of`` knows nothing of it: one by |
| replaced                                    | one                                     |
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable
from weakref import WeakKeyDictionary

import torch

from dpfed.core.clipping import checked_clip, clip_factors
from dpfed.core.types import BoundedSum, Broadcast, Problem, Rows, Stream, Unit, Work

if TYPE_CHECKING:
    from dpfed.core.grid import Releases

RowsOf: TypeAlias = Callable[[Broadcast, Problem, Unit], Rows]
"""The rows that an algorithm releases, if that is all it does."""

Features: TypeAlias = torch.Tensor | Sequence[torch.Tensor]
"""Each client's matrix: side by side in memory, or each where it is."""

_rows: WeakKeyDictionary[Work, RowsOf] = WeakKeyDictionary()  # a wrapper of work is another work


def releases(work: Work, rows: RowsOf) -> Work:
    """Mark ``work`` as one release of ``rows`` on the update channel, without a state."""
    _rows[work] = rows
    return work


def rows_of(work: Work) -> RowsOf | None:
    """The rows that ``work`` releases, if it is known to be one release."""
    return _rows.get(work)


@runtime_checkable
class Stackable(Protocol):
    """A problem that can be computed together with others of the same ``stack_key``."""

    @property
    def stack_key(self) -> Hashable:
        """What problems must share to be stacked: model, types, and how many records."""

    def stack(self, problems: Sequence[Problem]) -> Problem | None:
        """Problems of the same key as one, whose rows are ``StackedRows``; None if slower."""


@dataclass(frozen=True, eq=False, repr=False)
class BoundedSums:
    """The ``BoundedSum`` of each client of a stack, line by line. Sensitive."""

    matrix: torch.Tensor
    bound: float
    replace_bound: float
    usable: torch.Tensor
    """Which lines are right; for the other clients rows are computed one by one."""


@runtime_checkable
class StackedRows(Protocol):
    """Rows of several clients."""

    def clipped_sums(self, clip: float) -> BoundedSums:
        """Each client's clipped sum."""


def defines(kind: type, *names: str) -> bool:
    """Whether a class itself defines all these names; an inherited one may not fit its child."""
    return all(name in vars(kind) for name in names)


@runtime_checkable
class ReleasesMany(Protocol):
    """A mechanism that can make several clients' releases in one pass."""

    def release_many(self, sums: BoundedSums, streams: Callable[[int], Stream]) -> Releases | None:
        """The ``release`` of each line, with the noise of its own stream; None: one by one."""


# up to these sizes a single client's rows are clipped and added up in one piece
_MAX_NUMBERS, _MAX_RECORDS = 1 << 18, 1 << 15


class _Stack:
    """Base of both kinds: they are Rows, but refuse a sum over several clients."""

    def clipped_sum(self, clip: float) -> BoundedSum:
        """Refused: a sum over clients would be clipped as if it were one client's."""
        del clip
        raise TypeError("rows of several clients have no common sum; use clipped_sums")


@dataclass(frozen=True, eq=False, repr=False)
class StackedDense(_Stack):
    """One row for each client, [clients, d], as if each had a ``Dense`` of one row."""

    matrix: torch.Tensor

    def clipped_sums(self, clip: float) -> BoundedSums:
        """Each row, clipped."""
        bound = checked_clip(clip)
        wide = self.matrix.double()
        norms = (wide * wide).sum(dim=1).sqrt_()
        fits = self.matrix.dtype == torch.float32 and self.matrix.shape[1] <= _MAX_NUMBERS
        usable = torch.isfinite(norms) & fits
        wide.mul_(clip_factors(norms, bound)[:, None])
        return BoundedSums(wide, bound, 2 * bound, usable)


@dataclass(frozen=True, eq=False, repr=False)
class StackedOuter(_Stack):
    """Rows of clients with the same number of records, as ``Outer`` of each: one linear layer.

    ``residual`` is [clients, outputs, records], each of ``features`` [records, inputs].
    """

    residual: torch.Tensor
    features: Features
    feature_norms: torch.Tensor
    bias: bool = True

    def clipped_sums(self, clip: float) -> BoundedSums:
        """Scale each residual by its row's factor; one product for each client makes the sum."""
        bound = checked_clip(clip)
        left = self.residual.to(torch.float64, memory_format=torch.contiguous_format)
        norms = (left * left).sum(dim=1).sqrt_().mul_(self.feature_norms)
        usable = torch.isfinite(norms.sum(dim=1)) & self._in_one_piece
        left.mul_(clip_factors(norms, bound)[:, None, :])
        sums = stacked_vectors(products(left, self.features), self.bias)
        return BoundedSums(sums, bound, 2 * bound, usable)

    @property
    def _in_one_piece(self) -> bool:
        first = self.features[0]
        return (
            in_one_piece(first.shape[0], first.shape[1], self.residual.shape[1])
            and self.residual.dtype == first.dtype == torch.float32
            and self.feature_norms.dtype == torch.float64
        )


def in_one_piece(records: int, inputs: int, outputs: int) -> bool:
    """Whether one client's rows are clipped and added up in one piece.

    Args:
        records: how many the client has.
        inputs: the length of a record's features.
        outputs: the length of its residual.
    """
    wide = max(inputs, outputs)
    return 0 < records <= _MAX_RECORDS and records * wide <= _MAX_NUMBERS


def products(left: torch.Tensor, right: Features) -> torch.Tensor:
    """The product of each pair of matrices, with the bits that it has when computed alone.

    Args:
        left: the first factors, whose type the products have.
        right: the others; matrices that lie apart are converted one by one, which fits the cache.
    """
    if isinstance(right, torch.Tensor):
        right = right.to(left.dtype)
        if _batched_alike(*left.shape[1:], right.shape[2], left.dtype):
            return torch.bmm(left, right)
    return _one_by_one(left, right)


@lru_cache(maxsize=1024)
def _batched_alike(rows: int, inner: int, columns: int, dtype: torch.dtype) -> bool:
    """Whether the library's batched product has the bits of single ones, for such matrices.

    How it adds up follows from shapes, not from numbers: three pairs of full mantissas tell.
    """
    wave = torch.arange(3 * inner * max(rows, columns), dtype=torch.float64).sin().to(dtype)
    left = wave[: 3 * rows * inner].view(3, rows, inner)
    right = wave[: 3 * inner * columns].view(3, inner, columns)
    return torch.equal(torch.bmm(left, right), _one_by_one(left, right))


def _one_by_one(left: torch.Tensor, right: Features) -> torch.Tensor:
    made = left.new_empty(*left.shape[:2], right[0].shape[1])
    for one, other, out in zip(left, right, made, strict=True):
        torch.mm(one, other.to(one.dtype), out=out)
    return made


def stacked_vectors(matrices: torch.Tensor, bias: bool) -> torch.Tensor:
    """[clients, outputs, inputs (+ 1)] as nn.Linear's weight, then bias, line by line."""
    if not bias:
        return matrices.flatten(1)
    return torch.cat([matrices[:, :, :-1].flatten(1), matrices[:, :, -1]], dim=1)
