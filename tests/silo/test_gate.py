# SPDX-License-Identifier: Apache-2.0
"""The gate, as a process of its own: what honest servers get, and what others do not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dpfed.data.datasets import Records
from dpfed.flower import DPStrategy
from dpfed.training.flower.codec import named_arrays
from dpfed.training.inprocess import rounds
from tests.silo.gates import RECIPE, gates, grid_of, read, records, terms_for
from tests.training.flower.local_grid import become_a_server

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _server(monkeypatch: pytest.MonkeyPatch) -> None:
    become_a_server(monkeypatch)


def in_one_process(terms_path: Path, silos: int) -> torch.Tensor:
    terms = read(terms_path)
    problems = [terms.model.problem(Records(*records(i))) for i in range(silos)]
    *_, (step, _) = rounds(terms.plan, problems, terms.initial)
    return step.params


@pytest.mark.parametrize("silos", [3])
def test_an_honest_federation_gets_the_bits_of_one_process(tmp_path: Path, silos: int) -> None:
    path = terms_for(tmp_path, silos)
    terms = read(path)
    with gates(tmp_path, silos) as owners:
        for each in owners:
            assert "approved for 30 days" in each.command("approve", str(path), "--yes")
            each.start()
        strategy = DPStrategy(terms.plan, training=terms.name, wait=10)
        result = strategy.start(grid_of(owners), named_arrays(terms.model.layout, terms.initial))
        assert "enforced by each silo's own process; " in str(result.guarantee)
        assert strategy.step is not None
        assert strategy.step.state.round == RECIPE["rounds"]
        assert torch.equal(strategy.step.state.params, in_one_process(path, silos))
        status = owners[0].command("status")
    assert "gated: approved until" in status
    assert "4 answered, 0 refused" in status
    assert "epsilon 2 is spent of" in status
