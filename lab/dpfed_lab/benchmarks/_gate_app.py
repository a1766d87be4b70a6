# SPDX-License-Identifier: Apache-2.0
"""The Flower app of gate_round.py: rounds of three kinds take turns in one run.

Flower starts a process for each message, and a process imports what its own message needs. So the
kinds share an app, and each pays for what it uses.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

client = ClientApp()
server = ServerApp()
KINDS = ("empty", "gated", "shipped")


def note(context: Context, **figures: Any) -> None:
    """One line for the benchmark."""
    path = Path(str(context.run_config["notes"]))
    with path.open("a") as file:
        file.write(json.dumps(figures) + "\n")


@client.train()
def train(message: Message, context: Context) -> Message:
    """An echo, a relay, or the whole of a client, whatever the order's kind."""
    kind, waited = _kind(message), 0.0
    if kind == "gated":
        from dpfed.silo.relay import silo_app

        began = time.perf_counter()
        reply = silo_app()(message, context)
        waited = time.perf_counter() - began
    elif kind == "shipped":
        reply = _shipped(context)(message, context)
    else:
        reply = Message(message.content, reply_to=message)
    used = resource.getrusage(resource.RUSAGE_SELF)
    note(
        context,
        kind=kind,
        waited=waited,
        mb=used.ru_maxrss / 1024,
        cpu=used.ru_utime + used.ru_stime,
        enrol=_stage(message) == "enrol",
    )
    return reply


def _control(message: Message) -> dict[str, Any]:
    """What codec.py, which imports torch, writes under this name."""
    return dict(message.content.config_records.get("dpfed", ConfigRecord()))


def _kind(message: Message) -> str:
    return str(_control(message).get("training", "-empty")).rpartition("-")[2]


def _stage(message: Message) -> str:
    return str(_control(message).get("stage", ""))


def _shipped(context: Context) -> ClientApp:
    """The client of an app that reads the data itself, in this process."""
    from dpfed.data.datasets import load
    from dpfed.training.flower.client import client_app

    terms = _terms(context, "shipped")
    data = os.environ["DPFED_GATE"].replace("run/gate.sock", "data.npz")
    return client_app(lambda _: terms.model.problem(load(data).train), terms.plan)


def _terms(context: Context, kind: str) -> Any:
    from dpfed.recipes.terms import read_terms

    return read_terms(Path(str(context.run_config["terms"]).replace("KIND", kind)).read_bytes())


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Rounds in turn, each timed."""
    rounds = {kind: _begun(grid, context, kind) for kind in KINDS[1:]}
    rounds["empty"] = _echoes(grid, _terms(context, "gated").initial)
    for turn in range(int(context.run_config["repeats"]) + 1):
        for kind in KINDS:
            began = time.perf_counter()
            next(rounds[kind])
            if turn:  # the first one is a warm-up
                note(context, round=kind, seconds=time.perf_counter() - began)


def _begun(grid: Grid, context: Context, kind: str) -> Iterator[Any]:
    from dpfed.training.flower.transport import GridTransport
    from dpfed.training.loop import train as trained

    terms = _terms(context, kind)
    transport = GridTransport(terms.plan, grid, terms.model.layout, timeout=120.0, wait=30.0)
    steps = trained(terms.plan, terms.initial, transport, training=terms.name)
    transport.ready(next(steps))
    assert len(transport.nodes) == len(terms.pins.sizes), transport.nodes
    return _checked(steps)


def _checked(steps: Iterator[Any]) -> Iterator[Any]:
    """A benchmark of failed rounds would be none."""
    for step in steps:
        assert step.history[-1]["missing"] == 0, step.history[-1]
        yield step


def _echoes(grid: Grid, params: Any) -> Iterator[None]:
    """The same numbers to all nodes and back."""
    import torch

    while True:
        content = RecordDict(
            {
                "arrays": ArrayRecord({"weight": torch.as_tensor(params)}),
                "config": ConfigRecord(),
            }
        )
        nodes = list(grid.get_node_ids())
        sent = set(grid.push_messages([Message(content, n, "train", ttl=600) for n in nodes]))
        while sent:
            for reply in grid.pull_messages(sent):
                assert not reply.has_error(), reply.error
                sent.discard(reply.metadata.reply_to_message_id)
            time.sleep(0.01)
        yield None
