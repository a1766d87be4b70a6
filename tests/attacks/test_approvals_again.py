# SPDX-License-Identifier: Apache-2.0
"""Attacks on what stands beside the chain: the chain alone says what is approved.

Before: an older approvals.sqlite brought back a longer approval than its owner had left, and the
week that rules may approve in; a command that failed had approved all the same; counts that are
written without waiting for the disk were in the file of approvals.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from dpfed.core.errors import DataError, UnsoundPlan
from dpfed.recipes.terms import read_terms
from dpfed.silo import approvals as module
from dpfed.silo.approvals import FILE, REVOCATIONS, Approvals
from tests.attacks.test_clock_back import Clock, clock  # noqa: F401
from tests.helpers.handlers import _own_environment, approved, enrolment, handler, order, said  # noqa: F401
from tests.silo.gates import terms_for


def test_an_older_file_brings_no_longer_approval_back(tmp_path: Path, clock: Clock) -> None:  # noqa: F811
    text = terms_for(tmp_path, 3).read_text()
    held, terms = handler(tmp_path), read_terms(text)
    held.approvals.approve(terms, text, days=365, by="officer")
    shutil.copy(held.state / FILE, tmp_path / "old")
    held.approvals.approve(terms, text, days=1, by="officer")
    shutil.copy(tmp_path / "old", held.state / FILE)
    assert "error" not in said(held.reply(order(terms)))
    clock.days = 2.0
    assert said(held.reply(order(terms, round=1)))["error"] == "UnsoundPlan"
    with pytest.raises(UnsoundPlan, match="is expired here"):
        held.approvals.standing(terms.name)
    assert held.ledger().verify() == []


def test_a_command_that_failed_has_approved_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = terms_for(tmp_path, 3).read_text()
    held, terms = handler(tmp_path), read_terms(text)
    for fails in (
        lambda patch: patch.setattr(module.Ledger, "change", _refuse),
        lambda patch: (held.state / REVOCATIONS).write_bytes(b"no database" * 100),
    ):
        with monkeypatch.context() as patch:
            fails(patch)
            with pytest.raises(DataError):
                held.approvals.approve(terms, text, days=1, by="officer")
        (held.state / REVOCATIONS).unlink(missing_ok=True)
        assert said(held.reply(order(terms)))["error"] == "UnsoundPlan"
        assert not held.approvals.known(terms.name)
    held.approvals.approve(terms, text, days=1, by="officer")
    assert "error" not in said(held.reply(order(terms)))


def _refuse(*_: Any) -> None:
    raise DataError("the ledger could not be written to (database is locked)")


def test_a_week_of_rules_is_not_given_back_by_an_older_file(tmp_path: Path) -> None:
    rule: dict[str, Any] = {"approve": "within-policy", "most_epsilon": 2.0, "week_epsilon": 3.0}
    held, errors = handler(tmp_path, epsilon=100.0, **rule), []
    for at in range(2):
        (held.state / FILE).unlink(missing_ok=True)
        text = terms_for(tmp_path, 3, name=f"run-{at}").read_text()
        errors.append(said(held.reply(enrolment(f"run-{at}", text))).get("error"))
    assert errors == [None, "UnsoundPlan"]


def test_other_terms_do_not_get_a_name_whose_text_is_lost(tmp_path: Path) -> None:
    held, terms = approved(tmp_path)
    (held.state / FILE).unlink()
    with pytest.raises(UnsoundPlan, match="its terms are lost, here; approve"):
        held.approvals.standing(terms.name)
    other = terms_for(tmp_path, 3, rounds=4).read_text()
    with pytest.raises(UnsoundPlan, match="approved under other terms"):
        held.approvals.approve(read_terms(other), other, days=1, by="officer")
    held.approvals.approve(terms, terms.text, days=1, by="officer")
    assert "error" not in said(held.reply(order(terms)))


def test_a_text_that_was_changed_is_not_the_one_that_was_approved(tmp_path: Path) -> None:
    held, terms = approved(tmp_path)
    with Approvals(held.state)._files[FILE].change() as file:
        file.execute("UPDATE terms SET text = replace(text, 'gated', 'other')")
    with pytest.raises(UnsoundPlan, match="its terms are lost"):
        held.approvals.standing(terms.name)


def test_the_chain_remembers_a_revocation_that_no_file_has(tmp_path: Path) -> None:
    held, terms = approved(tmp_path)
    copies = {each: (held.state / each).read_bytes() for each in (FILE, REVOCATIONS)}
    held.approvals.revoke(terms.name)
    for each, content in copies.items():
        (held.state / each).write_bytes(content)
    with pytest.raises(UnsoundPlan, match="is revoked here"):
        held.approvals.standing(terms.name)
    assert held.approvals.known(terms.name)


def test_counts_are_in_no_file_that_decides(tmp_path: Path) -> None:
    held, terms = approved(tmp_path)
    before = {path: path.read_bytes() for path in held.state.glob("*.sqlite")}
    for _ in range(3):
        held.approvals.note("refused", terms.name, "x")
    changed = [path.name for path, content in before.items() if path.read_bytes() != content]
    assert changed == ["events.sqlite"]
