# SPDX-License-Identifier: Apache-2.0
"""The path: what a plan refuses, what a round does with what comes, and what it enters."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpfed.accounting.calibrate import calibrate
from dpfed.accounting.gdp import epsilon_for
from dpfed.audit.client_laws import MODEL
from dpfed.core.chain import identity, stateless
from dpfed.core.errors import ClientRefused, UnsoundPlan
from dpfed.core.randomness import Noise
from dpfed.core.registry import build
from dpfed.core.rows import Dense
from dpfed.core.sampling import Poisson
from dpfed.core.sum_protocol import StageReply
from dpfed.core.types import (
    METRICS,
    UPDATE,
    Adjacency,
    Broadcast,
    Channel,
    ClientAlgorithm,
    Facts,
    Phase,
    Release,
    ServerOptimizer,
    Trust,
    Unit,
    Weights,
)
from dpfed.mechanisms.gaussian import gaussian
from dpfed.mechanisms.tree import tree
from dpfed.sums.secure import secure
from dpfed.training.plan import Plan
from dpfed.training.reply import ClientState, PricedReleaser, client_reply
from dpfed.training.round import RoundResult, ServerState, run_round, start
from tests.helpers.round_counts import by_channel
from tests.helpers.rounds import SIZES, Wire, client_states, make_plan


def one_round(plan: Plan, wire: Wire | None = None) -> tuple[ServerState, RoundResult]:
    state = start(plan, torch.zeros(MODEL.layout.size))
    return run_round(plan, state, wire or Wire(plan, client_states()))


@given(
    st.lists(st.tuples(st.none() | st.integers(0, 5), st.integers(0, 3)), max_size=4),
    st.integers(0, 12),
    st.integers(0, 3),
)
def test_planned_releases_are_those_of_each_round(
    phases: list[tuple[int | None, int]], rounds: int, spare: int
) -> None:
    channel = Channel(tuple(Phase(*each) for each in phases))
    each = [channel.releases(at) for at in range(rounds)]
    assert channel.planned(rounds, spare) == sum(each) + spare * max(each, default=0)


def test_no_two_releases_of_a_seed_share_noise() -> None:
    """Not those of two steps, channels, clients, attempts or rounds: one would tell the other."""
    noise = gaussian(Facts(clip=1.0), std=2.0)
    plan = make_plan(
        client=build("client", "fedavg", {"steps": 2}), channels={UPDATE: noise, METRICS: noise}
    )
    rows, found = Dense(torch.zeros(1, 6)), []
    for at, client, attempt in product(range(2), repeat=3):
        broadcast = Broadcast(at, torch.zeros(6), attempt=attempt)
        release = PricedReleaser(plan, broadcast, ClientState(client))
        made = release(rows), release(rows), release(rows, METRICS)
        found += [tuple(each.vector.tolist()) for each in made]
    assert len(set(found)) == len(found) == 24


def test_the_servers_noise_is_new_for_each_channel_attempt_and_round() -> None:
    noise = gaussian(Facts(1.0, trust=Trust.CENTRAL), 2.0)
    plan = make_plan(channels={UPDATE: noise, METRICS: noise})
    alike, found = torch.zeros(plan.size(METRICS, 0)), []  # channels of one length
    for at, attempt in product(range(2), repeat=2):
        nobody = replace(start(plan, alike), round=at, attempt=attempt, cohort=())
        seen = run_round(plan, nobody, Wire(plan, {}))[1].aggregate
        assert seen
        found += [tuple(each.tolist()) for each in (seen.mean, seen.public[METRICS])]
    assert len(set(found)) == len(found) == 8


class Failing:
    """A client's data on which the code fails, and which has no stand-in to rehearse on."""

    dimension = MODEL.layout.size

    def rows(self, *_: object) -> None:
        raise ValueError("a record is broken")


@pytest.mark.parametrize("problem", [client_states()[0].problem, Failing()], ids=["sound", "fails"])
def test_correlated_noise_goes_on_from_round_to_round(problem: Any) -> None:
    """Also where a client answers with zero rows: from one state it would release twice."""
    plan = make_plan(channels={UPDATE: tree(std=2.0, horizon=4)})
    client, before = ClientState(0, problem), plan.mechanism_states(MODEL.layout.size)[UPDATE]
    for at in range(3):
        order = Broadcast(at, torch.zeros(MODEL.layout.size))
        found, client = client_reply(plan, order, "reply", {UPDATE: b""}, client)
        assert not isinstance(found, ClientRefused)
        kept = client.mechanisms[UPDATE]
        assert kept.t == at + 1
        assert not all(map(torch.equal, kept.noise, before.noise))
        before = kept


def test_a_reply_that_nothing_was_released_for_is_refused() -> None:
    def work(at: Broadcast, problem: Any, state: Any, release: Any) -> Any:
        del problem, release
        return {UPDATE: Release(torch.ones(at.params.numel(), dtype=torch.int32), 2.0, 1.0)}, state

    plan = make_plan(client=ClientAlgorithm(stateless, work, frozenset(Unit)))
    order = Broadcast(0, torch.zeros(MODEL.layout.size))
    found, _ = client_reply(plan, order, "reply", {UPDATE: b""}, client_states()[0])
    assert str(found) == "UnsoundPlan"


# --------------------------------------------------------------------------------------- plans


def test_unsound_plans_are_refused_with_the_way_out() -> None:
    local = make_plan().client
    nonlinear = local._replace(sends_unmodified=False)
    records_only = local._replace(units=frozenset({Unit.RECORD}))
    distributed = {UPDATE: gaussian(Facts(trust=Trust.DISTRIBUTED))}
    mixed = {UPDATE: gaussian(), METRICS: gaussian(Facts(adjacency=Adjacency.ADD_REMOVE))}
    hiding = secure(survivors=1.0)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"channels": distributed}, "must see only the sum"),
        ({"channels": distributed, "sum": hiding, "weights": Weights.AVERAGE}, "unequal size"),
        ({"channels": distributed, "sum": hiding, "client": nonlinear}, "unmodified releases only"),
        (
            {"channels": {UPDATE: gaussian(Facts(trust=Trust.CENTRAL))}, "client": nonlinear},
            "unmodified",
        ),
        (
            {"channels": {UPDATE: gaussian(Facts(unit=Unit.CLIENT))}, "client": records_only},
            "can protect",
        ),
        ({"channels": mixed}, "must share unit"),
        ({"channels": {METRICS: gaussian()}}, "releases on"),
        ({"channels": {UPDATE: gaussian(), "extra": gaussian()}}, "releases on"),
        ({"nominal": []}, "must be finite numbers above 0, one per client"),
        ({"nominal": [3, 0]}, "must be finite numbers above 0, one per client"),
        ({"nominal": [3, math.nan]}, "must be finite numbers above 0, one per client"),
        ({"rounds": 0}, "rounds must be a whole number, at least 1, got 0"),
        ({"colluders": 0}, "colluders must be at least 1, got 0"),
    ]
    for changes, message in cases:
        with pytest.raises(UnsoundPlan, match=message):
            make_plan(**changes)


def test_distributed_trust_takes_a_hiding_sum_with_equal_silos() -> None:
    distributed = {UPDATE: gaussian(Facts(trust=Trust.DISTRIBUTED), shares=2)}
    hiding = secure(survivors=1.0)
    make_plan(channels=distributed, sum=hiding)
    make_plan(channels=distributed, sum=hiding, weights=Weights.AVERAGE, nominal=[5, 5, 5])


@pytest.mark.parametrize(
    ("sizes", "kappa"),
    [
        ([1000] * 20, 1.0),
        ([1000] * 19 + [900], 1.105),
        ([1000] * 19 + [500], 1.865),
        ([500] * 10 + [1500] * 10, 1.342),
        ([1000] * 19 + [50], 4.370),
    ],
)
def test_the_smallest_silo_of_an_average_is_accounted_for(sizes: list[int], kappa: float) -> None:
    """PRIVACY section 1: without colluders, shares = n / kappa^2 for the smallest silo."""
    plan = make_plan(nominal=sizes, weights=Weights.AVERAGE)
    weights = plan.cohort(UPDATE).values()
    squares = [w * w for w in weights]
    assert math.sqrt(20 / (sum(squares) / max(squares))) == pytest.approx(kappa, abs=1e-3)
    reader = max(w * w for w in sorted(weights)[:-1])  # it subtracts the next heaviest
    assert plan.noise_shares(weights) == pytest.approx((sum(squares) - reader) / max(squares))


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=7), st.integers(1, 3))
def test_no_client_is_more_exposed_than_the_plan_says(weights: list[float], colluders: int) -> None:
    """Against every victim and every set of colluders, by enumeration."""
    from itertools import combinations

    plan = make_plan(nominal=[1.0] * len(weights), colluders=colluders)
    exact = []
    for victim in range(len(weights)):
        others = [i for i in range(len(weights)) if i != victim]
        for gang in combinations(others, min(colluders, len(others))):
            honest = sum(weights[i] ** 2 for i in range(len(weights)) if i not in gang)
            exact.append(honest / weights[victim] ** 2)
    assert plan.noise_shares(weights) == pytest.approx(max(1.0, min(exact)))


def test_a_draw_of_clients_counts_where_a_trusted_server_hides_whole_clients() -> None:
    for trust, unit in product((Trust.LOCAL, Trust.CENTRAL), Unit):
        noise = gaussian(Facts(1.0, unit=unit, adjacency=Adjacency.ZERO_OUT, trust=trust), 9.0)
        everyone = make_plan(channels={UPDATE: noise}).guarantee().epsilon
        drawn = (
            make_plan(channels={UPDATE: noise}, client_sampling=Poisson(0.1)).guarantee().epsilon
        )
        hides = (trust, unit) == (Trust.CENTRAL, Unit.CLIENT)
        assert (drawn < everyone / 2) if hides else (drawn == everyone)


def test_who_is_asked_is_drawn_anew_in_each_round_and_attempt() -> None:
    plan = make_plan(nominal=[10] * 40, client_sampling=Poisson(0.5))
    draws = {plan.draw(round, attempt) for round in range(4) for attempt in range(3)}
    assert len(draws) == 12
    assert plan.draw(1, 2) == plan.draw(1, 2)


def test_others_noise_counts_only_where_it_stays_in_the_sum() -> None:
    """Not where a client goes on from its own releases, or takes noise back later."""
    reusing = make_plan().client._replace(reuses_own_releases=True)
    correlated = {UPDATE: tree(std=2.0)}
    plans = [make_plan(), make_plan(client=reusing), make_plan(channels=correlated)]
    assert [len(plan.guarantee().claims) for plan in plans] == [2, 1, 1]


def test_noise_is_sized_for_no_more_shares_than_a_sum_surely_has() -> None:
    def shares(count: int, **more: int) -> Plan:
        noise = {UPDATE: count, **more}
        made = {n: gaussian(Facts(trust=Trust.DISTRIBUTED), shares=h) for n, h in noise.items()}
        return make_plan(channels=made, sum=secure(survivors=1.0))

    assert shares(2, metrics=2).min_honest == 2  # of three clients, one colludes
    for wrong in ({"count": 3}, {"count": 2, METRICS: 3}):
        with pytest.raises(UnsoundPlan, match=r"shares.*most 2,.*got 3"):
            shares(**wrong)


def test_a_plan_whose_totals_could_wrap_is_refused() -> None:
    """Around the modulus a large sum looks like a small one, noise and all."""
    noise = {UPDATE: gaussian(Facts(trust=Trust.DISTRIBUTED), std=2.0, shares=2)}
    fits, wraps = ([each * SIZES[0]] * 3 for each in (1, 10**6))
    make_plan(channels=noise, sum=secure(survivors=1.0, bits=32), nominal=fits)
    make_plan(channels=noise, sum=secure(survivors=1.0, bits=64), nominal=wraps)
    with pytest.raises(UnsoundPlan, match=r"below 2.15e\+09 steps"):
        make_plan(channels=noise, sum=secure(survivors=1.0, bits=32), nominal=wraps)


def test_a_sums_messages_are_bound_to_training_plan_round_and_attempt() -> None:
    first = Broadcast(0, torch.zeros(3))
    others = [replace(first, round=1), replace(first, attempt=1), replace(first, training="other")]
    bound = [make_plan().sum_context(order, 0) for order in (first, *others)]
    bound.append(make_plan(delta=2e-5).sum_context(first, 0))
    assert len({(each.run, each.round, each.attempt) for each in bound}) == 5


# ----------------------------------------------------------------------------------- one round


@pytest.mark.parametrize("weights", list(Weights))
def test_the_mean_is_the_formula(weights: Weights) -> None:
    """Without noise to speak of: clipped sums over public sizes, in both weightings."""
    plan = make_plan(weights=weights, channels={UPDATE: gaussian(Facts(clip=1.0), std=1e-6)})
    _, result = one_round(plan)
    sums = [
        m.problem.rows(torch.zeros(MODEL.layout.size), Unit.RECORD).clipped_sum(1.0).vector.float()
        for m in client_states().values()
    ]
    if weights is Weights.SUM:
        expected = torch.stack(sums).sum(0) / sum(SIZES)
    else:
        expected = torch.stack([s / m for s, m in zip(sums, SIZES, strict=True)]).mean(0)
    assert result.aggregate is not None
    assert torch.allclose(result.aggregate.mean, expected, atol=1e-6)


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize("weights", list(Weights))
@pytest.mark.parametrize("trust", [Trust.LOCAL, Trust.CENTRAL])
def test_the_aggregate_knows_its_noise_level(weights: Weights, trust: Trust) -> None:
    plan = make_plan(weights=weights, channels={UPDATE: gaussian(Facts(1.0, trust=trust), 50.0)})
    stated = one_round(plan)[1].aggregate
    assert stated is not None
    draws = []
    for seed in range(300):
        seen = one_round(replace(plan, noise=Noise(seed)))[1].aggregate
        assert seen is not None
        draws.append(seen.mean)
    measured = float(torch.stack(draws).std(dim=0).mean())
    assert measured == pytest.approx(stated.std, rel=0.05)


def test_the_total_does_not_depend_on_the_order() -> None:
    for weights in Weights:
        plan = make_plan(weights=weights)
        forward, _ = one_round(plan, Wire(plan, client_states()))
        backward, _ = one_round(plan, Wire(plan, client_states(), order=-1))
        assert torch.equal(forward.params, backward.params)


def test_the_same_seed_gives_the_same_bits_and_another_one_others() -> None:
    first, again = one_round(make_plan())[0], one_round(make_plan())[0]
    other = one_round(make_plan(noise=Noise(1)))[0]
    assert torch.equal(first.params, again.params)
    assert not torch.equal(first.params, other.params)


def test_noise_of_the_operating_system_is_never_the_same() -> None:
    plan = make_plan(noise=Noise())
    assert not torch.equal(one_round(plan)[0].params, one_round(plan)[0].params)


def test_the_optimizer_sees_the_noisy_mean_and_its_step_is_applied() -> None:
    """Noise first, optimizer second: it is handed an Aggregate, never replies."""
    handed = []

    def update(direction: torch.Tensor, state: tuple[()], seen: Any) -> Any:
        handed.append((direction.clone(), seen))
        return direction * 2, state

    plan = make_plan(server=ServerOptimizer(stateless, update))
    server, result = one_round(plan)
    (direction, seen) = handed[0]
    assert torch.equal(direction, seen.mean)
    assert torch.equal(server.params, -2 * direction)
    assert (seen.round, seen.clients, seen.std) == (0, 3, pytest.approx(math.sqrt(3) * 2 / 63))
    assert result.aggregate is not None


def test_an_optimizer_that_overwrites_its_input_leaves_the_mean_alone() -> None:
    def update(direction: torch.Tensor, state: tuple[()], seen: Any) -> Any:
        return direction.zero_(), state

    plan = make_plan(server=ServerOptimizer(stateless, update, update_=update))
    _, result = one_round(plan)
    assert result.aggregate is not None
    assert bool(result.aggregate.mean.any())


def test_the_companion_of_a_two_sided_method_runs_first() -> None:
    client = make_plan().client._replace(companion=build("server", "scale", {"rate": 10.0}))
    twice = one_round(make_plan(client=client))[0].params
    once = one_round(make_plan())[0].params
    assert torch.allclose(twice, 10 * once)


# ------------------------------------------------------------------------------- broken replies


class Dropping(Wire):
    def tamper(self, client: int, reply: StageReply) -> Iterable[tuple[int, StageReply]]:
        if client != 1:
            yield client, reply


def test_a_missing_client_contributes_zero_and_the_divisor_stays() -> None:
    plan = make_plan(channels={UPDATE: gaussian(Facts(1.0), 1e-6)})
    _, whole = one_round(plan)
    state, result = one_round(plan, Dropping(plan, client_states()))
    assert (result.clients, result.missing) == ((0, 2), (1,))
    missing = client_states()[1].problem.rows(torch.zeros(MODEL.layout.size), Unit.RECORD)
    assert whole.aggregate is not None
    assert result.aggregate is not None
    expected = whole.aggregate.mean - missing.clipped_sum(1.0).vector.float() / sum(SIZES)
    assert torch.allclose(result.aggregate.mean, expected, atol=1e-6)
    assert by_channel(state.release_counts)[UPDATE] == {1.0: 1}  # two shares less the reader's own


class Hostile(Wire):
    """Client 1 sends what it likes; the others' round must go on."""

    def __init__(self, plan: Plan, sent: list[tuple[int, Any]]) -> None:
        super().__init__(plan, client_states())
        self.sent = sent

    def tamper(self, client: int, reply: StageReply) -> Iterable[tuple[int, StageReply]]:
        yield from self.sent if client == 1 else [(client, reply)]


FULL = 4 * MODEL.layout.size


@pytest.mark.parametrize(
    "sent",
    [
        [(1, {UPDATE: b"\x01\x00\x00\x00"})],  # shape (1,): would broadcast
        [(1, {UPDATE: b""})],
        [(1, {UPDATE: bytes(FULL + 1)})],
        [(1, {UPDATE: b"\xff" * 7 + b"\x7f" + bytes(2 * FULL - 8)})],  # near 2^63: could wrap
        [(1, {})],
        [(1, {"other": bytes(FULL)})],
        [(1, {UPDATE: bytes(FULL), "weight": b"1"})],
        [(7, {UPDATE: bytes(FULL)})],
        [(1, ClientRefused("ClientError"))],
        [],
    ],
    ids=["one", "empty", "long", "huge", "none", "channel", "extra", "stranger", "error", "silent"],
)
def test_a_bad_reply_is_dropped_and_the_round_completes(sent: list[tuple[int, Any]]) -> None:
    plan = make_plan()
    state, result = one_round(plan, Hostile(plan, sent))
    expected, _ = one_round(plan, Dropping(plan, client_states()))
    assert result.clients == (0, 2)
    assert result.missing == (1,)
    assert torch.equal(state.params, expected.params)
    assert set(result.refused) == {client for client, _ in sent}


def test_a_second_reply_of_one_client_is_dropped() -> None:
    class Doubling(Wire):
        def tamper(self, client: int, reply: StageReply) -> Iterable[tuple[int, StageReply]]:
            yield client, reply
            yield client, reply

    plan = make_plan()
    state, result = one_round(plan, Doubling(plan, client_states()))
    assert result.clients == (0, 1, 2)
    assert torch.equal(state.params, one_round(plan)[0].params)


def test_a_round_that_nobody_answers_is_counted_and_leaves_the_model() -> None:
    plan = make_plan()
    before = start(plan, torch.ones(MODEL.layout.size))
    after, result = run_round(plan, before, lambda *_: [])
    assert result.aborted == "no client answered"
    assert torch.equal(after.params, before.params)
    assert (after.round, after.attempt) == (0, 1)
    assert by_channel(after.release_counts)[UPDATE] == {1.0: 1}


def test_a_retry_draws_new_noise() -> None:
    plan = make_plan()
    before = start(plan, torch.zeros(MODEL.layout.size))
    first, _ = run_round(plan, before, Wire(plan, client_states()))
    retried, _ = run_round(plan, replace(before, attempt=1), Wire(plan, client_states()))
    assert not torch.equal(first.params, retried.params)


# ----------------------------------------------------------------------------------- release counts


def test_the_release_counts_give_the_cost_to_both_adversaries() -> None:
    sizes = [10] * 6
    mechanism = calibrate(gaussian(), epsilon=1.0, delta=1e-5, releases=4)
    plan = make_plan(nominal=sizes, channels={UPDATE: mechanism})
    state = start(plan, torch.zeros(MODEL.layout.size))
    wire = Wire(plan, client_states(sizes))
    for _ in range(4):
        state, _ = run_round(plan, state, wire)
    spent = plan.guarantee(state.release_counts, 4)
    server, others = spent.claims
    assert server.epsilon == pytest.approx(1.0, rel=1e-8)
    mu = 2 * math.sqrt(4 / 5) / mechanism.std
    assert others.epsilon == pytest.approx(epsilon_for(1e-5, mu), rel=1e-8)
    assert plan.guarantee().sentence == spent.sentence


def test_a_dropout_weakens_the_guarantee_to_others_in_that_round_only() -> None:
    plan = make_plan(nominal=[10] * 6)
    sizes = [10] * 6
    state = start(plan, torch.zeros(MODEL.layout.size))
    state, _ = run_round(plan, state, Wire(plan, client_states(sizes)))
    state, _ = run_round(plan, state, Dropping(plan, client_states(sizes)))
    assert by_channel(state.release_counts)[UPDATE] == {5.0: 1, 4.0: 1}


def test_releases_that_are_not_sent_unmodified_are_hidden_by_no_other_noise() -> None:
    nonlinear = make_plan().client._replace(sends_unmodified=False)
    assert len(make_plan(client=nonlinear).guarantee().claims) == 1
    assert len(make_plan(nominal=[10] * 6).guarantee().claims) == 2


def test_the_metrics_channel_is_accounted_for_and_used_when_due() -> None:
    channels = {UPDATE: gaussian(Facts(1.0), 2.0), METRICS: gaussian(Facts(math.sqrt(2)), 1e-6)}
    plan = make_plan(channels=channels, metrics_every=3, rounds=5)
    assert [METRICS in plan.due(t) for t in range(5)] == [False, False, True, False, True]
    assert (plan.planned(UPDATE), plan.planned(METRICS)) == (5, 2)
    state = start(plan, torch.zeros(MODEL.layout.size))
    wire = Wire(plan, client_states())
    seen = []
    for _ in range(5):
        state, result = run_round(plan, state, wire)
        assert result.aggregate is not None
        seen.append(result.aggregate.public.get(METRICS))
    assert [m is None for m in seen] == [True, True, False, True, False]
    assert {
        name: sum(count.values()) for name, count in by_channel(state.release_counts).items()
    } == {
        UPDATE: 5,
        METRICS: 2,
    }
    correct, loss = seen[2].tolist()  # type: ignore[union-attr]
    assert 0 <= correct <= 1
    assert 0 <= loss <= 1


def test_client_state_stays_with_the_client_and_reaches_the_next_round() -> None:
    def work(broadcast: Broadcast, problem: Any, state: int, release: Any) -> Any:
        return {UPDATE: release(problem.rows(broadcast.params, release.unit))}, state + 1

    counting = ClientAlgorithm(lambda _: 0, work, frozenset(Unit), sends_unmodified=True)
    plan = make_plan(client=counting, server=identity())
    people = client_states()
    server = start(plan, torch.zeros(MODEL.layout.size))
    for _ in range(3):
        server, _ = run_round(plan, server, Wire(plan, people))
    assert [person.state for person in people.values()] == [3, 3, 3]
