# SPDX-License-Identifier: Apache-2.0
"""A user's own evaluate function: its numbers are in the node's log, and change no bit that leaves.

An app's plain ``@app.evaluate`` would send them in clear to whoever asks: the README's diff put
``private`` before ``@app.train`` alone, and left it so.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from dpfed.audit.client_laws import MODEL
from dpfed.core.types import UPDATE, Facts, Unit
from dpfed.flower import DPStrategy, private
from dpfed.mechanisms.gaussian import gaussian
from dpfed.training.plan import Plan
from tests.helpers.rounds import make_plan
from tests.training.flower.local_grid import LocalGrid, become_a_server, nodes

INITIAL = ArrayRecord(MODEL.layout.unflatten(torch.zeros(MODEL.layout.size)))
ROUNDS, CLIENTS = 3, 2
Evaluate = Callable[[Message, Context], Any]


@pytest.fixture(autouse=True)
def _server(monkeypatch: pytest.MonkeyPatch) -> None:
    become_a_server(monkeypatch)


def plan() -> Plan:
    channels = {UPDATE: gaussian(Facts(clip=1.0, unit=Unit.CLIENT), std=0.5)}
    return make_plan(channels=channels, nominal=[1] * CLIENTS, rounds=ROUNDS)


def what_leaves(
    evaluate: Evaluate | None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """All replies of a training with their bytes: keyed noise makes them repeat."""
    monkeypatch.setenv("DPFED_STATE", str(folder))
    app, sent = ClientApp(), []

    @app.train(mods=[private(plan(), evaluate=evaluate)])
    def train(message: Message, context: Context) -> Message:
        arrays = message.content["arrays"].to_torch_state_dict()
        moved = ArrayRecord({name: value - 0.1 for name, value in arrays.items()})
        context.state["seen"] = MetricRecord({"rounds": _seen(context) + 1})
        scaled = {n: v.numpy() * (1 + _seen(context)) for n, v in moved.items()}
        back = ArrayRecord({n: torch.from_numpy(v) for n, v in scaled.items()})
        return Message(RecordDict({"arrays": back}), reply_to=message)

    def note(node: int, message: Message, reply: Message) -> Message:
        assert _payload(reply)
        sent.append(f"{node} {reply.content!r} {_payload(reply).hex()}")
        return reply

    result = DPStrategy(plan(), training="t").start(LocalGrid(app, nodes(CLIENTS), note), INITIAL)
    assert not result.stopped
    return sent


def _payload(reply: Message) -> bytes:
    """All bytes of a reply's arrays and settings."""
    arrays = [a.data for record in reply.content.array_records.values() for a in record.values()]
    config = [v for record in reply.content.config_records.values() for v in record.values()]
    return b"".join(arrays) + b"".join(v for v in config if isinstance(v, bytes))


def _seen(context: Context) -> int:
    return int(context.state["seen"]["rounds"]) if "seen" in context.state else 0


def telling(message: Message, context: Context) -> Message:
    metrics = MetricRecord({"auc": 0.875, "num-examples": 77})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def failing(message: Message, context: Context) -> Message:
    raise ValueError("patient 17 has no label")


def leaving(message: Message, context: Context) -> Message:
    sys.exit(3)


def meddling(message: Message, context: Context) -> Message:
    context.state["seen"] = MetricRecord({"rounds": 40})
    for name in list(message.content):
        del message.content[name]
    return telling(message, context)


def of_another_kind(message: Message, context: Context) -> Any:
    return 0.875


EVALUATES = [telling, failing, leaving, meddling, of_another_kind]


@pytest.mark.parametrize("evaluate", EVALUATES)
def test_no_bit_that_leaves_depends_on_it(
    evaluate: Evaluate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = what_leaves(None, tmp_path / "without", monkeypatch)
    assert len(without) == ROUNDS * CLIENTS
    assert len(set(without)) == len(without)  # what is compared is not empty
    assert what_leaves(evaluate, tmp_path / "with", monkeypatch) == without


def test_its_numbers_are_in_the_local_log_once_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="dpfed"):
        sent = what_leaves(telling, tmp_path, monkeypatch)
    said = [each.getMessage() for each in caplog.records if "nothing was sent" in each.getMessage()]
    assert len(said) == ROUNDS * CLIENTS
    assert all("'auc': 0.875" in each for each in said)
    assert not any("auc" in each or "num-examples" in each for each in sent)


def asked_for(kind: str, app: ClientApp) -> Message:
    context = Context(1, 100, {"partition-id": 0}, RecordDict(), {})
    content = RecordDict({"arrays": INITIAL})
    return app(Message(content, dst_node_id=100, message_type=kind), context)


def test_whoever_asks_for_an_evaluation_gets_nothing() -> None:
    app, run = ClientApp(), []

    @app.evaluate(mods=[private(plan())])
    def evaluate(message: Message, context: Context) -> Message:
        run.append(message)
        return telling(message, context)

    assert len(asked_for("evaluate", app).content) == 0
    assert run == []


@pytest.mark.parametrize("kind", ["evaluate", "evaluate.twice", "query", "query.sizes"])
def test_before_the_whole_app_it_covers_every_function_that_is_not_train(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    app, run = ClientApp(mods=[private(plan())]), []
    register = app.evaluate if kind.startswith("evaluate") else app.query

    @register(*kind.split(".")[1:])
    def answer(message: Message, context: Context) -> Message:
        run.append(message)
        return telling(message, context)

    with caplog.at_level(logging.WARNING, logger="dpfed"):
        assert len(asked_for(kind, app).content) == 0
    assert run == []
    assert f"the server asked this node for {kind!r}" in caplog.text
    assert "private(plan, evaluate=FUNCTION)" in caplog.text  # the way out


def test_before_the_whole_app_it_trains_as_before_its_train_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPFED_STATE", str(tmp_path))
    app = ClientApp(mods=[private(plan())])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)

    result = DPStrategy(plan()).start(LocalGrid(app, nodes(CLIENTS)), INITIAL)
    assert [row["clients"] for row in result.history] == [CLIENTS] * ROUNDS


def test_the_strategy_warns_of_evaluate_replies_in_clear_and_drops_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    covered, bare = ClientApp(mods=[private(plan())]), ClientApp()
    for app in (covered, bare):
        app.evaluate()(telling)
    silent = [asked_for("evaluate", covered)]
    strategy = DPStrategy(plan())
    with caplog.at_level(logging.WARNING, logger="dpfed"):
        assert strategy.aggregate_evaluate(1, silent) is None
        assert "in clear" not in caplog.text
        assert strategy.aggregate_evaluate(2, [*silent, asked_for("evaluate", bare)]) is None
    assert "evaluate replies of 1 nodes in round 2 came in clear" in caplog.text
    assert "77" not in caplog.text  # the log does not repeat what it warns of
