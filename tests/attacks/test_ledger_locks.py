# SPDX-License-Identifier: Apache-2.0
"""Attacks on a ledger's locks: rows that were committed, and are gone.

Before: the journal opened and closed the database's file itself before SQLite did, and a gate's
child had two ledgers. POSIX then dropped all locks of the process. Whoever looked at the ledger at
that moment took away the file that the child wrote to: five releases left and none was entered,
``verify`` found nothing, and the same round was released again. A second gate on one state took the
first one's socket, and both went on.
"""

from __future__ import annotations

import gc
import json
import os
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dpfed.accounting.ledger.heads import take_head
from dpfed.accounting.ledger.journal import Journal
from dpfed.accounting.ledger.ledger import Ledger
from dpfed.core.errors import DataError, UnsoundPlan
from dpfed.core.jail import run_in_child
from dpfed.silo import gate
from dpfed.silo.gate import only_gate
from tests.cli.test_start import trained
from tests.helpers.handlers import _own_environment, approved, enrolment, looked_at, order, said  # noqa: F401
from tests.helpers.ledgers import B2, BUDGET, KEY, request
from tests.silo.gates import Silo, read, terms_for


def child_of(work: Callable[[], Any]) -> int:
    """A forked process that does this, and ends without a word."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return child


def report_of(work: Callable[[], Any], path: Path) -> Any:
    """What ``work`` returns in a forked process, as JSON; its error, if it has one."""

    def write() -> None:
        try:
            found = work()
        except BaseException as error:
            found = repr(error)
        path.write_text(json.dumps(found))

    os.waitpid(child_of(write), 0)
    return json.loads(path.read_text())


def wait(path: Path) -> None:
    while not path.exists():
        time.sleep(0.005)


def enrols(folder: Path) -> None:
    """As a gate's child does: an account, and then a head; long between its commit and the head."""
    first = Ledger(folder / "ledger.sqlite")
    first.balance()
    second = Ledger(folder / "ledger.sqlite")
    second.balance()
    (folder / "opened").touch()
    wait(folder / "looked")
    settle = Journal._settle

    def slow(self: Journal) -> None:
        (folder / "committed").touch()
        wait(folder / "released")
        settle(self)

    Journal._settle = slow  # type: ignore[method-assign]
    take_head(second)
    del second
    gc.collect()
    del first
    gc.collect()


def looks(folder: Path) -> None:
    """As ``dpfed silo status`` does."""
    wait(folder / "opened")
    Ledger(folder / "ledger.sqlite").balance()
    gc.collect()  # what it held is closed
    (folder / "looked").touch()


def releases(folder: Path) -> None:
    """As another writer does, which ends before the first one goes on."""
    wait(folder / "committed")
    other = Ledger(folder / "ledger.sqlite")
    for at in range(5):
        other.confirm(other.begin(request(at)))
    del other
    gc.collect()
    (folder / "released").touch()


def test_no_release_is_lost_whoever_looks_or_writes_between_commit_and_head(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger.sqlite"
    Ledger(path).declare(KEY, BUDGET)
    gc.collect()
    children = [child_of(partial(work, tmp_path)) for work in (enrols, looks, releases)]
    for each in children:
        os.waitpid(each, 0)
    after = Ledger(path)
    assert after.verify() == []
    assert after.spent(KEY).mu_squared == pytest.approx(B2 / 2)
    with pytest.raises(UnsoundPlan, match="in the ledger already"):
        after.begin(request(0))


# ----------------------------------------------------------------------- during an enrolment


def test_an_enrolment_holds_the_lock_whenever_it_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, terms = approved(tmp_path)
    path = held.state / "ledger.sqlite"
    seen: list[tuple[str, bool]] = []

    def locked() -> bool:
        """Whether this process has a lock that keeps other writers out, as the kernel sees it."""
        mine = (str(os.getpid()), f":{path.stat().st_ino}")
        lines = (line.split() for line in Path("/proc/locks").read_text().splitlines())
        return any(
            line[1] == "POSIX" and line[3] == "WRITE" and line[4] == mine[0]
            for line in lines
            if line[5].endswith(mine[1])
        )

    def watch(step: str) -> None:
        real = getattr(Journal, step)

        def call(self: Journal, *values: Any) -> Any:
            seen.append((step, locked()))
            return real(self, *values)

        monkeypatch.setattr(Journal, step, call)

    for step in ("_insert", "_commit", "_write_head"):
        watch(step)

    def enrol() -> list[Any]:
        replies = [held.reply(enrolment(terms.name)), held.reply(order(terms))]
        return [[said(each).get("error") for each in replies], seen]

    errors, steps = report_of(enrol, tmp_path / "report")
    assert errors == [None, None]
    assert {step for step, _ in steps} == {"_insert", "_commit", "_write_head"}
    assert len(steps) >= 9  # a claim, a head, an entry: three rows, commits and heads
    assert all(lock for _, lock in steps), steps


def open_databases() -> list[str]:
    """The databases that this process has a descriptor of."""
    found = []
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(str(each.readlink()))
    return [name for name in found if name.endswith(".sqlite")]


@dataclass
class Hook:
    """What Python tells of every file that is opened, and of every fork."""

    wrong: list[str] = field(default_factory=list)
    opened: set[str] = field(default_factory=set)
    forks: list[list[str]] = field(default_factory=list)

    def __call__(self, event: str, values: tuple[Any, ...]) -> None:
        name = str(values[0]).removeprefix("file://").split("?")[0] if values else ""
        if event == "os.fork":
            self.forks.append(open_databases())
        elif event == "open" and name.endswith((".sqlite", ".sqlite-journal")):
            self.wrong.append(f"{name} is opened")
        elif event == "sqlite3.connect":
            self.connect(name, sys._getframe(1).f_code.co_filename)

    def connect(self, name: str, caller: str) -> None:
        self.opened.add(Path(name).name)
        if not caller.endswith("core/database.py"):
            self.wrong.append(f"{name} is connected to by {caller}")
        if name in open_databases():
            self.wrong.append(f"{name} is open already")


def test_only_sqlite_opens_a_database_and_once_at_a_time(tmp_path: Path) -> None:
    """By a gate, its children and the owner's commands; and none is open at a fork."""
    text = terms_for(tmp_path, 3).read_text()

    def work() -> list[Any]:
        sys.addaudithook(hook := Hook())
        held, terms = approved(tmp_path)
        held.approvals.revoke(terms.name)
        held.approvals.approve(terms, text, days=1, by="root")

        def answer(message: bytes) -> bytes:
            reply = held.reply(message)
            (tmp_path / "child").write_text(json.dumps(hook.wrong))
            return reply

        replies = []
        for message in (enrolment(terms.name), order(terms)):
            assert looked_at(held, message) is None
            reply = run_in_child(partial(answer, message), 60.0)
            replies.append(said(reply).get("error"))
            hook.wrong += json.loads((tmp_path / "child").read_text())
        held.approvals.events()
        assert held.ledger().verify() == []
        return [hook.wrong, sorted(hook.opened), hook.forks, replies]

    wrong, opened, forks, replies = report_of(work, tmp_path / "report")
    assert wrong == []
    assert {f"{name}.sqlite" for name in ("approvals", "events", "ledger", "sources")} <= set(
        opened
    )
    assert forks == [[], []]
    assert replies == [None, None]


# ------------------------------------------------------------------------- files of other programs


@pytest.mark.parametrize("version", [0, 1, 7])
@pytest.mark.parametrize("create", [False, True])
def test_a_database_of_another_program_is_left_as_it_is(
    tmp_path: Path, version: int, create: bool
) -> None:
    path = tmp_path / "cookies.sqlite"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE cookies (a)")
    db.execute(f"PRAGMA user_version = {version}")
    db.commit()
    db.close()
    before = path.read_bytes()
    with pytest.raises(DataError):
        Ledger(path, create=create).rows()
    with pytest.raises(DataError):
        Ledger(path).declare(KEY, BUDGET)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["cookies.sqlite"]


# ----------------------------------------------------------------------------- one gate, one state


def test_a_second_gate_on_a_state_ends_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "_LOCK_TIMEOUT_S", 0.1)
    with only_gate(tmp_path / "state"):
        said = r"gate\.state must be one gate's alone, got .*stop"
        with pytest.raises(DataError, match=said), only_gate(tmp_path / "state"):
            pass
        with only_gate(tmp_path / "other"):
            pass
    with only_gate(tmp_path / "state"):
        pass


@pytest.mark.slow
def test_a_second_process_leaves_the_first_ones_socket_alone(tmp_path: Path) -> None:
    from dpfed.silo.frames import ask

    first, second = Silo(tmp_path / "silo", 0), Silo(tmp_path / "silo", 0)
    first.write()
    path = terms_for(tmp_path, 3)
    first.approve(path)
    first.start()
    try:
        node = first.socket.stat().st_ino
        second.spawn()
        assert second.process is not None
        assert second.process.wait(60) == 2
        log = (first.folder / "gate.log").read_text()
        assert "error: gate.state must be one gate's alone" in log
        assert first.socket.stat().st_ino == node
        assert "error" not in said(ask(str(first.socket), order(read(path)), 60))
        first.kill()
        second.kill()
        second.start()  # a killed gate holds nothing
    finally:
        first.kill()
        second.kill()


# ------------------------------------------------------------------------ a stranger's run's folder


def test_no_page_on_a_strangers_folder_opens_what_its_recipe_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, it made tables in any database, and folders of any name."""
    from dpfed.cli import start

    other = tmp_path / "home" / "cookies.sqlite"
    other.parent.mkdir()
    db = sqlite3.connect(other)
    db.execute("CREATE TABLE cookies (a)")
    db.close()
    before = other.read_bytes()
    opened: list[Path] = []
    for named in (other, tmp_path / "none" / "ledger.sqlite"):
        out = trained(tmp_path / named.parent.name / "out", {"epsilon": 2.0})
        recipe = (out / "recipe.toml").read_text()
        (out / "recipe.toml").write_text(f'{recipe}\n[ledger]\ndataset = "x"\npath = "{named}"\n')
        monkeypatch.setattr(Ledger, "__init__", lambda _, path, **__: opened.append(path))
        start.explain(out)
        monkeypatch.undo()
        assert opened == []
        assert "which is opened only if you name" in (out / "statement.md").read_text()
    assert other.read_bytes() == before
    assert not (tmp_path / "none" / "ledger.sqlite").exists()
