# SPDX-License-Identifier: Apache-2.0
"""A train function in shards behind gates: the bits of one process, also through a kill."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message

from dpfed.accounting.ledger.ledger import Ledger
from dpfed.data import shard_process
from dpfed.data.datasets import Records
from dpfed.flower import DPStrategy
from dpfed.recipes.schema import to_toml
from dpfed.recipes.sharded import sharded_problem
from dpfed.recipes.terms import Terms, package_digest, write_terms
from dpfed.silo.modules import gate_modules
from dpfed.training.inprocess import replay
from dpfed.training.wire.codec import named_arrays
from tests.silo.gates import (
    CLASSES,
    FEATURES,
    RECIPE,
    RECORDS,
    Silo,
    gates,
    grid_of,
    read,
    records,
)
from tests.training.flower.local_grid import LocalGrid, become_a_server

pytestmark = pytest.mark.slow
SILOS, SHARDS = 2, 5
FUNCTION = "wardtrain:train"
CODE = '''
import pathlib, time
import numpy as np
HERE = pathlib.Path(__file__).parent

def train(parameters, data):
    """One gradient step; it says that it has begun, and takes its time while it is asked to."""
    (HERE / "began").touch()
    if (HERE / "slow").exists():
        time.sleep(2.0)
    x, y = data
    scores = x @ parameters["weight"].T + parameters["bias"]
    wrong = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    wrong[np.arange(len(y)), y] -= 1
    weight = parameters["weight"] - 0.5 * wrong.T @ x / len(y)
    return [weight, parameters["bias"] - 0.5 * wrong.mean(axis=0)]
'''


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package as an owner installs it, here and in the gates' processes."""
    site, about = tmp_path / "site", tmp_path / "site" / "wardtrain-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "wardtrain.py").write_text(CODE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: wardtrain\nVersion: 1.0\n")
    (about / "RECORD").write_text("wardtrain.py,,\nwardtrain-1.0.dist-info/METADATA,,\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=":")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    monkeypatch.setattr("tests.silo.gates.commands", lambda: {"PATH": path})  # new processes
    become_a_server(monkeypatch)
    yield site
    for each in shard_process._RUNNING.values():
        each.close()


def terms_in(folder: Path, **privacy: Any) -> Path:
    train = {"function": FUNCTION, "shards": SHARDS, "seconds": 5.0}
    told = {**RECIPE, "rounds": 2, "train": train}
    told["privacy"] = {**RECIPE["privacy"], **privacy}
    (folder / "recipe.toml").write_text(to_toml(told))
    text = write_terms(
        folder / "recipe.toml",
        dataset="sepsis",
        shape=[FEATURES],
        sizes=[float(RECORDS)] * SILOS,
        classes=CLASSES,
        packages=["wardtrain"],
    )
    (folder / "terms.toml").write_text(text)
    return folder / "terms.toml"


def replayed(terms: Terms, strategy: DPStrategy) -> torch.Tensor:
    """The committed rounds once more, in this process."""
    assert strategy.step is not None
    problems = [
        sharded_problem(terms.recipe, terms.plan, terms.model, Records(*records(silo)), silo)
        for silo in range(SILOS)
    ]
    found = replay(terms.plan, problems, terms.initial, strategy.step.committed)
    return found.params


@pytest.mark.long
def test_behind_gates_it_has_the_bits_of_one_process(tmp_path: Path, installed: Path) -> None:
    path = terms_in(tmp_path)
    strategy = _trained(tmp_path, path)
    assert strategy.step is not None
    assert strategy.step.state.round == 2
    assert torch.equal(strategy.step.state.params, replayed(read(path), strategy))
    terms = read(path)
    assert terms.pins.packages == {"wardtrain": package_digest("wardtrain")}
    (installed / "wardtrain.py").write_text(CODE + "\n# changed\n")
    assert terms.pins.packages != {"wardtrain": package_digest("wardtrain")}


@pytest.mark.long
def test_a_gate_killed_in_the_middle_of_a_rounds_shards(tmp_path: Path, installed: Path) -> None:
    """The attempt is spent; the next one has new noise, and nothing is spent beyond the plan."""
    path = terms_in(tmp_path, spare_attempts=2)
    strategy = _trained(tmp_path, path, slow=installed)
    assert strategy.step is not None
    assert strategy.step.state.round == 2
    assert torch.equal(strategy.step.state.params, replayed(read(path), strategy))
    for silo in range(SILOS):
        ledger = Ledger(tmp_path / f"silo-{silo}" / "state" / "ledger.sqlite")
        entered = {
            tuple(row.body[n] for n in ("round", "attempt"))
            for row in ledger.rows()
            if "round" in row.body
        }
        assert len(entered) <= read(path).plan.attempts
        ledger.close()


@pytest.mark.long
def test_a_reviewer_reads_which_process_runs_the_function(tmp_path: Path, installed: Path) -> None:
    path, silo = terms_in(tmp_path), Silo(tmp_path / "silo", 0)
    silo.write(sharded=[FUNCTION])
    listed = gate_modules(silo.policy, [path])
    (line,) = listed.clean
    assert line == f"beside it, without data: dpfed.data.shard_child, which loads {FUNCTION}"
    assert list(listed.report())[-1] == line
    assert "wardtrain" not in listed.others


def _trained(folder: Path, path: Path, slow: Path | None = None) -> DPStrategy:
    terms = read(path)
    with gates(folder, SILOS, sharded=[FUNCTION]) as owners:
        for each in owners:
            each.approve(path)
            each.spawn()
        for each in owners:
            each.wait()
        grid = grid_of(owners)
        killer = None if slow is None else _Killer(grid, owners[0], slow)
        strategy = DPStrategy(terms.plan, training=terms.name, wait=60, wait_lost=1)
        strategy.start(grid, named_arrays(terms.model.layout, terms.initial))
        if killer is not None:
            killer.thread.join()
            assert killer.lost
    return strategy


class _Killer:
    """Kills a gate in the middle of the first round's shards, and starts it again."""

    def __init__(self, grid: LocalGrid, owner: Silo, site: Path) -> None:
        self.owner, self.site, self.usual, self.lost = owner, site, grid.app, 0
        grid.app = self.relay  # type: ignore[assignment, method-assign]
        (site / "slow").touch()
        (site / "began").unlink(missing_ok=True)
        self.thread = threading.Thread(target=self.kill, daemon=True)
        self.thread.start()

    def kill(self) -> None:
        deadline = time.monotonic() + 120
        while not (self.site / "began").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(3.0)  # behind the rehearsal, in the middle of the shards
        self.owner.kill()
        (self.site / "slow").unlink()
        self.owner.start()

    def relay(self, message: Message, context: Context) -> Message | None:
        """As a node whose gate is gone: no reply; the next order finds the new one."""
        try:
            return self.usual(message, context)
        except OSError:
            self.lost += 1
            self.thread.join()
            return None
