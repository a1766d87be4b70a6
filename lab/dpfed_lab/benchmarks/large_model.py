# SPDX-License-Identifier: Apache-2.0
"""(j) One round of a large model over Flower's messages, and what it leaves on the disk.

10^8 parameters are trained at client level, 10^7 at record level.
Both sides are in one process, which is more than either has to hold: nodes answer one at a time,
when the server pulls their reply. Each client's answer is on its disk before it leaves, and stays
there until the next round's takes its place. Module and records are the same for all clients, as
each has its own on a machine of its own.

Stated are seconds per client, the high-water mark above what was there before the round (module
and parameters), and the bytes on the disk per client, both in float32 vectors of the model's size.
Limits: none of the two grows with the number of clients.
"""

from __future__ import annotations

import json
import logging
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from dpfed_lab.benchmarks._measure import RETURN_FREED, Result, peak_above, threads
from dpfed_lab.benchmarks.flower_memory import LazyGrid

MEASURES = (
    "dpfed.training.flower.transport",
    "dpfed.training.wire.codec",
    "dpfed.training.flower.client",
    "dpfed.training.reply",
    "dpfed.training.round",
    "dpfed.data.modules",
)

SIZES = {"client": 10**8, "record": 10**7}
COUNTS = (2, 8)
RECORDS = 16
GROWTH = 1.05


def run() -> list[Result]:
    """Few and many clients, at both units."""
    found = {(unit, n): _in_child(unit, n, SIZES[unit]) for unit in SIZES for n in COUNTS}
    return [line for unit in SIZES for line in _lines(unit, *(found[unit, n] for n in COUNTS))]


def _lines(unit: str, few: dict[str, float], many: dict[str, float]) -> list[Result]:
    name = f"{SIZES[unit]:.0e} parameters, unit {unit}"
    against = f"the same with {COUNTS[0]} clients, not {COUNTS[1]}"
    words = {"memory": "vectors", "disk": "vectors"}
    held = [
        Result(f"{name}, {what}", many[what], few[what], word, GROWTH, against)
        for what, word in words.items()
    ]
    seconds = (many["seconds"], few["seconds"], "s")
    return [Result(f"{name}, time per client", *seconds, None, against, detail=many), *held]


def _in_child(unit: str, clients: int, size: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as state:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "dpfed_lab.benchmarks.large_model",
                unit,
                str(clients),
                str(size),
            ],
            cwd=Path(__file__).parents[3],
            env=os.environ | RETURN_FREED | {"DPFED_STATE": state},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


class AnsweringGrid(LazyGrid):
    """A node answers when its reply is pulled, by the app's own code."""

    def __init__(self, clients: int, app: ClientApp) -> None:
        super().__init__(clients, "")
        self.app, self.waiting = app, dict[str, Message]()

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Keep the orders, which share their parameters."""
        kept = list(messages)
        ids = [str(uuid4()) for _ in kept]
        for key, message in zip(ids, kept, strict=True):
            message.metadata.__dict__["_message_id"] = key
        self.waiting.update(zip(ids, kept, strict=True))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Answer those that are asked for."""
        return [self._answered(self.waiting.pop(key)) for key in message_ids]

    def _answered(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        context = Context(1, node, {"partition-id": node - 1}, RecordDict(), {})
        return self.app(message, context)


def measure(unit: str, clients: int, size: int) -> dict[str, float]:
    """The second round: by then all that is lazy is loaded."""
    from dpfed.core.flower_private import become_node
    from dpfed.flower import Network, client_app, make_plan, tensor_batches
    from dpfed.training.flower.transport import GridTransport
    from dpfed.training.loop import train

    become_node()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    width = math.isqrt(size)
    model = Network(nn.Linear(width, width, bias=False), chunk=RECORDS)
    x = torch.randn(RECORDS, width)
    problem = model.problem(tensor_batches(x, torch.arange(RECORDS)))
    units = 1 if unit == "client" else RECORDS
    privacy: dict[str, Any] = {"unit": unit, "epsilon": 8.0, "delta": 1e-5, "clip": 1.0}
    plan = make_plan(
        clients=[units] * clients,
        rounds=2,
        privacy=privacy,
        server=[{"name": "scale", "rate": 0.1}],
    )
    grid = AnsweringGrid(clients, client_app(lambda _: problem, lambda _: plan))
    steps = train(plan, model.initial(0), GridTransport(plan, grid, model.layout, timeout=3600.0))
    next(steps)
    answered = [next(steps).history[-1]["clients"]]
    begin = time.perf_counter()
    peak, _ = peak_above(lambda: answered.append(next(steps).history[-1]["clients"]))
    seconds = (time.perf_counter() - begin) / clients
    if answered != [clients, clients]:
        raise RuntimeError(f"{clients} clients should have answered, got {answered}")
    disk = sum(p.stat().st_size for p in Path(os.environ["DPFED_STATE"]).rglob("*") if p.is_file())
    vector = 4 * model.layout.size
    return {
        "seconds": seconds,
        "memory": peak / vector,
        "disk": disk / clients / vector,
        "peak_bytes": peak,
        "disk_bytes": disk,
    }


def _main(unit: str, clients: str, size: str) -> None:
    with threads(1):
        found = measure(unit, int(clients), int(size))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    _main(*sys.argv[1:])
