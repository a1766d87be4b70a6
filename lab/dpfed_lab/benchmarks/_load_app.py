# SPDX-License-Identifier: Apache-2.0
"""The Flower app of tests/soak/load.py and fleet-load: a training of no-op clients, with a log.

The case is in ``DPFED_LOAD`` ("CLIENTS SIZE SUM ROUNDS"), for the server and for every node.
"""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from dpfed.core.registry import build
from dpfed.core.types import UPDATE, Facts
from dpfed.flower import make_plan
from dpfed.mechanisms.gaussian import gaussian
from dpfed.training.flower.client import client_app
from dpfed.training.flower.strategy import DPStrategy
from dpfed.training.plan import Plan
from dpfed_lab.benchmarks.flower_round import Nothing

CASE = "DPFED_LOAD"
ROWS, DONE = "rows.jsonl", "done"


def case() -> tuple[Plan, int]:
    """The plan, and the number of parameters; the sum "open" is an open population's."""
    clients, size, kind, rounds = os.environ[CASE].split()
    if kind == "open":
        return open_plan(int(clients), int(rounds)), int(size)
    plan = Plan(
        client=build("client", "gradient", {}),
        channels={UPDATE: gaussian(Facts(clip=1.0), std=2.0)},
        sum=build("sums", kind, {}),
        server=build("server", "scale", {}),
        nominal=[1.0] * int(clients),
        rounds=int(rounds),
    )
    return plan, int(size)


def open_plan(cohort: int, rounds: int) -> Plan:
    """Whoever is there, in every round: as many devices as there are slots can fill them."""
    limits = {"min_separation": 1, "at_most": rounds}
    privacy = {
        "mechanism": "gaussian",
        "std_over_clip": 1.0,
        "unit": "client",
        "trust": "central",
        "adjacency": "zero-out",
        "participation": limits,
        "cohort": cohort,
    }
    return make_plan([], rounds=rounds, method="dp-fedgd", privacy=privacy)


def resident(pid: int | str = "self") -> int:
    """Kilobytes of a process, 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmRSS")), 0)


def workers() -> int:
    """Kilobytes of all of this process's descendants."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            after = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        parents[int(path.parent.name)] = int(after[1])
    found, grown = {os.getpid()}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        found, grown = found | more, bool(more)
    return sum(resident(pid) for pid in found - {os.getpid()})


server = ServerApp()
nodes = client_app(lambda _: Nothing(case()[1]), lambda _: case()[0])


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and note seconds and memory after each round."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    plan, size = case()
    out = Path(str(context.run_config["out"]))

    def note(row: dict[str, Any]) -> None:
        seen = {
            "seconds": row["seconds"],
            "clients": row["clients"],
            "server": resident(),
            "workers": workers(),
            "at": time.time(),
            "cpu": time.process_time(),
        }
        with (out / ROWS).open("a") as file:
            file.write(json.dumps(seen) + "\n")

    arrays = ArrayRecord({"weight": torch.zeros(size)})
    DPStrategy(plan, wait=300.0, watch=note).start(grid, arrays, timeout=300.0)
    (out / DONE).touch()
