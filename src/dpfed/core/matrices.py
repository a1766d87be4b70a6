# SPDX-License-Identifier: Apache-2.0
"""Per-unit matrices that clip and sum themselves: x x^T of features, and Hessians of linear models.

A release of a symmetric matrix is its upper triangle with the entries off the diagonal times
sqrt(2): as long in the Euclidean norm as the matrix is in Frobenius', and half its size.

Guarantee: removing one unit moves the sum by at most ``clip``; replacing one moves it by at most
sqrt(2) clip, not 2 clip, since <A, B> >= 0 for positive semidefinite A and B:

    |A - B|^2 = |A|^2 + |B|^2 - 2 <A, B> <= 2 clip^2.

Sums are made in double precision, and their rounding is paid for by rows that are short of the
clip (clipping.py). So a sum is within ``OFF`` clip, in Frobenius' norm, of one that is positive
semidefinite, if each unit's matrix is (data/models.py makes second derivatives that are).

| edge case                                    | what happens                                 |
|----------------------------------------------|----------------------------------------------|
| a feature or a curvature that is not finite  | the record is ignored                        |
| ... with groups                              | the whole person is ignored                  |
| groups                                       | a person's matrices are summed, then clipped |
| numbers beyond 2^-160 .. 2^160               | are ignored; if large, with their record     |
| a zero row                                   | adds zero                                    |
| no rows                                      | a zero matrix                                |
| a part of the one client is selected         | all of its records, or none                  |
| ``clip`` is zero, negative, NaN or infinite  | refused                                      |
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch

from dpfed.core.clipping import (
    ProductSum,
    checked_clip,
    clip_alone,
    clip_factors,
    moderate,
    product_sum,
    row_norms,
    rows_in_block,
    stacked,
    weighted,
)
from dpfed.core.errors import BadRelease, UnsoundPlan
from dpfed.core.grid import SHORTFALL
from dpfed.core.rows import (
    count_units,
    counted_records,
    linear_matrix,
    linear_vector,
    members_of,
    or_zero,
)
from dpfed.core.types import BoundedSum, Problem, Rows, Unit, Vector

OFF = SHORTFALL
"""The part of the clip by which rounding may take a sum from a positive semidefinite matrix."""


class MatrixRows(Rows, Protocol):
    """Rows that are positive semidefinite matrices; their vectors are upper triangles."""

    def clipped_matrix(self, clip: float) -> torch.Tensor:
        """The sum of the matrices, each scaled to Frobenius norm at most ``clip``. Sensitive."""


@runtime_checkable
class SecondOrderProblem(Problem, Protocol):
    """A problem of one linear layer, whose second derivatives have a form of their own."""

    def gram_rows(self, unit: Unit) -> MatrixRows:
        """Per-unit x x^T of the layer's inputs (a bias is one more input, equal to 1)."""

    def hessian_rows(self, params: Vector, unit: Unit) -> MatrixRows:
        """Per-unit Hessians of the loss at ``params``, in the order of the flat vector."""


def second_order(problem: Problem, method: str) -> SecondOrderProblem:
    """The problem, if its model is one linear layer."""
    if isinstance(problem, SecondOrderProblem):
        return problem
    kind = type(problem).__name__
    raise UnsoundPlan(
        f"{method} needs a model of one linear layer, got {kind}; use softmax, logistic or poisson"
    )


def to_triangle(matrix: torch.Tensor) -> Vector:
    """The upper triangle of a symmetric matrix, as long as the matrix is in Frobenius' norm."""
    rows, columns = torch.triu_indices(*matrix.shape)
    upper = matrix[rows, columns]
    return torch.where(rows == columns, upper, upper * math.sqrt(2))


def from_triangle(vector: Vector) -> torch.Tensor:
    """The symmetric matrix of an upper triangle."""
    size = triangle_side(vector.numel())
    rows, columns = torch.triu_indices(size, size)
    upper = torch.where(rows == columns, vector, vector / math.sqrt(2))
    matrix = vector.new_zeros(size, size)
    matrix[rows, columns] = upper
    matrix[columns, rows] = upper
    return matrix


def triangle(size: int) -> int:
    """How many numbers the upper triangle of a [size, size] matrix has."""
    return size * (size + 1) // 2


def triangle_side(numbers: int) -> int:
    """The size of the matrix whose upper triangle has ``numbers`` numbers."""
    size = (math.isqrt(8 * numbers + 1) - 1) // 2
    if triangle(size) != numbers:
        raise BadRelease(
            f"an upper triangle must have 1, 3, 6, 10, ... numbers, got {numbers}; make the vector "
            f"with to_triangle"
        )
    return size


def positive_part(matrix: torch.Tensor) -> torch.Tensor:
    """The nearest positive semidefinite matrix: noise may have made eigenvalues negative."""
    values, vectors = torch.linalg.eigh(matrix.double())
    nearest: torch.Tensor = (vectors * values.clamp(min=0.0)) @ vectors.T
    return nearest


def solve(matrix: torch.Tensor, vector: Vector, damping: float, bias: bool = True) -> Vector:
    """(matrix + damping I)^{-1} vector; a matrix of a layer's inputs, for each of its outputs.

    Args:
        matrix: symmetric, [d, d], or [inputs, inputs] of a linear layer.
        vector: the right-hand side, d numbers in the order of the flat parameters.
        damping: added to the diagonal; with it the matrix must not be singular.
        bias: whether the layer has one; used only if the matrix is of the inputs.
    """
    side, b = len(matrix), vector.double()
    damped = matrix.double() + damping * torch.eye(side, dtype=torch.float64)
    if side == b.numel():
        found: torch.Tensor = torch.linalg.solve(damped, b)
        return found
    return linear_vector(torch.linalg.solve(damped, linear_matrix(b, side, bias).T).T, bias)


@dataclass(frozen=True, eq=False, repr=False)
class Gram:
    """Row i is x_i x_i^T; ``mean`` makes all records one row, their mean."""

    feature: torch.Tensor
    groups: torch.Tensor | None = None
    mean: bool = False

    @property
    def units(self) -> int:
        """Records, groups, or the one client."""
        return 1 if self.mean else count_units(len(self.feature), self.groups)

    def select(self, kept: torch.Tensor, room: int = 0) -> Gram:
        """The rows of the units in ``kept``; zeros for the others."""
        del room
        counted = counted_records(_spread(kept, len(self.feature), self.mean), self.groups)
        return replace(self, feature=or_zero(counted, self.feature))

    def clipped_sum(self, clip: float) -> BoundedSum:
        """The upper triangle of the sum."""
        return _bounded(self.clipped_matrix(clip), clip)

    def clipped_matrix(self, clip: float) -> torch.Tensor:
        """|x x^T| = |x|^2: each x is shortened to sqrt(clip), then one product makes the sum."""
        bound = checked_clip(clip)
        if self.mean or self.groups is not None:
            return _sum_of_units(self._units(), self.units, self.feature.shape[1], bound)
        x = moderate(self.feature)
        x = x.double() * clip_factors(row_norms(x), math.sqrt(bound))[:, None]
        return product_sum(x, x)

    def clipped_rows(self, clip: float) -> Iterator[torch.Tensor]:
        """Blocks of upper triangles, one per unit, for sums in exact integers.

        Truncated, they are no longer positive semidefinite: replacing one moves the sum by up to
        2 clip, which is what a mechanism that truncates accounts for.
        """
        bound, size = checked_clip(clip), triangle(self.feature.shape[1])
        if self.mean or self.groups is not None:
            blocks = stacked(map(to_triangle, self._units()), size)
        else:
            blocks = map(_triangles, torch.split(self.feature, rows_in_block(size)))
        return (clip_alone(block, bound) for block in blocks)

    def _units(self) -> Iterator[torch.Tensor]:
        """The matrix of the client, or of each person."""
        whole = _usable(self.feature)
        if self.mean:
            x = moderate(self.feature[whole]).double()
            yield product_sum(x, x) / max(1, len(x))
            return
        for index in members_of(self.groups):
            if bool(whole[index].all()):
                x = moderate(self.feature[index]).double()
                yield product_sum(x, x)


@dataclass(frozen=True, eq=False, repr=False)
class Hessians:
    """Row i is S_i (x) x_i x_i^T, the Hessian of a linear layer's loss at one record.

    ``curvature`` [records, c, c] is the loss's second derivative with respect to the scores
    (positive semidefinite), ``feature`` [records, f] the layer's input. The norm is |S_i| |x_i|^2;
    only the sum [c f, c f] is ever built, c^2 / 2 blocks of [f, f]. ``mean`` makes all records one
    row.
    """

    curvature: torch.Tensor
    feature: torch.Tensor
    bias: bool = True
    groups: torch.Tensor | None = None
    mean: bool = False

    @property
    def units(self) -> int:
        """Records, groups, or the one client."""
        return 1 if self.mean else count_units(len(self.feature), self.groups)

    def select(self, kept: torch.Tensor, room: int = 0) -> Hessians:
        """The rows of the units in ``kept``; zeros for the others."""
        del room
        counted = counted_records(_spread(kept, len(self.feature), self.mean), self.groups)
        curvature, feature = (or_zero(counted, each) for each in (self.curvature, self.feature))
        return replace(self, curvature=curvature, feature=feature)

    def clipped_sum(self, clip: float) -> BoundedSum:
        """The upper triangle of the sum."""
        return _bounded(self.clipped_matrix(clip), clip)

    def clipped_matrix(self, clip: float) -> torch.Tensor:
        """The sum, each unit's matrix scaled to ``clip``, in the order of the flat vector."""
        bound, rows = checked_clip(clip), self._finite()
        if rows.mean or rows.groups is not None:
            side = rows.curvature.shape[1] * rows.feature.shape[1]
            return rows._ordered(_sum_of_units(rows._units(), rows.units, side, bound))
        norms = row_norms(rows.curvature.flatten(1)) * row_norms(rows.feature).square_()
        shrink = clip_factors(norms, bound).sqrt_()  # once on each x of x x^T
        return rows._ordered(replace(rows, feature=rows.feature * shrink[:, None])._sum())

    def _units(self) -> Iterator[torch.Tensor]:
        """The matrix of the client, or of each person."""
        if self.mean:
            yield self._sum() / max(1, len(self.feature))
        else:
            yield from (self._at(index)._sum() for index in members_of(self.groups))

    def _at(self, index: torch.Tensor) -> Hessians:
        groups = None if self.groups is None else self.groups[index]
        return Hessians(
            curvature=self.curvature[index],
            feature=self.feature[index],
            bias=self.bias,
            groups=groups,
            mean=self.mean,
        )

    def _finite(self) -> Hessians:
        """The usable records, in double precision."""
        whole = _usable(self.feature) & _usable(self.curvature.flatten(1))
        if self.groups is not None:  # one bad record: the whole person is ignored
            whole = ~torch.isin(self.groups, self.groups[~whole])
        rows = self if bool(whole.all()) else self._at(torch.nonzero(whole).squeeze(1))
        curvature = moderate(rows.curvature.flatten(1)).double().view_as(rows.curvature)
        return replace(rows, curvature=curvature, feature=moderate(rows.feature).double())

    def _sum(self) -> torch.Tensor:
        """Sum over records of S (x) x x^T, outputs first: [c, f] by [c, f]."""
        c, f = self.curvature.shape[1], self.feature.shape[1]
        total = self.curvature.new_zeros(c, f, c, f)
        for a, b in _pairs(c):
            block = product_sum(self.feature * self.curvature[:, a, b, None], self.feature)
            total[a, :, b, :] = block
            total[b, :, a, :] = block.T
        return total.view(c * f, c * f)

    def _ordered(self, matrix: torch.Tensor) -> torch.Tensor:
        """As nn.Linear's parameters lie in the flat vector: all weights, then all biases."""
        if not self.bias:
            return matrix
        c, f = self.curvature.shape[1], self.feature.shape[1]
        order = linear_vector(torch.arange(c * f).view(c, f), bias=True)
        return matrix[order][:, order]


def _triangles(feature: torch.Tensor) -> torch.Tensor:
    """The upper triangle of x x^T for each row x, made of single products."""
    x = moderate(feature).double()
    rows, columns = torch.triu_indices(x.shape[1], x.shape[1])
    products = x[:, rows] * x[:, columns]
    return products.mul_(torch.where(rows == columns, 1.0, math.sqrt(2)))


def _pairs(count: int) -> Iterator[tuple[int, int]]:
    return ((a, b) for a in range(count) for b in range(a, count))


def _bounded(matrix: torch.Tensor, clip: float) -> BoundedSum:
    return BoundedSum(to_triangle(matrix), bound=clip, replace_bound=math.sqrt(2) * clip)


def _spread(kept: torch.Tensor, records: int, mean: bool) -> torch.Tensor:
    """If all records are one unit: keep them all if the unit is drawn, else none."""
    return kept.expand(records) if mean else kept


def _usable(matrix: torch.Tensor) -> torch.Tensor:
    return torch.isfinite(matrix).all(dim=1)


def _sum_of_units(
    matrices: Iterator[torch.Tensor], units: int, side: int, clip: float
) -> torch.Tensor:
    """Each matrix is a row of its own: clipped last, and added up."""
    total = ProductSum(units, (1, side * side))
    for matrix in matrices:
        total.add(*weighted(matrix.view(1, -1), clip, plain=True))
    return total.matrix.view(side, side)
