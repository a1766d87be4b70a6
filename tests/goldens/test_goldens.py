# SPDX-License-Identifier: Apache-2.0
"""What was kept before the house was rebuilt: the same bits, the same sentences.

On a processor with other vector instructions than those the goldens were made with, float sums may
round another way: there parameters are compared to 1e-5 instead of by their digest.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.goldens.make import FOLDER
from tests.goldens.runs import GOLDENS, digest, in_process, over_flower
from tests.training.flower.local_grid import become_a_server

RUNS = json.loads((FOLDER / "runs.json").read_text(encoding="utf-8"))
SAME_MACHINE = RUNS["machine"]["capability"] == torch.backends.cpu.get_cpu_capability()
ENGINES = {"in-process": in_process, "flower": over_flower}


@pytest.fixture(autouse=True)
def _server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPFED_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("DPFED_IDENTITY", "simulated")
    become_a_server(monkeypatch)


def assert_same(params: torch.Tensor, name: str) -> None:
    golden = RUNS[name]
    if SAME_MACHINE:
        assert digest(params) == golden["digest"]
    expected = torch.tensor(golden["params"], dtype=params.dtype)
    torch.testing.assert_close(params, expected, rtol=1e-5, atol=1e-5)


def test_every_golden_has_its_run_and_every_run_its_golden() -> None:
    assert set(RUNS) - {"machine"} == set(GOLDENS)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", GOLDENS)
@pytest.mark.sample(2)
def test_a_run_gives_the_bits_and_the_sentence_of_before(name: str, engine: str) -> None:
    params, sentence = ENGINES[engine](GOLDENS[name])
    assert_same(params, name)
    assert sentence == RUNS[name]["sentence"]


def test_a_digest_sees_a_single_bit() -> None:
    params = torch.tensor(RUNS["dp-fedgd"]["params"])
    assert digest(params) == RUNS["dp-fedgd"]["digest"]
    params[0] = torch.nextafter(params[0], torch.tensor(9.0))
    assert digest(params) != RUNS["dp-fedgd"]["digest"]
