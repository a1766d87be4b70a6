# SPDX-License-Identifier: Apache-2.0
"""A server that says what it likes to the real ClientApps, without Flower's processes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from dpfed.core.errors import ClientRefused
from dpfed.core.rows import Dense
from dpfed.core.sum_protocol import StageReply
from dpfed.core.types import UPDATE, Broadcast, Rows, Unit, Vector
from dpfed.core.vector import layout_of
from dpfed.flower import client_app
from dpfed.training.plan import Plan
from dpfed.training.wire.codec import Envelope, Sender, read_reply
from tests.training.flower.local_grid import become_a_server

SIZE = 50
START = torch.zeros(SIZE)


class Silent:
    """A client's data whose rows are zero: what it sends is its noise."""

    def __init__(self, size: int = SIZE) -> None:
        self.dimension = size

    def rows(self, params: Vector, unit: Unit) -> Rows:
        del params, unit
        return Dense(torch.zeros(4, self.dimension))

    def gradient(self, params: Vector) -> Vector:
        return torch.zeros_like(params)

    def metric_rows(self, params: Vector, unit: Unit, loss_bound: float) -> Rows:
        del params, unit, loss_bound
        return Dense(torch.zeros(4, 2))


def app_of(plan: Plan, dataset: str | None = None, size: int = SIZE) -> ClientApp:
    return client_app(lambda _: Silent(size), plan, dataset)


def at_home(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node with a disk of its own, whose owner has named nothing."""
    monkeypatch.setenv("DPFED_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("DPFED_IDENTITY", "simulated")
    for name in ("DPFED_LEDGER", "DPFED_DATASET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(logging.getLogger("dpfed"), "disabled", True)  # thousands of refusals
    become_a_server(monkeypatch)


def ask(
    app: ClientApp,
    plan: Plan,
    at: Broadcast,
    client: int = 0,
    stage: str = "reply",
    requests: Mapping[str, bytes] | None = None,
    since: tuple[int, int] | None = None,
    config: Mapping[str, Any] | None = None,
) -> StageReply:
    """One order to one client, and what comes back."""
    layout = layout_of({"weight": torch.empty(at.params.numel())})
    sender = Sender(layout, plan.fingerprint(), ConfigRecord(dict(config or {})), at)
    order = sender.order(stage, requests or {UPDATE: b""}, stage not in ("reply", "input"), since)
    message = Message(order, 100 + client, "train")
    message.metadata.__dict__["_message_id"] = "1"
    context = Context(1, 100 + client, {"partition-id": client}, RecordDict(), {})
    reply = app(message, context)
    return read_reply(reply.content, Envelope(at.round, at.attempt, stage, client))


def release(*arguments: Any, **more: Any) -> bytes | str:
    """What one order gets out of a client: the bytes of its release, or the name of a refusal."""
    found = ask(*arguments, **more)
    return str(found) if isinstance(found, ClientRefused) else found[UPDATE]


def exchange_with(app: ClientApp, plan: Plan, hear: Callable[..., None] = lambda *_: None) -> Any:
    """An exchange of ``run_round``; ``hear`` is told each stage, client and answer."""

    def exchange(
        at: Broadcast, stage: str, requests: Mapping[str, Mapping[int, bytes]]
    ) -> Iterator[tuple[int, StageReply]]:
        for client in sorted(set().union(*requests.values())):
            asked = {name: to[client] for name, to in requests.items() if client in to}
            found = ask(app, plan, at, client, stage, asked)
            hear(stage, client, found)
            yield client, found

    return exchange
