# SPDX-License-Identifier: Apache-2.0
"""Fast normals against exact ones and the formula; one test per line of normals.py's table.

The digests were made by the formula alone, before there was another way: they must not change.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator

import mpmath
import numpy as np
import pytest
import torch

from dpfed.core import grid, normals
from dpfed.core.grid import pack
from dpfed.core.normals import AT_ONCE, BLOCK, ERROR, Draws, Room, fits, normal, uniform
from dpfed.core.randomness import KeyStream, Noise
from dpfed.core.rows import Dense
from dpfed.core.types import Facts
from dpfed.mechanisms.gaussian import gaussian

STEP = 2.0**-20
ENDS = [0, 1, 2, 3, 2**32, 2**44, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 2**44, 2**64 - 2, 2**64 - 1]
KEPT = {1: "96dc007d0208", 650: "aacdc9a4223d", 16385: "497f1dc59321", 50_000: "45ad55978d59"}


def stream(number: int = 0) -> KeyStream:
    return KeyStream(number.to_bytes(32, "big"))


def by_formula(level: float, rng: KeyStream, values: torch.Tensor) -> torch.Tensor:
    return pack(values, STEP, lambda count: rng.normal(count) * level)


def by_draws(level: float, rng: KeyStream, values: torch.Tensor) -> torch.Tensor:
    return pack(values, STEP, lambda count: rng.draws(count, level, STEP))


def made(size: int, seed: int = 0) -> torch.Tensor:
    return 30 * torch.randn(size, generator=torch.Generator().manual_seed(seed))


# ------------------------------------------------------------------------------- how near they are


@pytest.mark.parametrize("level", [1.0, 3.7e-9, 2.0**399])
def test_a_fast_normal_is_right_far_below_the_error_that_is_allowed_for(level: float) -> None:
    room = Room(1001)
    room.words[:] = stream(1).words(room.words.size).reshape(room.words.shape)
    for at, word in enumerate(ENDS):  # each as a radius and as an angle
        room.words[0, 0, at] = room.words[0, 1, 20 + at] = word
    drawn = room.draws(level)
    assert drawn.exactly is not None
    exact = drawn.exactly(np.arange(1001))
    assert np.abs(drawn.values - exact).max() <= level * ERROR / 8  # 2^-48 was measured
    assert drawn.error == level * ERROR
    assert np.isfinite(drawn.values).all()
    assert np.abs(drawn.values).max() > 9 * level  # (1/2) / 2^63 is 9.4 deviations out


def test_an_exact_normal_is_the_formula_to_its_last_bits() -> None:
    first, second = stream(2).words(400).reshape(2, 200).tolist()
    for sine, turn in ((False, math.cos), (True, math.sin)):
        for v, w in zip(first, second, strict=True):
            radius = math.sqrt(-2 * math.log((v + 0.5) * 2.0**-64))
            expected = radius * turn(2 * math.pi * (w + 0.5) * 2.0**-64)
            assert normal(v, w, sine) == pytest.approx(expected, abs=2.0**-46)
    with mpmath.workprec(400):
        known = mpmath.sqrt(-2 * mpmath.log(mpmath.mpf(0.5))) * mpmath.cos(mpmath.pi / 4)
    assert normal(2**63, 2**61, False) == float(known)  # u = 1/2, an eighth of a turn


def test_uniforms_are_rounded_once() -> None:
    words = np.concatenate([np.array(ENDS, np.uint64), stream(3).words(20_000)])
    words = np.concatenate([words, words >> np.uint64(9), words >> np.uint64(40)])
    assert np.array_equal(uniform(words), (words + 0.5) * 2.0**-64)


def test_the_two_of_a_pair_and_all_pairs_are_independent() -> None:
    values = stream(4).draws(AT_ONCE, 1.0, STEP).values
    parts = values.reshape(4, BLOCK // 2)
    assert np.abs(np.corrcoef(parts) - np.eye(4)).max() < 0.05
    assert values.std() == pytest.approx(1, rel=0.02)


# --------------------------------------------------------------------------- the bits of a release


@pytest.mark.parametrize("size", [1, 2, 7, 650, 16383, 16384, 16385, 32768, 32769, 81_930])
def test_a_release_has_the_bits_of_the_formula(size: int) -> None:
    for level in (0.51, 1.0, 1.99):
        fast, slow = stream(5), stream(5)
        assert torch.equal(by_draws(level, fast, made(size)), by_formula(level, slow, made(size)))
        assert np.array_equal(fast.words(3), slow.words(3))  # the stream has gone on as far


@pytest.mark.parametrize("size", KEPT)
def test_a_release_has_the_bits_that_it_had(size: int) -> None:
    row = torch.linspace(-1, 1, size)[None]
    release, _ = gaussian(Facts(clip=1.0), std=1.7).release(
        Dense(row), (), Noise(7).stream("kept", size)
    )
    assert hashlib.sha256(release.vector.numpy().tobytes()).hexdigest()[:12] == KEPT[size]


def test_bits_depend_neither_on_how_many_are_made_at_a_time_nor_on_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size, before = 2 * AT_ONCE + 4321, torch.get_num_threads()
    expected = by_draws(1.0, stream(6), made(size))

    def one_block(count: int) -> Iterator[slice]:
        return (slice(at, min(at + BLOCK, count)) for at in range(0, count, BLOCK))

    monkeypatch.setattr(grid, "_parts", one_block)
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            assert torch.equal(by_draws(1.0, stream(6), made(size)), expected)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("asked", [True, False], ids=["asked", "planted"])
def test_what_another_machine_makes_of_the_last_bits_is_not_seen(
    asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Draws are moved by up to the error that is allowed for, here a large one."""
    monkeypatch.setattr(normals, "ERROR", 2.0**-31)
    size, usual, shift = AT_ONCE, Room.draws, np.random.default_rng(0)
    expected = by_formula(1.0, stream(8), made(size))

    def moved(self: Room, level: float) -> Draws:
        drawn = usual(self, level)
        drawn.values[:] += drawn.error * shift.uniform(-1, 1, drawn.values.size)
        return drawn if asked else Draws(drawn.values)

    monkeypatch.setattr(Room, "draws", moved)
    found = by_draws(1.0, stream(8), made(size))
    assert torch.equal(found, expected) is asked


def test_few_draws_are_made_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, usual = [], Room._exactly
    monkeypatch.setattr(
        Room, "_exactly", lambda self, level, at: asked.extend(at) or usual(self, level, at)
    )
    by_draws(1.0, stream(9), torch.zeros(64 * AT_ONCE))
    assert len(asked) < 20  # 2^21 draws, of which 1 in 2^20 is expected


def test_a_value_far_beyond_the_noise_is_rounded_as_it_was() -> None:
    for size in (2.0**31, 2.0**45, 2.0**61):
        values = torch.tensor([size, -size, 3.0], dtype=torch.float64) * STEP
        fast = by_draws(1.0, stream(10), values)
        assert torch.equal(fast, by_formula(1.0, stream(10), values))
        assert fast.dtype == torch.int64


# ----------------------------------------------------------------------------------- edge cases


def test_a_grid_that_is_too_fine_gets_the_formula() -> None:
    fine = 2.0**-36
    assert not fits(650, 1.0, fine)
    drawn = stream(11).draws(650, 1.0, fine)
    assert drawn.exactly is None
    assert np.array_equal(drawn.values, stream(11).normal(650))


@pytest.mark.parametrize("size", [0, AT_ONCE + 1, BLOCK + 1, 3 * BLOCK])
def test_other_sizes_get_the_formula(size: int) -> None:
    assert not fits(size, 1.0, STEP)
    assert np.array_equal(stream(12).draws(size, 2.0, STEP).values, 2.0 * stream(12).normal(size))


@pytest.mark.parametrize("level", [2.0**-401, 2.0**401])
def test_a_level_whose_square_is_no_float_gets_the_formula(level: float) -> None:
    assert not fits(5, level, level * STEP)
    assert np.isfinite(stream(13).draws(5, level, level * STEP).values).all()
