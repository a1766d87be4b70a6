# SPDX-License-Identifier: Apache-2.0
"""Each line of the table of conversions, by a search for a pair of data sets that does worse.

Rows are those of the library: clipped by unit, and added up. A conversion claims that whatever
counts as a neighbour in the budget moves the sum by at most ``factor`` times what was priced.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dpfed.accounting.gdp import SENSITIVITY
from dpfed.accounting.ledger.conversions import LedgerKey, Server, adversary_of, factor
from dpfed.core.rows import Dense
from dpfed.core.types import Adjacency, Trust, Unit

RECORD, GROUP, CLIENT = Unit.RECORD, Unit.GROUP, Unit.CLIENT
ADD, ZERO, REPLACE = Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE

Data = tuple[torch.Tensor, torch.Tensor]
"""Rows of records, and the person of each."""


def total(unit: Unit, data: Data) -> torch.Tensor:
    rows, persons = data
    groups = {RECORD: None, GROUP: persons, CLIENT: torch.zeros_like(persons)}[unit]
    if len(rows) == 0:
        return torch.zeros(rows.shape[1], dtype=torch.float64)
    return Dense(rows, groups).clipped_sum(1.0).vector.double()


def record_replaced(data: Data, new: torch.Tensor) -> Data:
    return torch.cat([new[None], data[0][1:]]), data[1]


def record_zeroed(data: Data, new: torch.Tensor) -> Data:
    return record_replaced(data, torch.zeros_like(new))


def record_removed(data: Data, new: torch.Tensor) -> Data:
    del new
    return data[0][1:], data[1][1:]


def record_moved(data: Data, new: torch.Tensor) -> Data:
    """Replaced by a record of another person."""
    rows, persons = record_replaced(data, new)
    return rows, torch.cat([persons[-1:], persons[1:]])


def person_replaced(data: Data, new: torch.Tensor) -> Data:
    """All records of the first person, as many as before."""
    own = data[1] == data[1][0]
    return torch.where(own[:, None], new, data[0]), data[1]


def worst(unit: Unit, change: Callable[[Data, torch.Tensor], Data], tries: int = 400) -> float:
    """The largest movement of the sum that the search finds, in clips."""
    rng, found = torch.Generator().manual_seed(0), 0.0
    for at in range(tries):
        count = 2 + at % 7
        scale = 10.0 ** torch.randint(-3, 4, (count, 1), generator=rng)
        rows = torch.randn(count, 3, generator=rng, dtype=torch.float64) * scale
        if at % 3 == 0:  # along one line, where movements add up
            rows = rows[:, :1] * torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
        persons = torch.randint(0, 3, (count,), generator=rng).sort().values
        new = -rows[0] * 10.0 ** float(torch.randint(-2, 6, (), generator=rng))
        before = (rows, persons)
        moved = total(unit, before) - total(unit, change(before, new))
        found = max(found, float(moved.norm()))
    return found


LINES = [
    (RECORD, ZERO, RECORD, REPLACE, record_replaced, 1.0),
    (RECORD, ADD, RECORD, REPLACE, record_replaced, 1.0),
    (GROUP, ZERO, GROUP, REPLACE, person_replaced, 1.0),
    (RECORD, REPLACE, RECORD, ZERO, record_zeroed, 0.5),
    (CLIENT, REPLACE, RECORD, REPLACE, record_replaced, 1.0),
    (GROUP, REPLACE, RECORD, REPLACE, record_replaced, 1.0),
    (GROUP, ZERO, RECORD, ZERO, record_zeroed, 1.0),
    (CLIENT, ZERO, RECORD, ZERO, record_zeroed, 1.0),
    (GROUP, ADD, RECORD, ADD, record_removed, 1.0),
    (CLIENT, ADD, RECORD, ADD, record_removed, 1.0),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("unit", "adjacency", "to_unit", "to_adjacency", "change", "tight"), LINES)
def test_no_pair_is_worse_than_a_line_says(
    unit: Unit, adjacency: Adjacency, to_unit: Unit, to_adjacency: Adjacency, change, tight: float
) -> None:
    source, target = LedgerKey("d", unit, adjacency), LedgerKey("d", to_unit, to_adjacency)
    times = factor(source, target, covered=True, keeps_person=True)
    assert times is not None
    ratio = worst(unit, change) / SENSITIVITY[adjacency]
    assert ratio <= times * (1 + 1e-6)
    assert ratio >= 0.95 * times * tight  # the line is not larger than it must be


def test_what_has_no_line_has_a_pair_that_is_worse() -> None:
    """Records of a person: no factor, since their number is not bounded. Another person: 2."""
    many = (torch.ones(50, 3, dtype=torch.float64) * 9, torch.zeros(50, dtype=torch.long))
    moved = total(RECORD, many) - total(RECORD, person_replaced(many, -many[0][0]))
    assert float(moved.norm()) / SENSITIVITY[REPLACE] == pytest.approx(50)
    assert factor(LedgerKey("d", RECORD), LedgerKey("d", GROUP)) is None
    assert worst(GROUP, record_moved) / SENSITIVITY[REPLACE] > 1.4
    assert factor(LedgerKey("d", GROUP), LedgerKey("d", RECORD)) is None  # it may change its person


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("adjacency", Adjacency)
def test_a_part_never_counts_for_the_whole(adjacency: Adjacency, keeps: bool) -> None:
    """A record does not count for its person, nor a person for the client that has many."""
    for part, whole in ((RECORD, GROUP), (RECORD, CLIENT), (GROUP, CLIENT)):
        source, target = LedgerKey("d", part, adjacency), LedgerKey("d", whole, adjacency)
        assert factor(source, target, covered=True, keeps_person=keeps) is None


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (REPLACE, ADD),
        (ZERO, ADD),
        (ADD, ZERO),
    ],
)
def test_sizes_that_are_public_do_not_become_private(source: Adjacency, target: Adjacency) -> None:
    for unit in Unit:
        assert factor(LedgerKey("d", unit, source), LedgerKey("d", unit, target)) is None


def test_a_row_that_may_be_longer_than_the_distance_does_not_count_for_zero_out() -> None:
    source, target = LedgerKey("d"), LedgerKey("d", adjacency=ZERO)
    assert factor(source, target, covered=False) is None


def test_only_a_stronger_adversary_counts_for_a_weaker_one() -> None:
    local = LedgerKey("d")._replace(
        **dict(zip(("adversary", "colluders"), adversary_of(Trust.LOCAL, "", 1), strict=True))
    )
    some = LedgerKey("d", adversary=Server.CURIOUS, colluders=3)
    assert adversary_of(Trust.DISTRIBUTED, "curious", 3) == (some.adversary, some.colluders)
    assert adversary_of(Trust.DISTRIBUTED, "malicious", 3) == (Server.MALICIOUS, 3)
    assert adversary_of(Trust.CENTRAL, "curious", 3) == (Server.OUTSIDERS, None)
    outside = LedgerKey("d", adversary=Server.OUTSIDERS, colluders=None)
    assert factor(local, some) == factor(some, LedgerKey("d")) == 1.0
    assert factor(local, outside) == 1.0
    assert factor(some, some._replace(colluders=4)) is None
    assert factor(some, some._replace(colluders=None)) is None
    assert factor(some, some._replace(adversary=Server.MALICIOUS)) is None
    assert factor(outside, LedgerKey("d")) is None
