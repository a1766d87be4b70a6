# SPDX-License-Identifier: Apache-2.0
"""What a gate loads: a real one is watched from outside, and the owner's list is held to it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dpfed.core.errors import DataError
from dpfed.silo.frames import ask
from dpfed.silo.modules import LoadedModules, gate_modules
from tests.helpers.handlers import enrolment, order, said
from tests.silo.gates import FEATURES, RECORDS, Silo, read, terms_for

FORBIDDEN = (
    "dpfed.cli.",
    "dpfed.client.scaffold.",
    "dpfed.data.backbones.",
    "dpfed.data.modules.",
    "dpfed.data.partitions.",
    "dpfed.data.screen.",
    "dpfed.data.synthetic.",
    "dpfed.mechanisms.tree.",
    "dpfed.recipes.federation.",
    "dpfed.training.flower.strategy.",
    "dpfed.training.flower.transport.",
    "dpfed.training.inprocess.",
)
"""What terms of dp-fedgd on a linear model do not use, and what only others than a silo need."""
WATCH = """
import os, sys
def watch(event, args, file=os.open({file!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)):
    code = args[0] if event == "exec" else None
    if getattr(code, "co_name", "") == "<module>" and "/dpfed/" in code.co_filename:
        name = code.co_filename.rpartition("/dpfed/")[2][:-3].replace("/", ".")
        name = ("dpfed." + name).removesuffix(".__init__")
        os.write(file, f"{{os.getpid()}} {{name}}\\n".encode())
os.write(file := watch.__defaults__[0], f"{{os.getpid()}} NEW\\n".encode())
sys.addaudithook(watch)
"""
"""A sitecustomize that writes down whatever module a process, or its child, runs."""


def watched(silo: Silo, terms: Path) -> tuple[set[str], set[str]]:
    """The modules of a gate that has answered two rounds, and those that its children loaded."""
    hook, file = silo.folder / "hook", silo.folder / "loaded"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(WATCH.format(file=str(file)))
    paths = os.pathsep.join([str(hook), *filter(None, sys.path)])
    start = "from dpfed.cli.main import main; main()"
    command = [sys.executable, "-c", start, "silo", "serve", "--policy", str(silo.policy)]
    made = read(terms)
    with (silo.folder / "gate.log").open("w") as log:
        silo.process = subprocess.Popen(
            command,
            env=os.environ | {"PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        silo.wait()
        for request in (enrolment(made.name), order(made, 0), order(made, 1)):
            assert "error" not in said(ask(str(silo.socket), request, 60))
        gate = str(silo.process.pid)
    finally:
        silo.kill()
    loaded, by_children = set[str](), set[str]()
    for process, name in map(str.split, file.read_text().splitlines()):
        if name == "NEW":  # the command, then the gate that it becomes: with the same number
            loaded, by_children = set(), set()
        elif process == gate:
            loaded.add(name)
        else:
            by_children.add(name)
    return loaded, by_children


def contents(folder: Path) -> dict[Path, bytes]:
    """All files but SQLite's index of who reads a file now (-shm), which any reader writes."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path: path.read_bytes() for path in files if not path.name.endswith("-shm")}


@pytest.mark.long
@pytest.mark.slow
def test_a_gate_that_answered_has_loaded_what_the_list_says_and_nothing_else(
    tmp_path: Path,
) -> None:
    terms = terms_for(tmp_path, 3)
    found = []
    for name, value in (("usual", 0.5), ("odd", float("nan"))):
        silo = Silo(tmp_path / name, 0)
        silo.folder.mkdir()
        x, y = np.ones((RECORDS, FEATURES), np.float32), np.zeros(RECORDS, np.int64)
        x[0], y[0] = value, 0 if name == "usual" else 2
        np.savez(silo.folder / "data.npz", x=x, y=y)
        silo.write()
        silo.approve(terms)
        loaded, by_children = watched(silo, terms)
        assert by_children == set()  # when a module is loaded cannot depend on a record
        found.append(loaded)
    assert found[0] == found[1]
    assert not {name for name in found[0] if f"{name}.".startswith(FORBIDDEN)}
    assert {"dpfed.client.gradient", "dpfed.mechanisms.gaussian"} <= found[0]
    before = contents(tmp_path / "odd/state")
    listed = gate_modules(tmp_path / "odd/silo.toml")
    assert set(listed.lines) == found[0]
    assert contents(tmp_path / "odd/state") == before


@pytest.mark.long
@pytest.mark.slow
def test_terms_that_are_not_approved_can_be_listed_unless_they_load_a_model(tmp_path: Path) -> None:
    silo = Silo(tmp_path / "silo", 0)
    silo.write(methods=["dp-scaffold"], models=["softmax"])
    terms = terms_for(tmp_path, 3, method="dp-scaffold")
    alone, with_terms = gate_modules(silo.policy), gate_modules(silo.policy, [terms])
    assert set(with_terms.lines) - set(alone.lines) >= {"dpfed.client.scaffold"}
    foreign = {"name": "network", "factory": "tests.silo.factories:linear"}
    with pytest.raises(DataError, match="once its terms are approved"):
        gate_modules(silo.policy, [terms_for(tmp_path, 3, model=foreign)])


_COSTS = """
import sys
import dpfed.silo.gate
from dpfed.accounting import gdp
before = set(sys.modules)
gdp.mu_for(1.0, 1e-5), gdp.epsilon_for(1e-5, 0.3), gdp.delta_for(0.1, 5.0)
print(sorted(set(sys.modules) - before))
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_child_finds_what_costs_are_computed_with_in_the_gates_memory() -> None:
    """SciPy is loaded on its first use, which in a gate would be a child's, for each order."""
    command = [sys.executable, "-c", _COSTS]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_list_ends_with_the_total() -> None:
    lines = list(LoadedModules({"dpfed.b": 20, "dpfed.a": 3}, ["numpy", "torch"]).report())
    assert lines[0].split() == ["3", "dpfed.a"]
    assert lines[2].split()[:4] == ["23", "lines", "in", "2"]
    assert "numpy, torch" in lines[3]
