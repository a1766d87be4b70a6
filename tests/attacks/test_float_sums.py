# SPDX-License-Identifier: Apache-2.0
"""A float sum's own rounding does not add to what one unit can do to it.

Before: sums were made in single precision. Among 4 million rows an exchanged record moved one by
2.30 clips, where 2 were accounted for; a sum that is rounded before its noise is added (trees,
central trust) moved by up to a step in each coordinate more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch

from dpfed.core import clipping
from dpfed.core.clipping import ProductSum, product_sum, row_norms
from dpfed.core.errors import BadRelease
from dpfed.core.grid import SHORTFALL
from dpfed.core.randomness import Noise
from dpfed.core.rows import Chunks, Dense, Outer
from dpfed.core.types import Adjacency, Facts, Mechanism, Rows, Trust
from dpfed.mechanisms.banded import banded
from dpfed.mechanisms.gaussian import gaussian
from dpfed.mechanisms.tree import tree

MANY = 1 << 22
KINDS: dict[str, Callable[[torch.Tensor], Rows]] = {
    "dense": Dense,
    "outer": lambda rows: Outer(torch.ones(len(rows), 1), rows, bias=False),
    "chunks": lambda rows: Chunks(lambda index: rows[index], len(rows), rows.shape[1], 1 << 14),
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_exchanged_record_among_four_million(kind: str) -> None:
    rows = torch.rand(MANY, 2, generator=torch.Generator().manual_seed(0)) + 0.5
    other = rows.clone()
    other[7] *= -1
    one, instead = (KINDS[kind](each).clipped_sum(1.0) for each in (rows, other))
    moved = float(torch.linalg.vector_norm(one.vector.double() - instead.vector.double()))
    assert 1.99 < moved <= one.replace_bound


@pytest.mark.parametrize("span", [2**31, 2**17, 2**14])
def test_a_sum_is_within_its_proven_error(span: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against exact arithmetic: in one piece, in parts by halves, and in pairs of floats."""
    monkeypatch.setattr(clipping, "_MAX_PLAIN_SUM", span)
    monkeypatch.setattr(clipping, "_TILE_NUMBERS", 1 << 12)
    monkeypatch.setattr(clipping, "_scratch", clipping._Scratch())  # of that size, and gone after
    generator = torch.Generator().manual_seed(1)
    left = torch.randn(1000, 2, generator=generator, dtype=torch.float64)
    right = torch.randn(1000, 3, generator=generator)
    exact = [
        [
            sum(Fraction(a) * Fraction(b) for a, b in zip(x, y, strict=True))
            for y in right.T.tolist()
        ]
        for x in left.T.tolist()
    ]
    made = product_sum(left, right)
    sizes = left.abs().T @ right.abs().double()
    allowed = (min(span // 1000, 1000) + 16) * 2.0**-53
    for a in range(2):
        for b in range(3):
            off = abs(Fraction(float(made[a, b])) - exact[a][b])
            assert off <= Fraction(allowed * float(sizes[a, b]))


def test_what_one_float_loses_the_other_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a row of 1, others are half of its last bit each: in one float, they are all lost."""
    monkeypatch.setattr(clipping, "_MAX_PLAIN_SUM", 1000)
    monkeypatch.setattr(clipping, "_TILE_NUMBERS", 1)
    ones = torch.ones(1000, 1, dtype=torch.float64)
    small = torch.full_like(ones, 2.0**-53)
    small[0] = 1
    exact = 1 + 999 * Fraction(1, 2**53)
    assert abs(Fraction(float(product_sum(ones, small))) - exact) <= Fraction(17, 2**53)


@pytest.mark.parametrize("kind", KINDS)
def test_more_rows_than_are_paid_for_are_refused(kind: str) -> None:
    rows = torch.zeros(1, 1).expand(clipping.MAX_ROWS + 1, 1)
    with pytest.raises(BadRelease, match=r"rows of a sum must be at most 2\^25"):
        KINDS[kind](rows).clipped_sum(1.0)


def test_the_shortfall_pays_for_the_proven_errors() -> None:
    """clipping.py's budget, added up: both worlds' sums, the others' norms, the row's own norm."""
    u = Fraction(1, 2**53)
    for rows in (2, 1000, 46_340, 2**22, clipping.MAX_ROWS):
        span = min(ProductSum(rows, (1, 1))._span, rows)
        sums = 2 * (span + 16) * u * rows
        others = 2 * Fraction(clipping._MAX_LIBRARY_NORMS) * u * 3  # of three factors at most
        used = sums + others + Fraction(1, 2**25) + 2 * rows * u
        assert used < Fraction(SHORTFALL) * (1 - Fraction(SHORTFALL))
    with pytest.raises(BadRelease, match=r"rows of a sum must be at most 2\^25, got 33554433;"):
        ProductSum(clipping.MAX_ROWS + 1, (1, 1))


def test_beyond_what_a_library_may_choose_norms_are_those_of_the_row_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No bit of another row moves, wherever it lies and whoever else is there."""
    monkeypatch.setattr(clipping, "_MAX_LIBRARY_NORMS", 0)
    matrix = torch.randn(203, 97, generator=torch.Generator().manual_seed(2))
    expected = row_norms(matrix)
    assert torch.equal(row_norms(matrix[31:77]), expected[31:77])
    assert torch.equal(row_norms(matrix.T.contiguous().T), expected)
    assert torch.allclose(expected, torch.linalg.vector_norm(matrix.double(), dim=1), rtol=1e-14)


ROUNDED: dict[str, Mechanism] = {
    "tree": tree(Facts(adjacency=Adjacency.ZERO_OUT), std=1e6),
    "gaussian": gaussian(Facts(adjacency=Adjacency.ZERO_OUT, trust=Trust.CENTRAL)),
    "banded": banded(Facts(adjacency=Adjacency.ZERO_OUT, trust=Trust.CENTRAL)),
}


def handed_over(mechanism: Mechanism, row: torch.Tensor) -> torch.Tensor:
    """What the noise is added to, in steps, and the noise: the same whatever the row."""
    state = mechanism.init(len(row))
    made, _ = mechanism.release(Dense(row[None].double()), state, Noise(0).stream("r"))
    return made.vector.long()


def rounds_up(step: float) -> int:
    """A size at which all coordinates of a row as long as the clip, 1, are rounded up."""
    return next(
        d for d in range(40_000, 41_000) if 0.5 < (1 - SHORTFALL) / math.sqrt(d) / step % 1 < 0.6
    )


@pytest.mark.parametrize("name", ROUNDED)
def test_a_sum_that_is_rounded_before_its_noise_is_shorter_by_as_much(name: str) -> None:
    """Before: a row had more steps than a clip has."""
    mechanism = ROUNDED[name]
    size = rounds_up(mechanism.step)
    row = torch.full((size,), 1 / math.sqrt(size), dtype=torch.float64)
    moved = handed_over(mechanism, row) - handed_over(mechanism, torch.zeros_like(row))
    squared = sum(int(each) ** 2 for each in moved.tolist())
    limit = (Fraction(mechanism.clip) / Fraction(mechanism.step)) ** 2
    assert Fraction(0.99) * limit < squared <= limit


def test_a_grid_too_coarse_for_the_clip_is_refused() -> None:
    with pytest.raises(BadRelease, match=r"grid.*clip / \(4 sqrt\(size"):
        handed_over(tree(std=1e11), torch.zeros(40_000))
