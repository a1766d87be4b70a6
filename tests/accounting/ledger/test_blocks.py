# SPDX-License-Identifier: Apache-2.0
"""Blocks in the ledger: each account is charged, or none; recounted here from what was admitted."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpfed.accounting.ledger.blocks import BEFORE, BlockBinding, account_of, by_block
from dpfed.accounting.ledger.ledger import Ledger
from dpfed.accounting.ledger.request import ChannelRequest, Request
from dpfed.core.errors import BudgetSpent, DataError, UnsoundPlan
from dpfed.core.types import UPDATE
from tests.helpers.ledgers import BUDGET, DRAWN, KEY, TENTH, request

BINDING = BlockBinding("admitted", "month", "patient", "2026-03-01", "mark")
MONTHS = ("2026-01", "2026-02", "2026-03", BEFORE)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path / "ledger.sqlite")
    made.declare(KEY, BUDGET)  # ten releases of TENTH, of each block
    made.bind_blocks("adult", BINDING)
    return made


def training(name: str, rounds: int, at: int = -1, **changes: Any) -> Request:
    """A whole training, or its round ``at``."""
    parts = {UPDATE: ChannelRequest(TENTH, int(at >= 0), rounds)}
    return request(max(at, 0), training=name, plan=f"plan of {name}", parts=parts, **changes)


def releases(ledger: Ledger) -> Counter[str]:
    """Releases by account, from the rows."""
    found = Counter[str]()
    for row in ledger.rows():
        if row.body["kind"] == "entry":
            found[row.body["dataset"]] += row.body["releases"]
    return found


def test_random_trainings_never_take_a_block_over_its_budget(ledger: Ledger) -> None:
    rng, truly = random.Random(3), Counter[str]()
    refused = 0
    for number in range(60):
        names = rng.sample(MONTHS, rng.randrange(1, 4))
        rounds = rng.randrange(1, 4)
        for at in range(rounds):
            try:
                ledger.begin_together(by_block(training(f"t{number}", rounds, at), names))
            except BudgetSpent:
                refused += 1
                assert any(truly[name] == 10 for name in names)
                break
            truly.update(names)
    assert refused
    assert max(truly.values()) == 10
    assert releases(ledger) == {account_of("adult", name): n for name, n in truly.items()}
    assert ledger.verify() == []


def test_an_enrolment_is_for_all_blocks_or_for_none(ledger: Ledger) -> None:
    for at in range(6):
        ledger.begin_together(by_block(training("a", 6, at), ["2026-02"]))
    before = len(ledger.rows())
    with pytest.raises(BudgetSpent, match="leave block '2026-02' out"):
        ledger.claim_together(by_block(training("b", 5), ["2026-01", "2026-02"]))
    assert len(ledger.rows()) == before
    ledger.claim_together(by_block(training("c", 5), ["2026-01", "2026-03"]))
    assert len(ledger.rows()) == before + 2
    with pytest.raises(BudgetSpent, match="enrolled trainings may still"):
        ledger.claim_together(by_block(training("d", 6), ["2026-03"]))


def test_what_was_released_before_is_one_block(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.declare(KEY, BUDGET)
    for at in range(7):
        ledger.begin(training("old", 7, at))
    bound = ledger.bind_blocks("adult", BINDING)
    assert bound == BINDING
    ledger.begin_together(by_block(training("new", 3, 0), [BEFORE, "2026-03"]))
    with pytest.raises(BudgetSpent):
        ledger.claim_together(by_block(training("more", 3), [BEFORE]))
    ledger.claim_together(by_block(training("more", 3), ["2026-03"]))
    assert ledger.verify() == []


def test_blocks_begin_without_a_day_where_nothing_was_released(ledger: Ledger) -> None:
    assert ledger.balance().blocks["adult"] == BINDING._replace(begun="")
    ledger.bind_blocks("adult", BINDING._replace(mark="other", begun="2027-01-01"))
    assert ledger.balance().blocks["adult"].mark == "mark"


@pytest.mark.parametrize("other", [{"column": "left"}, {"every": "year"}, {"ids": "stay"}])
def test_what_blocks_are_made_by_stays(ledger: Ledger, other: dict[str, str]) -> None:
    with pytest.raises(DataError, match="must stay column 'admitted'"):
        ledger.bind_blocks("adult", BINDING._replace(**other))


def test_nothing_is_released_on_all_of_the_data(ledger: Ledger) -> None:
    for refused in (training("a", 3, 0), training("a", 3, 0, key=KEY._replace(dataset="adult/7"))):
        with pytest.raises(UnsoundPlan, match="names none"):
            ledger.begin(refused)
    with pytest.raises(UnsoundPlan, match="names none"):
        ledger.claim(training("a", 3))
    elsewhere = training("a", 3, 0, key=KEY._replace(dataset="other"))
    with pytest.raises(UnsoundPlan, match="has no blocks"):
        ledger.begin_together(by_block(elsewhere, ["2026-01"]))


def test_a_draw_is_refused(ledger: Ledger) -> None:
    drawn = request(parts={UPDATE: ChannelRequest(DRAWN, 1, 10)})
    drawn = replace(drawn, key=KEY._replace(adjacency=DRAWN.adjacency))
    with pytest.raises(UnsoundPlan, match="Gaussian cost"):
        ledger.begin_together(by_block(drawn, ["2026-01"]))


def test_rows_that_are_not_covered_are_refused(ledger: Ledger) -> None:
    with pytest.raises(UnsoundPlan, match="a row that is missing"):
        ledger.begin_together(by_block(training("a", 3, 0, covered=False), ["2026-01"]))


def test_another_name_of_the_data_has_the_same_blocks(ledger: Ledger) -> None:
    ledger.begin_together(by_block(training("a", 9, 0), ["2026-01"]))
    ledger.rename("adult", "census")
    other = training("b", 9, 0, key=KEY._replace(dataset="census"))
    ledger.begin_together(by_block(other, ["2026-01"]))
    assert releases(ledger) == {"adult/2026-01": 2}
    assert ledger.balance().accounts_of("census") == ["adult", "adult/2026-01"]
