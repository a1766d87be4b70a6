# SPDX-License-Identifier: Apache-2.0
"""Correlated noise whose place is not what was priced: another plan, a lost state, an old backup.

Before: a state of noise was kept under the training's name alone, so that a second plan went on
with the noise of the first, one release underpriced 150 times in mu^2; and where the state was
gone, or the server said "round 0", the schedule began anew at its loudest releases: a stated
epsilon of 1 was 1.24. The cost is measured here on what left: the rows are zero, so it is noise.
"""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpfed.accounting import gdp
from dpfed.core.registry import build
from dpfed.core.types import UPDATE, Broadcast
from dpfed.flower import make_plan
from dpfed.training.plan import Plan
from dpfed.training.wire import responder
from dpfed.training.wire import state as states
from tests.attacks.asking import app_of, at_home, release

SIZE, ROUNDS = 4000, 12
START = torch.zeros(SIZE)


@pytest.fixture(autouse=True)
def _node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_home(tmp_path, monkeypatch)


@pytest.fixture(params=[None, "ward"], ids=["own count", "owner's ledger"])
def dataset(request: pytest.FixtureRequest) -> Any:
    return request.param


def plan_with(mechanism: str, epsilon: float = 1.0) -> Plan:
    privacy = {"mechanism": mechanism, "epsilon": epsilon}
    return make_plan([4.0], rounds=ROUNDS, privacy=privacy)


def ask(plan: Plan, round: int, attempt: int = 0, dataset: str | None = None, **more: Any) -> Any:
    app = app_of(plan, dataset, SIZE)
    return release(app, plan, Broadcast(round, START, attempt=attempt), **more)


def measured(plan: Plan, releases: list[Any]) -> float:
    """The epsilon of what left, if each release has the noise of its own step of ``banded``."""
    values = [np.frombuffer(each, "<i4") * plan.update.step for each in releases]
    spent = math.fsum((2 * plan.update.clip / float(value.std())) ** 2 for value in values)
    return gdp.epsilon_for(plan.delta, math.sqrt(spent))


def forget(*names: str) -> None:
    """Parts of the client's disk are lost while nothing runs."""
    for ledger in responder._COUNTS.values():
        ledger.close()
    responder._COUNTS.clear()
    folder = states.folder_for("run", 0)
    for path in [folder / name for name in names] or [folder]:
        shutil.rmtree(path)


# --------------------------------------------------------------------------------- a lost state


def test_noise_whose_state_is_lost_does_not_begin_anew(dataset: Any) -> None:
    """Half of the rounds, then the state is gone: the other half would be the loud half again."""
    plan = plan_with("banded")
    got = [ask(plan, at, dataset=dataset) for at in range(ROUNDS // 2)]
    forget("mechanisms")
    later = [ask(plan, at, dataset=dataset, since=(at - 1, 0)) for at in range(ROUNDS // 2, ROUNDS)]
    left = [each for each in (*got, *later) if isinstance(each, bytes)]
    assert measured(plan, left) <= 1.0
    assert later == ["UnsoundPlan"] * (ROUNDS // 2)


def test_noise_whose_whole_folder_is_lost_does_not_begin_anew() -> None:
    """The count is gone, too; but the server says that it has releases of this client."""
    plan = plan_with("banded")
    got = [ask(plan, at) for at in range(ROUNDS // 2)]
    forget()
    later = [ask(plan, at, since=(at - 1, 0)) for at in range(ROUNDS // 2, ROUNDS)]
    left = [each for each in (*got, *later) if isinstance(each, bytes)]
    assert measured(plan, left) <= 1.0
    assert later == ["UnsoundPlan"] * (ROUNDS // 2)


def test_the_servers_round_number_does_not_set_the_place(dataset: Any) -> None:
    """A server that always says "round 0" gets the schedule as it was priced, and then nothing."""
    plan = plan_with("banded")
    got = [ask(plan, 0, attempt, dataset) for attempt in range(2 * ROUNDS)]
    left = [each for each in got if isinstance(each, bytes)]
    assert len(left) == ROUNDS
    assert measured(plan, left) == pytest.approx(1.0, rel=0.05)
    whole = plan.channels[UPDATE]
    levels = [float((np.frombuffer(each, "<i4") * whole.step).std()) for each in left]
    due = [whole._std_at(t) for t in range(1, ROUNDS + 1)]  # type: ignore[attr-defined]
    assert levels == pytest.approx(due, rel=0.1)


@pytest.mark.parametrize("mechanism", ["tree", "banded"])
def test_an_older_folder_beside_a_live_ledger_is_noticed(mechanism: str, tmp_path: Path) -> None:
    plan = plan_with(mechanism)
    assert isinstance(ask(plan, 0, dataset="ward"), bytes)
    shutil.copytree(states.folder_for("run", 0), tmp_path / "backup")
    assert isinstance(ask(plan, 1, dataset="ward"), bytes)
    forget()
    shutil.copytree(tmp_path / "backup", states.folder_for("run", 0))
    assert ask(plan, 1, dataset="ward") == "UnsoundPlan"
    assert ask(plan, 2, dataset="ward") == "UnsoundPlan"
    assert ask(plan, 1, 1, dataset="ward") == "UnsoundPlan"


@pytest.mark.parametrize("moment", ["working", "keeping"])
def test_a_client_that_dies_in_a_round(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the release is confirmed, nothing can have left: it goes on where it was. After, it
    cannot know whether it did, and stops.
    """
    plan = plan_with("tree")
    ask(plan, 0)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    where = {
        "working": "dpfed.mechanisms.tree.Tree.release",
        "keeping": f"{states.__name__}.save_noise",
    }
    with monkeypatch.context() as patch:
        patch.setattr(where[moment], die)
        with pytest.raises(KeyboardInterrupt):
            ask(plan, 1)
    assert ask(plan, 1) == "UnsoundPlan"  # it is spent
    assert isinstance(ask(plan, 1, 1), bytes) is (moment == "working")


# ------------------------------------------------------------------------------- another plan


@pytest.mark.parametrize("mechanism", ["tree", "banded", "gaussian"])
def test_kept_noise_is_its_plans_own(mechanism: str, dataset: Any) -> None:
    """Tight noise first, then a plan of less noise under the same name, or the other way round."""
    tight, loose = plan_with(mechanism, 0.5), plan_with(mechanism, 50.0)
    for first, second in ((tight, loose), (loose, tight)):
        training = f"t-{first.fingerprint()[:6]}"
        for at in range(3):
            here = Broadcast(at, START, training=training)
            assert isinstance(release(app_of(first, dataset, SIZE), first, here), bytes)
        there = Broadcast(3, START, training=training)
        assert release(app_of(second, dataset, SIZE), second, there) == "UnsoundPlan"
        assert isinstance(release(app_of(first, dataset, SIZE), first, there), bytes)


def test_a_training_is_counted_under_one_name() -> None:
    """A recipe that names the data anew in the middle would have it counted from zero."""
    plan = plan_with("gaussian")
    assert isinstance(ask(plan, 0), bytes)
    assert ask(plan, 1, dataset="ward") == "UnsoundPlan"
    assert isinstance(ask(plan, 1), bytes)


def test_states_that_say_no_plan_are_refused(tmp_path: Path) -> None:
    plan = plan_with("tree")
    ask(plan, 0)
    (states.folder_for("run", 0) / "plan").unlink()
    assert ask(plan, 1) == "UnsoundPlan"


def test_an_algorithms_state_is_its_plans_own_too() -> None:
    scaffold = build("client", "scaffold", {}, unit="record")
    plan = replace(plan_with("gaussian"), client=scaffold)
    other = replace(plan, rounds=ROUNDS + 1)
    assert isinstance(ask(plan, 0), bytes)
    assert ask(other, 1, since=(0, 0)) == "UnsoundPlan"
