# SPDX-License-Identifier: Apache-2.0
"""The law "a unit moves only releases that are charged to its block, by at most what is priced".

A history is a table that is opened four times: records come, go, and are corrected; persons have
records in several months, return, and have no date for a while. Its neighbour has one unit in
another version: a person with all of its records, or one record, whose person's first month is the
same. Which month that is, is said by an oracle that knows the whole history at once, and not by
the code. At each opening sums of clipped rows are compared for every set of blocks:

| the unit's block is         | the sums are                                   |
|-----------------------------|------------------------------------------------|
| among those that are named  | at most the replacement bound apart            |
| not among them              | equal                                          |
"""

from __future__ import annotations

import datetime as dt
import itertools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from dpfed.accounting.ledger.ledger import Ledger
from dpfed.core.types import Unit
from dpfed.data.cells import NO_DAY
from dpfed.data.datasets import Records
from dpfed.data.models import Linear
from dpfed.data.readers import NOBODY
from dpfed.silo import blocks
from dpfed.silo.blocks import BlockFile, BlockRule, Every, open_blocks

FEATURES, CLASSES, PERSONS, OPENINGS, HISTORIES = 3, 2, 7, 4, 12
MODEL = Linear("softmax", FEATURES, CLASSES)
RULE = BlockRule("admitted", Every.MONTH, "patient")
FIRST = dt.date(2026, 1, 1)
MONTHS = ("2026-01", "2026-02", "2026-03", "2026-04")
CLIP = 1.0


@dataclass(frozen=True)
class Line:
    """A record, and at which openings it is in the table."""

    person: int
    """-1 has no id."""
    day: int
    """After FIRST; below 0 the cell is no date."""
    x: tuple[float, ...]
    y: int
    there: frozenset[int]


def opened_on(opening: int) -> dt.date:
    """The last of the months January to April."""
    return dt.date(2026, opening + 2, 1) - dt.timedelta(days=1)


def line(rng: random.Random, person: int) -> Line:
    comes = rng.randrange(OPENINGS)
    there = frozenset(k for k in range(comes, OPENINGS) if rng.random() < 0.7)
    x = tuple(rng.gauss(0, 4) for _ in range(FEATURES))
    return Line(person, rng.randrange(-20, 140), x, rng.randrange(CLASSES), there)


def first_month(lines: list[Line]) -> str:
    """The oracle: of the earliest known day, when there first was one; "" if there never is."""
    for opening in range(OPENINGS):
        latest = (opened_on(opening) - FIRST).days
        days = [each.day for each in lines if opening in each.there and 0 <= each.day <= latest]
        if days:
            return f"{FIRST + dt.timedelta(days=min(days)):%Y-%m}"
    return ""


def table(lines: list[Line], opening: int) -> Records:
    here = [each for each in lines if opening in each.there]
    start = (FIRST - dt.date(1970, 1, 1)).days
    who = torch.tensor([each.person for each in here], dtype=torch.int64)
    days = [start + each.day if each.day >= 0 else NO_DAY for each in here]
    return Records(
        torch.tensor([each.x for each in here], dtype=torch.float32).reshape(-1, FEATURES),
        torch.tensor([each.y for each in here], dtype=torch.int64),
        groups=torch.where(who < 0, NOBODY, who),
        persons=who * 7919,
        days=torch.tensor(days, dtype=torch.int64),
    )


Sums = dict[tuple[int, tuple[str, ...]], torch.Tensor]


def sums(folder: Path, lines: list[Line], unit: Unit) -> Sums:
    """What is handed to the mechanism, by opening and set of blocks."""
    folder.mkdir()
    ledger, found = Ledger(folder / "ledger.sqlite"), {}
    params = torch.linspace(-1, 1, MODEL.layout.size)
    for opening in range(OPENINGS):
        records, today = table(lines, opening), opened_on(opening)
        held = open_blocks(folder, ledger, "sepsis", RULE, records, today)
        for many in (1, 2):
            for names in itertools.combinations(MONTHS, many):
                rows = MODEL.problem(held.take(names)).rows(params, unit)
                made = rows.clipped_sum(CLIP)
                assert made.replace_bound <= 2 * CLIP
                found[opening, names] = made.vector
    ledger.close()
    return found


def other_version(rng: random.Random, lines: list[Line], unit: Unit) -> list[Line] | None:
    """The same history with one unit in another version, inside its block; None if none is found.

    A record keeps its person and when it is there, since others are in that person's block.
    """
    person = rng.randrange(PERSONS)
    own = [each for each in lines if each.person == person]
    rest = [each for each in lines if each.person != person]
    month = first_month(own)
    for _ in range(200 if month else 0):
        if unit is Unit.GROUP:
            new = [line(rng, PERSONS) for _ in range(rng.randrange(1, 5))]
        else:
            at = rng.randrange(len(own))
            new = [*own[:at], replace(line(rng, person), there=own[at].there), *own[at + 1 :]]
        if first_month(new) == month:
            return [*rest, *new]
    return None


def moved(folder: Path, seed: int, unit: Unit) -> list[str] | None:
    """Where the law does not hold in one history and its neighbour; None if it has none."""
    rng = random.Random(f"{seed} {unit}")
    lines = [line(rng, rng.randrange(-1, PERSONS)) for _ in range(24)]
    lines.sort(key=lambda each: each.person)
    other = other_version(rng, lines, unit)
    if other is None:
        return None
    changed = {each.person for each in set(lines) ^ set(other)} & set(range(PERSONS))
    (month,) = {first_month([each for each in lines if each.person == p]) for p in changed}
    one, two = sums(folder / "one", lines, unit), sums(folder / "two", other, unit)
    wrong = []
    for (opening, names), vector in one.items():
        apart = float((vector - two[opening, names]).norm())
        if apart > (2 * CLIP if month in names else 0) + 1e-9:
            wrong.append(f"{month} moved {names} by {apart:.3g} at opening {opening}")
    return wrong


@pytest.mark.sample(2)
@pytest.mark.parametrize("unit", [Unit.RECORD, Unit.GROUP])
def test_a_unit_moves_only_what_is_charged_to_its_block(tmp_path: Path, unit: Unit) -> None:
    found = []
    for seed in range(HISTORIES):
        folder = tmp_path / str(seed)
        folder.mkdir()
        found.append(moved(folder, seed, unit))
    assert found.count([]) + found.count(None) == HISTORIES
    assert found.count([]) > HISTORIES / 2


def by_last_record(
    records: Records, every: Every, today: dt.date, begun: str, known: Mapping[int, str]
) -> dict[int, str]:
    """A planted bug: the block of an id's latest date."""
    assert records.days is not None
    days = torch.where(records.days == NO_DAY, NO_DAY, -records.days)
    latest = (today - dt.date(1970, 1, 1)).days
    days = torch.where(records.days > latest, NO_DAY, days)
    turned = {p: d for p, d in _least(records, days).items() if p not in known}
    return {p: every.name_of(dt.date(1970, 1, 1) - dt.timedelta(days=d)) for p, d in turned.items()}


def _least(records: Records, days: torch.Tensor) -> dict[int, int]:
    assert records.persons is not None
    found: dict[int, int] = {}
    for person, day in zip(records.persons.tolist(), days.tolist(), strict=True):
        if day != NO_DAY:
            found[person] = min(day, found.get(person, day))
    return found


def forgets(self: BlockFile, account: str) -> dict[int, str]:
    """A planted bug: who returns is looked at anew."""
    return {}


@pytest.mark.parametrize(
    ("owner", "name", "bug"),
    [(blocks, "first_blocks", by_last_record), (BlockFile, "known", forgets)],
)
def test_the_law_finds_planted_bugs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    name: str,
    bug: Callable[..., object],
) -> None:
    monkeypatch.setattr(owner, name, bug)
    found = []
    for seed in range(HISTORIES):
        folder = tmp_path / str(seed)
        folder.mkdir()
        found += moved(folder, seed, Unit.GROUP) or []
        if found:
            break
    assert found
