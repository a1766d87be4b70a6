# SPDX-License-Identifier: Apache-2.0
"""Heads of a ledger: an older copy in its place is noticed, and its owner declares what is lost."""

from __future__ import annotations

import json
import math
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from dpfed.accounting.ledger.balance import Budget
from dpfed.accounting.ledger.blocks import BlockBinding, account_of, by_block
from dpfed.accounting.ledger.conversions import LedgerKey
from dpfed.accounting.ledger.heads import (
    MOST_CONFLICTS,
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
from dpfed.accounting.ledger.request import ChannelRequest, Request
from dpfed.cli.main import app
from dpfed.core.errors import BudgetSpent, DataError, LedgerRolledBack
from dpfed.core.sampling import Everyone
from dpfed.core.types import UPDATE
from tests.helpers.ledgers import B2, BUDGET, DRAWN, KEY, TENTH, ZERO, request

BINDING = BlockBinding("admitted", "month", "patient", "2026-03-01", "mark")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return made(tmp_path / "ledger.sqlite")


def made(path: Path) -> Ledger:
    found = Ledger(path)
    begin_epoch(found)
    found.declare(KEY, BUDGET)  # ten releases of TENTH
    return found


def training(name: str, rounds: int, at: int = -1, **changes: Any) -> Request:
    parts = {UPDATE: ChannelRequest(TENTH, int(at >= 0), rounds)}
    named = {"training": name, "plan": f"plan of {name}", "parts": parts}
    return request(max(at, 0), **{**named, **changes})


def copied(ledger: Ledger, to: Path) -> None:
    """Both files, as a backup has them."""
    ledger.close()
    to.mkdir(exist_ok=True)
    for path in ledger.path.parent.glob("ledger.sqlite*"):
        shutil.copy(path, to)


def restored(ledger: Ledger, backup: Path, *, begun: bool = True) -> Ledger:
    """The copy in its place; ``begun``: a gate is started, else it ran on."""
    ledger.close()
    for path in ledger.path.parent.glob("ledger.sqlite*"):
        path.unlink()
    for path in backup.iterdir():
        shutil.copy(path, ledger.path.parent)
    found = Ledger(ledger.path)
    if begun:
        begin_epoch(found)
    return found


def tenths(ledger: Ledger, key: LedgerKey = KEY) -> float:
    """How many releases of TENTH the ledger counts."""
    return ledger.spent(key).mu_squared / (B2 / 10)


def lost_after_three(ledger: Ledger, backup: Path) -> tuple[Ledger, Head]:
    """A ledger put back from a copy, and the head that it gave after three more releases."""
    ledger.begin(training("a", 5, 0))
    copied(ledger, backup)
    ledger = Ledger(ledger.path)
    for at in range(1, 4):
        ledger.begin(training("a", 5, at))
    head = take_head(ledger)
    return restored(ledger, backup), head


def test_a_head_names_its_own_row_and_is_known_for_ever(ledger: Ledger) -> None:
    first = take_head(ledger)
    again = take_head(ledger)  # nothing happened, and nobody can see that
    assert (again.row, again.time) == (first.row + 1, first.time + 1)
    ledger.begin(training("a", 5, 0))
    second = take_head(ledger)
    assert second.row > first.row
    assert {first.hash, again.hash} < second.names
    assert knows(ledger, first)
    assert knows(ledger, second)
    assert ledger.verify() == []
    Conflict(ledger.path).meet(ledger, [first, second])  # old true heads are no conflict


def test_an_older_copy_is_noticed_also_once_it_has_more_rows(
    ledger: Ledger, tmp_path: Path
) -> None:
    ledger, head = lost_after_three(ledger, tmp_path / "backup")
    assert not knows(ledger, head)
    for at in range(1, 5):
        ledger.begin(training("a", 5, at))
    ledger.confirm([ledger.balance().last])
    assert ledger.balance().last > head.row  # it overtook the lost one
    assert not knows(ledger, head)
    assert ledger.verify() == []  # nothing on this disk shows it
    declare_lost(ledger, [head], by="root")
    assert tenths(ledger) == pytest.approx(8)  # 1 in both, 3 that are lost, 4 since


def test_a_conflict_stays_until_the_loss_is_declared(ledger: Ledger, tmp_path: Path) -> None:
    ledger, head = lost_after_three(ledger, tmp_path / "backup")
    conflict = Conflict(ledger.path)
    with pytest.raises(LedgerRolledBack, match="declare-lost"):
        conflict.meet(ledger, [head])
    with pytest.raises(LedgerRolledBack):
        Conflict(ledger.path).meet(Ledger(ledger.path), [])  # also of another process
    assert conflict.heads() == [head]
    declare_lost(ledger, conflict.heads(), by="root")
    conflict.end()
    conflict.meet(ledger, [head])
    assert knows(ledger, head)
    assert tenths(ledger) == pytest.approx(4)
    assert tenths(ledger) >= 4  # never less than what was released
    assert ledger.verify() == []


def test_a_loss_is_booked_once_also_if_it_is_declared_twice(ledger: Ledger, tmp_path: Path) -> None:
    ledger, head = lost_after_three(ledger, tmp_path / "backup")
    declare_lost(ledger, [head], by="root")
    assert declare_lost(ledger, [head, head], by="root") == []
    assert tenths(ledger) == pytest.approx(4)


def test_a_declared_loss_leaves_only_the_rest_of_the_budget(ledger: Ledger, tmp_path: Path) -> None:
    ledger, head = lost_after_three(ledger, tmp_path / "backup")
    declare_lost(ledger, [head], by="root")
    with pytest.raises(BudgetSpent):
        ledger.claim(training("b", 7))
    ledger.claim(training("b", 5))


def test_what_an_enrolled_training_could_still_spend_is_in_the_head(
    ledger: Ledger, tmp_path: Path
) -> None:
    copied(ledger, tmp_path / "backup")
    ledger = Ledger(ledger.path)
    ledger.claim(training("a", 5))
    head = take_head(ledger)
    for at in range(5):  # after the last head that anyone has
        ledger.begin(training("a", 5, at))
    ledger = restored(ledger, tmp_path / "backup")
    declare_lost(ledger, [head], by="root")
    assert tenths(ledger) == pytest.approx(5)


def test_a_claim_that_has_lapsed_is_in_the_head_all_the_same(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.claim(training("a", 5))
    monkeypatch.setattr("time.time", lambda: 4e9)  # it could still ask
    (cost,) = take_head(ledger).costs or ()
    assert cost.mu_squared == pytest.approx(B2 / 2)


def test_of_several_heads_of_one_lost_part_the_latest_counts(
    ledger: Ledger, tmp_path: Path
) -> None:
    copied(ledger, tmp_path / "backup")
    ledger, heads = Ledger(ledger.path), []
    for at in range(4):
        ledger.begin(training("a", 5, at))
        heads.append(take_head(ledger))
    ledger = restored(ledger, tmp_path / "backup")
    declare_lost(ledger, [heads[1], heads[3], heads[0]], by="root")
    assert tenths(ledger) == pytest.approx(4)
    assert knows(ledger, heads[2])  # the latest one names it


def test_two_lost_parts_are_both_booked(ledger: Ledger, tmp_path: Path) -> None:
    copied(ledger, tmp_path / "backup")
    heads = []
    for name in ("a", "b"):
        ledger = Ledger(ledger.path)
        for at in range(3):
            ledger.begin(training(name, 3, at))
        heads.append(take_head(ledger))
        ledger = restored(ledger, tmp_path / "backup")
        ledger.close()
    ledger = Ledger(ledger.path)
    declare_lost(ledger, heads, by="root")
    assert tenths(ledger) == pytest.approx(6)


def test_a_ledger_made_anew_is_the_oldest_copy(ledger: Ledger, tmp_path: Path) -> None:
    for at in range(4):
        ledger.begin(training("a", 5, at))
    head = take_head(ledger)
    new = made(tmp_path / "new" / "ledger.sqlite")
    assert not knows(new, head)
    declare_lost(new, [head], by="root")
    assert tenths(new) == pytest.approx(4)


@pytest.mark.parametrize("when", ["in both", "lost", "since"])
def test_runs_with_draws_exhaust_the_account(tmp_path: Path, when: str) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    begin_epoch(ledger)
    ledger.declare(ZERO, Budget(8.0, 1e-5))
    parts = {UPDATE: ChannelRequest(DRAWN, 1, 2)}
    drawn = request(0, key=ZERO, training="drawn", plan="drawn", parts=parts)
    if when == "in both":
        ledger.begin(drawn)
    copied(ledger, tmp_path / "backup")
    ledger = Ledger(ledger.path)
    undrawn = {UPDATE: ChannelRequest(DRAWN.with_sampling(Everyone()), 1, 1)}
    lost = training("lost", 1, 0, key=ZERO, parts=undrawn)
    ledger.begin(drawn if when == "lost" else lost)
    head = take_head(ledger)
    ledger = restored(ledger, tmp_path / "backup")
    if when == "since":
        ledger.begin(drawn)
    declare_lost(ledger, [head], by="root")
    assert math.isinf(ledger.spent(ZERO).epsilon(1e-5, ZERO.adjacency))
    assert ledger.balance().exhausted == {ZERO.dataset}
    assert ledger.verify() == []


def test_what_does_not_fit_into_a_head_has_no_bound(ledger: Ledger, tmp_path: Path) -> None:
    ledger.begin(training("a", 5, 0))
    head = take_head(ledger)
    assert head.costs is not None
    one = head.costs[0]
    wide = replace(head, costs=tuple(replace(one, key=LedgerKey(f"set-{i}")) for i in range(900)))
    assert unpack(pack(wide, 2000)).costs is None
    declare_lost_in_new(tmp_path / "two", unpack(pack(wide, 2000)))


def declare_lost_in_new(folder: Path, head: Head) -> None:
    """After such a head nothing more is admitted."""
    new = made(folder / "ledger.sqlite")
    declare_lost(new, [head], by="root")
    with pytest.raises(BudgetSpent):
        new.claim(training("b", 1))
    assert math.isinf(new.spent(KEY).epsilon(1e-5, KEY.adjacency))
    assert new.verify() == []


@pytest.mark.parametrize("wrong", [-1.0, float("nan")])
def test_a_head_without_true_costs_is_refused(ledger: Ledger, wrong: float) -> None:
    ledger.begin(training("a", 5, 0))
    head = take_head(ledger)
    assert head.costs is not None
    assert unpack(pack(head, 2000)) == head
    text = zlib.decompress(pack(head, 2000)).decode()
    cost = json.dumps(head.costs[0].mu_squared)
    assert cost in text
    with pytest.raises(DataError, match="whole"):
        unpack(zlib.compress(text.replace(cost, json.dumps(wrong)).encode()))


def test_a_file_of_conflicts_stays_small_and_refuses_even_if_broken(
    ledger: Ledger, tmp_path: Path
) -> None:
    ledger, head = lost_after_three(ledger, tmp_path / "backup")
    conflict = Conflict(ledger.path)
    many = [replace(head, hash=f"{i:016x}", row=i) for i in range(2 * MOST_CONFLICTS)]
    with pytest.raises(LedgerRolledBack):
        conflict.meet(ledger, many)
    assert len(conflict.heads()) == MOST_CONFLICTS
    conflict.path.write_text("{")
    with pytest.raises(LedgerRolledBack):
        conflict.refuse()


def test_the_command_says_what_was_met_and_what_it_books(ledger: Ledger, tmp_path: Path) -> None:
    run = ["ledger", "declare-lost", "--ledger", str(ledger.path)]
    assert "nothing is lost" in CliRunner().invoke(app, run).output
    ledger, head = lost_after_three(ledger, tmp_path / "backup")
    with pytest.raises(LedgerRolledBack):
        Conflict(ledger.path).meet(ledger, [head])
    declined = CliRunner().invoke(app, run, input="n\n")
    assert declined.exit_code == 1
    assert tenths(ledger) == pytest.approx(1)
    done = CliRunner().invoke(app, [*run, "--yes"])
    assert done.exit_code == 0, done.output
    assert f"head {head.hash} at row {head.row}; here are" in done.output
    assert "spent epsilon" in done.output
    assert tenths(Ledger(ledger.path)) == pytest.approx(4)
    assert "declared lost" in CliRunner().invoke(app, ["ledger", "show", "--ledger", run[3]]).output
    assert not Conflict(ledger.path)


@pytest.mark.parametrize("bound", [True, False], ids=["bound before", "bound in the lost part"])
def test_what_blocks_lost_is_booked_in_each_of_their_accounts(
    ledger: Ledger, tmp_path: Path, bound: bool
) -> None:
    if bound:
        ledger.bind_blocks("adult", BINDING)
    copied(ledger, tmp_path / "backup")
    ledger = Ledger(ledger.path)
    if not bound:
        ledger.bind_blocks("adult", BINDING)
    for at, names in enumerate((["2026-01"], ["2026-01", "2026-02"], ["2026-01"])):
        ledger.begin_together(by_block(training(f"t{at}", 1, 0), names))
    head = take_head(ledger)
    ledger = restored(ledger, tmp_path / "backup")
    declare_lost(ledger, [head], by="owner")
    if not bound:
        ledger.bind_blocks("adult", BINDING)
    counted = {
        name: round(tenths(ledger, KEY._replace(dataset=account_of("adult", name))))
        for name in ("2026-01", "2026-02", "2026-03")
    }
    assert counted == {"2026-01": 3, "2026-02": 1, "2026-03": 0}
    for name, left in (("2026-01", 7), ("2026-02", 9)):
        ledger.claim_together(by_block(training(f"fits {name}", left), [name]))
        with pytest.raises(BudgetSpent):
            ledger.claim_together(by_block(training(f"more {name}", 1), [name]))
    assert ledger.verify() == []
