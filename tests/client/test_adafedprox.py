# SPDX-License-Identifier: Apache-2.0
"""adafedprox against a loop in NumPy and against fedavg; how its mu moves."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from dpfed.core.errors import RecipeError, UnsoundPlan
from dpfed.core.registry import build
from dpfed.core.types import UPDATE, Aggregate, Facts, Trust, Unit, Weights
from dpfed.mechanisms.clear import clear
from dpfed.mechanisms.gaussian import gaussian
from tests.helpers.scaffold_oracle import (
    HIDING,
    SIZE,
    Data,
    check_pure,
    end,
    federation,
    make_plan,
    minimiser,
    private,
    unit_rows,
    walk,
)
from tests.refusals import named

K, RATE = 3, 0.3


def local(theta: np.ndarray, one: Any, mu: float, unit: Unit, release: Any) -> np.ndarray:
    """FedProx's step, K times; the last theta."""
    at = theta.copy()
    for k in range(K):
        rows = unit_rows(at, one, unit)
        g = rows[0] if unit is Unit.CLIENT else release(rows, k)
        at = at - RATE * (g + mu * (at - theta))
    return at


def fedprox(data: Data, unit: Unit, C: float, std: float, mus: list[float]) -> np.ndarray:
    theta = np.zeros(SIZE)
    for t, mu in enumerate(mus):
        moves = []
        for i, one in enumerate(data):

            def release(rows: np.ndarray, k: int, t: int = t, i: int = i) -> np.ndarray:
                return private(rows, C, std, t, i, k)

            moved = theta - local(theta, one, mu, unit, release)
            moves.append(release(moved[None], 0) if unit is Unit.CLIENT else moved)
        theta = theta - np.mean(moves, axis=0)
    return theta


@pytest.mark.parametrize("weights", list(Weights))
@pytest.mark.parametrize("unit", list(Unit))
def test_the_path_is_fedprox_with_the_published_mu(unit: Unit, weights: Weights) -> None:
    """mu rises in some rounds here, and each client works with the one that is published."""
    data = federation(3, 20)
    options = {"steps": K, "rate": RATE, "mu": 0.5, "change": 0.4, "patience": 2}
    client = build("client", "adafedprox", options, unit=unit)
    plan = make_plan(client, data, 8, gaussian(Facts(0.7, unit=unit), 0.5), weights=weights)
    rounds = list(walk(plan, data))
    mus = [float(broadcast.shared["proximal"]) for _, broadcast, _ in rounds]
    assert mus[0] == 0.5
    assert len(set(mus)) > 1
    expected = fedprox(data, unit, 0.7, 0.5, mus)
    assert np.abs(rounds[-1][0].params.numpy() - expected).max() < 1e-5


@pytest.mark.parametrize("unit", list(Unit))
def test_one_step_is_fedavg_bit_for_bit(unit: Unit) -> None:
    """Nair et al.'s tables have equal rows where one local step was best: Table 3, epsilon 0.5."""
    data, mechanism = federation(3, 20), gaussian(Facts(0.7, unit=unit), 0.5)
    options = {"steps": 1, "rate": 0.3}
    prox = make_plan(build("client", "adafedprox", options, unit=unit), data, 6, mechanism)
    plain = make_plan(build("client", "fedavg", options, unit=unit), data, 6, mechanism)
    for (one, _, _), (other, _, _) in zip(walk(prox, data), walk(plain, data), strict=True):
        assert torch.equal(one.params, other.params)


def test_without_the_proximal_term_it_is_fedavg() -> None:
    data = federation(3, 20)
    options = {"steps": K, "rate": RATE}
    free = build("client", "adafedprox", {**options, "mu": 0.0, "change": 0.0})
    plain = build("client", "fedavg", options)
    one, other = (
        end(make_plan(c, data, 6, gaussian(Facts(0.7), 0.5)), data) for c in (free, plain)
    )
    assert np.abs(one - other).max() < 1e-12


def test_the_stated_noise_level_holds_whatever_mu_is() -> None:
    """Two records of opposite gradients: the mean is pure noise, sqrt(K) times a release's."""
    from dpfed.core.randomness import Noise
    from dpfed.data.models import Linear, LinearProblem
    from dpfed.sums.plain import plain
    from dpfed.training.inprocess import rounds
    from dpfed.training.plan import Plan

    size = 4000
    problem = LinearProblem(
        Linear("logistic", size, bias=False), torch.zeros(2, size), torch.tensor([0, 1])
    )
    client = build("client", "adafedprox", {"steps": 4, "rate": 0.5, "mu": 1.2, "change": 0.0})
    server = build("server", "scale", {})
    plan = Plan(
        client=client,
        channels={UPDATE: gaussian(Facts(1.0), 2.0)},
        sum=plain(),
        server=server,
        nominal=[2.0],
        rounds=1,
        noise=Noise(1),
    )
    (_, result), *_ = rounds(plan, [problem], torch.zeros(size))
    seen = result.aggregate
    assert seen is not None
    assert seen.std == pytest.approx(2 * 2.0 / 2)
    assert float(seen.mean.std()) == pytest.approx(seen.std, rel=0.04)


# ---------------------------------------------------------------------------------- how mu moves


def adapt(norms: list[float], std: float = 0.0, **options: Any) -> list[float]:
    """mu after each of some rounds whose means have these norms."""
    server = build("client", "adafedprox", {"mu": 0.5, "rate": 0.1, **options}).companion
    state, seen = server.init(torch.zeros(4)), []
    for t, norm in enumerate(norms):
        mean = torch.tensor([norm, 0.0, 0.0, 0.0])
        _, state = server.update(mean, state, Aggregate(t, mean, mean, std, 2, {}, 2))
        seen.append(round(float(state.mu), 9))
    return seen


def test_mu_rises_with_the_signal_and_falls_after_several_falls() -> None:
    assert adapt([1, 2, 3]) == [0.5, 0.6, 0.7]
    assert adapt([9, 8, 7, 6], patience=3) == [0.5, 0.5, 0.5, 0.4]
    assert adapt([9, 8, 7, 7, 6, 5, 4], patience=3) == [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.4]
    assert adapt([9, 8, 7, 8, 7, 6], patience=3) == [0.5, 0.5, 0.5, 0.6, 0.6, 0.6]


def test_mu_stays_within_its_bounds() -> None:
    assert adapt([1, 2, 3], change=8.0) == [0.5, 8.5, 10.0]  # 1 / rate
    assert adapt([9, 8, 7, 6], change=0.3, patience=1) == [0.5, 0.2, 0.0, 0.0]


def test_what_is_noise_alone_moves_nothing() -> None:
    """d std^2 = 4 * 9 = 36: norms below 6 are no signal; an unknown std takes nothing out."""
    assert adapt([1, 5, 2, 4], std=3.0) == [0.5] * 4
    assert adapt([1, 5, 7], std=3.0) == [0.5, 0.5, 0.6]
    assert adapt([1, 5], std=math.nan) == [0.5, 0.6]


def test_a_round_without_clients_moves_nothing() -> None:
    server = build("client", "adafedprox", {}).companion
    state = server.init(torch.zeros(4))
    mean = torch.zeros(4)
    assert server.update(mean, state, Aggregate(0, mean, mean, 0.0, 0, {}, 2))[1] is state


# ---------------------------------------------------------------------------------- what else holds


@pytest.mark.long
def test_clients_that_are_alike_reach_the_minimiser() -> None:
    data = federation(3, 40, alike=True)
    plan = make_plan(build("client", "adafedprox", {"rate": 0.3}), data, 150, clear(Facts(50.0)))
    assert np.abs(end(plan, data) - minimiser(data)).max() < 1e-6


@pytest.mark.long
def test_unlike_clients_drift_less_the_larger_mu_is() -> None:
    """Its documented bias, FedAvg's at mu = 0: 0.10 there, with goals of size 1."""
    data = federation(4, 40)
    goal, away = minimiser(data), []
    for mu in (0.0, 1.0, 3.0):
        options = {"steps": 3, "rate": 0.3, "mu": mu, "change": 0.0}
        plan = make_plan(build("client", "adafedprox", options), data, 150, clear(Facts(50.0)))
        away.append(np.abs(end(plan, data) - goal).max())
    assert 0.12 > away[0] > away[1] > away[2]


def test_releases_are_accounted_for_per_step() -> None:
    for unit, expected in [(Unit.RECORD, 30), (Unit.GROUP, 30), (Unit.CLIENT, 10)]:
        client = build("client", "adafedprox", {"steps": 3}, unit=unit)
        assert client.units == {unit}
        assert client.sends_unmodified == (unit is Unit.CLIENT)
        plan = make_plan(client, federation(2, 6), 10, gaussian(Facts(unit=unit)))
        assert plan.planned(UPDATE) == expected
        check_pure(client)


@pytest.mark.parametrize("trust", [Trust.DISTRIBUTED, Trust.CENTRAL])
def test_at_record_level_only_local_trust_covers_it(trust: Trust) -> None:
    client = build("client", "adafedprox", {})
    with pytest.raises(UnsoundPlan, match="unmodified releases only"):
        make_plan(client, federation(2, 6), 3, gaussian(Facts(trust=trust)), sum=HIDING)


@pytest.mark.parametrize(
    "options",
    [
        {"steps": 0},
        {"patience": 0},
        {"rate": 0.0},
        {"mu": -0.1},
        {"mu": 11.0},
        {"change": -1.0},
        {"mu": math.nan},
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=named("adafedprox", options)):
        build("client", "adafedprox", options)
