# SPDX-License-Identifier: Apache-2.0
"""DPStrategy and client_app over a Grid in this process: what a round does with what comes.

Real simulation and real deployment are in recipes/test_simulation.py and cli/deploy/test_deploy.py.
"""

from __future__ import annotations

import csv
import json
import logging
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Strategy

from dpfed.accounting.guarantee import SHIPPED
from dpfed.audit.client_laws import MODEL
from dpfed.core.errors import ClientRefused, DataError, RoundAborted, UnsoundPlan
from dpfed.core.registry import build
from dpfed.core.types import METRICS, UPDATE, Broadcast, ClientAlgorithm, Facts, Unit
from dpfed.core.vector import one_thread
from dpfed.flower import About, DPStrategy, Network, client_app, open_sinks, private
from dpfed.mechanisms.gaussian import gaussian
from dpfed.training.flower.transport import GridTransport
from dpfed.training.loop import train
from dpfed.training.wire import state as states
from dpfed.training.wire.codec import CONTROL, Envelope, Sender, write_reply
from dpfed.training.wire.responder import ENROL
from tests.helpers.rounds import client_states, make_plan
from tests.helpers.strategies import INITIAL, app_for, final, grid_for, params
from tests.training.flower.local_grid import LocalGrid, Tamper, become_a_server, nodes, refused


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPFED_STATE", str(tmp_path / "state"))
    become_a_server(monkeypatch)


@pytest.mark.parametrize("server", ["scale", "sofim"])
@pytest.mark.parametrize("weights", ["sum", "average"])
def test_the_same_bits_as_in_process(server: str, weights: Any) -> None:
    plan = make_plan(server=build("server", server, {}), weights=type(make_plan().weights)(weights))
    result = DPStrategy(plan).start(grid_for(plan), INITIAL)
    assert torch.equal(params(result), final(plan))
    assert result.guarantee is not None
    assert result.guarantee == replace(plan.guarantee(), enforced=SHIPPED)
    assert [row["round"] for row in result.history] == [1, 2, 3, 4]


def test_it_is_a_flower_strategy_that_refuses_flowers_own_loop() -> None:
    plan = make_plan()
    strategy = DPStrategy(plan)
    assert isinstance(strategy, Strategy)
    result = strategy.start(grid_for(plan), INITIAL)
    assert result.train_metrics_clientapp[4]["clients"] == 3
    grid = grid_for(plan)
    with pytest.raises(UnsoundPlan, match=r"call DPStrategy\.start"):
        Strategy.start(strategy, grid, INITIAL, num_rounds=plan.rounds)
    assert grid.sent == {}  # nobody was asked for anything
    with pytest.raises(UnsoundPlan, match=r"call DPStrategy\.start"):
        strategy.aggregate_train(1, [])


def test_nodes_are_known_by_their_partition_not_their_order() -> None:
    plan = make_plan()
    grid = LocalGrid(app_for(plan), {7: 2, 900: 0, 33: 1})
    assert torch.equal(params(DPStrategy(plan).start(grid, INITIAL)), final(plan))


def test_evaluation_is_the_servers_own_or_accounted_for() -> None:
    channels = {UPDATE: gaussian(Facts(1.0), 2.0), METRICS: gaussian(Facts(math.sqrt(2)), 1e-6)}
    plan = make_plan(channels=channels, metrics_every=2)
    seen = []

    def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
        seen.append(round)
        return MetricRecord({"zero": 0.0})

    result = DPStrategy(plan).start(grid_for(plan), INITIAL, evaluate_fn=evaluate)
    assert seen == sorted(result.evaluate_metrics_serverapp) == [1, 2, 3, 4]
    assert sorted(result.evaluate_metrics_clientapp) == [2, 4]
    assert 0 <= result.evaluate_metrics_clientapp[2]["accuracy"] <= 1
    assert DPStrategy(plan).configure_evaluate(1, INITIAL, ConfigRecord(), grid_for(plan)) == []


def test_all_numbers_of_evaluate_fn_are_in_the_history_and_none_takes_a_columns_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plan = make_plan()
    rows: list[dict[str, Any]] = []

    def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
        more = {} if round < 3 else {"late": 7}
        lists = {"each_class": [0.1, 0.2]}
        taken = {"epsilon": 0.001, "clients": 99, "seconds": -1.0}
        return MetricRecord({"f1": 0.25 * round, "accuracy": 0.5, **taken, **lists, **more})

    with open_sinks(["csv"], About("own", tmp_path)) as add:

        def watch(row: dict[str, Any]) -> None:
            rows.append(row)
            add(row)

        result = DPStrategy(plan, watch=watch).start(grid_for(plan), INITIAL, evaluate_fn=evaluate)
    assert [row["f1"] for row in result.history] == [0.25, 0.5, 0.75, 1.0]
    assert [row.get("late") for row in rows] == [None, None, 7.0, 7.0]
    assert result.history[-1]["epsilon"] == plan.guarantee().epsilon
    assert result.history[-1]["clients"] == len(plan.nominal)
    assert result.history[-1]["seconds"] >= 0
    assert "each_class" not in result.history[-1]
    assert result.evaluate_metrics_serverapp[1]["each_class"] == [0.1, 0.2]
    said = [r.getMessage() for r in caplog.records if "evaluate_fn" in r.getMessage()]
    assert said == [
        "evaluate_fn returns ['clients', 'epsilon', 'seconds'], which the history has of its own "
        "and keeps; give those numbers other names to see them there"
    ]
    with (tmp_path / "metrics.csv").open() as file:
        written = list(csv.DictReader(file))
    assert [row["late"] for row in written] == ["", "", "7.0", "7.0"]
    assert [float(row["f1"]) for row in written] == [0.25, 0.5, 0.75, 1.0]


def test_metrics_that_a_plan_names_are_in_the_history_and_in_the_result() -> None:
    metrics = (build("metrics", "accuracy", {}), build("metrics", "recall", {"classes": 3}))
    channels = {UPDATE: gaussian(Facts(1.0), 2.0), METRICS: gaussian(Facts(math.sqrt(2)), 1e-6)}
    plan = make_plan(channels=channels, metrics_every=2, metrics=metrics)
    result = DPStrategy(plan).start(grid_for(plan), INITIAL)
    assert set(result.evaluate_metrics_clientapp[4]) == {n for m in metrics for n in m.names}
    assert [row["recall_2"] is None for row in result.history] == [True, False] * 2
    assert result.history[3]["recall_2"] == result.evaluate_metrics_clientapp[4]["recall_2"]


# ----------------------------------------------------------------------------------- dropouts


def test_a_node_that_dies_contributes_zero_and_is_reported() -> None:
    plan = make_plan(nominal=[10] * 5, rounds=4)
    grid = grid_for(plan, sizes=[10] * 5)

    def kill(row: dict[str, Any]) -> None:
        if row["round"] == 2:
            grid.offline.add(103)

    result = DPStrategy(plan, watch=kill).start(grid, INITIAL)
    assert [row["absent"] for row in result.history] == ["", "", "3", "3"]
    assert [row["clients"] for row in result.history] == [5, 5, 4, 4]
    assert result.guarantee is not None
    assert result.guarantee.claims[0].epsilon == plan.guarantee().claims[0].epsilon
    assert result.guarantee.claims[1].epsilon > plan.guarantee().claims[1].epsilon


def test_a_node_that_returns_is_enrolled_again_under_another_number() -> None:
    plan = make_plan(rounds=3)
    grid = grid_for(plan)

    def replace_node(row: dict[str, Any]) -> None:
        if row["round"] == 1:
            grid.contexts[555] = Context(1, 555, {"partition-id": 1}, RecordDict(), {})
            del grid.contexts[101]

    result = DPStrategy(plan, watch=replace_node).start(grid, INITIAL)
    assert [row["clients"] for row in result.history] == [3, 3, 3]
    assert torch.equal(params(result), final(plan))


def test_a_slow_node_is_enrolled_by_what_it_was_asked_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes longer than until it is asked again, every time: its first answer must count."""
    monkeypatch.setattr("dpfed.training.flower.transport._ENROL_AGAIN_AFTER_S", 0.05)

    class Slow(LocalGrid):
        asked = 0

        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            ids = list(super().push_messages(messages))
            if not self.asked:
                self.first = set(ids)
            self.asked += 1
            return ids

        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            if not self.first:  # all of them have enrolled
                return super().pull_messages(message_ids)
            if self.asked < 3:
                return []
            found = list(super().pull_messages(self.first.intersection(message_ids)))
            self.first -= {each.metadata.reply_to_message_id for each in found}
            return found

    plan = make_plan()
    result = DPStrategy(plan, wait=20.0).start(Slow(app_for(plan), nodes(3)), INITIAL)
    assert [row["clients"] for row in result.history] == [3] * 4
    assert torch.equal(params(result), final(plan))


def test_nodes_that_do_not_answer_are_not_said_to_be_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a busy machine their processes were still starting, and the advice was to start more."""
    monkeypatch.setattr("dpfed.training.flower.transport._ENROL_AGAIN_AFTER_S", 0.05)

    class Silent(LocalGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            return []

    plan = make_plan()
    why = r"none of the 3 nodes that are connected has said within 0\.1 s .*wait=1\)"
    with pytest.raises(RoundAborted, match=why):
        DPStrategy(plan, wait=0.1).start(Silent(app_for(plan), nodes(3)), INITIAL)


def test_arrays_in_another_order_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    """safetensors.load_file sorts by name: as many parameters, each in the place of another."""
    module = torch.nn.Linear(2, 2)
    plan = make_plan()

    def problem(context: Context) -> Any:
        del context
        return Network(module).problem((torch.rand(10, 2), torch.arange(10) % 2))

    def began_with(names: Iterable[str]) -> ArrayRecord:
        return ArrayRecord({name: module.state_dict()[name.split(".")[-1]] for name in names})

    grid = LocalGrid(client_app(problem, plan), nodes(3))
    for wrong in (["bias", "weight"], ["default.bias", "default.weight"]):
        assert DPStrategy(plan).start(grid, began_with(wrong)).stopped is not None
        assert "in the order of this client's model, weight, bias, got " in caplog.text
        caplog.clear()
    result = DPStrategy(plan).start(grid, began_with(["default.weight", "default.bias"]))
    assert len(result.history) == plan.rounds


class Unseen(LocalGrid):
    """A node is restarted between two looks at who is online: the order that it had is lost."""

    lost: str | None = None
    twice = False

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        ids = list(super().push_messages(messages))
        stages = [str(m.content.config_records[CONTROL]["stage"]) for m in messages]
        if self.lost is None and ENROL not in stages:
            self.lost = ids[1]
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        ids = list(message_ids)
        if self.twice and len(ids) == 2:  # it was slow: the answers to both orders come at once
            return super().pull_messages(ids)
        return super().pull_messages([i for i in ids if i != self.lost])


@pytest.mark.parametrize("twice", [False, True])
def test_a_node_that_lost_its_order_unseen_is_asked_once_more(
    twice: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays online for all that anybody sees, so the stage would wait for its timeout."""
    monkeypatch.setattr("dpfed.training.flower.replies._RESEND_AFTER_S", 0.05)
    plan = make_plan()
    grid = Unseen(app_for(plan), nodes(3))
    grid.twice = twice
    began = time.monotonic()
    result = DPStrategy(plan).start(grid, INITIAL, timeout=60.0)
    assert time.monotonic() - began < 30.0
    assert grid.lost is not None
    assert [row["clients"] for row in result.history] == [3] * 4
    assert torch.equal(params(result), final(plan))  # with the same noise, counted once
    assert result.guarantee == DPStrategy(plan).start(grid_for(plan), INITIAL).guarantee


def test_nobody_connected_spends_nothing() -> None:
    plan = make_plan()
    grid = LocalGrid(app_for(plan), {})
    strategy = DPStrategy(plan, wait=0.1)
    with pytest.raises(RoundAborted, match="no round was completed"):
        strategy.start(grid, INITIAL)
    assert strategy.step is not None
    assert strategy.step.state.release_counts == {}


# ------------------------------------------------------------------------------------- budget


def test_the_budget_ends_training_and_nothing_is_lost() -> None:
    plan = make_plan(rounds=4)
    result = DPStrategy(plan).start(grid_for(plan), INITIAL, num_rounds=100)
    assert result.stopped == "the next round would exceed the plan's guarantee"
    assert len(result.history) == 4
    assert torch.equal(params(result), final(plan))
    assert result.guarantee is not None
    assert result.guarantee == replace(plan.guarantee(), enforced=SHIPPED)


def test_a_client_refuses_a_round_that_is_not_in_the_plan() -> None:
    plan = make_plan(rounds=2)
    app = app_for(plan)
    for round, stopped in ((1, False), (2, True), (-1, True)):
        at = Broadcast(round, torch.zeros(SIZE))
        sender = Sender(MODEL.layout, plan.fingerprint(), ConfigRecord(), at)
        order = sender.order("reply", {UPDATE: b""})
        message = Message(order, 100, "train")
        message.metadata.__dict__["_message_id"] = "1"
        reply = app(message, Context(1, 100, {"partition-id": 0}, RecordDict(), {}))
        assert ("error" in reply.content.config_records["dpfed"]) is stopped


def test_attempts_that_nobody_answered_use_up_the_budget() -> None:
    plan = make_plan(rounds=4)
    silent = [True, False, True, False]

    def tamper(node: int, _: Message, reply: Message) -> Message | None:
        if node == 100:
            tamper.quiet = silent.pop(0) if silent else False  # type: ignore[attr-defined]
        return Message(Error(1), reply_to=_) if tamper.quiet else reply  # type: ignore[attr-defined]

    result = DPStrategy(plan).start(grid_for(plan, tamper), INITIAL)
    assert [bool(row["aborted"]) for row in result.history] == [True, False, True, False]
    assert result.stopped == "the next round would exceed the plan's guarantee"
    assert result.history[-1]["round"] == 2
    assert result.guarantee is not None
    assert result.guarantee.claims[0].epsilon <= plan.guarantee().claims[0].epsilon * (1 + 1e-8)


def test_too_few_clients_and_a_large_delta_are_said_before_the_first_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    monkeypatch.setattr(
        logging.getLogger("dpfed"), "warning", lambda text, *facts: said.append(text % facts)
    )
    plan = make_plan(rounds=1, delta=0.5)
    DPStrategy(plan, wait=0.1).start(LocalGrid(app_for(plan), nodes(2)), INITIAL)
    assert any("2 of the plan's 3 clients are connected" in line for line in said)
    assert any("num-supernodes=3" in line for line in said)
    assert any("delta = 0.5 is at least 1 / " in line for line in said)
    said.clear()
    fine = make_plan(rounds=1)
    DPStrategy(fine).start(grid_for(fine), INITIAL)
    assert not said


def test_a_rounds_line_has_accuracy_where_it_is_known_and_why_there_is_no_total(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plan, silent = make_plan(rounds=3), {"all"}  # an attempt that is spent takes a round away

    def tamper(node: int, order: Message, reply: Message) -> Message | None:
        if str(order.content.config_records[CONTROL]["stage"]) == ENROL or not silent:
            return reply
        return Message(Error(2), reply_to=order)

    def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"accuracy": 0.625} if round == 1 else {"zero": 0.0})

    def watch(row: dict[str, Any]) -> None:
        silent.clear()  # from the second attempt on they answer

    with caplog.at_level(logging.INFO):
        DPStrategy(plan, watch=watch).start(grid_for(plan, tamper), INITIAL, evaluate_fn=evaluate)
    (first,) = [each for each in caplog.messages if each.startswith("DPStrategy: ")]
    assert SHIPPED in first, "as the last line says"
    lines = [each for each in caplog.messages if each.startswith("round ")]
    assert lines[0].endswith("no total: no client answered")
    assert "accuracy" not in lines[0]
    assert lines[1].startswith("round 1/3: 3 clients, epsilon spent ")
    assert lines[1].endswith(", accuracy 0.625")
    assert "accuracy" not in lines[2]


def test_three_rounds_without_a_release_end_the_training_and_spare_the_rest() -> None:
    plan = make_plan(rounds=10)

    def tamper(node: int, order: Message, reply: Message) -> Message | None:
        return Message(Error(2), reply_to=order)

    result = DPStrategy(plan).start(grid_for(plan, tamper), INITIAL)
    assert [bool(row["aborted"]) for row in result.history] == [True] * 3
    why = "the last one since no client answered"
    assert result.stopped == f"3 attempts in a row got no total, {why}"
    assert result.guarantee is not None
    assert result.guarantee.claims == plan.guarantee().claims  # the end may depend on releases
    assert 0 < result.guarantee.realised[0] < plan.guarantee().claims[0].epsilon


# ------------------------------------------------------------------------------- bad replies


def changed(**control: Any) -> Tamper:
    def tamper(node: int, message: Message, reply: Message) -> Message:
        if node == 101:
            for name, value in control.items():
                reply.content.config_records["dpfed"][name] = value
        return reply

    return tamper


def array(made: Array) -> Tamper:
    def tamper(node: int, message: Message, reply: Message) -> Message:
        if node == 101:
            reply.content.array_records["reply"][UPDATE] = made
        return reply

    return tamper


def content(make: Any) -> Tamper:
    return lambda node, message, reply: (
        Message(make(reply), reply_to=message) if node == 101 else reply
    )


def replied(reply: Message, arrays: ArrayRecord) -> RecordDict:
    return RecordDict({"reply": arrays, "dpfed": reply.content["dpfed"]})


SIZE = MODEL.layout.size
HUGE = b"\xff" * 7 + b"\x7f" + bytes(8 * SIZE - 8)  # near 2^63: a sum could wrap
BAD: dict[str, Tamper] = {
    "nan": array(Array(np.full(SIZE, np.nan, np.float32))),
    "inf": array(Array(np.full(SIZE, np.inf))),
    "floats": array(Array(np.zeros(SIZE, np.float32))),
    "one": array(Array("uint8", (4,), "dpfed.grid", b"1234")),
    "short": array(Array("uint8", (4 * SIZE - 4,), "dpfed.grid", bytes(4 * SIZE - 4))),
    "shape": array(Array("uint8", (SIZE, 4), "dpfed.grid", bytes(4 * SIZE))),
    "dtype": array(Array("float32", (4 * SIZE,), "dpfed.grid", bytes(4 * SIZE))),
    "huge": array(Array("uint8", (8 * SIZE,), "dpfed.grid", HUGE)),
    "late": changed(round=3),
    "attempt": changed(attempt=9),
    "stage": changed(stage="keys"),
    "stranger": changed(client=0),
    "error": changed(error="ClientError"),
    "rude error": changed(error="patient 4711 has HIV"),
    "no channel": content(lambda r: replied(r, ArrayRecord())),
    "channel": content(lambda r: replied(r, ArrayRecord({"x": r.content["reply"][UPDATE]}))),
    "arrays": content(lambda r: RecordDict({**r.content, "model": INITIAL})),
    "nothing": content(lambda r: RecordDict()),
    "flower error": lambda node, m, r: Message(Error(2, "x"), reply_to=m) if node == 101 else r,
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_reply_is_refused_and_the_round_completes(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    plan = make_plan(rounds=1)
    result = DPStrategy(plan).start(grid_for(plan, BAD[kind]), INITIAL)
    without = LocalGrid(app_for(plan), {100: 0, 102: 2})
    expected = DPStrategy(plan, wait=0.1).start(without, INITIAL)
    assert torch.equal(params(result), params(expected))
    row = result.history[0]
    assert (row["clients"], row["absent"], list(refused(row))) == (2, "1", [1])
    assert "4711" not in caplog.text


def test_weights_that_a_client_sends_are_ignored() -> None:
    plan = make_plan(rounds=1)
    grid = grid_for(plan, changed(**{"num-examples": 10**9, "weight": 1e9}))
    assert torch.equal(params(DPStrategy(plan).start(grid, INITIAL)), final(plan))


def test_an_exception_on_a_client_crosses_as_a_class_name() -> None:
    secret = "patient 4711 has HIV"

    def broken(context: Context) -> Any:
        raise ValueError(secret)

    plan = make_plan(rounds=1)
    people = client_states()
    good = lambda c: people[c.node_config["partition-id"]].problem  # noqa: E731
    app = client_app(lambda c: broken(c) if c.node_config["partition-id"] == 1 else good(c), plan)
    sent: list[str] = []

    def listen(node: int, message: Message, reply: Message) -> Message:
        sent.append(repr(reply) + repr(reply.content))
        return reply

    result = DPStrategy(plan).start(LocalGrid(app, nodes(3), listen), INITIAL)
    assert refused(result.history[0]) == {1: "ClientError"}
    assert not any(secret in each for each in sent)


def test_of_a_refusal_nothing_but_a_known_name_crosses() -> None:
    """Whatever it is made of: the last look before it leaves."""
    for word, crosses in (("BudgetSpent", "BudgetSpent"), ("patient 4711", "ClientError")):
        sent = write_reply(Envelope(0, 0, "reply", 1), ClientRefused(word))
        assert list(sent) == [CONTROL]
        assert sent.config_records[CONTROL]["error"] == crosses


def test_a_client_refuses_a_server_with_another_plan() -> None:
    """Less noise, more rounds, another clip: each is another fingerprint."""
    agreed = make_plan(rounds=1)
    for other in (
        replace(agreed, channels={UPDATE: gaussian(Facts(1.0), 0.1)}),
        replace(agreed, channels={UPDATE: gaussian(Facts(100.0), 2.0)}),
        replace(agreed, rounds=1000),
        replace(agreed, nominal=[1, 1, 1]),
    ):
        assert other.fingerprint() != agreed.fingerprint()
        strategy = DPStrategy(other, wait=0.1)
        with pytest.raises(RoundAborted, match="no client was connected"):
            strategy.start(grid_for(agreed), INITIAL)
        assert strategy.step is not None
        assert strategy.step.history == ()


def test_a_server_that_skips_enrolment_is_refused_too() -> None:
    agreed = make_plan(rounds=1)
    other = replace(agreed, channels={UPDATE: gaussian(Facts(1.0), 0.1)})
    transport = GridTransport(other, grid_for(agreed), MODEL.layout, wait=0.1)
    transport.nodes, transport._asked = {0: 100, 1: 101, 2: 102}, {100, 101, 102}
    *_, last = train(other, torch.zeros(SIZE), transport)
    assert refused(last.history[0]) == dict.fromkeys(range(3), "UnsoundPlan")


@pytest.mark.parametrize("partition", [-1, 3, "x"])
def test_a_node_that_the_plan_does_not_know_is_not_enrolled(partition: Any) -> None:
    plan = make_plan(rounds=1)
    grid = LocalGrid(app_for(plan), {**nodes(3), 999: partition})
    assert torch.equal(params(DPStrategy(plan).start(grid, INITIAL)), final(plan))


def test_two_nodes_cannot_be_one_client() -> None:
    plan = make_plan(rounds=1)
    grid = LocalGrid(app_for(plan), {**nodes(3), 999: 1})
    result = DPStrategy(plan).start(grid, INITIAL)
    assert result.history[0]["clients"] == 3


# ------------------------------------------------------------------------------- streaming


def test_replies_are_pulled_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpfed.training.flower.transport._MAX_PULLED_BYTES", 2 * 4 * SIZE)
    plan = make_plan(nominal=[3] * 12, rounds=1)
    grid = grid_for(plan, sizes=[3] * 12)
    transport = GridTransport(plan, grid, MODEL.layout)
    steps = train(plan, torch.zeros(SIZE), transport)
    transport.ready(next(steps))  # enrolment pulls all at once: its replies are small
    grid.most_at_once = 0
    assert next(steps).history[0]["clients"] == 12
    assert grid.most_at_once == 2


# ----------------------------------------------------------------------- a mod on one's own app


def test_a_train_function_of_ones_own_becomes_private_at_client_level() -> None:
    """One gradient step in plain torch; only the private update leaves."""
    mechanism = gaussian(Facts(clip=1e6, unit=Unit.CLIENT), std=1e-4)
    plan = make_plan(
        channels={UPDATE: mechanism},
        nominal=[1, 1, 1],
        rounds=2,
        server=build("server", "scale", {}),
    )
    app = ClientApp()
    seen: list[float] = []

    @app.train(mods=[private(plan)])
    def train(message: Message, context: Context) -> Message:
        seen.append(float(message.content["config"]["lr"]))
        arrays = message.content["arrays"].to_torch_state_dict()
        shift = float(context.node_config["partition-id"]) + 1
        moved = ArrayRecord({name: value - shift for name, value in arrays.items()})
        metrics = MetricRecord({"num-examples": 5, "train_loss": 0.1})
        return Message(RecordDict({"arrays": moved, "metrics": metrics}), reply_to=message)

    grid = LocalGrid(app, nodes(3))
    config = ConfigRecord({"lr": 0.5})
    result = DPStrategy(plan).start(grid, INITIAL, train_config=config)
    assert torch.allclose(
        params(result), torch.full((SIZE,), -4.0), atol=1e-2
    )  # mean of 1, 2, 3, twice
    assert seen == [0.5] * 6
    assert "for each client" in str(result.guarantee)


def test_a_train_function_of_ones_own_keeps_its_threads() -> None:
    """Also inside of the server's own round, as in one process; our arithmetic takes one."""
    plan = make_plan(
        channels={UPDATE: gaussian(Facts(clip=1.0, unit=Unit.CLIENT), std=1.0)},
        nominal=[1, 1, 1],
        rounds=1,
        server=build("server", "scale", {}),
    )
    app, seen = ClientApp(), []

    def look(message: Message, context: Context) -> Message:
        seen.append(torch.get_num_threads())
        metrics = MetricRecord({"num-examples": 1})
        content = RecordDict({"arrays": message.content["arrays"], "metrics": metrics})
        return Message(content, reply_to=message)

    app.train(mods=[private(plan, evaluate=look)])(look)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with one_thread():
            result = DPStrategy(plan).start(LocalGrid(app, nodes(3)), INITIAL, num_rounds=1)
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert refused(result.history[0]) == {}
    assert seen == [3] * 6  # trained and looked at, on each of three nodes


def test_a_train_function_cannot_protect_records() -> None:
    plan = make_plan(rounds=1)
    app = ClientApp()

    @app.train(mods=[private(plan)])
    def train(message: Message, context: Context) -> Message:
        return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)

    result = DPStrategy(plan).start(LocalGrid(app, nodes(3)), INITIAL, num_rounds=1)
    assert refused(result.history[0]) == dict.fromkeys(range(3), "UnsoundPlan")


# ------------------------------------------------------------------------------- client state


class Kept(NamedTuple):
    c: torch.Tensor
    t: int


def counting() -> ClientAlgorithm:
    def work(broadcast: Broadcast, problem: Any, state: Kept, release: Any) -> Any:
        made = release(problem.rows(broadcast.params, release.unit))
        return {UPDATE: made}, Kept(state.c + made.vector.double() * made.step, state.t + 1)

    def init(params: torch.Tensor) -> Kept:
        return Kept(torch.zeros(params.numel(), dtype=torch.float64), 0)

    return ClientAlgorithm(init, work, frozenset(Unit), sends_unmodified=True)


def test_client_state_is_on_the_clients_disk_and_outlives_a_run(tmp_path: Path) -> None:
    plan = make_plan(client=counting())
    DPStrategy(plan, training="t1").start(grid_for(plan), INITIAL)
    folder = states.folder_for("t1", 1)
    kept_files = sorted(path.name for path in folder.glob("*.safetensors"))
    assert kept_files == ["2.safetensors", "3.safetensors"]
    form = Kept(torch.zeros(SIZE, dtype=torch.float64), 0)
    assert states.load_at(folder, (3, 0), form).t == 4
    assert states.load_at(folder, (2, 0), form).t == 3


def test_clients_answer_a_training_once_and_one_without_a_name_is_a_new_one(tmp_path: Path) -> None:
    plan = make_plan(rounds=2)
    for _ in range(2):
        result = DPStrategy(plan).start(grid_for(plan), INITIAL)
        assert [row["clients"] for row in result.history] == [3, 3]
    DPStrategy(plan, training="t").start(grid_for(plan), INITIAL)
    again = DPStrategy(plan, training="t").start(grid_for(plan), INITIAL)
    assert set(refused(again.history[0]).values()) == {"UnsoundPlan"}
    DPStrategy(plan, checkpoint=tmp_path / "run").start(grid_for(plan), INITIAL, num_rounds=1)
    resumed = DPStrategy(plan, checkpoint=tmp_path / "run").start(grid_for(plan), INITIAL)
    assert [row["clients"] for row in resumed.history] == [3, 3]


def test_correlated_noise_never_goes_back_to_an_earlier_state() -> None:
    """Round 1 is asked twice: the algorithm's state is rolled back, the tree's is not."""
    tree = build("mechanisms", "tree", {"std": 2.0, "horizon": 9})
    plan = make_plan(client=counting(), channels={UPDATE: tree}, rounds=4)
    asked = []

    def lost(node: int, message: Message, reply: Message) -> Message:
        control = message.content.config_records["dpfed"]
        asked.append((control["round"], control["attempt"]))
        if (control["round"], control["attempt"]) == (1, 0):
            reply.content.array_records.clear()
        return reply

    DPStrategy(plan, training="t2").start(grid_for(plan, lost), INITIAL, num_rounds=3)
    assert sorted(set(asked)) == [(0, 0), (1, 0), (1, 1), (2, 0)]
    folder = states.folder_for("t2", 0)
    assert states.load_at(folder, (2, 0), Kept(torch.zeros(SIZE), 0)).t == 3
    fresh = plan.mechanism_states(MODEL.layout.size)
    assert states.load_noise(folder, {UPDATE: 4}, fresh)[UPDATE].t == 4
    for wrong in (3, 5):
        with pytest.raises(UnsoundPlan, match=f"must be that after .*{wrong}.* attempts"):
            states.load_noise(folder, {UPDATE: wrong}, fresh)


def test_a_run_that_starts_again_forgets_the_later_rounds_of_the_one_before(tmp_path: Path) -> None:
    for round in (68, 69, 0, 1):
        states.save_state(tmp_path, round, (torch.ones(2), round))
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["0", "1"]
    assert states.load_at(tmp_path, (1, 0), (torch.zeros(2), 0))[1] == 1


def test_state_of_another_form_or_a_strange_name_is_refused(tmp_path: Path) -> None:
    states.save_state(tmp_path, 0, (torch.ones(2), 3))
    with pytest.raises(DataError, match="has no leaf"):
        states.load_at(tmp_path, (0, 0), (torch.ones(2), 3, 4))
    with pytest.raises(DataError, match="tensors and numbers"):
        states.save_state(tmp_path, 1, {"a": object()})
    for name in ("../x", "a/b", "", ".hidden", "x" * 101):
        with pytest.raises(DataError, match="training must be 1 to 100 of"):
            states.folder_for(name, 0)


@pytest.mark.long
def test_memory_does_not_grow_with_the_number_of_clients(repository: Path) -> None:
    """A Grid that makes 200 replies of 10^6 parameters lazily: at most 6 float32 vectors."""
    from dpfed_lab.benchmarks._measure import RETURN_FREED

    done = subprocess.run(
        [sys.executable, "-m", "dpfed_lab.benchmarks.flower_memory", "200"],
        cwd=repository,
        env={**os.environ, **RETURN_FREED},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1])["vectors"] <= 6
