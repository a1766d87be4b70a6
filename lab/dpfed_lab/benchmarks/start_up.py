# SPDX-License-Identifier: Apache-2.0
"""How long people wait for something to begin: the owner's commands, a gate, a run's first round.

Each is a process of its own, imported anew, as users start it: from compiled files, as pip leaves
them. A status is asked for before anything is spent, when no curve has to be computed, and after a
release. The commands are held against
Python that imports torch, the gate against 3 s, the first round behind gates against that of an
empty app under the same SuperLink.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tomli_w
from tests.helpers.handlers import order, said
from tests.silo.gates import Silo, read, terms_for
from tests.training.flower.network import CONNECTION, Net

from dpfed.core.flower_private import from_bytes, to_bytes
from dpfed.silo.frames import ask
from dpfed.training.wire.codec import CONTROL
from dpfed.training.wire.enrolment import enrolment
from dpfed_lab.benchmarks._measure import Result, Timing, compare, timing

MEASURES = (
    "dpfed.cli.main",
    "dpfed.cli.silo",
    "dpfed.cli.silo_text",
    "dpfed.silo.gate",
    "dpfed.silo.handler",
    "dpfed.silo.owner",
    "dpfed.silo.policy",
    "dpfed.recipes.flower_app",
    "dpfed.training.flower.transport",
)

SILOS, REPEATS, RUNS, PATIENCE_S = 3, 5, 3, 180.0
DPFED = (sys.executable, "-m", "dpfed.cli.main")
TORCH = (sys.executable, "-c", "import torch")


def run() -> list[Result]:
    """The owner's commands, the gate, and the first round."""
    with tempfile.TemporaryDirectory(prefix="dpfed-") as folder:
        work = Path(folder)
        silos = [Silo(work / f"silo-{i}", i) for i in range(SILOS)]
        for each in silos:
            each.write()
        terms = terms_for(work, SILOS)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(Path("src").resolve()), str(Path.cwd()))),
            "OMP_NUM_THREADS": "1",
            "DPFED_STATE": str(work / "state"),
        }
        for name in ("PYTHONDONTWRITEBYTECODE", "FLWR_HOME"):  # each process has a home of its own
            environment.pop(name, None)
        environment["PATH"] = os.pathsep.join(
            (str(Path(sys.executable).parent), environment.get("PATH", ""))
        )
        return [
            *_commands(silos[0], terms, environment),
            *_gate(silos[0], terms, environment),
            *_first_round(work, silos, terms, environment),
        ]


# ------------------------------------------------------------------------------------ the commands


def _commands(silo: Silo, terms: Path, environment: Mapping[str, str]) -> list[Result]:
    """Processor time, which does not wait for anything."""
    policy = ("--policy", str(silo.policy))
    tasks = {
        "pass": (sys.executable, "-c", "pass"),
        "torch": TORCH,
        "approve": (*DPFED, "silo", "approve", str(terms), "--yes", *policy),
        "status": (*DPFED, "silo", "status", *policy),
    }
    taken: dict[str, list[float]] = {name: [] for name in tasks}
    for turn in range(REPEATS + 1):
        for name, command in tasks.items():
            seconds = _cpu_of(command, environment)
            if turn:
                taken[name].append(seconds)
    found = {name: timing(each) for name, each in taken.items()}
    against = "Python that imports torch"
    empty = {"python_pass_s": found["pass"].median}
    return [
        compare(
            "dpfed silo status, nothing spent, CPU",
            found["status"],
            found["torch"],
            0.5,
            against,
            **empty,
        ),
        compare("dpfed silo approve, CPU", found["approve"], found["torch"], 1.6, against, **empty),
    ]


def _cpu_of(command: tuple[str, ...], environment: Mapping[str, str]) -> float:
    quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    child = os.posix_spawn(command[0], command, environment, file_actions=quiet)
    _, status, used = os.wait4(child, 0)
    assert not status, command
    return used.ru_utime + used.ru_stime


# ---------------------------------------------------------------------------------------- the gate


def _gate(silo: Silo, terms: Path, environment: Mapping[str, str]) -> list[Result]:
    """A gate starts; a gate that runs answers what was approved just now; Python loads torch."""
    names = ("started", "cpu", "answered", "status", "torch")
    taken: dict[str, list[float]] = {name: [] for name in names}
    release = order(read(terms))
    approve = (*DPFED, "silo", "approve", str(terms), "--yes", "--policy", str(silo.policy))
    for _ in range(REPEATS):
        shutil.rmtree(silo.folder / "state", ignore_errors=True)
        began = time.perf_counter()
        with _open_gate(silo, environment) as gate:
            taken["started"].append(time.perf_counter() - began)
            taken["cpu"].append(_cpu_so_far(gate))
            subprocess.run(approve, env=environment, check=True, stdout=subprocess.DEVNULL)
            began = time.perf_counter()
            reply = from_bytes(ask(str(silo.socket), to_bytes(enrolment({"training": "gated"}))))
            taken["answered"].append(time.perf_counter() - began)
            assert not reply.config_records[CONTROL].get("error"), reply
            assert not said(ask(str(silo.socket), release)).get("error")
            status = (*DPFED, "silo", "status", "--policy", str(silo.policy))
            taken["status"].append(_cpu_of(status, environment))
        taken["torch"].append(_cpu_of(TORCH, environment))
    found = {name: timing(each) for name, each in taken.items()}
    aim = Timing(3.0, 3.0, 3.0, 1)
    return [
        compare("a gate starts", found["started"], aim, 1.0, "3 s"),
        compare(
            "a gate starts, CPU", found["cpu"], found["torch"], 1.6, "Python that imports torch"
        ),
        compare("approved, and a running gate answers", found["answered"], aim, 0.33, "3 s"),
        compare(
            "dpfed silo status after a release, CPU",
            found["status"],
            found["torch"],
            0.5,
            "Python that imports torch",
        ),
    ]


def _cpu_so_far(process: subprocess.Popen[str]) -> float:
    """Processor time of a process that runs."""
    words = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def _open_gate(silo: Silo, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    command = (*DPFED, "silo", "serve", "--policy", str(silo.policy))
    with (silo.folder / "gate.log").open("a") as log:
        gate = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        assert gate.stdout is not None
        said = gate.stdout.readline()
        assert "answers on" in said, (silo.folder / "gate.log").read_text()
        yield gate
    finally:
        gate.kill()
        gate.communicate()


# --------------------------------------------------------------------------------- the first round


class _Net(Net):
    """Commands as users have them, none of them preloaded; each node knows its own gate."""

    def __init__(self, work: Path, silos: list[Silo], environment: Mapping[str, str]) -> None:
        super().__init__(work, [f"silo-{each.number}" for each in silos], env=environment)
        self.sockets = {f"silo-{each.number}": str(each.socket) for each in silos}

    def _environment(self, name: str) -> dict[str, str]:
        found = super()._environment(name)
        return found | ({"DPFED_GATE": self.sockets[name]} if name in self.sockets else {})

    def until(self, app: Path, config: Mapping[str, str], there: Path) -> float:
        """Seconds from ``flwr run`` until a file is there; the run is then awaited."""
        words = [f"{key}={_quoted(value)}" for key, value in config.items()]
        command = ["flwr", "run", str(app), CONNECTION, "--stream"]
        began = time.perf_counter()
        with (self.work / "run.log").open("w") as log:
            running = subprocess.Popen(
                [*command, "--run-config", " ".join(words)],
                env=self._environment("cli"),
                stdout=log,
                stderr=log,
            )
        while not there.exists():
            assert time.perf_counter() - began < PATIENCE_S, (self.work / "run.log").read_text()
            time.sleep(0.02)
        taken = time.perf_counter() - began
        running.wait(PATIENCE_S)
        return taken


def _quoted(value: str) -> str:
    return f'"{value}"'


def _first_round(
    work: Path, silos: list[Silo], terms: Path, environment: Mapping[str, str]
) -> list[Result]:
    apps = {
        "gated": _app(work, "dpfed.recipes.flower_app:server_app", "dpfed.silo.relay:app"),
        "empty": _app(
            work, "dpfed_lab.benchmarks._start_app:server", "dpfed_lab.benchmarks._start_app:client"
        ),
    }
    taken: dict[str, list[float]] = {"gated": [], "empty": []}
    for turn in range(RUNS):  # a training's name is answered once: each has its own silos' state
        with contextlib.ExitStack() as open_:
            for each in silos:
                shutil.rmtree(each.folder / "state", ignore_errors=True)
                each.approve(terms)
                open_.enter_context(_open_gate(each, environment))
            net = open_.enter_context(_Net(_new(work / f"net-{turn}"), silos, environment))
            for kind in ("empty", "gated") if turn % 2 else ("gated", "empty"):
                out = work / f"out-{kind}-{turn}"
                config = {"out": str(out), "terms": str(terms)}
                taken[kind].append(net.until(apps[kind], config, out / "metrics.jsonl"))
    gated, empty = timing(taken["gated"]), timing(taken["empty"])
    against = f"an empty app, {SILOS} SuperNodes on loopback"
    ratios = [g / e for g, e in zip(taken["gated"], taken["empty"], strict=True)]
    spread: dict[str, Any] = {"ratios": ratios, "median_ratio": statistics.median(ratios)}
    return [compare("flwr run to the end of round 1, gated", gated, empty, 1.3, against, **spread)]


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _app(work: Path, server: str, client: str) -> Path:
    folder = _new(work / f"app-{server.partition('.')[0]}")
    about = {
        "components": {"serverapp": server, "clientapp": client},
        "publisher": "x",
        "config": {"out": "", "terms": ""},
    }
    project = {"name": folder.name, "version": "1.0.0", "dependencies": []}
    text = tomli_w.dumps({"project": project, "tool": {"flwr": {"app": about}}})
    (folder / "pyproject.toml").write_text(text)
    return folder
