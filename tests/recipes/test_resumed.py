# SPDX-License-Identifier: Apache-2.0
"""A run on objects of one process is resumed in another: records and first parameters are kept."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dpfed
from dpfed.core.errors import DataError

X = np.linspace(-1, 1, 180, dtype="f4").reshape(60, 3)
Y = (X.sum(axis=1) > 0).astype("i8")
GIVEN: dict[str, Any] = {
    "privacy": {"epsilon": 8.0, "delta": 1e-3, "noise": "keyed"},
    "rounds": 4,
    "method": "dp-fedgd",
}


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("DPFED_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def data(x: Any = X, y: Any = Y, groups: Any = None) -> dict[str, Any]:
    """New objects, whose names in a recipe are new: as in another process."""
    source = (x.copy(), y.copy()) if groups is None else (x.copy(), y.copy(), groups)
    return {"source": source, "partition": {"clients": 3}, "holdout": 0.2}


def begin(folder: Path, rounds: int = 2, **given: Any) -> None:
    def die(row: Any, planned: int) -> None:
        if row["round"] == rounds:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dpfed.run(**{**GIVEN, "data": data(), **given}, resume=folder, watch=die)


def test_a_run_on_arrays_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    begin(tmp_path / "kept")
    resumed = dpfed.run(**GIVEN, data=data(), resume=tmp_path / "kept")
    straight = dpfed.run(**GIVEN, data=data())
    assert len(resumed.history) == 4
    assert torch.equal(resumed.params, straight.params)


def changed(at: int) -> dict[str, Any]:
    x, y = X.copy(), Y.copy()
    if at == 0:
        x[7, 1] = np.nextafter(x[7, 1], np.float32(9))
    elif at == 1:
        y[7] = 1 - y[7]
    elif at == 2:
        x[[3, 4]], y[[3, 4]] = x[[4, 3]], y[[4, 3]]
    elif at == 3:
        return data(x, y, np.arange(60))
    return data(x[:-1], y[:-1]) if at == 4 else data(x, y)


@pytest.mark.parametrize("at", range(5), ids=["a value", "a label", "the order", "ids", "one less"])
def test_other_arrays_are_refused(at: int, tmp_path: Path) -> None:
    begin(tmp_path / "kept")
    with pytest.raises(DataError, match="data must be the records") as refused:
        dpfed.run(**GIVEN, data=changed(at), resume=tmp_path / "kept")
    assert "give the same arrays" in str(refused.value)


def test_another_machine_is_refused(state: Path, tmp_path: Path) -> None:
    begin(tmp_path / "kept")
    (state / "machine.key").unlink()
    with pytest.raises(DataError, match="on the machine where it began"):
        dpfed.run(**GIVEN, data=data(), resume=tmp_path / "kept")


def test_the_hmac_is_of_a_training_under_a_key_and_in_no_file_that_leaves(
    state: Path, tmp_path: Path
) -> None:
    said = []
    for name in ("one", "two"):
        begin(tmp_path / name)
        dpfed.run(**GIVEN, data=data(), resume=tmp_path / name, out=tmp_path / f"{name}-out")
        said.append((tmp_path / name / "data.hmac").read_text())
    assert said[0] != said[1]  # two folders do not say that their records are the same
    assert (state / "machine.key").stat().st_mode & 0o077 == 0
    key = (state / "machine.key").read_bytes()
    for path in (tmp_path / "one-out").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert said[0].encode() not in content
            assert key not in content
            assert key.hex().encode() not in content


def test_a_module_goes_on_with_the_parameters_that_it_had_at_first(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    module[0].requires_grad_(False)  # never trained: only the first parameters say what it is
    begin(tmp_path / "kept", model=copy.deepcopy(module))
    other = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    other[0].requires_grad_(False)
    before = [each.detach().clone() for each in other.parameters()]
    resumed = dpfed.run(**GIVEN, data=data(), model=other, resume=tmp_path / "kept")
    straight = dpfed.run(**GIVEN, data=data(), model=copy.deepcopy(module))
    assert torch.equal(resumed.params, straight.params)
    assert resumed.history[-1]["accuracy"] == straight.history[-1]["accuracy"]
    assert all(map(torch.equal, before, other.parameters()))  # the caller's own is as it was


def test_another_module_is_refused(tmp_path: Path) -> None:
    begin(tmp_path / "kept", model=nn.Linear(3, 2))
    wider = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    with pytest.raises(DataError, match="model must be the module that the run in"):
        dpfed.run(**GIVEN, data=data(), model=wider, resume=tmp_path / "kept")


_TWICE = """
import sys, torch, numpy as np, dpfed
from torch import nn
x = np.linspace(-1, 1, 180, dtype="f4").reshape(60, 3)
y = (x.sum(axis=1) > 0).astype("i8")
torch.seed()
def watch(row, planned):
    print(row["round"], flush=True)
    if row["round"] == int(sys.argv[2]):
        import os; os._exit(3)
dpfed.run(data=(x, y), model=nn.Linear(3, 2), privacy={"epsilon": 8.0, "delta": 1e-3}, rounds=4,
          method="dp-fedgd", resume=sys.argv[1], watch=watch)
"""


@pytest.mark.slow
def test_in_two_processes(tmp_path: Path) -> None:
    ends = []
    for last in ("2", "9"):
        command = [sys.executable, "-c", _TWICE, str(tmp_path / "kept"), last]
        ends.append(subprocess.run(command, capture_output=True, text=True, check=False))
    assert [each.returncode for each in ends] == [3, 0], ends[1].stderr
    assert [each.stdout.split() for each in ends] == [["1", "2"], ["1", "2", "3", "4"]]
