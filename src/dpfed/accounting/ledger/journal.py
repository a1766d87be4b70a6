# SPDX-License-Identifier: Apache-2.0
"""An append-only file of rows on a local disk: SQLite, a chain of hashes, and a head beside it.

Guarantee: what ``turn`` wrote is on the disk (fsync) when it returns, all of it or nothing, and
only one writer at a time has its turn, over all processes. Each row's hash covers the row before:

    hash_n = SHA-256(hash_(n-1) || body_n),    body_n canonical JSON with the number of its write

so an edited, deleted, inserted or reordered row breaks the chain. The chain cannot show that the
last rows are missing. The head does: a small file beside the database with the number of rows and
the last hash. It is written after each commit, so a crash in between leaves it exactly one write
behind. Only that is accepted, and the next write fixes it. It has 512 bytes, one sector of a disk,
and is written over in place: a disk writes a sector whole or not at all.

    path         the database (with -journal beside it while a write goes on)
    path.head    {"rows": 12, "writes": 5, "hash": "..."}

The file is not protected from whoever may write to the disk: they can restore an older database
together with its head, or make a new chain. docs/ledger.md says what helps.

| edge case                                   | what happens                                       |
|---------------------------------------------|----------------------------------------------------|
| killed before the commit                    | nothing was written                                |
| killed between the commit and the head      | accepted; the next write fixes the head            |
| the head is two writes behind, or ahead     | DataError: rows were taken away or put back        |
| the head is gone, and rows are there        | DataError, unless there was only one write         |
| the head is torn (a disk that tears sectors)| DataError: it is no head, or fits no row           |
| a row is edited, deleted, moved             | DataError with its number                          |
| the file gets shorter while it is open      | DataError                                          |
| a database of another program               | DataError, and not a byte of it is changed         |
| two processes write at once                 | they take turns; after a minute, DataError         |
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from dpfed.core.database import (
    BROKEN,
    UNAVAILABLE,
    Connection,
    is_empty,
    reading,
    writing,
)
from dpfed.core.dsse import canonical_json
from dpfed.core.errors import DataError
from dpfed.core.files import write_over

Body = dict[str, Any]

VERSION = 1
_HEAD_BYTES = 512
_SCHEMA = (
    "CREATE TABLE rows (number INTEGER PRIMARY KEY, body TEXT NOT NULL, hash TEXT NOT NULL)",
    "CREATE TRIGGER no_update BEFORE UPDATE ON rows"
    " BEGIN SELECT RAISE(ABORT, 'rows are only ever added'); END",
    "CREATE TRIGGER no_delete BEFORE DELETE ON rows"
    " BEGIN SELECT RAISE(ABORT, 'rows are only ever added'); END",
    f"PRAGMA user_version = {VERSION}",
)
_NEWS = "SELECT number, body, hash FROM rows WHERE number >= ? ORDER BY number"
_BACKWARDS = "SELECT number, body, hash FROM rows ORDER BY number DESC"


class Row(NamedTuple):
    """One row; its link to the row before was checked."""

    number: int
    body: Body
    hash: str


class JournalHead(NamedTuple):
    """The number of rows and writes, and the last row's hash."""

    rows: int = 0
    writes: int = 0
    hash: str = "0" * 64


class Journal:
    """The file of rows. The first turn makes it, and its folder; reading makes nothing.

    Args:
        path: the file.
        create: whether it may be missing. If not, it may be another's file, and is only read.
    """

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self.path, self._head_path = path, path.with_name(f"{path.name}.head")
        self._own, self._lock = create, threading.RLock()
        self._db: Connection | None = None  # within a block of _reading or _writing
        self._tail, self._write = JournalHead(), 0
        if not create and not path.exists():
            raise DataError(f"there is no ledger at {str(path)!r}; give its path with --ledger")
        with self._reading():
            self._is_made()  # refuses what is no ledger

    def news(self) -> list[Row]:
        """The rows since the last read, each checked against the one before."""
        with self._reading():
            return self._news()

    def forget(self) -> None:
        """Read all rows again next time."""
        self._tail = JournalHead()

    @contextmanager
    def turn(self) -> Iterator[list[Row]]:
        """The only way to write: no other writer has a turn until it ends. Gives the new rows.

        Leaving the context commits what was appended; an exception rolls all of it back.
        """
        with self._writing():
            self._begin()
            try:
                self._make()
                news = self._news()
                self._fix_head()
                before = self._tail
                self._write = before.writes + 1
                yield news
                changed = self._tail.rows > before.rows
                if changed:
                    self._commit()
            except BaseException:
                self.forget()
                raise
            finally:
                if self._file.in_transaction:
                    self._file.execute("ROLLBACK")
            if changed:
                self._settle()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """The file as it is at one moment; without a connection if there is no file yet."""
        with self._lock:
            if not self.path.exists():
                yield
                return
            try:
                with reading(self.path, recover=self._own) as db, self._connected(db):
                    yield
            except BROKEN as error:
                raise DataError(
                    f"the ledger {str(self.path)!r} cannot be opened or read ({error}); check the "
                    f"file and its folder, or give another path (--ledger, ledger.path or "
                    f"DPFED_LEDGER)"
                ) from error

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """The file, to be written to; SQLite's errors become DataError."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise DataError(
                f"the ledger {str(self.path)!r} cannot be made ({error}); give another path "
                f"(--ledger, ledger.path or DPFED_LEDGER)"
            ) from error
        try:
            with self._lock, writing(self.path) as db, self._connected(db):
                yield
        except UNAVAILABLE as error:  # a full disk: the file itself is as it was
            raise DataError(
                f"the ledger {str(self.path)!r} could not be written to ({error}), and is as it "
                f"was; make room on its disk, and run again"
            ) from error
        except BROKEN as error:
            raise DataError(f"{str(self.path)!r} cannot be used ({error}); {_WAY_OUT}") from error

    @contextmanager
    def _connected(self, db: Connection) -> Iterator[None]:
        before, self._db = self._db, db
        try:
            yield
        finally:
            self._db = before

    @property
    def _file(self) -> Connection:
        if self._db is None:
            raise RuntimeError("rows are read and written within a block that opens the file")
        return self._db

    def _is_made(self) -> bool:
        """Whether the tables are there; refuses the database of another program or version."""
        if self._db is None:  # there is no file
            return False
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        empty = is_empty(self._db)
        if version != (0 if empty else VERSION):
            raise DataError(
                f"the ledger {str(self.path)!r} must be of version {VERSION}, got "
                f"{version or 'another database'}; check the path, or update dpfed"
            )
        return not empty

    def _make(self) -> None:
        if not self._is_made():
            for statement in _SCHEMA:
                self._file.execute(statement)

    def append(self, **body: Any) -> Row:
        """Add a row, within a turn."""
        whole = {**body, "write": self._write, "time": round(time.time(), 3)}
        text = canonical_json(whole).decode()
        digest = _digest(self._tail.hash, text)
        row = Row(self._tail.rows + 1, json.loads(text), digest)
        self._insert(row.number, text, digest)
        self._tail = JournalHead(row.number, self._write, digest)
        return row

    @property
    def tail(self) -> JournalHead:
        """The head that fits the rows read so far."""
        return self._tail

    def verify(self) -> tuple[list[Row], list[str]]:
        """All rows up to the first that is wrong, and what is wrong, in sentences."""
        with self._reading():  # a writer may be between its commit and its head, one write behind
            self.forget()
            found: list[Row] = []
            try:
                found.extend(self._checked())
                self._behind()
            except DataError as error:
                return found, [str(error)]
            finally:
                self.forget()
            return found, []

    # ------------------------------------------------------------- the steps of the protocol

    def _begin(self) -> None:
        try:
            self._file.execute("BEGIN IMMEDIATE")
        except UNAVAILABLE as error:
            raise DataError(
                f"the ledger {str(self.path)!r} cannot be written to ({error}); end the process "
                f"that holds it, or make its disk writable"
            ) from error

    def _insert(self, number: int, text: str, digest: str) -> None:
        self._file.execute("INSERT INTO rows VALUES (?, ?, ?)", (number, text, digest))

    def _commit(self) -> None:
        self._file.execute("COMMIT")

    def _settle(self) -> None:
        """Write the head for the rows as they are now: others may have written since."""
        self._begin()
        try:
            number, body, digest = self._file.execute(_BACKWARDS).fetchone()
            self._write_head(JournalHead(number, json.loads(body)["write"], digest))
        finally:
            self._file.execute("ROLLBACK")

    def _write_head(self, head: JournalHead) -> None:
        write_over(self._head_path, canonical_json(head._asdict()).ljust(_HEAD_BYTES))

    # ------------------------------------------------------------------------------ checks

    def _news(self) -> list[Row]:
        return list(self._checked())

    def _checked(self) -> Iterator[Row]:
        known = self._tail.rows
        for number, text, digest in self._select(_NEWS, known):
            if number == known:
                self._same(digest)
                known = -1
                continue
            yield self._linked(number, text, digest)
        if known > 0:
            raise DataError(f"row {known} of {str(self.path)!r} is gone; {_WAY_OUT}")

    def _select(self, query: str, *values: int) -> Iterator[tuple[int, str, str]]:
        try:
            if self._is_made():
                yield from self._file.execute(query, values)
        except BROKEN as error:
            raise DataError(f"{str(self.path)!r} cannot be read ({error}); {_WAY_OUT}") from error

    def _same(self, digest: str) -> None:
        if digest != self._tail.hash:
            raise DataError(
                f"row {self._tail.rows} of {str(self.path)!r} is not what it was; {_WAY_OUT}"
            )

    def _linked(self, number: int, text: str, digest: str) -> Row:
        due, where = self._tail.rows + 1, str(self.path)
        if number != due:
            raise DataError(f"row {due} of {where!r} is missing; {_WAY_OUT}")
        if digest != _digest(self._tail.hash, text):
            raise DataError(f"row {number} of {where!r} was changed or moved; {_WAY_OUT}")
        try:
            body: Body = json.loads(text)
            self._tail = JournalHead(number, body["write"], digest)
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"row {number} of {where!r} is not a row; {_WAY_OUT}") from error
        return Row(number, body, digest)

    def _fix_head(self) -> None:
        """Bring the head up to date if a crash left it one write behind."""
        if self._behind():
            self._write_head(self._tail)

    def _behind(self) -> bool:
        """Whether the head is one write behind the rows; refuses it if it differs otherwise."""
        head, tail = self._read_head(), self._tail
        if head == tail:
            return False
        if head.writes + 1 == tail.writes and head == self._before_last(tail.writes):
            return True
        raise DataError(
            f"the ledger {str(self.path)!r} has {tail.rows} rows, and its head says {head.rows}: "
            f"rows were taken away, or an old copy was put in place; {_WAY_OUT}"
        )

    def _before_last(self, write: int) -> JournalHead:
        """The head as it was before the last write."""
        for number, text, digest in self._select(_BACKWARDS):
            at = json.loads(text)["write"]
            if at != write:
                return JournalHead(number, at, digest)
        return JournalHead()

    def _read_head(self, *, again: bool = True) -> JournalHead:
        try:
            head = JournalHead(**json.loads(self._head_path.read_bytes()))
            if [type(part) for part in head] != [int, int, str]:
                raise TypeError(head)
            return head
        except FileNotFoundError:
            return JournalHead()
        except (ValueError, TypeError) as error:
            if again:  # a reader may meet a writer's bytes half way
                time.sleep(0.01)
                return self._read_head(again=False)
            raise DataError(f"{str(self._head_path)!r} is not a head; {_WAY_OUT}") from error


_WAY_OUT = (
    "what was spent is no longer known: put back the newest backup of the ledger and its head, or "
    "count the whole budget as spent"
)


def _digest(before: str, text: str) -> str:
    return hashlib.sha256(f"{before}{text}".encode()).hexdigest()
