# SPDX-License-Identifier: Apache-2.0
"""Bounds from counts, against values worked out by hand and against simulations."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpfed.accounting import gdp
from dpfed.audit import statistics as s


def test_limits_of_a_probability_by_hand() -> None:
    """0 of n: the upper limit is 1 - error^(1/n); n of n: the lower one is error^(1/n)."""
    assert s.at_most(0, 10, 0.05) == pytest.approx(1 - 0.05**0.1)
    assert s.chance_of_at_least(10, 10, 0.05) == pytest.approx(0.05**0.1)
    assert s.chance_of_at_least(0, 10, 0.05) == 0.0
    assert s.at_most(10, 10, 0.05) == 1.0


def test_limits_cover_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    wrong = sum(
        s.chance_of_at_least(int(rng.binomial(50, 0.3)), 50, 0.05) > 0.3 for _ in range(2000)
    )
    assert wrong / 2000 < 0.06


def test_the_upper_limit_of_a_spread() -> None:
    """One sample of variance 1: chi-square with 1 degree of freedom is below 0.0039 in 5 %."""
    assert s.spread_at_most(1.0, 1, 0.05) == pytest.approx(1 / math.sqrt(0.00393214), rel=1e-4)
    assert s.spread_at_most(0.0, 100, 0.05) == 0.0
    assert s.spread_at_most(1.0, 10**6, 1e-3) == pytest.approx(1.0022, abs=2e-4)


def test_epsilon_of_rates_by_hand() -> None:
    assert s.epsilon_of(0.75, 0.25, 0.0) == pytest.approx(math.log(3))
    assert s.epsilon_of(0.5, 0.1, 0.1) == pytest.approx(math.log(4))
    assert s.epsilon_of(0.99, 0.5, 0.0) == pytest.approx(math.log(50))  # the other way round
    assert s.epsilon_of(0.0, 1.0, 1e-5) == 0.0
    assert s.epsilon_of(1.0, 1.0, 0.0) == 0.0


def test_mu_of_rates_is_that_of_two_normals() -> None:
    assert s.mu_of(0.8413447460685429, 0.5) == pytest.approx(1.0)
    assert s.mu_of(0.3, 0.6) == 0.0
    assert s.mu_of(1.0, 0.0) == 0.0  # no samples say that much


def test_two_worlds_of_known_mu_are_not_overstated() -> None:
    rng = np.random.default_rng(1)
    inside, outside = rng.normal(1.0, 1, 20_000), rng.normal(0.0, 1, 20_000)
    epsilon = s.worlds_epsilon(inside, outside, 1e-5, 1e-3)
    assert 1.0 < epsilon < gdp.epsilon_for(1e-5, 1.0)
    assert 0.9 < s.worlds_mu(inside, outside, 0.5, 1e-3) < 1.0


@pytest.mark.parametrize(("right", "guesses"), [(3, 4), (10, 10), (0, 5), (55, 80)])
def test_the_chance_of_right_guesses_without_delta_is_a_binomial_tail(
    right: int, guesses: int
) -> None:
    q = 0.75
    terms = (math.comb(guesses, k) * q**k * (1 - q) ** (guesses - k) for k in range(guesses + 1))
    tail = sum(list(terms)[right:])
    assert s.chance_of(right, guesses, 100, math.log(3), 0.0) == pytest.approx(tail)


def test_the_correction_by_delta_by_hand() -> None:
    """r = 2, v = 2, q = 1/2: P(W = 1) / 1 = 1/2, P(W <= 1) / 2 = 3/8; the first is worse."""
    expected = 0.25 + 2 * 10 * 0.001 * 0.5
    assert s.chance_of(2, 2, 10, 0.0, 0.001) == pytest.approx(expected)
    # r = 3, v = 2: P(W = 1) = 3/8, P(W <= 1) / 2 = 1/4
    assert s.chance_of(2, 3, 3, 0.0, 0.01) == pytest.approx(0.5 + 2 * 3 * 0.01 * 0.375)
    assert s.chance_of(1, 1, 1000, 5.0, 0.5) == 1.0


def test_randomized_response_is_as_likely_as_the_theorem_says() -> None:
    """It answers with the coin with probability q: the theorem is tight for it at delta = 0."""
    rng, epsilon, coins, tries = np.random.default_rng(2), 1.0, 200, 4000
    q = 1 / (1 + math.exp(-epsilon))
    right = (rng.random((tries, coins)) < q).sum(axis=1)
    least = 155
    measured = float((right >= least).mean())
    expected = s.chance_of(least, coins, coins, epsilon, 0.0)
    assert measured == pytest.approx(expected, abs=4 * math.sqrt(expected / tries))


def test_randomized_response_that_fails_with_delta_stays_below_the_bound() -> None:
    """With probability delta per coin the answer is the truth for sure: (epsilon, delta)-DP."""
    rng, epsilon, delta, coins, tries = np.random.default_rng(3), 0.5, 0.01, 100, 4000
    q = 1 / (1 + math.exp(-epsilon))
    truth = rng.random((tries, coins)) < delta
    right = (truth | (rng.random((tries, coins)) < q)).sum(axis=1)
    for least in (60, 65, 70, 75, 80):
        assert (right >= least).mean() <= s.chance_of(least, coins, coins, epsilon, delta) + 0.01


@pytest.mark.long
@pytest.mark.slow
def test_the_bound_of_one_run_is_rarely_above_the_truth() -> None:
    rng, epsilon, coins = np.random.default_rng(4), 1.0, 300
    q = 1 / (1 + math.exp(-epsilon))
    found = [
        s.one_run_epsilon(int(rng.binomial(coins, q)), coins, coins, 0.0, 0.05) for _ in range(400)
    ]
    assert np.mean(np.array(found) > epsilon) < 0.08
    assert np.mean(found) > 0.6


def test_no_right_guess_refutes_nothing() -> None:
    assert s.one_run_epsilon(0, 10, 10, 1e-5, 0.01) == 0.0
    assert s.one_run_epsilon(5, 10, 10, 1e-5, 0.01) == 0.0
    bound = s.one_run_epsilon(10, 10, 10, 0.0, 0.01)  # q^10 = 0.01
    assert bound == pytest.approx(math.log(0.01**0.1 / (1 - 0.01**0.1)), abs=1e-6)
