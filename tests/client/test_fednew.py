# SPDX-License-Identifier: Apache-2.0
"""fednew: its cost, its duals, what it refuses, and where it ends without noise.

Its equations and its sensitivity are tested in tests/oracles/test_fednew.py.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from dpfed.accounting.gdp import mu_for
from dpfed.core.errors import RecipeError, UnsoundPlan
from dpfed.core.registry import build
from dpfed.core.sum_protocol import StageReply
from dpfed.core.types import UPDATE, Adjacency, Aggregate, Broadcast, Trust, Unit
from dpfed.data.datasets import Records
from dpfed.data.models import Linear
from dpfed.training.plan import Plan
from dpfed.training.reply import ClientState, PricedReleaser, client_reply, make_reply
from dpfed.training.round import publish, run_round, start
from tests.helpers.least_squares import MODEL, clear_run, distance, minimiser, plan_of, silos
from tests.refusals import named

OPTIONS = {"name": "fednew", "rho": 0.4, "alpha": 0.1, "c1": 0.5, "c2": 2.0, "hessian": 0.8}


@pytest.mark.parametrize(
    ("adjacency", "moved"),
    [
        (Adjacency.REPLACE_ONE, 2 * 0.5 / 0.5 + 0.8 * 2.0 / 0.25),
        (Adjacency.ADD_REMOVE, 0.5 / 0.5 + 0.8 * 2.0 / 0.25),
        (Adjacency.ZERO_OUT, 0.5 / 0.5 + 0.8 * 2.0 / 0.25),
    ],
)
@pytest.mark.parametrize("curvature", ["hessian", "covariance"])
def test_the_noise_is_sized_for_the_direction(
    adjacency: Adjacency, moved: float, curvature: str
) -> None:
    plan = plan_of({**OPTIONS, "curvature": curvature}, epsilon=1.0, adjacency=adjacency)
    mu = mu_for(1.0, 1e-5)
    assert plan.update.std == pytest.approx(math.sqrt(12) * moved / mu, rel=1e-4)
    assert plan.update.std > math.sqrt(12) * moved / mu  # rounding is in the price
    assert plan.guarantee().epsilon == pytest.approx(1.0)
    assert plan.client.memory == ("d^2" if curvature == "hessian" else "f^2")


def test_the_hessians_part_is_not_doubled_by_replace_one() -> None:
    """Remark 5 doubles the whole sensitivity; here 8.4 takes the place of 14.8."""
    channel = build("client", "fednew", _without_name(OPTIONS), layout=MODEL.layout).channels[
        UPDATE
    ]
    assert channel.clip == pytest.approx(7.4, rel=1e-4)
    assert channel.replace_bound == pytest.approx(8.4, rel=1e-4)


def _without_name(options: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key != "name"}


def client_states() -> dict[int, ClientState]:
    return {i: ClientState(i, MODEL.problem(Records(x, y))) for i, (x, y) in enumerate(silos())}


def run_rounds(plan: Plan, people: dict[int, ClientState], count: int) -> list[Any]:
    def transport(broadcast: Broadcast, stage: str, requests: Any) -> Any:
        for client in sorted(people):
            reply: StageReply
            reply, people[client] = client_reply(
                plan, broadcast, stage, {UPDATE: b""}, people[client]
            )
            yield client, reply

    state, seen = start(plan, MODEL.initial(0)), []
    for _ in range(count):
        state, result = run_round(plan, state, transport)
        seen.append((publish(plan, state), result.aggregate))
    return seen


def test_the_mean_is_published_and_the_duals_cancel() -> None:
    """The weighted sum of the clients' lambda is 0, noise or not: they only trade."""
    plan, people = plan_of(OPTIONS, epsilon=5.0), client_states()
    assert plan.server.update_ is not None  # it overwrites the direction, but not the mean
    seen = run_rounds(plan, people, 4)
    for broadcast, aggregate in seen:
        assert torch.equal(broadcast.shared["primal"], aggregate.mean)
    y = seen[-1][0].shared["primal"]
    duals = [person.state.vector - 0.4 * y for person in people.values()]
    total = sum(m * dual for m, dual in zip((40.0, 60.0, 50.0), duals, strict=True))
    scale = max(float(dual.abs().max()) for dual in duals)
    assert scale > 0.1
    assert float(total.abs().max()) < 1e-4 * scale * 150


def test_a_client_that_joins_late_starts_with_a_dual_of_zero() -> None:
    plan = plan_of(OPTIONS, std_over_clip=1e-9)
    x, y = silos()[0]
    late = ClientState(0, MODEL.problem(Records(x, y)))
    primal = torch.tensor([0.3, -0.2, 0.1, 0.4])
    broadcast = Broadcast(5, torch.zeros(4), {"primal": primal})
    reply, after = make_reply(plan, broadcast, late, PricedReleaser(plan, broadcast, late))
    own = reply[UPDATE].vector * reply[UPDATE].step / 40.0
    assert torch.allclose(after.state.vector, 0.4 * own.float(), atol=1e-6)
    assert after.state.begun == 1


def test_only_local_trust_is_sound() -> None:
    for unit in Unit:
        with pytest.raises(UnsoundPlan, match="builds its later replies"):
            plan_of(OPTIONS, epsilon=1.0, unit=unit, trust=Trust.CENTRAL)
        assert len(plan_of(OPTIONS, epsilon=1.0, unit=unit).guarantee().claims) == 1


def test_records_may_not_be_drawn() -> None:
    with pytest.raises(UnsoundPlan, match=r"record_rate must be 1"):
        plan_of(OPTIONS, epsilon=1.0, adjacency="add-remove", record_rate=0.5)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("name", ["rho", "alpha", "c1", "c2", "hessian"])
def test_options_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(RecipeError, match=named("fednew", [name])):
        build("client", "fednew", {name: value}, layout=MODEL.layout)


def test_an_unknown_curvature_or_model_is_refused() -> None:
    with pytest.raises(RecipeError, match="got 'fisher'"):
        build("client", "fednew", {"curvature": "fisher"}, layout=MODEL.layout)
    with pytest.raises(RecipeError, match="fednew needs a model"):
        build("client", "fednew", {})


def test_groups_are_clipped_as_one() -> None:
    """A person's records count as one unit in both clips: twice the same record is one, longer."""
    model = Linear("logistic", 3)
    x, y = silos()[0]
    alone = model.problem(Records(x[:8], y[:8], torch.arange(8)))
    twice = model.problem(Records(x[:8].repeat(2, 1), y[:8].repeat(2), torch.arange(8).repeat(2)))
    plan = plan_of({**OPTIONS, "c1": 1e-3, "hessian": 1e-3}, std_over_clip=1e-9, unit="group")
    replies = []
    for problem in (alone, twice):
        client = ClientState(0, problem)
        broadcast = publish(plan, start(plan, MODEL.initial(0)))
        reply, _ = make_reply(plan, broadcast, client, PricedReleaser(plan, broadcast, client))
        replies.append(reply[UPDATE].vector * reply[UPDATE].step)
    assert torch.allclose(replies[0], replies[1], rtol=1e-4, atol=1e-7)


@pytest.mark.sample(4)
@pytest.mark.slow
@pytest.mark.parametrize("unit", [Unit.RECORD, Unit.CLIENT])
@pytest.mark.parametrize("link", ["logistic", "poisson"])
@pytest.mark.parametrize("curvature", ["hessian", "covariance"])
def test_without_noise_it_reaches_the_pooled_minimiser(
    link: str, curvature: str, unit: Unit
) -> None:
    """Clients with features apart too: at a fixed point y = 0 and lambda_i = g_i, which cancel."""
    data = silos(link, apart=0.0 if unit is Unit.CLIENT else 0.8, twins=unit is Unit.CLIENT)
    wide = {"c1": 1e3, "c2": 1e3, "hessian": 1e3}
    client = {"name": "fednew", "rho": 0.3, "alpha": 0.05, "curvature": curvature, **wide}
    found = clear_run(link, data, client, rounds=120, unit=unit)
    assert distance(found, minimiser(link, data)) < 1e-4


def test_the_servers_half_is_pure() -> None:
    companion = build("client", "fednew", {}, layout=MODEL.layout).companion
    assert companion is not None
    g = torch.ones(4)
    before = companion.init(torch.zeros(4))
    direction, after = companion.update(g, before, Aggregate(0, torch.zeros(4), g, 0.1, 1))
    assert torch.equal(direction, g)
    assert not before.vector.any()
    assert torch.equal(after.vector, g)
