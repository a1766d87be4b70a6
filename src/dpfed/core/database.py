# SPDX-License-Identifier: Apache-2.0
"""SQLite files: opened by SQLite alone, and by one connection of a process at a time.

    with writing(path) as db: ...        # made for its owner alone if there is none
    with transaction(path) as db: ...    # the same, all or nothing
    with reading(path) as db: ...        # one state of the file; nothing is made or changed

POSIX drops *all* locks of a process on a file when the process closes *any* descriptor of it. So a
second way to open a database's file loses what is committed next to it. Nothing here is open
outside of such a block, so none is open at a fork: ``os.fork`` waits until other threads have left
theirs.

Guarantee: what a block of ``writing`` has committed is on the disk (a rollback journal,
``synchronous=EXTRA``), unless it was told not to wait for the disk. A reader neither makes nor
changes a file, whatever is in it: ``mode=ro``, ``query_only``, no functions of a file's own schema.
It holds a shared lock, so that all that one block reads is of one moment.

| edge case                                     | what happens                                    |
|-----------------------------------------------|-------------------------------------------------|
| a writer was killed before its commit         | the next writer takes it back                   |
| the same, and a reader is next                | with ``recover`` it is taken back; else         |
|                                               | DataError: whoever writes next takes it back    |
| a file with a write-ahead log                 | a writer ends that, and a reader that recovers; |
|                                               | others refuse it, since to read it makes files  |
| a block in a block of the same thread         | both have the one connection                    |
| another thread, or another process            | waits; after a minute SQLite's error            |
| a fork in a block                             | the child has no connection, and makes its own  |
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfed.core.errors import DataError

Connection = sqlite3.Connection
# SQLite's error may quote a broken file's own bytes, which then are not UTF-8.
BROKEN = (sqlite3.DatabaseError, UnicodeDecodeError)
"""What a file that cannot be used raises."""
UNAVAILABLE = sqlite3.OperationalError
"""What of these says nothing of the file: a full disk, another process, a folder."""
_LOCK_TIMEOUT_S = 60.0  # how long to wait for another process
_JOURNAL_TIMEOUT_S = 2.0  # how long a reader waits for a journal that belongs to nobody
_CUT_OFF = sqlite3.SQLITE_READONLY_ROLLBACK
_AHEAD = sqlite3.SQLITE_IOERR_LOCK  # what a reader gets of a write-ahead log


class _File:
    """The connection that this process has to one file, and the lock of its threads on it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.db: Connection | None = None
        self.writes = False


_FILES: dict[str, _File] = {}
_INHERITED: list[Connection] = []


class _Forks:
    """Which threads are in blocks, and which want to fork: a fork waits until others have left.

    While one waits, no thread begins a block, but one that is in a block may begin another: else
    both would wait for ever. Nor does it wait for a thread that wants to fork, in a block. One
    thread forks at a time.
    """

    def __init__(self) -> None:
        self.changed, self.depths = threading.Condition(), dict[int, int]()
        self.wanting, self.forking = set[int](), False

    @contextmanager
    def block(self) -> Iterator[None]:
        thread = threading.get_ident()
        with self.changed:
            self.changed.wait_for(lambda: thread in self.depths or not self.wanting)
            self.depths[thread] = self.depths.get(thread, 0) + 1
        try:
            yield
        finally:
            with self.changed:
                self.depths[thread] -= 1
                if not self.depths[thread]:
                    del self.depths[thread]
                self.changed.notify_all()

    def begin(self) -> None:
        with self.changed:
            self.wanting.add(threading.get_ident())
            self.changed.notify_all()
            self.changed.wait_for(lambda: not self.forking and self.depths.keys() <= self.wanting)
            self.forking = True

    def end(self) -> None:
        with self.changed:
            self.forking = False
            self.wanting.discard(threading.get_ident())
            self.changed.notify_all()

    def end_in_child(self) -> None:
        depths, thread = self.depths, threading.get_ident()
        self.__init__()  # type: ignore[misc]  # the parent's other threads are not here
        self.depths.update({own: deep for own, deep in depths.items() if own == thread})


_FORKS = _Forks()


@contextmanager
def writing(path: Path, *, durable: bool = True) -> Iterator[Connection]:
    """The connection to a file, which is made if there is none; statements commit by themselves.

    Args:
        path: the file; its folder must be there.
        durable: whether a commit waits for the disk.
    """
    with _locked(path) as file:
        if file.db is not None:
            if not file.writes:
                raise RuntimeError(f"{path} is being read: leave that block before it is changed")
            yield file.db
            return
        db = _connected(str(path), make=not path.exists())
        _set(db, "journal_mode = DELETE", f"synchronous = {'EXTRA' if durable else 'OFF'}")
        _set(db, "fullfsync = ON")
        yield from _held(file, db, writes=True)


@contextmanager
def transaction(path: Path, *, durable: bool = True) -> Iterator[Connection]:
    """One transaction on a file, which is made if there is none: all of it, or nothing.

    Args:
        path: the file; its folder must be there.
        durable: whether the commit waits for the disk.
    """
    with writing(path, durable=durable) as db:
        db.execute("BEGIN IMMEDIATE")
        try:
            yield db
            db.execute("COMMIT")
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")


@contextmanager
def reading(path: Path, *, recover: bool = False) -> Iterator[Connection]:
    """A connection that only reads; nobody commits to the file until the block ends.

    Args:
        path: the file, which must be there.
        recover: whether a commit that was cut off is taken back; only for files of one's own.
    """
    with _locked(path) as file:
        if file.db is not None:
            yield file.db
            return
        yield from _held(file, _reader(path, recover=recover), writes=False)


def copy_file(source: Path, target: Path) -> None:
    """Copy a file that others may write to, as it is at one moment.

    Args:
        source: the file.
        target: the copy.
    """
    with reading(source, recover=True) as found, writing(target) as copy:
        found.backup(copy)


def is_empty(db: Connection) -> bool:
    """Whether there is no table, index or trigger in a file."""
    return db.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone() is None


@dataclass(frozen=True)
class Tables:
    """A file of one's own with some tables; one that is not there, or was not begun, has no rows.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     names = Tables(Path(folder) / "names.sqlite", ("CREATE TABLE names (name TEXT)",))
    ...     before = names.rows("SELECT name FROM names")
    ...     with names.change() as db:
    ...         _ = db.execute("INSERT INTO names VALUES ('ward 7')")
    ...     before, names.rows("SELECT name FROM names")
    ([], [('ward 7',)])
    """

    path: Path
    schema: tuple[str, ...] = ()
    """The statements that make the tables."""
    durable: bool = True
    """Whether a change waits for the disk."""

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """The rows that a query finds.

        Args:
            query: in SQL.
            values: of its parameters.
        """
        if not self.path.exists():
            return []
        try:
            with reading(self.path, recover=True) as db:
                return [] if is_empty(db) else db.execute(query, values).fetchall()
        except BROKEN as error:
            raise self._unusable(error) from error

    @contextmanager
    def change(self) -> Iterator[Connection]:
        """One transaction, in a file with these tables."""
        try:
            with transaction(self.path, durable=self.durable) as db:
                if is_empty(db):
                    for statement in self.schema:
                        db.execute(statement)
                yield db
        except BROKEN as error:
            raise self._unusable(error) from error

    def _unusable(self, error: Exception) -> DataError:
        return DataError(
            f"{self.path} cannot be used ({error}), so nothing is answered; put back its last copy"
        )


# ------------------------------------------------------------------------------- opening


@contextmanager
def _locked(path: Path) -> Iterator[_File]:
    file = _FILES.setdefault(os.path.realpath(path), _File())
    with _FORKS.block(), file.lock:
        yield file


def _held(file: _File, db: Connection, *, writes: bool) -> Iterator[Connection]:
    file.db, file.writes, process = db, writes, os.getpid()
    try:
        yield db
    finally:
        if process == os.getpid():  # else this is a child, and the connection its parent's
            file.db = None
            db.close()


def _connected(name: str, *, make: bool = False, uri: bool = False) -> Connection:
    before = os.umask(0o077) if make else 0
    try:
        db = sqlite3.connect(
            name, _LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False, uri=uri
        )
    finally:
        if make:
            os.umask(before)
    _set(db, "trusted_schema = OFF")
    return db


def _set(db: Connection, *settings: str) -> None:
    for setting in settings:
        db.execute(f"PRAGMA {setting}").close()


def _reader(path: Path, *, recover: bool) -> Connection:
    deadline = time.monotonic() + _JOURNAL_TIMEOUT_S
    while True:
        db = _connected(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        # so the shared lock is held until the end, and a write-ahead log is refused
        _set(db, "query_only = ON", "locking_mode = EXCLUSIVE")
        try:
            is_empty(db)
            return db
        except BROKEN as error:
            db.close()
            code = getattr(error, "sqlite_errorcode", 0)
            if code not in (_CUT_OFF, _AHEAD) or time.monotonic() > deadline:
                if code == _CUT_OFF:
                    raise DataError(
                        f"a write to {str(path)!r} was cut off, and only a writer may take it "
                        f"back; start what writes to it, the gate or a training, and read it then"
                    ) from error
                raise
        if recover:  # SQLite takes back what was cut off, and ends a write-ahead log
            with closing(_connected(str(path))) as writer:
                _set(writer, "journal_mode = DELETE")
        else:  # a commit may have ended just now
            time.sleep(0.01)


# ------------------------------------------------------------------------------- forks


def _after_fork_in_child() -> None:
    """Forget the parent's connections; to close one would undo what the parent writes."""
    _INHERITED.extend(file.db for file in list(_FILES.values()) if file.db is not None)
    _FILES.clear()
    _FORKS.end_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_FORKS.begin,
        after_in_parent=_FORKS.end,
        after_in_child=_after_fork_in_child,
    )
