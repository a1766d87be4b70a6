# SPDX-License-Identifier: Apache-2.0
"""fedhybrid: its two stages, what each costs, and where it ends without noise."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from dpfed.accounting.gdp import mu_for
from dpfed.accounting.guarantee import mechanism_mu_squared
from dpfed.core.errors import RecipeError, UnsoundPlan
from dpfed.core.randomness import Noise
from dpfed.core.registry import build
from dpfed.core.types import UPDATE, Unit
from dpfed.data.datasets import Records
from dpfed.training.inprocess import rounds
from tests.helpers.least_squares import MODEL, clear_run, distance, minimiser, plan_of, silos
from tests.refusals import named

# ----------------------------------------------------------------------------------- its stages


def test_without_a_start_it_is_fedgd_to_the_bit() -> None:
    problems = [MODEL.problem(Records(x, y)) for x, y in silos()]
    ends = []
    for client in ({"name": "gradient"}, {"name": "fedhybrid", "start": 0}):
        plan = plan_of(client, epsilon=2.0)
        *_, (last, _) = rounds(plan, problems, MODEL.initial(0))
        ends.append((last.params, plan.guarantee().sentence))
    assert torch.equal(ends[0][0], ends[1][0])
    assert ends[0][1] == ends[1][1]


@pytest.mark.parametrize("unit", [Unit.RECORD, Unit.CLIENT])
def test_the_start_alone_is_fedavg_to_the_bit(unit: Unit) -> None:
    options = {"steps": 4, "rate": 0.3}
    average = clear_run("logistic", silos(), {"name": "fedavg", **options}, rounds=3, unit=unit)
    hybrid = {"name": "fedhybrid", "start": 3, **options}
    begun = clear_run("logistic", silos(), hybrid, rounds=4, stop=3, unit=unit)
    assert torch.equal(begun, average)


def test_the_start_leads_its_rounds_and_has_noise_of_its_own() -> None:
    plan = plan_of({"name": "fedhybrid", "start": 2, "steps": 4}, epsilon=2.0)
    assert [plan.due(t) for t in range(4)] == [["start"], ["start"], [UPDATE], [UPDATE]]
    assert (plan.planned("start"), plan.planned(UPDATE)) == (8, 10)
    problems = [MODEL.problem(Records(x, y)) for x, y in silos()]
    seen = [o.aggregate for _, o in rounds(plan, problems, MODEL.initial(0))]
    assert [s.lead for s in seen if s][:3] == ["start", "start", UPDATE]
    for channel, at, factor in (("start", 0, 2.0), (UPDATE, 5, 1.0)):
        level = seen[at]
        assert level is not None
        expected = plan.channels[channel].std * factor * math.sqrt(3) / 150
        assert level.std == pytest.approx(expected)


@pytest.mark.long
@pytest.mark.slow
def test_the_level_of_the_starts_noise_is_measured() -> None:
    """At a small rate, where the local steps hardly turn the noise."""
    client = {"name": "fedhybrid", "start": 1, "steps": 4, "rate": 1e-4}
    plan = plan_of(client, std_over_clip=20.0)
    problems = [MODEL.problem(Records(x, y)) for x, y in silos()]
    means = []
    for seed in range(150):
        _, result = next(rounds(replace(plan, noise=Noise(seed)), problems, MODEL.initial(0)))
        assert result.aggregate is not None
        means.append(result.aggregate.mean)
    measured = float(torch.stack(means).std(dim=0).mean())
    assert measured == pytest.approx(result.aggregate.std, rel=0.1)


def test_the_servers_half_multiplies_by_the_stages_rate() -> None:
    data = silos()
    one = clear_run("logistic", data, {"name": "fedhybrid", "start": 0, "step": 0.25}, rounds=1)
    whole = clear_run("logistic", data, {"name": "fedhybrid", "start": 0}, rounds=1)
    assert torch.equal(one, 0.25 * whole)
    steps = {"name": "fedhybrid", "start": 1, "steps": 1, "rate": 0.25, "step": 3.0}
    assert torch.allclose(clear_run("logistic", data, steps, rounds=2, stop=1), 0.25 * whole)


def test_a_start_that_takes_all_rounds_is_refused() -> None:
    with pytest.raises(UnsoundPlan, match="reply on 'update'"):
        plan_of({"name": "fedhybrid", "start": 12}, epsilon=1.0)


# --------------------------------------------------------------------------------- what it costs


@pytest.mark.parametrize("share", [0.5, 0.2])
def test_each_stage_has_its_part_of_the_squared_mu(share: float) -> None:
    """Auddy et al.'s appendix: mu / sqrt(2) for each of the two."""
    plan = plan_of({"name": "fedhybrid", "start": 2, "steps": 5, "share": share}, epsilon=1.0)
    mu = mu_for(1.0, 1e-5)
    start, rest = plan.channels["start"], plan.channels[UPDATE]
    assert mechanism_mu_squared(start, 10) == pytest.approx(share * mu**2)
    assert mechanism_mu_squared(rest, 10) == pytest.approx((1 - share) * mu**2)
    assert start.std == pytest.approx(2 * math.sqrt(10 / share) / mu)
    assert plan.guarantee().epsilon == pytest.approx(1.0)


def test_a_client_releases_once_a_round_at_client_level() -> None:
    plan = plan_of({"name": "fedhybrid", "start": 2, "steps": 5}, epsilon=1.0, unit="client")
    assert (plan.planned("start"), plan.planned(UPDATE)) == (2, 10)
    plan_of({"name": "fedhybrid"}, epsilon=1.0, unit="client", trust="central")


def test_local_steps_allow_local_trust_only() -> None:
    with pytest.raises(UnsoundPlan, match="unmodified releases only"):
        plan_of({"name": "fedhybrid"}, epsilon=1.0, trust="central")
    plan_of({"name": "fedhybrid", "start": 0}, epsilon=1.0, trust="central")


@pytest.mark.parametrize(
    "options",
    [
        {"start": -1},
        {"steps": 0},
        {"rate": 0.0},
        {"rate": math.nan},
        {"step": math.inf},
        {"share": 0.0},
        {"share": 1.0},
        {"share": math.nan},
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=named("fedhybrid", options)):
        build("client", "fedhybrid", options)


# ----------------------------------------------------------------------------- where it ends


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("link", ["logistic", "poisson"])
def test_without_noise_it_reaches_the_pooled_minimiser_where_fedavg_does_not(link: str) -> None:
    """Clients with features apart: FedSGD's stage has no federation bias, local steps have one."""
    data = silos(link, apart=0.8)
    goal = minimiser(link, data)
    hybrid = {"name": "fedhybrid", "start": 10, "steps": 20, "rate": 0.3, "step": 0.5}
    assert distance(clear_run(link, data, hybrid, rounds=200), goal) < 1e-3
    average = {"name": "fedavg", "steps": 20, "rate": 0.3}
    assert distance(clear_run(link, data, average, rounds=30), goal) > 0.02
