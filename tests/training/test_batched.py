# SPDX-License-Identifier: Apache-2.0
"""Many clients in one pass: what leaves, what is kept and what is refused are as one by one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from dpfed.client._adaptive import adaptive
from dpfed.client.gradient import gradient
from dpfed.core import stacked
from dpfed.core.grid import Releases
from dpfed.core.participation import Participation
from dpfed.core.randomness import Noise
from dpfed.core.registry import build, own_names
from dpfed.core.sampling import Poisson
from dpfed.core.stacked import BoundedSums
from dpfed.core.sum_protocol import Messages, StageReply, SumContext
from dpfed.core.types import (
    METRICS,
    UPDATE,
    Broadcast,
    ClientAlgorithm,
    Facts,
    Mechanism,
    Release,
    Rows,
    State,
    Stream,
    Trust,
    Unit,
    Vector,
    Weights,
)
from dpfed.data.datasets import Records
from dpfed.data.models import Linear, LinearProblem
from dpfed.mechanisms.gaussian import Gaussian, gaussian
from dpfed.server.scale import scale
from dpfed.sums.plain import Plain, plain
from dpfed.training import batched, inprocess
from dpfed.training.inprocess import InProcess
from dpfed.training.plan import Plan
from dpfed.training.reply import ClientState, client_reply
from dpfed.training.round import run_round, start

SIZES = (1, 2, 5, 5, 5, 5, 1, 2, 17, 17, 200, 200, 193, 5)
MODEL = Linear("softmax", 6, 3)


def problems(model: Linear = MODEL, sizes: Sequence[int] = SIZES) -> list[LinearProblem]:
    made = torch.Generator().manual_seed(1)
    outputs = max(2, model.outputs)
    return [
        model.problem(
            Records(
                torch.randn(size, model.features, generator=made),
                torch.randint(outputs, (size,), generator=made),
            )
        )
        for size in sizes
    ]


def plan_for(
    mechanism: Mechanism,
    clients: int = len(SIZES),
    client: ClientAlgorithm | None = None,
    **more: Any,
) -> Plan:
    return Plan(
        **{
            "client": client or gradient(),
            "channels": {UPDATE: mechanism},
            "sum": plain(),
            "server": scale(0.5),
            "nominal": [float(1 + i % 3) for i in range(clients)],
            "rounds": 3,
            "noise": Noise(7),
            **more,
        }
    )


def one_by_one(
    plan: Plan, broadcast: Broadcast, stage: str, orders: Sequence[batched.Order]
) -> Iterator[tuple[StageReply, ClientState]]:
    for client, asked in orders:
        yield client_reply(plan, broadcast, stage, asked, client)


Seen = list[tuple[dict[int, StageReply], torch.Tensor, Mapping[int, str]]]


def trace(plan: Plan, clients: Sequence[LinearProblem]) -> tuple[Seen, list[tuple[str, str]]]:
    """Each round's messages, model and refusals; and what clients keep at the end."""
    engine, seen = InProcess(plan, clients), []
    state = start(plan, torch.zeros(clients[0].dimension))
    for _ in range(plan.rounds):
        messages: dict[int, StageReply] = {}

        def exchange(
            *asked: Any, into: dict[int, StageReply] = messages
        ) -> Iterator[tuple[int, StageReply]]:
            for client, found in engine.exchange(*asked):
                into[client] = str(found) if isinstance(found, Exception) else found  # type: ignore[assignment]
                yield client, found

        state, result = run_round(plan, state, exchange)
        seen.append((messages, state.params, result.refused))
    kept = [(str(c.state), str(c.mechanisms)) for c in engine.clients.values()]
    return seen, kept


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many clients each pass releases for."""
    counted: list[int] = []
    made = batched._Pass._released

    def released(
        self: batched._Pass, clients: Sequence[ClientState], sums: BoundedSums
    ) -> Releases | None:
        found = made(self, clients, sums)
        counted.append(int(sums.usable.sum()) if found else 0)
        return found

    monkeypatch.setattr(batched._Pass, "_released", released)
    return counted


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> Callable[[Plan, Sequence[LinearProblem]], None]:
    def compared(plan: Plan, clients: Sequence[LinearProblem]) -> None:
        together = trace(plan, clients)
        with monkeypatch.context() as patched:
            patched.setattr(inprocess, "client_replies", one_by_one)
            alone = trace(plan, clients)
        assert together[1] == alone[1]
        for (messages, params, refused), (others, wanted, words) in zip(
            together[0], alone[0], strict=True
        ):
            assert messages == others
            assert torch.equal(params, wanted)
            assert refused == words

    return compared


Compare = Callable[[Plan, Sequence[LinearProblem]], None]


@pytest.mark.sample(4)
@pytest.mark.parametrize("unit", [Unit.RECORD, Unit.CLIENT])
@pytest.mark.parametrize("trust", [Trust.LOCAL, Trust.CENTRAL])
@pytest.mark.parametrize("weights", list(Weights))
@pytest.mark.parametrize(
    "model",
    [MODEL, Linear("softmax", 64, 10), Linear("logistic", 20), Linear("poisson", 9, bias=False)],
    ids=lambda model: f"{model.link}-{model.features}",
)
def test_a_pass_gives_the_bits_of_one_by_one(
    compare: Compare, passes: list[int], unit: Unit, trust: Trust, weights: Weights, model: Linear
) -> None:
    plan = plan_for(gaussian(Facts(1.0, unit=unit, trust=trust), 0.3), weights=weights)
    compare(plan, problems(model))
    assert sum(passes) == 3 * (len(SIZES) - 1)  # 193 records are alone of their kind


@pytest.mark.parametrize("name", own_names("mechanisms"))
@pytest.mark.parametrize("trust", [Trust.LOCAL, Trust.CENTRAL])
def test_every_mechanism_releases_as_one_by_one(compare: Compare, name: str, trust: Trust) -> None:
    made = build("mechanisms", name, {}, facts=Facts(0.5, unit=Unit.CLIENT, trust=trust))
    compare(plan_for(made), problems())


def test_turns_are_kept_and_passes_made(compare: Compare, passes: list[int]) -> None:
    turns = Participation(min_separation=2, at_most=2)
    made = gaussian(Facts(0.5, unit=Unit.CLIENT, trust=Trust.CENTRAL, participation=turns), 0.3)
    compare(plan_for(made), problems(sizes=[4] * 14))
    assert sum(passes) == 7 + 7 + 7


def test_a_draw_of_clients_is_the_same(compare: Compare) -> None:
    made = gaussian(Facts(0.5, unit=Unit.CLIENT, adjacency="zero-out", trust=Trust.CENTRAL), 0.3)  # type: ignore[arg-type]
    compare(plan_for(made, client_sampling=Poisson(0.5)), problems())


# ------------------------------------------------------------------------------- edge cases


def hostile() -> list[LinearProblem]:
    found = problems(sizes=[5] * 9)
    for at, value in ((0, float("nan")), (3, 1e30), (4, 1e-42), (8, float("inf"))):
        x = found[at].x.clone()
        x[2, 1] = value
        found[at] = replace(found[at], x=x)
    return [*found, *problems(sizes=[0, 0, 3])]


@pytest.mark.parametrize("unit", [Unit.RECORD, Unit.CLIENT])
@pytest.mark.parametrize("trust", [Trust.LOCAL, Trust.CENTRAL])
def test_numbers_that_are_not_finite_change_nobody_elses_answer(
    compare: Compare, passes: list[int], unit: Unit, trust: Trust
) -> None:
    compare(plan_for(gaussian(Facts(1.0, unit=unit, trust=trust), 0.3), 12), hostile())
    assert max(passes) >= 6


def test_metrics_and_drawn_records_go_one_by_one(compare: Compare, passes: list[int]) -> None:
    record = gaussian(Facts(1.0, adjacency="zero-out"), 0.3)  # type: ignore[arg-type]
    compare(plan_for(record.with_sampling(Poisson(0.5))), problems())
    channels = {UPDATE: gaussian(Facts(1.0), 0.3), METRICS: gaussian(Facts(1.5), 0.3)}
    compare(plan_for(gaussian(), channels=channels), problems())
    assert not any(passes)


def test_work_that_was_wrapped_is_not_passed_by(compare: Compare, passes: list[int]) -> None:
    inner = gradient()

    def doubled(*args: Any) -> Any:
        broadcast, problem, state, release = args
        return inner.work(replace(broadcast, params=2 * broadcast.params), problem, state, release)

    compare(plan_for(gaussian(Facts(1.0), 0.3), client=inner._replace(work=doubled)), problems())
    made = adaptive(gradient(), 1.0)
    channels = {name: gaussian(Facts(c.clip or 1.0), 0.3) for name, c in made.channels.items()}
    compare(plan_for(gaussian(), client=made, channels=channels), problems())
    assert not passes


def test_a_model_of_more_than_a_block_is_the_same(compare: Compare, passes: list[int]) -> None:
    model = Linear("softmax", 6000, 3)
    compare(plan_for(gaussian(Facts(1.0), 0.3), 4), problems(model, (2, 2, 2, 2)))
    assert any(passes)


def test_a_mechanism_a_sum_or_a_problem_of_ones_own_is_not_passed_by(
    compare: Compare, passes: list[int]
) -> None:
    """A child that changes one method alone, or a wrapper, as the audits have them."""

    class Negated(Plain):
        def reply(
            self, stage: str, requests: Any, reply: Any, secret: bytes, context: SumContext
        ) -> tuple[Messages, bytes]:
            found, secret = super().reply(stage, requests, reply, secret, context)
            return {n: (-np.frombuffer(m, "<i4")).tobytes() for n, m in found.items()}, secret

    @dataclass(frozen=True)
    class Twice(Gaussian):
        def release(self, rows: Rows, state: State, rng: Stream) -> tuple[Release, State]:
            return gaussian(Facts(self.clip), 2 * self.std).release(rows, state, rng)

    class Elsewhere(LinearProblem):
        def rows(self, params: Vector, unit: Unit) -> Rows:
            return super().rows(params + 1, unit)

    twice = Twice(Facts(), std=0.5)
    compare(plan_for(twice), problems())
    compare(plan_for(gaussian(std=0.5), sum=Negated()), problems())
    own = [Elsewhere(each.model, each.x, each.y) for each in problems()]
    compare(plan_for(gaussian(std=0.5)), own)
    assert not passes


def test_a_library_that_rounds_a_stack_otherwise_is_noticed(
    monkeypatch: pytest.MonkeyPatch, compare: Compare
) -> None:
    """Planted: products of small matrices in one call, which add up without fused steps."""
    plan, clients = plan_for(gaussian(Facts(1.0), 0.3)), problems(sizes=[5] * 14)
    with monkeypatch.context() as patched:
        patched.setattr(stacked, "_batched_alike", lambda *_: True)
        rows = problems()[0].stack(clients).rows(torch.ones(21), Unit.RECORD)
        wrong = rows.clipped_sums(1.0).matrix  # type: ignore[attr-defined]
    right = [p.rows(torch.ones(21), Unit.RECORD).clipped_sum(1.0).vector for p in clients]
    if torch.equal(wrong, torch.stack(right)):
        pytest.skip("this machine's batched products have the bits of single ones")
    monkeypatch.setattr(stacked, "_batched_alike", lambda *_: True)
    compare(plan, clients)


def test_a_pass_that_raises_is_made_one_by_one(
    monkeypatch: pytest.MonkeyPatch, compare: Compare
) -> None:
    def broken(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(LinearProblem, "stack", broken)
    compare(plan_for(gaussian(Facts(1.0), 0.3)), problems())


def test_passes_are_bounded_and_cover_everyone(
    monkeypatch: pytest.MonkeyPatch, passes: list[int]
) -> None:
    monkeypatch.setattr(batched, "NUMBERS_PER_PASS", 21 * 4)
    trace(plan_for(gaussian(Facts(1.0), 0.3), 10), problems(sizes=[3] * 10))
    assert passes == [4, 4, 2] * 3


# --------------------------------------------------------------------------- nothing is weaker


def test_a_client_whose_ledger_refuses_is_left_out_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plan = replace(plan_for(gaussian(Facts(1.0), 0.3), 8), rounds=2)
    engine = InProcess(plan, problems(sizes=[5] * 8))
    broadcast = Broadcast(0, torch.zeros(21))
    asked = {UPDATE: dict.fromkeys(range(8), b"")}
    engine.clients[3].ledger.begin(plan, broadcast, engine.clients[3])  # type: ignore[union-attr]
    with caplog.at_level(logging.ERROR):
        found = dict(engine.exchange(broadcast, "reply", asked))
    assert [c for c, reply in found.items() if isinstance(reply, Exception)] == [3]
    assert str(found[3]) == "UnsoundPlan"
    assert "client 3 could not answer round 0" in caplog.text
    again = dict(engine.exchange(broadcast, "reply", asked))
    assert {str(reply) for reply in again.values()} == {"UnsoundPlan"}


def test_noise_is_drawn_after_everyone_is_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_for(gaussian(Facts(1.0), 0.3), 4)
    engine, order = InProcess(plan, problems(sizes=[5] * 4)), []
    for client in engine.clients.values():
        monkeypatch.setattr(
            client.ledger, "begin", lambda *_, at=client.client: order.append(("entered", at)) or ()
        )
    stream = Noise.stream

    def noted(self: Noise, purpose: str, *fields: Any) -> Any:
        order.append((purpose, fields[1]))
        return stream(self, purpose, *fields)

    monkeypatch.setattr(Noise, "stream", noted)
    asked = {UPDATE: dict.fromkeys(range(4), b"")}
    list(engine.exchange(Broadcast(0, torch.zeros(21)), "reply", asked))
    entered = [at for at, (what, _) in enumerate(order) if what == "entered"]
    noise = [at for at, (what, _) in enumerate(order) if what == "release"][1:]  # a rehearsal's
    assert len(entered) == len(noise) == 4
    assert max(entered) < min(noise)
    assert {order[at][1] for at in noise} == set(range(4))


def test_real_noise_differs_from_client_to_client_and_run_to_run() -> None:
    plan = plan_for(gaussian(Facts(1.0), 0.3), 6, noise=Noise())
    same = [problems(sizes=[5])[0]] * 6
    (first, *_), _ = trace(plan, same)
    (second, *_), _ = trace(plan, same)
    sent = [reply[UPDATE] for reply in [*first[0].values(), *second[0].values()]]  # type: ignore[index]
    assert len(set(sent)) == 12


def test_a_broadcast_of_another_size_is_refused_by_each() -> None:
    plan = plan_for(gaussian(Facts(1.0), 0.3), 4)
    engine = InProcess(plan, problems(sizes=[5] * 4))
    asked = {UPDATE: dict.fromkeys(range(4), b"")}
    found = dict(engine.exchange(Broadcast(0, torch.zeros(20)), "reply", asked))
    assert [str(reply) for reply in found.values()] == ["DataError"] * 4
