# SPDX-License-Identifier: Apache-2.0
"""The owner's commands need policy and files of state alone: they answer without torch."""

from __future__ import annotations

import datetime as dt
import json
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from dpfed.cli import silo_text
from dpfed.cli.silo_text import state_of, verdict
from dpfed.core.types import Adjacency
from dpfed.silo.approvals import Approvals
from dpfed.silo.figures import gate_figures
from dpfed.silo.owner import Owner
from dpfed.silo.policy import load_policy
from tests.silo.gates import ME, Silo, read, terms_for

BEFORE_THEY_END = dt.datetime(2026, 11, 19, 4, tzinfo=dt.UTC)
KEPT = Path(__file__).parents[1] / "goldens" / "kept" / "silo-0.2.0.sql"
HEAD = "73c4d6f1a3d3e737cbd66566dc07251fbe4213bec8f386fdb4d486f27da4c8ca"
HEAVY = ("torch", "flwr", "dp_accounting", "scipy.optimize", "opacus", "grpc")
COMMANDS = ("status", "log", "metrics", "clock", "revoke gated")
SLOW_TO_LOAD = (*HEAVY, "numpy", "scipy", "rich", "importlib.metadata", "dpfed.data.datasets")
LIGHT_COMMANDS = ("status", "log", "clock")
_LOADED = """
import sys
from dpfed.cli.main import app
try:
    app(["silo", *{words!r}, "--policy", {policy!r}], standalone_mode=False)
finally:
    print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)
"""


@pytest.mark.slow
def test_the_owners_commands_load_neither_torch_nor_flower(tmp_path: Path) -> None:
    silo = Silo(tmp_path / "silo", 0)
    silo.write()
    silo.approve(terms_for(tmp_path, 3))
    for commands, heavy in ((LIGHT_COMMANDS, SLOW_TO_LOAD), (COMMANDS, HEAVY)):
        for words in (each.split() for each in commands):
            code = _LOADED.format(words=words, policy=str(silo.policy), heavy=heavy)
            done = subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, check=True
            )
            assert done.stdout, words
            assert json.loads(done.stderr.splitlines()[-1].replace("'", '"')) == [], words


def test_an_owner_sees_the_gates_files_and_makes_its_key_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DPFED_STATE", "DPFED_LEDGER", "DPFED_IDENTITY"):
        monkeypatch.setenv(name, "")  # an owner sets them, and they are put back
    silo = Silo(tmp_path / "silo", 0)
    silo.write()
    terms = terms_for(tmp_path, 3)
    silo.approve(terms)
    first, second = Owner(load_policy(silo.policy)), Owner(load_policy(silo.policy))
    assert first.key.public == second.key.public
    assert [each.name for each in first.approvals.all()] == ["gated"]
    assert first.permitted(read(terms)).adjacency is Adjacency.REPLACE_ONE
    assert str(silo.folder / "data.npz") in first.check_accounts()
    Approvals(silo.folder / "state").revoke("gated")
    assert first.approvals.all()[0].revoked, "each call opens the files anew"
    assert first.approvals.all()[0].by == ME


def folder_of_0_2(folder: Path) -> Silo:
    """A silo whose state dpfed 0.2.0 has written (docs/upgrade.md): 15 rows of its ledger."""
    silo = Silo(folder / "silo", 0)
    silo.write()
    state = silo.folder / "state"
    state.mkdir(mode=0o700)
    _, ledger, approvals = re.split(r"^-- \w+\.sqlite$", KEPT.read_text(), flags=re.MULTILINE)
    for name, made in (("ledger", ledger), ("approvals", approvals)):
        with closing(sqlite3.connect(state / f"{name}.sqlite")) as file:
            file.executescript(made)
    told = {"hash": HEAD, "rows": 15, "writes": 15}
    (state / "ledger.sqlite.head").write_text(json.dumps(told))
    return silo


def test_a_folder_that_0_2_0_wrote_goes_on_with_what_was_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DPFED_STATE", "DPFED_LEDGER", "DPFED_IDENTITY"):
        monkeypatch.setenv(name, "")
    silo = folder_of_0_2(tmp_path)
    owner = Owner(load_policy(silo.policy))
    with closing(owner.ledger()) as ledger:
        assert ledger.verify() == []
        assert len(ledger.rows()) == 15
    data = gate_figures(owner).data[0]
    assert f"{data.spent:.4g}" == "2.039", "what 0.2.0 itself has printed"
    assert not data.overspent
    asked = [
        terms_for(folder, 3, name=folder.name, privacy={"epsilon": epsilon, "noise": "keyed"})
        for folder, epsilon in ((tmp_path / "fits", 3.0), (tmp_path / "does-not", 3.5))
        if folder.mkdir() is None
    ]
    refused = [verdict(owner, read(terms)).refused for terms in asked]
    assert refused[0] == ""
    assert "does not suffice" in refused[1]


def test_a_status_says_which_trainings_of_another_version_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DPFED_STATE", "DPFED_LEDGER", "DPFED_IDENTITY"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr("dpfed.silo.approvals.clock_time", lambda: BEFORE_THEY_END)
    owner = Owner(load_policy(folder_of_0_2(tmp_path).policy))
    monkeypatch.setattr(silo_text, "VERSION", "0.2.0")
    assert "REFUSED" not in state_of(owner)
    monkeypatch.setattr(silo_text, "VERSION", "0.3.0")
    lines = [line for line in state_of(owner).splitlines() if ": approved" in line]
    assert len(lines) == 2
    assert all("REFUSED: its terms are of dpfed 0.2.0" in line for line in lines)
