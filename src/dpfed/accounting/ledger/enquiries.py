# SPDX-License-Identifier: Apache-2.0
"""Enquiries: which plans have asked, before their first release, whether a budget suffices.

At enrolment a client says whether a whole training fits into what is left of its data's budget.
That depends only on its policy and its ledger, never on a record. But whoever asks for one plan
after another, and runs none of them, learns what is left. So for each data set a few such plans get
a reply in a day, and then only plans that were seen before. Each enrolment may also write rows into
the ledger (a claim, its end, a head's mark), so the number of enrolments in a day is limited, too.

    ledger.sqlite.enquiries      beside the ledger: data set -> plan -> when it asked first,
                                 and data set -> when a day's enrolments began, and their number

Guarantee: after MAX_IDLE_PLANS_PER_DAY plans that released nothing, another one is refused without
a look at the balance, until a day has passed since the first of them. A plan that has asked before,
or has releases in the ledger, gets a reply up to MAX_ENROLMENTS_PER_DAY times in a day.

| edge case                         | what happens                                        |
|-----------------------------------|-----------------------------------------------------|
| the file is lost or cannot be read| it starts empty: it protects no record              |
| the clock goes back               | times that lie ahead count as now                   |
| two processes at once             | one after the other                                 |
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dpfed.core.errors import UnsoundPlan
from dpfed.core.files import locked_file, replace_file

MAX_IDLE_PLANS_PER_DAY = 5
"""How many plans may ask in a day and release nothing."""
MAX_ENROLMENTS_PER_DAY = 200
"""Enrolments in a day, of whatever plan: each may write rows."""
DAY_S = 86_400.0  # seconds


@dataclass(frozen=True)
class Enquiries:
    """The file beside a ledger."""

    ledger: Path

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self.ledger.with_name(f"{self.ledger.name}.enquiries")

    def note(self, dataset: str, plan: str, used: frozenset[str], now: float | None = None) -> None:
        """Count a plan that asks; refuse it if too many have.

        Args:
            dataset: the data that is asked about.
            plan: the plan's fingerprint.
            used: plans with releases on the data: they do not count.
            now: in seconds; None is the clock's.
        """
        at = time.time() if now is None else now
        with locked_file(self.path.with_name(f"{self.path.name}.lock")):
            noted = self._read()
            noted.enrolled[dataset] = _one_more(dataset, noted.enrolled.get(dataset), at)
            if plan not in used:
                noted.asked[dataset] = _with_plan(dataset, noted.asked, plan, used, at)
            replace_file(self.path, msgspec.json.encode(noted))

    def _read(self) -> _Noted:
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=_Noted)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return _Noted()


class _Noted(msgspec.Struct):
    """The content of the file."""

    asked: dict[str, dict[str, float]] = {}
    enrolled: dict[str, tuple[float, int]] = {}


def _one_more(dataset: str, day: tuple[float, int] | None, at: float) -> tuple[float, int]:
    """When a data set's day of enrolments began, and how many there are with this one."""
    began, count = (at, 0) if day is None or at - day[0] >= DAY_S else day
    if count >= MAX_ENROLMENTS_PER_DAY:
        raise UnsoundPlan(
            f"enrolments for {dataset!r} must be at most {MAX_ENROLMENTS_PER_DAY} in a day, got "
            f"one more; try again tomorrow"
        )
    return min(began, at), count + 1


def _with_plan(
    dataset: str, asked: dict[str, dict[str, float]], plan: str, used: frozenset[str], at: float
) -> dict[str, float]:
    """The plans that have asked in a day and released nothing, with this one."""
    mine = {
        p: min(t, at) for p, t in asked.get(dataset, {}).items() if p not in used and at - t < DAY_S
    }
    if plan not in mine and len(mine) >= MAX_IDLE_PLANS_PER_DAY:
        raise UnsoundPlan(
            f"plans that ask for {dataset!r} and release nothing must be at most "
            f"{MAX_IDLE_PLANS_PER_DAY} in a day, got one more; try again tomorrow"
        )
    mine.setdefault(plan, at)
    return mine
