# SPDX-License-Identifier: Apache-2.0
"""Rows that are clipped unmade, against rows that are made; positions that cancel; many records."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from dpfed.core import ghost
from dpfed.core.ghost import Ghost, Layer, Lookups, Made, Products, products
from dpfed.core.rows import Chunks, Dense, UnitRows

CLIP = 0.7


def made_of(layers: list[Layer]) -> torch.Tensor:
    """All rows, each layer's after the other's."""
    count = len(layers[0].norms().norms)
    return torch.stack([torch.cat([each.row(i) for each in layers]) for i in range(count)])


def ghost_of(layers: list[Layer], chunk: int = 3, usable: torch.Tensor | None = None) -> Ghost:
    rows = made_of(layers)
    chosen = torch.ones(len(rows), dtype=torch.bool) if usable is None else usable

    def factors(index: torch.Tensor) -> tuple[list[Layer], torch.Tensor]:
        low, high = int(index[0]), int(index[-1]) + 1
        return [layer.part(slice(low, high)) for layer in layers], chosen[index]

    return Ghost(factors, Chunks(lambda i: rows[i], len(rows), rows.shape[1], chunk))


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


KINDS: dict[str, Callable[[], list[Layer]]] = {
    "matrices": lambda: [Products(draw(7, 5, 3), draw(7, 5, 2, seed=1))],
    "gram": lambda: [Products(draw(7, 2, 30), draw(7, 2, 40, seed=1))],
    "one position": lambda: [Products(draw(7, 1, 8), draw(7, 1, 9, seed=1))],
    "lookups": lambda: [Lookups(draw(7, 5).abs().mul(2).long(), draw(7, 5, 4, seed=1), 9)],
    "made": lambda: [Made(draw(7, 5)), Made(draw(7, 2 * ghost._TILE_WIDTH + 3, seed=1))],
}
KINDS["all"] = lambda: [layer for name in KINDS if name != "all" for layer in KINDS[name]()]


@pytest.mark.parametrize("clip", [1e-3, CLIP, 1e3])
@pytest.mark.parametrize("name", KINDS)
def test_the_sum_is_that_of_made_rows(name: str, clip: float) -> None:
    layers = KINDS[name]()
    expected = Dense(made_of(layers)).clipped_sum(clip)
    found = ghost_of(layers).clipped_sum(clip)
    torch.testing.assert_close(found.vector, expected.vector, rtol=1e-9, atol=1e-9 * clip)
    assert (found.bound, found.replace_bound) == (expected.bound, expected.replace_bound)


@pytest.mark.parametrize("name", KINDS)
def test_norms_are_never_below_the_truth_and_hardly_above(name: str) -> None:
    for layer in KINDS[name]():
        found, rows = layer.norms(), made_of([layer])
        truth = torch.tensor([math.hypot(*row) for row in rows.tolist()], dtype=torch.float64)
        assert bool((found.norms >= truth).all())
        torch.testing.assert_close(found.norms, truth, rtol=1e-9, atol=0.0)
        assert bool((found.term_norms >= truth).all())


@pytest.mark.parametrize("width", [3, 40], ids=["matrices", "gram"])
@pytest.mark.parametrize("size", [1e5, 1e12, 1e18])
def test_positions_that_cancel_add_no_more_than_the_clip(width: int, size: float) -> None:
    """Gram norms in single precision gave a row of 116 clips: two tokens, activations of 1e5."""
    left = draw(4, 1, width).expand(4, 2, width).clone()
    right = draw(4, 1, width, seed=1).expand(4, 2, width) * size
    right = right.clone()
    right[:, 1] = -right[:, 0] * (1 + 2.0**-22)  # what is left is rounding of the factors
    layers: list[Layer] = [Products(left, right)]
    for clip in (1e-6, 1.0, 1e6):
        made = ghost_of(layers, 1).clipped_sum(clip)
        assert float(made.vector.norm()) <= made.bound * 4
        for one in range(4):
            alone = ghost_of([layers[0].part(slice(one, one + 1))]).clipped_sum(clip)
            assert float(alone.vector.norm()) <= clip
            expected = Dense(layers[0].row(one)[None]).clipped_sum(clip).vector
            torch.testing.assert_close(alone.vector.double(), expected, rtol=1e-5, atol=1e-6 * clip)


def test_a_row_beyond_the_bound_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The magnitude of what cancels is far above the norm: such rows go the other way."""
    made = []
    original = ghost._Total.add_made
    monkeypatch.setattr(
        ghost._Total,
        "add_made",
        lambda self, row, clip: (made.append(1), original(self, row, clip)),
    )
    left, right = draw(3, 2, 4), draw(3, 2, 4, seed=1)
    left[1, 1], right[1, 1] = left[1, 0], -right[1, 0] * (1 + 1e-4)
    layers: list[Layer] = [Products(left * 1e5, right)]
    found = ghost_of(layers).clipped_sum(CLIP).vector
    assert len(made) == 1
    torch.testing.assert_close(found, Dense(made_of(layers)).clipped_sum(CLIP).vector)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_factor_that_is_not_finite_takes_no_other_record_with_it(value: float) -> None:
    layers = KINDS["all"]()
    layers[0].left[2, 0, 0] = value  # type: ignore[attr-defined]
    rows = made_of(layers)
    rows[2] = 0
    found = ghost_of(layers).clipped_sum(CLIP).vector
    torch.testing.assert_close(found, Dense(rows).clipped_sum(CLIP).vector)


def test_a_record_that_is_not_usable_counts_for_nothing() -> None:
    layers, usable = KINDS["all"](), torch.arange(7) != 4
    rows = made_of(layers) * usable[:, None]
    found = ghost_of(layers, usable=usable).clipped_sum(CLIP).vector
    torch.testing.assert_close(found, Dense(rows).clipped_sum(CLIP).vector)


def test_a_part_can_be_drawn_and_no_other_is_read() -> None:
    layers = KINDS["matrices"]()
    rows, kept = made_of(layers), torch.tensor([1, 0, 0, 1, 1, 0, 1], dtype=torch.bool)
    read: list[int] = []

    def factors(index: torch.Tensor) -> tuple[list[Layer], torch.Tensor]:
        read.extend(index.tolist())
        left, right = layers[0].left[index], layers[0].right[index]  # type: ignore[attr-defined]
        return [Products(left, right)], torch.ones(len(index), dtype=torch.bool)

    whole = Ghost(factors, Chunks(lambda i: rows[i], 7, 6, 2))
    found = whole.select(kept, 5).clipped_sum(CLIP).vector
    torch.testing.assert_close(found, Dense(rows[kept]).clipped_sum(CLIP).vector)
    assert read == [0, 3, 4, 6, 1]  # one that was not drawn fills the room
    none = whole.select(torch.zeros(7, dtype=torch.bool))
    assert none.units == 0
    assert not none.clipped_sum(CLIP).vector.any()


def test_exact_integers_get_rows_one_by_one() -> None:
    layers = KINDS["all"]()
    rows = ghost_of(layers)
    assert isinstance(rows, UnitRows)
    expected = torch.cat(list(Dense(made_of(layers)).clipped_rows(CLIP)))
    assert torch.equal(torch.cat(list(rows.clipped_rows(CLIP))), expected)


@pytest.mark.parametrize("rows", [10**3, 10**6, 2**25])
def test_the_error_of_a_sum_is_covered_however_many_rows_there_are(rows: int) -> None:
    """N m K <= 2^31, with N the products that are added before a pair of floats takes over."""
    for positions in (1, 64, 4096):
        total = ghost._Total(rows, 1)
        K = total.cancelling(positions)
        span = max(1.0, 2.0**31 / (rows * positions * K))
        assert span * positions * rows * K <= 2.0**31 * (1 + 1e-9)
        assert min(32.0, 2.0**31 / (rows * positions)) * (1 - 1e-9) <= K


def test_parts_of_a_sum_are_added_in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """With so little room that each row is a part, the sum is as exact as one in quarters."""
    monkeypatch.setattr(ghost, "_MAX_PRODUCTS", 7 * 5 * 32.0)
    layers = KINDS["matrices"]()
    found = ghost_of(layers, 7).clipped_sum(1e6).vector
    exact = [math.fsum(column) for column in made_of(layers).T.tolist()]
    torch.testing.assert_close(found, torch.tensor(exact, dtype=torch.float64), rtol=0, atol=1e-14)


def test_a_matrix_that_is_no_larger_than_its_factors_is_made_once() -> None:
    """Conversely a large one is not, and neither is one of a single position."""
    left, right = draw(7, 3, 5), draw(7, 4, 5, seed=1)
    made = products(left, right)
    assert isinstance(made, Made)
    torch.testing.assert_close(made.rows, torch.einsum("kpt,kqt->kpq", left, right).flatten(1))
    assert isinstance(products(draw(7, 30, 2), draw(7, 40, 2)), Products)
    assert isinstance(products(draw(7, 3, 1), draw(7, 4, 1)), Products)


def test_norms_leave_rows_in_double_precision_as_they_are() -> None:
    """A person's row is double already: squaring it in place changed the row that was added."""
    layer = Made(draw(3, 5).double())
    before = layer.rows.clone()
    layer.norms()
    assert torch.equal(layer.rows, before)


@pytest.mark.parametrize("width", [3, 5, 11])
def test_a_norm_does_not_depend_on_a_records_place(width: int) -> None:
    """To the last bit, also where it is nothing but rounding: a server may choose that."""
    left, right = draw(40, 6, width) * 1e9, draw(40, 6, 2 * width, seed=1)
    left[:, 3:], right[:, 3:] = left[:, :3], -right[:, :3]
    whole = Products(left, right).norms().norms
    for gone in range(0, 39, 5):
        rest = torch.arange(40) != gone
        assert torch.equal(Products(left[rest], right[rest]).norms().norms, whole[rest])


@pytest.mark.parametrize("widths", [(16, 32), (64, 16), (48, 8), (12, 16)])
def test_a_made_row_does_not_depend_on_a_records_place(widths: tuple[int, int]) -> None:
    """Factors as a linear layer has them, some of which are not copied: the row's own bits."""
    p, q = widths
    left, right = (draw(20, 32, width, seed=width) * 1e9 for width in (p, q))
    left[:, 16:], right[:, 16:] = left[:, :16], -right[:, :16] * (1 + 2.0**-20)
    whole = products(left.mT, right.mT)
    assert isinstance(whole, Made)
    truth = left.double().mT @ right.double()
    size = float(left.norm(dim=(1, 2)).max() * right.norm(dim=(1, 2)).max())
    torch.testing.assert_close(whole.rows.double(), truth.flatten(1), rtol=0, atol=size * 2**-20)
    for gone in range(0, 20, 3):
        rest = torch.arange(20) != gone
        made = products(left[rest].mT, right[rest].mT)
        assert isinstance(made, Made)
        assert torch.equal(made.rows, whole.rows[rest])
    for one in range(20):  # and a part of another tensor, which begins within a line of the memory
        apart = torch.empty(left[one].numel() + 1), torch.empty(right[one].numel() + 1)
        a, b = (
            room[1:].view(1, *each[one].shape).copy_(each[one])
            for room, each in zip(apart, (left, right), strict=True)
        )
        alone = products(a.mT, b.mT)
        assert isinstance(alone, Made)
        assert torch.equal(
            alone.rows[0], products(left[one : one + 1].mT, right[one : one + 1].mT).rows[0]
        )
        assert torch.equal(alone.rows[0], whole.rows[one])


@pytest.mark.parametrize("width", [16, 48])
def test_factors_that_lie_in_lines_are_not_copied(width: int) -> None:
    """Those of a linear layer do, where its width is whole lines; a part of them need not."""
    lies = draw(3, 16, width).mT
    assert ghost._in_lines(lies) is lies
    assert ghost._in_lines(lies[1:]).data_ptr() == lies[1:].data_ptr()
    inside = draw(3 * 16 * width + 1)[1:].view(3, 16, width).mT
    for across in (draw(3, 16, width + 1)[:, :, 1:].mT, inside):
        copied = ghost._in_lines(across)
        assert torch.equal(copied, across)
        assert copied.data_ptr() % 64 == 0
    assert ghost._in_lines(draw(3, 16, width - 4).mT).is_contiguous()
