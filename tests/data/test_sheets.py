# SPDX-License-Identifier: Apache-2.0
"""A file as cells: a record is one line, whatever is in it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from dpfed.core.errors import DataError
from dpfed.data.sheets import Header, read_header, read_lines


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "ward.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("sign", [",", ";", "\t", "|"])
def test_the_header_tells_the_separator(tmp_path: Path, sign: str) -> None:
    path = written(tmp_path, f"age{sign}ill\n1{sign}no\n")
    header = read_header(path, ["age", "ill"])
    assert header == Header(("age", "ill"), sign)
    assert [line.cells for line in read_lines(path, header)] == [["1", "no"]]


def test_names_that_are_wanted_decide(tmp_path: Path) -> None:
    path = written(tmp_path, '"a,b,c";age\n')
    assert read_header(path, ["age"]).names == ("a,b,c", "age")


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    assert read_header(written(tmp_path, "\ufeffage,ill\r\n")).names == ("age", "ill")


def test_a_line_decides_about_itself_alone(tmp_path: Path) -> None:
    lines = b'age,ill\n1,no\n\n1,no,no\n1\n"a","b""c"\n"a"b,c\n\xff,no\r\n1,"x,y"\n'
    path = written(tmp_path, lines)
    read = [(line.number, line.cells) for line in read_lines(path, read_header(path))]
    assert read == [
        (2, ["1", "no"]),
        (4, None),
        (5, None),
        (6, ["a", 'b"c']),
        (7, None),
        (8, ["�", "no"]),
        (9, ["1", "x,y"]),
    ]


def test_an_open_quote_takes_no_other_record_in(tmp_path: Path) -> None:
    path = written(tmp_path, 'age,ill\n1,no\n2,"no\n3,yes\n')
    with pytest.raises(DataError, match="line 3"):
        list(read_lines(path, read_header(path)))


def test_a_parquet_has_rows(tmp_path: Path) -> None:
    path = tmp_path / "ward.parquet"
    parquet.write_table(pa.table({"age": [1.5, None], "ill": [True, False]}), path)
    header = read_header(path)
    assert header.names == ("age", "ill")
    assert [tuple(line) for line in read_lines(path, header)] == [
        (1, (1.5, True)),
        (2, (None, False)),
    ]


@pytest.mark.parametrize("name", ["ward.txt", "none.csv", "none.parquet", "broken.parquet"])
def test_no_table(tmp_path: Path, name: str) -> None:
    (tmp_path / "ward.txt").write_text("x")
    (tmp_path / "broken.parquet").write_text("x")
    with pytest.raises(DataError):
        read_header(tmp_path / name)


def test_no_header(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="header"):
        read_header(written(tmp_path, "\n1,2\n"))
