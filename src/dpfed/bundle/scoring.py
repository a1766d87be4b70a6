# SPDX-License-Identifier: Apache-2.0
"""A file of records in, a file of predictions out, some records at a time: memory does not grow.

    kept columns, as they are in the file | prediction | p_WORD for each class

| edge case                                          | what happens                             |
|----------------------------------------------------|------------------------------------------|
| a column that the model takes is not in the file   | DataError, which names it; nothing is    |
|                                                    | written                                  |
| the process dies, the disk is full                 | no file under the name that was asked for|
| a record with a missing value that nothing fills   | its line, with no prediction             |
| a word that a spreadsheet would take for a formula | an apostrophe before it                  |
| the label's column is in the file, and known       | how many predictions are right           |
| a line that does not fit the header (contract)     | its line, with no prediction             |
| most of a column is in other words or units        | DataError, which names it                |
| the same beside a mapping                          | read through it; kept columns are copied |
|                                                    | as the file has them                     |
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpfed.bundle.description import ArrayInput, ContractInput
from dpfed.bundle.inputs import Cells, check_columns, columns_of
from dpfed.bundle.trained import TrainedModel
from dpfed.core.errors import DataError
from dpfed.core.extras import require_extra
from dpfed.core.log import shown
from dpfed.data import readers
from dpfed.data._checks import unreadable
from dpfed.data.cells import number, spelling, text, word
from dpfed.data.compare import MOST
from dpfed.data.contract import Column, Contract, Kind, is_missing
from dpfed.data.mapping import FileMapping

PREDICTION = "prediction"
_BLOCK_BYTES = 1 << 20
_BLOCK_ROWS = 8192
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(kw_only=True)
class Tally:
    """What became of a file's records."""

    records: int = 0
    empty: int = 0
    """Without a prediction, as a value is missing."""
    labelled: int = 0
    """With a label that the model knows, and a prediction."""
    right: int = 0
    strange: int = 0
    """With a label that is none of the classes."""

    @property
    def accuracy(self) -> float | None:
        """The part of labelled records that is right; None without labels that are all known."""
        return self.right / self.labelled if self.labelled and not self.strange else None


@dataclass(frozen=True)
class Part:
    """Some records of a file: cells by column, or an array."""

    cells: Cells
    array: Any = None
    labels: Any = None
    kept: Cells | None = None
    """Columns to copy, as the file has them; None finds them among the cells."""
    readable: Any = None
    """Which lines fit the header; None is all of them."""

    def __len__(self) -> int:
        if self.array is not None:
            return len(self.array)
        return len(next(iter(self.cells.values()))) if self.cells else 0


def score_file(
    model: TrainedModel,
    source: Path,
    out: Path,
    keep: Sequence[str] = (),
    watch: Callable[[int, int], None] | None = None,
    *,
    anyway: bool = False,
) -> Tally:
    """Write a prediction for each record of a file.

    Args:
        model: the trained model.
        source: a .csv or .parquet with the model's columns; an .npz with an array x.
        out: the .csv to write; one of that name is replaced.
        keep: columns of the source that are copied, by the source's own names.
        watch: called with (records so far, about how many there are).
        anyway: also where most of a column does not fit the contract.

    Returns:
        what became of the records.
    """
    total, parts = open_source(source, model, keep, anyway=anyway)
    tally = Tally()
    draft = out.with_name(f"{out.name}.draft")
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        with draft.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*map(harmless, keep), *_head(model)])
            for part in parts:
                _write_part(model, part, keep, writer, tally, source.name)
                if watch:
                    watch(tally.records, total)
        draft.replace(out)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
    return tally


def _head(model: TrainedModel) -> list[str]:
    classes = model.description.classes or []
    return [PREDICTION, *(f"p_{_one_line(each)}" for each in classes)]


def _write_part(
    model: TrainedModel,
    part: Part,
    keep: Sequence[str],
    writer: Any,
    tally: Tally,
    where: str,
) -> None:
    if part.array is None:
        whole, made, chances = model.score_table(part.cells, where)
    else:
        whole, made, chances = model.score_array(part.array)
    if part.readable is not None:
        made = made[part.readable[whole]]
        chances = None if chances is None else chances[part.readable[whole]]
        whole = whole & part.readable
    tally.records += len(part)
    tally.empty += int((~whole).sum())
    _count(model, part, whole, made, tally)
    copied = part.cells if part.kept is None else part.kept
    kept = [[harmless(_plain(cell)) for cell in copied[name]] for name in keep]
    words = [harmless(str(each)) for each in model.description.classes or []]
    at = 0
    for row, is_whole in enumerate(whole.tolist()):
        said = [""] * (1 + len(words))
        if is_whole:
            said = _said(made[at], chances[at] if chances is not None else None, words)
            at += 1
        writer.writerow([*(column[row] for column in kept), *said])


def _said(made: Any, chances: Any, words: Sequence[str]) -> list[str]:
    """A prediction's cells: the class and all probabilities, or the number."""
    if chances is None:
        return [" ".join(f"{float(each):.7g}" for each in np.atleast_1d(made).ravel())]
    return [words[int(made)], *(f"{float(each):.7g}" for each in chances)]


def _count(model: TrainedModel, part: Part, whole: Any, made: Any, tally: Tally) -> None:
    """Count what is right, where the file says what would be."""
    if part.labels is None or model.description.classes is None:
        return
    places = label_places(model, part.labels)
    tally.strange += int((places < 0).sum())
    known = places[whole] >= 0
    tally.labelled += int(known.sum())
    tally.right += int((np.asarray(made)[known] == places[whole][known]).sum())


def label_places(model: TrainedModel, cells: Sequence[Any]) -> Any:
    """The place of each label among the classes; -1 where it is none of them, or missing.

    Args:
        model: the trained model.
        cells: the labels as they are in a file.
    """
    found = model.description
    if isinstance(found.input, ContractInput):
        return found.input.contract.labels({found.target: cells})
    if found.positive_above is not None:
        numbers = [number(cell) for cell in cells]
        return np.array([-1 if math.isnan(n) else int(n > found.positive_above) for n in numbers])
    place = {word(each): at for at, each in enumerate(found.classes or ())}
    return np.array([place.get(word(cell), -1) for cell in cells], dtype=np.int64)


# --------------------------------------------------------------------------------- harmless words


def harmless(given: str) -> str:
    """A word that no spreadsheet takes for a formula, and that is one line.

    Args:
        given: as it came.

    >>> harmless("=1+1"), harmless("-3.5"), harmless("+"), harmless("alive")
    ("'=1+1", '-3.5', '+', 'alive')
    """
    plain = _one_line(given)
    risky = plain.startswith(_FORMULA) and len(plain) > 1 and math.isnan(number(plain))
    return f"'{plain}" if risky else plain


def _one_line(given: object) -> str:
    plain = str(given)
    return plain if plain.isprintable() else shown(plain, len(plain))


def _plain(cell: Any) -> str:
    return "" if cell is None else str(cell)


# -------------------------------------------------------------------------------------- the source


def open_source(
    source: Path, model: TrainedModel, keep: Sequence[str] = (), *, anyway: bool = False
) -> tuple[int, Iterator[Part]]:
    """(about how many records, parts of them): the columns are checked before any is read.

    Args:
        source: the file.
        model: what it is for.
        keep: columns that the caller needs, too.
        anyway: also where most of a column does not fit the contract.
    """
    if not source.exists():
        raise DataError(f"there is no file {str(source)!r}; give a .csv, .parquet or .npz")
    if source.suffix == ".npz":
        return _arrays(source, model, keep)
    if source.suffix not in (".csv", ".parquet"):
        raise DataError(
            f"{source.name!r} must be a .csv, .parquet or .npz, got {source.suffix or 'none'!r}; "
            f"convert it first"
        )
    given = model.description.input
    if isinstance(given, ArrayInput):
        shape = tuple(given.shape)
        raise DataError(
            f"{source.name!r} is a table, and this model takes arrays of shape {shape}; give an "
            f".npz with them as x"
        )
    if PREDICTION in keep:
        raise DataError(f"keep must not name {PREDICTION!r}, which is written; rename the column")
    if isinstance(given, ContractInput):
        return _agreed(source, given.contract, model.mapping, keep, anyway=anyway)
    with require_extra("tables", f"{source.name!r}, a table,", "pyarrow"):
        import pyarrow as pa
    try:
        opened = _csv(source) if source.suffix == ".csv" else _parquet(source)
    except (pa.ArrowException, OSError) as error:
        raise _broken(source, error) from error
    total, names, batches = opened
    check_columns([*columns_of(given), *keep], names, repr(source.name))
    return total, _table_parts(source, batches, _wanted(model, names, keep), model)


def _agreed(
    source: Path,
    contract: Contract,
    mapping: FileMapping | None,
    keep: Sequence[str],
    *,
    anyway: bool,
) -> tuple[int, Iterator[Part]]:
    """A table by its contract, as training read its own; the label need not be there."""
    from dpfed.data.contracted import read_batches
    from dpfed.data.sheets import read_header

    own = mapping or FileMapping()
    needed = [each.name for each in contract.columns if each.name not in own.missing]
    header = read_header(source, own.wanted(contract))
    check_columns(needed, own.names(header.names), repr(source.name))
    check_columns(keep, header.names, repr(source.name))
    total = _lines(source) - 1 if source.suffix == ".csv" else 0

    def parts() -> Iterator[Part]:
        for batch in read_batches(source, contract, own, needed=needed, kept=keep):
            if not anyway:
                _refuse_strange(source.name, contract, batch.cells)
            lines = zip(*(batch.cells[name] for name in needed), strict=True)
            readable = np.array([any(cell is not None for cell in line) for line in lines])
            label = contract.label.column if contract.label else ""
            labels = batch.cells.get(label)
            yield Part(batch.cells, labels=labels, kept=batch.kept, readable=readable)

    return total, parts()


def _refuse_strange(where: str, contract: Contract, cells: Cells) -> None:
    """Refuse a table of which most of a column is in another unit, or in other words."""
    for column in contract.columns:
        absent = contract.absent_of(column.name)
        known = [each for each in map(text, cells[column.name]) if not is_missing(each, absent)]
        strange = [each for each in known if not _fits(column, each)]
        if len(strange) > MOST * len(known):
            raise DataError(
                f"column {shown(column.name)!r} of {where!r} must be as the model's contract has "
                f"it ({_bound(column)}), got {len(strange):,} of {len(known):,} cells that are "
                f"not; map them by --map, or say --anyway"
            )


def _fits(column: Column, cell: str) -> bool:
    if column.kind is not Kind.NUMBER:
        return spelling(cell) in column.vocabulary
    low, high = column.range or (-math.inf, math.inf)
    return low <= number(cell) <= high


def _bound(column: Column) -> str:
    if column.kind is not Kind.NUMBER:
        return ", ".join(shown(each) for each in list(column.vocabulary)[:8])
    low, high = column.range or (-math.inf, math.inf)
    return f"{low:g} to {high:g} {shown(column.unit)}".rstrip()


def _broken(source: Path, error: Exception) -> DataError:
    way_out = f"check that it is a complete {source.suffix} file"
    return unreadable(source, "a table", error, way_out)


def _wanted(model: TrainedModel, names: Sequence[str], keep: Sequence[str]) -> list[str]:
    target = model.description.target
    wanted = [*columns_of(model.description.input), *keep, *([target] if target in names else [])]
    return list(dict.fromkeys(wanted))


def _table_parts(
    source: Path, batches: Iterator[Any], wanted: Sequence[str], model: TrainedModel
) -> Iterator[Part]:
    import pyarrow as pa

    target = model.description.target
    try:
        for batch in batches:
            cells = {name: batch.column(name).to_pylist() for name in wanted}
            yield Part(cells, labels=cells.get(target))
    except pa.ArrowException as error:
        raise _broken(source, error) from error


def _csv(source: Path) -> tuple[int, list[str], Iterator[Any]]:
    """Every cell as it is written: the type of a column would depend on other records."""
    import pyarrow as pa
    from pyarrow import csv as arrow

    divided = arrow.ParseOptions(delimiter=_separator(source))
    with arrow.open_csv(source, parse_options=divided) as first:
        names = first.schema.names
    kinds = arrow.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
    options = arrow.ReadOptions(block_size=_BLOCK_BYTES)
    return _lines(source) - 1, names, iter(arrow.open_csv(source, options, divided, kinds))


def _separator(source: Path) -> str:
    """What divides the header most often: commas, semicolons, tabs or bars."""
    with source.open("rb") as file:
        header = file.readline(_BLOCK_BYTES).decode("utf-8", "replace")
    return max(",;\t|", key=header.count)


def _lines(source: Path) -> int:
    with source.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(_BLOCK_BYTES), b""))


def _parquet(source: Path) -> tuple[int, list[str], Iterator[Any]]:
    from pyarrow import parquet

    file = parquet.ParquetFile(source)
    return file.metadata.num_rows, file.schema_arrow.names, file.iter_batches(_BLOCK_ROWS)


def _arrays(source: Path, model: TrainedModel, keep: Sequence[str]) -> tuple[int, Iterator[Part]]:
    """The arrays of an .npz: x and, if it is there, y; of parts, those of the test."""
    if keep:
        raise DataError(f"{source.name!r} has no columns to keep, got {list(keep)}; leave it out")
    held = readers.load_npz(source)
    x = next((held[name] for name in ("x", "x_test") if name in held), None)
    if x is None:
        raise DataError(f"{source.name!r} must have an array x, got {sorted(held)}; name it so")
    y = held.get("y" if "x" in held else "y_test")
    cuts = range(0, len(x), _BLOCK_ROWS)

    def parts() -> Iterator[Part]:
        for at in cuts:
            piece = slice(at, at + _BLOCK_ROWS)
            labels = None if y is None else y[piece].tolist()
            yield Part({}, x[piece], labels)

    del model
    return len(x), parts()
