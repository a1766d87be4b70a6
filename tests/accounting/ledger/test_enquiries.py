# SPDX-License-Identifier: Apache-2.0
"""Plans that ask and release nothing: a few in a day, and no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpfed.accounting.ledger.enquiries import (
    DAY_S,
    MAX_ENROLMENTS_PER_DAY,
    MAX_IDLE_PLANS_PER_DAY,
    Enquiries,
)
from dpfed.core.errors import UnsoundPlan

NONE: frozenset[str] = frozenset()


def test_a_few_plans_are_answered_in_a_day_and_no_more(tmp_path: Path) -> None:
    asked = Enquiries(tmp_path / "ledger.sqlite")
    for i in range(MAX_IDLE_PLANS_PER_DAY):
        asked.note("ward", f"plan {i}", NONE, now=float(i))
    with pytest.raises(UnsoundPlan, match="most 5 in a day"):
        asked.note("ward", "another", NONE, now=100.0)
    asked.note("ward", "plan 0", NONE, now=100.0)  # it has asked before
    asked.note("other ward", "another", NONE, now=100.0)
    asked.note("ward", "another", NONE, now=DAY_S + 0.5)  # the first one was a day ago
    with pytest.raises(UnsoundPlan):
        asked.note("ward", "one more", NONE, now=DAY_S + 0.6)


def test_who_enrols_and_leaves_without_end_is_stopped(tmp_path: Path) -> None:
    """Each may write two rows into the ledger; a plan with releases may ask most of all."""
    asked, used = Enquiries(tmp_path / "ledger.sqlite"), frozenset({"plan"})
    for i in range(MAX_ENROLMENTS_PER_DAY):
        asked.note("ward", "plan", used, now=float(i))
    with pytest.raises(UnsoundPlan, match="enrolments for 'ward' must be at most 200 in a day"):
        asked.note("ward", "plan", used, now=300.0)
    with pytest.raises(UnsoundPlan):
        asked.note("ward", "plan", used, now=-5.0)  # the clock goes back: as now
    asked.note("other ward", "plan", used, now=300.0)
    asked.note("ward", "plan", used, now=DAY_S + 1.0)


def test_a_plan_with_releases_does_not_count(tmp_path: Path) -> None:
    asked = Enquiries(tmp_path / "ledger.sqlite")
    for i in range(3 * MAX_IDLE_PLANS_PER_DAY):
        asked.note("ward", f"plan {i}", frozenset({f"plan {i}"}), now=float(i))
    for i in range(MAX_IDLE_PLANS_PER_DAY):
        asked.note("ward", f"new {i}", NONE, now=50.0)
    asked.note("ward", "newest", frozenset({"new 0"}), now=50.0)  # one of them has begun


def test_a_file_that_is_lost_or_spoilt_and_a_clock_that_goes_back(tmp_path: Path) -> None:
    asked = Enquiries(tmp_path / "ledger.sqlite")
    for i in range(MAX_IDLE_PLANS_PER_DAY):
        asked.note("ward", f"plan {i}", NONE, now=9 * DAY_S)
    with pytest.raises(UnsoundPlan):
        asked.note("ward", "another", NONE, now=DAY_S)
    with pytest.raises(UnsoundPlan):
        asked.note("ward", "another", NONE, now=DAY_S + 5)
    for content in (b"", b"[1]", b'{"ward": 3}', b"\xff"):
        asked.path.write_bytes(content)
        asked.note("ward", "plan", NONE)
