#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Load: many clients in Flower's simulation for 50 rounds; seconds, memory, and whether it leaks.

    tests/soak/load.py results/benchmarks/load.json

200 clients of 650 parameters, 20 of 10^6, each under the plain and under the secure sum. Memory is
that of the server's process after each round, and of all Ray workers together; the slope is that
of a straight line through the second half of the rounds, in kB per round.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROUNDS = 50
CASES = [(200, 650, "plain"), (200, 650, "secure"), (20, 10**6, "plain"), (20, 10**6, "secure")]


def play(clients: int, size: int, kind: str) -> dict[str, Any]:
    """One case, in a simulation of its own."""
    from dpfed.recipes.simulation import run_apps
    from dpfed_lab.benchmarks._load_app import CASE, DONE, ROWS

    os.environ[CASE] = f"{clients} {size} {kind} {ROUNDS}"
    with tempfile.TemporaryDirectory() as folder:
        run_apps(
            "dpfed_lab.benchmarks._load_app:server",
            "dpfed_lab.benchmarks._load_app:nodes",
            Path(folder),
            clients=clients,
            finished=lambda out: (out / DONE).exists(),
        )
        lines = (Path(folder) / ROWS).read_text().splitlines()
    return summary(clients, size, kind, [json.loads(line) for line in lines])


def summary(clients: int, size: int, kind: str, rows: list[dict[str, float]]) -> dict[str, Any]:
    late = rows[len(rows) // 2 :]
    at = list(range(len(late)))
    return {
        "clients": clients,
        "parameters": size,
        "sum": kind,
        "rounds": len(rows),
        "clients_in_each_round": sorted({row["clients"] for row in rows}),
        "median_seconds": round(statistics.median(row["seconds"] for row in rows[1:]), 3),
        "first_seconds": round(rows[0]["seconds"], 3),
        "server_peak_mb": round(max(row["server"] for row in rows) / 1024, 1),
        "workers_peak_mb": round(max(row["workers"] for row in rows) / 1024, 1),
        "server_kb_per_round": round(
            statistics.linear_regression(at, [row["server"] for row in late]).slope, 1
        ),
        "workers_kb_per_round": round(
            statistics.linear_regression(at, [row["workers"] for row in late]).slope, 1
        ),
    }


def main() -> None:
    found = []
    for case in CASES:
        found.append(play(*case))
        sys.stdout.write(json.dumps(found[-1]) + "\n")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    facts = {
        "command": "tests/soak/load.py",
        "date": datetime.now(UTC).date().isoformat(),
        "cores": os.cpu_count(),
        "memory_gib": memory,
        "cases": found,
    }
    Path(sys.argv[1]).write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
