# SPDX-License-Identifier: Apache-2.0
"""Which block each record is in: that of the month in which its id was seen first, for good.

    blocks.sqlite     beside the ledger: account and id -> block, for every id that was ever used

Guarantee: the block of an id follows from that id's own records, the public calendar and this file,
and from no other id. Once an id has a block it never gets another one, whatever its records say
later: so what was released on it was always charged to the one account. Nothing of this is told to
anybody: no count, no refusal, no message depends on it.

| edge case                                        | what happens                                  |
|--------------------------------------------------|-----------------------------------------------|
| an id with records in several months             | all of them are in the block of the earliest  |
| an id that returns, or whose dates change        | its first block                               |
| a date that is missing, unreadable or to come    | it does not count; an id without any other is |
|                                                  | in no block, and is not used, until it has one|
| a record without an id                           | in no block, and not used                     |
| ids that were there before the data had blocks   | the block "before", with or without a date    |
| an id of before that time that is entered late   | the block "before", too                       |
| blocks.sqlite that was lost, or is another's     | DataError: the gate does not start            |
| blocks.sqlite that is older than the ledger      | not noticed: keep both in one backup          |
"""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from dpfed.accounting.ledger.blocks import BEFORE, BlockBinding
from dpfed.core.database import Tables
from dpfed.core.errors import DataError
from dpfed.data.cells import NO_DAY, date_of

if TYPE_CHECKING:
    from dpfed.accounting.ledger.ledger import Ledger
    from dpfed.data.datasets import Records

FILE = "blocks.sqlite"
_SCHEMA = (
    "CREATE TABLE marks (account TEXT PRIMARY KEY, mark TEXT)",
    "CREATE TABLE ids (account TEXT, id INTEGER, block TEXT, PRIMARY KEY (account, id))",
)


class Every(StrEnum):
    """How long a block is."""

    MONTH = "month"
    """2026-03"""
    QUARTER = "quarter"
    """2026-Q1"""
    YEAR = "year"
    """2026"""

    def name_of(self, day: dt.date) -> str:
        """The name of the block in which a day is.

        >>> day = dt.date(2026, 3, 31)
        >>> [each.name_of(day) for each in Every]
        ['2026-03', '2026-Q1', '2026']
        """
        match self:
            case Every.MONTH:
                return f"{day.year:04}-{day.month:02}"
            case Every.QUARTER:
                return f"{day.year:04}-Q{(day.month + 2) // 3}"
        return f"{day.year:04}"

    def has(self, name: str) -> bool:
        """Whether a block can have this name.

        >>> Every.MONTH.has("2026-03"), Every.MONTH.has("2026-13"), Every.MONTH.has("before")
        (True, False, True)
        """
        year, _, part = name.partition("-")
        if name == BEFORE:
            return True
        if not (len(year) == 4 and year.isascii() and year.isdigit() and int(year)):
            return False
        months = {"": 1, **{f"{m:02}": m for m in range(1, 13)}, **{f"Q{q}": 3 * q for q in _FOUR}}
        return part in months and self.name_of(dt.date(int(year), months[part], 1)) == name


_FOUR = range(1, 5)


@dataclass(frozen=True)
class BlockRule:
    """How the records of one data set become blocks."""

    column: str
    """The column of arrival dates."""
    every: Every
    """How long a block is."""
    ids: str
    """The column of ids."""

    def binding(self, today: dt.date) -> BlockBinding:
        """What the ledger is to be bound to, if it is not bound yet.

        Args:
            today: the day on which the blocks begin, if there were releases before.
        """
        return BlockBinding(
            column=self.column,
            every=str(self.every),
            ids=self.ids,
            begun=today.isoformat(),
            mark=secrets.token_hex(16),
        )


class BlockFile:
    """The gate's file of ids."""

    def __init__(self, state: Path) -> None:
        self._file = Tables(state / FILE, _SCHEMA)

    def mark(self, account: str) -> str:
        """What the file of an account begins with; "" if there is none."""
        rows = self._file.rows("SELECT mark FROM marks WHERE account = ?", account)
        return str(rows[0][0]) if rows else ""

    def begin(self, account: str, mark: str) -> None:
        """Begin an account's part of the file."""
        with self._file.change() as file:
            file.execute("INSERT INTO marks VALUES (?, ?)", (account, mark))

    def known(self, account: str) -> dict[int, str]:
        """The ids of an account, each with its block."""
        return dict(self._file.rows("SELECT id, block FROM ids WHERE account = ?", account))

    def keep(self, account: str, new: Mapping[int, str]) -> None:
        """Add ids; one that has a block keeps it."""
        with self._file.change() as file:
            rows = ((account, number, block) for number, block in new.items())
            file.executemany("INSERT OR IGNORE INTO ids VALUES (?, ?, ?)", rows)


@dataclass(frozen=True, eq=False)
class Blocks:
    """The records of one data set, by block."""

    records: Records
    names: tuple[str, ...]
    """Of each record; "" if it is in no block."""

    def take(self, blocks: Collection[str]) -> Records:
        """The records of some blocks, in their order.

        Args:
            blocks: their names; one that has no record here adds nothing.
        """
        import torch  # here: an owner's commands do without it

        kept = [at for at, name in enumerate(self.names) if name and name in blocks]
        return self.records.take(torch.tensor(kept, dtype=torch.int64))


def open_blocks(
    state: Path, ledger: Ledger, dataset: str, rule: BlockRule, records: Records, today: dt.date
) -> Blocks:
    """The records by block, once the ledger is bound and every new id has its block on the disk.

    Args:
        state: the gate's folder.
        ledger: the owner's.
        dataset: the name of the data.
        rule: the owner's.
        records: all of them, with ids and days.
        today: the gate's day: later dates do not count.
    """
    file = BlockFile(state)
    account = ledger.balance().base_of(dataset)
    asked = rule.binding(today)
    if account not in ledger.balance().blocks:
        if not file.mark(account):
            file.begin(account, asked.mark)
        asked = asked._replace(mark=file.mark(account))
        if ledger.balance().guarantees.get(account):  # on the disk before the ledger says so
            file.keep(account, dict.fromkeys(_named(records), BEFORE))
    bound = ledger.bind_blocks(dataset, asked)
    if file.mark(account) != bound.mark:
        raise DataError(
            f"{state / FILE} must be the one that the ledger of data.{dataset} was bound to, got "
            f"{'another' if file.mark(account) else 'none'}: which id was charged in which block "
            f"is no longer known; put back its last copy"
        )
    known = file.known(account)
    new = first_blocks(records, rule.every, today, bound.begun, known)
    file.keep(account, new)
    return by_ids(records, {**new, **known})


def look_at_blocks(
    state: Path, ledger: Ledger, dataset: str, rule: BlockRule, records: Records, today: dt.date
) -> Blocks:
    """The same for the owner's own commands: nothing is bound or written.

    Args:
        state: the gate's folder.
        ledger: the owner's.
        dataset: the name of the data.
        rule: the owner's.
        records: all of them, with ids and days.
        today: the gate's day.
    """
    account = ledger.balance().base_of(dataset)
    bound = ledger.balance().blocks.get(account)
    known = BlockFile(state).known(account)
    if bound is None and ledger.balance().guarantees.get(account):
        known = {**dict.fromkeys(_named(records), BEFORE), **known}
    begun = bound.begun if bound else ""
    return by_ids(records, {**first_blocks(records, rule.every, today, begun, known), **known})


def first_blocks(
    records: Records, every: Every, today: dt.date, begun: str, known: Mapping[int, str]
) -> dict[int, str]:
    """The block of each id that has none yet: of its earliest date, by its own records alone.

    Args:
        records: with ids and days.
        every: how long a block is.
        today: later dates do not count.
        begun: earlier ids are in the block "before"; "" if there is none.
        known: ids that have a block.
    """
    if records.days is None:
        raise DataError("blocks need a column of dates, got none; name it in blocks.column")
    first: dict[int, int] = {}
    latest = (today - date_of(0)).days
    for person, day in zip(_persons(records), records.days.tolist(), strict=True):
        if person is None or person in known or day == NO_DAY or day > latest:
            continue
        first[person] = min(day, first.get(person, day))
    dates = {person: date_of(day) for person, day in first.items()}
    return {
        person: BEFORE if begun and date.isoformat() < begun else every.name_of(date)
        for person, date in dates.items()
    }


def by_ids(records: Records, blocks: Mapping[int, str]) -> Blocks:
    """The records, each in the block of its id.

    Args:
        records: with ids.
        blocks: by id.
    """
    names = ("" if p is None else blocks.get(p, "") for p in _persons(records))
    return Blocks(records, tuple(names))


def _named(records: Records) -> list[int]:
    return [person for person in _persons(records) if person is not None]


def _persons(records: Records) -> list[int | None]:
    """A number for each record's id, which no other record changes; None if it names none."""
    if records.groups is None or records.persons is None:
        raise DataError("blocks need a column of ids, got none; name it in load.options.groups")
    from dpfed.data.readers import NOBODY  # torch

    nobody = (records.groups == NOBODY).tolist()
    return [
        None if none else each for none, each in zip(nobody, records.persons.tolist(), strict=True)
    ]
