# SPDX-License-Identifier: Apache-2.0
"""Tables: .csv and .parquet files, one or several, as features, labels, persons and silos.

Without a schema the numeric columns are the features as they are. A schema says in public what each
feature column can hold, and standardises without looking at the data::

    age = [18, 100]                 a range: becomes -1 at its low end and 1 at its high end
    sex = ["f", "m"]                categories: one column each, 1 where it is the record's
    grade = [1, 2, 3]               three or more numbers are categories, too

Guarantee: with a schema every record becomes its features on its own, and their number and order
follow from the schema alone. Without one, which columns are numeric is seen from all records, but
not with ``by_cell``, as a gate reads: then features are the named columns, or all that are left.

| edge case                                      | what happens                                   |
|------------------------------------------------|------------------------------------------------|
| a value outside of its range                   | the nearest end of the range                   |
| a word that is no category                     | zero in all of the columns                     |
| a missing value, a word in the place of a      | NaN in all of the column's features            |
| number                                         |                                                |
| a column that is empty in one of several files | missing values there                           |
| a column of text in one file, numbers in       | DataError: which file                          |
| another                                        |                                                |
| columns of another order in another file       | taken by name                                  |
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfed.core.errors import DataError
from dpfed.core.extras import require_extra
from dpfed.data import cells
from dpfed.data._checks import bad_option
from dpfed.data.readers import (
    Array,
    Columns,
    TablePart,
    by_split,
    choose,
    choose_group,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

FILE = "file"
"""The name of the silo column if each file is a silo."""


@dataclass(frozen=True)
class TableFacts:
    """What a table's columns became. The counts are of the records: they never leave."""

    features: tuple[str, ...]
    """A name for each feature."""
    outside: tuple[int, ...] = ()
    """For each feature, how many values lie outside of the schema."""
    left_out: tuple[str, ...] = ()
    """Columns that are not used, with the reason, if nobody said which ones to use."""
    silo: str | None = None
    """What names the silos: a column, or ``file``."""
    words: tuple[str, ...] = ()
    """Labels that are texts, in the order in which they are numbered."""
    label: str = ""
    """The column of labels."""


def read_tables(
    paths: Sequence[Path],
    columns: Columns,
    schema: Mapping[str, Sequence[Any]] | None = None,
    by_cell: bool = False,
) -> tuple[dict[str, TablePart], TableFacts]:
    """The parts of one or more tables of the same columns, and what became of these.

    Args:
        paths: the files.
        columns: which columns to read.
        schema: the public range or categories of each feature column; None takes numbers as they
            are.
        by_cell: read each cell on its own, so that no record decides what a column holds.
    """
    texts = None if by_cell else tuple(schema or ())
    table, sizes = _joined([(path, _read(path, texts)) for path in paths])
    return _parts_of(table, paths, sizes, columns, schema, by_cell)


def read_frame(
    table: Any, columns: Columns, schema: Mapping[str, Sequence[Any]] | None = None
) -> tuple[dict[str, TablePart], TableFacts]:
    """The parts of a table of pyarrow, and what became of its columns.

    Args:
        table: of pyarrow.
        columns: which columns to read.
        schema: the public range or categories of each feature column; None takes numbers as they
            are.
    """
    return _parts_of(table, [Path("the data frame")], [len(table)], columns, schema)


def _parts_of(
    table: Any,
    paths: Sequence[Path],
    sizes: list[int],
    columns: Columns,
    schema: Mapping[str, Sequence[Any]] | None,
    by_cell: bool = False,
) -> tuple[dict[str, TablePart], TableFacts]:
    present, where = table.column_names, paths[0].name
    label = choose(columns.y, ("y", "label"), present, where)
    group = choose_group(columns.groups, present, where)
    silo = None if columns.silo is None else choose(columns.silo, (), present, where)
    arrival = None if columns.arrival is None else choose(columns.arrival, (), present, where)
    taken = {label, group, silo, columns.split, arrival}
    features, facts = _features(table, columns.x, schema, taken, where, by_cell)
    column = _cells if by_cell else _complete
    silos = _silos(table, silo, paths, sizes, column)
    persons = None if group is None else column(table, group)
    places = np.concatenate([np.arange(size) for size in sizes])  # in the record's own file
    days = None if arrival is None else np.array([cells.day(c) for c in _cells(table, arrival)])
    whole = TablePart(features, column(table, label), persons, silos)
    whole = whole._replace(places=places, days=days)
    named = replace(
        facts,
        silo=silo or (FILE if len(paths) > 1 else None),
        words=() if by_cell else _words(whole.y),
        label=label,
    )
    if columns.split is None or columns.split not in present:
        return {"train": whole}, named
    split = _complete(table, columns.split)
    return by_split(
        whole, np.array([cells.word(each) for each in split]) if by_cell else split
    ), named


def _words(labels: Array) -> tuple[str, ...]:
    return tuple(map(str, np.unique(labels.astype(str)))) if labels.dtype.kind in "USO" else ()


# ------------------------------------------------------------------------------------------ files


def _read(path: Path, texts: Sequence[str] | None = ()) -> Any:
    with require_extra("tables", f"{path.name!r}, a table,", "pyarrow"):
        import pyarrow as pa

    try:
        return _read_arrow(path, texts)
    except (pa.ArrowException, OSError) as error:
        fault = re.search(r"Expected \d+ columns, got \d+", str(error))
        said = fault[0] if fault else type(error).__name__
        raise DataError(
            f"{path.name!r} cannot be read as a table ({said}); check that it is a complete "
            f"{path.suffix} file"
        ) from None  # Arrow's error quotes the line


def _read_arrow(path: Path, texts: Sequence[str] | None) -> Any:
    """The table; of .csv, ``texts`` stay as written: their type would depend on all records.

    None is all columns. Then a cell of several lines is refused: it may be an open quote, by which
    one record takes others in.
    """
    if path.suffix == ".parquet":
        from pyarrow import parquet

        return parquet.read_table(path)
    import pyarrow as pa
    from pyarrow import csv

    named = texts
    if named is None:
        with csv.open_csv(path) as file:
            named = file.schema.names
    kinds = csv.ConvertOptions(column_types=dict.fromkeys(named, pa.string()))
    table = csv.read_csv(path, convert_options=kinds)
    if texts is None:
        _refuse_lines(path, table)
    return table


def _refuse_lines(path: Path, table: Any) -> None:
    from pyarrow import compute

    for name in table.column_names:
        if compute.any(compute.match_substring_regex(table.column(name), "[\r\n]")).as_py():
            raise DataError(
                f"{path.name!r} has a cell of several lines in column {name!r}; close its quote, "
                "and write it in one line"
            )


def _joined(files: list[tuple[Path, Any]]) -> tuple[Any, list[int]]:
    """All rows as one table, and how many each file has."""
    import pyarrow as pa

    (first, table), *others = files
    if not others:
        return table, [len(table)]
    same = [table]
    for path, other in others:
        if set(other.column_names) != set(table.column_names):
            odd = sorted(set(other.column_names) ^ set(table.column_names))
            raise DataError(
                f"{path.name!r} must have the columns of {first.name!r}, and {odd[0]!r} is in one "
                "of them only; give all files the same columns"
            )
        same.append(other.select(table.column_names))
        _refuse_mixed(first.name, same[0], path.name, same[-1])
    whole = pa.concat_tables(same, promote_options="permissive")
    return whole, [len(each) for each in same]


def _refuse_mixed(first: str, table: Any, file: str, other: Any) -> None:
    import pyarrow as pa

    for name in table.column_names:
        kinds = [each.column(name).type for each in (table, other)]
        if any(pa.types.is_null(kind) for kind in kinds):
            continue
        if _is_numeric(kinds[0]) != _is_numeric(kinds[1]):
            raise DataError(
                f"column {name!r} holds {kinds[0]} in {first!r} and {kinds[1]} in {file!r}; write "
                "it the same way in both, with nothing where a number is missing"
            )


def _silos(
    table: Any,
    silo: str | None,
    paths: Sequence[Path],
    sizes: list[int],
    column: Callable[[Any, str], Array],
) -> NDArray[np.str_] | Array | None:
    if silo is not None:
        return column(table, silo)
    if len(paths) == 1:
        return None
    return np.repeat(np.array([str(path) for path in paths]), sizes)


# --------------------------------------------------------------------------------------- features


def _features(
    table: Any,
    asked: str | Sequence[str] | None,
    schema: Mapping[str, Sequence[Any]] | None,
    taken: set[str | None],
    file: str,
    by_cell: bool,
) -> tuple[Array, TableFacts]:
    if schema is not None:
        if asked is not None:
            raise DataError(
                "data.options.x and data.schema both name the feature columns; leave x out"
            )
        return _by_schema(table, schema, file)
    if by_cell and asked is None:
        asked = [name for name in table.column_names if name not in taken]
    kept = _feature_columns(table, asked, taken, file)
    left = [] if asked is not None else [n for n in table.column_names if n not in {*kept, *taken}]
    numbers = _cell_numbers if by_cell else _numbers
    values = np.stack([numbers(table, name) for name in kept], axis=1)
    return values, TableFacts(tuple(kept), (), tuple(_why_left(table, name) for name in left))


def _feature_columns(
    table: Any, asked: str | Sequence[str] | None, taken: set[str | None], file: str
) -> list[str]:
    if asked is not None:
        wanted = [asked] if isinstance(asked, str) else asked
        return [choose(one, (), table.column_names, file) for one in wanted]
    free = [n for n in table.column_names if n not in taken]
    numeric = [n for n in free if _is_numeric(table.column(n).type)]
    if not numeric:
        raise DataError(
            f"{file!r} has no numeric column besides labels and groups; encode features as numbers"
        )
    return numeric


def _why_left(table: Any, name: str) -> str:
    """A column that is no number, and how nearly it is one."""
    import pyarrow as pa

    column = table.column(name)
    if pa.types.is_null(column.type):
        return f"{name} (empty)"
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return f"{name} ({column.type})"
    read = sum(not math.isnan(_number(each)) for each in column.to_pylist())
    mostly = f", though {read:,} of {len(column):,} values are numbers" if read else ""
    return f"{name} (text{mostly})"


def _is_numeric(kind: Any) -> bool:
    from pyarrow import types

    tests = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)
    return any(test(kind) for test in tests)


def _numbers(table: Any, name: str) -> NDArray[np.float32]:
    """A column as float32, nulls as NaN."""
    column = table.column(name)
    if not _is_numeric(column.type):
        raise DataError(
            f"the feature column {name!r} must hold numbers, got {column.type}; "
            "encode it first, or leave it out of x"
        )
    return _floats(column).astype(np.float32)


def _cell_numbers(table: Any, name: str) -> NDArray[np.float32]:
    """A column as float32, NaN if a cell is no number."""
    with np.errstate(over="ignore"):
        return np.array(
            [cells.number(each) for each in table.column(name).to_pylist()], dtype=np.float32
        )


def _floats(column: Any) -> NDArray[np.float64]:
    import pyarrow as pa

    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    values: NDArray[np.float64] = column.cast(pa.float64()).to_numpy()
    return values


def _cells(table: Any, name: str) -> Array:
    """A column as it is written, one object per record."""
    cells = np.empty(len(table), dtype=object)
    cells[:] = table.column(name).to_pylist()
    return cells


def _complete(table: Any, name: str) -> Array:
    column = table.column(name)
    if column.null_count:
        raise DataError(
            f"the column {name!r} lacks {column.null_count} of {len(column)} values, and labels, "
            "groups, silos and splits must be complete; drop those rows first"
        )
    return column.to_numpy()


# ----------------------------------------------------------------------------------------- schema


def _by_schema(
    table: Any, schema: Mapping[str, Sequence[Any]], file: str
) -> tuple[Array, TableFacts]:
    check_schema(schema)
    made, names, outside = [], list[str](), list[int]()
    for name, public in schema.items():
        column = table.column(choose(name, (), table.column_names, file))
        if is_range(public):
            values, out = _in_range(column, float(public[0]), float(public[1]))
            made.append(values[:, None])
            names.append(name)
            outside.append(out)
        else:
            words = [plain_word(each) for each in public]
            values, out = _one_hot(column, words)
            made.append(values)
            names += [f"{name}={word}" for word in words]
            outside += [out] + [0] * (len(words) - 1)
    whole = np.concatenate(made, axis=1).astype(np.float32)
    return whole, TableFacts(tuple(names), tuple(outside))


def encode_cells(
    table: Mapping[str, Sequence[Any]], schema: Mapping[str, Sequence[Any]]
) -> NDArray[np.float32]:
    """Features of cells under a schema, as they are made of a file's.

    Args:
        table: by column, one cell for each record.
        schema: the public range or categories of each feature column.
    """
    with require_extra("tables", "a table", "pyarrow"):
        import pyarrow as pa

    columns = {name: pa.array(map(_cell_text, table[name]), pa.string()) for name in schema}
    made: NDArray[np.float32] = _by_schema(pa.table(columns), schema, "the table")[0]
    return made


def _cell_text(cell: Any) -> str | None:
    return None if cell is None else str(int(cell) if isinstance(cell, bool | np.bool_) else cell)


def check_schema(schema: Mapping[str, Sequence[Any]]) -> None:
    """Refuse a schema that says neither a range nor categories of each column."""
    if not schema:
        raise bad_option("data.schema", "one or more columns", "none", "name the features")
    for name, public in schema.items():
        numbers = [each for each in public if _is_number(each)]
        texts = [each for each in public if isinstance(each, str)]
        plain = len(public) in (len(numbers), len(texts)) and len(set(public)) == len(public)
        if is_range(public):
            if plain and -math.inf < public[0] < public[1] < math.inf:
                continue
        elif plain and len(public) > 0 and not (numbers and len(public) < 3):
            continue
        bound = "[low, high], or a list of different words"
        raise bad_option(f"data.schema.{name}", bound, list(public), "give what is public of it")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_range(public: Sequence[Any]) -> bool:
    """Whether a column's part of a schema is a range; else it is categories."""
    return len(public) == 2 and all(_is_number(each) for each in public)


def _in_range(column: Any, low: float, high: float) -> tuple[NDArray[np.float64], int]:
    """(value - middle) / half of the range, the ends for what lies beyond; how many did."""
    if _is_numeric(column.type):
        values = _floats(column)
    else:
        values = np.array([_number(each) for each in column.to_pylist()], dtype=np.float64)
    outside = int(((values < low) | (values > high)).sum())
    middle, half = (low + high) / 2, (high - low) / 2
    return (np.clip(values, low, high) - middle) / half, outside


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _one_hot(column: Any, words: list[str]) -> tuple[NDArray[np.float64], int]:
    found = [None if each is None else plain_word(each) for each in column.to_pylist()]
    absent = absent_words()
    place = {word: i for i, word in enumerate(words)}
    made, outside = np.zeros((len(found), len(words))), 0
    for row, word in enumerate(found):
        if word in place:
            made[row, place[word]] = 1
        elif word is None or word in absent:
            made[row] = math.nan
        else:
            outside += 1
    return made, outside


def plain_word(value: Any) -> str:
    """A category as text: 1, 1.0 and "01" are the same one."""
    text = str(int(value) if isinstance(value, bool) else value).strip()
    number = _number(text)
    return str(int(number)) if number.is_integer() else text


def absent_words() -> frozenset[str]:
    """The words that stand for a missing value in a .csv."""
    from pyarrow import csv

    return frozenset(csv.ConvertOptions().null_values)
