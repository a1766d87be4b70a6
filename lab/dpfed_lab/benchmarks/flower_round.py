# SPDX-License-Identifier: Apache-2.0
"""One round of DPStrategy in Flower's simulation, against one of Flower's own FedAvg.

Both move the same payload to the same 20 nodes and back (float32 down, 4 bytes a parameter up), and
both clients do nothing, so the ratio is what the strategy and its checks cost. Rounds take turns in
one simulation. "with noise": the client makes its release, too (one clipped row, fresh noise for
each parameter), enters it in its ledger and keeps its reply, which no bare strategy does; no target
is set. Its parts are of further rounds: what all clients take for them, over as many as work at the
same time; "messages, server" is what is left of the round.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from dpfed.core.registry import build
from dpfed.core.rows import Dense
from dpfed.core.types import UPDATE, Facts, Rows, Unit, Vector
from dpfed.core.vector import layout_of
from dpfed.mechanisms.gaussian import gaussian
from dpfed.training.flower.client import client_app, client_index
from dpfed.training.flower.transport import GridTransport
from dpfed.training.loop import Step, train
from dpfed.training.plan import Plan
from dpfed.training.wire.codec import CONTROL, Envelope, write_reply
from dpfed.training.wire.responder import ENROL
from dpfed_lab.benchmarks import _parts
from dpfed_lab.benchmarks._measure import Result, Task, Timing, compare, interleaved, timing
from dpfed_lab.benchmarks._simulated import Timings, simulated, timing_app

MEASURES = (
    "dpfed.training.flower.transport",
    "dpfed.training.wire.codec",
    "dpfed.training.flower.client",
    "dpfed.training.wire.responder",
    "dpfed.training.loop",
    "dpfed.training.round",
    "dpfed.training.reply",
    "dpfed.training.plan",
    "dpfed.training.account",
    "dpfed.training.wire.stored_replies",
    "dpfed.accounting.ledger.journal",
    "dpfed.core.files",
)

CLIENTS = 20
SIZES = (650, 10**6)
REPEATS = 20


def plan(std: float = 1.0) -> Plan:
    """DP-FedGD over 20 clients of one unit each."""
    return Plan(
        client=build("client", "gradient", {}),
        channels={UPDATE: gaussian(Facts(clip=1.0), std=std)},
        sum=build("sums", "plain", {}),
        server=build("server", "scale", {}),
        nominal=[1.0] * CLIENTS,
        rounds=10_000,
    )


class Nothing:
    """A problem whose one row is zero."""

    def __init__(self, size: int) -> None:
        self.dimension = size

    def rows(self, params: Vector, unit: Unit) -> Rows:
        """One zero row."""
        del unit
        return Dense(torch.zeros(1, params.numel()))

    def gradient(self, params: Vector) -> Vector:
        """Not used."""
        raise NotImplementedError

    def metric_rows(self, params: Vector, unit: Unit, loss_bound: float) -> Rows:
        """Not used."""
        raise NotImplementedError


def apps_for(plans: Mapping[str, Plan]) -> dict[str, ClientApp]:
    """A ClientApp for each plan and size, by what the names of their trainings begin with."""

    def made(plan: Plan, size: int) -> ClientApp:
        return client_app(lambda _: Nothing(size), plan)

    return {f"{name}-{size}": made(plan, size) for name, plan in plans.items() for size in SIZES}


def _app() -> ClientApp:
    """Echoes FedAvg's arrays, answers a quiet plan at once, and a loud one with its release."""
    made = ClientApp()
    apps = apps_for({"quiet": plan(), "loud": plan(2.0), "parts": plan(2.0)})

    @made.train()
    def train(message: Message, context: Context) -> Message:
        content = message.content
        if CONTROL not in content.config_records:
            metrics = MetricRecord({"num-examples": 1})
            reply = RecordDict({"arrays": content["arrays"], "metrics": metrics})
            return Message(reply, reply_to=message)
        control = content.config_records[CONTROL]
        name = str(control["training"]).rpartition("-")[0]
        if control["stage"] == ENROL or name.startswith(("loud", "parts")):
            parts = name.startswith("parts") and control["stage"] != ENROL
            with _parts.timed() if parts else nullcontext():
                return apps[name](message, context)
        at = int(str(control["round"]))
        envelope = Envelope(at, 0, "reply", client_index(context))
        size = content.array_records["arrays"]["weight"].shape[0]
        answer = write_reply(envelope, {UPDATE: bytes(4 * size)})
        return Message(answer, reply_to=message)

    return made


def measure(grid: Grid) -> Timings:
    """Three strategies that take turns in one simulation, then the parts of the third."""
    return {
        size: {**interleaved(_tasks(grid, size), REPEATS, warmup=3), **_by_part(grid, size)}
        for size in SIZES
    }


def _by_part(grid: Grid, size: int) -> dict[str, Timing]:
    """What the parts of a round with noise take, and the whole of such a round."""
    rounds = begun(plan(2.0), grid, size, "parts")
    next(rounds)
    _parts.taken()
    seen: dict[str, list[float]] = {}
    for _ in range(REPEATS // 2):
        began = time.perf_counter()
        next(rounds)
        left = whole = time.perf_counter() - began
        for part, seconds in _parts.taken().items():
            share = seconds / min(CLIENTS, os.cpu_count() or 1)
            seen.setdefault(part, []).append(share)
            left -= share
        seen.setdefault("messages, server", []).append(left)
        seen.setdefault("whole", []).append(whole)
    return {f"{_PART}{name}": timing(times) for name, times in seen.items()}


_PART = "part: "


def run() -> list[Result]:
    """Start one simulation, and compare what it took."""
    found = simulated("dpfed_lab.benchmarks.flower_round", CLIENTS)
    return [line for size, timings in found.items() for line in _lines(size, timings)]


def _tasks(grid: Grid, size: int) -> dict[str, Task]:
    arrays = ArrayRecord({"weight": torch.zeros(size)})
    bare = FedAvg(
        fraction_train=1.0,
        fraction_evaluate=0.0,
        min_train_nodes=CLIENTS,
        min_available_nodes=CLIENTS,
    )
    quiet, loud = begun(plan(), grid, size, "quiet"), begun(plan(2.0), grid, size, "loud")
    return {
        "bare": Task(lambda: bare.start(grid, arrays, num_rounds=1)),
        "private": Task(lambda: next(quiet)),
        "with noise": Task(lambda: next(loud)),
    }


def begun(plan: Plan, grid: Grid, size: int, name: str) -> Iterator[Step]:
    """A training whose nodes are enrolled: each ``next`` is one round.

    Args:
        plan: what is done.
        grid: Flower's way to its nodes.
        size: how many parameters the model has.
        name: of the plan; size and a number follow, since clients answer a training once.
    """
    training = f"{name}-{size}-{secrets.token_hex(4)}"
    transport = GridTransport(plan, grid, layout_of({"weight": torch.empty(size)}), timeout=600.0)
    steps = train(plan, torch.zeros(size), transport, training=training)
    transport.ready(next(steps))
    return steps


def _lines(size: int, timings: dict[str, Timing]) -> list[Result]:
    against = f"a round of FedAvg, {CLIENTS} nodes in simulation, no-op clients"
    bare = timings["bare"]
    name = f"Flower round, {size} parameters"
    return [
        compare(name, timings["private"], bare, 1.15, against),
        compare(
            f"{name}, with noise",
            timings["with noise"],
            bare,
            None,
            against,
            breakdown_ms={
                part.removeprefix(_PART): 1e3 * each.median
                for part, each in timings.items()
                if part.startswith(_PART)
            },
        ),
    ]


server = timing_app(measure)  # Flower finds them by these two lines
nodes = _app()
