# SPDX-License-Identifier: Apache-2.0
"""Tables through their contract: features, classes and persons, whatever a file's order and words.

Guarantee: a file is refused by its header, by a quote that is open at a line's end, or by a mark of
training and test that is neither; never for another value. A record that fits in nothing (too many
cells, an unknown label) stays a record, which is ignored in training: its row is zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpfed.core.errors import DataError
from dpfed.data.cells import day, word
from dpfed.data.contract import Contract
from dpfed.data.mapping import FileMapping
from dpfed.data.readers import TablePart, by_split
from dpfed.data.sheets import Line, read_header, read_lines
from dpfed.data.tables import FILE, TableFacts

_BATCH = 16_384


class Batch(NamedTuple):
    """Some records of a file."""

    numbers: list[int]
    """Their lines."""
    cells: dict[str, list[Any]]
    """By the contract's name of a column, and of others that were asked for."""
    kept: dict[str, list[Any]]
    """As they are in the file, by the file's own name."""


def read_batches(
    path: Path,
    contract: Contract,
    mapping: FileMapping | None = None,
    others: Sequence[str] = (),
    needed: Sequence[str] | None = None,
    kept: Sequence[str] = (),
) -> Iterator[Batch]:
    """A file's records, some at a time, with the contract's names, units and words.

    Args:
        path: a .csv or .parquet.
        contract: what it is read by.
        mapping: how its owner's file says it; None if it says it as the contract does.
        others: columns that are no part of the contract, and are read if they are there.
        needed: the contract's columns that must be there; None is all of them.
        kept: columns that are wanted as the file has them, too, by the file's own names.
    """
    own = mapping or FileMapping()
    own.check(contract)
    header = read_header(path, own.wanted(contract))
    names = own.names(header.names)
    try:
        places = contract.places(names, own.needed(contract) if needed is None else needed)
    except DataError as error:
        raise DataError(f"{path.name!r}: {error}") from error
    places = {name: at for name, at in places.items() if name not in own.missing}
    places |= {name: names.index(name) for name in others if name in names}
    readers = {name: own.reader(name, contract) for name in contract.names if name in places}
    lines = read_lines(path, header)
    while batch := list(islice(lines, _BATCH)):
        cells = {name: _cells(batch, at) for name, at in places.items()}
        for name, reader in readers.items():
            cells[name] = [reader(cell) for cell in cells[name]]
        cells |= {name: [None] * len(batch) for name in own.missing}
        copied = {name: _cells(batch, header.names.index(name)) for name in kept}
        yield Batch([line.number for line in batch], cells, copied)


def _cells(lines: Sequence[Line], at: int) -> list[Any]:
    """A column of some lines; None in one that does not fit the header."""
    return [None if line.cells is None else line.cells[at] for line in lines]


def read_contracted(
    paths: Sequence[Path],
    contract: Contract,
    mapping: FileMapping | None = None,
    silo: str | None = None,
    split: str | None = None,
    arrival: str | None = None,
) -> tuple[dict[str, TablePart], TableFacts]:
    """The parts of one or more tables, read by a contract, and what the columns became.

    Args:
        paths: the files.
        contract: what they are read by.
        mapping: how their owner's files say it.
        silo: a column of silos, if there is one.
        split: a column of training and test; used if it is there.
        arrival: a column of dates on which records arrived, if there is one.
    """
    parts = [_part(path, contract, mapping, silo, split, arrival) for path in paths]
    many = len(paths) > 1 and silo is None
    names = np.repeat([str(path) for path in paths], [len(part.whole.y) for part in parts])
    whole = TablePart(
        x=np.concatenate([part.whole.x for part in parts]),
        y=np.concatenate([part.whole.y for part in parts]),
        groups=_joined(part.whole.groups for part in parts),
        silos=names if many else _joined(part.whole.silos for part in parts),
        days=_joined(part.whole.days for part in parts),
    )
    facts = TableFacts(
        contract.features,
        (0,) * contract.width,  # what lies outside is shown by a check of the file
        silo=silo or (FILE if many else None),
        words=contract.label.words if contract.label else (),
    )
    return by_split(whole, _marks(paths, parts, split)), facts


class _Part(NamedTuple):
    whole: TablePart
    split: Any


def _part(
    path: Path,
    contract: Contract,
    mapping: FileMapping | None,
    silo: str | None,
    split: str | None,
    arrival: str | None,
) -> _Part:
    x, y, others, days = [], [], dict[str, list[str]](), list[int]()
    asked = [name for name in (silo, split, arrival) if name]
    for batch in read_batches(path, contract, mapping, asked):
        x.append(contract.encode(batch.cells))
        y.append(contract.labels(batch.cells))
        for name in {contract.person, *asked} & batch.cells.keys():
            others.setdefault(name, []).extend(map(word, batch.cells[name]))
        days += map(day, batch.cells.get(arrival or "", ()))
    if not x:
        raise DataError(f"{path.name!r} has no records; give a table with lines below its header")
    if silo is not None and silo not in others:
        raise DataError(f"{path.name!r} has no column {silo!r} of silos; name another one")
    if arrival is not None and arrival not in others:
        raise DataError(f"{path.name!r} has no column {arrival!r} of dates; name another one")
    columns = {name: np.array(words, dtype=object) for name, words in others.items()}
    groups, silos = columns.get(contract.person), columns.get(silo or "")
    whole = TablePart(np.concatenate(x), np.concatenate(y), groups, silos)
    if arrival is not None:
        whole = whole._replace(days=np.array(days, np.int64))
    return _Part(whole, columns.get(split or ""))


def _marks(paths: Sequence[Path], parts: Sequence[_Part], split: str | None) -> Any:
    """Which records are for testing; else, of a file without the marks, all would be trained on."""
    without = [path for path, part in zip(paths, parts, strict=True) if part.split is None]
    if 0 < len(without) < len(paths):
        raise DataError(
            f"{without[0].name!r} has no column {split!r}, by which other files say what is for "
            f"testing; add it there, or read none of them by data.options.split = ''"
        )
    return _joined(part.split for part in parts)


def _joined(columns: Iterable[Any]) -> Any:
    """One column of several files; None if any of them has none."""
    found = list(columns)
    return None if any(each is None for each in found) else np.concatenate(found)
