# SPDX-License-Identifier: Apache-2.0
"""Rows of many clients: line by line the bits of Dense and Outer, and what is not usable."""

from __future__ import annotations

import pytest
import torch

from dpfed.core.clipping import row_norms
from dpfed.core.errors import BadRelease
from dpfed.core.rows import Dense, Outer
from dpfed.core.stacked import (
    BoundedSums,
    StackedDense,
    StackedOuter,
    _batched_alike,
    _one_by_one,
    products,
    releases,
    rows_of,
)

MADE = torch.Generator().manual_seed(3)


def outer(clients: int, records: int, outputs: int, inputs: int) -> StackedOuter:
    residual = torch.randn(clients, outputs, records, generator=MADE)
    feature = torch.randn(clients, records, inputs, generator=MADE)
    norms = torch.stack([row_norms(each) for each in feature])
    return StackedOuter(residual, feature, norms)


def alone(rows: StackedOuter, clip: float) -> torch.Tensor:
    parts = zip(rows.residual, rows.features, rows.feature_norms, strict=True)
    made = [Outer(r.T, f, rows.bias, feature_norms=n).clipped_sum(clip) for r, f, n in parts]
    return torch.stack([each.vector for each in made])


@pytest.mark.parametrize("records", [1, 2, 3, 7, 8, 33, 192])
@pytest.mark.parametrize("shape", [(1, 4), (2, 9), (10, 65), (17, 8)])
def test_an_outer_stack_has_each_clients_bits(records: int, shape: tuple[int, int]) -> None:
    rows = outer(6, records, *shape)
    found = rows.clipped_sums(2.0)
    assert bool(found.usable.all())
    assert (found.bound, found.replace_bound) == (2.0, 4.0)
    wanted = alone(rows, 2.0)
    assert found.matrix.dtype == wanted.dtype
    assert torch.equal(found.matrix, wanted)


@pytest.mark.parametrize("width", [1, 5, 8, 100, 4097, 20_000])
@pytest.mark.parametrize("clip", [1e-3, 1.0, 1e6])
def test_a_dense_stack_has_each_clients_bits(width: int, clip: float) -> None:
    matrix = torch.randn(5, width, generator=MADE)
    found = StackedDense(matrix).clipped_sums(clip)
    wanted = torch.stack([Dense(row[None]).clipped_sum(clip).vector for row in matrix])
    assert bool(found.usable.all())
    assert found.matrix.dtype == wanted.dtype
    assert torch.equal(found.matrix, wanted)


def usable(sums: BoundedSums) -> list[bool]:
    found: list[bool] = sums.usable.tolist()
    return found


def test_lines_that_are_not_finite_are_not_usable() -> None:
    matrix = torch.ones(4, 3)
    matrix[1, 0], matrix[2, 2] = float("nan"), float("inf")
    assert usable(StackedDense(matrix).clipped_sums(1.0)) == [True, False, False, True]
    rows = outer(3, 2, 2, 4)
    rows.residual[0, 1, 1] = float("nan")
    rows.feature_norms[2, 0] = float("inf")
    assert usable(rows.clipped_sums(1.0)) == [False, True, False]


def test_what_one_client_adds_up_otherwise_is_not_usable() -> None:
    assert not any(usable(StackedDense(torch.ones(2, 3).double()).clipped_sums(1.0)))
    assert not any(usable(StackedDense(torch.ones(2, 2**18 + 1)).clipped_sums(1.0)))
    assert not any(usable(outer(2, 0, 2, 4).clipped_sums(1.0)))
    assert not any(usable(outer(2, 2**15 + 1, 1, 2).clipped_sums(1.0)))


@pytest.mark.parametrize("clip", [0.0, -1.0, float("nan"), float("inf")])
def test_a_wrong_clip_is_refused(clip: float) -> None:
    with pytest.raises(BadRelease, match=r"clip.*above 0"):
        StackedDense(torch.ones(2, 3)).clipped_sums(clip)


def test_a_stack_has_no_common_sum() -> None:
    for rows in (StackedDense(torch.ones(2, 3)), outer(2, 2, 2, 2)):
        with pytest.raises(TypeError, match="have no common sum"):
            rows.clipped_sum(1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_are_those_of_single_matrices(dtype: torch.dtype) -> None:
    for rows, inner, columns in ((1, 5, 10), (3, 8, 7), (10, 5, 65), (10, 192, 65), (2, 1, 2)):
        left = torch.randn(4, rows, inner, generator=MADE, dtype=dtype)
        right = torch.randn(4, inner, columns, generator=MADE, dtype=dtype)
        assert torch.equal(products(left, right), _one_by_one(left, right))


def test_a_batched_product_is_used_where_there_is_nothing_to_add_up() -> None:
    assert _batched_alike(4, 1, 4, torch.float32)


def test_a_wrapped_work_is_another_one() -> None:
    def work(*_: object) -> None: ...
    def rows(*_: object) -> None: ...

    assert releases(work, rows) is work  # type: ignore[arg-type]
    assert rows_of(work) is rows  # type: ignore[arg-type, comparison-overlap]
    assert rows_of(lambda *args: work(*args)) is None  # type: ignore[arg-type, func-returns-value]
