# SPDX-License-Identifier: Apache-2.0
"""How one owner's file says what the contract means: other names, words and units.

    [data.sepsis.load.mapping]
    rename = {alter = "age", gewicht = "weight"}
    factor = {weight = 0.4536}                 # the file has pounds, the contract kilograms
    offset = {temperature = -273.15}
    words = {outcome = {"1" = "dead", "0" = "alive"}}
    decimal = ","
    missing = ["smoker"]                       # the file has it not, or not as agreed

All keys but those of ``rename`` are the contract's names. A mapping is its owner's alone: it is in
no terms, and shown where a training is approved. Each cell is mapped by itself.

| edge case                                     | what happens                                    |
|-----------------------------------------------|-------------------------------------------------|
| a word that means missing, of a mapped number | stays missing: it is looked for before          |
| text in the place of a number                 | stays as it is, and is missing                  |
| no cell at all, in a line that does not fit   | stays none                                      |
| a point in a number with decimal = ","        | of thousands, if so written; otherwise missing  |
| a name or word that the contract does not have| RecipeError                                     |
| a column under ``missing``                    | not read: each record has the contract's        |
|                                               | constant for a missing value                    |
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dpfed.core.checks import refuse
from dpfed.core.errors import RecipeError
from dpfed.core.log import shown
from dpfed.data.cells import number, spelling, text
from dpfed.data.contract import (
    MAX_COLUMNS,
    Contract,
    Kind,
    check_text,
    is_missing,
    read_tables,
)

_GROUPS = re.compile(r"[+-]?[0-9]{1,3}(\.[0-9]{3})+(,[0-9]*)?")
MAX_FACTOR = 1e12


class FileMapping(
    msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True
):
    """Names, words and units of one owner's file.

    >>> FileMapping(rename={"alter": "age"}).names(("alter", "sex"))
    ('age', 'sex')
    """

    rename: dict[str, str] = {}
    """By a column's name in the file, the contract's name for it."""
    factor: dict[str, float] = {}
    """By column: what a number is multiplied by."""
    offset: dict[str, float] = {}
    """By column: what is added then."""
    words: dict[str, dict[str, str]] = {}
    """By column: the file's words, and the contract's word for each."""
    decimal: str = "."
    """What stands before the decimals of a number: a point, or a comma."""
    missing: tuple[str, ...] = ()
    """Columns of features that are not read: each of their values is missing."""

    def names(self, header: Sequence[str]) -> tuple[str, ...]:
        """The file's columns by the contract's names.

        Args:
            header: as the file has them.
        """
        return tuple(self.rename.get(name, name) for name in header)

    def wanted(self, contract: Contract) -> set[str]:
        """The names that the file's header should have.

        Args:
            contract: what is looked for.
        """
        mapped = {mine for mine, its in self.rename.items() if its in contract.names}
        others = set(contract.names) - {self.rename[mine] for mine in mapped}
        return mapped | (others - set(self.missing))

    def needed(self, contract: Contract) -> list[str]:
        """The contract's columns that are read.

        Args:
            contract: what the file is read by.
        """
        return [name for name in contract.names if name not in self.missing]

    def check(self, contract: Contract) -> None:
        """Refuse what the contract does not have.

        Args:
            contract: what the file is read by.
        """
        if self.decimal not in (".", ","):
            raise refuse("mapping.decimal", "a point or a comma", self.decimal)
        if max(len(self.rename), len(self.factor), len(self.offset)) > MAX_COLUMNS:
            raise refuse("mapping", f"of at most {MAX_COLUMNS} columns", "more", "shorten it")
        for mine, its in self.rename.items():
            check_text("mapping.rename", mine)
            if its not in contract.names:
                raise _unknown("mapping.rename", its, contract.names)
        twice = [each for each, times in Counter(self.rename.values()).items() if times > 1]
        if twice:
            way_out = "a mapping is for one owner's files; map those of another one by its own"
            raise refuse("mapping.rename", "another column for each", f"{twice[0]} twice", way_out)
        features = [column.name for column in contract.columns]
        for name in self.missing:
            if name not in features:
                raise _unknown("mapping.missing", name, features)
        self._check_units(contract)
        self._check_words(contract)

    def _check_units(self, contract: Contract) -> None:
        numbers = _numbers(contract)
        for name in (*self.factor, *self.offset):
            if name not in numbers:
                raise _unknown("mapping.factor and offset", name, numbers)
        for name, value in (*self.factor.items(), *self.offset.items()):
            if not -MAX_FACTOR <= value <= MAX_FACTOR:
                bound = f"from {-MAX_FACTOR:g} to {MAX_FACTOR:g}"
                raise refuse(f"mapping: the number for {name}", bound, value, "correct it")
        if 0 in self.factor.values():
            raise refuse("mapping.factor", "without 0", 0, "leave the column out")

    def _check_words(self, contract: Contract) -> None:
        known = {c.name: c.vocabulary for c in contract.columns if c.kind is not Kind.NUMBER}
        if contract.label is not None and contract.label.words:
            known[contract.label.column] = contract.label.vocabulary
        for name, given in self.words.items():
            if name not in known:
                raise _unknown("mapping.words", name, list(known), "a column with words")
            for mine, its in given.items():
                check_text(f"mapping.words.{name}", mine)
                if spelling(its) not in known[name]:
                    raise _unknown(f"mapping.words.{name}", its, list(known[name]))

    def reader(self, name: str, contract: Contract) -> Callable[[Any], Any]:
        """What makes the contract's cell of the file's, one cell at a time.

        Args:
            name: the column, by the contract's name.
            contract: what the file is read by.
        """
        if name in _numbers(contract):
            return self._number_reader(name, contract)
        mine = {spelling(one): its for one, its in self.words.get(name, {}).items()}
        return (lambda cell: mine.get(spelling(text(cell)), cell)) if mine else lambda cell: cell

    def _number_reader(self, name: str, contract: Contract) -> Callable[[Any], Any]:
        factor, offset = self.factor.get(name, 1.0), self.offset.get(name, 0.0)
        if (factor, offset, self.decimal) == (1.0, 0.0, "."):
            return lambda cell: cell
        absent = contract.absent_of(name)

        def read(cell: Any) -> Any:
            written = text(cell)
            if is_missing(written, absent):
                return None if cell is None else ""
            found = number(with_point(written) if self.decimal == "," else written)
            return written if math.isnan(found) else found * factor + offset

        return read

    def table(self, contract: Contract, table: Mapping[str, Any]) -> dict[str, list[Any]]:
        """A table's cells as the contract has them; columns that it lacks are left out.

        Args:
            contract: what it is to be read by.
            table: by the file's own name of a column, its cells.
        """
        names = self.names(list(table))
        read = [name for name in self.needed(contract) if name in names]
        contract.places(names, read)  # refuses one that is there twice
        held = dict(zip(names, table, strict=True))
        made = {name: [*map(self.reader(name, contract), table[held[name]])] for name in read}
        records = len(next(iter(made.values()), ()))
        return made | {name: [None] * records for name in self.missing}

    def said(self, contract: Contract) -> Iterator[str]:
        """What is mapped, one sentence part each, for the officer who approves.

        Args:
            contract: what the file is read by.
        """
        yield from (f"{shown(mine)!r} is read as {its!r}" for mine, its in self.rename.items())
        for name in [*dict.fromkeys([*self.factor, *self.offset])]:
            units = {column.name: column.unit for column in contract.columns}
            by = f"{self.factor.get(name, 1.0):g} * the file's number"
            plus = f" + {self.offset[name]:g}" if name in self.offset else ""
            yield f"{name} = {by}{plus} {f'({units[name]})' if units.get(name) else ''}".rstrip()
        for name, given in self.words.items():
            pairs = ", ".join(f"{shown(mine)!r} is {its!r}" for mine, its in given.items())
            yield f"in {name}, {pairs}"
        if self.decimal != ".":
            yield "numbers have a decimal comma"
        yield from (f"{name} is not read, so that each value is missing" for name in self.missing)


def read_mapping(path: Path) -> FileMapping:
    """A mapping from a TOML file of at most 64 KiB, with the keys of a policy's ``load.mapping``.

    A recipe will do, too: then its table ``data.mapping`` is read, and nothing else of it.

    Args:
        path: the file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "mapping.toml"
    ...     _ = path.write_text('rename = {alter = "age"}')
    ...     read_mapping(path).rename
    {'alter': 'age'}
    """
    tables = read_tables("mapping", path, "check the path")
    data = tables.get("data")
    if isinstance(data, dict) and isinstance(data.get("mapping"), dict):
        tables = data["mapping"]
    return mapping_of(tables)


def mapping_of(tables: Mapping[str, Any]) -> FileMapping:
    """A mapping from plain tables, as TOML or JSON has them.

    Args:
        tables: its fields.

    >>> mapping_of({"factor": {"weight": 0.4536}}).factor
    {'weight': 0.4536}
    """
    try:
        return msgspec.convert(tables, FileMapping)
    except msgspec.ValidationError as error:
        raise RecipeError(
            f"the mapping cannot be read ({error}); correct that place: its keys are those of the "
            f"table data.mapping"
        ) from error


def _numbers(contract: Contract) -> list[str]:
    """The columns whose cells are numbers."""
    found = [column.name for column in contract.columns if column.kind is Kind.NUMBER]
    target = contract.label is not None and contract.label.range is not None
    return [*found, contract.label.column] if contract.label and target else found


def with_point(written: str) -> str:
    """A number with a decimal comma as one with a point; not a number if it is neither."""
    if _GROUPS.fullmatch(written):
        return written.replace(".", "").replace(",", ".")
    return "" if "." in written else written.replace(",", ".")


def _unknown(label: str, given: str, known: Sequence[str], what: str = "something") -> Exception:
    held = ", ".join(list(known)[:20])
    return refuse(label, f"about {what} of the contract ({held})", shown(given), "correct it")
