# SPDX-License-Identifier: Apache-2.0
"""The owner's commands need policy and files of state alone: they answer without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dpfed._version import VERSION
from dpfed.cli import silo_text
from dpfed.cli.silo_text import state_of
from dpfed.core.types import Adjacency
from dpfed.silo.approvals import Approvals
from dpfed.silo.owner import Owner
from dpfed.silo.policy import load_policy
from tests.silo.gates import ME, Silo, read, terms_for

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


def test_a_status_says_which_trainings_of_another_version_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DPFED_STATE", "DPFED_LEDGER", "DPFED_IDENTITY"):
        monkeypatch.setenv(name, "")
    silo = Silo(tmp_path / "silo", 0)
    silo.write()
    silo.approve(terms_for(tmp_path, 3))
    owner = Owner(load_policy(silo.policy))
    assert "REFUSED" not in state_of(owner)
    monkeypatch.setattr(silo_text, "VERSION", "77.0")
    (line,) = [line for line in state_of(owner).splitlines() if ": approved" in line]
    assert f"REFUSED: its terms are of dpfed {VERSION}, and this is 77.0" in line
