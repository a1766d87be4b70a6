# SPDX-License-Identifier: Apache-2.0
"""What an owner has approved, and what was asked and refused: a file that the gate's user owns.

Guarantee: at most one approval has a training's name, for ever: other terms under it are refused,
as the ledger refuses another plan. Text that came from a server is shown by ``shown`` only, and
counted, not kept, where nobody has approved its name: however often it asks, the file stays small.

| edge case                                    | what happens                                   |
|----------------------------------------------|------------------------------------------------|
| other terms under an approved name           | UnsoundPlan: give the training another name    |
| an approval that has expired or was revoked  | UnsoundPlan; approve the same terms again      |
| a name that nobody has approved              | UnsoundPlan; counted, the last name is kept    |
"""

from __future__ import annotations

import datetime as dt
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from dpfed.core.errors import UnsoundPlan
from dpfed.core.log import shown
from dpfed.recipes.terms import Terms, read_terms

_FILE = "approvals.sqlite"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS approvals (name TEXT PRIMARY KEY, fingerprint TEXT, terms TEXT, at TEXT,
    until TEXT, revoked TEXT DEFAULT '', by TEXT);
CREATE TABLE IF NOT EXISTS events (day TEXT, kind TEXT, training TEXT, count INTEGER, last TEXT,
    said TEXT, PRIMARY KEY (day, kind, training));
"""


class Approval(NamedTuple):
    """One training that an owner has agreed to."""

    name: str
    fingerprint: str
    terms: str
    at: str
    until: str
    revoked: str
    by: str

    def state(self, now: dt.datetime) -> str:
        """In one word."""
        if self.revoked:
            return "revoked"
        return "expired" if now.isoformat() >= self.until else "approved"


class Event(NamedTuple):
    """What happened on a day, how often, and the last time."""

    day: str
    kind: str
    training: str
    times: int
    last: str
    said: str


class Approvals:
    """The file of one silo. Each call opens it anew, so that officer and gate see the same."""

    def __init__(self, state: Path) -> None:
        self._path = state / _FILE
        with closing(self._connect()) as file, file:
            file.executescript(_SCHEMA)
        self._path.chmod(0o600)

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=30.0)

    def approve(self, terms: Terms, text: str, *, days: float, by: str) -> None:
        """Let a training's orders be answered, from now on.

        Args:
            terms: what was agreed to.
            text: as it was written.
            days: after which the approval ends.
            by: who approved.
        """
        now = _now()
        until = (now + dt.timedelta(days=days)).isoformat()
        row = Approval(
            name=terms.name, fingerprint=terms.fingerprint, terms=text, at=now.isoformat(),
            until=until, revoked="", by=by,
        )  # fmt: skip
        with closing(self._connect()) as file, file:
            entered = file.execute(  # in one step: gate and officer may both be at it
                "INSERT INTO approvals VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE "
                "SET at = excluded.at, until = excluded.until, revoked = '', by = excluded.by "
                "WHERE fingerprint = excluded.fingerprint", row,
            ).rowcount  # fmt: skip
        if not entered:
            raise UnsoundPlan(
                f"training {terms.name!r} was approved under other terms; give it another name"
            )
        self.note("approved", terms.name, f"by {by}, until {until[:10]}")

    def revoke(self, name: str) -> None:
        """End an approval; nothing is answered under its name from now on."""
        with closing(self._connect()) as file, file:
            changed = file.execute(
                "UPDATE approvals SET revoked = ? WHERE name = ?", (_now().isoformat(), name)
            ).rowcount
        if not changed:
            raise UnsoundPlan(f"no training {shown(name)!r} was approved; 'silo status' lists them")
        self.note("revoked", name, "by the owner")

    def standing(self, name: str) -> Approval:
        """The approval of a training, if it stands; refuses any other name."""
        found = self._at(name)
        if found is None or found.state(_now()) != "approved":
            state = "not approved" if found is None else found.state(_now())
            raise UnsoundPlan(
                f"training {shown(name)!r} is {state} here; approve its terms with 'dpfed silo "
                f"approve'"
            )
        return found

    def terms(self, name: str) -> Terms:
        """The terms of a training whose approval stands."""
        return read_terms(self.standing(name).terms)

    def known(self, name: str) -> bool:
        """Whether the name was ever approved."""
        return self._at(name) is not None

    def _at(self, name: str) -> Approval | None:
        with closing(self._connect()) as file:
            row = file.execute("SELECT * FROM approvals WHERE name = ?", (name,)).fetchone()
        return None if row is None else Approval(*row)

    def all(self) -> list[Approval]:
        """All approvals, the latest first."""
        with closing(self._connect()) as file:
            rows = file.execute("SELECT * FROM approvals ORDER BY at DESC").fetchall()
        return [Approval(*row) for row in rows]

    def note(self, kind: str, training: str, said: str) -> None:
        """Count an event of today. Names that nobody has approved are one line together.

        Args:
            kind: answered, refused, approved and so on.
            training: the name in the order.
            said: more about it; made fit for a screen.
        """
        known = self.known(training)
        said = shown(said if known else f"{training}: {said}")
        now = _now()
        with closing(self._connect()) as file, file:
            file.execute("PRAGMA synchronous=OFF")  # a count may be lost with the power, not more
            file.execute(
                "INSERT INTO events VALUES (?, ?, ?, 1, ?, ?) ON CONFLICT (day, kind, training) "
                "DO UPDATE SET count = count + 1, last = excluded.last, said = excluded.said",
                (now.date().isoformat(), kind, training if known else "", now.isoformat(), said),
            )

    def events(self) -> list[Event]:
        """Day by day, the latest last."""
        with closing(self._connect()) as file:
            rows = file.execute("SELECT * FROM events ORDER BY day, last").fetchall()
        return [Event(*row) for row in rows]


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC).replace(microsecond=0)
