# SPDX-License-Identifier: Apache-2.0
"""fedfc: what it releases, what that costs, and where it ends without noise.

Its equations are tested in tests/oracles/test_fedfc.py.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from dpfed.accounting.gdp import mu_for
from dpfed.accounting.guarantee import mechanism_mu_squared
from dpfed.core.errors import BadRelease, ClientRefused, RecipeError, UnsoundPlan
from dpfed.core.registry import build
from dpfed.core.types import UPDATE, Adjacency, Aggregate, Broadcast, Facts, Trust, Unit
from dpfed.core.vector import Layout
from dpfed.data.datasets import Records
from dpfed.data.models import Linear
from dpfed.data.modules import Network
from dpfed.mechanisms.gaussian import gaussian
from dpfed.sums.secure import secure
from dpfed.training.inprocess import rounds
from dpfed.training.reply import ClientState, PricedReleaser, client_reply
from dpfed.training.round import publish, start
from tests.helpers.least_squares import MODEL, clear_run, distance, minimiser, plan_of, silos
from tests.refusals import named

SOFTMAX = Linear("softmax", 5, 3)


@pytest.mark.parametrize(
    ("adjacency", "moved"),
    [
        (Adjacency.REPLACE_ONE, math.sqrt(2) * 4.0),
        (Adjacency.ADD_REMOVE, 4.0),
        (Adjacency.ZERO_OUT, 4.0),
    ],
)
@pytest.mark.parametrize("share", [0.1, 0.4])
def test_both_parts_are_accounted_for_and_share_the_budget(
    adjacency: Adjacency, moved: float, share: float
) -> None:
    """mu^2 = mu_C^2 + T mu_g^2 with mu_C = D / std, D = sqrt(2) R^2 under replace-one."""
    client = {"name": "fedfc", "radius": 2.0, "share": share}
    plan = plan_of(client, SOFTMAX, epsilon=1.0, adjacency=adjacency)
    covariance, update = plan.channels["covariance"], plan.channels[UPDATE]
    mu = mu_for(1.0, 1e-5)
    assert (plan.planned("covariance"), plan.planned(UPDATE)) == (1, 12)
    assert (moved / covariance.std) ** 2 == pytest.approx(share * mu**2)
    twice = 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0
    assert 12 * (twice / update.std) ** 2 == pytest.approx((1 - share) * mu**2)
    total = mechanism_mu_squared(covariance, 1) + mechanism_mu_squared(update, 12)
    assert total == pytest.approx(mu**2)
    assert plan.guarantee().claims[0].epsilon == pytest.approx(1.0)


def test_the_covariance_goes_out_once_and_is_as_long_as_a_triangle() -> None:
    plan = plan_of({"name": "fedfc"}, SOFTMAX, epsilon=1.0)
    assert [plan.due(t) for t in range(3)] == [[UPDATE, "covariance"], [UPDATE], [UPDATE]]
    assert plan.size("covariance", SOFTMAX.layout.size) == 6 * 7 // 2
    assert plan.client.memory == "f^2"


def test_a_mechanism_that_was_sized_for_less_refuses_the_matrices() -> None:
    plan = plan_of({"name": "fedfc", "radius": 2.0}, epsilon=1.0)
    channels = {**plan.channels, "covariance": gaussian(Facts(4.0, replace_bound=5.6), 1.0)}
    short = replace(plan, channels=channels)
    x, y = silos()[0]
    client = ClientState(0, MODEL.problem(Records(x, y)))
    broadcast = publish(short, start(short, MODEL.initial(0)))
    with pytest.raises(BadRelease, match=r"replace_bound.*5\.6"):
        short.client.work(broadcast, client.problem, (), PricedReleaser(short, broadcast, client))


def test_records_are_preconditioned_on_the_server_in_round_0_too() -> None:
    companion = build(
        "client", "fedfc", {"gamma": 0.5}, layout=Layout({"weight": (2, 2)})
    ).companion
    assert companion is not None
    g = torch.tensor([1.0, 2.0, 3.0, 4.0])
    covariance = torch.tensor([3.5, 0.0, -9.0])  # diag(3.5, -9): the floor makes it diag(3.5, 0)
    seen = Aggregate(0, torch.zeros(4), g, 0.1, 1, {"covariance": covariance})
    direction, state = companion.update(g, companion.init(torch.zeros(4)), seen)
    assert torch.allclose(direction, torch.tensor([0.25, 4.0, 0.75, 8.0]))
    later, _ = companion.update(g, state, Aggregate(1, torch.zeros(4), g, 0.1, 1))
    assert torch.equal(later, direction)
    assert companion.share(state) == {}


def test_clients_get_the_preconditioner_and_the_server_passes_on() -> None:
    layout = Layout({"weight": (1, 2), "bias": (1,)})
    companion = build("client", "fedfc", {"gamma": 0.5}, unit=Unit.CLIENT, layout=layout).companion
    assert companion is not None
    state = companion.init(torch.zeros(3))
    assert torch.equal(
        companion.share(state)["preconditioner"], torch.tensor([2.0, 0, 0, 2.0, 0, 2.0])
    )
    g = torch.tensor([1.0, 2.0, 3.0])
    seen = Aggregate(0, torch.zeros(3), g, 0.1, 1, {"covariance": torch.ones(6)})
    direction, state = companion.update(g, state, seen)
    assert torch.equal(direction, g)
    assert companion.share(state)["preconditioner"].shape == (6,)


@pytest.mark.parametrize("unit", list(Unit))
def test_all_trusts_are_sound(unit: Unit) -> None:
    """Each release is sent as it is, and none is kept."""
    options = {"epsilon": 1.0, "unit": unit}
    for trust in (Trust.LOCAL, Trust.CENTRAL):
        plan_of({"name": "fedfc"}, trust=trust, **options)
    local = plan_of({"name": "fedfc"}, **options)
    shares = {n: m.with_facts(trust=Trust.DISTRIBUTED) for n, m in local.channels.items()}
    replace(local, channels=shares, sum=secure(survivors=1.0))
    assert len(local.guarantee().claims) == 2


@pytest.mark.long
@pytest.mark.slow
def test_records_may_be_drawn() -> None:
    privacy = {"std_over_clip": 5.0, "adjacency": "add-remove", "record_rate": 0.5}
    plan = plan_of({"name": "fedfc", "radius": 2.0}, **privacy)
    problems = [MODEL.problem(Records(x, y)) for x, y in silos()]
    *_, (last, _) = rounds(plan, problems, MODEL.initial(0))
    assert bool(torch.isfinite(last.params).all())


@pytest.mark.parametrize(
    "options",
    [
        {"gamma": 0.0},
        {"gamma": math.nan},
        {"radius": -1.0},
        {"radius": math.inf},
        {"share": 0.0},
        {"share": 1.0},
        {"share": math.nan},
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=named("fedfc", options)):
        build("client", "fedfc", options, layout=MODEL.layout)


def test_only_a_linear_layer_will_do() -> None:
    deep = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    for layout in (None, Network(deep).layout):
        with pytest.raises(RecipeError, match="fedfc needs a model"):
            build("client", "fedfc", {}, layout=layout)
    plan = plan_of({"name": "fedfc"}, epsilon=1.0)
    x, y = silos()[0]
    stranger = Network(torch.nn.Linear(3, 1), loss="mse").problem(Records(x, y[:, None].float()))
    reply, _ = client_reply(
        plan, Broadcast(0, torch.zeros(4)), "reply", {}, ClientState(0, stranger)
    )
    assert isinstance(reply, ClientRefused)
    assert str(reply) == UnsoundPlan.__name__


@pytest.mark.sample(4)
@pytest.mark.slow
@pytest.mark.parametrize("unit", [Unit.RECORD, Unit.CLIENT])
@pytest.mark.parametrize("link", ["logistic", "poisson"])
def test_without_noise_it_reaches_the_pooled_minimiser(link: str, unit: Unit) -> None:
    """At client level a client counts once, so clients are of one size there."""
    data = silos(link, apart=0.0 if unit is Unit.CLIENT else 0.8, twins=unit is Unit.CLIENT)
    client = {"name": "fedfc", "gamma": 0.3, "radius": 30.0}
    server = [{"name": "scale", "rate": 1.0 if link == "logistic" else 0.5}]
    found = clear_run(link, data, client, rounds=200, server=server, unit=unit)
    assert distance(found, minimiser(link, data)) < 1e-4
