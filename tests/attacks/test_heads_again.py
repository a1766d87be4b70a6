# SPDX-License-Identifier: Apache-2.0
"""Heads of ledgers: what they show to others, and what a keeper who picks them can make of them.

A head's time counted orders, so other silos read how often this one was drawn. One lost part was
booked once for each head that the newest one did not name. Heads of a clock that was ahead hid all
later ones. Two branches of one epoch counted as one, unless they named one row with two hashes.
"""

from __future__ import annotations

import datetime as dt
import math
import random
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, RecordDict
from msgspec.structs import replace
from typer.testing import CliRunner

from dpfed.accounting.ledger.blocks import by_block
from dpfed.accounting.ledger.heads import (
    MOST_HEADS,
    Conflict,
    Head,
    begin_epoch,
    declare_lost,
    knows,
    pack,
    take_head,
    unpack,
)
from dpfed.accounting.ledger.ledger import Ledger
from dpfed.cli.main import app
from dpfed.core.dsse import open_statement
from dpfed.core.errors import BudgetSpent, DataError, LedgerRolledBack
from dpfed.recipes.terms import read_terms
from dpfed.silo.handler import RequestHandler
from dpfed.training.wire.codec import CONTROL
from dpfed.training.wire.enrolment import enrolment
from dpfed.training.wire.heads import CONTENT_BYTES, Kept, open_head
from tests.accounting.ledger.test_heads import (
    BINDING,
    copied,
    made,
    restored,
    tenths,
    training,
)
from tests.helpers.handlers import (
    _own_environment,  # noqa: F401
    approved,
    handler,
    looked_at,
    order,
    said,
    sent,
)
from tests.helpers.ledgers import BUDGET, KEY
from tests.silo.gates import terms_for


def answered(held: RequestHandler, raw: bytes) -> dict[str, Any]:
    """As a gate answers: it looks at the order before it makes a child."""
    return said(looked_at(held, raw) or held.reply(raw))


def statement(name: str) -> bytes:
    asked = {"stage": "statement", "training": name, "model": "0" * 64}
    return sent(RecordDict({CONTROL: ConfigRecord(asked)}))


def time_of(head: bytes) -> int:
    """What everybody can read of a head."""
    return int(struct.unpack(">Q", head[96:104])[0])


# --------------------------------------------------------------------------------- what is shown


@pytest.mark.parametrize("drawn", [0, 1, 2, 3])
def test_a_heads_time_does_not_tell_how_often_a_silo_was_asked(
    tmp_path: Path, drawn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    noon = dt.datetime(2027, 1, 15, 12, tzinfo=dt.UTC)
    monkeypatch.setattr("dpfed.silo.approvals.clock_time", lambda: noon)
    monkeypatch.setattr("dpfed.silo.handler.clock_time", lambda: noon)
    held, terms = approved(tmp_path)
    enrol = sent(enrolment({"training": terms.name}))
    heads = [answered(held, enrol)["head"]]
    for at in range(drawn):
        answered(held, order(terms, at))
        answered(held, order(terms, at))  # and repeats
    answered(held, sent(enrolment({"training": "nobody-approved-this"})))
    heads += [answered(held, statement(terms.name))["head"], answered(held, enrol)["head"]]
    assert [time_of(each) - time_of(heads[0]) for each in heads] == [0, 1, 2]


def test_two_heads_differ_also_if_nothing_happened(tmp_path: Path) -> None:
    """Equal ones would say that this silo was not drawn in between."""
    held, terms = approved(tmp_path)
    enrol = sent(enrolment({"training": terms.name}))
    one, two = (answered(held, enrol)["head"] for _ in range(2))
    assert time_of(one) != time_of(two)
    opened = [open_head(each, held.key) for each in (one, two)]
    assert opened[0] != opened[1]


# -------------------------------------------------------------------------------- a clock ahead


def test_heads_of_a_clock_that_was_ahead_hide_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, terms = approved(tmp_path)
    from dpfed.silo import approvals

    true, shift = approvals.clock_time, dt.timedelta(0)

    def clock() -> dt.datetime:
        return true() + shift

    monkeypatch.setattr("dpfed.silo.approvals.clock_time", clock)
    monkeypatch.setattr("dpfed.silo.handler.clock_time", clock)
    server = Kept(tmp_path / "server")
    enrol = sent(enrolment({"training": terms.name}))

    def ask(raw: bytes) -> dict[str, Any]:
        reply = answered(held, raw)
        if "head" in reply:
            server.keep([reply["head"]])
        return reply

    for hours in range(4):
        shift = dt.timedelta(days=3650, hours=hours)
        held.approvals.approve(terms, terms.text, days=1, by="officer")
        assert "error" not in ask(enrol)
    shift = dt.timedelta(0)
    held.approvals.reset_clock("officer")
    held.approvals.approve(terms, terms.text, days=30, by="officer")
    shutil.copytree(held.state, tmp_path / "copy")
    for at in range(3):
        assert "error" not in ask(order(terms, at))
        assert "error" not in ask(enrol)
    shutil.rmtree(held.state)
    shutil.copytree(tmp_path / "copy", held.state)
    begin_epoch(held.ledger())
    asked = enrolment({"training": terms.name}, heads=server.newest())
    assert answered(held, sent(asked))["error"] == "LedgerRolledBack"
    assert answered(held, order(terms))["error"] == "LedgerRolledBack"


def test_after_a_loss_is_declared_new_heads_come_after_the_lost_ones(tmp_path: Path) -> None:
    ledger = made(tmp_path / "ledger.sqlite")
    copied(ledger, tmp_path / "backup")
    ledger = Ledger(ledger.path)
    lost = take_head(ledger, 2**60)  # by a clock that was ahead
    ledger = restored(ledger, tmp_path / "backup")
    assert take_head(ledger, 5).time == 5
    declare_lost(ledger, [lost], by="root")
    assert take_head(ledger, 6).time == 2**60 + 1


# ------------------------------------------------------------------------------ what is booked


def brought(ledger: Ledger, heads: list[Head]) -> None:
    """As a gate meets heads, and its owner declares."""
    try:
        Conflict(ledger.path).meet(ledger, heads)
    except LedgerRolledBack:
        declare_lost(ledger, Conflict(ledger.path).heads(), by="officer")
        Conflict(ledger.path).end()


def test_one_lost_part_is_booked_once_whatever_heads_are_picked(tmp_path: Path) -> None:
    ledger, heads = made(tmp_path / "ledger.sqlite"), []
    copied(ledger, tmp_path / "backup")
    ledger = Ledger(ledger.path)
    ledger.begin(training("a", 1, 0))  # one release, a tenth of the budget
    for _ in range(60):
        ledger.change(lambda _, append: append(kind="approval", training="x", state="approved"))
        heads.append(take_head(ledger))
    orders = ([heads[-1], *heads[::-7]], heads[::5], [heads[3], heads[59], heads[30]])
    for several in orders:
        for at_once in (True, False):
            ledger = restored(ledger, tmp_path / "backup")
            for some in [several] if at_once else [[each] for each in several]:
                brought(ledger, some)
            assert tenths(ledger) == pytest.approx(1)
            assert tenths(ledger) >= 1
            assert ledger.verify() == []
            assert all(knows(ledger, head) for head in heads if head.row <= several[0].row)


def test_a_later_head_of_a_declared_epoch_books_only_what_is_more(tmp_path: Path) -> None:
    ledger, heads = made(tmp_path / "ledger.sqlite"), []
    copied(ledger, tmp_path / "backup")
    ledger = Ledger(ledger.path)
    for at in range(4):
        ledger.begin(training("a", 5, at))
        heads.append(take_head(ledger))
    ledger = restored(ledger, tmp_path / "backup")
    for count, head in enumerate(heads, 1):
        assert not knows(ledger, head)
        brought(ledger, [head])
        assert tenths(ledger) == pytest.approx(count)
        assert tenths(ledger) >= count
    assert ledger.verify() == []


class Branches:
    """A ledger that is put back at random, and which releases each of its chains and heads has."""

    def __init__(self, folder: Path, draw: random.Random) -> None:
        self.folder, self.draw = folder, draw
        self.ledger = made(folder / "ledger.sqlite")
        self.made = 0
        self.here: frozenset[int] = frozenset()
        self.copies: list[tuple[Path, frozenset[int]]] = []
        self.epoch = 0
        self.forks = 0
        self.heads: list[tuple[int, Head, frozenset[int]]] = []

    def release(self) -> None:
        key = KEY._replace(dataset=f"d{self.made % 3}")
        self.ledger.begin(training(f"t{self.made}", 1, 0, key=key))
        self.here, self.made = self.here | {self.made}, self.made + 1

    def give(self) -> None:
        self.heads.append((self.epoch, take_head(self.ledger), self.here))

    def copy(self) -> None:
        self.copies.append((self.folder / f"copy-{len(self.copies)}", self.here))
        copied(self.ledger, self.copies[-1][0])
        self.ledger = Ledger(self.ledger.path)

    def put_back(self) -> None:
        copy, self.here = self.draw.choice(self.copies)
        self.ledger, self.epoch = restored(self.ledger, copy), self.epoch + 1

    def put_back_under_a_gate(self) -> None:
        copy, self.here = self.draw.choice(self.copies)
        self.ledger = restored(self.ledger, copy, begun=False)
        self.forks += 1

    def declared(self, heads: list[Head]) -> float:
        """How many releases are counted, with those of the heads, beyond those that are here."""
        self.ledger = restored(self.ledger, self.copies[-1][0])
        for head in heads:
            brought(self.ledger, [head])
        assert all(knows(self.ledger, head) for head in heads)
        assert self.ledger.verify() == []
        keys = [KEY._replace(dataset=f"d{each}") for each in range(3)]
        return sum(tenths(self.ledger, key) for key in keys) - len(self.copies[-1][1])


@pytest.mark.parametrize("forks", [False, True], ids=["restarted", "under a gate"])
@pytest.mark.parametrize("seed", range(12))
def test_what_is_booked_is_at_least_the_truth_in_every_order(
    tmp_path: Path, seed: int, forks: bool
) -> None:
    """Law: over epochs, copies and picked heads. The truth is counted by hand, release by release;
    without forks each epoch counts at most all that any one of its heads has."""
    draw = random.Random(seed)
    found = Branches(tmp_path, draw)
    found.copy()
    acts = [found.release] * 4 + [found.give] * 4 + [found.copy, found.put_back]
    acts += [found.put_back_under_a_gate] * forks
    for _ in range(60):
        draw.choice(acts)()
    found.copy()
    here = found.here
    picked = draw.sample(found.heads, len(found.heads) // 2)
    orders = [draw.sample(picked, len(picked)) for _ in range(3)]
    totals = [found.declared([head for _, head, _ in each]) for each in orders]
    lost = frozenset().union(*(has for _, _, has in picked)) - here
    most = {epoch: max(len(has) for at, _, has in picked if at == epoch) for epoch, *_ in picked}
    assert min(totals) >= len(lost) - 1e-6
    assert max(totals) <= sum(most.values()) + 1e-6 or found.forks


@pytest.mark.parametrize("seed", range(8))
def test_every_two_branches_of_one_epoch_are_seen(tmp_path: Path, seed: int) -> None:
    """A machine is put back with its memory: ten releases are lost on each of two branches, and of
    each somebody brings one head. Most such pairs name no row in common."""
    draw = random.Random(seed)
    ledger = made(tmp_path / "ledger.sqlite")
    copied(ledger, tmp_path / "backup")
    ledger, picked = Ledger(ledger.path), []
    row = {"kind": "approval", "training": "x", "state": "approved"}
    before = draw.randrange(50, 500)
    ledger.change(lambda _, append: [append(**row) for _ in range(before)])
    copied(ledger, tmp_path / "memory")
    for branch in "ab":
        heads = []
        for at in range(10):
            ledger.begin(training(f"{branch}{at}", 1, 0))
            heads += [take_head(ledger) for _ in range(draw.randrange(3))]
        heads.append(take_head(ledger))
        picked.append(draw.choice(heads))
        ledger = restored(ledger, tmp_path / "memory", begun=False)
    for at_once in (True, False):
        ledger = restored(ledger, tmp_path / "backup")
        for some in [picked] if at_once else [[each] for each in picked]:
            brought(ledger, some)
        assert math.isinf(ledger.spent(KEY).epsilon(1e-5, KEY.adjacency))
        with pytest.raises(BudgetSpent):
            ledger.claim(training("c", 1))


@pytest.mark.slow
@pytest.mark.parametrize("keepers", [1, 3, 10])
def test_an_honest_loss_exhausts_nothing_however_many_bring_heads(
    tmp_path: Path, keepers: int
) -> None:
    """Law: one lost branch, also of many epochs. Each keeper has the last four heads that it got,
    long ago or just now, and they come one by one. A tenth is lost with each fifth head."""
    draw = random.Random(keepers)
    for lost in (10, 150):
        ledger = made(tmp_path / f"{lost}" / "ledger.sqlite")
        ledger.declare(KEY, BUDGET._replace(epsilon=40.0))
        copied(ledger, tmp_path / f"{lost}" / "backup")
        ledger, given = Ledger(ledger.path), []
        for at in range(lost):
            if at % 5 == 0:
                ledger.begin(training(f"t{at}", 1, 0))
            given.append(take_head(ledger))
        truth, epochs = tenths(ledger), len({head.epoch for head in given})
        ends = [lost, *(draw.randrange(1, lost + 1) for _ in range(keepers - 1))]
        held = [head for end in ends for head in given[max(0, end - 4) : end]]
        ledger = restored(ledger, tmp_path / f"{lost}" / "backup")
        for head in draw.sample(held, len(held)):
            brought(ledger, [head])
        assert truth <= tenths(ledger) <= epochs * truth + 1e-6
        assert epochs == -(-lost // MOST_HEADS)
        assert epochs > 1 or tenths(ledger) == pytest.approx(truth)
        ledger.claim(training("c", 1))


@pytest.mark.slow
def test_a_head_names_all_heads_of_its_epoch_before_it_and_fits(tmp_path: Path) -> None:
    ledger, before = made(tmp_path / "ledger.sqlite"), dict[str, set[str]]()
    keys = [KEY._replace(dataset=f"ward {at}/2026-{at:02}") for at in range(12)]
    for at, key in enumerate(keys):
        ledger.begin(training(f"t{at}", 1, 0, key=key))
    for _ in range(2 * MOST_HEADS + 1):
        head = take_head(ledger)
        assert before.setdefault(head.epoch, {head.epoch}) <= head.names
        before[head.epoch].add(head.hash)
    assert [len(each) for each in before.values()] == [MOST_HEADS + 1, MOST_HEADS + 1, 2]
    assert len(head.costs or ()) == len(keys)
    assert unpack(pack(head, CONTENT_BYTES - 2)) == head


@pytest.mark.parametrize("how", ["two branches", "costs that do not fit", "no head"])
def test_every_account_is_exhausted_also_one_that_the_copy_does_not_know(
    tmp_path: Path, how: str
) -> None:
    """A month, or a data set, whose first release was in the lost part had its whole budget."""
    ledger = made(tmp_path / "ledger.sqlite")
    ledger.bind_blocks("adult", BINDING)
    copied(ledger, tmp_path / "backup")
    heads = []
    for name in "ab":
        ledger = Ledger(ledger.path)
        ledger.begin_together(by_block(training(name, 1, 0), ["2026-03"]))
        heads.append(take_head(ledger))
        ledger = restored(ledger, tmp_path / "backup", begun=False)
    begin_epoch(ledger)
    if how == "two branches":
        declare_lost(ledger, heads, by="root")
    elif how == "no head":
        declare_lost(ledger, [], by="root", everything=True)
    else:
        declare_lost(ledger, [replace(heads[0], costs=None)], by="root")
    with pytest.raises(BudgetSpent):
        ledger.claim_together(by_block(training("c", 1), ["2026-03"]))
    other = KEY._replace(dataset="census")
    ledger.declare(other, BUDGET)
    with pytest.raises(BudgetSpent):
        ledger.claim(training("d", 1, key=other))
    copied(ledger, tmp_path / "exhausted")
    ledger.declare(other, BUDGET, anew=True)
    ledger.claim(training("d", 1, key=other))
    with pytest.raises(BudgetSpent):
        ledger.claim_together(by_block(training("c", 1), ["2026-03"]))
    assert ledger.verify() == []
    head = take_head(ledger)  # of the new budget, which the next copy has not
    ledger = restored(ledger, tmp_path / "exhausted")
    declare_lost(ledger, [head], by="root")
    with pytest.raises(BudgetSpent):
        ledger.claim(training("e", 1, key=other))


def test_two_branches_of_one_epoch_exhaust_the_account(tmp_path: Path) -> None:
    """Memory or files were put back under a gate that went on: nobody knows how often."""
    ledger = made(tmp_path / "ledger.sqlite")
    copied(ledger, tmp_path / "backup")
    heads = []
    for name in ("a", "b"):
        ledger = Ledger(ledger.path)
        ledger.begin(training(name, 1, 0))
        heads.append(take_head(ledger))
        ledger.close()
        for path in (tmp_path / "backup").iterdir():
            shutil.copy(path, tmp_path)
    for several, restart in ((heads, True), (heads[:1], False)):
        for path in (tmp_path / "backup").iterdir():
            shutil.copy(path, tmp_path)
        ledger = Ledger(tmp_path / "ledger.sqlite")
        if restart:
            begin_epoch(ledger)
        declare_lost(ledger, several, by="root")
        assert math.isinf(ledger.spent(KEY).epsilon(1e-5, KEY.adjacency))
        with pytest.raises(BudgetSpent):
            ledger.claim(training("c", 1))
        ledger.close()


# --------------------------------------------------------------------------------- a new budget


def test_only_an_exhausted_account_begins_anew_and_statements_say_so(tmp_path: Path) -> None:
    held, terms = approved(tmp_path)
    held.reply(order(terms))
    state = held.state / "ledger.sqlite"
    command = ["ledger", "budget", "sepsis", "--epsilon", "4", "--anew", "--ledger", str(state)]
    refused = CliRunner().invoke(app, command)
    assert isinstance(refused.exception, DataError) or refused.exit_code
    assert "earlier" not in _predicate(held, terms.name)
    lost = ["ledger", "declare-lost", "--no-head", "--yes", "--ledger", str(state)]
    assert CliRunner().invoke(app, lost).exit_code == 0
    other = read_terms(terms_for(tmp_path, 3, name="other").read_bytes())
    held.approvals.approve(other, other.text, days=1, by="root")
    assert answered(held, sent(enrolment({"training": "other"})))["error"] == "BudgetSpent"
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "error" not in answered(held, sent(enrolment({"training": "other"})))
    assert "error" not in answered(held, order(other))
    assert "not counted" in _predicate(held, "other")["earlier"]
    again = handler(tmp_path)  # a gate that is started, whose policy has another budget
    assert "not counted" in _predicate(again, "other")["earlier"]
    assert again.ledger().verify() == []
    assert CliRunner().invoke(app, command).exit_code != 0  # once


def _predicate(held: RequestHandler, name: str) -> dict[str, Any]:
    found = answered(held, statement(name))["statement"]
    return dict(open_statement(found, held.key.public).predicate)


def test_a_budget_that_was_begun_anew_in_the_lost_part_exhausts(tmp_path: Path) -> None:
    ledger = made(tmp_path / "ledger.sqlite")
    ledger.begin(training("before", 5, 0))
    copied(ledger, tmp_path / "backup")
    ledger = Ledger(ledger.path)
    declare_lost(ledger, [], by="root", everything=True)
    ledger.declare(KEY, BUDGET, anew=True)
    ledger.begin(training("after", 1, 0))
    assert tenths(ledger) == pytest.approx(1)
    head = take_head(ledger)  # less than the copy had spent: a difference would be nothing
    ledger = restored(ledger, tmp_path / "backup")
    declare_lost(ledger, [head], by="root")
    with pytest.raises(BudgetSpent):
        ledger.claim(training("c", 1))
