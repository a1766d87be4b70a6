# SPDX-License-Identifier: Apache-2.0
"""A Flower app's own train function in shards, and what such an app may not do."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp

from dpfed.core.errors import DataError, RecipeError
from dpfed.core.types import UPDATE, Unit
from dpfed.data import shard_process
from dpfed.flower import DPStrategy, make_plan, private, shard
from dpfed.training.flower.sharded import name_of
from tests.helpers import sharded_apps
from tests.training.flower.local_grid import LocalGrid, become_a_server, nodes, refused


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    become_a_server(monkeypatch)
    monkeypatch.setenv("DPFED_STATE", str(tmp_path))
    yield
    for each in shard_process._RUNNING.values():
        each.close()


def run(app: ClientApp, plan: Any = None) -> Any:
    plan = sharded_apps.plan() if plan is None else plan
    return DPStrategy(plan, wait=0.1).start(LocalGrid(app, nodes(2)), sharded_apps.start())


@pytest.mark.slow
def test_each_record_is_protected_and_the_bits_are_the_same_each_time() -> None:
    results = [run(sharded_apps.app_of(sharded_apps.fit)) for _ in range(2)]
    first, second = (each.arrays.to_torch_state_dict() for each in results)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(each.any() for each in first.values())
    said = str(results[0].guarantee)
    assert "for each record (replace-one)" in said
    assert "if the train function reads no data but its shard" in said
    assert all(not refused(row) for row in results[0].history)


@pytest.mark.long
@pytest.mark.slow
def test_context_state_is_refused_in_the_rehearsal(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        result = run(sharded_apps.app_of(sharded_apps.fills_its_state))
    assert refused(result.history[0]) == dict.fromkeys(range(2), "DataError")
    assert "must leave Context.state empty" in caplog.text


def test_a_nested_function_is_refused_before_data_is_loaded() -> None:
    def nested(message: Any, context: Any) -> Any:
        raise AssertionError

    with pytest.raises(DataError, match="top of the app's module"):
        name_of(nested)
    result = run(sharded_apps.app_of(nested))
    assert refused(result.history[0]) == dict.fromkeys(range(2), "DataError")


def test_a_plan_without_shards_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    plan = make_plan([60] * 2, rounds=1, privacy={"epsilon": 2.0})
    result = run(sharded_apps.app_of(sharded_apps.fit, plan), plan)
    assert refused(result.history[0]) == dict.fromkeys(range(2), "UnsoundPlan")
    assert "must have shards" in caplog.text


def test_kept_arrays_and_an_evaluate_function_are_refused() -> None:
    with pytest.raises(RecipeError, match="keep must be empty"):
        DPStrategy(sharded_apps.plan(), keep=("bias",))
    with pytest.raises(RecipeError, match="evaluate"):
        private(sharded_apps.plan, evaluate=sharded_apps.fit, shards=sharded_apps.load)


def test_a_shard_is_for_its_process_only() -> None:
    with pytest.raises(DataError, match="got another caller"):
        shard()


def test_its_plan_has_rows_of_shards() -> None:
    plan = sharded_apps.plan(Context(0, 0, {}, RecordDict(), {}))
    assert plan.denominator(UPDATE) == sharded_apps.NODES * sharded_apps.SHARDS
    assert plan.update.unit is Unit.RECORD
