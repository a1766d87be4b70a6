# SPDX-License-Identifier: Apache-2.0
"""SQLite files: what a writer and a reader do to them, and what a fork leaves alone."""

from __future__ import annotations

import ast
import hashlib
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from dpfed.core import database
from dpfed.core.database import BROKEN, Tables, copy_file, reading, transaction, writing
from dpfed.core.errors import DataError

SOURCE = Path(database.__file__).parents[1]
ITEMS = ("CREATE TABLE items (at INTEGER PRIMARY KEY, text TEXT)",)


def items(path: Path) -> Tables:
    return Tables(path, ITEMS)


def count(path: Path) -> int:
    return len(items(path).rows("SELECT at FROM items"))


def add(path: Path) -> None:
    with items(path).change() as db:
        db.execute("INSERT INTO items (text) VALUES ('x')")


def in_a_child(work: Callable[[], object]) -> int:
    """The exit code of a forked process; 1 if it raises."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def open_here(path: Path) -> int:
    """How many descriptors of a file this process has."""
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found += each.readlink() == path
    return found


def names_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


# ---------------------------------------------------------------------------------- the source


def test_one_module_opens_databases_and_it_opens_nothing_else() -> None:
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {node.name for node in ast.walk(tree) if isinstance(node, ast.alias)}
        names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        tops = {name.split(".")[0] for name in names if name}
        if path == Path(database.__file__):
            called = {ast.unparse(node.func) for node in ast.walk(tree) if type(node) is ast.Call}
            opens = ("open", "read_bytes", "read_text", "write_bytes", "write_text", "touch")
            assert not {each for each in called if each.split(".")[-1] in opens}
        else:
            assert not tops & {"sqlite3", "_sqlite3", "apsw", "sqlalchemy"}, path


# --------------------------------------------------------------------------- writers and readers


def test_a_writer_makes_a_file_for_its_owner_alone_and_keeps_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    before = os.umask(0o022)
    try:
        with transaction(path) as db:
            for statement in ITEMS:
                db.execute(statement)
            assert {each.stat().st_mode & 0o777 for each in tmp_path.iterdir()} == {0o600}
            assert os.umask(0o022) == 0o022
            settings = {
                name: db.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("journal_mode", "synchronous", "trusted_schema")
            }
    finally:
        os.umask(before)
    assert settings == {"journal_mode": "delete", "synchronous": 3, "trusted_schema": 0}
    assert names_in(tmp_path) == ["a.sqlite"]
    assert open_here(path) == 0


def test_an_exception_takes_a_transaction_back(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    add(path)
    with suppress(KeyError), items(path).change() as db:
        db.execute("INSERT INTO items (text) VALUES ('y')")
        raise KeyError
    assert count(path) == 1


def test_a_reader_makes_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    assert items(path).rows("SELECT at FROM items") == []
    assert names_in(tmp_path) == []
    add(path)
    before = path.read_bytes()
    with reading(path) as db:
        assert names_in(tmp_path) == ["a.sqlite"]
        for statement in ("INSERT INTO items VALUES (9, '')", "CREATE TABLE t (a)"):
            with pytest.raises(sqlite3.OperationalError, match="readonly"):
                db.execute(statement)
        (immutable,) = (row[2] for row in db.execute("PRAGMA database_list"))
        assert immutable == str(path)
    assert path.read_bytes() == before
    assert names_in(tmp_path) == ["a.sqlite"]


def test_a_reader_refuses_a_write_ahead_log_and_makes_no_file_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_JOURNAL_TIMEOUT_S", 0.1)
    path = tmp_path / "a.sqlite"
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("CREATE TABLE items (at INTEGER)")
    db.commit()
    db.close()
    before = hashlib.sha256(path.read_bytes()).digest()
    with pytest.raises(BROKEN), reading(path):
        pass
    assert names_in(tmp_path) == ["a.sqlite"]
    assert hashlib.sha256(path.read_bytes()).digest() == before
    assert count(path) == 0  # its owner's own word ends the log
    assert path.read_bytes()[18:20] == b"\x01\x01"
    assert names_in(tmp_path) == ["a.sqlite"]


def test_all_that_a_reader_reads_is_of_one_moment(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    add(path)
    writer = os.fork()
    if writer == 0:
        time.sleep(0.2)
        with suppress(BaseException):
            add(path)
        os._exit(0)
    with reading(path) as db:
        seen = []
        for _ in range(5):
            seen += db.execute("SELECT count(*) FROM items").fetchone()
            time.sleep(0.1)
    os.waitpid(writer, 0)
    assert seen == [1] * 5
    assert count(path) == 2


def cut_off(path: Path) -> None:
    """Kill a writer whose changes are in the file, and not committed."""

    def work() -> None:
        with transaction(path) as db:
            db.execute("PRAGMA cache_size = 1")
            db.executemany("INSERT INTO items (text) VALUES (?)", [("x" * 900,)] * 500)
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_a_child(work) == -signal.SIGKILL
    assert path.with_name(f"{path.name}-journal").exists()


def test_what_was_cut_off_is_taken_back_by_whoever_owns_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_JOURNAL_TIMEOUT_S", 0.1)
    path = tmp_path / "a.sqlite"
    add(path)
    cut_off(path)
    before = path.read_bytes()
    said = "was cut off, and only a writer may take it back"
    with pytest.raises(DataError, match=said), reading(path):
        pass
    assert path.read_bytes() == before
    assert count(path) == 1
    assert names_in(tmp_path) == ["a.sqlite"]
    cut_off(path)
    add(path)
    assert count(path) == 2


def test_a_copy_is_of_one_moment(tmp_path: Path) -> None:
    add(tmp_path / "a.sqlite")
    copy_file(tmp_path / "a.sqlite", tmp_path / "b.sqlite")
    add(tmp_path / "a.sqlite")
    assert (count(tmp_path / "a.sqlite"), count(tmp_path / "b.sqlite")) == (2, 1)


# --------------------------------------------------------------------- one connection, and forks


def test_blocks_within_blocks_share_the_connection(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    add(path)
    (tmp_path / "link").symlink_to(path)
    with writing(path) as db, writing(tmp_path / "link") as same, reading(path) as third:
        assert db is same is third
        assert open_here(path) == 1
    assert open_here(path) == 0
    with reading(path), pytest.raises(RuntimeError, match="is being read"), writing(path):
        pass


def test_threads_wait_for_each_other(tmp_path: Path) -> None:
    path, most = tmp_path / "a.sqlite", []
    add(path)

    def work() -> None:
        for _ in range(10):
            with transaction(path) as db:
                most.append(open_here(path))
                db.execute("INSERT INTO items (text) VALUES ('x')")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert most == [1] * 40
    assert count(path) == 41


def test_a_fork_waits_until_other_threads_have_closed_their_files(tmp_path: Path) -> None:
    path, inside = tmp_path / "a.sqlite", threading.Event()

    def work() -> None:
        with transaction(path) as db:
            db.execute(ITEMS[0])
            inside.set()
            time.sleep(0.3)

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait()

    def child() -> None:
        assert open_here(path) == 0
        add(path)

    assert in_a_child(child) == 0
    thread.join()
    add(path)
    assert count(path) == 2


def test_a_child_that_is_forked_in_a_block_undoes_nothing_of_its_parents(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    add(path)
    with transaction(path) as db:
        db.execute("PRAGMA cache_size = 1")
        db.executemany("INSERT INTO items (text) VALUES (?)", [("x" * 900,)] * 500)
        child = os.fork()
        if child == 0:
            with suppress(KeyError), database._locked(path) as file:
                assert file.db is None  # nothing of the parent's is to be used here
                raise KeyError
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    assert count(path) == 501


def test_a_child_that_leaves_its_parents_block_closes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    add(path)
    forked = 1
    with writing(path) as db:
        db.execute("BEGIN IMMEDIATE")
        db.execute("PRAGMA cache_size = 1")
        db.executemany("INSERT INTO items (text) VALUES (?)", [("x" * 900,)] * 500)
        forked = os.fork()
        if forked:
            assert os.waitpid(forked, 0)[1] == 0
            db.execute("COMMIT")
    if forked == 0:
        os._exit(0)
    assert count(path) == 501
