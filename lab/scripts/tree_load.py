#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A tree of aggregators as a simulation: what one costs, and what a tree would buy.

    lab/scripts/tree_load.py results/fleet             all cases, then the tables
    lab/scripts/tree_load.py results/fleet --table     the tables from what is there

One aggregator is a process that takes its devices' replies over loopback, each a connection of its
own (lab/dpfed_lab/benchmarks/_tree_nodes.py); three more of ten devices each are added up in the root's process.
The root adds four totals, and its model must have the bits of one server that added all replies.
What more of them would take is counted, with Flower's link as fleet-load measured it.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")

SIZES = (650, 10**5, 10**6)
TURNS = {100: 5, 1_000: 5, 10_000: 3}
REST, EACH = 3, 10  # aggregators in this process, and their devices
ROUND, LOOK, SHARD = (
    600.0,
    3.0,
    250,
)  # seconds of a round and between two looks; devices a core holds
COUNTED = (1_000, 10_000, 100_000)


# ----------------------------------------------------------------------------- real processes


def case(real: Any, size: int, devices: int, turns: int) -> dict[str, Any]:
    """A shard of so many devices, some times; the last time's total goes to the root."""
    cohort = devices + REST * EACH
    seen = []
    for _ in range(turns):
        partial, figures = real.ask(cohort, 0, devices)
        seen.append(figures)
    cpu = [1000 * (each["user"] + each["system"]) / devices for each in seen]
    return {
        "size": size,
        "devices": devices,
        "turns": turns,
        "cpu_ms_a_reply": [round(each, 4) for each in sorted(cpu)],
        "system_ms_a_reply": round(median(1000 * each["system"] / devices for each in seen), 4),
        "seconds": round(median(each["seconds"] for each in seen), 2),
        "peak_bytes": max(each["peak"] for each in seen),
        "partial_bytes": sum(map(len, partial.values())),
        "refused": sum(each["refused"] for each in seen),
        "root_receives_cpu_ms": round(median(1000 * each["root_cpu"] for each in seen), 3),
        **both_ways(size, devices, partial),
        "load_average": round(os.getloadavg()[0], 1),
    }


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def both_ways(size: int, devices: int, partial: dict[str, bytes]) -> dict[str, Any]:
    """The root's round on four totals, and one server's on all replies: the same bits, or none."""
    import torch

    from dpfed.core.types import UPDATE
    from dpfed.training.round import run_round, start
    from dpfed_lab.benchmarks._tree import Partials, through
    from dpfed_lab.benchmarks._tree_nodes import KINDS, plan_for, replies

    cohort = devices + REST * EACH
    plan = plan_for(cohort)
    made = replies(plan, size)
    ends = [0, *range(devices, cohort + 1, EACH)]
    shards = tuple(range(*ends[at : at + 2]) for at in range(REST + 1))

    def one_by_one(broadcast: Any, stage: Any, requests: Any) -> Any:
        del broadcast, stage
        return ((slot, {UPDATE: made[slot % KINDS]}) for slot in requests[UPDATE])

    def root(*asked: Any) -> Any:
        yield 0, partial
        rest = through(plan, shards[1:], one_by_one)
        yield from ((number + 1, found) for number, found in rest(*asked))

    began = time.process_time()
    flat, _ = run_round(plan, start(plan, torch.zeros(size)), one_by_one)
    spent = time.process_time() - began
    tree = replace(plan, sum=Partials(shards=shards))
    after, result = run_round(tree, start(tree, torch.zeros(size)), root)
    if result.clients != tuple(range(cohort)) or not torch.equal(after.params, flat.params):
        raise SystemExit(f"other bits than one server's: {size} parameters, {devices} devices")
    return {
        "same_bits": True,
        "server_cpu_ms_a_reply": round(1000 * spent / cohort, 4),
        "reply_bytes": len(made[0]),
    }


# -------------------------------------------------------------------------------- by part


def parts(size: int) -> dict[str, Any]:
    """One reply and one partial total in memory, each beside the bare addition; and the noise."""
    import numpy as np
    import torch

    from dpfed.core.types import UPDATE, Total
    from dpfed.sums.plain import plain
    from dpfed_lab.benchmarks._measure import Task, interleaved
    from dpfed_lab.benchmarks._tree import Partials, gather, partial_total
    from dpfed_lab.benchmarks._tree_nodes import plan_for, replies, shard_session

    plan, slots = plan_for(1000), range(1000)
    made = {UPDATE: replies(plan, size)[0]}
    session, root = (shard_session(1000, size, slots) for _ in range(2))
    partial = partial_total(gather(session, [(0, made)]), slots)
    wide = len(made[UPDATE]) == 8 * size
    term, total = np.frombuffer(made[UPDATE], "<i8" if wide else "<i4"), np.zeros(size, np.int64)
    whole = np.frombuffer(partial[UPDATE], "<i8")
    tree, rng, one = Partials(shards=(slots,)), plan.noise.stream("timed"), torch.zeros(size).long()

    def again(add: Callable[..., object], session: Any, message: Any) -> None:
        session.clients.clear()
        add(session, 0, message)

    calls = max(1, 10**6 // size // 10)
    tasks = {
        "reply": Task(lambda: again(plain().add, session, made), calls=calls),
        "bare_reply": Task(lambda: np.add(total, term, out=total), calls=calls),
        "partial": Task(lambda: again(tree.add, root, partial), calls=calls),
        "bare_partial": Task(lambda: np.add(total, whole, out=total), calls=calls),
        "noise": Task(lambda: plan.update.finish(Total(one, (0,), (1.0,)), None, rng)),
    }
    found = interleaved(tasks, repeats=20, warmup=2, clock=time.thread_time)
    return {"size": size, **{f"{n}_ms": round(1000 * each.median, 5) for n, each in found.items()}}


# --------------------------------------------------------------------------------- counted


def largest(found: dict[str, Any], size: int) -> dict[str, Any]:
    """The case with the most devices."""
    return max((c for c in found["cases"] if c["size"] == size), key=lambda c: c["devices"])


def link(fleet: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Seconds of CPU of Flower's link and of the ServerApp in fleet-load's rounds: least, most."""
    rounds = [c for c in fleet["cases"] if c["rounds"]]
    keys = ("superlink_ms_a_device", "serverapp_ms_a_device", "idle_ms_a_look")
    seen = {key: [c[key] / 1000 for c in rounds if key in c] for key in keys}
    return {key: (min(each), max(each)) for key, each in seen.items()}


def counted(
    found: dict[str, Any], fleet: dict[str, Any], size: int = 10**6
) -> list[dict[str, Any]]:
    """What rounds of ten minutes would take, by the number of devices in each."""
    at, flower = largest(found, size), link(fleet)
    part = next(each for each in found["parts"] if each["size"] == size)
    reply = median(at["cpu_ms_a_reply"]) / 1000
    lines = []
    for n in COUNTED:
        many = math.ceil(n / SHARD)
        lines.append(
            {
                "devices": n,
                "aggregators": many,
                "waiting_cores": [n * each / LOOK for each in flower["idle_ms_a_look"]],
                "link_cores": [n * each / ROUND for each in flower["superlink_ms_a_device"]],
                "app_cores": [n * each / ROUND for each in flower["serverapp_ms_a_device"]],
                "adding_cores": n * reply / ROUND,
                "root_seconds": many * (part["partial_ms"] + at["root_receives_cpu_ms"]) / 1000,
                "root_gb": many * at["partial_bytes"] / 1e9,
                "aggregator_gb": SHARD * at["reply_bytes"] / 1e9,
                "all_gb": n * at["reply_bytes"] / 1e9,
            }
        )
    return lines


def worth(
    found: dict[str, Any], fleet: dict[str, Any], size: int = 10**6
) -> dict[str, list[float]]:
    """How many devices one core does in ten minutes, by what is in the way: least and most."""
    flower = link(fleet)
    reply = median(largest(found, size)["cpu_ms_a_reply"]) / 1000
    waiting, linked, app = (
        flower[key] for key in ("idle_ms_a_look", "superlink_ms_a_device", "serverapp_ms_a_device")
    )
    return {
        "waiting": [LOOK / each for each in waiting[::-1]],
        "linked": [ROUND / each for each in linked[::-1]],
        "app": [ROUND / each for each in app[::-1]],
        "adding": [ROUND / reply],
    }


# ---------------------------------------------------------------------------------- the tables


def table(found: dict[str, Any], fleet: dict[str, Any]) -> str:
    """What was measured, and what follows from it."""
    by_size = {each["size"]: each for each in found["parts"]}
    head = [
        "parameters",
        "devices",
        "bytes a reply",
        "aggregator, ms of CPU a reply (least, most)",
        "one server without sockets, ms a reply",
        "peak, MB",
        "total handed up, bytes",
    ]
    measured = [
        [
            c["size"],
            c["devices"],
            c["reply_bytes"],
            span(c["cpu_ms_a_reply"]),
            f"{c['server_cpu_ms_a_reply']:.3g}",
            f"{c['peak_bytes'] / 1e6:.1f}",
            c["partial_bytes"],
        ]
        for c in found["cases"]
    ]
    words = {
        "reply": "a reply, checked and added",
        "bare_reply": "its bare addition",
        "partial": "a partial total, checked and added",
        "bare_partial": "its bare addition",
        "noise": "the noise, once",
    }
    timed = [
        [said, *(f"{by_size[size][f'{key}_ms']:.3g}" for size in SIZES)]
        for key, said in words.items()
    ]
    return "\n".join(
        [
            lines(head, measured),
            lines(["in memory, ms", *(f"{s} parameters" for s in SIZES)], timed),
            lines(
                [
                    "devices in a round",
                    f"aggregators of {SHARD}",
                    "waiting: cores",
                    "link: cores",
                    "ServerApp: cores",
                    "adding: cores",
                    "root: seconds",
                    "root gets, GB",
                    "each aggregator gets, GB",
                    "all replies, GB",
                ],
                [counted_line(each) for each in counted(found, fleet)],
            ),
        ]
    )


def span(times: list[float]) -> str:
    return f"{median(times):.3g} ({min(times):.3g}, {max(times):.3g})"


def counted_line(line: dict[str, Any]) -> list[str]:
    pairs = (line[key] for key in ("waiting_cores", "link_cores", "app_cores"))
    spans = [
        f"{low:.2g} to {high:.2g}" if high < 100 else f"{low:.0f} to {high:.0f}"
        for low, high in pairs
    ]
    rest = ("adding_cores", "root_seconds", "root_gb", "aggregator_gb")
    return [
        f"{line['devices']:,}",
        str(line["aggregators"]),
        *spans,
        *(f"{line[key]:.2g}" for key in rest),
        f"{line['all_gb']:.0f}",
    ]


def lines(head: list[Any], rows: list[list[Any]]) -> str:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "".join("| " + " | ".join(map(str, row)) + " |\n" for row in (head, rule, *rows))


# ----------------------------------------------------------------------------------------- all


def measure(path: Path) -> None:
    from dpfed_lab.benchmarks._measure import machine
    from dpfed_lab.benchmarks._tree_nodes import nodes

    found: dict[str, Any] = {
        "command": "lab/scripts/tree_load.py results/fleet",
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "cases": [],
        "parts": [],
    }
    for size in SIZES:
        with nodes(size) as real:
            real.ask(50, 0, 50)
            for devices, turns in TURNS.items():
                few = size * devices > 10**9  # 40 GB over loopback: once
                found["cases"].append(case(real, size, devices, 1 if few else turns))
                sys.stdout.write(json.dumps(found["cases"][-1]) + "\n")
                sys.stdout.flush()
        found["parts"].append(parts(size))
        sys.stdout.write(json.dumps(found["parts"][-1]) + "\n")
    path.write_text(json.dumps(found, indent=1) + "\n")


def main() -> None:
    folder = Path(sys.argv[1])
    if sys.argv[2:] != ["--table"]:
        measure(folder / "tree.json")
    found, fleet = (json.loads((folder / f"{name}.json").read_text()) for name in ("tree", "fleet"))
    (folder / "tree.md").write_text(table(found, fleet))


if __name__ == "__main__":
    main()
