# SPDX-License-Identifier: Apache-2.0
"""The table ``privacy.adaptive``: what it costs, what it refuses, and that every engine has it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord

import dpfed
from dpfed.accounting import gdp
from dpfed.client._adaptive import CLIP, COUNT
from dpfed.core.chain import stateless
from dpfed.core.errors import ClientRefused, RecipeError, UnsoundPlan
from dpfed.core.registry import build
from dpfed.core.types import (
    METRICS,
    UPDATE,
    Adjacency,
    Aggregate,
    Broadcast,
    Facts,
    ServerOptimizer,
    Trust,
    Unit,
)
from dpfed.core.vector import layout_of
from dpfed.data.datasets import Records
from dpfed.data.models import Linear
from dpfed.flower import client_app
from dpfed.mechanisms.gaussian import Gaussian, gaussian
from dpfed.recipes.build import plan_for
from dpfed.recipes.schema import dump_recipe, load_recipe, parse
from dpfed.training.inprocess import rounds
from dpfed.training.plan import Plan
from dpfed.training.reply import ClientState, PricedReleaser, make_reply
from dpfed.training.round import publish, start
from dpfed.training.wire.codec import Sender
from dpfed.training.wire.stored_replies import order_digest
from tests.attacks.asking import Silent, ask, at_home
from tests.helpers.simulations import untimed, write
from tests.helpers.subtraction import CLIENTS, SIZE, Server

HOSTILE = (math.nan, math.inf, 0.0, -1.0, 5e-324, 1e-6, 1e6, 1e300)
EPSILON, DELTA, ROUNDS = 2.0, 1e-5, 30


def recipe(share: float = 0.01, **privacy: Any) -> dict[str, Any]:
    table = {"epsilon": EPSILON, "delta": DELTA, "adaptive": {"share": share}, **privacy}
    return {"rounds": ROUNDS, "privacy": table, "client": {"name": "gradient"}}


def plan_of(unit: Unit, trust: Trust, adjacency: Adjacency, **more: Any) -> Plan:
    tree = recipe(unit=unit, trust=trust, adjacency=adjacency, nominal=50.0, **more)
    tree |= {"sum": {"name": "secure"}} if trust is Trust.DISTRIBUTED else {}
    return plan_for(parse(tree), [50.0] * 8)


# --------------------------------------------------------------------------------- what it costs

MOVES = {
    Adjacency.REPLACE_ONE: {UPDATE: 2.0, COUNT: 1.0},
    Adjacency.ZERO_OUT: {UPDATE: 1.0, COUNT: 0.5},
    Adjacency.ADD_REMOVE: {UPDATE: 1.0, COUNT: 0.5},
}
"""How far one unit moves a sum, in units of the broadcast clip: written down here once more."""


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("trust", list(Trust))
@pytest.mark.parametrize("unit", list(Unit))
def test_the_cost_is_the_closed_form_of_two_shares(
    unit: Unit, trust: Trust, adjacency: Adjacency
) -> None:
    if unit is Unit.CLIENT and adjacency is Adjacency.ADD_REMOVE:
        with pytest.raises(UnsoundPlan, match="got 'add-remove'"):
            plan_of(unit, trust, adjacency)
        return
    plan = plan_of(unit, trust, adjacency)
    honest = plan.min_honest if trust is Trust.DISTRIBUTED else 1
    squares = {
        name: ROUNDS * (moved / plan.channels[name].std) ** 2 / honest
        for name, moved in MOVES[adjacency].items()
    }
    mu = gdp.mu_for(EPSILON, DELTA - plan.delta_reserved)
    assert sum(squares.values()) == pytest.approx(mu**2, rel=1e-9)
    assert squares[COUNT] == pytest.approx(0.01 * mu**2, rel=1e-9)
    assert plan.guarantee().claims[0].epsilon == pytest.approx(EPSILON, rel=1e-6)
    assert plan.channels[UPDATE].clip == 1.0


@pytest.mark.parametrize("mechanism", ["gaussian", "tree", "banded", "blt"])
@pytest.mark.parametrize("clip", HOSTILE)
def test_no_broadcast_changes_noise_grid_or_cost(clip: float, mechanism: str) -> None:
    """The same bits of noise whatever is broadcast: rows are zero, and what is sent is noise."""
    facts = (Unit.RECORD, Trust.LOCAL, Adjacency.REPLACE_ONE)
    plan = plan_of(*facts, noise="keyed", mechanism=mechanism)
    sent = []
    for value in (1.0, clip):
        order = Broadcast(0, torch.zeros(4), {CLIP: torch.tensor([value]).double()})
        client = ClientState(0, Silent(4))
        reply, _ = make_reply(plan, order, client, PricedReleaser(plan, order, client))
        sent.append(reply)
    for name in (UPDATE, COUNT):
        one, other = (reply[name] for reply in sent)
        assert torch.equal(one.vector, other.vector)
        assert (one.std, one.step) == (other.std, other.step)
        if name == COUNT or mechanism == "gaussian":  # of others it depends on the step
            assert one.std == plan.channels[name].std


def test_the_first_clip_and_the_table_cost_nothing_by_themselves() -> None:
    plans = [
        plan_for(parse(recipe(clip=clip, adaptive=table)), [50.0])
        for clip, table in ((1.0, {}), (30.0, {"quantile": 0.2}), (0.01, {"rate": 1.0}))
    ]
    assert len({(p.update, p.channels[COUNT]) for p in plans}) == 1  # type: ignore[arg-type]
    assert len({p.fingerprint() for p in plans}) == 3
    assert [float(publish(p, start(p, torch.zeros(2))).shared[CLIP]) for p in plans] == [
        1.0,
        30.0,
        0.01,
    ]


def test_metrics_and_counts_have_their_shares_beside_each_other() -> None:
    plan = plan_for(parse({**recipe(0.1), "evaluation": {"kind": "federated"}}), [50.0])
    squares = {n: ROUNDS / m.noise_multiplier() ** 2 for n, m in plan.channels.items()}  # type: ignore[attr-defined]
    whole = sum(squares.values())
    assert squares[COUNT] / whole == pytest.approx(0.1)
    assert squares[METRICS] / whole == pytest.approx(0.05)


def turns(mechanism: str, **adaptive: float) -> Plan:
    limits = {"min_separation": 4, "at_most": 5}
    tree = recipe(
        unit="client",
        trust="central",
        adjacency="zero-out",
        mechanism=mechanism,
        participation=limits,
        noise="keyed",
        adaptive=adaptive,
    )
    return plan_for(parse(tree), [1.0] * 8)


@pytest.mark.parametrize("mechanism", ["gaussian", "tree", "banded", "blt"])
def test_correlated_noise_is_for_updates_and_counts_have_their_own(mechanism: str) -> None:
    plan = turns(mechanism)
    assert plan.update.independent == (mechanism == "gaussian")
    count: Any = plan.channels[COUNT]
    assert (type(count), count.participation) == (Gaussian, plan.update.participation)  # type: ignore[attr-defined]
    mu = gdp.mu_for(EPSILON, DELTA)
    assert 5 * (0.5 / count.std) ** 2 == pytest.approx(0.01 * mu**2, rel=1e-9)
    squared = plan.update.squared_sensitivity(ROUNDS)  # type: ignore[attr-defined]
    assert squared / plan.update.std**2 == pytest.approx(0.99 * mu**2, rel=1e-9)
    assert plan.guarantee().claims[0].epsilon == pytest.approx(EPSILON, rel=1e-6)


@pytest.mark.parametrize("mechanism", ["tree", "banded", "blt"])
def test_correlated_noise_is_in_units_of_the_clip_whatever_way_it_goes(mechanism: str) -> None:
    """Rows are zero, so a total is noise: the same for a clip that stays and one that moves."""
    totals, clips = [], []
    for rate in (1e-9, 1.0):
        plan = turns(mechanism, rate=rate)
        seen = list(rounds(plan, [Silent(6)] * 8, torch.zeros(6)))
        totals.append(torch.stack([outcome.aggregate.mean for _, outcome in seen]))
        clips.append(float(publish(plan, seen[-1][0]).shared[CLIP]))
    assert torch.equal(*totals)
    assert clips[0] == pytest.approx(1.0)
    assert abs(math.log(clips[1])) > 1
    assert len({float(row.norm()) for row in totals[0]}) > 1


def test_drawn_records_are_counted_as_they_are_drawn() -> None:
    drawn = {"epsilon": None, "std_over_clip": 20.0, "adjacency": "zero-out", "record_rate": 0.2}
    tree = {**recipe(**drawn), "rounds": 2}
    plan = plan_for(parse(tree), [50.0])
    assert plan.channels[COUNT].sampling == plan.update.sampling
    del tree["privacy"]["adaptive"]
    alone = plan_for(parse(tree), [50.0]).guarantee().claims[0].epsilon
    assert plan.guarantee().claims[0].epsilon > 1.2 * alone


# ------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize("method", ["dp-fedauto", "dp-fedavg", "adadps", "dp-fedfc", "dp-scaffold"])
def test_methods_with_a_clip_or_releases_of_their_own_are_refused(method: str) -> None:
    tree = {"method": method, "privacy": recipe()["privacy"]}
    layout = layout_of({"weight": torch.empty(3, 4), "bias": torch.empty(3)})
    with pytest.raises(RecipeError, match=r"privacy.adaptive must be left out for client '\w+'"):
        plan_for(parse(tree), [50.0], layout)


def test_a_field_that_it_has_not_is_refused_by_name() -> None:
    with pytest.raises(RecipeError, match=r"privacy.adaptive has no field 'quantil'; .*'quantile'"):
        parse(recipe(adaptive={"quantil": 0.5}))
    with pytest.raises(RecipeError, match=r"privacy.adaptive.quantile must be above 0 .*1.5"):
        plan_for(parse(recipe(adaptive={"quantile": 1.5})), [50.0])
    tree = {**recipe(0.96), "evaluation": {"kind": "federated"}}
    with pytest.raises(RecipeError, match="must sum to less than 1"):
        plan_for(parse(tree), [50.0])


def test_a_recipe_is_written_and_read_with_it_and_without_it() -> None:
    tree = {"method": "dp-fedgd", "privacy": {"epsilon": 1.0}}
    assert "adaptive" not in dump_recipe(parse(tree))
    chosen = load_recipe(tree, ["privacy.adaptive.quantile=0.3"])
    assert "[privacy.adaptive]\nquantile = 0.3" in dump_recipe(chosen)


# ----------------------------------------------------------------------------- in every engine

BAD = {"epsilon": 5.0, "noise": "keyed", "clip": 50.0, "adaptive": {"rate": 1.0}}


def test_it_finds_its_way_from_a_bad_first_clip() -> None:
    data = {
        "source": "synthetic",
        "options": {"records": 3000, "features": 10, "classes": 3},
        "partition": {"clients": 5},
    }
    tree = {"method": "dp-fedgd", "rounds": 30, "data": data}
    fixed, adapted = (
        dpfed.run({**tree, "privacy": {k: v for k, v in BAD.items() if k in keys}})
        for keys in (BAD.keys() - {"adaptive"}, BAD.keys())
    )
    assert adapted.history[-1]["accuracy"] > fixed.history[-1]["accuracy"] + 0.03
    assert adapted.guarantee.claims[0].epsilon == pytest.approx(5.0, rel=1e-6)


def test_the_optimizer_is_told_the_clip_that_was_broadcast() -> None:
    """An untuned sofim reads its rate off the clip: off that of the round, in the mean's unit."""
    told: list[float] = []

    def note(G: torch.Tensor, state: Any, seen: Aggregate) -> tuple[torch.Tensor, Any]:
        told.append(seen.clip)
        return G, state

    model = Linear("softmax", 4, 3)
    x, y = torch.randn(40, 4), torch.arange(40) % 3
    problems = [model.problem(Records(x, y))] * 4
    tree = {"rounds": 5, "client": {"name": "gradient"}, "privacy": {**BAD, "clip": 8.0}}
    plan = replace(plan_for(parse(tree), [40.0] * 4), server=ServerOptimizer(stateless, note))
    sent = [
        8.0,
        *(float(state.optimizer[0].clip) for state, _ in rounds(plan, problems, model.initial(0))),
    ]
    assert told == sent[:-1]
    assert len(set(told)) > 1
    fixed = replace(
        plan, client=build("client", "gradient", {}), channels={UPDATE: gaussian(Facts(7.0), 1.0)}
    )
    told.clear()
    assert len(list(rounds(fixed, problems, model.initial(0)))) == 5
    assert told == [7.0] * 5


SERVERS: list[list[dict[str, Any]]] = [
    [{"name": "adam"}],
    [{"name": "sofim"}, {"name": "scale", "rate": 0.5}],
    [{"name": "ema"}, {"name": "scale"}],
]


@pytest.mark.long
@pytest.mark.parametrize("server", SERVERS, ids=lambda links: links[0]["name"])
def test_flowers_engine_gives_the_bits_of_the_one_in_process(
    server: list[dict[str, Any]], tmp_path: Path, play: Any
) -> None:
    path = write(tmp_path, privacy=BAD, server=server)
    left, result = play(path), dpfed.run(path)
    assert torch.equal(result.model.layout.flatten(left.params), result.params)
    assert untimed(left.history) == untimed(result.history)
    assert left.guarantee == result.guarantee


def test_the_secure_sum_gives_the_bits_of_the_plain_one(tmp_path: Path, play: Any) -> None:
    privacy = {**BAD, "trust": "distributed"}
    secure = write(tmp_path, privacy=privacy, sum={"name": "secure", "survivors": 1.0})
    left, result = play(secure), dpfed.run(secure)
    assert torch.equal(result.model.layout.flatten(left.params), result.params)
    assert left.guarantee.claims[0].epsilon == pytest.approx(5.0, rel=1e-6)
    assert left.stopped is None


@pytest.mark.parametrize("trust", ["local", "central"])
def test_a_client_that_takes_local_steps_has_it_at_client_level(trust: str) -> None:
    data = {
        "source": "synthetic",
        "options": {"records": 300, "features": 4, "classes": 3},
        "partition": {"clients": 10},
    }
    privacy = {**BAD, "unit": "client", "trust": trust, "clip": 0.1}
    found = dpfed.run({"method": "dp-fedavg", "rounds": 5, "data": data, "privacy": privacy})
    assert "each client" in found.guarantee.sentence


# ---------------------------------------------------------------- another clip is another order


def test_a_changed_clip_is_another_order() -> None:
    layout = layout_of({"weight": torch.empty(4)})
    orders = [
        Sender(layout, "plan", ConfigRecord({}), Broadcast(0, torch.zeros(4), {CLIP: clip})).order(
            "input", {"sum": b""}
        )
        for clip in (
            torch.ones(1, dtype=torch.float64),
            torch.tensor([1.0 + 2.0**-52], dtype=torch.float64),
        )
    ]
    assert len({order_digest(order) for order in orders}) == 2


def test_a_client_answers_an_attempt_under_one_clip_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bytes for the same order; another clip would be a second release, and is refused."""
    at_home(tmp_path, monkeypatch)
    plan = plan_of(Unit.RECORD, Trust.LOCAL, Adjacency.REPLACE_ONE)
    app = client_app(lambda _: Silent(50), plan)
    requests = {UPDATE: b"", COUNT: b""}
    order = Broadcast(0, torch.zeros(50), {CLIP: torch.ones(1, dtype=torch.float64)})
    first = ask(app, plan, order, requests=requests)
    assert not isinstance(first, ClientRefused)
    assert ask(app, plan, order, requests=requests) == first
    other = replace(order, shared={CLIP: torch.tensor([1.0 + 2.0**-52], dtype=torch.float64)})
    assert isinstance(ask(app, plan, other, requests=requests), ClientRefused)


def test_a_secure_sum_is_not_masked_twice_under_two_clips(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The masked words go out again for the same order; under another clip nothing does."""
    at_home(tmp_path, monkeypatch)
    server = Server()
    server.plan = plan_for(
        parse({**recipe(trust="distributed"), "sum": {"name": "secure"}}), [4.0] * CLIENTS
    )
    server.app = client_app(lambda _: Silent(SIZE), server.plan)
    server.state = start(server.plan, torch.zeros(SIZE))
    assert server.round(0).aborted is None
    first = server.words()
    assert server.round(0).aborted is None
    assert server.words() == first
    kept, *others = server.state.optimizer
    server.state = replace(server.state, optimizer=(kept._replace(clip=0.5), *others))
    assert server.round(0).aborted is not None
    assert all(isinstance(word, str) for word in server.words().values())
