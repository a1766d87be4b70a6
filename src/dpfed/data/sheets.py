# SPDX-License-Identifier: Apache-2.0
"""A table's file as cells, record by record: a .csv with any of four separators, or a .parquet.

Guarantee: a record is one line. What is in it decides about no other record, and the separator is
chosen by the header alone, for all lines.

| edge case                                   | what happens                                      |
|---------------------------------------------|---------------------------------------------------|
| columns divided by ``;``, tabs or ``|``     | read, if the header is written so                 |
| a line with too many or too few cells       | a record with nothing in it                       |
| a quote that is open at the end of its line | DataError: the record could take others in        |
| bytes that are not UTF-8                    | replaced, in their own cells                      |
| a blank line                                | no record                                         |
| a byte order mark before the header         | left out                                          |
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dpfed.core.errors import DataError
from dpfed.core.extras import require_extra
from dpfed.data._checks import unreadable

SEPARATORS = (",", ";", "\t", "|")
_OPEN_QUOTE = "unexpected end of data"
_BATCH = 65_536


class Header(NamedTuple):
    """The names of a file's columns."""

    names: tuple[str, ...]
    separator: str = ","


class Line(NamedTuple):
    """One record."""

    number: int
    """Of its line, as an editor counts; in a .parquet, of its row from 1."""
    cells: Sequence[Any] | None
    """One for each column; None if the line does not fit the header."""


def read_header(path: Path, wanted: Collection[str] = ()) -> Header:
    r"""The names of a file's columns, by its first line.

    Args:
        path: a .csv or .parquet.
        wanted: names that should be there: they tell which separator is meant.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "ward.csv"
    ...     _ = path.write_text("age;ill\n61;yes\n")
    ...     header = read_header(path)
    ...     header, [line.cells for line in read_lines(path, header)]
    (Header(names=('age', 'ill'), separator=';'), [['61', 'yes']])
    """
    if path.suffix == ".parquet":
        return Header(tuple(_parquet(path).schema_arrow.names))
    if path.suffix != ".csv":
        raise DataError(f"{path.name!r} is no table; give a .csv or a .parquet")
    try:
        with path.open("rb") as file:
            first = _decoded(file.readline()).removeprefix("\ufeff")
    except OSError as error:
        raise unreadable(path, "a table", error, "check the path") from error
    if not first.strip():
        raise DataError(f"{path.name!r} begins with no header; name its columns in the first line")
    split = {sign: _header_cells(path, first, sign) for sign in SEPARATORS}

    def fits(sign: str) -> tuple[int, int]:
        return len(set(split[sign]) & set(wanted)), len(split[sign])

    best = max(SEPARATORS, key=fits)
    return Header(tuple(split[best]), best)


def _header_cells(path: Path, line: str, separator: str) -> list[str]:
    cells = _split(path, 1, line, separator)
    return [cell.strip() for cell in cells or line.split(separator)]


def read_lines(path: Path, header: Header) -> Iterator[Line]:
    """The records, one after the other; only one is in memory at a time.

    Args:
        path: a .csv or .parquet.
        header: as ``read_header`` found it.
    """
    if path.suffix == ".parquet":
        yield from _parquet_lines(path)
        return
    try:
        with path.open("rb") as file:
            file.readline()
            for number, raw in enumerate(file, 2):
                line = _decoded(raw)
                if line.strip():
                    cells = _split(path, number, line, header.separator)
                    fits = cells is not None and len(cells) == len(header.names)
                    yield Line(number, cells if fits else None)
    except OSError as error:
        raise unreadable(path, "a table", error, "check that it is complete") from error


def not_utf8(path: Path) -> tuple[int, int] | None:
    """How many lines of a .csv are not UTF-8, and the first one's number; None if all are.

    Such a line is read all the same, with a sign in the place of what cannot be decoded: whether it
    is decides nothing. So a word with an umlaut in another encoding is another word.

    Args:
        path: a .csv or .parquet.
    """
    if path.suffix != ".csv":
        return None
    odd = []
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            try:
                raw.decode("utf-8")
            except UnicodeDecodeError:
                odd.append(number)
    return (len(odd), odd[0]) if odd else None


def _decoded(raw: bytes) -> str:
    return raw.decode("utf-8", "replace").rstrip("\r\n")


def _split(path: Path, number: int, line: str, separator: str) -> list[str] | None:
    """The cells of one line, by itself; None if it is not written as a .csv has it."""
    if '"' not in line and "\r" not in line:
        return line.split(separator)
    try:
        (cells,) = csv.reader([line], delimiter=separator, strict=True)
    except ValueError:  # more than one record in a line
        return None
    except csv.Error as error:
        if _OPEN_QUOTE in str(error):
            raise DataError(
                f"{path.name!r} has a quote in line {number} that is open at its end; close it, "
                f"and write each record in one line"
            ) from None
        return None
    return cells


def _parquet(path: Path) -> Any:
    with require_extra("tables", f"{path.name!r}, a table,", "pyarrow"):
        import pyarrow as pa
        from pyarrow import parquet

    try:
        return parquet.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        way_out = "check that it is a complete .parquet file"
        raise unreadable(path, "a table", error, way_out) from error


def _parquet_lines(path: Path) -> Iterator[Line]:
    number = 0
    for batch in _parquet(path).iter_batches(_BATCH):
        columns = [batch.column(at).to_pylist() for at in range(batch.num_columns)]
        for cells in zip(*columns, strict=True):
            number += 1
            yield Line(number, cells)
