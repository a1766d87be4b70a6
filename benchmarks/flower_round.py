# SPDX-License-Identifier: Apache-2.0
"""One round of DPStrategy in Flower's simulation, against one of Flower's own FedAvg.

Both move the same payload to the same 20 nodes and back (float32 down, 4 bytes a parameter up), and
both clients do nothing, so the ratio is what the strategy and its checks cost. Rounds take turns in
one simulation. "with noise": the client makes its release, too (one clipped row, fresh noise for
each parameter), which no bare strategy does; no target is set.
"""

from __future__ import annotations

import logging
import os
import secrets
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from benchmarks._measure import Result, Task, Timing, compare, interleaved
from dpfed.core.registry import build
from dpfed.core.rows import Dense
from dpfed.core.types import UPDATE, Rows, Unit, Vector
from dpfed.core.vector import layout_of
from dpfed.mechanisms.gaussian import gaussian
from dpfed.training.flower.client import client_app, client_index
from dpfed.training.flower.codec import CONTROL, Envelope, write_answer
from dpfed.training.flower.responder import ENROL
from dpfed.training.flower.transport import GridTransport
from dpfed.training.loop import Step, train
from dpfed.training.plan import Plan

CLIENTS = 20
SIZES = (650, 10**6)
REPEATS = 20


def plan(std: float = 1.0) -> Plan:
    """DP-FedGD over 20 clients of one unit each."""
    return Plan(
        client=build("client", "gradient", {}),
        channels={UPDATE: gaussian(clip=1.0, std=std)},
        sum=build("sums", "plain", {}),
        server=build("server", "scale", {}),
        nominal=[1.0] * CLIENTS,
        rounds=10_000,
    )


class Nothing:
    """A problem whose one row is zero."""

    dimension = 0

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


def app() -> ClientApp:
    """Echoes FedAvg's arrays, answers a quiet plan at once, and a loud one with its release."""
    made = ClientApp()
    loud = plan(2.0)
    real, mark = client_app(lambda _: Nothing(), loud), loud.fingerprint()
    quiet = client_app(lambda _: Nothing(), plan())

    @made.train()
    def train(message: Message, context: Context) -> Message:
        content = message.content
        if CONTROL not in content.config_records:
            metrics = MetricRecord({"num-examples": 1})
            reply = RecordDict({"arrays": content["arrays"], "metrics": metrics})
            return Message(reply, reply_to=message)
        control = content.config_records[CONTROL]
        if control["stage"] == ENROL:
            return quiet(message, context)
        if control["fingerprint"] == mark:
            return real(message, context)
        at = int(str(control["round"]))
        envelope = Envelope(at, 0, "reply", client_index(context))
        size = content.array_records["arrays"]["weight"].shape[0]
        answer = write_answer(envelope, {UPDATE: bytes(4 * size)})
        return Message(answer, reply_to=message)

    return made


def run() -> list[Result]:
    """Start one simulation, and let three strategies take turns in it."""
    from flwr.simulation import run_simulation

    found: dict[int, dict[str, Timing]] = {}
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        del context
        logging.getLogger("flwr").setLevel(logging.ERROR)
        for size in SIZES:
            found[size] = interleaved(_tasks(grid, size), REPEATS, warmup=3)

    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        os.environ.update(FLWR_TELEMETRY_ENABLED="0", DPFED_STATE=folder)
        backend: Any = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
        run_simulation(server, app(), CLIENTS, backend_config=backend)
    return [line for size, timings in found.items() for line in _lines(size, timings)]


def _tasks(grid: Grid, size: int) -> dict[str, Task]:
    arrays = ArrayRecord({"weight": torch.zeros(size)})
    bare = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=CLIENTS,
                  min_available_nodes=CLIENTS)  # fmt: skip
    quiet, loud = (begun(each, grid, size) for each in (plan(), plan(2.0)))
    return {
        "bare": Task(lambda: bare.start(grid, arrays, num_rounds=1)),
        "private": Task(lambda: next(quiet)),
        "with noise": Task(lambda: next(loud)),
    }


def begun(plan: Plan, grid: Grid, size: int, name: str = "bench") -> Iterator[Step]:
    """A training whose nodes are enrolled: each ``next`` is one round.

    Args:
        plan: what is done.
        grid: Flower's way to its nodes.
        size: how many parameters the model has.
        name: what the training is called; clients answer a training once, so a number follows.
    """
    training = f"{name}-{secrets.token_hex(4)}"
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
        compare(f"{name}, with noise", timings["with noise"], bare, None, against),
    ]
