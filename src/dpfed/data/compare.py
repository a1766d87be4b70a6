# SPDX-License-Identifier: Apache-2.0
"""A table beside its contract, for the table's owner: what differs, in which line, and a way out.

Guarantee: what is found is shown to those who may read the records. It changes no reply, and what a
file becomes does not depend on it.

| looked for            | said where                                                              |
|-----------------------|-------------------------------------------------------------------------|
| encoding              | lines are not UTF-8                                                     |
| names                 | the header lacks one (with the likeliest of its own), or has one more   |
| numbers               | they are text, have decimal commas, or lie beyond the range             |
| units                 | over half of a column's values lie beyond the range, or cannot be read  |
| words                 | they are none of the contract's                                         |
| labels                | none of the words; a class without a record                             |
| records               | the same line twice; lines that do not fit the header                   |
| persons               | with several records; records without one                               |
| codes                 | a number column with a few whole numbers                                |
| long tails            | a linear column with nearly all of its values in a small part           |
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from dpfed.core.log import shown
from dpfed.data.cells import number, spelling, text
from dpfed.data.contract import Column, Contract, Kind, Scale, is_missing
from dpfed.data.contracted import read_batches
from dpfed.data.mapping import FileMapping
from dpfed.data.sheets import not_utf8, read_header

MOST = 0.5
"""A column of which more than this part does not fit is another one, or in another unit."""
MOST_CODES = 12
"""Different whole numbers of a column that may be codes."""
LEAST_RECORDS = 20
"""Fewer records show neither codes nor a tail."""
TAIL = 0.05
"""A tail is long if 9 of 10 values lie within this part of the range."""
_COMMA = re.compile(r"[+-]?[0-9]+(\.[0-9]{3})*,[0-9]+")


class Finding(NamedTuple):
    """One thing that the owner should look at."""

    said: str
    """A sentence: where it is, what it is, and the way out."""
    blocks: bool = False
    """Whether training on the file would be training on something else."""
    column: str = ""
    """The contract's column that it is about; "" for the header, or for whole records."""
    cut: bool = False
    """Whether most of its values would become another value, the end of the range."""


@dataclass
class _Seen:
    """Of one column's cells: how many are of a kind, and in which line the first is."""

    records: int = 0
    missing: int = 0
    times: Counter[str] = field(default_factory=Counter)
    first: dict[str, tuple[int, str]] = field(default_factory=dict)
    values: list[float] = field(default_factory=list)
    words: Counter[str] = field(default_factory=Counter)

    def note(self, kind: str, line: int, cell: str) -> None:
        self.times[kind] += 1
        self.first.setdefault(kind, (line, cell))

    def where(self, kind: str) -> str:
        line, cell = self.first[kind]
        return f"{self.times[kind]:,} of {self.records:,} (first in line {line}: {shown(cell)!r})"

    @property
    def known(self) -> int:
        return self.records - self.missing

    def most(self, *kinds: str) -> bool:
        return sum(self.times[kind] for kind in kinds) > MOST * max(1, self.known)


def compare(
    path: Path,
    contract: Contract,
    mapping: FileMapping | None = None,
    beside: Collection[str] = (),
) -> list[Finding]:
    """What differs between a file and its contract, in the order of the file's columns.

    Args:
        path: a .csv or .parquet.
        contract: what it should be read by.
        mapping: how its owner's file says it.
        beside: columns that are read beside the contract's, if they are there.
    """
    own = mapping or FileMapping()
    own.check(contract)
    header = read_header(path, own.wanted(contract))
    found = list(_names(path.name, own.names(header.names), own.needed(contract), beside))
    if header.separator != ",":
        sign = {"\t": "tab"}.get(header.separator, header.separator)
        found.append(Finding(f"{path.name}: columns are divided by {sign!r}, and read so"))
    found += _encoding(path)
    if any(each.blocks for each in found):
        return found
    whole = _Whole({name: _Seen() for name in contract.names})
    for batch in read_batches(path, contract, own):
        for at, line in enumerate(batch.numbers):
            whole.note(line, {name: batch.cells[name][at] for name in contract.names}, contract)
    found += whole.records(path.name)
    for name, seen in whole.columns.items():
        found += [
            each._replace(said=f"{path.name}, column {name!r}: {each.said}", column=name)
            for each in _column(seen, contract, name)
        ]
    return found


def _encoding(path: Path) -> Iterator[Finding]:
    if odd := not_utf8(path):
        yield Finding(
            f"{path.name}: {odd[0]:,} lines are not UTF-8 (first: line {odd[1]}), so their words "
            f"with accents are other words; write the file as UTF-8 (iconv -f latin1 -t utf8)"
        )


@dataclass
class _Whole:
    """Of all records: their columns, and which of them are the same."""

    columns: dict[str, _Seen]
    lines: Counter[bytes] = field(default_factory=Counter)
    persons: Counter[str] = field(default_factory=Counter)
    odd: list[int] = field(default_factory=list)
    again: int = 0
    """The line of the first record that was there before."""

    def note(self, line: int, record: dict[str, Any], contract: Contract) -> None:
        if all(cell is None for cell in record.values()):
            self.odd.append(line)
            return
        cells = {name: text(cell) for name, cell in record.items()}
        key = hashlib.sha256("\x1f".join(cells.values()).encode()).digest()
        self.lines[key] += 1
        if self.lines[key] == 2 and not self.again:
            self.again = line
        for name, cell in cells.items():
            _note(self.columns[name], contract, name, line, cell)
        if contract.person:
            self.persons[cells[contract.person]] += 1

    def records(self, file: str) -> Iterator[Finding]:
        if self.odd:
            yield Finding(
                f"{file}: {len(self.odd):,} lines have another number of cells than the header "
                f"(first: line {self.odd[0]}), and count as records without values; correct them"
            )
        twice = sum(times - 1 for times in self.lines.values())
        if twice:
            yield Finding(
                f"{file}: {twice:,} records are the same as an earlier one (first: line "
                f"{self.again}); nothing removes them: each counts as a record"
            )
        nobody = self.persons[""]
        if nobody:
            yield Finding(f"{file}: {nobody:,} records name no person, and are ignored; fill in")
        several = [times for name, times in self.persons.items() if times > 1 and name]
        if several:
            yield Finding(
                f"{file}: {len(several):,} of {len(self.persons):,} persons have several records, "
                f"up to {max(several)}; protect persons (unit = 'group'), not records"
            )


def _names(
    file: str, header: Sequence[str], needed: Sequence[str], beside: Collection[str]
) -> Iterator[Finding]:
    extra = [name for name in header if name not in needed and name not in beside]
    for name in needed:
        times = list(header).count(name)
        if times == 1:
            continue
        if times:
            yield Finding(f"{file}: the header has {name!r} {times} times; rename one", blocks=True)
            continue
        near = _likeliest(name, extra)
        way_out = f'mapping.rename = {{"{shown(near)}" = "{name}"}}' if near else "add it"
        yield Finding(
            f"{file}: the header has no {name!r}; {way_out}, or map another name", blocks=True
        )
    if extra:
        listed = ", ".join(map(shown, extra[:10]))
        yield Finding(f"{file}: columns that are not read: {listed}")
    marks = ", ".join(shown(name) for name in header if name in beside and name not in needed)
    if marks:
        yield Finding(f"{file}: columns that only say which records are for what: {marks}")
    order = [name for name in header if name in needed]
    if order != [name for name in needed if name in order]:
        yield Finding(f"{file}: columns come in another order, and are read by name")


def _likeliest(name: str, extra: Sequence[str]) -> str:
    plain = {re.sub(r"[\W_]+", "", each).casefold(): each for each in extra}
    wanted = re.sub(r"[\W_]+", "", name).casefold()
    near = get_close_matches(wanted, plain, n=1, cutoff=0.5)
    within = [each for each in plain if wanted in each]
    return plain[[*within, *near][0]] if within or near else ""


def _note(seen: _Seen, contract: Contract, name: str, line: int, cell: str) -> None:
    seen.records += 1
    if is_missing(cell, contract.absent_of(name)):
        seen.missing += 1
        return
    column = next((each for each in contract.columns if each.name == name), None)
    if column is not None:
        _note_value(seen, column, line, cell)
    elif contract.label is not None and name == contract.label.column:
        if contract.label.range is not None:
            _note_number(seen, contract.label.range, line, cell)
        else:
            _note_word(seen, contract.label.vocabulary, line, cell)


def _note_value(seen: _Seen, column: Column, line: int, cell: str) -> None:
    if column.kind is Kind.NUMBER:
        _note_number(seen, column.range or (0.0, 0.0), line, cell)
    else:
        _note_word(seen, column.vocabulary, line, cell)


def _note_number(seen: _Seen, ends: tuple[float, float], line: int, cell: str) -> None:
    value = number(cell)
    if math.isnan(value):
        seen.note("comma" if _COMMA.fullmatch(cell) else "text", line, cell)
        return
    seen.values.append(value)
    if not ends[0] <= value <= ends[1]:
        seen.note("beyond", line, cell)


def _note_word(seen: _Seen, known: dict[str, int], line: int, cell: str) -> None:
    word = spelling(cell)
    seen.words[word] += 1
    if word not in known:
        seen.note("word", line, cell)


def _column(seen: _Seen, contract: Contract, name: str) -> Iterator[Finding]:
    column = next((each for each in contract.columns if each.name == name), None)
    label = contract.label if contract.label and name == contract.label.column else None
    if seen.times["comma"]:
        yield Finding(
            f"numbers have a decimal comma, {seen.where('comma')}, and would be missing; say "
            f'mapping.decimal = ","',
            seen.most("comma", "text"),
        )
    if seen.times["text"]:
        yield Finding(
            f"no numbers: {seen.where('text')}; they are missing",
            seen.most("comma", "text"),
        )
    if seen.times["beyond"]:
        yield _beyond(seen, column)
    if seen.times["word"]:
        yield _unknown_words(seen, column, label is not None, contract)
    if label is not None:
        yield from _classes(seen, label.words)
    elif column is not None and seen.missing:
        yield Finding(f"{seen.missing:,} of {seen.records:,} values are missing")
    if column is not None and column.kind is Kind.NUMBER:
        yield from _hints(seen, column)


def _beyond(seen: _Seen, column: Column | None) -> Finding:
    unit = f" {column.unit}" if column is not None and column.unit else ""
    low, high = (column.range or (0, 0)) if column is not None else (0, 0)
    ends = f" [{low:g}, {high:g}]{unit}" if column is not None else ""
    if seen.most("beyond"):
        return Finding(
            f"most values lie beyond the range{ends}: {seen.where('beyond')}; is it another unit, "
            f"or another column? Give mapping.factor and offset",
            blocks=True,
            cut=True,
        )
    return Finding(f"values lie beyond the range{ends} and are cut: {seen.where('beyond')}")


def _unknown_words(seen: _Seen, column: Column | None, label: bool, contract: Contract) -> Finding:
    words = contract.label.words if label and contract.label else column.words if column else ()
    folded = {word.casefold(): word for word in words}
    cell = seen.first["word"][1]
    near = folded.get(cell.casefold(), "")
    way_out = f", such as {{{shown(cell)!r} = {near!r}}}" if near else ""
    fate = "such records are ignored" if label else "they are missing"
    return Finding(
        f"words that the contract does not have: {seen.where('word')}; {fate}; name them in "
        f"mapping.words{way_out}",
        seen.most("word"),
    )


def _classes(seen: _Seen, words: Sequence[str]) -> Iterator[Finding]:
    if seen.missing:
        yield Finding(f"{seen.missing:,} labels are missing; such records are ignored")
    none = [word for word in words if not seen.words[spelling(word)]]
    if none:
        listed = ", ".join(map(repr, none[:6]))
        yield Finding(f"no record is of class {listed}, which keeps its number all the same")


def _hints(seen: _Seen, column: Column) -> Iterator[Finding]:
    values = sorted(seen.values)
    if len(values) < LEAST_RECORDS:
        return
    different = set(values)
    whole = all(value.is_integer() for value in different)
    low, high = column.range or (0.0, 0.0)
    if whole and 2 <= len(different) <= MOST_CODES:
        yield Finding(
            f"hint: only {len(different)} different whole numbers; if they are codes, ask for kind "
            f"'category' (see 'Encode first')"
        )
    most = values[int(0.95 * len(values))] - values[int(0.05 * len(values))]
    if column.scale is Scale.LINEAR and most < TAIL * (high - low) and len(different) > MOST_CODES:
        yield Finding(
            "hint: a long tail: 9 of 10 values lie within a twentieth of the range; ask for scale "
            "'log', or a narrower range (see 'Encode first')"
        )
