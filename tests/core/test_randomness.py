# SPDX-License-Identifier: Apache-2.0
"""One test per line of the edge-case table of randomness.py."""

from __future__ import annotations

import multiprocessing
import random

import numpy as np
import pytest
import torch

from dpfed.core.randomness import KeyStream, Noise, derive
from dpfed.core.types import NoiseSource


def test_a_key_gives_one_stream_of_known_words() -> None:
    """RFC 8439's ChaCha20 under key 00..00 and counter 0 starts with 76 b8 e0 ad a0 f1 3d 90."""
    assert int(KeyStream(bytes(32)).words(1)[0]) == 0x903DF1A0ADE0B876


def test_keyed_noise_does_not_depend_on_the_users_generators() -> None:
    first = Noise(3).stream("release", 0, 1).normal(10)
    np.random.seed(0)
    random.seed(0)
    torch.manual_seed(0)
    assert np.array_equal(first, Noise(3).stream("release", 0, 1).normal(10))


def test_noise_of_the_operating_system_does_not_repeat_after_seeding() -> None:
    draws = []
    for _ in range(2):
        np.random.seed(0)
        random.seed(0)
        torch.manual_seed(0)
        draws.append(Noise().stream("release", 0, 0).normal(10))
    assert not np.array_equal(*draws)


def _draw(_: int) -> float:
    return float(Noise().stream("release", 0, 0).normal(1)[0])


@pytest.mark.filterwarnings("ignore:This process")
def test_noise_of_the_operating_system_does_not_repeat_across_forks() -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        draws = pool.map(_draw, range(200), chunksize=1)
    assert len(set(draws)) == 200


def test_fields_that_run_together_give_distinct_keys() -> None:
    keys = {
        derive(1, "release", 1, 12),
        derive(1, "release", 11, 2),
        derive(1, "release", 112),
        derive(11, "release", 12),
        derive(1, "release", "1", 12),
        derive(1, "releas", "e", 1, 12),
        derive(1, "release", "a", "b"),
        derive(1, "release", "astr:b"),
    }
    assert len(keys) == 8


def test_each_field_sets_a_stream_apart() -> None:
    """Of two releases that differ in one thing only, neither tells the other's noise."""
    call = (0, 1, 2, "update", 3)
    others = [(*call[:i], another, *call[i + 1 :]) for i, another in enumerate((9, 9, 9, "x", 9))]
    streams = [
        Noise(5).stream("release", *call),
        Noise(6).stream("release", *call),
        Noise(5).stream("finish", *call),
        *(Noise(5).stream("release", *each) for each in others),
    ]
    assert len({int(stream.words(1)[0]) for stream in streams}) == len(streams) == 8


def test_a_prefix_of_the_draws_is_the_same_within_a_block() -> None:
    """Odd sizes waste one draw and nothing else."""
    assert Noise(0).stream("a").normal(7).shape == (7,)
    assert Noise(0).stream("a").normal(0).shape == (0,)


def test_no_draw_is_infinite_at_the_ends_of_the_uniform() -> None:
    class Ends(KeyStream):
        def words(self, count: int) -> np.ndarray:
            ends = [0, 2**64 - 1] * count
            return np.array(ends[:count], dtype=np.uint64)

    draws = Ends(bytes(32)).normal(8)
    assert np.isfinite(draws).all()
    assert np.abs(draws).max() > 9  # (1/2) / 2^64 is 9.5 deviations out


def test_long_vectors_are_as_normal_as_short_ones() -> None:
    draws = Noise(0).stream("long").normal(1_000_000)
    assert abs(draws.mean()) < 4e-3
    assert draws.std() == pytest.approx(1, rel=3e-3)
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 4e-3
    assert len(np.unique(draws)) > 999_990


def test_the_source_is_named() -> None:
    assert Noise().source is NoiseSource.OPERATING_SYSTEM
    assert Noise(0).source is NoiseSource.KEYED
