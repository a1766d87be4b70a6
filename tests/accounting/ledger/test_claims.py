# SPDX-License-Identifier: Apache-2.0
"""Two trainings at once: of those that do not fit together, the second is refused whole."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dpfed.accounting.ledger import enquiries
from dpfed.accounting.ledger.balance import CLAIM_LIFETIME_S, Budget
from dpfed.accounting.ledger.conversions import LedgerKey
from dpfed.accounting.ledger.journal import Row
from dpfed.accounting.ledger.ledger import Ledger
from dpfed.accounting.ledger.request import ChannelRequest, Request
from dpfed.accounting.ledger.verification import wrong_sums
from dpfed.core.errors import BudgetSpent, UnsoundPlan
from dpfed.core.types import UPDATE
from dpfed.training.account import Account
from dpfed.training.flower.client import client_app
from dpfed.training.flower.strategy import DPStrategy
from tests.helpers.ledgers import BUDGET, DRAWN, KEY, TENTH, ZERO, request
from tests.helpers.rounds import client_states, make_plan
from tests.helpers.strategies import INITIAL
from tests.training.flower.local_grid import LocalGrid, become_a_server, nodes


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path / "ledger.sqlite")
    made.declare(KEY, BUDGET)  # ten releases of TENTH
    return made


def training(name: str, rounds: int, at: int = -1, **changes: Any) -> Request:
    """A whole training, or its round ``at``."""
    parts = {UPDATE: ChannelRequest(TENTH, int(at >= 0), rounds)}
    named = {"training": name, "plan": f"plan of {name}", "parts": parts}
    return request(max(at, 0), **{**named, **changes})


def kinds(ledger: Ledger) -> list[str]:
    return [row.body["kind"] for row in ledger.rows()]


def test_of_two_trainings_that_fit_one_by_one_the_second_is_refused_whole(ledger: Ledger) -> None:
    ledger.claim(training("a", 6))
    with pytest.raises(BudgetSpent, match="enrolled trainings may still"):
        ledger.claim(training("b", 6))
    ledger.claim(training("small", 4))  # it fits beside the first one, and exactly
    for at in range(6):
        ledger.begin(training("a", 6, at))
    for at in range(4):
        ledger.begin(training("small", 4, at))
    assert ledger.verify() == []
    assert kinds(ledger)[:3] == ["budget", "claim", "claim"]


def test_a_claim_is_durable(ledger: Ledger) -> None:
    ledger.claim(training("a", 6))
    ledger.close()
    with pytest.raises(BudgetSpent):
        Ledger(ledger.path).claim(training("b", 6))


def test_two_that_enrol_at_the_same_moment_are_not_both_admitted(ledger: Ledger) -> None:
    names, admitted = [f"t{i}" for i in range(6)], list[str]()
    barrier = threading.Barrier(len(names))

    def enrol(name: str) -> None:
        own = Ledger(ledger.path)
        barrier.wait(10)
        try:
            own.claim(training(name, 6))
            admitted.append(name)
        except BudgetSpent:
            pass
        own.close()

    threads = [threading.Thread(target=enrol, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(admitted) == 1


def test_who_did_not_enrol_takes_nothing_that_is_kept_for_another(ledger: Ledger) -> None:
    """A server that leaves enrolment out ends its own training in the middle, and nobody else's."""
    ledger.claim(training("a", 8))
    for at in range(2):
        ledger.begin(training("b", 5, at))
    with pytest.raises(BudgetSpent):
        ledger.begin(training("b", 5, 2))
    for at in range(8):
        ledger.begin(training("a", 8, at))


def test_what_was_released_is_not_kept_twice(ledger: Ledger) -> None:
    ledger.claim(training("a", 6))
    for at in range(6):
        ledger.begin(training("a", 6, at))
    ledger.claim(training("b", 4))
    ledger.claim(training("a", 6))  # it has nothing more to spend, and may ask all the same


def test_a_training_enrols_as_often_as_it_likes(ledger: Ledger) -> None:
    for _ in range(5):
        ledger.claim(training("a", 10))
    assert kinds(ledger) == ["budget", "claim"]
    with pytest.raises(BudgetSpent):
        ledger.claim(training("a", 11, plan="plan of a"))  # another plan, larger than what is left


def test_a_training_that_has_ended_gives_back_what_is_left(ledger: Ledger) -> None:
    ledger.claim(training("a", 8))
    ledger.begin(training("a", 8, 0))
    with pytest.raises(BudgetSpent):
        ledger.claim(training("b", 9))
    assert ledger.waive("adult", "nobody") == 0
    assert ledger.waive("adult", "a") == 1
    ledger.claim(training("b", 9))
    assert ledger.verify() == []


def test_a_training_without_a_sign_of_life_lapses(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.claim(training("a", 8))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 0.9 * CLAIM_LIFETIME_S)
    ledger.begin(training("a", 8, 0))
    monkeypatch.setattr(time, "time", lambda: now + 1.8 * CLAIM_LIFETIME_S)
    with pytest.raises(BudgetSpent):
        ledger.claim(training("b", 8))  # a release was a sign of life
    monkeypatch.setattr(time, "time", lambda: now + 2.0 * CLAIM_LIFETIME_S)
    ledger.claim(training("b", 8))
    with pytest.raises(BudgetSpent):
        ledger.claim(training("a", 8))


def test_a_drawn_training_is_kept_free_until_it_is_reserved(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.declare(ZERO, Budget(2.0, 1e-5))

    def drawn(name: str, at: int = -1) -> Request:
        parts = {UPDATE: ChannelRequest(DRAWN, int(at >= 0), 200)}
        return training(name, 0, at, key=ZERO, parts=parts)

    ledger.claim(drawn("a"))
    with pytest.raises(BudgetSpent):
        ledger.claim(drawn("b"))
    ledger.begin(drawn("a", 0))
    with pytest.raises(BudgetSpent):
        ledger.claim(drawn("b"))
    assert ledger.verify() == []


def test_a_claim_that_a_new_budget_cannot_count_blocks_nobody(ledger: Ledger) -> None:
    ledger.claim(training("a", 6))
    person = LedgerKey("adult", unit=make_plan().update.unit.GROUP)
    ledger.declare(person, BUDGET)
    with pytest.raises(UnsoundPlan):
        ledger.begin(training("a", 6, 0))
    ledger.claim(training("b", 10, key=person))


def test_without_a_budget_nothing_is_kept(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.claim(training("a", 6))
    assert kinds(ledger) == []


# --------------------------------------------------------------------------------- over Flower


@pytest.fixture
def silo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Account:
    """An owner's account with room for 1.5 of ``make_plan()``."""
    monkeypatch.setenv("DPFED_STATE", str(tmp_path / "state"))
    become_a_server(monkeypatch)
    made = Account(Ledger(tmp_path / "owner.sqlite"), "ward", divided=False)
    plan = make_plan()
    key = made.key(plan, 0)
    cost = plan.guarantee().claims[0].epsilon
    made.ledger.declare(key, Budget(1.2 * cost, plan.delta))
    return made


def grid_for(plan: Any, silo: Account) -> LocalGrid:
    """Three nodes, of which the first one's owner has a budget."""
    problems = [member.problem for member in client_states().values()]
    ledgers = {0: silo}
    app = client_app(
        lambda context: problems[context.node_config["partition-id"]],
        plan,
        lambda context: ledgers.get(context.node_config["partition-id"]),
    )
    return LocalGrid(app, nodes(len(problems)))


def test_a_training_that_ends_early_leaves_room_for_the_next(silo: Account) -> None:
    """The second one would not fit beside what the first one had enrolled for."""
    plan, other = make_plan(), make_plan(rounds=3)
    DPStrategy(plan, training="first").start(grid_for(plan, silo), INITIAL, num_rounds=1)
    assert kinds(silo.ledger) == ["budget", "claim", "entry", "confirm", "waive"]
    last = DPStrategy(other, training="second").start(grid_for(other, silo), INITIAL)
    assert last.stopped is None
    assert [row["clients"] for row in last.history] == [3, 3, 3]


def test_a_training_that_played_to_its_end_sends_nothing_more(silo: Account) -> None:
    plan = make_plan()
    DPStrategy(plan, training="first").start(grid_for(plan, silo), INITIAL)
    assert kinds(silo.ledger) == ["budget", "claim", *["entry", "confirm"] * 4]


def test_a_spare_attempt_that_was_not_used_is_free_again(silo: Account) -> None:
    plan = make_plan(rounds=3, spare=1)
    DPStrategy(plan, training="first").start(grid_for(plan, silo), INITIAL)
    assert kinds(silo.ledger) == ["budget", "claim", *["entry", "confirm"] * 3, "waive"]


def test_a_claim_whose_cost_is_not_that_of_its_event_is_found(ledger: Ledger) -> None:
    ledger.claim(training("a", 6))
    budget, claim = ledger.rows()
    forged = Row(claim.number, {**claim.body, "mu_squared": 0.0}, claim.hash)
    assert list(wrong_sums([budget, claim])) == []
    assert "row 2 states mu^2 = 0" in next(iter(wrong_sums([budget, forged])))


def test_a_server_that_enrols_and_leaves_without_end_does_not_fill_the_ledger(
    silo: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enquiries, "MAX_ENROLMENTS_PER_DAY", 3)
    for _ in range(3):
        silo.admit(make_plan(), "hostile", 0)
        silo.leave("hostile")
    for _ in range(2):
        with pytest.raises(UnsoundPlan, match="at most 3 in a day"):
            silo.admit(make_plan(), "hostile", 0)
        silo.leave("hostile")
    assert kinds(silo.ledger) == ["budget", *["claim", "waive"] * 3]
