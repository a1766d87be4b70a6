# SPDX-License-Identifier: Apache-2.0
"""The exact Gaussian curve against mpmath, and what it rounds towards caution.

The oracle is the textbook formula at 60 digits, with exponents that do not overflow. Measured on
the grid below with scipy 1.17: the relative error of ``delta_for`` is at most 1.5e-10 for mu from
1e-6 to 1e3 and a delta above 1e-300, a seventh of ``CAUTION``.
"""

import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpfed.accounting import gdp
from dpfed.core.errors import RecipeError
from dpfed.core.types import Adjacency

# PRIVACY.md, section 1: n = 20, T = 70, delta = 1e-5, replace-one, LOCAL.
GOLDEN = [
    (0.5, 0.142211, 526.2137, 117.665),
    (1.0, 0.268051, 279.1749, 62.425),
    (5.0, 1.121242, 66.7413, 14.924),
    (10.0, 2.000446, 37.4082, 8.365),
]
EPSILONS = [0.0, 1e-12, 1e-9, 1e-6, 1e-3, 0.1, 1, 5, 30, 100, 300, 700, 710, 1000, 1e4, 1e6]
MUS = [float(mu) for mu in np.logspace(-6, 3, 46)] + [9.9e-6, 1.41e-5, 1.42e-5, 2e-5]


def mp_delta(epsilon: float, mu: float) -> mpmath.mpf:
    """Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu), at 60 digits."""
    with mpmath.workdps(60):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


def mp_error(epsilon: float, mu: float) -> float:
    """The relative error of delta_for; 0 where the true delta is below all normal floats."""
    true, found = mp_delta(epsilon, mu), gdp.delta_for(epsilon, mu)
    if true < mpmath.mpf("1e-300"):
        return 0.0 if 0 <= found < 1e-299 else math.inf
    return float(abs(mpmath.mpf(found) / true - 1))


def logs(low: float, high: float) -> st.SearchStrategy[float]:
    """Numbers spread evenly over their orders of magnitude."""
    return st.floats(math.log(low), math.log(high)).map(math.exp)


# ------------------------------------------------------------------------------------- goldens


@pytest.mark.parametrize(("epsilon", "mu", "sigma_g", "std"), GOLDEN)
def test_golden_table(epsilon, mu, sigma_g, std):
    found = gdp.mu_for(epsilon, 1e-5)
    assert found == pytest.approx(mu, rel=1e-4)
    assert 2 * math.sqrt(20 * 70) / found == pytest.approx(sigma_g, rel=1e-4)
    assert 2 * math.sqrt(70) / found == pytest.approx(std, rel=1e-4)


@pytest.mark.parametrize(("epsilon", "mu", "sigma_g", "std"), GOLDEN)
def test_golden_noise_gives_the_golden_epsilon_back(epsilon, mu, sigma_g, std):
    squared = gdp.mu_squared(sigma_g / math.sqrt(20), 70, Adjacency.REPLACE_ONE)
    assert gdp.epsilon_for(1e-5, math.sqrt(squared)) == pytest.approx(epsilon, rel=1e-4)


@pytest.mark.parametrize(
    ("adjacency", "distance"),
    [(Adjacency.REPLACE_ONE, 2), (Adjacency.ADD_REMOVE, 1), (Adjacency.ZERO_OUT, 1)],
)
def test_mu_squared_is_releases_times_distance_over_noise_squared(adjacency, distance):
    assert gdp.mu_squared(4.0, 70, adjacency) == pytest.approx(70 * (distance / 4) ** 2, rel=1e-15)


def test_no_release_costs_nothing_and_no_noise_costs_everything():
    assert gdp.mu_squared(0.0, 0, Adjacency.REPLACE_ONE) == 0
    assert gdp.mu_squared(0.0, 1, Adjacency.REPLACE_ONE) == math.inf
    assert gdp.mu_squared(1e-200, 1, Adjacency.REPLACE_ONE) == math.inf


# -------------------------------------------------------------------------------------- oracle


def test_delta_agrees_with_mpmath_to_3e_10():
    errors = {(e, mu): mp_error(e, mu) for e, mu in itertools.product(EPSILONS, MUS)}
    worst = max(errors, key=errors.__getitem__)
    assert errors[worst] < 3e-10, worst


@pytest.mark.parametrize("delta", [1e-30, 1e-100, 1e-200, 1e-299])
@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 50.0, 1000.0])
def test_tiny_deltas_keep_their_accuracy(epsilon, delta):
    mu = gdp.mu_for(epsilon, delta)
    assert 0.9999 * delta < mp_delta(epsilon, mu) <= delta
    assert mp_error(epsilon, mu) < 3e-10


@pytest.mark.slow
@settings(max_examples=300, deadline=None, derandomize=True)
@given(logs(1e-9, 1e4), logs(1e-6, 1e3))
def test_delta_agrees_with_mpmath_anywhere(epsilon, mu):
    assert mp_error(epsilon, mu) < 3e-10


@pytest.mark.parametrize("epsilon", [709.0, 710.0, 1000.0, 1e5, 1e10, 1e100, 1e300])
def test_large_epsilon_does_not_overflow(epsilon):
    mu = gdp.mu_for(epsilon, 1e-5)
    assert 0 < mu < math.inf
    # epsilon = mu^2 / 2 + O(mu) at a fixed delta
    assert mu**2 / 2 == pytest.approx(epsilon, rel=1e-8 + 10 / mu)
    assert 0 <= gdp.delta_for(epsilon, mu) <= 1e-5


@pytest.mark.parametrize(("epsilon", "mu"), [(math.inf, 1e-6), (math.inf, 1.0), (1.0, 1e-309)])
def test_delta_is_zero_where_the_argument_is_infinite(epsilon, mu):
    assert gdp.delta_for(epsilon, mu) == 0


def test_the_ends_of_the_curve():
    assert gdp.delta_for(1.0, 0.0) == 0
    assert gdp.delta_for(1.0, math.inf) == 1
    assert gdp.epsilon_for(1e-5, 0.0) == 0
    assert gdp.epsilon_for(1e-5, math.inf) == math.inf
    assert gdp.epsilon_for(0.5, 1.0) == 0, "mu = 1 is (0, 0.38)-DP"


# ------------------------------------------------------------------------------- order, inverse


def test_delta_falls_with_epsilon_and_grows_with_mu():
    for mu in (1e-5, 1e-2, 1.0, 30.0):
        curve = [gdp.delta_for(mu * (mu / 2 + 6) * k / 60, mu) for k in range(60)]
        assert all(later <= earlier for earlier, later in itertools.pairwise(curve))
        assert curve[-1] < curve[0] / 2
    for epsilon in (1e-3, 1.0, 100.0):
        curve = [gdp.delta_for(epsilon, float(mu)) for mu in np.logspace(-1, 2, 200) * epsilon]
        assert all(later >= earlier for earlier, later in itertools.pairwise(curve))
        assert curve[-1] > 2 * curve[0]


def test_mu_grows_with_both_parts_of_the_guarantee():
    by_epsilon = [gdp.mu_for(epsilon, 1e-5) for epsilon in (0.01, 0.1, 1, 10, 100, 1000)]
    by_delta = [gdp.mu_for(1.0, delta) for delta in (1e-12, 1e-9, 1e-5, 1e-2, 0.5)]
    assert by_epsilon == sorted(set(by_epsilon))
    assert by_delta == sorted(set(by_delta))


@pytest.mark.parametrize("delta", [1e-12, 1e-9, 1e-5, 1e-3])
@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 10.0, 1000.0])
def test_mu_for_and_epsilon_for_are_inverse_to_1e_8(epsilon, delta):
    assert gdp.epsilon_for(delta, gdp.mu_for(epsilon, delta)) == pytest.approx(epsilon, rel=1e-8)


def test_bisect_ends_on_neighbouring_floats_around_the_turn():
    below, above = gdp.bisect(lambda x: x >= math.pi, 0.0, 10.0)
    assert above == math.pi
    assert math.nextafter(below, 10) == above


# ------------------------------------------------------------------------------------- caution


def mu_keeps(epsilon: float, delta: float) -> None:
    assert mp_delta(epsilon, gdp.mu_for(epsilon, delta)) <= delta


def epsilon_covers(mu: float, delta: float) -> None:
    """The curve falls, so delta(found) <= delta says found >= the true epsilon."""
    assert mp_delta(gdp.epsilon_for(delta, mu), mu) <= delta


TARGETS = (logs(1e-6, 1e4), logs(1e-290, 0.999))
CURVES = (logs(1e-4, 1e3), logs(1e-290, 0.999))


@pytest.mark.slow
@settings(max_examples=300, deadline=None, derandomize=True)
@given(*TARGETS)
def test_mu_for_never_overshoots(epsilon, delta):
    mu_keeps(epsilon, delta)


@pytest.mark.long
@settings(max_examples=10_000, deadline=None)
@given(*TARGETS)
def test_mu_for_never_overshoots_in_ten_thousand_cases(epsilon, delta):
    mu_keeps(epsilon, delta)


@pytest.mark.slow
@settings(max_examples=300, deadline=None, derandomize=True)
@given(*CURVES)
@example(mu=1.0, delta=gdp.delta_for(0.0, 1.0) * (1 - 1e-6))
def test_epsilon_for_is_never_too_small(mu, delta):
    epsilon_covers(mu, delta)


@pytest.mark.long
@settings(max_examples=10_000, deadline=None)
@given(*CURVES)
def test_epsilon_for_is_never_too_small_in_ten_thousand_cases(mu, delta):
    epsilon_covers(mu, delta)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(1.0, 1 - 1e-10), (1e-20, 1e-9), (1e-3, 1e-320), (1e-300, 1e-300)]
)
def test_mu_for_never_overshoots_at_the_ends_or_refuses(epsilon, delta):
    try:
        gdp.mu_for(epsilon, delta)
    except RecipeError:
        return
    mu_keeps(epsilon, delta)


@pytest.mark.parametrize(
    ("mu", "part"), [(1.0, 1 - 1e-12), (1.0, 1 - 1e-9), (1e-6, 1 - 1e-5), (50.0, 1 - 1e-13)]
)
def test_epsilon_for_is_never_too_small_where_epsilon_nears_zero(mu, part):
    epsilon_covers(mu, gdp.delta_for(0.0, mu) * part)


# ------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("epsilon", [math.nan, math.inf, -math.inf, -1.0, 0.0, -0.0])
def test_a_senseless_epsilon_is_refused(epsilon):
    with pytest.raises(RecipeError, match=f"finite number above 0, got {epsilon}; 1 is usual"):
        gdp.mu_for(epsilon, 1e-5)


@pytest.mark.parametrize("delta", [math.nan, math.inf, -math.inf, -1e-5, 0.0, 1.0, 2.0])
def test_a_senseless_delta_is_refused(delta):
    said = f"delta must be at least 1e-300 and below 1, got {delta}; 1e-5 is usual"
    with pytest.raises(RecipeError, match=said):
        gdp.mu_for(1.0, delta)
    with pytest.raises(RecipeError, match=said):
        gdp.epsilon_for(delta, 1.0)


@pytest.mark.parametrize("mu", [math.nan, -1.0, -math.inf])
def test_a_senseless_mu_is_refused(mu):
    with pytest.raises(ValueError, match=f"mu must be a number, at least 0, got {mu}; check"):
        gdp.epsilon_for(1e-5, mu)


@pytest.mark.parametrize("mu", [1e3, 1e6, 1e10, 1e100])
def test_a_huge_mu_has_a_huge_epsilon_and_no_overflow(mu):
    """mu -> infinity: epsilon ~ mu^2 / 2. A tiny noise under a large clip once overflowed."""
    epsilon = gdp.epsilon_for(1e-5, mu)
    assert mu * mu / 2 < epsilon < (mu * mu / 2 + 10 * mu) * (1 + 2e-9)
