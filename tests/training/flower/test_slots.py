# SPDX-License-Identifier: Apache-2.0
"""What a server keeps of an open population: nothing, however many have ever been there."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from dpfed.training.flower import slots
from dpfed.training.flower.slots import Slots
from dpfed.training.plan import Plan
from dpfed.training.round import ServerState, start
from dpfed.training.wire.codec import CONTROL
from tests.helpers.populations import START, plan_with


@pytest.fixture(autouse=True)
def _light(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's own messages are slow to make, and 10^5 of them say nothing more."""

    def made(content: RecordDict, node: int, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(content=content, metadata=SimpleNamespace(dst_node_id=node))

    monkeypatch.setattr(slots, "Message", made)


class Crowd(Grid):
    """Nodes that are there once: each look finds others. Every second one must rest."""

    def __init__(self, plan: Plan, at_once: int) -> None:
        self.fresh, self.at_once, self.asked = itertools.count(1), at_once, 0
        self.sent: dict[str, int] = {}
        ready, resting = (
            {"fingerprint": plan.fingerprint(), "gate": False, "client": 0, "last": -1, "ready": r}
            for r in (True, False)
        )
        self.said = [RecordDict({CONTROL: ConfigRecord(each)}) for each in (ready, resting)]

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any: ...

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, *args: Any, **kwargs: Any) -> Iterable[Message]:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(itertools.islice(self.fresh, self.at_once))

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self.sent = {str(m.metadata.dst_node_id): m.metadata.dst_node_id for m in messages}
        self.asked += len(self.sent)
        return list(self.sent)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Any]:
        return [
            SimpleNamespace(
                metadata=SimpleNamespace(reply_to_message_id=order),
                has_error=lambda: False,
                content=self.said[self.sent[order] % 2],
            )
            for order in message_ids
        ]


def weight(kept: object) -> int:
    """How many numbers, texts and containers are reachable from a value."""
    seen: dict[int, object] = {}
    left: list[object] = [kept]
    while left:
        each = left.pop()
        if id(each) not in seen and isinstance(each, dict | list | set | tuple | int | str):
            seen[id(each)] = each
            left += gc.get_referents(each)
    return len(seen)


def kept_by(found: Slots) -> int:
    facts = vars(found)
    return weight({name: facts[name] for name in facts if name not in ("plan", "grid")})


def state_at(plan: Plan, round: int) -> ServerState:
    return replace(start(plan, START), round=round)


class Remembers(Slots):
    """Planted: it keeps who was there."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.ever: set[int] = set()

    def _admit(self, node: int, reply: Message, round: int) -> None:
        self.ever.add(node)
        super()._admit(node, reply, round)


def grown(kind: type[Slots], cohort: int, rounds: int) -> tuple[int, int]:
    """How many were asked, and by how much more is kept after all rounds than after two."""
    plan = plan_with("gaussian", rounds=rounds, cohort=cohort)
    grid = Crowd(plan, 3 * cohort)
    found = kind(plan, grid, wait=60.0)
    kept = []
    for round in range(rounds):
        assert found.fill(state_at(plan, round)) is None
        assert len(found.nodes) == cohort
        kept.append(kept_by(found))
    return grid.asked, kept[-1] - kept[1]


@pytest.mark.long
def test_what_is_kept_is_the_same_after_a_hundred_thousand_enrolments() -> None:
    asked, more = grown(Slots, cohort=1000, rounds=50)
    assert asked >= 100_000
    assert more <= 0


def test_a_server_that_remembers_would_be_seen() -> None:
    asked, more = grown(Remembers, cohort=50, rounds=10)
    assert more >= asked // 2


def test_not_the_same_devices_come_first() -> None:
    plan = plan_with("gaussian", cohort=20)
    grid = Crowd(plan, 0)
    grid.get_node_ids = lambda: range(2, 402, 2)  # type: ignore[method-assign]
    found = Slots(plan, grid, wait=0.0)
    taken = []
    for round in range(3):
        found.fill(state_at(plan, round))
        taken.append(set(found.nodes.values()))
    assert len(taken[0] | taken[1] | taken[2]) > 45


def test_no_more_are_asked_than_are_needed() -> None:
    plan = plan_with("gaussian", cohort=10)
    grid = Crowd(plan, 0)
    grid.get_node_ids = lambda: range(2, 20_002, 2)  # type: ignore[method-assign]
    Slots(plan, grid, wait=0.0).fill(state_at(plan, 0))
    assert grid.asked == slots._ASKED_PER_FREE_SLOT * 10
