# SPDX-License-Identifier: Apache-2.0
"""An open population in one process: who takes part, how often, and what it is divided by."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from dpfed.core.errors import ClientRefused
from dpfed.training.account import open_account
from dpfed.training.checkpoint import Checkpoint
from dpfed.training.loop import Step, train
from dpfed.training.plan import Plan
from dpfed.training.population import Population
from tests.helpers.populations import (
    COHORT,
    ROUNDS,
    START,
    Device,
    come_and_go,
    plan_with,
    within_limits,
)


class Counted(Population):
    """It notes who answered in which round, by the answers themselves."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.answered: dict[int, list[int]] = defaultdict(list)

    def exchange(self, broadcast: Any, stage: Any, requests: Any) -> Iterable[Any]:
        device_of = {slot: device for device, slot in self._slots.items()}
        for slot, found in super().exchange(broadcast, stage, requests):
            if not isinstance(found, ClientRefused):
                self.answered[device_of[slot]].append(broadcast.round)
            yield slot, found


def run(plan: Plan, people: Population, until: int | None = None, **more: Any) -> Step:
    *_, last = train(plan, START, people, until=until, **more)
    return last


@pytest.mark.parametrize("mechanism", ["gaussian", "discrete_gaussian", "tree", "banded", "blt"])
def test_devices_come_and_go_and_none_takes_part_too_often(mechanism: str) -> None:
    plan = plan_with(mechanism)
    people = Counted(plan, [Device(i) for i in range(60)], come_and_go)
    last = run(plan, people)
    assert last.stopped is None
    assert [row["clients"] for row in last.history] == [COHORT] * ROUNDS
    assert within_limits(people.answered, plan)
    assert sum(map(len, people.answered.values())) == COHORT * ROUNDS
    assert len(people.answered) > 3 * COHORT  # nobody has a list of them
    assert plan.guarantee(last.state.release_counts, ROUNDS).epsilon == pytest.approx(2.0, rel=1e-6)


def test_a_count_that_is_forgotten_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: nobody rests, and devices count nothing."""
    plan = plan_with()
    monkeypatch.setattr(type(plan.participation), "allows", lambda *_: True)
    monkeypatch.setattr(type(plan.participation), "refuse_beyond", lambda *_: None)
    people = Counted(plan, [Device(i) for i in range(5)])
    run(plan, people)
    assert not within_limits(people.answered, plan)


def test_a_device_that_is_asked_too_early_refuses_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server asks all the same: nothing is spent, and its slot adds zero."""
    plan = plan_with()
    monkeypatch.setattr(type(plan.participation), "allows", lambda *_: True)
    people = Counted(plan, [Device(i) for i in range(5)])
    last = run(plan, people, until=3)
    assert within_limits(people.answered, plan)
    assert "3 times UnsoundPlan" in last.history[1]["refused"]


@pytest.mark.parametrize("here", [1, 2, 4, 9])
def test_the_divisor_is_the_public_constant_whoever_came(here: int) -> None:
    plan = plan_with("gaussian", epsilon=None, std_over_clip=1e-5)
    last = run(plan, Population(plan, [Device(0)] * here), until=1)
    expected = min(here, COHORT) / COHORT
    assert float(-last.state.params[0]) == pytest.approx(expected, abs=1e-3)
    assert last.history[0]["missing"] == COHORT - min(here, COHORT)
    assert last.history[0]["absent"] == ""


def test_nobody_who_may_take_part_ends_it_and_spends_nothing() -> None:
    plan = plan_with()
    last = run(plan, Population(plan, [Device(i) for i in range(COHORT)]))
    assert len(last.history) == 1
    assert last.stopped is not None
    assert "nobody who is there in round 1 may take part (at most 3 times" in last.stopped


def test_a_run_that_dies_goes_on_with_the_devices_counts(tmp_path: Path) -> None:
    plan, kept = plan_with("blt"), Checkpoint(tmp_path)
    devices = [Device(i) for i in range(60)]
    first = Counted(plan, devices, come_and_go)
    run(plan, first, until=5, checkpoint=kept)
    second = Counted(plan, devices, come_and_go)
    went_on = run(plan, second, checkpoint=kept)
    both = {d: first.answered[d] + second.answered[d] for d in {*first.answered, *second.answered}}
    assert within_limits(both, plan)
    straight = run(plan, Population(plan, devices, come_and_go))
    assert torch.equal(went_on.state.params, straight.state.params)
    assert not any(each.clients for each in went_on.committed)


def test_an_account_holds_devices_to_it_too(tmp_path: Path) -> None:
    """Another process with the same ledger: those who took part rest, whatever it remembers."""
    plan = plan_with()
    devices = [Device(i) for i in range(2 * COHORT)]
    entered = open_account("phones", path=tmp_path / "ledger.sqlite")
    first = Counted(plan, devices, ledger=entered)
    run(plan, first, until=1, training="one")
    second = Counted(plan, devices, ledger=entered)
    last = run(plan, second, until=3, training="one")
    assert within_limits(second.answered, plan)
    assert not {d for d, rounds in second.answered.items() if 1 in rounds} & set(first.answered)
    assert last.history[-1]["clients"] > 0


class Crowd(Sequence[Device]):
    """10^5 devices, of whom none is made before it takes part."""

    made = 0

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, at: Any) -> Any:
        self.made += 1
        return Device(at)


def test_what_is_kept_does_not_grow_with_who_is_there() -> None:
    plan, crowd = plan_with(), Crowd()
    people = Population(plan, crowd)
    run(plan, people)
    assert crowd.made == COHORT * ROUNDS
    assert not people._inside.clients
    assert len(people._counts) <= COHORT * ROUNDS
