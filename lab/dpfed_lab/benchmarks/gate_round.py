# SPDX-License-Identifier: Apache-2.0
"""A round behind gates, against a round of an empty ClientApp, in a real deployment on loopback.

One SuperLink, three SuperNodes, three gates. The empty app sends back what it got: what is left is
Flower's, which starts a process for every message, and waits between looks. "shipped" is the app
that reads the data itself, and so imports torch for each message: what the gate is instead of.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from tests.silo.gates import Silo
from tests.training.flower.network import Net

from dpfed.recipes.schema import to_toml
from dpfed.recipes.terms import read_terms, write_terms
from dpfed_lab.benchmarks._measure import Result, Timing, compare, timing

MEASURES = (
    "dpfed.silo.gate",
    "dpfed.silo.handler",
    "dpfed.silo.frames",
    "dpfed.silo.relay",
    "dpfed.training.reply",
)

SILOS, RECORDS, CLASSES, REPEATS = 3, 200, 10, 8
FEATURES = {650: 64, 10**6: 99_999}


def run() -> list[Result]:
    """Both sizes, one after the other."""
    return [line for size in FEATURES for line in _lines(size, _measured(size))]


def _measured(size: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="dpfed-") as folder, _gates(Path(folder), size) as all_:
        work = Path(folder)
        path = os.pathsep.join((str(Path("src").resolve()), str(Path.cwd())))
        env = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "DPFED_STATE": str(work / "state")}
        with _Net(work, all_, env) as net:
            config = {
                "notes": str(work / "notes"),
                "terms": str(work / "terms-KIND.toml"),
                "repeats": REPEATS,
            }
            ended = net.run(_app(work / "app"), config, timeout=900)
        assert ended.completed, ended.log
        return [json.loads(line) for line in (work / "notes").read_text().splitlines()]


class _Net(Net):
    """Each node knows its own gate."""

    def __init__(self, work: Path, silos: list[Silo], env: dict[str, str]) -> None:
        super().__init__(work, [f"silo-{each.number}" for each in silos], env=env)
        self.sockets = {f"silo-{each.number}": str(each.socket) for each in silos}

    def _environment(self, name: str) -> dict[str, str]:
        found = super()._environment(name)
        return found | ({"DPFED_GATE": self.sockets[name]} if name in self.sockets else {})


@contextmanager
def _gates(work: Path, size: int) -> Iterator[list[Silo]]:
    features = FEATURES[size]
    for kind in ("gated", "shipped"):
        recipe = {
            "name": f"bench-{kind}",
            "method": "dp-fedgd",
            "rounds": REPEATS + 2,
            "privacy": {"epsilon": 1.0},
            "evaluation": {"kind": "off"},
        }
        (work / "recipe.toml").write_text(to_toml(recipe))
        (work / f"terms-{kind}.toml").write_text(
            write_terms(
                work / "recipe.toml",
                dataset="sepsis",
                shape=[features],
                classes=CLASSES,
                sizes=[float(RECORDS)] * SILOS,
            )
        )
    made = [Silo(work / f"silo-{i}", i) for i in range(SILOS)]
    try:
        for each in made:
            _write_data(each, features)
            each.write(shape=[features], classes=CLASSES, epsilon=9.0)
            _approve(each, work / "terms-gated.toml")
            each.spawn()
        for each in made:
            each.wait()
        yield made
    finally:
        for each in made:
            each.kill()


def _write_data(silo: Silo, features: int) -> None:
    draw = np.random.default_rng(silo.number)
    silo.folder.mkdir()
    x = draw.normal(size=(RECORDS, features)).astype(np.float32)
    np.savez(silo.folder / "data.npz", x=x, y=draw.integers(0, CLASSES, RECORDS))


def _approve(silo: Silo, path: Path) -> None:
    assert read_terms(path.read_bytes()).model.layout.size in FEATURES
    silo.approve(path)


def _app(folder: Path) -> Path:
    folder.mkdir()
    parts = {
        f"{kind}app": f"dpfed_lab.benchmarks._gate_app:{kind}" for kind in ("server", "client")
    }
    about = {
        "components": parts,
        "publisher": "x",
        "config": {"notes": "", "terms": "", "repeats": 0},
    }
    project = {"name": "gate-bench", "version": "1.0.0", "dependencies": []}
    text = tomli_w.dumps({"project": project, "tool": {"flwr": {"app": about}}})
    (folder / "pyproject.toml").write_text(text)
    return folder


def _lines(size: int, notes: list[dict[str, Any]]) -> list[Result]:
    def of(kind: str, name: str) -> list[float]:
        return [n[name] for n in notes if n.get("kind") == kind and not n["enrol"]]

    rounds = {
        kind: timing([n["seconds"] for n in notes if n.get("round") == kind])
        for kind in ("empty", "gated", "shipped")
    }
    mb = {kind: statistics.median(of(kind, "mb")) for kind in rounds}
    cpu = {kind: statistics.median(of(kind, "cpu")) for kind in rounds}
    against = f"an empty ClientApp, {SILOS} SuperNodes on loopback"
    name = f"gated round, {size} parameters"
    inside, tenth = timing(of("gated", "waited")), Timing(0.1, 0.1, 0.1, 1)
    small = size == 650  # beyond it, the model's own bytes are most of both
    return [
        compare(name, rounds["gated"], rounds["empty"], 1.15, against),
        compare(f"{name}, without a gate", rounds["shipped"], rounds["empty"], None, against),
        compare(f"{name}, in the gate", inside, tenth, 1.0 if small else None, "0.1 s"),
        Result(
            f"{name}, relay's memory",
            mb["gated"],
            150 if small else mb["empty"],
            "MB",
            1.0 if small else 1.15,
            "150 MB" if small else against,
            {"mb": mb},
        ),
        Result(
            f"{name}, relay's CPU",
            cpu["gated"] - cpu["empty"],
            0.2,
            "s",
            1.0,
            "0.2 s above the empty app",
            {"cpu": cpu},
        ),
    ]
