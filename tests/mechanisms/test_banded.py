# SPDX-License-Identifier: Apache-2.0
"""The banded noise against its matrix, what it gains, and one test per line of the table."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import dp_accounting
import numpy as np
import pytest
import torch

from dpfed.accounting.accountant import RELATIONS, GaussianAccountant
from dpfed.core.errors import BadRelease, RecipeError
from dpfed.core.randomness import Noise
from dpfed.core.rows import Dense
from dpfed.core.sampling import Poisson
from dpfed.core.types import Adjacency, BoundedSum, Facts, Release, Total, Trust
from dpfed.mechanisms.banded import Banded, Past, banded
from dpfed.mechanisms.gaussian import gaussian
from dpfed.mechanisms.tree import tree
from dpfed.training.wire import state as states

COLUMNS = [[1.0], [2.0, 1.0], [1.0, 0.5, 0.375, 0.3125], [1.0, -0.6, 0.2]]
SIZE = 60_000


class Fixed:
    """Rows that claim whatever bound they are told to."""

    def __init__(
        self, vector: torch.Tensor, bound: float = 1.0, replace_bound: float = 2.0
    ) -> None:
        self.sum = BoundedSum(vector, bound, replace_bound)

    def clipped_sum(self, clip: float) -> BoundedSum:
        return self.sum


def run(mechanism: Banded, sums: torch.Tensor) -> Iterator[tuple[Release, Past]]:
    """One release per row of ``sums``, with the state after it."""
    state = mechanism.init(sums.shape[1])
    for t, row in enumerate(sums):
        release, state = mechanism.release(Fixed(row), state, Noise(0).stream("release", t))
        yield release, state


def noises(mechanism: Banded, n: int, size: int = SIZE) -> np.ndarray:
    made = run(mechanism, torch.zeros(n, size))
    return np.stack([release.vector.numpy() * release.step for release, _ in made])


def toeplitz(column: list[float], n: int) -> np.ndarray:
    C = np.zeros((n, n))
    for lag, value in enumerate(column[:n]):
        C += value * np.eye(n, k=-lag)
    return C


def schedule(n: int) -> np.ndarray:
    """The best diagonal C, from the docstring: x_t ~ sqrt(n - t + 1), sum x_t = n."""
    x = np.sqrt(np.arange(n, 0, -1))
    return np.diag(np.sqrt(n * x / x.sum()))


# --------------------------------------------------------------------------------------- noise


@pytest.mark.parametrize("column", [None, *COLUMNS], ids=str)
def test_the_covariance_is_that_of_the_matrix(column: list[float] | None) -> None:
    n, std = 9, 3.0
    C = schedule(n) if column is None else toeplitz(column, n)
    expected = std**2 * np.linalg.inv(C.T @ C)
    mechanism = banded(std=std, rounds=n, coefficients=column)
    noise = noises(mechanism, n)
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    assert np.abs((np.cov(noise) - expected) / scale).max() < 0.02
    stated = [release.std for release, _ in run(mechanism, torch.zeros(n, 1))]
    assert stated == pytest.approx(list(np.sqrt(np.diag(expected))), rel=1e-12)
    # and C undoes it: draw by draw
    drawn = np.stack([Noise(0).stream("release", t).normal(SIZE) for t in range(n)])
    assert np.abs(C @ noise / std - drawn).max() < 1e-4


def test_one_coefficient_is_independent_noise_to_the_bit() -> None:
    rows = torch.randn(5, 40)
    *_, (release, _) = run(banded(std=3.0, coefficients=[1.0]), rows)
    plain, _ = gaussian(std=3.0).release(Fixed(rows[4]), (), Noise(0).stream("release", 4))
    assert torch.equal(release.vector, plain.vector)
    assert (release.std, release.step) == (plain.std, plain.step)
    assert (
        banded(coefficients=[1.0]).squared_sensitivity(70)
        == gaussian().squared_sensitivity(70)
        == 70
    )


def test_a_release_leaves_its_state_and_rows_as_they_were() -> None:
    mechanism = banded(coefficients=[1.0, 0.5, 0.2])
    *_, (_, state) = run(mechanism, torch.zeros(7, 5))
    before = [noise.clone() for noise in state.noise]
    row = torch.ones(5, dtype=torch.float64)
    first, after = mechanism.release(Fixed(row), state, Noise(1).stream("release"))
    again, _ = mechanism.release(Fixed(row), state, Noise(1).stream("release"))
    assert torch.equal(first.vector, again.vector)
    assert all(map(torch.equal, before, state.noise))
    assert row.tolist() == [1.0] * 5
    assert (state.t, after.t) == (7, 8)


# --------------------------------------------------------------------------------------- cost


@pytest.mark.parametrize("column", COLUMNS, ids=str)
def test_the_squared_sensitivity_is_the_sum_of_the_gram_matrix(column: list[float]) -> None:
    for n in range(1, 40):
        C = toeplitz(column, n)
        expected = float(np.abs(C.T @ C).sum())
        assert banded(coefficients=column).squared_sensitivity(n) == pytest.approx(
            expected, rel=1e-12
        )


@pytest.mark.parametrize("column", COLUMNS, ids=str)
def test_no_unit_costs_more(column: list[float]) -> None:
    """Any contributions of norm at most 1 in each step; equal ones reach it if C^T C >= 0."""
    rng = np.random.default_rng(0)
    n, squared = 12, banded(coefficients=column).squared_sensitivity(12)
    C = toeplitz(column, n)
    for _ in range(2000):
        units = rng.normal(size=(n, rng.integers(1, 4)))
        units /= np.maximum(1.0, np.linalg.norm(units, axis=1, keepdims=True))
        assert np.sum((C @ units) ** 2) <= squared * (1 + 1e-12)
    if (C.T @ C).min() >= 0:
        assert np.sum((C @ np.ones(n)) ** 2) == pytest.approx(squared)


def test_the_schedule_is_worth_as_much_as_constant_noise() -> None:
    for rounds in (1, 2, 70, 1000):
        assert banded(rounds=rounds).squared_sensitivity(rounds) == pytest.approx(rounds, rel=1e-14)
    diagonal = np.diag(schedule(70)) ** 2
    for n in (1, 10, 69):
        assert banded().squared_sensitivity(n) == pytest.approx(diagonal[:n].sum(), rel=1e-12)


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("column", [None, [1.0, 0.5, 0.375]], ids=str)
def test_the_event_costs_what_the_releases_are_worth(
    adjacency: Adjacency, column: list[float] | None
) -> None:
    mechanism = banded(Facts(clip=2.0, adjacency=adjacency), std=60.0, coefficients=column)
    D = 4.0 if adjacency is Adjacency.REPLACE_ONE else 2.0
    for n in (1, 2, 8, 70):
        accountant = GaussianAccountant(RELATIONS[adjacency])
        accountant.compose(mechanism.event(n))
        assert accountant.mu**2 == pytest.approx(
            mechanism.squared_sensitivity(n) * (D / 60.0) ** 2, rel=1e-12
        )
    assert mechanism.event(0) == dp_accounting.NoOpDpEvent()


def test_a_smaller_replace_bound_costs_less() -> None:
    mechanism = banded(Facts(clip=2.0, replace_bound=math.sqrt(2) * 2), std=6.0)
    assert mechanism.noise_multiplier() == pytest.approx(6.0 / math.sqrt(2))
    assert mechanism.noise_multiplier(4) == pytest.approx(12.0 / math.sqrt(2))


def test_the_table_of_mechanisms_at_equal_mu() -> None:
    """T = 70, everyone in every release, the same mu: RMS noise over that of independent noise.

    |                                         | last prefix | mean over prefixes |
    |-----------------------------------------|-------------|--------------------|
    | independent                             | 1           | 1                  |
    | tree                                    | 1.939       | 2.709              |
    | the schedule (banded's default)         | 1.111       | 0.946              |
    | square root of the prefix sum, 4 bands  | 1.014       | 1.038              |
    | the same, 70 bands                      | 1.245       | 1.633              |
    """
    T = 70
    root = [math.comb(2 * k, k) / 4**k for k in range(T)]  # Toeplitz C with C^2 = prefix sums
    errors = {
        "tree": [t.bit_count() * tree().squared_sensitivity(T) for t in range(1, T + 1)],
        "schedule": squared_errors(schedule(T), banded().squared_sensitivity(T)),
        "root 4": squared_errors(
            toeplitz(root[:4], T), banded(coefficients=root[:4]).squared_sensitivity(T)
        ),
        "root 70": squared_errors(
            toeplitz(root, T), banded(coefficients=root).squared_sensitivity(T)
        ),
    }
    independent = np.arange(1, T + 1) * T
    table = {
        name: (
            round(math.sqrt(found[-1] / independent[-1]), 3),
            round(math.sqrt(np.sum(found) / independent.sum()), 3),
        )
        for name, found in errors.items()
    }
    assert table == {
        "tree": (1.939, 2.709),
        "schedule": (1.111, 0.946),
        "root 4": (1.014, 1.038),
        "root 70": (1.245, 1.633),
    }


def squared_errors(C: np.ndarray, squared: float) -> np.ndarray:
    """Of each prefix sum, at std^2 = squared sensitivity, that is mu = D."""
    B = np.tri(len(C)) @ np.linalg.inv(C)
    return np.asarray(squared * (B * B).sum(axis=1))


def test_the_gain_is_measured_too() -> None:
    """The mean squared error over prefixes, of noise really released: 8/9 in the limit."""
    n = 70
    scheduled = noises(banded(rounds=n), n, 2000).cumsum(axis=0)
    constant = noises(banded(coefficients=[1.0]), n, 2000).cumsum(axis=0)
    closed = sum(math.sqrt(t) for t in range(1, n + 1)) ** 2 / (n * n * (n + 1) / 2)
    assert closed == pytest.approx(0.8943, abs=1e-4)
    assert float((scheduled**2).mean() / (constant**2).mean()) == pytest.approx(closed, rel=0.03)


# -------------------------------------------------------------------------------------- central


@pytest.mark.parametrize("column", [None, [1.0, 0.5, 0.375]], ids=str)
def test_under_central_trust_the_server_adds_the_same_noise(column: list[float] | None) -> None:
    central = banded(Facts(trust=Trust.CENTRAL), std=3.0, rounds=8, coefficients=column)
    client, server = central.init(50), central.init(50)
    local = noises(banded(std=3.0, rounds=8, coefficients=column), 8, 50)
    for t in range(8):
        sent, client = central.release(Dense(torch.ones(1, 50) / 8), client, Noise(1).stream("x"))
        assert (sent.std, client.t) == (0.0, 0)
        total = Total(2 * sent.vector.long(), (0, 1), (1.0, 1.0))
        release, server = central.finish(total, server, Noise(0).stream("release", t))
        added = release.vector.numpy() * release.step - 0.25
        assert np.abs(added - local[t]).max() < 1e-5
        assert release.std > 0


def test_an_opened_sum_carries_the_noise_of_its_terms() -> None:
    mechanism = banded(std=4.0, rounds=5)
    state = mechanism.init(3)
    stated = [release.std for release, _ in run(mechanism, torch.zeros(5, 3))]
    for t in range(5):
        total = Total(torch.zeros(3, dtype=torch.int64), (0, 1, 2), (1.0, 0.5, 0.5))
        release, state = mechanism.finish(total, state, Noise(0).stream("finish"))
        assert release.std == pytest.approx(stated[t] * math.sqrt(1.5))
        assert not release.vector.any()
    assert state.t == 5


# ----------------------------------------------------------------------------------- edge cases


@pytest.mark.parametrize("name", ["clip", "std", "rounds"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_numbers_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(RecipeError, match=f"{name} must be a .*, got {value};"):
        banded(Facts(clip=value)) if name == "clip" else banded(**{name: value})


@pytest.mark.parametrize("column", [[], [0.0], [-1.0, 0.5], [1.0, math.nan], [math.inf]], ids=str)
def test_coefficients_of_no_matrix_are_refused(column: list[float]) -> None:
    with pytest.raises(RecipeError, match=r"banded.coefficients must be finite"):
        banded(coefficients=column)


def test_what_is_not_accounted_for_is_refused() -> None:
    with pytest.raises(RecipeError, match="mechanism 'gaussian'"):
        banded(Facts(trust=Trust.DISTRIBUTED))
    with pytest.raises(RecipeError, match="2 shares"):
        Banded(Facts(1.0), 1.0, shares=2)
    with pytest.raises(RecipeError, match="Poisson"):
        Banded(Facts(1.0), 1.0, sampling=Poisson(0.5))


def test_the_schedule_ends() -> None:
    mechanism = banded(rounds=5)
    *_, (_, state) = run(mechanism, torch.zeros(5, 2))
    with pytest.raises(BadRelease, match="least 6 for release 6, got 5"):
        mechanism.release(Fixed(torch.zeros(2)), state, Noise(0).stream("release"))
    assert mechanism.squared_sensitivity(6) == math.inf
    assert mechanism.event(6) == dp_accounting.NonPrivateDpEvent()
    assert len([*run(banded(rounds=5, coefficients=[1.0, 0.5]), torch.zeros(9, 2))]) == 9


@pytest.mark.parametrize(("bound", "replace_bound"), [(1.1, 2.0), (1.0, 2.1), (math.nan, 2.0)])
def test_rows_beyond_the_bounds_are_refused(bound: float, replace_bound: float) -> None:
    rows = Fixed(torch.zeros(3), bound, replace_bound)
    with pytest.raises(BadRelease, match="rows must be bounded by"):
        banded().release(rows, banded().init(3), Noise(0).stream("release"))


def test_rows_of_another_size_are_not_broadcast() -> None:
    mechanism = banded(coefficients=[1.0, 0.5])
    for size in (1, 4):
        rows = Fixed(torch.zeros(size))
        with pytest.raises(BadRelease, match=f"must have size 3, as those before it, got {size};"):
            mechanism.release(rows, mechanism.init(3), Noise(0).stream("release"))


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
def test_a_sum_that_fits_no_grid_is_not_released(value: float) -> None:
    with pytest.raises(BadRelease, match="does not fit"):
        next(run(banded(std=1e-3), torch.full((1, 3), value)))


# ---------------------------------------------------------------------------------------- state


@pytest.mark.parametrize("column", [None, [1.0, 0.5, 0.375]], ids=str)
def test_the_state_goes_through_a_file(tmp_path: Path, column: list[float] | None) -> None:
    """A template of fixed shapes, whatever the step: the noise goes on to the bit."""
    mechanism = banded(rounds=6, coefficients=column)
    straight = [release.vector for release, _ in run(mechanism, torch.zeros(6, 5))]
    for t in range(6):
        template = mechanism.init(5)
        state = states.load_at(tmp_path, (t - 1, 0), template)
        shapes = [(leaf.shape, leaf.dtype) for leaf in state.noise]
        assert shapes == [(leaf.shape, leaf.dtype) for leaf in template.noise]
        rng = Noise(0).stream("release", t)
        release, state = mechanism.release(Fixed(torch.zeros(5)), state, rng)
        assert torch.equal(release.vector, straight[t])
        states.save_state(tmp_path, t, state)
