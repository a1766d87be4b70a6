# SPDX-License-Identifier: Apache-2.0
"""A door for a tensor: noise as large as the tables say, rows within the clip, none too many."""

from __future__ import annotations

import copy
import math
import os
import pickle
import threading
from pathlib import Path

import pytest
import torch

from dpfed.accounting.ledger.balance import Budget
from dpfed.accounting.ledger.conversions import LedgerKey, Server
from dpfed.accounting.ledger.ledger import Ledger
from dpfed.core.errors import BudgetSpent, DpfedError, RecipeError, UnsoundPlan
from dpfed.core.types import Adjacency
from dpfed.parts import NoisySum

NOTHING = torch.zeros(0, 20_000)


def door(**changes: object) -> NoisySum:
    asked = {"clip": 1.0, "epsilon": 1.0, "delta": 1e-5, "releases": 70, **changes}
    return NoisySum(**asked)  # type: ignore[arg-type]


# std over clip, from PRIVACY's golden table and the papers' sqrt(n), not from the code
@pytest.mark.parametrize(
    ("changes", "std"),
    [
        ({}, 62.425),
        ({"epsilon": 5.0}, 14.924),
        ({"clip": 0.1}, 6.2425),
        ({"adjacency": "zero-out"}, 62.425 / 2),
        ({"parties": 20, "colluders": 1}, 62.425 / math.sqrt(19)),
        ({"parties": 20, "colluders": 4}, 62.425 / math.sqrt(16)),
        ({"mechanism": "discrete_gaussian"}, 62.425),
        ({"options": {"shares": 100.0}, "parties": 20, "colluders": 1}, 62.425 / math.sqrt(19)),
    ],
)
def test_the_noise_is_that_of_the_tables(changes: dict[str, object], std: float) -> None:
    assert door(**changes).std == pytest.approx(std, rel=2e-3)


def test_what_is_drawn_is_what_is_said() -> None:
    made = door()(NOTHING)
    assert float(made.value.std()) == pytest.approx(made.std, rel=0.03)
    assert float(made.value.mean()) == pytest.approx(0, abs=5 * made.std / math.sqrt(20_000))


def test_a_row_adds_at_most_the_clip_whatever_it_is() -> None:
    rows = torch.tensor([[1e30, 0.0], [math.nan, 1e9], [math.inf, 0.0], [0.0, -7.0]])
    made = door(epsilon=1e9, releases=1, clip=2.0)(rows)
    assert made.std < 1e-3
    assert made.value.tolist() == pytest.approx([2.0, -2.0], abs=0.01)


@pytest.mark.long  # a privacy loss distribution for each step of the search
def test_a_draw_takes_its_part_and_lessens_the_noise() -> None:
    drawn = door(adjacency="add-remove", rate=0.25, releases=1)
    assert drawn.std < 0.5 * door(adjacency="add-remove", releases=1).std
    assert float(drawn(torch.ones(4000, 1)).value[0]) == pytest.approx(1000, abs=150)


def test_a_draw_under_replace_one_is_charged_at_its_price(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.sqlite"
    door(rate=0.25, releases=1, epsilon=0.5, dataset="ward", name="sum", ledger=ledger)
    spent = Ledger(ledger).spent(LedgerKey("ward", adversary=Server.CURIOUS))
    assert 0.4 < spent.epsilon(1e-5, Adjacency.REPLACE_ONE) <= 0.5
    (row,) = (row for row in Ledger(ledger).rows() if row.body["kind"] == "reserve")
    assert row.body["event"]["kind"] == "ThroughZero"


def test_one_release_too_many_is_refused_and_counted_over_threads() -> None:
    made, refused = door(releases=3), []

    def release() -> None:
        try:
            made(NOTHING)
        except BudgetSpent as error:
            refused.append(str(error))

    threads = [threading.Thread(target=release) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(refused) == 5
    assert refused[0].startswith("releases must be at most 3, as the noise was calibrated for")
    assert made.left == 0
    assert "3 of 3 releases; (1, 1e-05)-DP" in repr(made)


def test_no_copy_and_no_fork_releases_once_more() -> None:
    made = door(releases=1)
    for leave in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="not copied or pickled"):
            leave(made)  # type: ignore[operator]
    child = os.fork()
    if not child:  # pragma: no cover
        try:
            made(NOTHING)
        except UnsoundPlan:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mechanism": "clear"}, "mechanism must be one of gaussian, discrete_gaussian here"),
        ({"mechanism": "tree"}, "mechanism must be one of"),
        ({"parties": 65}, "parties must be from 1 to 64"),
        ({"parties": 2}, "survivors must be at least 3, or 1 colluders could open a mask"),
        ({"parties": 5, "colluders": 4}, "survivors must be at least 6, or 4 colluders"),
        ({"clip": math.nan}, "clip must be a finite number above 0"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"options": {"facts": 1}}, "has no option 'facts'"),
    ],
)
def test_what_has_no_cost_is_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(DpfedError, match=said):
        door(**changes)


def test_rows_are_a_matrix_and_integers_are_read() -> None:
    with pytest.raises(RecipeError, match=r"rows must be \[units, size\]"):
        door()(torch.zeros(3))
    assert door(epsilon=1e9)(torch.ones(2, 1, dtype=torch.int64)).value[0] == pytest.approx(
        2.0, abs=0.01
    )


def test_the_whole_cost_is_in_the_owners_ledger_before_the_first_release(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = Ledger(path)
    ledger.declare(LedgerKey("ward"), Budget(1.0, 1e-5))
    ledger.close()
    door(epsilon=0.9, dataset="ward", name="means", ledger=path)
    ledger = Ledger(path)
    assert ledger.spent(LedgerKey("ward")).epsilon(1e-5, "replace-one") == pytest.approx(
        0.9, rel=1e-3
    )  # type: ignore[arg-type]
    ledger.close()
    with pytest.raises(UnsoundPlan, match="in the ledger already"):  # the process began again
        door(epsilon=0.9, dataset="ward", name="means", ledger=path)
    with pytest.raises(BudgetSpent, match=r"has spent epsilon 0\.9 of its budget \(1, 1e-05\)"):
        door(epsilon=0.6, dataset="ward", name="more", ledger=path)


def test_a_share_of_noise_has_no_value_to_print() -> None:
    share = door(parties=3)(torch.ones(4, 2))
    assert not hasattr(share, "value")
    assert repr(share) == "<a share of noise, to be summed by 3 parties>"
    with pytest.raises(RecipeError, match="parties must be more than 1"):
        _ = door().template
