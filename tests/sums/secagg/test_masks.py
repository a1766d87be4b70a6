# SPDX-License-Identifier: Apache-2.0
"""Masks are the key stream of ChaCha20, added word by word."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from dpfed.sums.secagg import masks

SEEDS = [bytes([i]) * 32 for i in range(6)]
DTYPES = [np.uint32, np.uint64]
BLOCK = masks._BLOCK_BYTES


def sizes(dtype: type) -> list[int]:
    """Around the boundaries of a block of bytes."""
    block = BLOCK // np.dtype(dtype).itemsize
    return [0, 1, 7, 650, block - 1, block, block + 1, 2 * block, 2 * block + 3]


def words(size: int, dtype: type) -> np.ndarray:
    top = np.iinfo(dtype).max
    return np.random.default_rng(size).integers(0, top, size, dtype, endpoint=True)


def stream(seed: bytes, size: int, dtype: type) -> np.ndarray:
    """The whole key stream at once."""
    zeros = bytes(size * np.dtype(dtype).itemsize)
    made = Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor().update(zeros)
    return np.frombuffer(made, dtype)


CASES = [(dtype, size) for dtype in DTYPES for size in sizes(dtype)]


@pytest.mark.parametrize(("dtype", "size"), CASES)
def test_what_is_added_and_taken_off_leaves_each_word_as_it_was(dtype: type, size: int) -> None:
    before = words(size, dtype)
    found = before.copy()
    masks.apply(found, SEEDS[:3], SEEDS[3:])
    assert size < 100 or not np.array_equal(found, before)
    masks.apply(found, SEEDS[3:], SEEDS[:3])
    assert np.array_equal(found, before)


@pytest.mark.parametrize(("dtype", "size"), CASES)
def test_a_mask_is_the_whole_key_stream(dtype: type, size: int) -> None:
    found = words(size, dtype)
    plus, minus = (stream(seed, size, dtype) for seed in SEEDS[:2])
    expected = found + plus - minus
    masks.apply(found, SEEDS[:1], SEEDS[1:2])
    assert np.array_equal(found, expected)


def test_the_stream_is_that_of_rfc_8439() -> None:
    """Appendix A.1, test vector 1: the key, the nonce and the counter are zero."""
    found = np.zeros(8, np.uint64)
    masks.apply(found, [bytes(32)], [])
    assert found.tobytes().hex() == (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_words_wrap_at_both_ends(dtype: type) -> None:
    top = np.iinfo(dtype).max
    found = np.array([0, top, 0, top], dtype)
    expected = [
        (int(w) + int(p)) % (top + 1)
        for w, p in zip(found, stream(SEEDS[1], 4, dtype), strict=True)
    ]
    masks.apply(found, SEEDS[1:2], [])
    assert found.tolist() == expected


def test_two_seeds_make_two_streams() -> None:
    first, second = np.zeros(10_000, np.uint64), np.zeros(10_000, np.uint64)
    masks.apply(first, SEEDS[:1], [])
    masks.apply(second, SEEDS[1:2], [])
    assert not np.any(first == second)


def test_the_stream_does_not_repeat_from_block_to_block() -> None:
    found = np.zeros(3 * BLOCK // 8, np.uint64)
    masks.apply(found, SEEDS[:1], [])
    assert len(np.unique(found)) == len(found)


def test_without_seeds_nothing_changes() -> None:
    before = words(100, np.uint64)
    found = before.copy()
    masks.apply(found, [], [])
    assert np.array_equal(found, before)


def test_a_mask_shared_by_two_cancels_in_their_sum() -> None:
    first, second = words(650, np.uint64), words(651, np.uint64)[:650].copy()
    expected = first + second
    masks.apply(first, SEEDS[:1], [])
    masks.apply(second, [], SEEDS[:1])
    assert np.array_equal(first + second, expected)
