# SPDX-License-Identifier: Apache-2.0
"""A round of the secure sum, 20 clients on the complete graph, in one process and in simulation.

In one process its limit is the bare cryptography of the round (``_secure.primitives``): at most 3
times that. In Flower's simulation a round has two exchanges where ``plain`` has one, so the limit
is two plain rounds, plus the sum's own work as measured in one process. Clients make real releases
(one clipped row, fresh noise) under both sums.
"""

from __future__ import annotations

from collections.abc import Iterator

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from dpfed.core.registry import build
from dpfed.core.types import UPDATE, Facts
from dpfed.mechanisms.gaussian import gaussian
from dpfed.training.loop import Step
from dpfed.training.plan import Plan
from dpfed.training.wire.codec import CONTROL
from dpfed_lab.benchmarks._measure import Result, Task, Timing, compare, interleaved
from dpfed_lab.benchmarks._secure import Table, primitives
from dpfed_lab.benchmarks._simulated import Timings, simulated, timing_app
from dpfed_lab.benchmarks.flower_round import CLIENTS, SIZES, apps_for, begun

MEASURES = (
    "dpfed.sums.secure",
    "dpfed.sums.secagg.client",
    "dpfed.sums.secagg.server",
    "dpfed.sums.secagg.masks",
    "dpfed.sums.secagg.keys",
    "dpfed.sums.secagg.shamir",
)

TARGET = 3.0
EXCHANGES = 2
REPEATS = {650: 20, 10**6: 7}


def plan(sum: str) -> Plan:
    """DP-FedGD over 20 clients of one unit each."""
    return Plan(
        client=build("client", "gradient", {}),
        channels={UPDATE: gaussian(Facts(clip=1.0), std=2.0)},
        sum=build("sums", sum, {}),
        server=build("server", "scale", {}),
        nominal=[1.0] * CLIENTS,
        rounds=10_000,
    )


def run() -> list[Result]:
    """Both in one run: one process first, then the simulation."""
    alone = {size: _alone(size) for size in SIZES}
    found = simulated("dpfed_lab.benchmarks.secure_round", CLIENTS)
    return [
        line
        for size in SIZES
        for line in (
            _bare(size, alone[size]),
            _beside_plain(size, found[size], alone[size]["secure"]),
        )
    ]


def _alone(size: int) -> dict[str, Timing]:
    table = Table(CLIENTS, size)
    table.play()  # agrees on keys
    tasks = {
        "secure": Task(table.play),
        "primitives": Task(lambda: primitives(CLIENTS, size, table.graph)),
    }
    return interleaved(tasks, REPEATS[size], warmup=1)


def _bare(size: int, timings: dict[str, Timing]) -> Result:
    name = f"secure sum in one process, {size} words"
    against = f"the bare cryptography of the round, {CLIENTS} clients"
    return compare(name, timings["secure"], timings["primitives"], TARGET, against)


def _beside_plain(size: int, timings: dict[str, Timing], work: Timing) -> Result:
    secure, plain = timings["secure"], timings["plain"]
    bound = EXCHANGES * plain.median + work.median
    detail = {"plain_ms": 1e3 * plain.median, "sum_ms": 1e3 * work.median}
    against = f"{EXCHANGES} plain rounds, {CLIENTS} nodes in simulation, and the sum's own work"
    name = f"secure round in simulation, {size} parameters"
    return compare(name, secure, plain, 1.0, against, bound / plain.median, **detail)


# ------------------------------------------------------------------------------- in simulation


def _app() -> ClientApp:
    """One node under both plans: whichever a message is of."""
    made = ClientApp()
    apps = apps_for(_plans())

    @made.train()
    def train(message: Message, context: Context) -> Message:
        control = message.content.config_records[CONTROL]
        return apps[str(control["training"]).rpartition("-")[0]](message, context)

    return made


def _plans() -> dict[str, Plan]:
    return {name: plan(name) for name in ("plain", "secure")}


def measure(grid: Grid) -> Timings:
    """Plain and secure rounds in turns, in one simulation."""
    return {size: interleaved(_tasks(grid, size), REPEATS[size], warmup=2) for size in SIZES}


def _tasks(grid: Grid, size: int) -> dict[str, Task]:
    tasks = {}
    for name, plan in _plans().items():
        steps = begun(plan, grid, size, name)
        tasks[name] = Task(lambda steps=steps: _round(steps))  # type: ignore[misc]
    return tasks


def _round(steps: Iterator[Step]) -> None:
    """The next round: a client refuses one that it has answered."""
    row = next(steps).history[-1]
    assert row["clients"] == CLIENTS, row


server = timing_app(measure)  # Flower finds them by these two lines
nodes = _app()
