# SPDX-License-Identifier: Apache-2.0
"""A share of noise is in one total, and a ledger has the colluders that a door withstands.

Before: a share could be summed again, by another party or under another name, after a failure for
instance. Totals with and without one party were subtracted, and its rows had one share of noise
(epsilon 1 was printed, 3.19 was true). A door for no colluder was entered as withstanding one.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from dpfed.accounting.ledger.balance import Budget
from dpfed.accounting.ledger.conversions import LedgerKey
from dpfed.accounting.ledger.ledger import Ledger
from dpfed.core.errors import BadReply, BudgetSpent, DpfedError, RecipeError, UnsoundPlan
from dpfed.parts import NoisySum, SumParty, own_key, secure_sum


def door(**changes: Any) -> NoisySum:
    return NoisySum(**{"clip": 1.0, "epsilon": 2.0, "delta": 1e-5, "parties": 3, **changes})


def shares() -> list[Any]:
    return [door()(torch.ones(2, 4)) for _ in range(3)]


def party(share: Any, tmp_path: Path, name: str = "poll") -> SumParty:
    key = own_key(tmp_path, make=True)
    return SumParty(0, share, key, [key.public, bytes(32), bytes(range(32))], name=name)


def test_the_first_sum_or_party_uses_a_share_up(tmp_path: Path) -> None:
    made = shares()
    secure_sum(made)
    for use in (lambda: secure_sum(made), lambda: party(made[0], tmp_path)):
        with pytest.raises(UnsoundPlan, match="a share of noise is used once"):
            use()
    other = shares()
    party(other[0], tmp_path)  # it never runs
    for name in ("poll", "poll again"):
        with pytest.raises(UnsoundPlan, match="used once"):
            party(other[0], tmp_path, name)
    with pytest.raises(UnsoundPlan, match="used once"):
        secure_sum(other)


def test_a_share_is_used_up_by_a_sum_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    made = shares()

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr("dpfed.parts.secure_total._open", fail)
        with pytest.raises(RuntimeError):
            secure_sum(made)
    with pytest.raises(UnsoundPlan, match="used once"):
        secure_sum(made)


def test_one_share_is_not_two_terms() -> None:
    made = shares()
    with pytest.raises(UnsoundPlan, match="used once"):
        secure_sum([made[0], made[0], made[1]])


def test_no_copy_and_no_fork_uses_a_share_again(tmp_path: Path) -> None:
    made = shares()
    for leave in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="not copied or pickled"):
            leave(made[0])
    answering = party(made[2], tmp_path)
    child = os.fork()
    if not child:  # pragma: no cover
        code = 0
        try:
            secure_sum(made)
        except UnsoundPlan:
            code += 3
        try:
            answering._member.reply("input", b"")
        except BadReply:
            code += 4
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_one_of_many_threads_takes_a_share() -> None:
    share, used = shares()[1], []
    again = dataclasses.replace(share)

    def use(one: Any) -> None:
        try:
            one.take()
            used.append(one)
        except UnsoundPlan:
            pass

    threads = [threading.Thread(target=use, args=(each,)) for each in [share, again] * 8]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(used) == 1


def test_a_ledger_has_the_colluders_that_a_door_withstands(tmp_path: Path) -> None:
    def entered(colluders: int, budget: int) -> None:
        path = tmp_path / f"{colluders} {budget}.sqlite"
        ledger = Ledger(path)
        ledger.declare(LedgerKey("ward", colluders=budget), Budget(1.0, 1e-5))
        ledger.close()
        kind = {"parties": 6, "colluders": colluders, "epsilon": 1.0}
        door(dataset="ward", name="means", ledger=path, **kind)

    for fewer in (0, -1):
        with pytest.raises(RecipeError, match="colluders must be a whole number, at least 1"):
            door(colluders=fewer)
    entered(2, budget=1)
    entered(2, budget=2)
    with pytest.raises((UnsoundPlan, BudgetSpent)):
        entered(1, budget=2)


@pytest.mark.long  # a privacy loss distribution for each step of the search
def test_a_door_draws_by_itself_unless_it_is_told_that_rows_were_drawn() -> None:
    drawn = door(parties=1, adjacency="add-remove", rate=0.25, releases=2)
    assert "give all rows, each is drawn with 0.25" in repr(drawn)
    rows = torch.ones(4000, 1)
    assert float(drawn(rows).value[0]) == pytest.approx(1000, abs=150)
    assert float(drawn(rows, drawn=True).value[0]) == pytest.approx(4000, abs=50)
    with pytest.raises(DpfedError, match="drawn must be False for a door without a rate"):
        door(parties=1)(rows, drawn=True)
