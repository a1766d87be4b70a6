# SPDX-License-Identifier: Apache-2.0
"""A plan that is pickled, as Flower's simulation does for each message."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from dpfed.flower import make_plan
from dpfed.training import plan as plans
from dpfed.training.plan import Plan

cloudpickle = pytest.importorskip("ray.cloudpickle", reason="what the simulation pickles by")


def made(rounds: int = 3) -> Plan:
    return make_plan(clients=4, rounds=rounds, privacy={"epsilon": 2.0, "unit": "client"})


def test_an_unpickled_plan_is_the_one_that_the_process_has() -> None:
    plan = made()
    packed = cloudpickle.dumps(plan)
    first = cloudpickle.loads(packed)
    assert first is not plan
    assert first.fingerprint() == plan.fingerprint()
    assert "agreed" in vars(first)
    assert cloudpickle.loads(packed) is first
    assert cloudpickle.loads(cloudpickle.dumps(first)) is first
    assert cloudpickle.loads(cloudpickle.dumps(plan)) is first
    assert copy.deepcopy(plan).fingerprint() == plan.fingerprint()


def test_another_plan_is_another_one() -> None:
    """The fault that is feared: a node that answers under a plan that is not its own."""
    plan = made()
    first = cloudpickle.loads(cloudpickle.dumps(plan))
    others = [made(), made(rounds=4), replace(first, rounds=4), replace(plan, delta=1e-6)]
    found = [cloudpickle.loads(cloudpickle.dumps(each)) for each in others]
    assert len({id(each) for each in (first, *found)}) == 5
    for other, each in zip(others, found, strict=True):
        assert each.fingerprint() == other.fingerprint()


def test_few_plans_are_kept() -> None:
    for _ in range(20):
        cloudpickle.loads(cloudpickle.dumps(made()))
    assert len(plans._unpickled_plans) <= 8


def test_a_plan_is_checked_when_it_is_made_and_releases_are_counted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = made()
    channel = type(plan.declared["update"])
    assert plan.planned("update") == 3
    monkeypatch.setattr(channel, "planned", lambda *_: pytest.fail("counted again"))
    assert plan.planned("update") == 3
