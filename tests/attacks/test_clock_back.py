# SPDX-License-Identifier: Apache-2.0
"""Attacks on a gate's memory: a clock that is set back, and revocations that are lost.

Before: an approval that had expired stood again once the clock was set back; a revocation was a
field in a file that counts are written to without fsync, so that a power cut, or an older copy of
that file, could undo it.
"""

from __future__ import annotations

import datetime as dt
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dpfed.cli.main import app
from dpfed.core.database import Tables
from dpfed.core.errors import DataError, UnsoundPlan
from dpfed.recipes.terms import read_terms
from dpfed.silo import approvals as module
from dpfed.silo.approvals import CLOCK, EVENTS, FILE, LEDGER_FILE, REVOCATIONS, Approvals
from tests.helpers.handlers import _own_environment, approved, enrolment, handler, order, said  # noqa: F401
from tests.silo.gates import Silo, terms_for


class Clock:
    """The machine's, which a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.real, self.days = module.clock_time, 0.0
        monkeypatch.setattr(
            module, "clock_time", lambda: self.real() + dt.timedelta(days=self.days)
        )


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_an_approval_that_has_expired_stays_so_when_the_clock_is_set_back(
    tmp_path: Path, clock: Clock
) -> None:
    held, terms = approved(tmp_path)
    assert "error" not in said(held.reply(order(terms)))
    for days in (2.0, 0.0, -400.0, 1.9):
        clock.days = days
        assert said(held.reply(order(terms, round=1)))["error"] == "UnsoundPlan"


def test_a_policys_days_are_not_undone_by_the_clock(tmp_path: Path, clock: Clock) -> None:
    until = (dt.datetime.now(dt.UTC) + dt.timedelta(days=2)).date()
    held = handler(tmp_path, until=until)
    terms = read_terms(terms_for(tmp_path, 3).read_bytes())
    held.permitted(terms)
    for days in (9.0, 0.0):
        clock.days = days
        with pytest.raises(UnsoundPlan, match="since and until"):
            held.permitted(terms)


def test_a_week_that_has_passed_once_is_not_passed_again(tmp_path: Path, clock: Clock) -> None:
    """By rule at most 3 in a week: a clock that goes to and fro gives no second week."""
    rule: dict[str, Any] = {"approve": "within-policy", "most_epsilon": 2.0, "week_epsilon": 3.0}
    held, errors = handler(tmp_path, epsilon=100.0, **rule), []
    for at, days in enumerate((0.0, 8.0, 0.0, 8.0, -30.0)):
        clock.days = days
        text = terms_for(tmp_path, 3, name=f"run-{at}").read_text()
        errors.append(said(held.reply(enrolment(f"run-{at}", text))).get("error"))
    assert errors == [None, None, "UnsoundPlan", "UnsoundPlan", "UnsoundPlan"]


def test_an_owner_sets_back_a_clock_that_was_ahead_and_it_is_logged(
    tmp_path: Path, clock: Clock
) -> None:
    held, terms = approved(tmp_path)
    clock.days = 4000.0
    assert said(held.reply(order(terms)))["error"] == "UnsoundPlan"
    clock.days = 0.0
    policy = ["--policy", str(Silo(tmp_path / "silo", 0).policy)]
    shown = CliRunner().invoke(app, ["silo", "clock", *policy])
    assert "for the gate it is 203" in shown.output
    assert said(held.reply(order(terms)))["error"] == "UnsoundPlan"  # showing changes nothing
    done = CliRunner().invoke(app, ["silo", "clock", "--reset", *policy])
    assert "approved again: gated; 'dpfed silo revoke gated' ends it" in done.output
    assert "error" not in said(held.reply(order(terms)))
    assert "clock" in CliRunner().invoke(app, ["silo", "log", *policy]).output


def agreed(folder: Path, **changes: Any) -> tuple[Approvals, str]:
    text = terms_for(folder, 2, **changes).read_text()
    found = Approvals(folder)
    found.approve(read_terms(text), text, days=1, by="root")
    return found, text


def test_a_revocation_outlives_an_older_copy_of_the_approvals(tmp_path: Path) -> None:
    found, text = agreed(tmp_path)
    shutil.copy2(tmp_path / FILE, tmp_path / "copy")
    found.revoke("gated")
    shutil.copy2(tmp_path / "copy", tmp_path / FILE)
    with pytest.raises(UnsoundPlan, match="is revoked here"):
        Approvals(tmp_path).standing("gated")
    assert [each.state(found.now()) for each in found.all()] == ["revoked"]
    found.approve(read_terms(text), text, days=1, by="root")  # the owner's own word
    assert found.standing("gated")


def test_no_rule_approves_what_was_revoked_even_if_the_approvals_are_lost(tmp_path: Path) -> None:
    rule: dict[str, Any] = {"approve": "within-policy", "most_epsilon": 2.0, "week_epsilon": 30.0}
    held, text = handler(tmp_path, **rule), terms_for(tmp_path, 3).read_text()
    assert "error" not in said(held.reply(enrolment("gated", text)))
    held.approvals.revoke("gated")
    (held.state / FILE).unlink()
    held = handler(tmp_path, **rule)
    assert said(held.reply(enrolment("gated", text)))["error"] == "UnsoundPlan"
    with pytest.raises(UnsoundPlan, match="is revoked here"):
        held.approvals.standing("gated")


def test_a_crash_between_the_two_files_leaves_it_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, text = agreed(tmp_path)
    found.revoke("gated")
    real = Tables.change

    def fails(self: Tables) -> Any:
        if self.path.name == REVOCATIONS:
            raise KeyboardInterrupt
        return real(self)

    monkeypatch.setattr(Tables, "change", fails)
    with pytest.raises(KeyboardInterrupt):
        found.approve(read_terms(text), text, days=1, by="root")
    monkeypatch.undo()
    with pytest.raises(UnsoundPlan, match="is revoked here"):
        found.standing("gated")


def test_revocations_are_on_the_disk_and_counts_are_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What SQLite was told, file by file: EXTRA for each decision, OFF for counts alone."""
    told: list[tuple[str, int]] = []
    real = sqlite3.connect

    class Watched(sqlite3.Connection):
        def execute(self, *arguments: Any) -> Any:
            done = super().execute(*arguments)
            if arguments[0].split()[0] in ("INSERT", "UPDATE", "DELETE"):
                (mode,) = super().execute("PRAGMA synchronous").fetchone()
                (_, _, path) = super().execute("PRAGMA database_list").fetchone()
                told.append((Path(path).name, mode))
            return done

    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: real(*a, **k, factory=Watched))
    found, _ = agreed(tmp_path)
    found.revoke("gated")
    found.note("refused", "gated", "x")
    off, extra = 0, 3
    for decision in (FILE, REVOCATIONS, CLOCK, LEDGER_FILE):
        assert {mode for name, mode in told if name == decision} == {extra}
    assert {mode for name, mode in told if name == EVENTS} == {off}


@pytest.mark.parametrize("name", [FILE, REVOCATIONS, CLOCK])
def test_a_file_that_is_none_is_one_sentence_and_no_answer(tmp_path: Path, name: str) -> None:
    agreed(tmp_path)
    (tmp_path / name).write_bytes(b"no database" * 100)
    with pytest.raises(DataError, match=f"{name} cannot be used"):
        Approvals(tmp_path).standing("gated")
    assert (tmp_path / name).read_bytes().startswith(b"no database")


def test_the_files_are_their_owners_alone(tmp_path: Path) -> None:
    agreed(tmp_path)
    assert {(tmp_path / n).stat().st_mode & 0o777 for n in (FILE, REVOCATIONS, CLOCK)} == {0o600}
