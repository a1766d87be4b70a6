# SPDX-License-Identifier: Apache-2.0
"""A user's own evaluate function: its numbers are in the node's log, and change no bit that leaves.

An app's plain ``@app.evaluate`` would send them in clear to whoever asks.
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
from dpfed.core.types import UPDATE, Unit
from dpfed.flower import DPStrategy, private
from dpfed.mechanisms.gaussian import gaussian
from dpfed.training.plan import Plan
from tests.training.flower.local_grid import LocalGrid, become_a_server, nodes
from tests.training.test_round import make_plan

INITIAL = ArrayRecord(MODEL.layout.unflatten(torch.zeros(MODEL.layout.size)))
ROUNDS, CLIENTS = 3, 2
Evaluate = Callable[[Message, Context], Any]


@pytest.fixture(autouse=True)
def _server(monkeypatch: pytest.MonkeyPatch) -> None:
    become_a_server(monkeypatch)


def plan() -> Plan:
    channels = {UPDATE: gaussian(clip=1.0, std=0.5, unit=Unit.CLIENT)}
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
    said = [each.getMessage() for each in caplog.records if "told nobody" in each.getMessage()]
    assert len(said) == ROUNDS * CLIENTS
    assert all("'auc': 0.875" in each for each in said)
    assert not any("auc" in each or "num-examples" in each for each in sent)


def test_whoever_asks_for_an_evaluation_gets_nothing(tmp_path: Path) -> None:
    app, run = ClientApp(), []

    @app.evaluate(mods=[private(plan())])
    def evaluate(message: Message, context: Context) -> Message:
        run.append(message)
        return telling(message, context)

    context = Context(1, 100, {"partition-id": 0}, RecordDict(), {})
    message = Message(RecordDict({"arrays": INITIAL}), dst_node_id=100, message_type="evaluate")
    reply = app(message, context)
    assert len(reply.content) == 0
    assert run == []
