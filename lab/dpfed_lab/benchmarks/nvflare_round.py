# SPDX-License-Identifier: Apache-2.0
"""A round behind gates under NVFlare, against an empty task: three sites, one job, its simulator.

An empty task sends back as many bytes as the parameters have. What is left of a round is the gate's
work, dpfed's server, and what NVFlare does with three tasks in the place of one. Sites ask for work
every 0.1 s, as in the job that ``dpfed new`` writes; by default it is every 2 s.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tests.nvflare import jobs
from tests.silo.gates import Silo

from dpfed_lab.benchmarks._measure import Result, compare, timing
from dpfed_lab.benchmarks.gate_round import FEATURES, REPEATS, SILOS, _gates

MEASURES = (
    "dpfed.nvflare.controller",
    "dpfed.nvflare.grid",
    "dpfed.nvflare.relay",
    "dpfed.silo.frames",
    "dpfed.silo.gate",
    "dpfed.silo.handler",
    "dpfed.training.reply",
)


def run() -> list[Result]:
    """Both sizes, one after the other."""
    return [_line(size) for size in FEATURES]


def _line(size: int) -> Result:
    with tempfile.TemporaryDirectory(prefix="dpfed-") as folder, _gates(Path(folder), size) as all_:
        work = Path(folder)
        empty, gated = _measured(work, size, all_)
    against = f"an empty task to {SILOS} sites, in the same job"
    name = f"gated round under NVFlare, {size} parameters"
    return compare(name, timing(gated), timing(empty), None, against)


def _measured(work: Path, size: int, silos: list[Silo]) -> tuple[list[float], list[float]]:
    """Seconds of each empty task and of each round, in one job, without the first ones."""
    job = jobs.write_job(work / "job", [work / "terms-gated.toml"], SILOS, checkpoint="")
    notes, config = work / "empty.json", job / "app" / "config"
    server = json.loads((config / "config_fed_server.json").read_text(encoding="utf-8"))
    args = {"rounds": REPEATS + 2, "size": 4 * size, "sites": SILOS, "notes": str(notes)}
    empty = {"id": "empty", "path": "dpfed_lab.benchmarks._nvflare_app.EmptyTasks", "args": args}
    server["workflows"].insert(0, empty)
    (config / "config_fed_server.json").write_text(json.dumps(server), encoding="utf-8")
    client = json.loads((config / "config_fed_client.json").read_text(encoding="utf-8"))
    echo = {"path": "dpfed_lab.benchmarks._nvflare_app.Echo", "args": {}}
    client["executors"].append({"tasks": ["empty"], "executor": echo})
    (config / "config_fed_client.json").write_text(json.dumps(client), encoding="utf-8")
    gate = jobs.link_sockets(work / "sockets", [silo.socket for silo in silos])
    jobs.RESOURCES["class_allow_list"] = [*jobs.CLASSES, "dpfed_lab.benchmarks."]
    log = jobs.simulate(job, work / "nvflare", SILOS, gate, timeout=900)
    rows = jobs.result_of(work / "nvflare") / "metrics.jsonl"
    if not rows.exists():
        raise RuntimeError(f"the job left no rows; its log ends with {log[-2000:]}")
    lines = rows.read_text(encoding="utf-8").splitlines()
    gated = [float(json.loads(line)["seconds"]) for line in lines]
    return json.loads(notes.read_text(encoding="utf-8"))[2:], gated[2:]
