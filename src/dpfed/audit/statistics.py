# SPDX-License-Identifier: Apache-2.0
"""From counts to bounds: what an audit may conclude, and with which confidence.

Guarantee: each function that returns a bound is wrong with probability at most ``error``, where
samples are independent.

    binomial       Clopper and Pearson 1934: exact limits of a probability
    spread         a standard deviation's upper limit, from the chi-square law of its square
    two worlds     (epsilon, delta)-DP: TPR <= e^epsilon FPR + delta for every test, so
                   epsilon >= ln((TPR - delta) / FPR)
    the curve      mu-GDP: Phi^-1(TPR) - Phi^-1(FPR) <= mu for every test (Dong et al. 2022; as an
                   audit, Nasr et al. 2023)
    one run        m coins, r guesses, v of them right (Steinke, Nasr, Jagielski 2023, theorem 5.2):
                   with q = e^epsilon / (1 + e^epsilon) and W ~ Binomial(r, q), under (epsilon,
                   delta)-DP the chance of v or more right guesses is at most
                   P(W >= v) + 2 m delta max_i P(v - i <= W < v) / i

| edge case                                  | what happens                                       |
|--------------------------------------------|----------------------------------------------------|
| no successes, or nothing but successes     | limits 0 and 1: bounds are 0, never infinite       |
| no trials                                  | the limits are 0 and 1                             |
| no guesses, or all of them wrong           | epsilon is at least 0                              |
| a spread of 0                              | its upper limit is 0: epsilon is infinite          |
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

Floats: TypeAlias = NDArray[np.float64]
Bits: TypeAlias = NDArray[np.bool_]

_MAX_EPSILON = 60.0  # no audit can tell larger epsilons apart


def chance_of_at_least(right: int, trials: int, error: float) -> float:
    """The lower limit of a probability.

    Args:
        right: how many trials succeeded, from 0 to ``trials``.
        trials: how many trials there were.
        error: the probability that the limit is wrong, above 0 and below 1.
    """
    return 0.0 if right == 0 else float(stats.beta.ppf(error, right, trials - right + 1))


def at_most(right: int, trials: int, error: float) -> float:
    """The upper limit of a probability.

    Args:
        right: how many trials succeeded, from 0 to ``trials``.
        trials: how many trials there were.
        error: the probability that the limit is wrong, above 0 and below 1.
    """
    return 1.0 if right == trials else float(stats.beta.ppf(1 - error, right + 1, trials - right))


def spread_at_most(variance: float, samples: int, error: float) -> float:
    """The upper limit of a normal distribution's standard deviation, if its mean is known.

    Args:
        variance: the mean square deviation of the samples from that mean, at least 0.
        samples: how many samples there are, at least 1.
        error: the probability that the limit is wrong, above 0 and below 1.
    """
    return math.sqrt(samples * variance / float(stats.chi2.ppf(error, samples)))


def epsilon_of(true_rate: float, false_rate: float, delta: float) -> float:
    """The least epsilon at which a test may have these rates, with either world as the positive.

    Args:
        true_rate: the true positive rate, from 0 to 1; for a bound, its lower limit.
        false_rate: the false positive rate, from 0 to 1; for a bound, its upper limit.
        delta: the delta of the claim, from 0 to 1.
    """
    pairs = ((true_rate, false_rate), (1 - false_rate, 1 - true_rate))
    found = [math.log((t - delta) / f) for t, f in pairs if f > 0 and t > delta]
    return max(0.0, *found, 0.0)


def mu_of(true_rate: float, false_rate: float) -> float:
    """The least mu at which a test may have these rates."""
    if not (0 < true_rate < 1 and 0 < false_rate < 1):
        return 0.0
    return max(0.0, float(special.ndtri(true_rate) - special.ndtri(false_rate)))


def error_rates(
    inside: Floats, outside: Floats, threshold: float, error: float
) -> tuple[float, float]:
    """The lower limit of the true positive rate, and the upper limit of the false positive rate.

    Args:
        inside: the scores of what is a positive.
        outside: the scores of what is not.
        threshold: scores above it are called positive.
        error: the probability that either limit is wrong, above 0 and below 1.
    """
    right, wrong = int((inside > threshold).sum()), int((outside > threshold).sum())
    return chance_of_at_least(right, len(inside), error / 2), at_most(
        wrong, len(outside), error / 2
    )


def best_threshold(inside: Floats, outside: Floats, delta: float, error: float) -> float:
    """The threshold with the largest bound of epsilon; test it on other samples than these.

    Args:
        inside: the scores of what is a positive.
        outside: the scores of what is not.
        delta: the delta of the claim, from 0 to 1.
        error: the probability that a bound is wrong, above 0 and below 1.
    """
    candidates = np.quantile(np.concatenate([inside, outside]), np.linspace(0.005, 0.9995, 60))
    return float(
        max(
            candidates,
            key=lambda t: epsilon_of(*error_rates(inside, outside, float(t), error), delta),
        )
    )


def worlds_epsilon(inside: Floats, outside: Floats, delta: float, error: float) -> float:
    """A lower bound of epsilon: half of the samples choose the threshold, the others are tested.

    Args:
        inside: the statistic of each run in one world.
        outside: the statistic of each run in the other world.
        delta: the delta of the claim, from 0 to 1.
        error: the probability that the bound is wrong, above 0 and below 1.
    """
    a, b = len(inside) // 2, len(outside) // 2
    threshold = best_threshold(inside[:a], outside[:b], delta, error)
    return epsilon_of(*error_rates(inside[a:], outside[b:], threshold, error), delta)


def worlds_mu(inside: Floats, outside: Floats, middle: float, error: float) -> float:
    """A lower bound of mu, from one threshold that was fixed in advance.

    Args:
        inside: the statistic of each run in one world.
        outside: the statistic of each run in the other world.
        middle: the threshold.
        error: the probability that the bound is wrong, above 0 and below 1.
    """
    return mu_of(*error_rates(inside, outside, middle, error))


def chance_of(right: int, guesses: int, coins: int, epsilon: float, delta: float) -> float:
    """An upper bound of the probability of ``right`` right guesses under (epsilon, delta)-DP.

    Args:
        right: how many guesses are right, or more.
        guesses: how many guesses are made.
        coins: how many coins there are, guessed or not.
        epsilon: the epsilon of the claim, at least 0.
        delta: the delta of the claim, from 0 to 1.
    """
    q = 1 / (1 + math.exp(-epsilon))
    tail = float(stats.binom.sf(right - 1, guesses, q))
    if delta == 0 or right == 0:
        return min(1.0, tail)
    below = np.cumsum(stats.binom.pmf(np.arange(right - 1, -1, -1), guesses, q))
    worst = float((below / np.arange(1, right + 1)).max())
    return min(1.0, tail + 2 * coins * delta * worst)


def one_run_epsilon(right: int, guesses: int, coins: int, delta: float, error: float) -> float:
    """The largest epsilon, up to 60, that ``right`` right guesses refute; 0 if they refute none.

    Args:
        right: how many guesses are right.
        guesses: how many guesses were made.
        coins: how many coins there are, guessed or not.
        delta: the delta of the claim, from 0 to 1.
        error: the probability that the bound is wrong, above 0 and below 1.
    """
    if chance_of(right, guesses, coins, 0.0, delta) >= error:
        return 0.0
    low, high = 0.0, _MAX_EPSILON
    for _ in range(50):
        middle = (low + high) / 2
        refuted = chance_of(right, guesses, coins, middle, delta) < error
        low, high = (middle, high) if refuted else (low, middle)
    return low
