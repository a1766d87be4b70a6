# SPDX-License-Identifier: Apache-2.0
"""What the handler of the data answers, without a process: by rule, refused, zero rows."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict
from typer.testing import CliRunner

from dpfed.accounting import gdp
from dpfed.accounting.ledger.ledger import Ledger
from dpfed.cli.main import app
from dpfed.cli.silo_text import days_of, proposal, state_of, verdict
from dpfed.core.dsse import Statement, open_statement
from dpfed.core.errors import DataError, DpfedError
from dpfed.core.flower_private import from_bytes
from dpfed.recipes.terms import Terms, read_terms
from dpfed.silo.handler import RequestHandler
from dpfed.silo.policy import load_policy
from dpfed.sums.secagg.identity import own_key
from dpfed.training.plan import Plan
from dpfed.training.wire.codec import CONTROL
from dpfed.training.wire.evidence import FIRST, Asked, commitment, link, receipt_for
from tests.helpers.handlers import (
    _own_environment,  # noqa: F401
    approved,
    enrolment,
    handler,
    looked_at,
    order,
    said,
    sent,
)
from tests.helpers.one_door import watched
from tests.silo.gates import FEATURES, RECORDS, Silo, terms_for


def test_an_order_under_approved_terms_is_answered_and_entered(tmp_path: Path) -> None:
    held, terms = approved(tmp_path)
    assert "error" not in said(held.reply(order(terms)))
    data = held.policy.data["sepsis"]
    cost = Ledger(held.state / "ledger.sqlite").spent(data.key("sepsis"))
    assert 0 < cost.epsilon(data.delta, data.adjacency) < 2


def test_a_gates_release_passes_the_one_door(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, terms = approved(tmp_path)
    door = watched(monkeypatch)
    assert "error" not in said(held.reply(order(terms)))
    assert "error" not in said(held.reply(order(terms, round=1)))
    assert door.passed == door.released == 2


def test_orders_under_other_terms_are_refused_and_cost_nothing(tmp_path: Path) -> None:
    held, terms = approved(tmp_path)
    other = read_terms(terms_for(tmp_path, 3, name="other").read_bytes())
    louder = read_terms(terms_for(tmp_path, 3, privacy={"epsilon": 3.0}).read_bytes())
    for asked in (other, louder):
        assert said(held.reply(order(asked)))["error"] == "UnsoundPlan"
    held.approvals.revoke(terms.name)
    assert said(held.reply(order(terms)))["error"] == "UnsoundPlan"
    rows = Ledger(held.state / "ledger.sqlite").rows()
    assert "entry" not in {row.body["kind"] for row in rows}
    assert "under names that are not approved: 1 refused" in state_of(held)


def test_an_approval_does_not_outlast_the_policy_that_allowed_it(tmp_path: Path) -> None:
    held, terms = approved(tmp_path)
    assert "error" not in said(held.reply(order(terms)))
    stricter = Silo(tmp_path / "silo", 0)
    stricter.write(most_rounds=2)
    held.policy = load_policy(stricter.policy)
    assert said(held.reply(order(terms, round=1)))["error"] == "UnsoundPlan"


def test_the_silos_state_is_its_owners_alone(tmp_path: Path) -> None:
    assert handler(tmp_path).state.stat().st_mode & 0o777 == 0o700


def test_beyond_the_owners_budget_nothing_is_answered(tmp_path: Path) -> None:
    text = terms_for(tmp_path, 3).read_text()
    held, terms = handler(tmp_path, epsilon=1.9), read_terms(text)  # the terms ask for 2
    held.approvals.approve(terms, text, days=1, by="root")
    errors = [said(held.reply(order(terms, round=at))).get("error") for at in range(3)]
    assert errors == [None, None, "BudgetSpent"]


def test_a_thousand_repeats_give_one_answer_and_one_entry(tmp_path: Path) -> None:
    held, terms = approved(tmp_path)
    replies = {held.reply(order(terms)) for _ in range(50)}
    assert len(replies) == 1
    for attempt in range(1, 20):
        held.reply(order(terms, attempt=attempt))
    booked = [r for r in Ledger(held.state / "ledger.sqlite").rows() if r.body["kind"] == "entry"]
    assert len(booked) == terms.plan.attempts


def test_enrolment_and_refusals_are_the_same_bytes_for_neighbours(tmp_path: Path) -> None:
    answers = []
    for change in (0.0, 1e30, float("nan")):
        folder = tmp_path / f"{change}"
        (folder / "silo").mkdir(parents=True)
        x, y = np.ones((RECORDS, FEATURES), np.float32), np.zeros(RECORDS, np.int64)
        x[0], y[0] = change, 0 if change == 0 else 2
        np.savez(folder / "silo" / "data.npz", x=x, y=y)
        state = folder / "silo" / "state"
        state.mkdir()
        if answers:  # the same owner's
            shutil.copy(tmp_path / "0.0/silo/state/identity.key", state)
        held, terms = approved(folder)
        enrolled = said(held.reply(enrolment(terms.name)))
        answers.append(
            [
                len(enrolled.pop("head")),  # sealed anew each time: test_heads.py opens it
                enrolled,
                held.reply(enrolment("unknown")),
                held.reply(order(terms, round=99)),
                held.reply(b"\x00garbage"),
                len(held.reply(order(terms))),
            ]
        )
    assert answers[0] == answers[1] == answers[2]


def test_terms_of_an_enrolment_are_approved_by_rule_within_the_week(tmp_path: Path) -> None:
    rule: dict[str, Any] = {"approve": "within-policy", "most_epsilon": 2.0, "week_epsilon": 3.0}
    held = handler(tmp_path, **rule)
    texts = {n: terms_for(tmp_path, 3, name=n).read_text() for n in ("first", "second")}
    assert said(held.reply(enrolment("first", texts["first"])))["client"] == 0
    assert said(held.reply(enrolment("second", texts["second"])))["error"] == "UnsoundPlan"
    louder = terms_for(tmp_path, 3, name="third", privacy={"epsilon": 2.1}).read_text()
    assert said(held.reply(enrolment("third", louder)))["error"] == "UnsoundPlan"
    assert [each.name for each in held.approvals.all()] == ["first"]


def test_a_week_is_counted_in_the_owners_own_terms(tmp_path: Path) -> None:
    """Terms of a large delta say a small epsilon; before, a week took any number of them."""
    rule: dict[str, Any] = {"approve": "within-policy", "most_epsilon": 4.0, "week_epsilon": 4.0}
    held, privacy = handler(tmp_path, **rule), {"epsilon": 1.0, "delta": 0.01, "noise": "keyed"}
    refusals = []
    for name in ("first", "second", "third"):
        text = terms_for(tmp_path, 3, name=name, privacy=privacy).read_text()
        assert read_terms(text).plan.guarantee().claims[0].epsilon <= 1.0
        refusals.append(said(held.reply(enrolment(name, text))).get("error"))
    assert refusals == [None, "UnsoundPlan", "UnsoundPlan"]


def test_terms_that_cost_next_to_nothing_do_not_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpfed.silo.handler._MIN_WEEK_FRACTION", 0.25)  # else a hundred in a week
    rule: dict[str, Any] = {"approve": "within-policy", "most_epsilon": 2.0, "week_epsilon": 2.0}
    held = handler(tmp_path, **rule)
    privacy = {"std_over_clip": 1e7, "noise": "keyed"}
    for at in range(7):
        text = terms_for(tmp_path, 3, name=f"small-{at}", privacy=privacy).read_text()
        held.reply(enrolment(f"small-{at}", text))
    assert len(held.approvals.all()) == 4


def test_by_hand_no_work_is_done_for_terms_that_come_with_an_enrolment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, text = handler(tmp_path), terms_for(tmp_path, 3).read_text()
    monkeypatch.setattr(RequestHandler, "permitted", lambda *_: pytest.fail("looked at"))
    assert said(held.reply(enrolment("gated", text)))["error"] == "UnsoundPlan"


def test_a_page_names_the_method_that_is_run(tmp_path: Path) -> None:
    """Terms may name one method, and give the algorithm of another."""
    held, terms = approved(tmp_path)
    assert "method    dp-fedgd, 3 rounds" in proposal(held, terms)
    held = handler(tmp_path, methods=["dp-fedgd", "dp-scaffold"])
    other = terms_for(tmp_path, 3, client={"name": "scaffold", "steps": 2})
    page = proposal(held, read_terms(other.read_bytes()))
    assert "method    scaffold with gaussian noise, 3 rounds" in page
    assert "and this one costs 2 by itself" in page


def test_the_clients_number_is_the_owners(tmp_path: Path) -> None:
    text = terms_for(tmp_path, 3).read_text()
    held = handler(tmp_path, client=2)
    held.approvals.approve(read_terms(text), text, days=1, by="root")
    control = ConfigRecord({"stage": "enrol", "training": "gated", "client": 1})
    assert said(held.reply(sent(RecordDict({CONTROL: control}))))["client"] == 2


def test_by_hand_no_enrolment_approves_anything(tmp_path: Path) -> None:
    text = terms_for(tmp_path, 3).read_text()
    ceilings: dict[str, Any] = {"most_epsilon": 2.0, "week_epsilon": 3.0}
    for held in (handler(tmp_path), handler(tmp_path, **ceilings)):
        assert said(held.reply(enrolment("gated", text)))["error"] == "UnsoundPlan"
        assert held.approvals.all() == []


def test_terms_outside_of_the_policy_are_not_approved_by_rule(tmp_path: Path) -> None:
    rule: dict[str, Any] = {"approve": "within-policy", "most_epsilon": 2.0, "week_epsilon": 30.0}
    held = handler(tmp_path, **rule)
    changes: list[dict[str, Any]] = [{"rounds": 101}, {"privacy": {"epsilon": 2.1}}]
    for change in changes:
        text = terms_for(tmp_path, 3, **change).read_text()
        assert said(held.reply(enrolment("gated", text)))["error"] == "UnsoundPlan"
        assert held.approvals.all() == []


def test_terms_that_come_with_an_order_are_not_read(tmp_path: Path) -> None:
    rule: dict[str, Any] = {"approve": "within-policy", "most_epsilon": 2.0, "week_epsilon": 30.0}
    held, text = handler(tmp_path, **rule), terms_for(tmp_path, 3).read_text()
    content = from_bytes(order(read_terms(text)))
    content.config_records[CONTROL]["terms"] = text
    assert said(held.reply(sent(content)))["error"] == "UnsoundPlan"
    assert held.approvals.all() == []


def test_what_the_owner_revoked_no_rule_approves_again(tmp_path: Path) -> None:
    rule: dict[str, Any] = {"approve": "within-policy", "most_epsilon": 2.0, "week_epsilon": 30.0}
    held, text = handler(tmp_path, **rule), terms_for(tmp_path, 3).read_text()
    assert "error" not in said(held.reply(enrolment("gated", text)))
    held.approvals.revoke("gated")
    assert said(held.reply(enrolment("gated", text)))["error"] == "UnsoundPlan"


def test_zero_rows_are_answered_where_the_first_answer_died(tmp_path: Path) -> None:
    """The entry is there, and nothing has left: the second answer has full noise, and no data."""
    held, terms = approved(tmp_path, privacy={"epsilon": 2.0, "noise": "os"})

    class Died(BaseException):
        pass

    _, problem = held.training(terms.name)

    def die(*_: object) -> None:
        raise Died

    object.__setattr__(problem, "rows", die)
    with pytest.raises(Died):
        held.reply(order(terms))
    again = held.reply(order(terms), zero_rows=True)
    assert "error" not in said(again)
    assert held.reply(order(terms), zero_rows=True) == again  # stored
    rows = Ledger(held.state / "ledger.sqlite").rows()
    assert [row.body["kind"] for row in rows].count("entry") == 1


def test_zero_rows_are_no_second_answer_to_what_has_left(tmp_path: Path) -> None:
    """Its stored bytes are forgotten after the next attempt; an order that kills comes too late."""
    held, terms = approved(tmp_path, privacy={"epsilon": 2.0, "noise": "os", "spare_attempts": 2})
    first = held.reply(order(terms))
    assert held.reply(order(terms), zero_rows=True) == first  # while it is stored
    assert "error" not in said(held.reply(order(terms, attempt=1)))
    assert said(held.reply(order(terms), zero_rows=True))["error"] == "UnsoundPlan"
    rows = Ledger(held.state / "ledger.sqlite").rows()
    assert [row.body["kind"] for row in rows].count("entry") == 2


def test_data_of_another_shape_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data.sepsis.shape must be \[6\]"):
        handler(tmp_path, shape=[5])


def test_an_officer_reads_what_it_costs_who_sees_and_how_much_is_left(tmp_path: Path) -> None:
    held, terms = approved(tmp_path)
    page = proposal(held, terms)
    assert "(2, 1e-05)-DP for each record" in page
    assert "the server sees this silo's releases, each with its noise" in page
    assert "epsilon 0 is spent so far" in page
    held.reply(order(terms))
    assert "answered" in days_of(held)
    louder = read_terms(terms_for(tmp_path, 3, rounds=101).read_bytes())
    with pytest.raises(DpfedError, match="most_rounds"):
        proposal(held, louder)


def test_a_verdict_says_if_it_fits_what_is_left_and_both_sizes(tmp_path: Path) -> None:
    held, terms = approved(tmp_path, sizes=[100.0] * 3)
    found = verdict(held, terms)
    assert found.refused == ""
    mu = math.sqrt(gdp.mu_for(4.0, 1e-5) ** 2 - gdp.mu_for(2.0, 1e-5) ** 2)
    assert gdp.epsilon_for(1e-5, mu) == pytest.approx(3.2765, abs=5e-4)
    assert found.lines == (
        "sizes     the terms declare 100 records, and 90 are here (for you alone); sums are "
        "divided by the declared number",
        "after it  epsilon 2 of (4, 1e-05) is spent or kept for enrolled trainings, and 3.276 is "
        "left for one more training: it FITS the budget",
        "verdict   it can run",
    )
    held.reply(order(terms))  # a part of it is spent, and counts once
    assert verdict(held, terms).lines[1] == found.lines[1]
    other = read_terms(terms_for(tmp_path, 3, name="other", privacy={"epsilon": 3.99}).read_text())
    again = verdict(held, other)
    assert "would be with this one; ask for less, or raise data.sepsis.epsilon" in again.refused
    assert again.lines[-1] == "verdict   it CANNOT run"


def test_a_verdict_counts_what_is_kept_for_others(tmp_path: Path) -> None:
    held, terms = approved(tmp_path)
    other = read_terms(terms_for(tmp_path, 3, name="other", privacy={"epsilon": 3.4}).read_text())
    assert verdict(held, other).refused == ""
    held.reply(enrolment(terms.name))
    assert "epsilon 2 is spent or kept" in verdict(held, other).refused


@pytest.mark.parametrize(
    ("gate", "data", "changes", "words"),
    [
        ({"most_bytes": 65_600}, {}, {}, "gate.most_bytes is 65,600; raise it"),
        ({}, {"epsilon": 1.9}, {}, "does not suffice: epsilon 0 is spent"),
        (
            {},
            {"unit": "group"},
            {"privacy": {"epsilon": 2.0, "noise": "keyed", "unit": "group"}},
            "names no persons",
        ),
        ({}, {"shape": [5]}, {}, "data.sepsis.shape must be [6]"),
        ({}, {"load": {"source": "/none.npz"}}, {}, "the data cannot be used: '/none.npz'"),
    ],
)
def test_what_cannot_run_is_refused_with_its_reason(
    tmp_path: Path, gate: dict[str, Any], data: dict[str, Any], changes: dict[str, Any], words: str
) -> None:
    silo = Silo(tmp_path / "silo", 0)
    silo.write(gate, **data)
    terms = read_terms(terms_for(tmp_path, 3, **changes).read_text())
    found = verdict(RequestHandler(load_policy(silo.policy)), terms)
    assert words in found.refused
    assert found.lines[-1] == "verdict   it CANNOT run"


def test_the_command_refuses_what_cannot_run_and_approves_what_can(tmp_path: Path) -> None:
    silo, terms = Silo(tmp_path / "silo", 0), terms_for(tmp_path, 3)
    arguments = ["silo", "approve", str(terms), "--yes", "--policy", str(silo.policy)]
    silo.write(epsilon=1.9)
    done = CliRunner().invoke(app, arguments)
    assert "it does NOT FIT the budget" in done.output
    assert isinstance(done.exception, DpfedError)
    assert RequestHandler(load_policy(silo.policy)).approvals.all() == []
    silo.write()
    done = CliRunner().invoke(app, arguments)
    assert "the terms declare 90 records, and 90 are here (for you alone)" in done.output
    assert "approved for 30 days: gated" in done.output


def test_an_approval_that_the_policy_outgrew_stops_no_other(tmp_path: Path) -> None:
    held, terms = approved(tmp_path)
    silo = Silo(tmp_path / "silo", 0)
    silo.write(most_rounds=2)
    again = RequestHandler(load_policy(silo.policy))
    again.open()
    assert said(again.reply(order(terms)))["error"] == "UnsoundPlan"
    del held


def test_what_nobody_approved_is_turned_away_without_work(tmp_path: Path) -> None:
    held, terms = approved(tmp_path)
    assert held._trainings == {}  # approved after it was opened
    for raw in (b"", b"garbage", enrolment("unknown")):
        found = looked_at(held, raw)
        assert found is not None
        assert said(found)["error"] == "UnsoundPlan"
        assert found == held.reply(raw) or raw != enrolment("unknown")
    assert looked_at(held, order(terms)) is None
    assert set(held._trainings) == {terms.name}  # built once, for all children
    assert looked_at(held, b"x" * 70_000) is None  # a child's work
    without_rules = looked_at(held, enrolment("new", "some terms"))
    assert without_rules == held.reply(enrolment("new", "some terms"))


def test_each_start_of_a_gate_begins_an_epoch(tmp_path: Path) -> None:
    held = handler(tmp_path)
    epochs = {held.ledger().balance().epoch}
    for _ in range(2):
        held.open()
        epochs.add(held.ledger().balance().epoch)
    assert len(epochs - {""}) == 3


def test_every_gate_has_a_key_and_says_so_when_it_enrols(tmp_path: Path) -> None:
    held, terms = approved(tmp_path)
    assert said(held.reply(enrolment(terms.name)))["key"] == held.key.public.hex()
    again = RequestHandler(held.policy)
    assert again.key.public == held.key.public
    assert (held.state / "identity.key").stat().st_mode & 0o777 == 0o600


def stated(held: RequestHandler, terms: Terms, model: str = "ab" * 32) -> Statement:
    control = ConfigRecord({"stage": "statement", "training": terms.name, "model": model})
    found = said(held.reply(sent(RecordDict({CONTROL: control}))))
    return open_statement(found["statement"], held.key.public)


def test_a_gate_states_what_it_answered_and_the_same_for_neighbours(tmp_path: Path) -> None:
    """Law: a statement and the links of receipts follow from no record, also if one is unfit."""
    statements, receipts = [], []
    for change in (0.0, 1e30, float("nan")):
        folder = tmp_path / f"{change}"
        (folder / "silo" / "state").mkdir(parents=True)
        x, y = np.ones((RECORDS, FEATURES), np.float32), np.zeros(RECORDS, np.int64)
        x[0], y[0] = change, 0 if change == 0 else 2
        np.savez(folder / "silo" / "data.npz", x=x, y=y)
        if statements:
            shutil.copy(tmp_path / "0.0/silo/state/identity.key", folder / "silo/state")
        held, terms = approved(folder)
        replies = [said(held.reply(order(terms, round))) for round in (0, 1)]
        opened = [open_statement(each["receipt"], held.key.public) for each in replies]
        receipts.append(
            [each._replace(predicate={**each.predicate, "reply": ""}) for each in opened]
        )
        assert len({each.predicate["reply"] for each in opened}) == 2
        found = stated(held, terms)
        assert len(found.predicate.pop("head")) == 96
        statements.append(found)
        assert said(held.reply(order(terms, 1))) == replies[1]  # the same bytes once more
        assert len(stated(held, terms).predicate["answered"]) == 2
    assert statements[0] == statements[1] == statements[2]
    assert receipts[0] == receipts[1] == receipts[2]
    predicate = statements[0].predicate
    assert statements[0].subject == {"model": "ab" * 32}
    assert predicate["by"].startswith("a process of the data's owner")
    assert [each["round"] for each in predicate["answered"]] == [0, 1]
    assert predicate["claims"][0]["epsilon"] == pytest.approx(2.0)
    assert predicate["budget"] == "the ledger had room for it"


def test_a_statement_of_a_training_that_nobody_approved_is_refused(tmp_path: Path) -> None:
    held, terms = approved(tmp_path)
    control = ConfigRecord({"stage": "statement", "training": "other", "model": ""})
    assert said(held.reply(sent(RecordDict({CONTROL: control}))))["error"] == "UnsoundPlan"
    control = ConfigRecord({"stage": "statement", "training": terms.name, "model": "../x"})
    assert said(held.reply(sent(RecordDict({CONTROL: control}))))["error"] == "ClientError"


def test_a_reply_is_committed_to_under_a_salt_that_only_the_server_is_told(tmp_path: Path) -> None:
    """A plain digest of a small reply could be tried out: the receipts go to more readers."""
    held, terms = approved(tmp_path)
    content = from_bytes(held.reply(order(terms)))
    control = content.config_records[CONTROL]
    arrays = content.array_records["reply"]
    sent_bytes = {name: array.data for name, array in arrays.items()}
    receipt = open_statement(control["receipt"], held.key.public).predicate
    assert receipt["reply"] == commitment(control["salt"], sent_bytes)
    assert control["salt"] not in control["receipt"]
    assert control["salt"].hex().encode() not in control["receipt"]
    assert receipt["reply"] != commitment(bytes(32), sent_bytes)


class NamedPlan:
    """As much of a plan as a receipt names."""

    def fingerprint(self) -> str:
        return "ab" * 32


def test_an_attempt_has_one_receipt_wherever_it_is_in_the_file(tmp_path: Path) -> None:
    """Lines are looked at from the end; rounds 1 and 11, and a name that looks like a field, are
    told apart, and a half line is made again."""
    key, plan = own_key(tmp_path, make=True), cast("Plan", NamedPlan())

    def receipt(round: int, attempt: int = 0) -> bytes:
        asked = Asked(
            training=',"round":2,"attempt":0,',
            client=0,
            round=round,
            attempt=attempt,
            model="",
            shared="",
            cohort="",
            order=f"{round}/{attempt}",
        )
        return receipt_for(tmp_path, key, plan, asked, {"a": b""}).envelope

    asked = [(round, attempt) for round in (0, 1, 3, 11) for attempt in (0, 1)]
    made = {each: receipt(*each) for each in asked}
    assert {each: receipt(*each) for each in asked} == made
    path = tmp_path / "receipts.jsonl"
    whole = path.read_bytes()
    assert len(whole.splitlines()) == len(asked)
    path.write_bytes(whole[:-9])
    assert {each: receipt(*each) for each in reversed(asked)} == made
    assert path.read_bytes() == whole
    receipt(2)
    opened = [json.loads(line) for line in path.read_bytes().splitlines()]
    before = [predicate["before"] for _, predicate in opened]
    assert before == [FIRST, *(link(*each) for each in opened[:-1])]
    assert len(opened) == len(asked) + 1, "round 2 was not answered before"
