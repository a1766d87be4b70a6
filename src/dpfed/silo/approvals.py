# SPDX-License-Identifier: Apache-2.0
"""What an owner has approved and revoked, and what was asked and refused: the gate's user's files.

    ledger.sqlite        each approval and revocation, one row in the ledger's own chain: who, until
                         when, and the digest of the terms. This decides
    approvals.sqlite     the text of terms by its digest, what they cost; how which data is read, as
                         the officer has accepted it
    events.sqlite        counts of events, written without waiting for the disk; nothing is decided
                         by them
    sources.sqlite       which file, by path and by inode, was counted in whose account
    revocations.sqlite   names that the owner has revoked, and nothing else
    clock.sqlite         the largest time that was ever seen here

Guarantee: at most one approval has a training's name, for ever: other terms under it are refused,
as the ledger refuses another plan. What was revoked stays so until its owner approves it again,
even if approvals.sqlite is lost, or is put back from a copy, and the file of revocations with it:
the last word in the ledger's chain counts, and a command that failed has approved nothing. Heads of
that chain, which others keep, show an older copy of all of them; once its loss is declared, no
earlier approval stands. Time does not go back: ``now`` is at least the largest time that was ever
recorded. Text that came from a server is shown by ``shown`` only, and counted, not kept, where
nobody has approved its name: however often it asks, the file stays small.

| edge case                                    | what happens                                   |
|----------------------------------------------|------------------------------------------------|
| other terms under an approved name           | UnsoundPlan: give the training another name    |
| an approval that has expired or was revoked  | UnsoundPlan; approve the same terms again      |
| a name that nobody has approved              | UnsoundPlan; counted, the last name is kept    |
| a clock that was set back                    | the largest time that was recorded counts      |
| killed between a decision's row and a file   | what is stricter counts: approve once more     |
| an older approvals.sqlite                    | restores nothing; terms that it lacks are lost |
| a loss was declared (ledger/heads.py)        | every approval before it is revoked            |
| clock.sqlite that was lost                   | the latest approval, revocation or ledger row  |
| a clock that was far ahead once              | the owner sets it back: ``reset_clock``, logged|
| a file that SQLite cannot read               | DataError: every order is refused              |
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dpfed.accounting.ledger.ledger import Ledger
from dpfed.core.database import Tables
from dpfed.core.errors import UnsoundPlan
from dpfed.core.log import shown

if TYPE_CHECKING:
    from dpfed.accounting.ledger.balance import Balance
    from dpfed.accounting.ledger.journal import Row
    from dpfed.recipes.terms import Terms

FILE, REVOCATIONS, CLOCK = "approvals.sqlite", "revocations.sqlite", "clock.sqlite"
SOURCES, EVENTS, LEDGER_FILE = "sources.sqlite", "events.sqlite", "ledger.sqlite"
ZERO_ROWS = "zero rows"
"""The kind of event that counts replies which were made without the data: it depends on records."""
CONFLICT = "rolled back"
"""The kind of event that says that the ledger is an older copy than others keep a head of."""
DECLARED = "declared lost"
"""The kind of event that says that the owner has declared what was lost."""
_APPROVED, _REVOKED_HERE = "approved", "revoked"
_SCHEMAS = {
    FILE: (
        "CREATE TABLE terms (digest TEXT PRIMARY KEY, name TEXT, fingerprint TEXT, text TEXT)",
        "CREATE TABLE prices (name TEXT PRIMARY KEY, dataset TEXT, measure TEXT, epsilon REAL)",
        "CREATE TABLE readings (reading TEXT PRIMARY KEY, at TEXT, by TEXT, columns TEXT)",
    ),
    EVENTS: (
        "CREATE TABLE events (day TEXT, kind TEXT, training TEXT, count INTEGER, last TEXT,"
        " said TEXT, PRIMARY KEY (day, kind, training))",
    ),
    REVOCATIONS: ("CREATE TABLE revocations (name TEXT PRIMARY KEY, at TEXT)",),
    CLOCK: ("CREATE TABLE clock (id INTEGER PRIMARY KEY CHECK (id = 1), at TEXT)",),
    SOURCES: ("CREATE TABLE sources (path TEXT PRIMARY KEY, dataset TEXT)",),
}


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
        """The state in one word."""
        if self.revoked:
            return "revoked"
        return "expired" if now.isoformat() >= self.until else "approved"


class Price(NamedTuple):
    """What an approved training costs of its data set's budget."""

    dataset: str
    measure: str
    """The budget's terms, in which the cost is stated."""
    epsilon: float


class Acceptance(NamedTuple):
    """That an officer has looked at what a file becomes by its contract."""

    at: str
    by: str
    columns: str
    """The columns that they named, as most of each is not as agreed."""


class Event(NamedTuple):
    """A kind of event on one day: how often it happened, and when last."""

    day: str
    kind: str
    training: str
    times: int
    last: str
    said: str


class Approvals:
    """The files of one silo, which owner and gate use at the same time; reading makes none."""

    def __init__(self, state: Path) -> None:
        self._files = {
            name: Tables(state / name, schema, durable=name != EVENTS)
            for name, schema in _SCHEMAS.items()
        }
        self._chain = Tables(state / LEDGER_FILE)

    # -------------------------------------------------------------------------- files, and time

    def sources(self) -> dict[str, str]:
        """Path, or device and inode, of a file -> the data set as which it was counted."""
        return dict(self._files[SOURCES].rows("SELECT path, dataset FROM sources"))

    def count_sources(self, accounts: Mapping[str, str]) -> None:
        """Remember by path, device and inode which account its records are counted in."""
        with self._files[SOURCES].change() as file:
            file.executemany("INSERT OR REPLACE INTO sources VALUES (?, ?)", accounts.items())

    def now(self) -> dt.datetime:
        """The clock's time, or the largest that was ever seen here, if the clock was set back."""
        clock, largest = clock_time(), self.largest()
        if largest is not None and clock <= largest:
            return largest
        with self._files[CLOCK].change() as file:
            file.execute(
                "INSERT INTO clock VALUES (1, ?) ON CONFLICT (id) DO UPDATE SET at = excluded.at "
                "WHERE at < excluded.at",
                (clock.isoformat(),),
            )
        return clock

    def largest(self) -> dt.datetime | None:
        """The largest time that was ever seen here; None in a new folder."""
        for (at,) in self._files[CLOCK].rows("SELECT at FROM clock"):
            return dt.datetime.fromisoformat(at)
        return self._latest()

    def _latest(self) -> dt.datetime | None:
        """The largest time in the other files, if the clock's own file was lost."""
        times = [at for each in self._decided().values() for at in (each.at, each.revoked) if at]
        found = [dt.datetime.fromisoformat(at) for at in times]
        rows = self._chain.rows("SELECT max(json_extract(body, '$.time')) FROM rows")
        found += [dt.datetime.fromtimestamp(int(last), dt.UTC) for (last,) in rows if last]
        return max(found, default=None)

    def reset_clock(self, by: str) -> list[str]:
        """Trust the system's clock again after it was ahead once: the owner's own command.

        Args:
            by: who says so; it is logged.

        Returns:
            the trainings whose approvals stand again.
        """
        before, clock = self.largest() or clock_time(), clock_time()
        again = [
            each.name
            for each in self.all()
            if (each.state(before), each.state(clock)) == ("expired", "approved")
        ]
        with self._files[CLOCK].change() as file:
            file.execute("DELETE FROM clock")
            file.execute("INSERT INTO clock VALUES (1, ?)", (clock.isoformat(),))
        self.note("clock", "", f"set back by {by}, from {before.isoformat()}")
        return again

    # --------------------------------------------------------------------------------- approvals

    def approve(self, terms: Terms, text: str, *, days: float, by: str) -> None:
        """Approve a training: the gate replies to its orders from now on.

        Args:
            terms: what was agreed to.
            text: as it was written.
            days: after which the approval ends.
            by: who approved.
        """
        now = self.now()
        until = (now + dt.timedelta(days=days)).isoformat()
        digest = _digest(text)
        with self._files[FILE].change() as file:  # which decides nothing
            row = (digest, terms.name, terms.fingerprint, text)
            file.execute("INSERT OR REPLACE INTO terms VALUES (?, ?, ?, ?)", row)

        def decide(_: Balance, append: Callable[..., Row]) -> None:
            known = self._decided().get(terms.name)
            if known is not None and known.fingerprint not in {"", terms.fingerprint}:
                raise UnsoundPlan(
                    f"training {terms.name!r} was approved under other terms; give it another name"
                )
            append(
                kind="approval",
                training=terms.name,
                state=_APPROVED,
                fingerprint=terms.fingerprint,
                terms=digest,
                at=now.isoformat(),
                until=until,
                by=by,
            )
            with self._files[REVOCATIONS].change() as file:  # if this fails, so does the turn
                file.execute("DELETE FROM revocations WHERE name = ?", (terms.name,))

        Ledger(self._chain.path).change(decide)
        self.note("approved", terms.name, f"by {by}, until {until[:10]}")

    def accept(self, dataset: str, reading: str, *, by: str, columns: Sequence[str] = ()) -> None:
        """Note that the officer accepts how a data set is read.

        Args:
            dataset: its name.
            reading: which file, contract and mapping: ``DataPolicy.reading``.
            by: who accepts.
            columns: those that they named.
        """
        row = (reading, self.now().isoformat(), by, ", ".join(columns))
        with self._files[FILE].change() as file:
            file.execute("INSERT OR REPLACE INTO readings VALUES (?, ?, ?, ?)", row)
        named = f", columns {', '.join(columns)}" if columns else ""
        self.note("accepted", "", f"data {dataset} as it is read, by {by}{named}")

    def acceptance(self, reading: str) -> Acceptance | None:
        """When and by whom a reading was accepted; None if it was not.

        Args:
            reading: ``DataPolicy.reading``.
        """
        query = "SELECT at, by, columns FROM readings WHERE reading = ?"
        rows = self._files[FILE].rows(query, reading)
        return Acceptance(*rows[0]) if rows else None

    def prices(self) -> dict[str, Price]:
        """The stored costs of approved trainings, by name."""
        rows = self._files[FILE].rows("SELECT name, dataset, measure, epsilon FROM prices")
        return {name: Price(*rest) for name, *rest in rows}

    def remember_price(self, name: str, price: Price) -> None:
        """Store a training's cost, so that it is computed once."""
        with self._files[FILE].change() as file:
            file.execute("INSERT OR REPLACE INTO prices VALUES (?, ?, ?, ?)", (name, *price))

    def revoke(self, name: str) -> None:
        """End an approval: orders under its name are refused from now on, even after a crash."""
        if not self.known(name):
            raise UnsoundPlan(f"no training {shown(name)!r} was approved; 'silo status' lists them")
        at = self.now().isoformat()
        Ledger(self._chain.path).change(
            lambda _, append: append(kind="approval", training=name, state=_REVOKED_HERE, at=at)
        )
        with self._files[REVOCATIONS].change() as file:
            file.execute("INSERT OR IGNORE INTO revocations VALUES (?, ?)", (name, at))
        self.note("revoked", name, "by the owner")

    def _decided(self) -> dict[str, Approval]:
        """Each name's last decision in the ledger's chain, or its revocation; without its terms.

        In place of the terms is their digest.
        """
        query = "SELECT body FROM rows WHERE body LIKE ? OR body LIKE ? ORDER BY number"
        kinds = ('%"kind":"approval"%', '%"kind":"declared"%')
        found: dict[str, Approval] = {}
        declared = ""
        for body in (json.loads(text) for (text,) in self._chain.rows(query, *kinds)):
            at = dt.datetime.fromtimestamp(int(body["time"]), dt.UTC).isoformat()
            if body["kind"] == "declared":
                declared = at
                found = {name: _revoked(each, at) for name, each in found.items()}
            elif body["kind"] == "approval":
                name = body["training"]
                if body["state"] == _APPROVED:
                    found[name] = Approval(
                        name=name,
                        fingerprint=body["fingerprint"],
                        terms=body["terms"],
                        at=body["at"],
                        until=body["until"],
                        revoked="",
                        by=body["by"],
                    )
                else:
                    found[name] = _revoked(found.get(name, _unknown(name)), body.get("at", at))
        if declared:  # a name that was approved in the lost part
            for name, fingerprint in self._files[FILE].rows("SELECT name, fingerprint FROM terms"):
                lost = _unknown(name)._replace(fingerprint=fingerprint)
                found.setdefault(name, _revoked(lost, declared))
        for name, at in self._files[REVOCATIONS].rows("SELECT name, at FROM revocations"):
            found[name] = _revoked(found.get(name, _unknown(name)), at)
        return found

    def standing(self, name: str) -> Approval:
        """The approval of a training, if it stands; refuses any other name."""
        found, now = self._decided().get(name), self.now()
        state = "not approved" if found is None else found.state(now)
        if found is not None and state == "approved":
            found, state = self._with_terms(found), "approved, and its terms are lost,"
        if found is None or not found.terms or found.state(now) != "approved":
            raise UnsoundPlan(
                f"training {shown(name)!r} is {state} here; approve its terms with 'dpfed silo "
                f"approve'"
            )
        return found

    def terms(self, name: str) -> Terms:
        """The terms of a training whose approval stands."""
        from dpfed.recipes.terms import read_terms  # torch, which most commands do without

        return read_terms(self.standing(name).terms)

    def known(self, name: str) -> bool:
        """Whether the name was ever approved; a revoked one was."""
        return name in self._decided()

    def _with_terms(self, decided: Approval) -> Approval:
        """The approval with its terms; "" if the file has no text of their digest."""
        query = "SELECT text FROM terms WHERE digest = ?"
        texts = [text for (text,) in self._files[FILE].rows(query, decided.terms)]
        text = next((text for text in texts if _digest(text) == decided.terms), "")
        return decided._replace(terms=text)

    def all(self) -> list[Approval]:
        """All approvals, the latest first; one whose terms are lost has "" for them."""
        found = sorted(self._decided().values(), key=lambda each: each.at, reverse=True)
        return [self._with_terms(each) for each in found]

    def note(self, kind: str, training: str, said: str, at: dt.datetime | None = None) -> None:
        """Count an event of today. Names that nobody has approved are one line together.

        Args:
            kind: answered, refused, approved and so on.
            training: the name in the order.
            said: more about it; made fit for a screen.
            at: when; None means now. Of an order, when it came: how long its reply took may depend
                on records.
        """
        known = self.known(training)
        said = shown(said if known or not training else f"{training}: {said}")
        now = at or clock_time()
        with self._files[EVENTS].change() as file:
            file.execute(
                "INSERT INTO events VALUES (?, ?, ?, 1, ?, ?) ON CONFLICT (day, kind, training) "
                "DO UPDATE SET count = count + 1, last = excluded.last, said = excluded.said",
                (now.date().isoformat(), kind, training if known else "", now.isoformat(), said),
            )

    def events(self) -> list[Event]:
        """The events day by day, the latest last."""
        rows = self._files[EVENTS].rows("SELECT * FROM events ORDER BY day, last, rowid")
        return [Event(*row) for row in rows]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _unknown(name: str) -> Approval:
    return Approval(name, fingerprint="", terms="", at="", until="", revoked="", by="")


def _revoked(decided: Approval, at: str) -> Approval:
    return decided._replace(revoked=decided.revoked or at)


def clock_time() -> dt.datetime:
    """The system's time, to the second."""
    return dt.datetime.now(dt.UTC).replace(microsecond=0)
