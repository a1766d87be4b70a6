# SPDX-License-Identifier: Apache-2.0
"""A statement that does not say all: signed after round 1, and the gate goes on answering.

So a server could hand over a statement of fewer releases than there were. A statement closes its
training in the ledger's chain, or says itself that it is open. What is no number is none, either.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, RecordDict

from dpfed.core.dsse import Statement, open_statement
from dpfed.core.flower_private import from_bytes, to_bytes
from dpfed.recipes.terms import Terms
from dpfed.silo.handler import RequestHandler
from dpfed.training.wire.codec import CONTROL
from tests.helpers.handlers import (
    _own_environment,  # noqa: F401
    approved,
    enrolment,
    order,
    said,
    sent,
)

MODEL, OTHER = "a" * 64, "b" * 64


def asked(held: RequestHandler, terms: Terms, model: Any = MODEL, **told: Any) -> dict[str, Any]:
    control = {"stage": "statement", "training": terms.name, "model": model, **told}
    return said(held.reply(sent(RecordDict({CONTROL: ConfigRecord(control)}))))


def stated(held: RequestHandler, terms: Terms, model: str = MODEL, **told: Any) -> Statement:
    return open_statement(asked(held, terms, model, **told)["statement"], held.key.public)


def test_an_early_statement_says_that_it_is_open(tmp_path: Path) -> None:
    held, terms = approved(tmp_path)
    held.reply(order(terms, 0))
    early = stated(held, terms)
    assert early.predicate["open"] is True
    assert "error" not in said(held.reply(order(terms, 1)))  # it goes on, and had said so
    last = stated(held, terms, close=True)
    assert last.predicate["open"] is False
    assert [each["round"] for each in last.predicate["answered"]] == [0, 1]


def test_a_closing_statement_is_the_last_word(tmp_path: Path) -> None:
    held, terms = approved(tmp_path)
    held.reply(order(terms, 0))
    receipt = held.state / "trainings" / terms.name / "client-0" / "receipts.jsonl"
    last, lines = stated(held, terms, close=True), receipt.read_bytes()
    booked = held.ledger().balance().places
    for at in (0, 1, 2):  # the stored reply, too: its receipt may not have been made
        for attempt in (0, 1):
            assert said(held.reply(order(terms, at, attempt)))["error"] == "UnsoundPlan"
    held.reply(enrolment(terms.name))  # neither does enrolling again open it
    held.approvals.approve(terms, terms.text, days=1, by="root")
    held._trainings.clear()
    again = RequestHandler(held.policy)  # nor another process
    again.open()
    assert said(again.reply(order(terms, 1)))["error"] == "UnsoundPlan"
    shutil.rmtree(held.state / "trainings")  # nor the loss of the training's own folder
    assert said(held.reply(order(terms, 1)))["error"] == "UnsoundPlan"
    assert held.ledger().balance().places == booked
    assert lines
    assert last.predicate["open"] is False
    assert held.ledger().verify() == []


def test_a_training_is_closed_for_one_model(tmp_path: Path) -> None:
    held, terms = approved(tmp_path)
    held.reply(order(terms, 0))
    first = stated(held, terms, close=True)
    assert stated(held, terms, close=True).predicate["answered"] == first.predicate["answered"]
    assert asked(held, terms, OTHER, close=True)["error"] == "UnsoundPlan"
    assert asked(held, terms, OTHER)["error"] == "UnsoundPlan"  # nor one that seems to be open
    assert stated(held, terms).predicate["open"] is False


def test_nothing_is_closed_by_an_order_that_is_refused(tmp_path: Path) -> None:
    held, terms = approved(tmp_path)
    for told in ({"model": "../x", "close": True}, {"model": 7, "close": True}):
        assert asked(held, terms, **told)["error"] == "ClientError"
    for value in (1, 1.0, "yes", b"\1", [True]):
        assert stated(held, terms, close=value).predicate["open"] is True
    assert "error" not in said(held.reply(order(terms)))


@pytest.mark.parametrize("field", ["round", "attempt"])
@pytest.mark.parametrize("value", [True, False, 1.0, "1", [1]])
def test_what_is_no_number_is_refused_before_it_is_entered(
    tmp_path: Path, field: str, value: Any
) -> None:
    held, terms = approved(tmp_path)
    content = from_bytes(order(terms))
    content[CONTROL][field] = value
    for _ in range(2):
        assert said(held.reply(to_bytes(content)))["error"] == "ClientError"
    assert not held.ledger().balance().seen
    assert stated(held, terms).predicate["answered"] == []


@pytest.mark.parametrize("field", ["training", "stage", "fingerprint"])
def test_what_is_no_text_is_refused(tmp_path: Path, field: str) -> None:
    held, terms = approved(tmp_path)
    content = from_bytes(order(terms))
    content[CONTROL][field] = 1
    assert "error" in said(held.reply(to_bytes(content)))
    assert not held.ledger().balance().seen
