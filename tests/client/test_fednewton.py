# SPDX-License-Identifier: Apache-2.0
"""fednewton: its three channels, what it refuses, and where it ends without noise.

Its equations are tested in tests/oracles/test_fednewton.py.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from dpfed.accounting.gdp import mu_for
from dpfed.accounting.guarantee import mechanism_mu_squared
from dpfed.core.errors import RecipeError, UnsoundPlan
from dpfed.core.registry import build
from dpfed.core.types import UPDATE, Trust, Unit
from dpfed.data.datasets import Records
from dpfed.data.models import Linear
from dpfed.training.inprocess import rounds
from tests.helpers.least_squares import MODEL, clear_run, distance, minimiser, plan_of, silos
from tests.refusals import named


def test_three_channels_share_the_budget() -> None:
    """mu^2 = (0.5 + 0.2 + 0.3) mu^2; one Hessian moves the sum by sqrt(2) its clip."""
    client = {"name": "fednewton", "start": 2, "steps": 3, "hessian": 0.7, "hessian_share": 0.2}
    plan = plan_of(client, epsilon=1.0)
    mu = mu_for(1.0, 1e-5)
    planned = {name: plan.planned(name) for name in plan.channels}
    assert planned == {UPDATE: 10, "hessian": 10, "start": 6}
    parts = {
        name: mechanism_mu_squared(m, planned[name]) / mu**2 for name, m in plan.channels.items()
    }
    assert parts == pytest.approx({UPDATE: 0.3, "hessian": 0.2, "start": 0.5})
    std = plan.channels["hessian"].std
    assert 10 * (math.sqrt(2) * 0.7 / std) ** 2 == pytest.approx(0.2 * mu**2)
    assert plan.guarantee().epsilon == pytest.approx(1.0)


def test_the_hessian_stays_at_home() -> None:
    plan = plan_of({"name": "fednewton", "start": 1}, Linear("softmax", 5, 3), epsilon=1.0)
    assert [plan.due(t) for t in range(3)] == [["start"], [UPDATE], [UPDATE]]
    assert plan.size("hessian", 18) == 18 * 19 // 2
    assert plan.client.memory == "d^2"


def test_the_noise_level_of_a_newton_step_is_not_claimed() -> None:
    plan = plan_of({"name": "fednewton", "hessian": 5.0}, epsilon=20.0)
    problems = [MODEL.problem(Records(x, y)) for x, y in silos()]
    levels = [o.aggregate.std for _, o in rounds(plan, problems, MODEL.initial(0)) if o.aggregate]
    assert levels[0] == pytest.approx(
        plan.channels["start"].std * math.sqrt(5) * math.sqrt(3) / 150
    )
    assert all(math.isnan(level) for level in levels[1:])


def test_a_client_makes_its_step_in_clear_and_releases_it_once() -> None:
    plan = plan_of({"name": "fednewton", "start": 2}, epsilon=1.0, unit=Unit.CLIENT)
    assert set(plan.channels) == {UPDATE, "start"}
    assert (plan.planned("start"), plan.planned(UPDATE)) == (2, 10)
    plan_of({"name": "fednewton"}, epsilon=1.0, unit=Unit.CLIENT, trust=Trust.CENTRAL)


def test_two_releases_in_one_reply_allow_local_trust_only() -> None:
    for unit in (Unit.RECORD, Unit.GROUP):
        with pytest.raises(UnsoundPlan, match="unmodified releases only"):
            plan_of({"name": "fednewton"}, epsilon=1.0, unit=unit, trust=Trust.CENTRAL)


@pytest.mark.parametrize(
    "options",
    [
        {"start": -1},
        {"steps": 0},
        {"rate": 0.0},
        {"rate": math.nan},
        {"hessian": math.inf},
        {"damping": -1e-9},
        {"damping": math.nan},
        {"share": 0.0},
        {"share": 0.8},
        {"hessian_share": 0.5},
        {"hessian_share": math.nan},
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(
        RecipeError, match=named("fednewton", [*options, r"share \+ hessian_share"])
    ):
        build("client", "fednewton", options, layout=MODEL.layout)


def test_only_a_linear_layer_will_do() -> None:
    with pytest.raises(RecipeError, match="fednewton needs a model"):
        build("client", "fednewton", {})


def test_noise_that_makes_the_hessian_indefinite_leaves_a_finite_step() -> None:
    """Under 1 / damping times the gradient, whatever the noise on the Hessian."""
    plan = plan_of({"name": "fednewton", "start": 0, "damping": 0.5}, std_over_clip=1e3)
    problems = [MODEL.problem(Records(x, y)) for x, y in silos()]
    *_, (last, _) = rounds(plan, problems, MODEL.initial(0))
    assert bool(torch.isfinite(last.params).all())


# ------------------------------------------------------------------------------- where it ends


@pytest.mark.parametrize("unit", [Unit.RECORD, Unit.CLIENT])
@pytest.mark.parametrize("link", ["logistic", "poisson"])
def test_alike_clients_reach_the_pooled_minimiser_in_a_few_rounds(link: str, unit: Unit) -> None:
    data = silos(link, twins=True)
    client = {"name": "fednewton", "hessian": 1e3, "damping": 0.0}
    found = clear_run(link, data, client, rounds=8, unit=unit)
    assert distance(found, minimiser(link, data)) < 1e-5


def mean_step(theta: Any, data: list[tuple[torch.Tensor, torch.Tensor]], damping: float) -> Any:
    """The weighted mean of the clients' steps for logistic regression."""
    total = np.zeros(4)
    for x, y in data:
        X = np.c_[x.double().numpy(), np.ones(len(x))]
        p = 1 / (1 + np.exp(-X @ theta))
        H = (X.T * (p * (1 - p))) @ X / len(X) + damping * np.eye(4)
        total += len(X) * np.linalg.solve(H, X.T @ (p - y.double().numpy()) / len(X))
    return total / sum(len(x) for x, _ in data)


def test_clients_apart_end_where_their_steps_cancel_not_at_the_minimiser() -> None:
    """The method's own bias, as its docstring says: 0.04 where clients differ by chance only."""
    for apart, bias in ((0.0, 0.039), (0.8, 0.133)):
        data = silos(apart=apart)
        client = {"name": "fednewton", "hessian": 1e3, "damping": 0.1}
        found = clear_run("logistic", data, client, rounds=40)
        assert np.abs(mean_step(found.double().numpy(), data, 0.1)).max() < 1e-5
        assert distance(found, minimiser("logistic", data)) == pytest.approx(bias, abs=0.002)


def test_one_step_after_the_start_takes_away_most_of_what_is_left() -> None:
    """Auddy et al.'s setting: FedAvg's rounds, then just one Newton step."""
    data = silos(twins=True)
    goal = minimiser("logistic", data)
    options = {"steps": 50, "rate": 0.3}
    before = clear_run("logistic", data, {"name": "fedavg", **options}, rounds=1)
    client = {"name": "fednewton", "start": 1, "hessian": 1e3, "damping": 0.0, **options}
    after = clear_run("logistic", data, client, rounds=2)
    assert distance(after, goal) < 0.2 * distance(before, goal)
