# SPDX-License-Identifier: Apache-2.0
"""Shamir's sharing: enough shares give the seed, and one fewer gives nothing."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable

import numpy as np
import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpfed.core.errors import BadReply, UnsoundPlan
from dpfed.sums.secagg.shamir import PRIME, SHARE_BYTES, join, split

SEEDS = st.binary(min_size=32, max_size=32)
X = sympy.Symbol("x")


def some(shares: dict[int, bytes], holders: Iterable[int]) -> dict[int, bytes]:
    return {holder: shares[holder] for holder in holders}


def number(data: bytes) -> int:
    return int.from_bytes(data, "big")


def through(points: dict[int, int]) -> list[int]:
    """Newton's divided differences: the polynomial through the points, at 0 first."""
    xs, table = list(points), list(points.values())
    for order in range(1, len(xs)):
        for i in range(len(xs) - 1, order - 1, -1):
            step = pow(xs[i] - xs[i - order], -1, PRIME)
            table[i] = (table[i] - table[i - 1]) * step % PRIME
    line = [0] * len(xs)
    for x, difference in zip(reversed(xs), reversed(table), strict=True):
        line = [(low - x * high) % PRIME for low, high in zip([0, *line], [*line, 0], strict=True)]
        line = [(line[0] + difference) % PRIME, *line[1 : len(xs)]]
    return line


def value(line: list[int], x: int) -> int:
    return sum(c * pow(x, power, PRIME) for power, c in enumerate(line)) % PRIME


def test_the_field_is_the_least_prime_above_the_seeds() -> None:
    assert sympy.nextprime(2**256) == PRIME
    assert (PRIME - 1).bit_length() <= 8 * SHARE_BYTES


@given(seed=SEEDS, data=st.data())
def test_any_threshold_of_shares_give_the_seed(seed: bytes, data: st.DataObject) -> None:
    holders = data.draw(st.lists(st.integers(0, 10**6), min_size=1, max_size=12, unique=True))
    threshold = data.draw(st.integers(1, len(holders)))
    shares = split(seed, holders, threshold)
    assert set(shares) == set(holders)
    assert {len(share) for share in shares.values()} == {SHARE_BYTES}
    opened_by = data.draw(st.permutations(holders))
    for enough in range(threshold, len(holders) + 1):
        assert join(some(shares, opened_by[:enough])) == seed


@pytest.mark.parametrize("seed", [bytes(32), b"\xff" * 32, b"\x00" * 31 + b"\x01"])
def test_the_ends_of_the_range_survive(seed: bytes) -> None:
    assert join(some(split(seed, range(5), 3), [4, 0, 2])) == seed


def test_sympy_interpolates_the_same_seed() -> None:
    seed, threshold = secrets.token_bytes(32), 6
    shares = some(split(seed, range(9), threshold), [1, 2, 4, 5, 7, 8])
    points = [(holder + 1, number(share)) for holder, share in shares.items()]
    constant = sympy.interpolate(points, X).subs(X, 0)  # exact fractions over the integers
    assert constant.p * pow(int(constant.q), -1, PRIME) % PRIME == number(seed)
    assert join(shares) == seed


def test_all_shares_lie_on_one_polynomial_of_the_right_degree() -> None:
    seed, threshold = secrets.token_bytes(32), 7
    shares = split(seed, range(12), threshold)
    line = through({h + 1: number(shares[h]) for h in range(threshold)})
    assert line[0] == number(seed)
    assert line[threshold - 1] != 0  # the degree is not lower: a chance of 1 in 2^256
    assert all(value(line, h + 1) == number(shares[h]) for h in shares)


@given(seed=SEEDS, candidate=SEEDS, threshold=st.integers(2, 6))
def test_one_share_too_few_fits_every_seed(seed: bytes, candidate: bytes, threshold: int) -> None:
    shares = split(seed, range(10), threshold)
    known = {h + 1: number(shares[h]) for h in range(threshold - 1)}
    line = through({0: number(candidate), **known})  # of degree threshold - 1, as those drawn are
    assert len(line) == threshold
    assert value(line, 0) == number(candidate)
    assert all(value(line, x) == share for x, share in known.items())


def test_one_share_too_few_does_not_give_the_seed() -> None:
    seed = secrets.token_bytes(32)
    assert join(some(split(seed, range(9), 5), range(4))) != seed


@pytest.mark.parametrize("seed", [bytes(32), b"\xff" * 32])
@pytest.mark.parametrize("holder", [0, 4])
def test_a_share_is_uniform_whatever_the_seed(seed: bytes, holder: int) -> None:
    made = np.array([list(split(seed, range(5), 3)[holder]) for _ in range(6000)])
    for byte in (made[:, -1], made[:, 1]):  # the low bits, and the high ones
        assert stats.chisquare(np.bincount(byte, minlength=256)).pvalue > 1e-7


def test_two_shares_of_three_are_independent() -> None:
    made = [split(bytes(32), range(5), 3) for _ in range(6000)]
    pairs = [(each[1][-1] % 16) * 16 + each[3][-1] % 16 for each in made]
    assert stats.chisquare(np.bincount(pairs, minlength=256)).pvalue > 1e-7


def test_two_splits_of_a_seed_share_nothing() -> None:
    first, second = (split(bytes(32), range(5), 3) for _ in range(2))
    assert not set(first.values()) & set(second.values())


@pytest.mark.parametrize("threshold", [0, -1, 4])
def test_a_threshold_that_nobody_could_reach_is_refused(threshold: int) -> None:
    with pytest.raises(UnsoundPlan, match=f"between 1 and the 3 clients .*, got {threshold};"):
        split(bytes(32), range(3), threshold)


@pytest.mark.parametrize(
    "share", [b"", bytes(32), bytes(34), PRIME.to_bytes(SHARE_BYTES, "big"), b"\xff" * SHARE_BYTES]
)
def test_what_is_no_element_of_the_field_is_refused(share: bytes) -> None:
    shares = split(bytes(32), range(3), 2)
    with pytest.raises(BadReply, match="share must be 33 bytes"):
        join({0: shares[0], 1: share})


def test_the_largest_element_of_the_field_is_none_too_large() -> None:
    assert join({0: (PRIME - 1).to_bytes(SHARE_BYTES, "big")}) == (PRIME - 1 - 2**256).to_bytes(
        32, "big"
    )


def test_a_forged_share_gives_another_seed() -> None:
    shares = split(bytes(32), range(3), 3)
    assert join({**shares, 1: bytes(SHARE_BYTES)}) != bytes(32)


def test_a_hundred_shares_take_milliseconds() -> None:
    def best(work) -> float:
        times = []
        for _ in range(3):
            began = time.perf_counter()
            work()
            times.append(time.perf_counter() - began)
        return min(times)

    shares = split(bytes(32), range(100), 67)
    turns = iter(range(3))
    assert best(lambda: split(bytes(32), range(100), 67)) < 0.05
    assert best(lambda: join(some(shares, range(at := next(turns), at + 67)))) < 0.05
