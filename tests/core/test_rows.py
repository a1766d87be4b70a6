# SPDX-License-Identifier: Apache-2.0
"""One test per line of the edge-case table of rows.py, and every fast path against its oracle."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dpfed.core.clipping import row_norms
from dpfed.core.errors import BadRelease
from dpfed.core.grid import SHORTFALL
from dpfed.core.rows import Chunks, Dense, Outer, Scaled, UnitRows
from dpfed.core.types import Unit
from dpfed.data.datasets import Records
from dpfed.data.models import Linear
from dpfed.data.modules import Network
from tests.helpers.records import make_records
from tests.helpers.row_units import Tied, one_by_one

CLIP = 1.5


def oracle(rows: torch.Tensor, clip: float) -> torch.Tensor:
    """One row at a time, in Python's own floats, as the guarantee says it."""
    total = [0.0] * rows.shape[1]
    for row in rows.double().tolist():
        if not all(math.isfinite(value) for value in row):
            continue
        largest = max(map(abs, row), default=0.0)
        if largest == 0:
            continue
        unit = [value / largest for value in row]
        length = math.sqrt(math.fsum(u * u for u in unit))  # norm = length * largest, unformed
        short = length <= clip / largest
        factor = largest if short else clip / length
        total = [t + u * factor for t, u in zip(total, unit, strict=True)]
    return torch.tensor(total, dtype=torch.float64)


def adversarial(dtype: torch.dtype) -> torch.Tensor:
    """Every row of PRIVACY section 4, and honest ones between them."""
    generator = torch.Generator().manual_seed(3)
    honest = torch.randn(12, 6, generator=generator, dtype=torch.float64) * 2
    rows = [
        torch.full((6,), math.nan),
        torch.tensor([math.inf, 1, 2, 3, 4, 5]),
        torch.tensor([-math.inf, 0, 0, 0, 0, 0]),
        torch.tensor([1.0, math.nan, 0, 0, 0, 1e300], dtype=torch.float64),
        torch.full((6,), 1e300, dtype=torch.float64),
        torch.tensor([0, 1e300, 0, -1e300, 1, 0], dtype=torch.float64),
        torch.full((6,), 1.7e308, dtype=torch.float64),
        torch.full((6,), 3e38, dtype=torch.float64),
        torch.full((6,), 1e20, dtype=torch.float64),
        torch.full((6,), 1e-300, dtype=torch.float64),
        torch.full((6,), 1e-30, dtype=torch.float64),
        torch.zeros(6),
    ]
    mixed = [row for pair in zip(rows, honest, strict=True) for row in pair]
    return torch.stack([row.double() for row in mixed]).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dense_is_the_oracle_on_adversarial_rows(dtype: torch.dtype) -> None:
    rows = adversarial(dtype)
    got = Dense(rows).clipped_sum(CLIP).vector
    assert torch.allclose(got.double(), oracle(rows, CLIP), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_chunks_is_the_oracle_on_adversarial_rows(dtype: torch.dtype) -> None:
    rows = adversarial(dtype)
    for chunk in (1, 5, 100):
        chunks = Chunks(lambda index: rows[index], len(rows), 6, chunk)
        got = chunks.clipped_sum(CLIP).vector
        assert torch.allclose(got.double(), oracle(rows, CLIP), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_outer_is_dense_is_the_oracle_on_adversarial_rows(dtype: torch.dtype, bias: bool) -> None:
    """Residuals and features take turns in being hostile."""
    hostile = adversarial(dtype)
    calm = torch.linspace(-1, 1, hostile.shape[0] * 3, dtype=dtype).view(-1, 3)
    for residual, feature in [(calm, hostile), (hostile, calm), (hostile[:, :3], hostile)]:
        feature = torch.cat([feature, torch.ones(len(feature), 1, dtype=dtype)], 1)
        outer = Outer(residual, feature, bias).clipped_sum(CLIP).vector
        expected = oracle_outer(residual, feature, bias)
        assert torch.allclose(outer.double(), expected, rtol=1e-5, atol=1e-5)


def oracle_outer(residual: torch.Tensor, feature: torch.Tensor, bias: bool) -> torch.Tensor:
    """Row by row with integers of any size: no overflow, whatever the product."""
    from fractions import Fraction

    total = torch.zeros(residual.shape[1], feature.shape[1], dtype=torch.float64)
    for r, f in zip(residual.double().tolist(), feature.double().tolist(), strict=True):
        if not all(map(math.isfinite, [*r, *f])):
            continue
        exact = [[Fraction(a) * Fraction(b) for b in f] for a in r]
        square = sum(v * v for row in exact for v in row)
        clipped = square > Fraction(CLIP) ** 2
        norm = _root(square) if clipped else Fraction(1)
        scale = Fraction(CLIP) / norm if clipped else Fraction(1)
        total += torch.tensor([[float(v * scale) for v in row] for row in exact]).double()
    if not bias:
        return total.reshape(-1)
    return torch.cat([total[:, :-1].reshape(-1), total[:, -1]])


def _root(square: object) -> object:
    from fractions import Fraction

    scaled = square * 10**60  # type: ignore[operator]
    return Fraction(math.isqrt(scaled.numerator // scaled.denominator), 10**30)


@given(st.integers(0, 2**31), st.integers(0, 40), st.floats(0.01, 100))
def test_outer_is_dense(seed: int, count: int, clip: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    residual = torch.randn(count, 3, generator=generator)
    feature = torch.randn(count, 4, generator=generator) * 3
    rows = (residual[:, :, None] * feature[:, None, :]).reshape(count, 12)
    outer = Outer(residual, feature, bias=False).clipped_sum(clip).vector
    assert torch.allclose(outer, Dense(rows).clipped_sum(clip).vector, rtol=1e-5, atol=1e-5 * clip)


@given(st.integers(0, 2**31), st.integers(1, 30), st.floats(0.01, 100), st.integers(0, 3))
def test_removing_a_row_moves_the_sum_by_at_most_the_bound(
    seed: int, count: int, clip: float, hostile: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, 4, generator=generator, dtype=torch.float64) * 10
    rows[seed % count] = torch.tensor([math.nan, 1e300, 1e-300, 5.0][hostile])
    whole = Dense(rows).clipped_sum(clip)
    for left_out in range(count):
        rest = Dense(torch.cat([rows[:left_out], rows[left_out + 1 :]])).clipped_sum(clip)
        moved = float(torch.linalg.vector_norm(whole.vector - rest.vector))
        assert moved <= whole.bound * (1 + 1e-12) + 1e-12
    assert (whole.bound, whole.replace_bound) == (clip, 2 * clip)


@given(st.integers(0, 2**31), st.floats(1e-3, 1e3))
def test_a_clipped_row_is_never_longer_than_clip(seed: int, clip: float) -> None:
    """In float32, measured in float64: the norm clamp is float-safe (opendp issue 2953)."""
    generator = torch.Generator().manual_seed(seed)
    size = 1 + seed % 700
    scale = 10.0 ** ((seed % 70) - 30)
    row = torch.randn(1, size, generator=generator) * scale
    clipped = Dense(row).clipped_sum(clip).vector.double()
    assert float(torch.linalg.vector_norm(clipped)) <= clip


def test_rows_that_are_not_finite_change_nothing() -> None:
    rows = torch.randn(10, 4)
    hostile = torch.cat([rows, torch.full((3, 4), math.nan), torch.full((2, 4), math.inf)])
    made, expected = (Dense(each).clipped_sum(1).vector for each in (hostile, rows))
    assert torch.allclose(made, expected, rtol=0, atol=1e-14)


def test_no_rows_give_a_zero_vector() -> None:
    assert torch.equal(Dense(torch.zeros(0, 4)).clipped_sum(1).vector, torch.zeros(4))
    empty = Outer(torch.zeros(0, 3), torch.zeros(0, 5))
    assert torch.equal(empty.clipped_sum(1).vector, torch.zeros(15))
    none = Chunks(lambda index: torch.zeros(len(index), 4), 0, 4)
    assert torch.equal(none.clipped_sum(1).vector, torch.zeros(4))
    grouped = Outer(torch.zeros(0, 3), torch.zeros(0, 5), groups=torch.zeros(0).long())
    assert torch.equal(grouped.clipped_sum(1).vector, torch.zeros(15))
    assert Dense(torch.zeros(0, 4), torch.zeros(0).long()).clipped_sum(1).vector.shape == (4,)


@pytest.mark.parametrize("clip", [0.0, -1.0, math.nan, math.inf])
def test_a_clip_that_bounds_nothing_is_refused(clip: float) -> None:
    for rows in (
        Dense(torch.ones(2, 2)),
        Outer(torch.ones(2, 2), torch.ones(2, 2)),
        Chunks(lambda index: torch.ones(len(index), 2), 2, 2),
    ):
        with pytest.raises(BadRelease, match=r"clip.*above 0, got"):
            rows.clipped_sum(clip)


@pytest.mark.parametrize("clip", [2.0**-301, 2.0**301, 5e-324, 1e308])
def test_a_clip_for_which_rounding_is_not_covered_is_refused(clip: float) -> None:
    for rows in (Dense(torch.ones(2, 2)), Outer(torch.ones(2, 2), torch.ones(2, 2))):
        with pytest.raises(BadRelease, match=r"clip must be between 2\^-300 and 2\^300"):
            rows.clipped_sum(clip)


@pytest.mark.parametrize("width", [2**18 + 1, 70 * 4096, 300_001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_long_row_has_the_bits_of_its_tiles_one_after_the_other(
    width: int, dtype: torch.dtype
) -> None:
    row = 3 * torch.randn(1, width, generator=torch.Generator().manual_seed(0)).to(dtype)
    row[0, ::7] = -0.0
    squares = torch.zeros(1, dtype=torch.float64)
    for tile in torch.split(row.double(), 4096, dim=1):
        squares += (tile * tile).sum(dim=1)
    assert torch.equal(row_norms(row), squares.sqrt())
    for clip in (1.0, 1e4) if dtype == torch.float32 else ():  # others are scaled before
        factor = min(1.0, clip * (1 - SHORTFALL) * float(squares.sqrt().reciprocal()))
        expected = row[0].double() * factor
        assert torch.equal(Dense(row).clipped_sum(clip).vector, expected)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_one_long_row_that_is_not_finite_counts_for_nothing(bad: float) -> None:
    row = torch.ones(1, 300_000)
    row[0, 299_999] = bad
    assert not Dense(row).clipped_sum(1.0).vector.any()


def test_norms_in_single_precision_are_not_used() -> None:
    """A feature of 1e-30 has a norm of 0 there, and a residual of 1e38 makes a row of it."""
    residual, feature = torch.full((1, 2), 1e38), torch.full((1, 3), 1e-30)
    single = torch.linalg.vector_norm(feature, dim=1) * 0
    made = Outer(residual, feature, bias=False, feature_norms=single).clipped_sum(1.0).vector
    assert 0.99 < float(torch.linalg.vector_norm(made.double())) <= 1


def test_all_columns_are_in_a_scaled_norm() -> None:
    """Norms are made 1,024 columns at a time."""
    feature = torch.zeros(1, 2100)
    feature[0, 2000] = 5.0
    rows = Scaled(Outer(torch.ones(1, 2), feature, bias=False), torch.full((4200,), 2.0))
    made = torch.linalg.vector_norm(rows.clipped_sum(1.0).vector.double())
    assert 0.99 < float(made) <= 1


# ------------------------------------------------------------------------------------- by group


def by_group(rows: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    people = [rows[groups == g].sum(dim=0) for g in groups.unique()]
    return oracle(torch.stack(people), CLIP * (1 - SHORTFALL))


@given(st.integers(0, 2**31), st.integers(1, 30), st.integers(1, 6))
def test_groups_are_summed_then_clipped(seed: int, count: int, people: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    residual = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    feature = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    groups = torch.randint(-2, people, (count,), generator=generator)
    rows = (residual[:, :, None] * feature[:, None, :]).reshape(count, 12)
    expected = by_group(rows, groups)
    dense = Dense(rows, groups).clipped_sum(CLIP).vector
    outer = Outer(residual, feature, bias=False, groups=groups).clipped_sum(CLIP).vector
    chunks = Chunks(lambda i: rows[i], count, 12, 4, groups).clipped_sum(CLIP).vector
    for got in (dense, outer, chunks):
        assert torch.allclose(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["dense", "outer", "chunks"])
def test_a_person_with_one_bad_record_counts_for_nothing(kind: str) -> None:
    residual = torch.randn(6, 3)
    feature = torch.randn(6, 4)
    groups = torch.tensor([0, 0, 1, 1, 2, 2])
    residual[2, 0] = math.nan
    rows = (residual[:, :, None] * feature[:, None, :]).reshape(6, -1)
    kinds = {
        "dense": Dense(rows, groups),
        "outer": Outer(residual, feature, bias=False, groups=groups),
        "chunks": Chunks(lambda i: rows[i], 6, 12, 2, groups),
    }
    good = groups != 1
    expected = Dense(rows[good], groups[good]).clipped_sum(CLIP).vector
    assert torch.allclose(kinds[kind].clipped_sum(CLIP).vector, expected, atol=1e-6)


# --------------------------------------------------------------------- one by one, for exact sums


def every_kind(dtype: torch.dtype, groups: torch.Tensor | None) -> dict[str, UnitRows]:
    """The same 12 rows of 15 numbers, held in every way; ``scaled`` undoes what it scales."""
    generator = torch.Generator().manual_seed(0)
    residual = torch.randn(12, 3, generator=generator).to(dtype)
    feature = torch.randn(12, 5, generator=generator).to(dtype)
    wide = residual.double()[:, :, None] * feature.double()[:, None, :]
    rows = torch.cat([wide[:, :, :-1].flatten(1), wide[:, :, -1]], dim=1)
    outer = Outer(residual, feature, groups=groups)
    powers = 2.0 ** torch.arange(-7, 8)
    return {
        "dense": Dense(rows, groups),
        "outer": outer,
        "chunks": Chunks(lambda i: rows[i], 12, 15, 5, groups),
        "scaled": Scaled(Dense(rows / powers, groups), powers),
        "scaled outer": Scaled(outer, torch.ones(15)),
        "scaled chunks": Scaled(Chunks(lambda i: rows[i], 12, 15, 5, groups), torch.ones(15)),
    }


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_made_one_by_one_are_those_that_are_summed(dtype: torch.dtype, grouped: bool) -> None:
    groups = torch.tensor([3, 0, 3, 1, 1, 7, 0, 3, 3, 3, 3, 3]) if grouped else None
    kinds = every_kind(dtype, groups)
    expected = torch.cat(list(kinds["dense"].clipped_rows(CLIP)))
    assert expected.shape == (4 if grouped else 12, 15)
    assert float(torch.linalg.vector_norm(expected, dim=1).max()) <= CLIP
    summed = Dense(torch.cat(list(kinds["dense"].unit_rows()))).clipped_sum(CLIP).vector
    shorter = torch.cat(list(kinds["dense"].clipped_rows(CLIP * (1 - SHORTFALL))))
    assert torch.allclose(shorter.sum(dim=0), summed, rtol=1e-11)
    for name, rows in kinds.items():
        assert isinstance(rows, UnitRows)
        got = torch.cat(list(rows.clipped_rows(CLIP)))
        assert got.dtype == torch.float64
        assert torch.allclose(got, expected, rtol=1e-12, atol=1e-14), name


@pytest.mark.parametrize("grouped", [False, True])
def test_blocks_of_rows_bound_the_memory(monkeypatch: pytest.MonkeyPatch, grouped: bool) -> None:
    groups = torch.arange(12) // 2 if grouped else None
    kinds = every_kind(torch.float32, groups)
    whole = {name: torch.cat(list(rows.clipped_rows(CLIP))) for name, rows in kinds.items()}
    for elements in (1, 31):  # one row, two rows
        monkeypatch.setattr("dpfed.core.clipping._BLOCK_NUMBERS", elements)
        for name, rows in kinds.items():
            blocks = list(rows.clipped_rows(CLIP))
            assert max(len(block) for block in blocks) <= 1 + elements // 31
            assert torch.allclose(torch.cat(blocks), whole[name], rtol=1e-12, atol=1e-14)


def test_a_row_is_the_same_to_the_last_bit_whoever_else_is_there() -> None:
    """In any order, in any memory layout, beside any row: else truncation would tell of others."""
    generator = torch.Generator().manual_seed(5)
    matrix = torch.randn(203, 97, generator=generator, dtype=torch.float64) * 3
    [expected] = Dense(matrix).clipped_rows(CLIP)
    order = torch.randperm(203, generator=generator)
    [shuffled] = Dense(matrix[order]).clipped_rows(CLIP)
    assert torch.equal(shuffled, expected[order])
    [columns] = Dense(matrix.T.contiguous().T).clipped_rows(CLIP)
    assert torch.equal(columns, expected)
    for count in (1, 2, 3, 7, 64):
        [some] = Dense(matrix[-count:]).clipped_rows(CLIP)
        assert torch.equal(some, expected[-count:])
    for hostile in (math.nan, math.inf, 1e300, 5e-324, 0.0):
        beside = matrix.clone()
        beside[::5] = hostile
        [found] = Dense(beside).clipped_rows(CLIP)
        kept = torch.arange(203) % 5 != 0
        assert torch.equal(found[kept], expected[kept])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hostile_rows_made_one_by_one_keep_the_clip(dtype: torch.dtype) -> None:
    rows = adversarial(dtype)
    [block] = Dense(rows).clipped_rows(CLIP)
    assert torch.allclose(block.sum(dim=0), oracle(rows, CLIP), rtol=1e-9, atol=1e-9)
    for residual, feature in ((rows[:, :3], rows), (rows, torch.ones_like(rows))):
        for made in Outer(residual, feature).clipped_rows(CLIP):
            norms = torch.linalg.vector_norm(made, dim=1)
            assert bool((norms <= CLIP).all())


def test_a_person_with_one_bad_record_makes_a_row_of_zeros() -> None:
    groups = torch.tensor([0, 0, 1, 1])
    matrix = torch.ones(4, 3)
    matrix[2, 1] = math.nan
    kinds = (
        Dense(matrix, groups),
        Outer(matrix, torch.ones(4, 1), bias=False, groups=groups),
        Chunks(lambda i: matrix[i], 4, 3, 1, groups),
    )
    for rows in kinds:
        [block] = rows.clipped_rows(100.0)
        assert block.tolist() == [[2.0, 2.0, 2.0], [0.0, 0.0, 0.0]]


def test_no_rows_make_no_blocks_and_a_bad_clip_is_refused() -> None:
    empty = Chunks(lambda index: torch.zeros(len(index), 4), 0, 4)
    for rows in (Dense(torch.zeros(0, 4)), Outer(torch.zeros(0, 3), torch.zeros(0, 5)), empty):
        assert sum(len(block) for block in rows.clipped_rows(1.0)) == 0
        with pytest.raises(BadRelease, match=r"clip.*above 0, got"):
            rows.clipped_rows(math.nan)
    nobody = torch.zeros(0).long()
    assert list(Dense(torch.zeros(0, 4), nobody).clipped_rows(1.0)) == []


# -------------------------------------------------------------- per-record gradients of problems


def small_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 9, 3)
    )


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["func", "opacus"])
def test_network_gradients_are_those_taken_one_by_one(sampler: str) -> None:
    torch.manual_seed(0)
    network = Network(small_cnn(), chunk=4, sampler=sampler)
    records = Records(torch.randn(10, 1, 5, 5), torch.randint(0, 3, (10,)), torch.arange(10) // 3)
    params = network.initial(0) * 3
    for unit in (Unit.RECORD, Unit.GROUP):
        groups = None if unit is Unit.RECORD else records.groups
        expected = Dense(one_by_one(network, params, records), groups).clipped_sum(0.7).vector
        got = network.problem(records).rows(params, unit).clipped_sum(0.7).vector
        assert torch.allclose(got, expected, atol=1e-5)


def test_tied_parameters_are_counted_once_with_both_uses() -> None:
    torch.manual_seed(0)
    network = Network(Tied(), chunk=3)
    records = make_records(8)
    params = network.initial(0)
    expected = Dense(one_by_one(network, params, records)).clipped_sum(0.5).vector
    got = network.problem(records).rows(params, Unit.RECORD).clipped_sum(0.5).vector
    assert network.layout.size == 25 + 5 + 5 + 15 + 3
    assert torch.allclose(got, expected, atol=1e-6)


def test_a_linear_network_is_the_linear_model() -> None:
    """Outer against torch.func on the same head, at every unit."""
    torch.manual_seed(1)
    network = Network(nn.Linear(5, 3))
    model = Linear("softmax", 5, 3)
    records = make_records(30)
    params = network.initial(0)
    for unit in Unit:
        slow = network.problem(records).rows(params, unit).clipped_sum(0.8).vector
        fast = model.problem(records).rows(params, unit).clipped_sum(0.8).vector
        assert torch.allclose(slow, fast, atol=1e-5)
