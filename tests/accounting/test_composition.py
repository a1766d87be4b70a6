# SPDX-License-Identifier: Apache-2.0
"""Compositions of a drawn release, of which parts are kept: dp_accounting's own, bit for bit."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant, pld_pmf
from dp_accounting.pld.privacy_loss_distribution import (
    PrivacyLossDistribution,
    from_gaussian_mechanism,
)
from scipy import special

from dpfed.accounting import accountant, composition
from dpfed.accounting.accountant import RELATIONS, DrawnPLDAccountant
from dpfed.accounting.composition import Release, epsilon_for
from dpfed.core.types import Adjacency

DELTAS = (1e-200, 1e-12, 1e-5, 1e-2, 0.5, 0.999)
INTERVAL = 1e-3  # ten times as wide as what is stated, and ten times as fast


def loss_of(rate: float, multiplier: float, adjacency: Adjacency, interval: float) -> Any:
    return from_gaussian_mechanism(
        standard_deviation=multiplier,
        value_discretization_interval=interval,
        sampling_prob=rate,
        neighboring_relation=RELATIONS[adjacency],
    )


def same(ours: Any, theirs: Any) -> bool:
    """Whether all of both distributions is alike, to the last bit."""
    pairs = [
        (getattr(ours, name).to_dense_pmf(), getattr(theirs, name).to_dense_pmf())
        for name in ("_pmf_remove", "_pmf_add")
    ]
    return ours._symmetric == theirs._symmetric and all(
        np.array_equal(a._probs, b._probs)
        and (a._lower_loss, a._infinity_mass) == (b._lower_loss, b._infinity_mass)
        and (a._discretization, a._pessimistic_estimate)
        == (b._discretization, b._pessimistic_estimate)
        for a, b in pairs
    )


@pytest.mark.parametrize("adjacency", [Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT])
@pytest.mark.parametrize(
    ("rate", "multiplier"), [(1e-4, 0.6), (0.01, 0.8), (0.1, 4.0), (0.7, 2.0), (1.0, 3.0)]
)
@pytest.mark.sample(10)
def test_what_is_kept_gives_the_same_bits(
    adjacency: Adjacency, rate: float, multiplier: float
) -> None:
    loss = loss_of(rate, multiplier, adjacency, INTERVAL)
    ours = Release(loss)
    for count in (1, 2, 3, 4, 5, 70, 71, 1000):
        found, expected = ours.composed(count), loss.self_compose(count)
        assert same(found, expected), count
        for delta in DELTAS:
            assert epsilon_for(found, delta) == expected.get_epsilon_for_delta(delta), delta


@pytest.mark.slow
def test_a_run_is_stated_as_by_a_fresh_composition_round_by_round() -> None:
    """On the grid that is stated, at rates and multipliers of all sizes."""
    draw = random.Random(3)
    for _ in range(3):
        rate, multiplier = 10 ** draw.uniform(-4, -0.3), 10 ** draw.uniform(-0.3, 1.0)
        relation = RELATIONS[draw.choice([Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT])]
        first = draw.randint(1, 500)
        for count in range(first, first + 3):
            event = SelfComposedDpEvent(
                PoissonSampledDpEvent(rate, GaussianDpEvent(multiplier)), count
            )
            ours = DrawnPLDAccountant(relation).compose(event)
            theirs = PLDAccountant(relation).compose(event)
            assert same(ours._pld, theirs._pld)
            assert ours.get_epsilon(1e-5) == theirs.get_epsilon(1e-5)


def test_moments_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    whole = special.logsumexp
    monkeypatch.setattr(
        composition.special, "logsumexp", lambda *a, **o: made.append(1) or whole(*a, **o)
    )
    ours = Release(loss_of(0.01, 1.0, Adjacency.ZERO_OUT, INTERVAL))
    for count in range(1, 6):
        ours.composed(count)
    assert len(made) == 2 * 40


def test_a_server_keeps_few_distributions_however_long_it_runs() -> None:
    """At most four kinds of rounds, and four compositions of them."""
    relation = RELATIONS[Adjacency.ZERO_OUT]
    for count in range(1, 12):
        event = PoissonSampledDpEvent(0.01, GaussianDpEvent(2.0 + count))
        DrawnPLDAccountant(relation, INTERVAL).compose(SelfComposedDpEvent(event, count))
    for cached in (accountant._release, accountant._releases):
        assert cached.cache_info().currsize <= 4


def dense(low: int, probs: list[float], infinite: float, interval: float = 0.1) -> Any:
    made = pld_pmf.DensePLDPmf(interval, low, np.array(probs), infinite, True)
    return PrivacyLossDistribution(made)


@pytest.mark.parametrize(
    "loss",
    [
        dense(-2, [0.1, 0.2, 0.3, 0.2, 0.1], 0.1),
        dense(-2, [0.0, 0.0, 1.0, 0.0, 0.0], 0.0),
        dense(7000, [0.5, 0.5], 0.0, 1.0),  # exp(-loss) is 0: the sum of factors stays 0
        dense(7000, [0.5, 0.0, 0.5], 0.0, 1.0),
        dense(-8000, [0.5, 0.5], 0.0),  # exp(-loss) is no number: dp_accounting's own loop
        dense(-3, [2.0**-40] * 50_000, 0.25, 1e-4),  # several blocks
    ],
)
def test_corners_are_as_dp_accounting_has_them(loss: Any) -> None:
    for delta in (*DELTAS, 0.05, 0.1, 0.25, 0.3, 0.49, 1.0):
        found: float | str
        expected: float | str
        try:
            expected = loss.get_epsilon_for_delta(delta)
        except (OverflowError, ValueError, ZeroDivisionError) as error:
            expected = type(error).__name__
        try:
            found = epsilon_for(loss, delta)
        except (OverflowError, ValueError, ZeroDivisionError) as error:
            found = type(error).__name__
        assert found == expected or math.isclose(float(found), float(expected), rel_tol=0), delta


def test_a_sum_in_another_order_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault that is feared: a pairwise sum, which rounds in another way."""
    loss = loss_of(0.01, 0.8, Adjacency.ZERO_OUT, INTERVAL).self_compose(50)

    def pairwise(first: float, terms: Any) -> Any:
        return np.array([first, *(first + np.sum(terms[: i + 1]) for i in range(len(terms)))])

    monkeypatch.setattr(composition, "_sums", pairwise)
    assert epsilon_for(loss, 1e-5) != loss.get_epsilon_for_delta(1e-5)


def test_tables_of_large_transforms_are_pushed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scipy keeps the last 16 lengths of each kind, real and complex: as many short ones follow."""
    lengths: dict[bool, list[int]] = {False: [], True: []}
    whole = composition.fft.fft

    def noted(values: Any, *rest: Any) -> Any:
        lengths[np.iscomplexobj(values)].append(rest[0] if rest else len(values))
        return whole(values, *rest)

    monkeypatch.setattr(composition.fft, "fft", noted)
    Release(loss_of(0.01, 1.0, Adjacency.ZERO_OUT, INTERVAL)).composed(7)
    for seen in lengths.values():
        assert sorted(seen[-16:]) == list(range(1, 17))
