# SPDX-License-Identifier: Apache-2.0
"""Per-unit matrices that clip and sum themselves: x x^T of features, and Hessians of linear models.

A release of a symmetric matrix is its upper triangle with the entries off the diagonal times
sqrt(2): as long in the Euclidean norm as the matrix is in Frobenius', and half its size.

Guarantee: removing one unit moves the sum by at most ``clip``; replacing one moves it by at most
sqrt(2) clip, not 2 clip, since <A, B> >= 0 for positive semidefinite A and B:

    |A - B|^2 = |A|^2 + |B|^2 - 2 <A, B> <= 2 clip^2.

| edge case                                    | what happens                                 |
|----------------------------------------------|----------------------------------------------|
| a feature or a curvature that is not finite  | the record counts for nothing                |
| ... with groups                              | the whole person counts for nothing          |
| groups                                       | a person's matrices are summed, then clipped |
| a factor below 1e-30, or a sum that overflows | the unit counts for nothing                 |
| a zero row                                   | adds zero                                    |
| no rows at all                               | a zero matrix                                |
| a part of the one client is selected         | all of its records, or none                  |
| ``clip`` is zero, negative, NaN or infinite  | refused                                      |
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch

from dpfed.core.clipping import checked_clip
from dpfed.core.errors import BadRelease, UnsoundPlan
from dpfed.core.rows import count_units, linear_matrix, linear_vector, members_of, records_of
from dpfed.core.types import BoundedSum, Problem, Rows, Unit, Vector


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


_LEAST = 1e-30  # a factor near the smallest float32 loses digits, and a row could grow


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
    """The size of the matrix whose upper triangle has so many numbers."""
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


@dataclass(frozen=True, eq=False)
class Gram:
    """Row i is x_i x_i^T; ``mean`` makes all records one row, their mean."""

    feature: torch.Tensor
    groups: torch.Tensor | None = None
    mean: bool = False

    @property
    def units(self) -> int:
        """Records, groups, or the one client."""
        return 1 if self.mean else count_units(len(self.feature), self.groups)

    def select(self, kept: torch.Tensor) -> Gram:
        """The rows of the units in ``kept``."""
        index = records_of(_spread(kept, len(self.feature), self.mean), self.groups)
        groups = None if self.groups is None else self.groups[index]
        return replace(self, feature=self.feature[index], groups=groups)

    def clipped_sum(self, clip: float) -> BoundedSum:
        """The upper triangle of the sum."""
        return _bounded(self.clipped_matrix(clip), clip)

    def clipped_matrix(self, clip: float) -> torch.Tensor:
        """|x x^T| = |x|^2: each x is shortened to sqrt(clip), then one product makes the sum."""
        checked_clip(clip)
        x = self.feature[torch.isfinite(self.feature).all(dim=1)]
        if self.mean:
            return _shortened(x.T @ x / max(1, len(x)), clip)
        if self.groups is not None:
            return self._people(clip)
        norms = torch.linalg.vector_norm(x.double(), dim=1)
        factors = _short(math.sqrt(clip), norms)
        x = x * factors.to(x.dtype)[:, None]
        return x.T @ x

    def _people(self, clip: float) -> torch.Tensor:
        total = self.feature.new_zeros(self.feature.shape[1], self.feature.shape[1])
        for index in members_of(self.groups):
            x = self.feature[index]
            if bool(torch.isfinite(x).all()):
                total += _shortened(x.T @ x, clip)
        return total


@dataclass(frozen=True, eq=False)
class Hessians:
    """Row i is S_i (x) x_i x_i^T, the Hessian of a linear layer's loss at one record.

    ``curvature`` [records, c, c] is the loss's second derivative by the scores (positive
    semidefinite), ``feature`` [records, f] the layer's input. The norm is |S_i| |x_i|^2; only the
    sum [c f, c f] is ever built, c^2 / 2 blocks of [f, f]. ``mean`` makes all records one row.
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

    def select(self, kept: torch.Tensor) -> Hessians:
        """The rows of the units in ``kept``."""
        kept = _spread(kept, len(self.feature), self.mean)
        return self._at(records_of(kept, self.groups))

    def clipped_sum(self, clip: float) -> BoundedSum:
        """The upper triangle of the sum."""
        return _bounded(self.clipped_matrix(clip), clip)

    def clipped_matrix(self, clip: float) -> torch.Tensor:
        """The sum, each unit's matrix scaled to ``clip``, in the order of the flat vector."""
        checked_clip(clip)
        rows = self._finite()
        if self.mean:
            return rows._ordered(_shortened(rows._sum() / max(1, len(rows.feature)), clip))
        if rows.groups is not None:
            people = (_shortened(rows._at(i)._sum(), clip) for i in members_of(rows.groups))
            return rows._ordered(sum(people, rows._nothing()))
        norms = torch.linalg.matrix_norm(rows.curvature.double())
        norms = norms * (rows.feature.double() ** 2).sum(dim=1)
        shrink = _short(clip, norms).sqrt().to(rows.feature.dtype)  # once on each x of x x^T
        return rows._ordered(replace(rows, feature=rows.feature * shrink[:, None])._sum())

    def _at(self, index: torch.Tensor) -> Hessians:
        groups = None if self.groups is None else self.groups[index]
        return Hessians(
            curvature=self.curvature[index], feature=self.feature[index], bias=self.bias,
            groups=groups, mean=self.mean,
        )  # fmt: skip

    def _finite(self) -> Hessians:
        whole = torch.isfinite(self.feature).all(dim=1)
        whole &= torch.isfinite(self.curvature).flatten(1).all(dim=1)
        if bool(whole.all()):
            return self
        if self.groups is not None:  # one bad record: the whole person counts for nothing
            whole = ~torch.isin(self.groups, self.groups[~whole])
        return self._at(torch.nonzero(whole).squeeze(1))

    def _nothing(self) -> torch.Tensor:
        size = self.curvature.shape[1] * self.feature.shape[1]
        return self.feature.new_zeros(size, size)

    def _sum(self) -> torch.Tensor:
        """Sum over records of S (x) x x^T, outputs first: [c, f] by [c, f]."""
        c, f = self.curvature.shape[1], self.feature.shape[1]
        total = self.feature.new_zeros(c, f, c, f)
        for a, b in _pairs(c):
            block = (self.feature * self.curvature[:, a, b, None]).T @ self.feature
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


def _pairs(count: int) -> Iterator[tuple[int, int]]:
    return ((a, b) for a in range(count) for b in range(a, count))


def _bounded(matrix: torch.Tensor, clip: float) -> BoundedSum:
    return BoundedSum(to_triangle(matrix), bound=clip, replace_bound=math.sqrt(2) * clip)


def _spread(kept: torch.Tensor, records: int, mean: bool) -> torch.Tensor:
    """Where all records are one unit, they are kept together."""
    return kept.expand(records) if mean else kept


def _short(limit: float, norms: torch.Tensor) -> torch.Tensor:
    """min(1, limit / norm), a few ulps of a float32 short where it cuts; a norm of 0 gives 1."""
    factors = (limit * (1 - 1e-6) / norms).clamp(max=1.0)
    return torch.where(factors < _LEAST, 0.0, factors)


def _shortened(matrix: torch.Tensor, clip: float) -> torch.Tensor:
    norm = torch.linalg.matrix_norm(matrix.double())
    if not bool(torch.isfinite(norm)):
        return torch.zeros_like(matrix)
    return matrix * _short(clip, norm).to(matrix.dtype)
