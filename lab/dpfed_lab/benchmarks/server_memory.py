# SPDX-License-Identifier: Apache-2.0
"""(d) The server's memory, which must not grow with the number of clients.

The limit is what a server cannot do without, in float32 vectors of the model's size: the
optimizer's own state (SOFIM: one), the parameters (one), the total in int64 (two), and one more,
the message that is being added or the vector that is being made. All is counted: the high-water
mark of a fresh process (see `_measure.peak_above`), above its state before the round, plus the two
vectors (parameters, momentum) that were there before. Freed vectors go back to the system at once.
"unequal" weights each release by its client's size; "central" adds the noise on the server.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from dpfed.core.types import UPDATE, Broadcast, Facts, Trust
from dpfed.mechanisms.gaussian import gaussian
from dpfed.training.plan import Plan
from dpfed.training.round import Exchange, ServerState, run_round, start
from dpfed_lab.benchmarks import round_time
from dpfed_lab.benchmarks._measure import RETURN_FREED, Result, peak_above

MEASURES = (
    "dpfed.training.round",
    "dpfed.sums.plain",
    "dpfed.core.grid",
    "dpfed.server._rank_one",
)

SIZE = 10**6
VECTOR = 4 * SIZE
COUNTS = (10, 100, 1_000)
OTHERS = ("unequal", "central")
STATE, ALLOWED = 1, 4
HELD = 2  # before the round: parameters and momentum
TARGET = 1.05  # a quarter of a vector: the interpreter's objects, temporaries of a block


def run() -> list[Result]:
    """Peaks for three numbers of clients, and for other plans."""
    peaks = {clients: _peak_in_child("equal", clients) for clients in COUNTS}
    same = [_line("equal", clients, peak) for clients, peak in peaks.items()]
    others = [_line(kind, COUNTS[1], _peak_in_child(kind, COUNTS[1])) for kind in OTHERS]
    return [*same, _growth(peaks), *others]


def _line(kind: str, clients: int, peak: float) -> Result:
    against = f"optimizer's state + {ALLOWED} vectors of {SIZE:.0e} float32, all counted"
    name = f"server memory, {clients} clients" + ("" if kind == "equal" else f", {kind}")
    detail = {"above_state_before_round": peak}
    limit = float(STATE + ALLOWED)
    return Result(name, HELD + peak, limit, "vectors", TARGET, against, detail)


def _growth(peaks: dict[int, float]) -> Result:
    few, many = min(peaks), max(peaks)
    against = f"the same with {few} clients"
    measured, limit = HELD + peaks[many], HELD + peaks[few]
    return Result(f"server memory, {many} clients", measured, limit, "vectors", TARGET, against)


# --------------------------------------------------------------------------------- in the child


def _peak_in_child(kind: str, clients: int) -> float:
    """Vectors at the peak above those before the round, measured in a process of its own."""
    command = [sys.executable, "-m", "dpfed_lab.benchmarks.server_memory", kind, str(clients)]
    root = Path(__file__).parents[3]
    done = subprocess.run(
        command, cwd=root, env=os.environ | RETURN_FREED, capture_output=True, text=True, check=True
    )
    return float(json.loads(done.stdout)["vectors"])


def measure(kind: str, clients: int) -> float:
    """The second round's peak at full size, after a small run that loads all that is lazy."""
    _rounds(_plan(kind, clients=2), size=1_000, count=2)
    plan = _plan(kind, clients)
    progress = _rounds(plan, SIZE, count=1)
    exchange = _exchange(SIZE)
    peak, _ = peak_above(lambda: run_round(plan, progress, exchange))
    return peak / VECTOR


def _plan(kind: str, clients: int) -> Plan:
    """SOFIM and a plain sum: of clients of one size, of unequal ones, or noised by the server."""
    plan = round_time.plan_for(clients, size=1)
    if kind == "unequal":
        return replace(plan, nominal=[1.0 + client for client in range(clients)])
    if kind == "central":
        central = gaussian(Facts(plan.update.clip, trust=Trust.CENTRAL), plan.update.std)
        return replace(plan, channels={UPDATE: central})
    return plan


def _rounds(plan: Plan, size: int, count: int) -> ServerState:
    progress = start(plan, torch.zeros(size))
    for _ in range(count):
        progress, _ = run_round(plan, progress, _exchange(size))
    return progress


def _exchange(size: int) -> Exchange:
    """Brings a release of each client, made of one short block, when the server asks for it."""
    block = np.arange(-500, 500, dtype="<i4").tobytes()

    def exchange(
        broadcast: Broadcast, stage: str, requests: Mapping[str, Mapping[int, bytes]]
    ) -> Iterator[tuple[int, Mapping[str, bytes]]]:
        del broadcast, stage
        for client in requests[UPDATE]:
            yield client, {UPDATE: block * (size // 1_000)}

    return exchange


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"vectors": measure(sys.argv[1], int(sys.argv[2]))}))
