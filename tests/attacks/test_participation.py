# SPDX-License-Identifier: Apache-2.0
"""A server that asks a device too early, too often, or after it has forgotten its past.

The device's own ledger says no (accounting/ledger/limits.py), in the turn in which it would enter.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord

from dpfed.accounting.ledger.ledger import Ledger
from dpfed.core.errors import ClientRefused, DataError, RecipeError, UnsoundPlan
from dpfed.core.types import UPDATE, Broadcast, Channel, Phase, Unit
from dpfed.flower import DPStrategy, client_app, make_plan
from dpfed.training.account import open_account
from dpfed.training.draft import Draft
from dpfed.training.inprocess import InProcess
from dpfed.training.plan import Plan
from dpfed.training.wire import responder
from dpfed.training.wire import state as states
from tests.attacks.asking import START, Silent, app_of, at_home, release
from tests.training.flower.local_grid import LocalGrid, nodes, refused

CLIENTS, ROUNDS = 8, 12
LIMITS = {"min_separation": 3, "at_most": 3}
ASKED = {UPDATE: {0: b""}}


@pytest.fixture(autouse=True)
def _node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_home(tmp_path, monkeypatch)


@pytest.fixture(params=[None, "phone"], ids=["own count", "owner's ledger"])
def dataset(request: pytest.FixtureRequest) -> Any:
    return request.param


def plan_with(mechanism: str = "tree", **privacy: Any) -> Plan:
    table = {
        "mechanism": mechanism,
        "epsilon": 2.0,
        "unit": "client",
        "trust": "central",
        "adjacency": "zero-out",
        "noise": "keyed",
        "participation": LIMITS,
        **privacy,
    }
    return make_plan([1.0] * CLIENTS, rounds=ROUNDS, method="dp-fedgd", privacy=table)


def crashed() -> None:
    """The device's process is gone: what it had in memory, too."""
    for ledger in responder._COUNTS.values():
        ledger.close()
    responder._COUNTS.clear()


def entries(client: int = 0) -> int:
    folder = states.folder_for("run", client)
    rows = Ledger(folder / "releases.sqlite", create=False).rows()
    return sum(row.body["kind"] == "entry" for row in rows)


# ----------------------------------------------------------------------- one device, any server


def test_too_early_is_refused_and_costs_nothing(dataset: Any) -> None:
    plan = plan_with()
    app = app_of(plan, dataset)
    got = {at: release(app, plan, Broadcast(at, START)) for at in range(1, 8)}
    assert {at for at, each in got.items() if isinstance(each, bytes)} == {1, 4, 7}
    assert {each for each in got.values() if isinstance(each, str)} == {"UnsoundPlan"}
    if dataset is None:
        assert entries() == 3


def test_too_often_is_refused(dataset: Any) -> None:
    plan = plan_with()
    app = app_of(plan, dataset)
    got = [release(app, plan, Broadcast(at, START)) for at in (0, 3, 6, 9)]
    assert [isinstance(each, bytes) for each in got] == [True] * 3 + [False]
    assert got[3] == "BudgetSpent"


def test_a_server_that_forgets_its_past_gets_no_answer(dataset: Any) -> None:
    """It begins at round 0 again, in the same training: each round, each attempt, any model."""
    plan = plan_with()
    assert isinstance(release(app_of(plan, dataset), plan, Broadcast(5, START)), bytes)
    crashed()
    app = app_of(plan, dataset)
    for at in range(8):
        for attempt in (0, 1, 2):
            asked = Broadcast(at, START + at + 0.5, attempt=attempt)
            assert release(app, plan, asked) == "UnsoundPlan"
    assert isinstance(release(app, plan, Broadcast(8, START)), bytes)


def test_the_same_order_gives_the_stored_bytes_and_a_new_attempt_nothing(dataset: Any) -> None:
    """An answer that was lost counts: the device cannot know that it was."""
    plan = plan_with()
    first = release(app_of(plan, dataset), plan, Broadcast(2, START))
    crashed()
    app = app_of(plan, dataset)
    assert release(app, plan, Broadcast(2, START)) == first
    assert release(app, plan, Broadcast(2, START, attempt=1)) == "UnsoundPlan"
    assert release(app, plan, Broadcast(2, START + 1)) == "UnsoundPlan"


def test_an_answer_that_was_entered_and_never_left_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_with()
    with monkeypatch.context() as broken:
        broken.setattr(responder.StoredReply, "write", lambda *_: 1 / 0)
        assert release(app_of(plan), plan, Broadcast(2, START)) == "ClientError"
    crashed()
    app = app_of(plan)
    assert release(app, plan, Broadcast(4, START)) == "UnsoundPlan"
    assert isinstance(release(app, plan, Broadcast(5, START)), bytes)


def test_whether_it_refuses_depends_on_no_record() -> None:
    """Data that cannot even be read: the same rounds are answered, with zero rows."""

    class Broken(Silent):
        def rows(self, params: Any, unit: Unit) -> Any:
            raise RuntimeError("a record")

        gradient = rows  # type: ignore[assignment]

    plan = plan_with()
    for problem in (Silent(), Broken()):
        app = client_app(lambda _, p=problem: p, plan)
        got = [isinstance(release(app, plan, Broadcast(at, START)), bytes) for at in (0, 1, 3, 4)]
        assert got == [True, False, True, False]
        crashed()
        shutil.rmtree(states.folder_for("run", 0))


@pytest.mark.parametrize("mechanism", ["gaussian", "tree", "banded"])
def test_the_ledger_enters_what_the_plan_costs_and_no_more(mechanism: str) -> None:
    """Each time its share; all times together are the plan's price."""
    plan = plan_with(mechanism)
    app = app_of(plan, "phone")
    for at in (0, 3, 6):
        release(app, plan, Broadcast(at, START))
    named = open_account("phone")
    assert named is not None
    spent = named.ledger.spent(named.key(plan, 0))
    assert spent.epsilon(plan.delta, plan.update.adjacency) == pytest.approx(2.0, rel=1e-6)
    assert named.ledger.verify() == []


# ------------------------------------------------------------------------- through Flower's grid


class Phones(LocalGrid):
    """Devices that count what they answered; each node is one."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(client_app(lambda _: Silent(), plan), nodes(CLIENTS))


def start(plan: Plan, grid: LocalGrid, rounds: int = ROUNDS, **more: Any) -> Any:
    strategy = DPStrategy(plan, training="run", wait=0.0, wait_lost=0.0, **more)
    return strategy.start(grid, ArrayRecord({"weight": START.clone()}), num_rounds=rounds)


def test_devices_take_turns_and_refuse_nothing_of_a_server_that_keeps_to_it() -> None:
    plan = plan_with("blt")
    result = start(plan, Phones(plan))
    assert [row["round"] for row in result.history] == list(range(1, ROUNDS + 1))
    assert all(not row["refused"] and row["clients"] == 2 for row in result.history)
    assert result.guarantee.epsilon == pytest.approx(2.0, rel=1e-6)
    said = str(result.guarantee)
    assert "takes part at most 3 times, at least 3 rounds apart (its own ledger refuses" in said
    assert "an installation whose state is kept" in said
    assert "(the server is trusted with the sums, and adds the noise)" in said


def test_a_server_that_asks_everybody_always_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_with()
    monkeypatch.setattr(Draft, "draw", lambda *_: tuple(range(CLIENTS)))
    result = start(plan, Phones(plan))
    answered = [row for row in result.history if not row["aborted"]]
    assert [row["clients"] for row in answered] == [CLIENTS]
    assert refused(result.history[1]) == dict.fromkeys(range(CLIENTS), "UnsoundPlan")


def test_a_server_that_dies_in_a_round_gets_the_stored_bytes(tmp_path: Path) -> None:
    """Before its commit: nobody saw the total, and the same attempt goes on with the same bytes."""
    plan, folder = plan_with("banded"), tmp_path / "server"

    class Dies(Phones):
        def pull_messages(self, ids: Any) -> Any:
            replies = super().pull_messages(ids)
            if any(self._round(each) == 4 for each in replies) and not self.dead:
                self.dead = True
                raise KeyboardInterrupt
            return replies

        dead = False

        def _round(self, reply: Any) -> int:
            control = reply.content.config_records["dpfed"]
            return int(control.get("round", -1)) if control.get("stage") == "reply" else -1

    grid = Dies(plan)
    with pytest.raises(KeyboardInterrupt):
        start(plan, grid, checkpoint=folder)
    resumed = start(plan, grid, checkpoint=folder)
    assert [row["round"] for row in resumed.history] == list(range(1, ROUNDS + 1))
    assert not any(row["refused"] or row["aborted"] for row in resumed.history)
    straight = start(replace_name(plan), Phones(plan), checkpoint=tmp_path / "other")
    assert same(resumed, straight)


def replace_name(plan: Plan) -> Plan:
    """The same plan for devices that have answered nothing."""
    for client in range(CLIENTS):
        shutil.rmtree(states.folder_for("run", client), ignore_errors=True)
    crashed()
    return plan


def same(one: Any, other: Any) -> bool:
    a, b = (each.arrays.to_torch_state_dict()["weight"] for each in (one, other))
    return torch.equal(a, b)


def test_an_older_checkpoint_beside_what_was_asked_is_refused(tmp_path: Path) -> None:
    plan, folder = plan_with(), tmp_path / "server"
    start(plan, grid := Phones(plan), 3, checkpoint=folder)
    kept = (folder / "progress.safetensors").read_bytes()
    start(plan, grid, 6, checkpoint=folder)
    (folder / "progress.safetensors").write_bytes(kept)
    with pytest.raises(DataError, match=r"round 3, and clients.*round 5"):
        start(plan, grid, checkpoint=folder)


def test_a_whole_older_folder_is_noticed_by_the_devices(tmp_path: Path) -> None:
    """Those who have not answered since would; the others say so when they enrol."""
    plan, folder = plan_with(), tmp_path / "server"
    start(plan, grid := Phones(plan), 3, checkpoint=folder)
    shutil.copytree(folder, tmp_path / "backup")
    start(plan, grid, 6, checkpoint=folder)
    found = start(plan, grid, checkpoint=tmp_path / "backup")
    assert "clients have answered rounds up to 5, and this server is at round 3" in found.stopped
    assert len(found.history) == 3


def test_one_device_that_lies_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_with()
    usual = responder._attended

    def lies(plan: Plan, training: str, node: Any) -> tuple[int, ...]:
        return (10**9,) if node.client == 0 else usual(plan, training, node)

    monkeypatch.setattr(responder, "_attended", lies)
    result = start(plan, Phones(plan))
    assert result.stopped is None
    assert len(result.history) == ROUNDS


# ------------------------------------------------------------------------------- in one process


def test_in_one_process_clients_refuse_too() -> None:
    plan = plan_with()
    engine = InProcess(plan, [Silent()] * CLIENTS)

    def got(at: int, attempt: int = 0) -> Any:
        ((_, found),) = engine.exchange(Broadcast(at, START, attempt=attempt), "reply", ASKED)
        return str(found) if isinstance(found, ClientRefused) else bytes

    assert [got(at) for at in (0, 1, 3, 2, 6, 9)] == [
        bytes,
        "UnsoundPlan",
        bytes,
        "UnsoundPlan",
        bytes,
        "BudgetSpent",
    ]


# ----------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("privacy", "sentence"),
    [
        ({"trust": "local"}, "participation must have unit 'client', central trust"),
        ({"unit": "record"}, "participation must have unit 'client', central trust"),
        ({"client_rate": 0.5}, "privacy.client_rate = 1"),
        ({"participation": {"min_separation": 9, "at_most": 2}}, "clients must be at least 9"),
        (
            {"mechanism": "clear", "epsilon": None},
            "one with an accounting for privacy.participation",
        ),
        ({"options": {"participation": None}}, "set privacy.participation"),
        ({"participation": {"min_separation": 0, "at_most": 2}}, "at least 1, got 0"),
        ({"participation": {"min_separation": 2}}, "participation.at_most"),
        ({"participation": {"min_separation": 2, "at_most": 2, "k": 1}}, "has no field 'k'"),
    ],
    ids=str,
)
def test_what_participation_is_not_priced_with_is_refused(privacy: Any, sentence: str) -> None:
    with pytest.raises((RecipeError, UnsoundPlan), match=re.escape(sentence)):
        plan_with(**privacy)


def test_a_method_whose_rounds_differ_is_refused() -> None:
    """Its steps would not be the rounds that devices count."""
    late = Channel((Phase(1, 0), Phase(None, 1)))
    plan = plan_with()
    client = plan.client._replace(channels={UPDATE: late, "warm": Channel((Phase(1, 1),))})
    with pytest.raises(UnsoundPlan, match="each round where noise"):
        replace(plan, client=client, channels={UPDATE: plan.update, "warm": plan.update})


def test_channels_that_count_otherwise_are_refused() -> None:
    plan = plan_with("gaussian")
    warm = Channel((Phase(None, 1),))
    client = plan.client._replace(channels={UPDATE: Channel(), "warm": warm})
    other = plan.update.with_facts(participation=None)
    with pytest.raises(UnsoundPlan, match=r"channels.*share privacy\.participation"):
        replace(plan, client=client, channels={UPDATE: plan.update, "warm": other})
