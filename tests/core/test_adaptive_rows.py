# SPDX-License-Identifier: Apache-2.0
"""Rows over a broadcast clip, and counts of those within it; laws/ has hostile ones."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest
import torch

from dpfed.core.adaptive_rows import (
    MAX_CLIP,
    MIN_CLIP,
    ClipIndicator,
    ScaledByClip,
    unit_norms,
    usable,
)
from dpfed.core.errors import BadRelease
from dpfed.core.grid import truncated_sum
from dpfed.core.matrices import Gram
from dpfed.core.rows import Chunks, Dense, Outer, Scaled
from dpfed.core.types import BoundedSum, Unit
from dpfed.data.datasets import Records
from tests.laws.sensitivity import network

UNUSABLE = (
    math.nan,
    math.inf,
    -math.inf,
    0.0,
    -0.0,
    -1.0,
    5e-324,
    1e-310,
    1e-30,
    MIN_CLIP * 0.99,
    MAX_CLIP * 1.01,
    1e30,
    1e300,
)
GROUPS = torch.tensor([0, 0, 1, 2, 2, 2, 3, 4, 4, 5, 6, 6])
KINDS = (
    "Dense",
    "Dense, persons",
    "Outer",
    "Outer, persons",
    "Chunks",
    "Scaled",
    "Ghost",
    "Ghost, persons",
)


@functools.cache
def kinds() -> dict[str, Any]:
    """Rows of every kind, of 12 records; those of persons have 7 units."""
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(12, 15, generator=generator) * torch.linspace(0.1, 4, 12)[:, None]
    left, right = (torch.randn(12, n, generator=generator) * 2 for n in (3, 5))
    records = Records(matrix[:, :3].contiguous(), torch.arange(12) % 3, GROUPS)
    ghost = network("ghost").problem(records)
    at = torch.linspace(-1, 1, ghost.dimension)
    rows = (
        Dense(matrix),
        Dense(matrix, GROUPS),
        Outer(left, right),
        Outer(left, right, groups=GROUPS),
        Chunks(lambda i: matrix[i], 12, 15, 5),
        Scaled(Outer(left, right, bias=False), torch.linspace(0.5, 2, 15)),
        ghost.rows(at, Unit.RECORD),
        ghost.rows(at, Unit.GROUP),
    )
    return dict(zip(KINDS, rows, strict=True))


def made(rows: Any) -> np.ndarray:
    """The units' rows before the clip."""
    return torch.cat(list(rows.unit_rows())).numpy()


@pytest.mark.parametrize("by", [0.01, 0.7, 1.0, 3.3, 1e4])
@pytest.mark.parametrize("name", KINDS)
def test_rows_are_divided_then_clipped_and_counted(name: str, by: float) -> None:
    rows = kinds()[name]
    matrix = made(rows) / by
    norms = np.linalg.norm(matrix, axis=1)
    clipped = matrix * np.minimum(1, 1 / norms)[:, None]
    found = ScaledByClip(rows, by).clipped_sum(1.0)
    assert (found.bound, found.replace_bound) == (1.0, 2.0)
    np.testing.assert_allclose(found.vector.numpy(), clipped.sum(axis=0), atol=1e-4)
    alone = torch.cat(list(ScaledByClip(rows, by).clipped_rows(1.0))).numpy()
    np.testing.assert_allclose(alone, clipped, atol=1e-4)
    counted = ClipIndicator(rows, by).clipped_sum(0.5)
    assert (counted.bound, counted.replace_bound) == (0.5, 1.0)
    assert float(counted.vector) == pytest.approx(np.where(norms <= 1, 0.5, -0.5).sum(), abs=1e-4)
    assert (ScaledByClip(rows, by).units, ClipIndicator(rows, by).units) == (len(norms), len(norms))


@pytest.mark.parametrize("by", UNUSABLE)
@pytest.mark.parametrize("name", KINDS)
def test_what_is_no_clip_makes_every_row_nothing(name: str, by: float) -> None:
    rows = kinds()[name]
    assert not usable(by)
    for wrapped in (ScaledByClip(rows, by), ClipIndicator(rows, by)):
        made_sum = wrapped.clipped_sum(0.5)
        assert not made_sum.vector.any()
        assert (made_sum.bound, made_sum.replace_bound) == (0.5, 1.0)
        assert not torch.cat(list(wrapped.clipped_rows(0.5))).any()
    assert (
        ScaledByClip(rows, by).clipped_sum(1.0).vector.shape == rows.clipped_sum(1.0).vector.shape
    )


def test_the_ends_of_what_is_usable_are_usable() -> None:
    row = torch.ones(1, 4) * 3e38
    for by in (MIN_CLIP, MAX_CLIP):
        for clip in (1.0, 2.0**80, 2.0**-80):
            vector = ScaledByClip(Dense(row), by).clipped_sum(clip).vector.double()
            assert 0.999 * clip < float(vector.norm()) <= clip
    assert (
        not ScaledByClip(Dense(row), MAX_CLIP).clipped_sum(2.0**290).vector.any()
    )  # clip by > 2^300


def test_a_row_that_adds_nothing_is_neither_within_nor_outside() -> None:
    rows = Dense(torch.tensor([[0.3, 0.4], [3.0, 4.0], [0.0, 0.0], [math.nan, 1.0], [math.inf, 0]]))
    assert [float(x) for x in next(ClipIndicator(rows, 1.0).clipped_rows(1.0))] == [
        0.5,
        -0.5,
        0,
        0,
        0,
    ]
    assert float(ClipIndicator(rows, 5.0).clipped_sum(1.0).vector) == 1.0


def test_norms_beyond_floats_are_not_within() -> None:
    huge = torch.full((1, 4), 1.7e308, dtype=torch.float64)
    assert float(ClipIndicator(Dense(huge), MAX_CLIP).clipped_sum(0.5).vector) == pytest.approx(
        -0.5, rel=1e-5
    )
    outer = Outer(huge, torch.full((1, 2), 1e300, dtype=torch.float64))
    assert float(ClipIndicator(outer, MAX_CLIP).clipped_sum(0.5).vector) == pytest.approx(
        -0.5, rel=1e-5
    )


@pytest.mark.parametrize("name", ["Dense", "Outer"])
def test_no_count_depends_on_another_record(name: str) -> None:
    """The clip is the norm of equal records, to the last bit: no other record decides on it."""
    generator = torch.Generator().manual_seed(3)
    left, right = (torch.randn(1, n, generator=generator).double() for n in (97, 53))
    others = [torch.randn(k, n, generator=generator).double() for k, n in ((40, 97), (40, 53))]

    def rows(count: int, equal: int) -> Any:
        pairs = zip(others, (left, right), strict=True)
        parts = [torch.cat([o[:count], x.expand(equal, -1)]) for o, x in pairs]
        return Outer(*parts, bias=False) if name == "Outer" else Dense(parts[0])

    by = float(unit_norms(rows(0, 1)))
    for count in range(0, 40, 3):
        for equal in (1, 2, 7, 31):
            for clip, expected in ((by, 0.5), (math.nextafter(by, 0), -0.5)):
                numbers = torch.cat(list(ClipIndicator(rows(count, equal), clip).clipped_rows(1.0)))
                assert numbers[count:].flatten().tolist() == [expected] * equal


def test_norms_that_are_handed_over_decide_nothing() -> None:
    """As a linear model hands them over: single precision, with the features' norms."""
    generator = torch.Generator().manual_seed(4)
    left, right = (torch.randn(300, n, generator=generator) for n in (10, 65))
    left[::7], right[::11], left[::13], right[5] = 0.0, 1e-30, 3e38, math.nan
    left[100:200], right[100:200] = left[99], right[99]  # equal records
    exact, norms = Outer(left, right), right.double().norm(dim=1)
    equal = float(unit_norms(exact)[99])
    for by in (equal, math.nextafter(equal, 0), math.nextafter(equal, 9), 1e-9, 0.5, 8.0, 1e9):
        expected = torch.cat(list(ClipIndicator(exact, by).clipped_rows(1.0)))
        for off in (0.0, 1e-12, -1e-12):  # what a library may be off by
            given = Outer(left, right, feature_norms=norms * (1 + off))
            assert torch.equal(
                torch.cat(list(ClipIndicator(given, by).clipped_rows(1.0))), expected
            )


def test_an_exact_sum_of_divided_rows_keeps_the_clip_in_integers() -> None:
    rows, step = kinds()["Outer"], 2.0**-20
    found = truncated_sum(ScaledByClip(rows, 0.37).clipped_rows(1.0), 15, 1.0, step)
    expected = ScaledByClip(rows, 0.37).clipped_sum(1.0).vector
    assert (found * step - expected).abs().max() < 12 * step + 1e-4


@pytest.mark.parametrize("name", KINDS)
def test_a_part_can_be_drawn(name: str) -> None:
    rows = kinds()[name]
    kept = torch.arange(rows.units) % 2 == 0
    for kind, clip in ((ScaledByClip, 1.0), (ClipIndicator, 0.5)):
        some = kind(rows, 1.3).select(kept)
        alone = torch.cat(list(kind(rows, 1.3).clipped_rows(clip)))[kept].sum(dim=0)
        assert torch.allclose(some.clipped_sum(clip).vector.double(), alone, atol=1e-4)


def test_no_units_are_a_zero_sum() -> None:
    rows = Dense(torch.zeros(0, 3))
    assert ScaledByClip(rows, 2.0).clipped_sum(1.0).vector.tolist() == [0, 0, 0]
    assert ClipIndicator(rows, 2.0).clipped_sum(0.5).vector.tolist() == [0]


def test_rows_that_are_no_rows_are_refused() -> None:
    class Loose:
        def clipped_sum(self, clip: float) -> BoundedSum:
            return BoundedSum(torch.ones(3), 2 * clip, 4 * clip)

    with pytest.raises(BadRelease, match=r"bounded by 1 \(replace_bound 2\), got 2 \(4\)"):
        ScaledByClip(Loose(), 1.0).clipped_sum(1.0)
    with pytest.raises(BadRelease, match="Gram rows"):
        ClipIndicator(Gram(torch.ones(2, 3)), 1.0).clipped_sum(0.5)
