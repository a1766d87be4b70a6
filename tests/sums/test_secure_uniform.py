# SPDX-License-Identifier: Apache-2.0
"""A masked vector looks like noise, and no two are hidden by the same noise."""

from __future__ import annotations

import hashlib
import hmac
import struct
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from dpfed.sums.secagg import keys, messages
from dpfed.sums.secure import secure
from tests.sums.table import Table

ROUNDS, CLIENTS, SIZE = 120, 3, 650
CHANCE = 1e-6
"""A test here fails by bad luck so rarely."""

Sent = dict[tuple[int, int], np.ndarray]


@pytest.fixture(scope="module", params=[64, 32])
def sent(request: pytest.FixtureRequest) -> Sent:
    """The masked vectors of zeros, by round and client."""
    table = Table(secure(survivors=0.6, bits=request.param), CLIENTS)
    zeros = {i: np.zeros(SIZE, np.int64) for i in range(CLIENTS)}
    found = {}
    for round in range(ROUNDS):
        silent = {"unmask": [round % CLIENTS]}
        table.run_round(zeros, round=round, silent=silent)
        for client in range(CLIENTS):
            words = messages.unpack_masked(table.sent["input", client])[1]
            found[round, client] = np.frombuffer(words, f"<u{request.param // 8}")
    return found


def pvalue(words: np.ndarray) -> float:
    counts = np.bincount(np.frombuffer(words.tobytes(), np.uint8), minlength=256)
    return stats.chisquare(counts).pvalue


def assert_uniform(vectors: list[np.ndarray]) -> None:
    """Each by itself, all together, and the p-values as such: neither too bad nor too good."""
    found = [pvalue(words) for words in vectors]
    assert min(found) > CHANCE / len(found)
    assert pvalue(np.concatenate(vectors)) > CHANCE
    assert stats.kstest(found, "uniform").pvalue > CHANCE


@pytest.mark.slow
def test_what_each_client_sends_is_uniform(sent: Sent) -> None:
    for client in range(CLIENTS):
        assert_uniform([sent[round, client] for round in range(ROUNDS)])


def test_the_difference_of_two_rounds_is_uniform(sent: Sent) -> None:
    for client in range(CLIENTS):
        pairs = [(sent[r, client], sent[r + 1, client]) for r in range(0, ROUNDS, 2)]
        assert_uniform([first - second for first, second in pairs])


@pytest.mark.slow
def test_what_two_clients_send_is_uniform_together(sent: Sent) -> None:
    """Their common mask cancels, and their own ones still hide the sum."""
    assert_uniform([sent[r, 0] + sent[r, 1] for r in range(ROUNDS)])
    assert_uniform([sent[r, 0] + sent[r, 1] + sent[r, 2] for r in range(ROUNDS)])


def test_no_word_is_hidden_by_the_same_noise_in_two_rounds(sent: Sent) -> None:
    starts = {words[:16].tobytes() for words in sent.values()}
    assert len(starts) == len(sent)


def test_a_vector_that_is_not_masked_would_be_found_out() -> None:
    with pytest.raises(AssertionError):
        assert_uniform([np.zeros(SIZE, np.uint64)])
    low = np.random.default_rng(0).integers(0, 2**60, SIZE * 20).astype(np.uint64)
    with pytest.raises(AssertionError):  # the highest bits are missing
        assert_uniform([low])


# ------------------------------------------------------------------------------------------- seeds


LAYOUT = keys.layout_digest({"update": 650})


def expanded(key: bytes, info: bytes) -> bytes:
    """RFC 5869, section 2.3: the first block."""
    return hmac.digest(key, info + b"\x01", hashlib.sha256)


def test_a_rounds_seed_is_derived_from_the_pairs_key_by_hkdf() -> None:
    key = bytes(range(32))
    for at in ((0, 0), (0, 1), (1, 0), (7, 2)):
        info = b"dpfed round mask" + LAYOUT + struct.pack(">qq", *at)
        assert keys.round_seed(key, at, LAYOUT) == expanded(key, info)


def test_no_two_attempts_of_any_rounds_share_a_seed() -> None:
    pairs = [bytes(32), b"\x01" * 32]
    seeds = {
        keys.round_seed(k, (r, a), LAYOUT) for k in pairs for r in range(50) for a in range(10)
    }
    assert len(seeds) == 1000


def test_a_seed_differs_from_another_rounds_by_half_of_its_bits() -> None:
    seeds = [keys.round_seed(bytes(32), (r, 0), LAYOUT) for r in range(200)]
    changed = [
        (int.from_bytes(a, "big") ^ int.from_bytes(b, "big")).bit_count()
        for a, b in pairwise(seeds)
    ]
    assert abs(np.mean(changed) - 128) < 6 * 8 / np.sqrt(len(changed))


def test_all_commitments_of_all_rounds_differ() -> None:
    """A commitment is a digest of its secret: two that are equal would be one secret twice."""
    table = Table(secure(survivors=0.8), CLIENTS)
    zeros = {i: np.zeros(1, np.int64) for i in range(CLIENTS)}
    shares, pairs = [], []
    for round, attempt in ((0, 0), (0, 1), (1, 0), (2, 0)):
        table.run_round(zeros, round=round, attempt=attempt)
        for client in range(CLIENTS):
            message, _ = messages.unpack_masked(table.sent["input", client])
            shares += message.shares.values()
            pairs += message.pairs.values()
    assert len(set(shares)) == len(shares) == 4 * CLIENTS * (CLIENTS - 1)
    assert len(set(pairs)) == len(pairs) // 2  # each is told by both of a pair
