# SPDX-License-Identifier: Apache-2.0
"""Four processes on one ledger, killed at random: what has left is in it, and it goes on.

Two gates' children enrol, enter, draw, send and confirm; an owner reads and verifies; an owner
changes the budget. Nothing that the ledger says is believed: what left is counted from the bytes
that were sent, and the rows are read from the file and hashed here.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from dpfed.accounting.ledger.heads import take_head
from dpfed.accounting.ledger.ledger import Ledger
from dpfed.core.errors import BudgetSpent
from tests.helpers.ledgers import BUDGET, KEY, request

TENTHS = 10
"""How many releases the budget allows: tests/helpers/ledgers.py."""
LONGEST_S = 0.4


def note(path: Path, *values: object) -> None:
    """One line, on the disk."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(values) + "\n")
        file.flush()
        os.fsync(file.fileno())


def lines(path: Path) -> list[list[object]]:
    """The whole lines; the last may be half of one."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def gate(folder: Path, name: str) -> None:
    """As a gate's child does: its account, its head, and then a release."""
    for at in range(TENTHS):
        account, second = (Ledger(folder / "ledger.sqlite") for _ in range(2))
        account.balance()
        head = take_head(second)
        note(folder / f"{name}.rows", head.row, head.hash)
        try:
            rows = account.begin(request(at, training=name))
        except BudgetSpent:
            return
        note(folder / f"{name}.sent", name, at, os.urandom(16).hex())
        account.confirm(rows)


def reads(folder: Path) -> None:
    """As the owner's commands that only look."""
    while True:
        wrong = Ledger(folder / "ledger.sqlite", create=False).verify()
        assert wrong == [], wrong


def writes(folder: Path) -> None:
    """As the owner's commands that decide something."""
    while True:
        row = Ledger(folder / "ledger.sqlite").change(
            lambda _, append: append(kind="approval", training="other", state="revoked")
        )
        note(folder / "owner.rows", row.number, row.hash)
        time.sleep(0.002)


def begun(folder: Path, name: str, work: Callable[[], None]) -> int:
    """A process that does this; what it raises is noted."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            note(folder / "errors", name, repr(error))
        finally:
            os._exit(0)
    return child


def recount(folder: Path) -> Counter[str]:
    """What is wrong, by the bytes alone."""
    path, found = folder / "ledger.sqlite", Counter[str]()
    with closing(sqlite3.connect(path)) as db:
        rows = db.execute("SELECT number, body, hash FROM rows ORDER BY number").fetchall()
    last, hashes, entered = "0" * 64, {}, Counter[tuple[object, ...]]()
    for due, (number, text, digest) in enumerate(rows, start=1):
        last = hashlib.sha256(f"{last}{text}".encode()).hexdigest()
        found["broken"] += (number, digest) != (due, last)
        hashes[number], body = digest, json.loads(text)
        if body["kind"] == "entry":
            entered[body["training"], body["round"]] += 1
    for each in folder.glob("*.rows"):
        written = [(int(str(number)), str(digest)) for number, digest in lines(each)]
        found["lost rows"] += sum(not hashes.get(n, "").startswith(digest) for n, digest in written)
    sent = [line for each in folder.glob("*.sent") for line in lines(each)]
    found["lost releases"] += sum(not entered[name, at] for name, at, _ in sent)
    found["repeated"] += sum(count > 1 for count in entered.values())
    found["overspent"] += len(sent) > TENTHS
    found["errors"] += len(lines(folder / "errors"))
    found["sent"] += len(sent)
    return found


def trial(folder: Path, draw: random.Random) -> Counter[str]:
    """One history of four processes, each killed at its own moment."""
    Ledger(folder / "ledger.sqlite").declare(KEY, BUDGET)
    works = {
        "a": lambda: gate(folder, "a"),
        "b": lambda: gate(folder, "b"),
        "reads": lambda: reads(folder),
        "writes": lambda: writes(folder),
    }
    ends = {begun(folder, n, work): draw.uniform(0.02, LONGEST_S) for n, work in works.items()}
    began = time.monotonic()
    for child, end in sorted(ends.items(), key=lambda item: item[1]):
        time.sleep(max(0.0, began + end - time.monotonic()))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    found = recount(folder)
    after = Ledger(folder / "ledger.sqlite")  # none is bricked
    take_head(after)
    found["refused"] += bool(after.verify())
    return found


def trials(folder: Path, count: int) -> Counter[str]:
    draw, total = random.Random(50), Counter[str]()
    for number in range(count):
        place = folder / str(number)
        place.mkdir()
        total += trial(place, draw)
    return total


WRONG = ("broken", "lost rows", "lost releases", "repeated", "overspent", "errors", "refused")


@pytest.mark.slow
def test_four_processes_that_are_killed_lose_nothing(tmp_path: Path) -> None:
    found = trials(tmp_path, 12)
    assert {name: found[name] for name in WRONG} == dict.fromkeys(WRONG, 0)
    assert found["sent"] > 0


@pytest.mark.long
@pytest.mark.slow
def test_so_it_is_in_five_hundred_trials(tmp_path: Path) -> None:
    found = trials(tmp_path, 500)
    assert {name: found[name] for name in WRONG} == dict.fromkeys(WRONG, 0)
    assert found["sent"] > 500
