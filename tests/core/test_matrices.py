# SPDX-License-Identifier: Apache-2.0
"""Matrices that clip and sum themselves, against per-record matrices built one by one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpfed.core.errors import BadRelease
from dpfed.core.matrices import (
    Gram,
    Hessians,
    SecondOrderProblem,
    from_triangle,
    positive_part,
    solve,
    to_triangle,
    triangle,
    triangle_side,
)
from dpfed.core.rows import linear_vector
from dpfed.core.types import Unit
from dpfed.data.datasets import Records
from dpfed.data.models import Linear

MODELS = {
    f"{link}{'' if bias else ' without bias'}": Linear(link, 4, outputs, bias)
    for link, outputs in (("softmax", 3), ("logistic", 1), ("poisson", 1))
    for bias in (True, False)
}
LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "softmax": lambda s, y: torch.logsumexp(s, 0) - s[y],
    "logistic": lambda s, y: torch.nn.functional.softplus(s[0]) - y * s[0],
    "poisson": lambda s, y: torch.exp(s[0]) - y * s[0],
}


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def some_records(count: int, seed: int = 0) -> Records:
    """Groups of 1, 2, 3, ... records, whose rows do not lie together."""
    people = torch.repeat_interleave(torch.arange(count), torch.arange(1, count + 1))[:count]
    return Records(draw(count, 4, seed=seed).float(), torch.arange(count) % 2, people.flip(0))


def by_autograd(model: Linear, records: Records, params: torch.Tensor) -> list[torch.Tensor]:
    """Each record's Hessian by the parameters in the order of the flat vector."""

    def loss(flat: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        weight = flat[: model.outputs * 4].view(model.outputs, 4)
        bias = flat[model.outputs * 4 :] if model.bias else 0.0
        return LOSSES[model.link](weight @ x + bias, y)

    pairs = zip(records.x.double(), records.y, strict=True)
    return [
        torch.autograd.functional.hessian(lambda flat, x=x, y=y: loss(flat, x, y), params)
        for x, y in pairs
    ]


def clipped(matrix: torch.Tensor, clip: float) -> torch.Tensor:
    return matrix * min(1.0, clip / max(float(torch.linalg.matrix_norm(matrix)), 1e-300))


def by_unit(matrices: list[torch.Tensor], records: Records, unit: Unit) -> list[torch.Tensor]:
    if unit is Unit.RECORD:
        return matrices
    if unit is Unit.CLIENT:
        return [torch.stack(matrices).mean(0)]
    assert records.groups is not None
    people: dict[int, torch.Tensor] = {}
    for person, matrix in zip(records.groups.tolist(), matrices, strict=True):
        people[person] = people.get(person, torch.zeros_like(matrix)) + matrix
    return list(people.values())


# ----------------------------------------------------------------------------------- triangles


@given(st.integers(1, 9), st.integers(0, 1000))
def test_a_triangle_is_its_matrix_and_as_long(size: int, seed: int) -> None:
    matrix = draw(size, size, seed=seed)
    matrix = matrix + matrix.T
    vector = to_triangle(matrix)
    assert len(vector) == triangle(size)
    assert triangle_side(len(vector)) == size
    assert torch.allclose(from_triangle(vector), matrix)
    assert float(vector.norm()) == pytest.approx(float(torch.linalg.matrix_norm(matrix)))


def test_numbers_that_are_no_triangle_are_refused() -> None:
    with pytest.raises(BadRelease, match=r"must have 1, 3, 6, 10, \.\.\. numbers, got 5"):
        from_triangle(torch.zeros(5))


def test_positive_floors_the_eigenvalues() -> None:
    vectors = torch.linalg.qr(draw(4, 4))[0]
    found = positive_part((vectors * torch.tensor([-3.0, -1e-9, 0.5, 2.0])) @ vectors.T)
    expected = (vectors * torch.tensor([0.0, 0.0, 0.5, 2.0])) @ vectors.T
    assert torch.allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("bias", [True, False])
def test_solve_takes_a_block_for_each_output(bias: bool) -> None:
    half, right = draw(4, 4), draw(3, 4, seed=1)
    block = half @ half.T
    expected = right @ torch.linalg.inv(block + 0.3 * torch.eye(4, dtype=torch.float64))
    vector = linear_vector(right, bias)
    assert torch.allclose(solve(block, vector, 0.3, bias), linear_vector(expected, bias))
    order = linear_vector(torch.arange(12).view(3, 4), bias)
    whole = torch.kron(torch.eye(3, dtype=torch.float64), block)[order][:, order]
    assert torch.allclose(solve(whole, vector, 0.3), linear_vector(expected, bias))


# ------------------------------------------------------------------- against one matrix at a time


@pytest.mark.parametrize("unit", list(Unit))
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("clip", [0.4, 1e30])
def test_hessians_are_autograds(name: str, unit: Unit, clip: float) -> None:
    model, records = MODELS[name], some_records(9)
    params = draw(model.layout.size, seed=3) * 0.5
    problem = model.problem(records)
    assert isinstance(problem, SecondOrderProblem)
    units = by_unit(by_autograd(model, records, params), records, unit)
    expected = torch.stack([clipped(matrix, clip) for matrix in units]).sum(0)
    rows = problem.hessian_rows(params.float(), unit)
    assert torch.allclose(rows.clipped_matrix(clip).double(), expected, rtol=1e-5, atol=1e-6)
    bounded = rows.clipped_sum(clip)
    assert torch.allclose(from_triangle(bounded.vector.double()), expected, rtol=1e-5, atol=1e-6)
    assert (bounded.bound, bounded.replace_bound) == (clip, math.sqrt(2) * clip)
    assert rows.units == len(units)  # type: ignore[attr-defined]


@pytest.mark.parametrize("unit", list(Unit))
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("clip", [0.7, 1e30])
def test_gram_is_the_sum_of_outer_products(bias: bool, unit: Unit, clip: float) -> None:
    records = some_records(9)
    x = records.x.double()
    x = torch.cat([x, torch.ones(9, 1, dtype=torch.float64)], dim=1) if bias else x
    units = by_unit([torch.outer(row, row) for row in x], records, unit)
    expected = torch.stack([clipped(matrix, clip) for matrix in units]).sum(0)
    rows = Linear("softmax", 4, 3, bias).problem(records).gram_rows(unit)
    assert torch.allclose(rows.clipped_matrix(clip).double(), expected, rtol=1e-5, atol=1e-6)
    assert rows.units == len(units)  # type: ignore[attr-defined]


def both_kinds(x: torch.Tensor, groups: torch.Tensor | None = None, mean: bool = False) -> Any:
    half = draw(len(x), 2, 2, seed=5).to(x.dtype)
    curvature = half @ half.transpose(1, 2)
    return Gram(x, groups, mean), Hessians(curvature, x, False, groups, mean)


@pytest.mark.parametrize("kind", [0, 1], ids=["gram", "hessians"])
def test_a_selection_is_the_sum_over_those_selected(kind: int) -> None:
    x, groups = draw(6, 3), torch.tensor([4, 4, 0, 2, 0, 4])
    kept = torch.tensor([True, False, True, True, False, False])
    part = both_kinds(x)[kind].select(kept).clipped_matrix(0.5)
    alone = [both_kinds(x)[kind].select(torch.arange(6) == i) for i in (0, 2, 3)]
    assert torch.allclose(part, sum(one.clipped_matrix(0.5) for one in alone))
    people = both_kinds(x, groups)[kind]
    drawn = people.select(torch.tensor([True, False, True]))  # persons 0 and 4
    assert people.units == drawn.units == 3  # how many were drawn does not show
    one = [people.select(torch.arange(3) == i).clipped_matrix(0.5) for i in (0, 2)]
    assert torch.allclose(drawn.clipped_matrix(0.5), one[0] + one[1])


# -------------------------------------------------------------------------------- sensitivities


def adversarial(generator: torch.Generator, size: int, clip: float) -> torch.Tensor:
    """A clipped rank-one or full matrix, often along an axis or at the bound."""
    half = torch.randn(size, size, generator=generator, dtype=torch.float64)
    if torch.rand(1, generator=generator) < 0.7:
        half[:, 1:] = 0
    if torch.rand(1, generator=generator) < 0.5:
        half = half * (torch.rand(size, 1, generator=generator) < 0.4)
    scale = 10.0 ** torch.randint(-3, 4, (1,), generator=generator)
    return clipped(half @ half.T * scale, clip)


def test_exchanging_moves_by_sqrt_2_and_no_search_beats_it() -> None:
    generator = torch.Generator().manual_seed(0)
    moved = []
    for _ in range(2000):
        one, other = (adversarial(generator, 3, 1.0) for _ in range(2))
        moved.append(float(torch.linalg.matrix_norm(one - other)))
        assert float(torch.linalg.matrix_norm(one - other, 2)) <= 1 + 1e-9  # the spectral norm
    assert 1.3 < max(moved) <= math.sqrt(2) * (1 + 1e-9)
    apart = Gram(torch.eye(2)[:1]), Gram(torch.eye(2)[1:])
    gap = apart[0].clipped_sum(1.0).vector - apart[1].clipped_sum(1.0).vector
    assert float(gap.norm()) == pytest.approx(math.sqrt(2), rel=1e-5)


@given(st.integers(0, 10**6), st.floats(-6, 18), st.sampled_from(["record", "group", "mean"]))
def test_a_unit_adds_at_most_the_clip(seed: int, exponent: float, how: str) -> None:
    """In single precision, at all scales of the features and with wild curvatures."""
    clip = 10.0 ** ((seed % 7) - 3)
    x = (draw(3, 4, seed=seed) * 10.0**exponent).float()
    half = (draw(3, 2, 2, seed=seed + 1) * 10.0 ** (seed % 11 - 5)).float()
    groups = torch.zeros(3, dtype=torch.int64) if how == "group" else None
    curvature = half @ half.transpose(1, 2)
    made = (
        Gram(x, groups, mean=how == "mean"),
        Hessians(curvature, x, False, groups, mean=how == "mean"),
    )
    for rows in made:
        units = [rows] if how != "record" else [rows.select(torch.arange(3) == i) for i in range(3)]
        for unit in units:
            norm = float(unit.clipped_sum(clip).vector.double().norm())
            assert norm <= clip


# ------------------------------------------------------------------------- the edge-case table


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_record_that_is_not_finite_counts_for_nothing(bad: float) -> None:
    x = draw(5, 3)
    broken = x.clone()
    broken[2, 1] = bad
    kept = torch.arange(5) != 2
    for whole, part in zip(both_kinds(x), both_kinds(broken), strict=True):
        assert torch.allclose(part.clipped_matrix(0.5), whole.select(kept).clipped_matrix(0.5))
    rows = both_kinds(x)[1]
    curvature = rows.curvature.clone()
    curvature[2, 0, 0] = bad
    expected = rows.select(kept).clipped_matrix(0.5)
    assert torch.allclose(Hessians(curvature, x, False).clipped_matrix(0.5), expected)


def test_a_person_with_a_record_that_is_not_finite_counts_for_nothing() -> None:
    x, groups = draw(5, 3), torch.tensor([0, 1, 0, 1, 2])
    broken = x.clone()
    broken[3] = math.nan
    others = torch.tensor([True, False, True])
    for whole, part in zip(both_kinds(x, groups), both_kinds(broken, groups), strict=True):
        assert torch.allclose(part.clipped_matrix(0.5), whole.select(others).clipped_matrix(0.5))


def test_a_mean_leaves_out_what_is_not_finite() -> None:
    x = draw(4, 3)
    broken = torch.cat([x, torch.full((1, 3), math.nan, dtype=torch.float64)])
    assert torch.allclose(Gram(broken, mean=True).clipped_matrix(9.0), x.T @ x / 4)


def test_a_square_beyond_single_precision_is_clipped_like_any_other() -> None:
    """There 3e38 squared is infinite, and a factor of 1e-39 keeps few digits."""
    x = torch.tensor([[3e38, 1e38]])
    for groups, mean in ((None, False), (torch.tensor([7]), False), (None, True)):
        for rows in both_kinds(x, groups, mean):
            norm = float(torch.linalg.matrix_norm(rows.clipped_matrix(0.5)))
            assert 0.5 * (1 - 1e-5) <= norm <= 0.5


def test_numbers_beyond_products_of_three_count_for_nothing() -> None:
    x = torch.tensor([[1e60, 1.0], [1e-60, 1.0]], dtype=torch.float64)
    gram, _ = both_kinds(x)
    assert torch.allclose(gram.clipped_matrix(9.0), torch.tensor([[0.0, 0.0], [0.0, 1.0]]).double())
    for rows in both_kinds(x[:1], mean=True):
        assert not rows.clipped_matrix(0.5).any()


def test_a_zero_row_adds_zero_and_no_rows_give_a_zero_matrix() -> None:
    for count in (0, 2):
        x, people = torch.zeros(count, 3), torch.arange(count)
        for groups, mean in ((None, False), (people, False), (None, True)):
            for rows, side in zip(both_kinds(x, groups, mean), (3, 6), strict=True):
                assert torch.equal(rows.clipped_matrix(0.5), torch.zeros(side, side))


def test_the_one_client_is_selected_whole_or_not_at_all() -> None:
    for rows in both_kinds(draw(4, 3), mean=True):
        assert rows.units == 1
        all_of_it = rows.select(torch.tensor([True])).clipped_matrix(9.0)
        assert torch.equal(all_of_it, rows.clipped_matrix(9.0))
        assert not rows.select(torch.tensor([False])).clipped_matrix(9.0).any()


@pytest.mark.parametrize("clip", [0.0, -1.0, math.nan, math.inf])
def test_a_clip_that_bounds_nothing_is_refused(clip: float) -> None:
    for rows in both_kinds(draw(2, 3)):
        with pytest.raises(BadRelease, match=r"clip.*above 0, got"):
            rows.clipped_sum(clip)
