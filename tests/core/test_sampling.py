# SPDX-License-Identifier: Apache-2.0
"""Draws and their cost: each line of sampling.py's table, and against whom a draw hides."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import dp_accounting as dp
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from scipy import stats

from dpfed.accounting.accountant import RELATIONS
from dpfed.accounting.guarantee import epsilon_of_event
from dpfed.core.errors import BadRelease, RecipeError, Unpriceable, UnsoundPlan
from dpfed.core.randomness import Noise
from dpfed.core.rows import Chunks, Dense, Outer, Scaled
from dpfed.core.sampling import CHANCE_OF_MORE, EVERYONE, Everyone, Poisson, most_drawn
from dpfed.core.types import Adjacency, BoundedSum, Facts, Rows
from dpfed.mechanisms.clear import clear
from dpfed.mechanisms.gaussian import gaussian
from dpfed.recipes.build import plan_for
from dpfed.recipes.schema import parse
from dpfed.training.inprocess import rounds
from dpfed.training.plan import Plan
from tests.helpers.batches import FixedBatch

RATE, UNITS, DRAWS = 0.13, 40, 20_000


@functools.cache
def draws(sampling: Any, count: int = DRAWS, units: int = UNITS) -> np.ndarray:
    return np.stack(
        [sampling.draw(units, Noise(3).stream("release", i)).numpy() for i in range(count)]
    )


@pytest.mark.slow
def test_every_unit_is_included_as_often_as_the_rate_says() -> None:
    included = draws(Poisson(RATE)).sum(axis=0)
    pvalues = [stats.binomtest(int(k), DRAWS, RATE).pvalue for k in included]
    assert min(pvalues) > 1e-3 / UNITS
    pooled = stats.binomtest(int(included.sum()), DRAWS * UNITS, RATE).pvalue
    assert pooled > 1e-3


@pytest.mark.slow
def test_units_are_drawn_independently_of_each_other_and_of_the_last_draw() -> None:
    """Pairs within a draw, and each unit with itself in the next draw: all uncorrelated."""
    kept = draws(Poisson(RATE))
    both = (kept.T.astype(float) @ kept.astype(float))[np.triu_indices(UNITS, 1)]
    spread = math.sqrt(DRAWS * RATE**2 * (1 - RATE**2))
    z = (both - DRAWS * RATE**2) / spread
    assert np.abs(z).max() < stats.norm.isf(1e-3 / (2 * z.size))
    assert 0.8 < z.std() < 1.2
    again = (kept[1:] & kept[:-1]).sum(axis=0)
    assert min(stats.binomtest(int(k), DRAWS - 1, RATE**2).pvalue for k in again) > 1e-3 / UNITS


@pytest.mark.slow
def test_the_size_of_a_batch_is_binomial_which_a_fixed_draw_is_not() -> None:
    sizes = draws(Poisson(RATE)).sum(axis=1)
    expected = stats.binom.pmf(np.arange(UNITS + 1), UNITS, RATE) * DRAWS
    counts = np.bincount(sizes, minlength=UNITS + 1)
    usual = expected > 5
    table = np.append(counts[usual], counts[~usual].sum())
    assert stats.chisquare(table, np.append(expected[usual], expected[~usual].sum())).pvalue > 1e-3
    fixed = draws(FixedBatch(5, UNITS), 4000)
    assert set(fixed.sum(axis=1)) == {5}
    assert stats.chisquare(fixed.sum(axis=0)).pvalue > 1e-3


def test_everyone_draws_nothing() -> None:
    assert EVERYONE.draw(7, Noise(0).stream("release")) is None
    event = dp.GaussianDpEvent(2.0)
    assert EVERYONE.amplify(event) is event
    assert Poisson(1.0).amplify(event) is event


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.01, math.nan])
def test_a_rate_outside_its_range_is_refused(rate: float) -> None:
    with pytest.raises(RecipeError, match=r"from 1e-06 to 1, got.*; 1 draws"):
        Poisson(rate)
    with pytest.raises(RecipeError, match=r"rate must be 1, got .*; use Poisson"):
        Everyone(rate)


# ------------------------------------------------------------------------------ rows that are drawn


def kinds() -> dict[str, Rows]:
    x = torch.randn(9, 4, generator=torch.Generator().manual_seed(1))
    residual = torch.randn(9, 2, generator=torch.Generator().manual_seed(2))
    dense = (residual[:, :, None] * x[:, None, :]).flatten(1)
    return {
        "dense": Dense(dense),
        "outer": Outer(residual, x, bias=False),
        "outer with norms": Outer(residual, x, bias=False, feature_norms=x.double().norm(dim=1)),
        "chunks": Chunks(lambda index: dense[index], 9, 8, chunk=2),
        "scaled": Scaled(Outer(residual, x, bias=False), torch.ones(8)),
    }


@pytest.mark.parametrize("kind", kinds())
@pytest.mark.parametrize("grouped", [False, True])
def test_a_selection_is_the_sum_over_the_units_kept(kind: str, grouped: bool) -> None:
    groups = torch.tensor([3, 3, 1, 1, 1, 7, 7, 5, 5]) if grouped else None
    reference = kinds()["dense"]
    assert isinstance(reference, Dense)
    rows: Any = kinds()[kind]
    inner = rows.rows if kind == "scaled" else rows
    object.__setattr__(inner, "groups", groups)
    units = 4 if grouped else 9
    assert rows.units == units
    for kept in itertools.islice(itertools.product([True, False], repeat=units), 40):
        mask = torch.tensor(kept)
        if groups is None:
            members = mask
        else:
            chosen = torch.unique(groups)[mask]
            members = torch.isin(groups, chosen)
        expected = Dense(
            reference.matrix[members], None if groups is None else groups[members]
        ).clipped_sum(0.7)
        got = rows.select(mask).clipped_sum(0.7)
        assert torch.allclose(got.vector, expected.vector, atol=1e-6)


def test_an_empty_draw_releases_pure_noise() -> None:
    mechanism = gaussian(Facts(clip=1.0), std=2.0).with_sampling(Poisson(1e-6))
    release, _ = mechanism.release(
        Dense(torch.full((50, 20_000), 9.0)), (), Noise(1).stream("release")
    )
    values = release.vector.double().numpy() * release.step
    assert stats.kstest(values, "norm", args=(0, 2.0)).pvalue > 1e-3


class Unsampled:
    """Rows that cannot be drawn from."""

    def clipped_sum(self, clip: float) -> BoundedSum:
        return BoundedSum(torch.zeros(3), clip, 2 * clip)


def test_rows_that_cannot_be_drawn_from_are_refused() -> None:
    mechanism = gaussian().with_sampling(Poisson(0.5))
    with pytest.raises(BadRelease, match=r"set privacy\.record_rate = 1"):
        mechanism.release(Unsampled(), (), Noise(1).stream("release"))


def test_the_draw_decides_which_rows_are_summed_whatever_the_algorithm_does() -> None:
    """An algorithm hands over all rows; the mechanism draws: nothing can be forgotten."""
    rows = Dense(torch.eye(1000))
    mechanism = clear(Facts(clip=1.0)).with_sampling(Poisson(0.3))
    release, _ = mechanism.release(rows, (), Noise(5).stream("release"))
    kept = Poisson(0.3).draw(1000, Noise(5).stream("release"))
    values = release.vector.double() * release.step
    assert torch.allclose(values, kept.double(), atol=1e-5)


# --------------------------------------------------------------------------------------------- cost


RATES = [
    (0.01, 70, 0.7),
    (0.01, 500, 1.0),
    (0.05, 350, 2.0),
    (0.1, 70, 1.5),
    (0.1, 350, 4.0),
    (0.2, 100, 1.0),
    (0.2, 20, 3.0),
    (0.5, 70, 5.0),
    (0.9, 10, 2.0),
    (0.02, 2000, 1.2),
]
SETTINGS = [  # by turns: the long suite has each under both
    pytest.param(adjacency, *each, marks=[pytest.mark.long] * ((at + other) % 2))
    for other, adjacency in enumerate((Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT))
    for at, each in enumerate(RATES)
]


def sampled_plan(**privacy: Any) -> Plan:
    tables = {"rounds": privacy.pop("rounds", 10), "privacy": {"noise": "keyed", **privacy}}
    return plan_for(parse({**tables, "client": {"name": "gradient"}}), [100.0] * 5)


@pytest.mark.slow
@pytest.mark.parametrize(("adjacency", "rate", "steps", "multiplier"), SETTINGS)
@pytest.mark.long
def test_the_price_is_dp_accountings_own(
    adjacency: Adjacency, rate: float, steps: int, multiplier: float
) -> None:
    plan = sampled_plan(
        rounds=steps, record_rate=rate, adjacency=adjacency, std_over_clip=multiplier, nominal=100.0
    )
    accountant = PLDAccountant(RELATIONS[adjacency])
    accountant.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(multiplier)), steps)
    expected = accountant.get_epsilon(1e-5)
    assert plan.guarantee().epsilon == pytest.approx(expected, rel=1e-8)
    assert plan.guarantee().epsilon >= expected
    assert "PLD" in plan.guarantee().sentence
    assert f"drawn for a release with probability {rate:g}, known to its client only" in str(
        plan.guarantee()
    )
    assert plan.guarantee().claims[0].delta_reserved < 1e-10


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_a_fixed_size_draw_is_not_accounted_for_as_poisson(adjacency: Adjacency) -> None:
    with pytest.raises(RecipeError, match="no field 'batch_size'; set record_rate"):
        sampled_plan(batch_size=10, adjacency=adjacency, epsilon=1.0, nominal=100.0)
    event = FixedBatch(10, 100).amplify(dp.GaussianDpEvent(2.0))
    with pytest.raises(Unpriceable):
        epsilon_of_event(event, 1e-5, adjacency)


def test_the_most_that_are_drawn_is_a_bound_and_not_far_off() -> None:
    for units, rate in ((60_000, 0.1), (3000, 0.1), (500, 0.5), (64, 0.02), (1, 0.3), (0, 0.3)):
        most = most_drawn(units, rate)
        assert float(stats.binom.logsf(most, units, rate)) <= math.log(CHANCE_OF_MORE)
        assert most <= min(units, units * rate + 14 * math.sqrt(units * rate) + 100)
    assert most_drawn(50, 1.0) == 50


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.5, pytest.param(3.0, marks=pytest.mark.long)])
def test_calibrated_noise_keeps_the_guarantee_and_is_close_to_the_least(epsilon: float) -> None:
    given: dict[str, Any] = {"record_rate": 0.1, "adjacency": "zero-out", "rounds": 30}
    plan = sampled_plan(epsilon=epsilon, **given)
    assert 0.999 * epsilon < plan.guarantee().epsilon <= epsilon
    everyone = sampled_plan(epsilon=epsilon, rounds=30, adjacency="zero-out")
    assert plan.update.std < everyone.update.std / 4
    quieter = sampled_plan(std_over_clip=0.999 * plan.update.std, **given)
    assert quieter.guarantee().epsilon > epsilon


@pytest.mark.long
@pytest.mark.slow
def test_metrics_are_accounted_for_beside_drawn_records() -> None:
    tables = {
        "rounds": 12,
        "privacy": {"epsilon": 0.5, "record_rate": 0.2, "adjacency": "zero-out"},
        "evaluation": {"kind": "federated", "every": 4},
    }
    plan = plan_for(parse(tables), [100.0] * 5)
    assert isinstance(plan.channels["metrics"].sampling, Everyone)
    assert 0.4975 < plan.guarantee().epsilon <= 0.5
    accountant = PLDAccountant(RELATIONS[Adjacency.ZERO_OUT])
    accountant.compose(plan.channels["update"].event(12))
    accountant.compose(plan.channels["metrics"].event(3))
    assert accountant.get_epsilon(1e-5) == pytest.approx(plan.guarantee().epsilon, rel=1e-6)


# -------------------------------------------------------------- whom a draw of clients hides from


@pytest.mark.slow
def test_client_sampling_amplifies_where_the_server_is_trusted_and_a_client_is_the_unit() -> None:
    given: dict[str, Any] = {"unit": "client", "trust": "central", "adjacency": "zero-out"}
    drawn = sampled_plan(client_rate=0.2, std_over_clip=2.0, **given)
    everyone = sampled_plan(std_over_clip=2.0, **given)
    accountant = PLDAccountant(RELATIONS[Adjacency.ZERO_OUT])
    accountant.compose(dp.PoissonSampledDpEvent(0.2, dp.GaussianDpEvent(2.0)), 10)
    assert drawn.guarantee().epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-8)
    assert drawn.guarantee().epsilon < everyone.guarantee().epsilon / 2
    sentence = drawn.guarantee().sentence
    assert "alone knows who takes part" in sentence
    assert "against the server" not in sentence


@pytest.mark.parametrize(
    "privacy",
    [
        {"unit": "client", "trust": "local"},  # the server sees who takes part
        {"unit": "record", "trust": "local"},
        {"unit": "record", "trust": "central"},  # the client's other records show that it is there
    ],
    ids=str,
)
def test_client_sampling_is_worth_nothing_elsewhere(privacy: dict[str, Any]) -> None:
    given = {**privacy, "adjacency": "zero-out", "std_over_clip": 2.0}
    drawn, everyone = sampled_plan(client_rate=0.2, **given), sampled_plan(**given)
    assert drawn.guarantee().claims[0].epsilon == everyone.guarantee().claims[0].epsilon
    assert drawn.guarantee().epsilon == everyone.guarantee().epsilon
    assert len(drawn.guarantee().claims) == 1  # how many others' noise is there is not known yet


def test_a_client_has_no_records_to_draw() -> None:
    with pytest.raises(UnsoundPlan, match=r"set privacy\.client_rate instead"):
        sampled_plan(record_rate=0.5, unit="client", adjacency="zero-out", epsilon=1.0)


class Ones:
    """A problem whose release is one in every coordinate: counts who took part."""

    dimension = 4

    def rows(self, params: torch.Tensor, unit: Any) -> Rows:
        return Dense(torch.ones(1, 4) / 2)


@pytest.mark.slow
def test_clients_are_drawn_as_often_as_the_rate_says_and_the_divisor_is_public() -> None:
    plan = plan_for(
        parse(
            {
                "rounds": 300,
                "privacy": {
                    "unit": "client",
                    "trust": "central",
                    "mechanism": "clear",
                    "client_rate": 0.3,
                    "noise": "keyed",
                },
            }
        ),
        [1.0] * 6,
    )
    taken = np.zeros(6)
    for _, result in rounds(plan, [Ones()] * 6, torch.zeros(4)):  # type: ignore[list-item]
        taken[list(result.clients)] += 1
        assert result.aggregate is not None
        # n q is the divisor, not how many came; nobody is a round like any other
        assert torch.allclose(
            result.aggregate.mean, torch.full((4,), 0.5 * len(result.clients) / (6 * 0.3))
        )
        assert (result.aggregate.enrolled, result.aggregate.participation_rate) == (6, 0.3)
    assert min(stats.binomtest(int(k), 300, 0.3).pvalue for k in taken) > 1e-3
