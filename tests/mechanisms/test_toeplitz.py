# SPDX-License-Identifier: Apache-2.0
"""What participations apart cost under a Toeplitz C, and that the best C are the best."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from dpfed.core.participation import Participation
from dpfed.mechanisms._toeplitz import (
    Error,
    best_bands,
    best_buffers,
    buffered,
    buffered_inverse,
    inverse_column,
    prefix_errors,
    separated_squared,
)
from tests.mechanisms.patterns import lower, worst

FALLING = [[1.0], [1.0, 0.5], [1.0, 1.0, 1.0, 0.2], [1.0, 0.5, 0.375, 0.3125, 0.27, 0.25, 0.2]]


@pytest.mark.parametrize("column", FALLING, ids=str)
@pytest.mark.parametrize(("b", "k"), [(1, 3), (2, 2), (2, 5), (3, 3), (4, 2)])
def test_no_pattern_and_no_signs_cost_more_where_coefficients_fall(
    column: list[float], b: int, k: int
) -> None:
    limits = Participation(min_separation=b, at_most=k)
    for n in range(1, 10):
        priced = separated_squared(np.array(column), n, limits)
        assert worst(lower(column, n), b, k) == pytest.approx(priced, rel=1e-12)


@pytest.mark.parametrize("column", [[1.0, -0.6, 0.2], [0.3, 2.0, 1.0], [1.0, 0.0, -1.0]], ids=str)
def test_bands_that_do_not_overlap_are_priced_whatever_their_signs(column: list[float]) -> None:
    for n, k in product(range(1, 11), (1, 2, 4)):
        limits = Participation(min_separation=3, at_most=k)
        priced = separated_squared(np.array(column), n, limits)
        assert worst(lower(column, n), 3, k) == pytest.approx(priced, rel=1e-12)


def test_coefficients_that_rise_and_overlap_would_be_priced_too_low() -> None:
    """Why mechanisms refuse them: the first steps, b apart, are not the worst ones there."""
    column = [1.0, 0.0, 1.0, 0.0, 1.0]
    priced = separated_squared(np.array(column), 8, Participation(min_separation=1, at_most=2))
    assert worst(lower(column, 8), 1, 2) > 1.3 * priced


def test_nothing_released_costs_nothing() -> None:
    assert separated_squared(np.ones(3), 0, Participation(min_separation=2, at_most=2)) == 0


@pytest.mark.parametrize("column", FALLING, ids=str)
def test_errors_are_those_of_the_matrix(column: list[float]) -> None:
    n = 12
    C = lower(column, n)
    B = np.tri(n) @ np.linalg.inv(C)
    assert prefix_errors(np.array(column), n) == pytest.approx((B * B).sum(axis=1), rel=1e-12)
    assert inverse_column(tuple(column), n) == pytest.approx(np.linalg.inv(C)[:, 0], abs=1e-12)


def test_buffers_are_a_matrix_and_its_inverse() -> None:
    decays, scales, n = (0.99, 0.8, 0.3), (0.05, 0.2, 0.25), 30
    column = buffered(decays, scales, n)
    by_hand = [1.0] + [
        sum(s * d**j for d, s in zip(decays, scales, strict=True)) for j in range(n - 1)
    ]
    assert column == pytest.approx(by_hand, rel=1e-13)
    assert (np.diff(column) <= 0).all()
    inverse = np.linalg.inv(lower(list(column), n))[:, 0]
    assert buffered_inverse(decays, scales, n) == pytest.approx(inverse, abs=1e-12)


def loss(column: np.ndarray, n: int, limits: Participation, error: Error) -> float:
    found = prefix_errors(column, n)
    squared = float(found.mean() if error == "mean" else found[-1])
    return math.sqrt(squared * separated_squared(column, n, limits))


@pytest.mark.parametrize("error", ["mean", "last"])
def test_no_step_away_from_the_best_bands_gains(error: Error) -> None:
    n, bands, rng = 60, 6, np.random.default_rng(0)
    once = Participation(min_separation=n, at_most=1)
    best = np.array(best_bands(n, bands, error))
    least = loss(best, n, once, error)
    for scale in (0.003, 0.03, 0.3):
        for _ in range(200):
            moved = best + scale * np.concatenate([[0.0], rng.normal(size=bands - 1)])
            assert loss(moved, n, once, error) > least * (1 - 1e-6)
    root = np.cumprod([1.0, *(1 - 0.5 / k for k in range(1, bands))])
    assert loss(root, n, once, error) > 1.01 * least


@pytest.mark.sample(2)
@pytest.mark.parametrize("error", ["mean", "last"])
def test_no_step_away_from_the_best_buffers_gains(error: Error) -> None:
    n, rng = 60, np.random.default_rng(1)
    limits = Participation(min_separation=6, at_most=4)
    decays, scales = best_buffers(n, limits, error)
    assert all(0 < d < 1 for d in decays)
    assert all(s > 0 for s in scales)
    assert sum(scales) < 1
    least = loss(buffered(decays, scales, n), n, limits, error)
    for size in (0.003, 0.03):
        for _ in range(200):
            d = np.clip(np.array(decays) + size * rng.normal(size=len(decays)), 1e-3, 1 - 1e-6)
            s = np.array(scales) * np.exp(size * rng.normal(size=len(scales)))
            assert loss(buffered(d, s, n), n, limits, error) > least * (1 - 1e-4)
    independent = loss(np.ones(1), n, limits, error)
    assert least < independent
