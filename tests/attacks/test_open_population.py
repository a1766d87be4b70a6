# SPDX-License-Identifier: Apache-2.0
"""Servers and devices that an open population must withstand, through Flower's messages.

A device that is counted twice, another plan than was agreed to, rows that are too long, more
answers than slots, a server that was set back, devices that lie.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict

import dpfed
from dpfed.core.errors import BadReply, RecipeError, RoundAborted, UnsoundPlan
from dpfed.core.randomness import Noise
from dpfed.core.types import UPDATE, Broadcast, Trust
from dpfed.flower import DPStrategy, client_app, make_plan
from dpfed.recipes.schema import load_recipe
from dpfed.sums.plain import plain
from dpfed.training.flower import slots
from dpfed.training.loop import train
from dpfed.training.plan import Plan
from dpfed.training.population import Population
from dpfed.training.wire import responder
from dpfed.training.wire import state as states
from dpfed.training.wire.codec import CONTROL, REPLY, Sender
from tests.attacks.asking import at_home, release
from tests.helpers.populations import COHORT, ROUNDS, START, Device, plan_with, within_limits
from tests.training.flower.local_grid import LocalGrid, nodes


@pytest.fixture(autouse=True)
def _node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_home(tmp_path, monkeypatch)
    monkeypatch.setattr(slots, "_LOOK_INTERVAL_S", 0.01)


def app_with(plan: Plan) -> Any:
    return client_app(lambda context: Device(context.node_config.get("partition-id", 0)), plan)


class Devices(LocalGrid):
    """It notes who answered which round with a release, by the bytes that came."""

    def __init__(self, plan: Plan, partitions: dict[int, int], tamper: Any = None) -> None:
        super().__init__(app_with(plan), partitions, tamper)
        self.answered: dict[int, list[int]] = defaultdict(list)
        self.asked: set[int] = set()

    def come(self, node: int, number: int | None) -> None:
        config = {} if number is None else {"partition-id": number}
        self.contexts[node] = Context(1, node, config, RecordDict(), {})

    def _handle(self, message: Message) -> Message | None:
        reply = super()._handle(message)
        control = message.content.config_records[CONTROL]
        if control["stage"] != "enrol":
            node = message.metadata.dst_node_id
            self.asked.add(node)
            if reply is not None and REPLY in reply.content.array_records:
                number = int(self.contexts[node].node_config.get("partition-id", 0))
                self.answered[number].append(int(control["round"]))
        return reply


def start(plan: Plan, grid: LocalGrid, rounds: int = ROUNDS, **more: Any) -> Any:
    strategy = DPStrategy(plan, training="run", **{"wait": 0.0, "wait_lost": 0.0, **more})
    return strategy.start(grid, ArrayRecord({"weight": START.clone()}), num_rounds=rounds)


def moved(result: Any) -> torch.Tensor:
    return -result.arrays.to_torch_state_dict()["weight"]


# --------------------------------------------------------------------------------- who is there


@pytest.mark.sample(2)
@pytest.mark.parametrize("mechanism", ["gaussian", "blt"])
def test_devices_appear_after_the_start_and_vanish(mechanism: str) -> None:
    plan = plan_with(mechanism)
    grid = Devices(plan, nodes(6))

    def come_and_go(row: dict[str, Any]) -> None:
        first = 3 * row["round"]
        for number in range(first, first + 12):
            grid.come(1000 * row["round"] + number, number)  # each time under another node id
        for node in [node for node in grid.contexts if node < 1000 * row["round"]]:
            del grid.contexts[node]

    result = start(plan, grid, watch=come_and_go, wait=60.0)
    assert result.stopped is None
    assert [row["clients"] for row in result.history] == [COHORT] * ROUNDS
    assert not any(row["refused"] for row in result.history)
    assert within_limits(grid.answered, plan)
    assert len(grid.answered) > 2 * COHORT
    assert result.guarantee.epsilon == pytest.approx(2.0, rel=1e-6)


@pytest.mark.long
def test_one_that_vanishes_after_it_was_asked_costs_the_others_nothing() -> None:
    plan = plan_with("gaussian", epsilon=None, std_over_clip=1e-5)

    class Vanishes(Devices):
        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            messages = list(messages)
            if messages[0].content.config_records[CONTROL]["stage"] == "reply":
                self.offline.add(messages[0].metadata.dst_node_id)
            return super().push_messages(messages)

    grid = Vanishes(plan, dict.fromkeys(range(100, 100 + COHORT), 0))
    for number, node in enumerate(list(grid.contexts)):
        grid.come(node, 8 * number)  # the same row, each
    result = start(plan, grid, 1)
    assert result.history[0]["clients"] == COHORT - 1
    assert float(moved(result)[0]) == pytest.approx((COHORT - 1) / COHORT, abs=1e-3)


def test_those_beyond_the_slots_are_not_asked_and_spend_nothing() -> None:
    plan = plan_with()
    grid = Devices(plan, nodes(50))
    start(plan, grid, 1)
    assert len(grid.asked) == COHORT
    left = [i for i in range(50) if states.folder_for("run", i).exists()]
    assert len(left) == COHORT


def test_a_silent_device_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "_REPLY_TIMEOUT_S", 0.3)
    plan = plan_with()

    class Silent(Devices):
        def pull_messages(self, ids: Iterable[str]) -> Iterable[Message]:
            awake = [i for i in ids if i in self.sent and self.sent[i].metadata.dst_node_id != 100]
            return super().pull_messages(awake)

    result = start(plan, Silent(plan, nodes(3)), 1)
    assert result.history[0]["clients"] == 2


def test_a_slow_device_is_heard_when_others_have_been_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its answer comes after the patience with it is over, and before the round begins."""
    monkeypatch.setattr(slots, "_REPLY_TIMEOUT_S", 0.05)
    plan = plan_with(cohort=2)

    class Slow(Devices):
        pulls = 0

        def pull_messages(self, ids: Iterable[str]) -> Iterable[Message]:
            self.pulls += 1
            ids = [i for i in ids if i in self.sent]
            slow = {i for i in ids if self.sent[i].metadata.dst_node_id == 100 and self.pulls < 12}
            return super().pull_messages([i for i in ids if i not in slow])

    result = start(plan, Slow(plan, nodes(2)), 1, wait=20.0)
    assert result.history[0]["clients"] == 2


def test_it_waits_for_those_who_come_late() -> None:
    plan = plan_with()

    class Late(Devices):
        looks = 0

        def get_node_ids(self) -> Iterable[int]:
            self.looks += 1
            if self.looks == 4:
                for number in range(COHORT):
                    self.come(200 + number, number)
            return super().get_node_ids()

    result = start(plan, Late(plan, {}), 1, wait=20.0)
    assert result.history[0]["clients"] == COHORT


def test_nobody_there_or_nobody_rested_ends_it() -> None:
    plan = plan_with()
    with pytest.raises(RoundAborted, match="within 0 s"):
        start(plan, Devices(plan, {}))
    resting = start(plan, Devices(plan, nodes(COHORT)))
    assert f"all {COHORT} devices that are there must rest" in resting.stopped
    assert len(resting.history) == 1


def test_a_device_needs_no_number() -> None:
    plan = plan_with()
    grid = Devices(plan, {})
    grid.come(7, None)
    assert start(plan, grid, 1).history[0]["clients"] == 1
    assert states.folder_for("run", 0).exists()


# ---------------------------------------------------------------------- one device, counted twice


def twice(plan: Plan) -> Any:
    """One device behind two node ids: both have its disk, and so its ledger."""
    grid = Devices(plan, {100: 0, 200: 0})
    return start(plan, grid, 1), grid


def test_a_device_under_two_node_ids_counts_once() -> None:
    """Its stored answer is for one slot: for another it is another order, and refused."""
    plan = plan_with("gaussian", epsilon=None, std_over_clip=1e-5)
    result, grid = twice(plan)
    assert grid.answered == {0: [0]}
    assert result.history[0]["clients"] == 1
    assert result.history[0]["refused"] == "1 times UnsoundPlan"
    assert float(moved(result)[0]) == pytest.approx(1 / COHORT, abs=1e-3)


def test_orders_that_are_alike_would_count_it_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: without the slot in the order, the stored bytes are sent for both."""
    usual = Sender.order

    def without(self: Sender, *arguments: Any) -> RecordDict:
        return usual(self, *arguments[:4])

    monkeypatch.setattr(Sender, "order", without)
    result, _ = twice(plan_with("gaussian", epsilon=None, std_over_clip=1e-5))
    assert float(moved(result)[0]) == pytest.approx(2 / COHORT, abs=1e-3)


def test_a_device_under_another_node_id_has_the_same_count() -> None:
    plan = plan_with()
    grid = Devices(plan, {100: 0})
    start(plan, grid, 1)
    grid.contexts.clear()
    grid.come(200, 0)
    with pytest.raises(RoundAborted, match="must rest"):
        start(plan, grid)
    assert isinstance(release(app_with(plan), plan, Broadcast(3, START)), bytes)
    assert release(app_with(plan), plan, Broadcast(4, START)) == "UnsoundPlan"


# ------------------------------------------------------------------------------ another plan


OTHERS: dict[str, dict[str, Any]] = {
    "more slots": {"cohort": 2 * COHORT},
    "other participation": {"participation": {"min_separation": 1, "at_most": ROUNDS}},
    "another clip": {"clip": 10.0},
    "less noise": {"epsilon": 8.0},
    "another adjacency": {"adjacency": "replace-one"},
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_a_server_with_another_plan_gets_nothing(other: dict[str, Any]) -> None:
    mine, theirs = plan_with("gaussian"), plan_with("gaussian", **other)
    grid = Devices(mine, nodes(8))
    with pytest.raises(RoundAborted, match=r"training \(BadReply\)"):
        start(theirs, grid)
    assert not grid.asked
    assert release(app_with(mine), theirs, Broadcast(0, START)) == "UnsoundPlan"


def test_a_listed_plan_with_as_many_clients_is_another_one() -> None:
    opened = plan_with("gaussian")
    listed = replace(opened, open=False)
    assert opened.fingerprint() != listed.fingerprint()
    assert release(app_with(opened), listed, Broadcast(0, START)) == "UnsoundPlan"


# ------------------------------------------------------------------------------ rows and answers


def longer(factor: int, node: int = 100) -> Any:
    def tamper(which: int, message: Message, reply: Message) -> Message:
        if which == node and REPLY in reply.content.array_records:
            import numpy as np

            array = reply.content.array_records[REPLY][UPDATE]
            kind = "<i4" if len(array.data) == 4 * START.numel() else "<i8"
            sent = np.frombuffer(array.data, kind).astype("<i8") * factor
            array.data, array.shape = sent.tobytes(), (8 * START.numel(),)
        return reply

    return tamper


@pytest.mark.parametrize("factor", [2, 10**9])
def test_a_row_beyond_the_clip_is_left_out(factor: int) -> None:
    plan = plan_with("gaussian", epsilon=None, std_over_clip=1e-5)
    grid = Devices(plan, {100: 0, 101: 8, 102: 16}, longer(factor))
    result = start(plan, grid, 1)
    assert result.history[0]["clients"] == 2
    assert result.history[0]["refused"].startswith("1 times a reply must ")
    assert float(moved(result)[0]) == pytest.approx(2 / COHORT, abs=1e-3)


@pytest.mark.parametrize("mechanism", ["gaussian", "discrete_gaussian", "tree", "banded", "blt"])
def test_a_row_as_long_as_the_clip_is_taken(mechanism: str) -> None:
    plan = plan_with(mechanism)
    assert start(plan, Devices(plan, nodes(8)), 2).history[-1]["clients"] == COHORT


def test_more_answers_than_slots_are_refused() -> None:
    plan = plan_with()
    context = plan.sum_context(Broadcast(0, START), -1)
    slots_of = {UPDATE: plan.cohort(UPDATE, plan.draw(0, 0))}
    session, _ = plain().begin(None, slots_of, {UPDATE: START.numel()}, context)
    zeros = {UPDATE: bytes(4 * START.numel())}
    for slot in range(COHORT):
        session = plain().add(session, slot, zeros)
    for slot in (0, COHORT, 10**6, -1):
        with pytest.raises(BadReply, match="expected, or has answered"):
            plain().add(session, slot, zeros)
    assert plan.denominator(UPDATE) == COHORT


# ------------------------------------------------------------------------- a server that goes back


def test_a_server_that_dies_in_a_round_counts_nobody_twice(tmp_path: Path) -> None:
    plan, folder = plan_with("banded"), tmp_path / "server"

    class Dies(Devices):
        dead = False

        def pull_messages(self, ids: Any) -> Any:
            found = list(super().pull_messages(ids))
            rounds = [r.content.config_records[CONTROL] for r in found]
            if not self.dead and any(c["stage"] == "reply" and c["round"] == 4 for c in rounds):
                self.dead = True
                raise KeyboardInterrupt
            return found

    grid = Dies(plan, nodes(40))
    with pytest.raises(KeyboardInterrupt):
        start(plan, grid, checkpoint=folder)
    result = start(plan, grid, checkpoint=folder)
    assert result.history[-1]["round"] == ROUNDS
    assert within_limits(grid.answered, plan)


def test_a_whole_older_folder_is_noticed_by_the_devices(tmp_path: Path) -> None:
    plan, folder = plan_with(), tmp_path / "server"
    start(plan, grid := Devices(plan, nodes(12)), 3, checkpoint=folder)
    shutil.copytree(folder, tmp_path / "backup")
    start(plan, grid, 6, checkpoint=folder)
    found = start(plan, grid, checkpoint=tmp_path / "backup")
    assert "more than 1 devices have answered rounds up to" in found.stopped
    assert len(found.history) == 3


@pytest.mark.parametrize(("liars", "stops"), [(1, False), (2, True)])
def test_devices_that_lie(liars: int, stops: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One cannot stop the others; more than ``colluders`` can, and the reason says what to do."""
    plan = plan_with(cohort=8)
    usual = responder._attended

    def lies(plan: Plan, training: str, node: Any) -> tuple[int, ...]:
        return (10**9,) if node.client < liars else usual(plan, training, node)

    monkeypatch.setattr(responder, "_attended", lies)
    if not stops:
        assert start(plan, Devices(plan, nodes(8)), 1).stopped is None
        return
    with pytest.raises(RoundAborted, match=r"raise privacy\.colluders if"):
        start(plan, Devices(plan, nodes(8)), 1)


# ----------------------------------------------------------------- what is said, and what refused


def test_the_sentence_says_what_it_counts_on() -> None:
    said = str(plan_with().guarantee())
    for words in (
        "for each client (zero-out)",
        "the server is trusted with the sums, and adds the noise",
        "takes part at most 3 times, at least 3 rounds apart (its own ledger refuses more",
        "an installation whose state is kept",
        "up to 4 of an open population are asked in a round",
        "whoever is there (which amplifies nothing, and is taken not to depend on anyone's data)",
    ):
        assert words in said


def test_a_recipe_trains_on_an_open_population(tmp_path: Path) -> None:
    """Its records are divided into 20 devices; the statement counts no participants."""
    data = {
        "source": "synthetic",
        "options": {"records": 200, "features": 4, "classes": 2},
        "partition": {"name": "iid", "clients": 20},
    }
    table = dict(plan_table(), cohort=4, participation={"min_separation": 3, "at_most": 1})
    result = dpfed.run(method="dp-fedgd", rounds=5, data=data, privacy=table)
    assert [row["clients"] for row in result.history] == [4] * 5
    assert "up to 4 of an open population" in result.guarantee.sentence
    facts = json.loads((result.save(tmp_path / "out") / "guarantee.json").read_text())
    assert facts["participants"] == 0
    again = load_recipe(tmp_path / "out" / "recipe.toml")
    assert again.privacy.cohort == 4


def test_a_listed_plan_says_none_of_it() -> None:
    table = {"epsilon": 2.0, "unit": "client", "trust": "central", "adjacency": "zero-out"}
    assert "open population" not in str(make_plan([1.0] * 4, rounds=2, privacy=table).guarantee())


SECURE = {"trust": "distributed", "participation": None}


@pytest.mark.parametrize(
    ("privacy", "sentence"),
    [
        ({"trust": "local", "participation": None}, "privacy.cohort must have central trust"),
        ({"unit": "record", "participation": None}, "privacy.cohort must have central trust"),
        (SECURE, "secure sums over cohorts of an open population are not built"),
        ({"participation": None}, "privacy.cohort must have privacy.participation, got none"),
        ({"adjacency": "add-remove"}, "displaces another one, so the sum changes by two clips"),
        ({"client_rate": 0.5}, "privacy.client_rate = 1"),
        ({"cohort": 0}, "privacy.cohort must be from 1 to 1,000,000, got 0"),
        ({"nominal": 5.0}, "nominal must be left out with privacy.cohort"),
        (
            {"mechanism": "clear", "epsilon": None},
            "one with an accounting for privacy.participation",
        ),
    ],
    ids=str,
)
def test_what_an_open_population_is_not_priced_with_is_refused(
    privacy: dict[str, Any], sentence: str
) -> None:
    given: dict[str, Any] = {
        "mechanism": "gaussian",
        "epsilon": 2.0,
        "unit": "client",
        "trust": "central",
        "adjacency": "zero-out",
        "participation": {"min_separation": 3, "at_most": 3},
        "cohort": COHORT,
        **privacy,
    }
    table = {name: value for name, value in given.items() if value is not None}
    more = {"sum": {"name": "secure"}} if privacy is SECURE else {}
    with pytest.raises((RecipeError, UnsoundPlan), match=re.escape(sentence)):
        make_plan([], rounds=ROUNDS, method="dp-fedgd", privacy=table, **more)


def test_sizes_of_clients_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"nominal.*out with privacy\.cohort"):
        make_plan([1.0] * 5, rounds=2, privacy=dict(plan_table(), cohort=4))


def plan_table() -> dict[str, Any]:
    return {
        "epsilon": 2.0,
        "unit": "client",
        "trust": Trust.CENTRAL.value,
        "adjacency": "zero-out",
        "participation": {"min_separation": 1, "at_most": 2},
    }


def test_a_device_more_takes_the_slot_of_another_which_add_remove_does_not_price() -> None:
    """Why add-remove is refused: with it and without it the mean differs by more than one clip."""
    plan = plan_with("gaussian", epsilon=None, std_over_clip=1e-5, cohort=1)
    ends = []
    for devices in ([Device(0)], [Device(0), Device(1)]):
        for seed in range(8):  # in some order the other one comes first
            seeded = replace(plan, noise=Noise(seed))
            *_, last = train(seeded, START, Population(seeded, devices), until=1)
            ends.append(last.state.params)
    apart = max(float((a - b).norm()) for a in ends[:8] for b in ends[8:])
    assert apart == pytest.approx(2**0.5, abs=1e-2)
    assert plan.denominator(UPDATE) * apart > plan.update.clip + 0.4
