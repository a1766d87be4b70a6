#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One SuperLink on loopback: real SuperNodes, and a thousand Fleet connections of one process.

    lab/scripts/fleet_load.py results/fleet           all cases, then the table and the figure
    lab/scripts/fleet_load.py results/fleet stand-ins 1000 0       one case more: kind, count, rounds
    lab/scripts/fleet_load.py results/fleet --draw    the table and the figure from what is there

An open population with as many slots as there are devices: a round is a question to each of them
and an order to each. Stand-ins do no work; SuperLink and ServerApp are measured apart. With 0 rounds
connections are only held. Each case has a SuperLink of its own, and a limit in time.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])  # the app
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

CASES = [
    ("stand-ins", 10, 3),
    ("stand-ins", 30, 3),
    ("SuperNodes", 10, 3),
    ("stand-ins", 100, 3),
    ("stand-ins", 1000, 0),
    ("SuperNodes", 30, 2),
    ("stand-ins", 300, 2),
]
SIZE, PATIENCE, SPARE_GIB, IDLE = 650, 900.0, 6, 20.0


def listener(port: int) -> int:
    """The process that listens on a port."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    rows = (line.split() for line in lines)
    inode = next(r[9] for r in rows if int(r[1].split(":")[1], 16) == port and r[3] == "0A")
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if str(link.readlink()) == f"socket:[{inode}]":
                return int(link.parts[2])
    raise RuntimeError(f"nobody listens on port {port}")


def seen_of(pid: int) -> tuple[float, int]:
    """Seconds of CPU, and kilobytes."""
    from dpfed_lab.benchmarks._load_app import resident

    after = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(after[11]) + int(after[12])) / os.sysconf("SC_CLK_TCK"), resident(pid)


class Watch:
    """CPU and memory of a process over time."""

    def __init__(self, pid: int) -> None:
        self.rows: list[tuple[float, float, int]] = []
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._look, args=(pid,), daemon=True)
        self.thread.start()

    def _look(self, pid: int) -> None:
        with contextlib.suppress(OSError):
            while not self.ended.wait(0.5):
                self.rows.append((time.time(), *seen_of(pid)))

    def at(self, when: float) -> tuple[float, int]:
        """The last figures before a moment."""
        before = [row for row in self.rows if row[0] <= when] or self.rows[:1]
        return before[-1][1], before[-1][2]


@contextlib.contextmanager
def stand_ins(address: str, count: int, log: Path, env: dict[str, str]) -> Iterator[int]:
    command = [
        sys.executable,
        "-m",
        "dpfed_lab.benchmarks._fleet",
        address,
        str(count),
        str(looks_in(log)),
    ]
    with (
        log.open("wb") as said,
        subprocess.Popen(
            command, cwd=ROOT, env=os.environ | env, stdout=subprocess.PIPE, stderr=said
        ) as process,
    ):
        try:
            if process.stdout is None or process.stdout.readline() != b"ready\n":
                raise RuntimeError(f"the stand-ins did not connect: {log.read_text()[-2000:]}")
            yield process.pid
        finally:
            process.kill()


def looks_in(log: Path) -> Path:
    return log.with_suffix(".looks")


def idle(link: int, log: Path) -> float:
    """Milliseconds of SuperLink's CPU for one look of one connection, with nothing to do."""
    time.sleep(2.0)
    before, looks = seen_of(link)[0], int(looks_in(log).read_text())
    time.sleep(IDLE)
    made = int(looks_in(log).read_text()) - looks
    return round(1000 * (seen_of(link)[0] - before) / max(1, made), 2)


def free_gib() -> float:
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) / 2**20


def play(kind: str, count: int, rounds: int, work: Path) -> dict[str, Any]:
    """One case, with a SuperLink of its own; without rounds the connections are only held."""
    from tests.helpers.deployments import write_app
    from tests.training.flower.network import Net

    from dpfed_lab.benchmarks._load_app import CASE, ROWS

    os.environ[CASE] = f"{count} {SIZE} open {max(1, rounds)}"
    env = {
        CASE: os.environ[CASE],
        "DPFED_STATE": str(work / "state"),
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
    }
    names = [f"n{at}" for at in range(count)] if kind == "SuperNodes" else []
    app = write_app(
        work / "app",
        "dpfed_lab.benchmarks._load_app:server",
        "dpfed_lab.benchmarks._load_app:nodes",
    )
    out, log, before = work / "out", work / "fleet.log", free_gib()
    out.mkdir()
    found: dict[str, Any] = {"devices": kind, "count": count, "rounds": rounds}
    with Net(work, names, patience=PATIENCE / 2, env=env) as net, contextlib.ExitStack() as stack:
        link, began = listener(net.port), time.monotonic()
        watch = Watch(link)
        if names:
            found["mb_a_node"] = round(1024 * (before - free_gib()) / count)
        else:
            pid = stack.enter_context(stand_ins(net.address, count, log, env))
            found["seconds_to_connect"] = round(time.monotonic() - began, 1)
            found["idle_ms_a_look"] = idle(link, log)
        if rounds:
            done = net.run(app, {"out": str(out)}, timeout=PATIENCE)
            if not done.completed:
                raise RuntimeError(done.log[-3000:])
        if not names:
            found["stand_ins_cpu_seconds"] = round(seen_of(pid)[0], 1)
        watch.ended.set()
    if rounds:
        rows = [json.loads(line) for line in (out / ROWS).read_text().splitlines()]
        found |= summary(rows, watch)
    first, most = watch.rows[0][2], max(row[2] for row in watch.rows)
    return {
        **found,
        "superlink_mb": [round(first / 1024), round(most / 1024)],
        "load_average": round(os.getloadavg()[0], 1),
    }


def summary(rows: list[dict[str, Any]], link: Watch) -> dict[str, Any]:
    """What rounds after the first took; each has two messages and two replies per device."""
    first, last, replies = rows[0], rows[-1], sum(row["clients"] for row in rows[1:])
    spent = link.at(last["at"])[0] - link.at(first["at"])[0]
    return {
        "clients_in_each_round": sorted({row["clients"] for row in rows}),
        "seconds_a_round": round((last["at"] - first["at"]) / max(1, len(rows) - 1), 1),
        "superlink_ms_a_device": round(1000 * spent / max(1, replies)),
        "serverapp_ms_a_device": round(1000 * (last["cpu"] - first["cpu"]) / max(1, replies), 1),
        "serverapp_mb": [round(first["server"] / 1024), round(last["server"] / 1024)],
    }


def table(found: dict[str, Any]) -> str:
    """In a round, and CPU in milliseconds for each device of it; memory from the first to the most."""
    head = (
        "devices",
        "seconds a round",
        "SuperLink, ms a device",
        "ServerApp, ms a device",
        "SuperLink, idle, ms a look",
        "SuperLink, MB",
        "ServerApp, MB",
        "load average",
    )
    keys = (
        "seconds_a_round",
        "superlink_ms_a_device",
        "serverapp_ms_a_device",
        "idle_ms_a_look",
        "superlink_mb",
        "serverapp_mb",
        "load_average",
    )
    lines = [head, ["---", *["---:"] * len(keys)]]
    lines += [
        [f"{c['count']} {c['devices']}", *(_cell(c.get(key)) for key in keys)]
        for c in found["cases"]
    ]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return " to ".join(map(str, value))
    return "" if value is None else str(value)


def draw(found: dict[str, Any], folder: Path) -> None:
    """Milliseconds of CPU for a device of a round, on the server: whose they are."""
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams["svg.hashsalt"] = "fleet"
    from matplotlib import pyplot as plt

    from dpfed_lab.figures import set_decades

    figure, axis = plt.subplots(figsize=(6, 3.6), layout="constrained")
    for kind, line in (("stand-ins", "-"), ("SuperNodes", "--")):
        cases = [c for c in found["cases"] if c["devices"] == kind and c["rounds"]]
        n = [c["count"] for c in cases]
        for key, mark, colour in (("superlink", "o", "C0"), ("serverapp", "s", "C1")):
            name = "SuperLink (Flower)" if key == "superlink" else "ServerApp (dpfed)"
            axis.plot(
                n,
                [c[f"{key}_ms_a_device"] for c in cases],
                mark + line,
                color=colour,
                label=f"{name}, {kind}",
            )
    axis.set(
        xscale="log",
        yscale="log",
        xlabel="devices in a round",
        ylabel="ms of CPU a device",
        title="CPU of the server for one device in one round",
    )
    costs = [
        c[f"{key}_ms_a_device"]
        for c in found["cases"]
        if c["rounds"]
        for key in ("superlink", "serverapp")
    ]
    set_decades(axis.yaxis, min(costs), max(costs))
    set_decades(axis.xaxis, 10, 300)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    figure.savefig(folder / "fleet.svg", metadata={"Date": None})
    figure.savefig(folder / "fleet.png", dpi=110)


def measure(path: Path, cases: list[tuple[str, int, int]]) -> None:
    """Add cases to the file, each as soon as it is there."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"cases": []}
    found |= {
        "command": "lab/scripts/fleet_load.py results/fleet",
        "cores": os.cpu_count(),
        "date": datetime.now(UTC).date().isoformat(),
        "memory_gib": memory,
    }
    for kind, count, rounds in cases:
        need = count * 0.1 if kind == "SuperNodes" else count * 0.003
        if free_gib() - need < SPARE_GIB:
            sys.stdout.write(f"{count} {kind}: left out, {free_gib():.1f} GiB are free\n")
            continue
        try:
            with tempfile.TemporaryDirectory() as work:
                found["cases"].append(play(kind, count, rounds, Path(work)))
        except (AssertionError, RuntimeError) as error:
            sys.stdout.write(f"{count} {kind}: {str(error)[-2000:]}\n")
            continue
        sys.stdout.write(json.dumps(found["cases"][-1]) + "\n")
        sys.stdout.flush()
        path.write_text(json.dumps(found, indent=2) + "\n")


def main() -> None:
    folder, *words = Path(sys.argv[1]), *sys.argv[2:]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "fleet.json"
    if words != ["--draw"]:
        measure(path, [(words[0], int(words[1]), int(words[2]))] if words else CASES)
    found = json.loads(path.read_text())
    found["cases"].sort(key=lambda case: (case["devices"], case["count"]))
    (folder / "table.md").write_text(table(found))
    draw(found, folder)


if __name__ == "__main__":
    main()
