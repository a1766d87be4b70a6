#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kill a process that books, draws, sends and confirms, many times; then count what went wrong.

    tests/soak/ledger.py --kills 1000 > results/ledger/soak.json
    tests/soak/ledger.py --kills 20 --plant send-first    # a planted bug, to see that it is found

Half of the kills (SIGKILL) come at random moments, the others between every two steps of the
protocol in turn: the child ends itself there. Beside each child an owner reads the ledger, verifies
it, and writes decisions into it, and is killed as well. After each kill the ledger must verify, the
next open must work, each release on the wire and each of the owner's rows must be in it, and no
data set may be over its budget. It exits with 1 if anything is. A killed process loses nothing that
the kernel has; a power failure is another matter, and this does not simulate one.

| edge case                                   | what happens                                       |
|---------------------------------------------|----------------------------------------------------|
| a budget is spent                           | the child goes on with the next data set           |
| a child ends by an error instead of a kill  | the soak ends by an error, too                     |
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpfed.accounting import gdp
from dpfed.accounting.event_tree import ChannelUse, TrainingReleases
from dpfed.accounting.guarantee import strongest
from dpfed.accounting.ledger.balance import Budget
from dpfed.accounting.ledger.conversions import LedgerKey
from dpfed.accounting.ledger.journal import Journal
from dpfed.accounting.ledger.ledger import Ledger
from dpfed.accounting.ledger.request import ChannelRequest, Request
from dpfed.core.errors import BudgetSpent
from dpfed.core.types import Facts
from dpfed.mechanisms.gaussian import gaussian

STEPS = ("_begin", "_insert", "_commit", "_settle", "_write_head")
POINTS = [
    *((turn, step, side) for turn in ("entry", "confirm") for step in STEPS for side in (0, 1)),
    ("draw", "", 0),
    ("send", "", 0),
    ("send", "", 1),
]
BUDGET = Budget(1.0, 1e-5)
MECHANISM = gaussian(
    Facts(1.0), 2.0 * 5**0.5 / gdp.mu_for(*BUDGET[:2]) * 1.5
)  # 11 releases fit, 12 do not
_MADE = TrainingReleases({"update": MECHANISM}, {(ChannelUse("update", 1),): 10**6})
WHOLE = _MADE.event(strongest(_MADE))
WRONG = (
    "overspent",
    "releases_without_an_entry",
    "releases_made_twice",
    "chains_broken",
    "owner_rows_lost",
    "owner_refused",
)
FRESH = 50  # kills on one file: each kill reads it from the beginning


class Victim:
    """The child: books, draws, sends, confirms, until it is killed."""

    def __init__(self, folder: Path, name: str, point: Any, after: int, plant: str) -> None:
        self.folder, self.name, self.point, self.after = folder, name, point, after
        self.early = plant == "send-first"
        if plant == "no-check":
            setattr(Ledger, "_afford", lambda *_: None)  # noqa: B010 (as a bug would)
        self.turn, self.passed = "open", 0
        for step in STEPS:
            setattr(Journal, step, self.watched(step, getattr(Journal, step)))

    def watched(self, step: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(journal: Journal, *values: Any) -> Any:
            self.at((self.turn, step, 0))
            found = original(journal, *values)
            self.at((self.turn, step, 1))
            return found

        return call

    def at(self, point: Any) -> None:
        """One step of the protocol: the end, if it is the one."""
        self.passed += point == self.point
        if point == self.point and self.passed > self.after:
            os.kill(os.getpid(), signal.SIGKILL)

    def run(self) -> None:
        ledger = Ledger(self.folder / "ledger.sqlite")
        dataset = len(ledger.balance().budgets) or 1
        ledger.agree(LedgerKey(f"d{dataset}"), BUDGET)
        for at in range(10**6):
            parts = {"update": ChannelRequest(MECHANISM, 1, 10**6)}
            self.turn = "entry"
            if self.early:
                self.send(f"d{dataset} {self.name} {at} 00\n")
            try:
                rows = ledger.begin(
                    Request(LedgerKey(f"d{dataset}"), self.name, 0, at, 0, parts, "p", WHOLE)
                )
            except BudgetSpent:
                dataset += 1
                ledger.agree(LedgerKey(f"d{dataset}"), BUDGET)
                continue
            self.at(("draw", "", 0))
            noise = os.urandom(64)
            self.at(("send", "", 0))
            if not self.early:
                self.send(f"d{dataset} {self.name} {at} {noise.hex()}\n")
            self.at(("send", "", 1))
            self.turn = "confirm"
            ledger.confirm(rows)

    def send(self, line: str) -> None:
        note(self.folder / "wire", line)


def owner(folder: Path) -> None:
    """What an owner's commands do, one after the other; rows that were committed are noted."""
    try:
        while True:
            ledger = Ledger(folder / "ledger.sqlite")
            wrong = ledger.verify()
            if wrong:
                raise RuntimeError(wrong[0])
            row = ledger.change(
                lambda _, append: append(kind="approval", training="other", state="revoked")
            )
            note(folder / "owner", f"{row.number} {row.hash}\n")
    except Exception as error:
        note(folder / "refused", f"{error!r}\n")
        print(f"an owner's command failed: {error!r}", file=sys.stderr)


def note(path: Path, line: str) -> None:
    """A line, on the disk."""
    with path.open("a", encoding="utf-8") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def noted(path: Path) -> list[str]:
    """The lines that are whole."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return text.split("\n")[:-1]


def kill_one(folder: Path, name: str, point: Any, rng: random.Random, plant: str) -> None:
    """Start a child and end it: at a point, or at a random moment."""
    beside = os.fork()
    if beside == 0:
        owner(folder)
        os._exit(1)
    child = os.fork()
    if child == 0:
        try:
            Victim(folder, name, point, rng.randrange(3), plant).run()
        except BaseException as error:
            print(f"the child failed: {error!r}", file=sys.stderr)
        os._exit(1)
    if point is None:
        time.sleep(rng.uniform(0.0, 0.15))
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    time.sleep(rng.uniform(0.0, 0.05))
    os.kill(beside, signal.SIGKILL)
    os.waitpid(beside, 0)
    if not os.WIFSIGNALED(status):
        sys.exit("error: a child ended by itself; its sentence is above")


def look(folder: Path) -> Counter[str]:
    """What is wrong after a kill, and what it wasted."""
    found: Counter[str] = Counter()
    if not (folder / "ledger.sqlite").exists():
        return found
    ledger = Ledger(folder / "ledger.sqlite")
    found["chains_broken"] = len(ledger.verify())
    rows = [row.body for row in ledger.rows() if row.body["kind"] == "entry"]
    booked = {(row["dataset"], row["training"], row["round"]) for row in rows}
    hashes = {str(row.number): row.hash for row in ledger.rows()}
    decided = [line.split() for line in noted(folder / "owner")]
    found["owner_rows"] = len(decided)
    found["owner_rows_lost"] = sum(hashes.get(number) != digest for number, digest in decided)
    found["owner_refused"] = len(noted(folder / "refused"))
    sent = Counter((d, t, int(r)) for d, t, r, _ in map(str.split, noted(folder / "wire")))
    found["releases"], found["entries"] = sent.total(), len(rows)
    found["releases_without_an_entry"] = sum(each not in booked for each in sent)
    found["releases_made_twice"] = sum(count > 1 for count in sent.values())
    limit = gdp.mu_for(*BUDGET[:2]) ** 2 * (1 + gdp.CAUTION)
    each = gdp.mu_squared(MECHANISM.noise_multiplier(), 1, MECHANISM.adjacency)
    released = Counter(dataset for dataset, _, _ in sent)
    found["overspent"] = sum(count * each > limit for count in released.values())
    spent = [ledger.spent(LedgerKey(name)).mu_squared for name in {row["dataset"] for row in rows}]
    found["overspent"] += sum(cost > limit for cost in spent)
    found["budgets_spent"] = sum(cost > limit - each for cost in spent)
    found["entries_wasted"] = len(rows) - sent.total()
    ledger.close()
    return found


def soak(kills: int, seed: int, base: Path, plant: str) -> Counter[str]:
    """Kill so many children; what each file ended with is added up."""
    rng, total, last = random.Random(seed), Counter[str](), Counter[str]()
    for number in range(kills):
        folder = base / str(number // FRESH)
        folder.mkdir(exist_ok=True)
        point = POINTS[number // 2 % len(POINTS)] if number % 2 else None
        kill_one(folder, f"t{number}", point, rng, plant)
        last = look(folder)
        if any(last[name] for name in WRONG) or number % FRESH == FRESH - 1 or number == kills - 1:
            total += last
    return total


def commit_cost(base: Path, times: int = 200) -> dict[str, float]:
    """Milliseconds of one booking, and of one that books 20 clients, on this disk."""
    ledger = Ledger(base / "cost.sqlite")
    figures = {}
    for clients in (1, 20):
        taken = []
        for at in range(times):
            parts = {"update": ChannelRequest(MECHANISM, 1, 10**6)}
            asked = [
                Request(LedgerKey(f"c/{i}"), "t", i, at, clients, parts, "p", WHOLE)
                for i in range(clients)
            ]
            began = time.perf_counter()
            ledger.begin_all(asked)
            taken.append(1e3 * (time.perf_counter() - began))
        figures[f"commit_ms_median_{clients}_clients"] = round(statistics.median(taken), 3)
    ledger.close()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plant", choices=["", "send-first", "no-check"], default="")
    options = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="dpfed-soak-") as folder:
        found = soak(options.kills, options.seed, Path(folder), options.plant)
        cost = commit_cost(Path(folder))
    names = (
        *WRONG,
        "owner_rows",
        "entries_wasted",
        "releases",
        "entries",
        "budgets_spent",
    )
    figures = {
        "kills": options.kills,
        "points": len(POINTS),
        "seed": options.seed,
        **{name: found[name] for name in names},
        **cost,
        "seconds": round(time.perf_counter() - began, 1),
    }
    print(json.dumps(figures, indent=2))
    sys.exit(any(figures[name] for name in WRONG))


if __name__ == "__main__":
    main()
