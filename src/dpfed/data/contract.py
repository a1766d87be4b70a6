# SPDX-License-Identifier: Apache-2.0
"""A data contract: what each column of everybody's table means, agreed in public before training.

    row = "one admission"
    person = "patient"                 # the column that says whose record it is
    missing_words = ["?", "-999"]      # besides an empty cell
    columns = [
      {name = "age", kind = "number", range = [18, 100], unit = "years"},
      {name = "lactate", kind = "number", range = [0.1, 30], scale = "log", missing = 1.5},
      {name = "sex", kind = "category", words = ["f", "m"]},
      {name = "smoker", kind = "flag", words = ["no", "yes"]},
    ]
    label = {column = "outcome", words = ["alive", "dead"]}    # class 0, class 1

Order matters: of columns (it is that of the features), of a category's words, and of the label's
words (it numbers the classes). A file may have its columns in any order.

Guarantee: a cell becomes numbers by the contract and its own text, and by nothing else, so that one
changed cell moves one record only. Every feature lies in [-1, 1].

| a cell                                    | what becomes of it                              |
|-------------------------------------------|-------------------------------------------------|
| a number beyond its range                 | the nearest end of the range, then the scale    |
| a number, linear                          | -1 at the low end, 1 at the high end            |
| a number, log                             | the same, of its logarithm                      |
| a category's word                         | one feature for each word: 1 for its own, else 0|
| a flag's word                             | -1 for the first, 1 for the second              |
| a word that the column does not have, text| missing                                         |
| in the place of a number                  |                                                 |
| missing                                   | the column's public constant ``missing``; unset:|
|                                           | the middle of the range, no category, 0         |
| a label that is none of the words, or no  | class -1, or NaN: such a record is ignored      |
| number                                    |                                                 |
| words 3, 3.0 and "03"                     | the same word                                   |

A contract comes from others: its size is bounded, and its words have no control or direction signs
and cannot be a spreadsheet's formula. HTML has to escape them like any text.
"""

from __future__ import annotations

import hashlib
import math
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dpfed.core.checks import refuse
from dpfed.core.dsse import canonical_json
from dpfed.core.errors import DataError, RecipeError
from dpfed.core.log import shown
from dpfed.data.cells import number, spelling, text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_BYTES = 1 << 16
"""Of a contract's file."""
MAX_COLUMNS = 1_000
MAX_WORDS = 1_000
"""Of one column, and among those that mean missing."""
MAX_FEATURES = 10_000
MAX_CHARACTERS = 80
"""Of a name or a word."""
MAX_END = 1e100
"""How far an end of a range may be from 0."""
MIN_WIDTH = 1e-100
MISSING_WORDS = ("na", "n/a", "nan", "null", "none", "?")
"""What means missing unless a contract says otherwise; an empty cell always does."""
DEFAULT_ABSENT = frozenset(MISSING_WORDS)
UNKNOWN = -1
"""The class of a label that is none of the words."""
_FORMULA = ("=", "+", "-", "@")
_FLAG_SPELLINGS = {"false": 0, "False": 0, "FALSE": 0, "true": 1, "True": 1, "TRUE": 1}


class Kind(StrEnum):
    """What a column holds."""

    NUMBER = "number"
    CATEGORY = "category"
    FLAG = "flag"


class Scale(StrEnum):
    """How a number's range is stretched."""

    LINEAR = "linear"
    LOG = "log"


Value = float | int | None
"""A number within its range, the place of a word, or None if it is missing."""


class _Form(
    msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True
):
    pass


class Column(_Form, frozen=True):
    """One column of features, as everybody reads it.

    >>> age = Column(name="age", kind="number", range=(20, 100))
    >>> age.encode("60"), age.encode("200"), age.encode("n/a")
    ((0.0,), (1.0,), (0.0,))
    >>> Column(name="sex", kind="category", words=("f", "m")).encode("m")
    (0.0, 1.0)
    """

    name: str
    """As it is in every file's header, or as its owner maps it."""
    kind: Kind
    """number, category or flag."""
    range: tuple[float, float] | None = None
    """Of a number: the public lowest and highest value; what is beyond is cut to it."""
    scale: Scale = Scale.LINEAR
    """Of a number: linear or log; log needs a range above 0."""
    unit: str = ""
    """Of a number: in words, such as "mmol/l"."""
    words: tuple[str, ...] = ()
    """Of a category: its words. Of a flag: the words for no and yes; unset, 0 and 1."""
    missing: float | str | None = None
    """A public constant for a missing value: a number of the range, or one of the words."""
    missing_words: tuple[str, ...] = ()
    """Words that mean missing in this column alone."""
    from_records: tuple[str, ...] = ()
    """Fields here that were read off private records: to be replaced before anybody agrees."""

    def __post_init__(self) -> None:
        _settle(self)
        _check_column(self)

    @property
    def vocabulary(self) -> dict[str, int]:
        """Every spelling of a word that the column knows, with the word's place."""
        if self.kind is Kind.FLAG and not self.words:
            return {"0": 0, "1": 1, **_FLAG_SPELLINGS}
        return {spelling(word): place for place, word in enumerate(self.words)}

    @property
    def fill(self) -> Value:
        """What a missing value becomes: a number, a word's place, or None for none of the words."""
        if self.kind is Kind.NUMBER:
            if isinstance(self.missing, float):
                return self.missing
            low, high = self.stretched
            return self._unstretched((low + high) / 2)
        return None if self.missing is None else self.vocabulary.get(_spelled(self.missing))

    @property
    def features(self) -> tuple[str, ...]:
        """A name for each feature."""
        if self.kind is Kind.CATEGORY:
            return tuple(f"{self.name}={word}" for word in self.words)
        return (self.name,)

    @property
    def stretched(self) -> tuple[float, float]:
        """The ends of the range, by the scale."""
        low, high = self.range or (-1.0, 1.0)
        return (math.log(low), math.log(high)) if self.scale is Scale.LOG else (low, high)

    def _unstretched(self, value: float) -> float:
        low, high = self.range or (-1.0, 1.0)
        return min(max(math.exp(value) if self.scale is Scale.LOG else value, low), high)

    def value(self, cell: Any, missing_words: frozenset[str] = DEFAULT_ABSENT) -> Value:
        """A cell as a number cut to the range, or as a word's place; None if it is missing.

        Args:
            cell: as it is in a file.
            missing_words: what means missing in every column, as ``Contract.absent`` has it.
        """
        return _Reader(self, missing_words).value(text(cell))

    def spread(self, value: Value) -> tuple[float, ...]:
        """A value as features, each from -1 to 1; None is replaced by ``fill``.

        Args:
            value: as ``value`` makes it of a cell.
        """
        return _Reader(self, DEFAULT_ABSENT).spread(value)

    def encode(
        self, cell: Any, missing_words: frozenset[str] = DEFAULT_ABSENT
    ) -> tuple[float, ...]:
        """A cell as features: ``spread`` of its ``value``.

        Args:
            cell: as it is in a file.
            missing_words: what means missing in every column, as ``Contract.absent`` has it.
        """
        reader = _Reader(self, missing_words)
        return reader.spread(reader.value(text(cell)))


class _Reader:
    """A column with what is looked up for each cell."""

    def __init__(self, column: Column, absent: frozenset[str]) -> None:
        self.kind, self.scale = column.kind, column.scale
        self.range, self.stretched = column.range or (-1.0, 1.0), column.stretched
        self.words, self.vocabulary, self.fill = len(column.words), column.vocabulary, column.fill
        self.absent = absent | frozenset(map(_folded, column.missing_words))

    def value(self, written: str) -> Value:
        if is_missing(written, self.absent):
            return None
        if self.kind is not Kind.NUMBER:
            return self.vocabulary.get(spelling(written))
        read, (low, high) = number(written), self.range
        return None if math.isnan(read) else min(max(read, low), high)

    def spread(self, value: Value) -> tuple[float, ...]:
        known = self.fill if value is None else value
        if self.kind is Kind.CATEGORY:
            return tuple(float(place == known) for place in range(self.words))
        if known is None:  # a flag without a constant
            return (0.0,)
        if self.kind is Kind.FLAG:
            return (2.0 * known - 1.0,)
        low, high = self.stretched
        at = math.log(known) if self.scale is Scale.LOG else float(known)
        return (min(max((at - (low + high) / 2) / ((high - low) / 2), -1.0), 1.0),)

    def encoded(self, cells: Sequence[str]) -> NDArray[np.float32]:
        """Each different text once: what it becomes depends on nothing else."""
        import numpy as np

        known = {written: self.spread(self.value(written)) for written in set(cells)}
        size = self.words if self.kind is Kind.CATEGORY else 1
        rows = np.array([known[written] for written in cells], dtype=np.float32)
        return rows.reshape(len(cells), size)


class Label(_Form, frozen=True):
    """What is predicted: a class by its word, or a number.

    >>> Label(column="outcome", words=("alive", "dead")).encode("dead")
    1
    """

    column: str
    """Its column."""
    words: tuple[str, ...] = ()
    """The classes' words: the first is class 0."""
    range: tuple[float, float] | None = None
    """Where it is a number: the public lowest and highest; it is cut, and stays in its unit."""
    from_records: tuple[str, ...] = ()
    """Fields here that were read off private records."""

    def __post_init__(self) -> None:
        _settle(self)
        _check_label(self)

    @property
    def vocabulary(self) -> dict[str, int]:
        """Every class by its word's one spelling."""
        return {spelling(word): place for place, word in enumerate(self.words)}

    def encode(self, cell: Any, missing_words: frozenset[str] = DEFAULT_ABSENT) -> float:
        """A cell as a class, UNKNOWN if it is none; or as a number, NaN if it is none.

        Args:
            cell: as it is in a file.
            missing_words: what means missing, as ``Contract.absent`` has it.
        """
        written = text(cell)
        empty = is_missing(written, missing_words)
        if self.range is None:
            return UNKNOWN if empty else self.vocabulary.get(spelling(written), UNKNOWN)
        read = math.nan if empty else number(written)
        return read if math.isnan(read) else min(max(read, self.range[0]), self.range[1])


class Contract(_Form, frozen=True):
    """The public description of a table that all who train on it, or use the model, read it by.

    ``read_contract`` reads one from a file, ``contract_of`` from tables.

    >>> sex = Column(name="sex", kind="category", words=("f", "m"))
    >>> agreed = Contract(columns=(sex,), label=Label(column="ill", words=("no", "yes")))
    >>> agreed.features, agreed.classes
    (('sex=f', 'sex=m'), 2)
    >>> agreed.encode({"sex": ["m", "?"], "ill": ["yes", "no"]}).tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    >>> agreed.labels({"sex": ["m", "?"], "ill": ["yes", "no"]}).tolist()
    [1, 0]
    >>> agreed.decode([1, 0])
    ['yes', 'no']
    """

    columns: tuple[Column, ...]
    """The columns of the features, in the features' order."""
    label: Label | None = None
    """What is predicted; None where nothing is trained."""
    person: str = ""
    """The column that says whose record it is; "" if nobody has several."""
    row: str = "one record"
    """What a row of the table stands for."""
    missing_words: tuple[str, ...] = MISSING_WORDS
    """Words that mean missing, in any case; an empty cell always does."""

    def __post_init__(self) -> None:
        _settle(self)
        _check_contract(self)

    @property
    def features(self) -> tuple[str, ...]:
        """A name for each feature, in their order."""
        return tuple(name for column in self.columns for name in column.features)

    @property
    def width(self) -> int:
        """How many features a record has."""
        return sum(len(column.features) for column in self.columns)

    @property
    def classes(self) -> int | None:
        """How many classes there are; None where labels are numbers, or there are none."""
        return len(self.label.words) or None if self.label else None

    @property
    def names(self) -> tuple[str, ...]:
        """Every column that a file must have, features first."""
        label = (self.label.column,) if self.label else ()
        return (*(column.name for column in self.columns), *label, *filter(None, (self.person,)))

    @property
    def digest(self) -> str:
        """A digest of the contract's meaning, for fingerprints."""
        return _digest(self)

    @property
    def drafted(self) -> tuple[str, ...]:
        """What was read off private records, and must be replaced before anybody agrees."""
        held = [(f"columns.{column.name}", column.from_records) for column in self.columns]
        held += [("label", self.label.from_records)] if self.label else []
        return tuple(f"{place}.{field}" for place, fields in held for field in fields)

    @property
    def absent(self) -> frozenset[str]:
        """The words that mean missing, in lower case."""
        return frozenset(map(_folded, self.missing_words))

    def absent_of(self, name: str) -> frozenset[str]:
        """The words that mean missing in one column, in lower case.

        Args:
            name: the column's.
        """
        own = (column.missing_words for column in self.columns if column.name == name)
        return self.absent | frozenset(_folded(word) for words in own for word in words)

    def column(self, name: str) -> Column:
        """A column of features by its name.

        Args:
            name: the column's.
        """
        for column in self.columns:
            if column.name == name:
                return column
        raise _no_column(name, [column.name for column in self.columns])

    def values(self, name: str, cells: Sequence[Any]) -> list[Value]:
        """The cells of a column of features as numbers cut to the range, or words' places.

        Args:
            name: the column's.
            cells: one for each record.
        """
        reader, written = _Reader(self.column(name), self.absent), [text(cell) for cell in cells]
        known = {each: reader.value(each) for each in set(written)}
        return [known[each] for each in written]

    def encode(self, table: Mapping[str, Sequence[Any]]) -> NDArray[np.float32]:
        """The features of all records, float32 [records, width].

        Args:
            table: by column, one cell for each record; other columns are ignored.
        """
        import numpy as np

        made = [
            _Reader(column, self.absent).encoded([text(c) for c in _cells(table, column.name)])
            for column in self.columns
        ]
        return np.concatenate(made, axis=1)

    def labels(self, table: Mapping[str, Sequence[Any]]) -> NDArray[Any]:
        """The classes of all records, UNKNOWN where a label is none; or numbers, NaN for none.

        Args:
            table: by column, one cell for each record.
        """
        if self.label is None:
            raise DataError("the contract has no label; add label = {column = ..., words = [...]}")
        import numpy as np

        absent, cells = self.absent, [text(c) for c in _cells(table, self.label.column)]
        known = {written: self.label.encode(written, absent) for written in set(cells)}
        kind = np.int64 if self.classes else np.float32
        return np.array([known[written] for written in cells], dtype=kind)

    def decode(self, classes: Sequence[int]) -> list[str]:
        """The words of classes.

        Args:
            classes: from 0 on.
        """
        words = self.label.words if self.label else ()
        for each in classes:
            if not 0 <= each < len(words):
                raise DataError(
                    f"a class must be from 0 to {len(words) - 1}, got {each}; give classes that a "
                    f"model of this contract made"
                )
        return [words[each] for each in classes]

    def places(self, header: Sequence[str], needed: Sequence[str] | None = None) -> dict[str, int]:
        """Where a file has each column of the contract; refuses a file by its header alone.

        Args:
            header: the names of the file's columns, as the contract has them.
            needed: the columns that must be there; None is all of them.
        """
        for name in self.names if needed is None else needed:
            if (times := list(header).count(name)) != 1:
                what = f"the column {name!r} {times} times" if times else f"no column {name!r}"
                held = ", ".join(map(shown, list(header)[:20]))
                raise DataError(
                    f"a file must have each column of the contract once, got {what} among {held}; "
                    f"map its name by mapping.rename, or correct the header"
                )
        return {name: list(header).index(name) for name in self.names if name in header}


def contract_of(tables: Mapping[str, Any]) -> Contract:
    """A contract from plain tables, as TOML or JSON has them.

    Args:
        tables: its fields.

    >>> contract_of({"columns": [{"name": "age", "kind": "number", "range": [0, 120]}]}).width
    1
    """
    try:
        return msgspec.convert(tables, Contract)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, RecipeError):
            raise error.__cause__ from error
        raise RecipeError(f"the contract cannot be read ({error}); correct that place") from error


def read_contract(path: Path) -> Contract:
    """A contract from a TOML file of at most 64 KiB.

    Args:
        path: the file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "contract.toml"
    ...     _ = path.write_text('columns = [{name = "age", kind = "number", range = [0, 120]}]')
    ...     read_contract(path).features
    ('age',)
    """
    return contract_of(read_tables("contract", path, "write one with 'dpfed data describe FILE'"))


def read_tables(what: str, path: Path, way_out: str) -> dict[str, Any]:
    """The tables of a TOML file of at most 64 KiB.

    Args:
        what: what errors call it.
        path: the file.
        way_out: what to do if it is not there.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise RecipeError(
            f"the {what} {str(path)!r} cannot be read ({error.strerror}); {way_out}"
        ) from error
    if len(raw) > MAX_BYTES:
        raise refuse(f"a {what}", f"at most {MAX_BYTES} bytes", "more", "shorten it")
    try:
        return tomllib.loads(raw.decode())
    except (ValueError, RecursionError) as error:
        raise RecipeError(
            f"the {what} {str(path)!r} is not TOML ({shown(str(error))}); correct that place"
        ) from error


def differences(mine: Contract, other: Contract) -> Iterator[str]:
    """What two contracts say differently, one sentence part each; nothing if they mean the same.

    Args:
        mine: the one that is held.
        other: the one that is offered.

    >>> low, high = ({"name": "age", "kind": "number", "range": [0, end]} for end in (100, 120))
    >>> list(differences(contract_of({"columns": [low]}), contract_of({"columns": [high]})))
    ["column 'age': range is [0, 100] here and [0, 120] there"]
    """
    yield from _columns_of(mine, other)
    if mine.label is not None and other.label is not None:
        yield from _fields_of("the label", mine.label, other.label)
    elif mine.label is not other.label:
        yield "a label is in one of them only"
    for field in ("person", "row"):
        if getattr(mine, field) != getattr(other, field):
            yield _said(field, getattr(mine, field), getattr(other, field))
    if mine.absent != other.absent:
        yield _said("missing_words", sorted(mine.absent), sorted(other.absent))


def _columns_of(mine: Contract, other: Contract) -> Iterator[str]:
    here, there = ({column.name: column for column in each.columns} for each in (mine, other))
    yield from (f"column {name!r} is here only" for name in here if name not in there)
    yield from (f"column {name!r} is there only" for name in there if name not in here)
    for name, column in here.items():
        if name in there:
            yield from _fields_of(f"column {name!r}", column, there[name])
    if here.keys() == there.keys() and list(here) != list(there):
        yield _said("the columns' order", list(here), list(there))


def _fields_of(where: str, mine: Column | Label, other: Column | Label) -> Iterator[str]:
    for field in mine.__struct_fields__:
        if getattr(mine, field) != getattr(other, field):
            yield _said(f"{where}: {field}", getattr(mine, field), getattr(other, field))


def _said(what: str, mine: Any, other: Any) -> str:
    here, there = (shown(_plainly(each)) for each in (mine, other))
    return f"{what} is {here} here and {there} there"


def _plainly(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_plainly, value))}]"
    if isinstance(value, float):
        return f"{value:g}"
    return "unset" if value is None or value == "" else str(value)


@lru_cache(maxsize=64)
def _digest(contract: Contract) -> str:
    plain = _meant(contract) | {"missing_words": sorted(contract.absent)}
    plain["columns"] = [_meant(column) for column in contract.columns]
    plain["label"] = contract.label and _meant(contract.label)
    made = canonical_json(msgspec.to_builtins(plain))
    return hashlib.sha256(b"dpfed contract 1\n" + made).hexdigest()


def _meant(given: Column | Label | Contract) -> dict[str, Any]:
    """Fields that are not at their default: a later version's new ones change no digest."""
    values = ((field, getattr(given, field.name)) for field in msgspec.structs.fields(given))
    found = {field.name: value for field, value in values if value != field.default}
    if "missing_words" in found:
        found["missing_words"] = sorted(set(map(_folded, found["missing_words"])))
    return found


def _cells(table: Mapping[str, Sequence[Any]], name: str) -> Sequence[Any]:
    if name not in table:
        raise _no_column(name, list(table))
    return table[name]


def _no_column(name: str, known: Sequence[str]) -> DataError:
    held = ", ".join(map(shown, known[:20]))
    return DataError(
        f"the table has no column {shown(name)!r}, only {held}; give it under that name"
    )


def _settle(given: Column | Label | Contract) -> None:
    """Give fields that were set in Python the types that a file gives them."""
    for name in given.__struct_fields__:
        value = getattr(given, name)
        if isinstance(value, list):
            msgspec.structs.force_setattr(given, name, tuple(value))
        if name == "range" and value is not None:
            msgspec.structs.force_setattr(given, name, tuple(float(end) + 0.0 for end in value))
        if name == "missing" and isinstance(value, int):
            msgspec.structs.force_setattr(given, name, float(value))
        if name in ("kind", "scale"):
            kind = Kind if name == "kind" else Scale
            msgspec.structs.force_setattr(given, name, kind(value))


# --------------------------------------------------------------------------------------- words


def _folded(word: str) -> str:
    """A word that means missing: in its one spelling, in lower case."""
    return spelling(word.strip()).casefold()


def is_missing(written: str, words: frozenset[str]) -> bool:
    """Whether a text is one of the words that mean missing, or nothing.

    Args:
        written: a cell's text.
        words: as ``Contract.absent_of`` has them.
    """
    return not written or spelling(written).casefold() in words


def _spelled(value: float | str) -> str:
    return spelling(str(value).strip())


def check_text(label: str, given: str, *, empty: bool = False) -> None:
    """Refuse a name or word that could do harm where it is shown, or that nobody could read.

    Args:
        label: what it is.
        given: the text.
        empty: allow "".
    """
    kinds = {unicodedata.category(each) for each in given}
    steers = any(kind[0] == "C" or kind in ("Zl", "Zp") for kind in kinds)
    fine = len(given) <= MAX_CHARACTERS and given == given.strip() and not steers
    if not fine or not (given or empty):
        bound = f"1 to {MAX_CHARACTERS} plain characters without spaces around them"
        raise refuse(label, bound, shown(given), "write it otherwise")
    if len(given) > 1 and given.startswith(_FORMULA) and math.isnan(number(given)):
        bound = "a text that does not begin like a formula (= + - @)"
        raise refuse(label, bound, shown(given), "write it otherwise")


def _check_words(label: str, words: Sequence[str], least: int) -> None:
    if not least <= len(words) <= MAX_WORDS:
        raise refuse(label, f"{least} to {MAX_WORDS} words", len(words), "name each once")
    for word in words:
        check_text(label, word)
    if len({spelling(word) for word in words}) < len(words):
        raise refuse(label, "different words", "one of them twice", "name each once")


def _check_range(label: str, ends: tuple[float, float]) -> None:
    low, high = ends
    if not (-MAX_END <= low < high <= MAX_END) or high - low < MIN_WIDTH:
        raise refuse(label, "[low, high], low below high", list(ends), "give what is public of it")


def _check_column(column: Column) -> None:
    check_text("a column's name", column.name)
    label = f"columns.{column.name}"
    check_text(f"{label}.unit", column.unit, empty=True)
    for word in column.missing_words:
        check_text(f"{label}.missing_words", word)
    if len(column.missing_words) > MAX_WORDS:
        bound = f"at most {MAX_WORDS} words"
        raise refuse(f"{label}.missing_words", bound, len(column.missing_words), "name fewer")
    _check_marks(label, column)
    if column.kind is Kind.NUMBER:
        _check_number(label, column)
        return
    if column.range is not None or column.scale is not Scale.LINEAR or column.unit:
        bound = f"left out for a {column.kind}"
        raise refuse(f"{label}.range, scale and unit", bound, "one of them", "leave them out")
    flag = column.kind is Kind.FLAG
    if not (flag and not column.words):
        _check_words(f"{label}.words", column.words, 2 if flag else 1)
    if flag and len(column.words) > 2:
        raise refuse(f"{label}.words", "the words for no and yes", len(column.words), "name two")
    if column.missing is not None and _spelled(column.missing) not in column.vocabulary:
        bound = "one of the column's words"
        raise refuse(f"{label}.missing", bound, shown(str(column.missing)), "or leave it out")


def _check_number(label: str, column: Column) -> None:
    if column.range is None or column.words:
        raise refuse(
            f"{label}.range", "given for a number, and words left out", column.range, "correct it"
        )
    _check_range(f"{label}.range", column.range)
    if column.scale is Scale.LOG and column.range[0] <= 0:
        bound = "above 0 for scale 'log'"
        way_out = "raise it, since what is below is cut to it, or take scale 'linear'"
        raise refuse(f"{label}.range, its low end,", bound, column.range[0], way_out)
    if column.missing is None:
        return
    low, high = column.range
    if not isinstance(column.missing, float) or not low <= column.missing <= high:
        raise refuse(f"{label}.missing", "a number within the range", column.missing, "correct it")


def _check_label(label: Label) -> None:
    check_text("label.column", label.column)
    _check_marks("label", label)
    if (label.range is None) == (not label.words):
        raise refuse("label", "a column with words or a range", "both or none", "give one of them")
    if label.range is not None:
        _check_range("label.range", label.range)
        return
    _check_words("label.words", label.words, 2)


def _check_marks(label: str, given: Column | Label) -> None:
    for mark in given.from_records:
        if mark not in given.__struct_fields__:
            fields = ", ".join(given.__struct_fields__)
            raise refuse(f"{label}.from_records", f"some of {fields}", shown(mark), "correct it")


def _check_contract(contract: Contract) -> None:
    if not 1 <= len(contract.columns) <= MAX_COLUMNS:
        raise refuse("columns", f"1 to {MAX_COLUMNS} columns", len(contract.columns), "name some")
    if contract.width > MAX_FEATURES:
        bound = f"at most {MAX_FEATURES} features"
        raise refuse("columns", bound, contract.width, "merge rare words into one")
    check_text("row", contract.row)
    check_text("person", contract.person, empty=True)
    for names in (contract.names, contract.features):
        twice = [name for name, times in Counter(names).items() if times > 1]
        if twice:
            bound = "different names, none of them the label's or the person's"
            raise refuse("columns", bound, shown(twice[0]), "name each column once")
    if len(contract.missing_words) > MAX_WORDS:
        bound = f"at most {MAX_WORDS} words"
        raise refuse("missing_words", bound, len(contract.missing_words), "name fewer")
    for word in contract.missing_words:
        check_text("missing_words", word)
    _refuse_both(contract)


def _refuse_both(contract: Contract) -> None:
    """A word that is both a value and missing would never be read as the value."""
    known = [(f"columns.{c.name}.words", c.words, c.missing_words) for c in contract.columns]
    known += [("label.words", contract.label.words, ())] if contract.label else []
    for label, words, own in known:
        absent = contract.absent | frozenset(map(_folded, own))
        for word in words:
            if is_missing(word, absent):
                way_out = "name in missing_words only what is no value"
                raise refuse(label, "without words that mean missing", shown(word), way_out)
