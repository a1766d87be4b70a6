# SPDX-License-Identifier: Apache-2.0
"""What an owner is told of a file that differs from its contract: which file, line and column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dpfed.data.compare import compare
from dpfed.data.mapping import FileMapping
from tests.helpers.wards import NAMES, contract, records, write_ward


def findings(path: Path, changes: dict[str, Any] | None = None, **mapped: Any) -> list[str]:
    own = msgspec.convert(mapped, FileMapping)
    found = compare(path, contract(**(changes or {})), own)
    return [f"{'WRONG ' if each.blocks else ''}{each.said}" for each in found]


def said(path: Path, *parts: str, **given: Any) -> bool:
    return any(all(part in each for part in parts) for each in findings(path, **given))


def changed(**made: Any) -> list[dict[str, str]]:
    return [{**each, **{name: call(each) for name, call in made.items()}} for each in records(0)]


def test_a_file_as_agreed_has_persons_and_missing_values_only(tmp_path: Path) -> None:
    found = findings(write_ward(tmp_path / "a.csv", records(0)))
    assert [each.split(": ")[0] for each in found] == ["a.csv", "a.csv, column 'smoker'"]
    assert "30 of 30 persons have several records, up to 2" in found[0]


WRONG = {
    "another name": ({"names": ["Age (years)", *NAMES[1:]]}, ["WRONG", "age", "Age (years)"]),
    "a unit": ({"weight": lambda r: r["weight"] + "000"}, ["WRONG", "weight", "another unit"]),
    "numbers for words": ({"outcome": lambda r: "1"}, ["WRONG", "outcome", "'1'", "line 2"]),
    "decimal commas": ({"weight": lambda r: "70,5"}, ["WRONG", "weight", "decimal comma"]),
    "text": ({"weight": lambda r: "heavy"}, ["WRONG", "weight", "no numbers"]),
    "capital letters": ({"sex": lambda r: r["sex"].upper()}, ["WRONG", "sex", "{'M' = 'm'}"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_would_train_something_else_blocks(tmp_path: Path, case: str) -> None:
    planted, parts = WRONG[case]
    planted = dict(planted)
    names = planted.pop("names", None)
    path = write_ward(tmp_path / "north.csv", changed(**planted), separator=";")
    if names:
        path.write_text(path.read_text().replace("age;", f"{names[0]};", 1))
    assert said(path, "north.csv", *parts)


def test_single_values_are_said_and_block_nothing(tmp_path: Path) -> None:
    found = records(0)
    found[3] = {**found[3], "age": "1200", "sex": "q", "outcome": "", "patient": ""}
    found[5] = found[4]
    path = write_ward(tmp_path / "a.csv", found)
    path.write_text(path.read_text() + "1,2\n")
    assert not said(path, "WRONG")
    assert said(path, "age", "beyond the range [20, 100] years", "1 of 60", "line 5: '1200'")
    assert said(path, "sex", "'q'", "line 5")
    assert said(path, "1 labels are missing")
    assert said(path, "1 records name no person")
    assert said(path, "1 records are the same as an earlier one (first: line 7)")
    assert said(path, "1 lines have another number of cells", "line 62")


def test_a_rare_class_and_another_order_are_noticed(tmp_path: Path) -> None:
    path = write_ward(tmp_path / "a.csv", changed(outcome=lambda r: "alive"), NAMES[::-1], "\t")
    assert said(path, "no record is of class 'dead'")
    assert said(path, "another order")
    assert said(path, "divided by 'tab'")


def test_hints_for_codes_and_tails(tmp_path: Path) -> None:
    codes = [{"name": "age", "kind": "number", "range": [0, 100]}, *contract().columns[1:]]
    path = write_ward(tmp_path / "a.csv", changed(age=lambda r: str(int(r["age"]) % 4)))
    changes = {"columns": [msgspec.to_builtins(each) for each in codes]}
    assert said(path, "age", "4 different whole numbers", changes=changes)
    changes["columns"][0]["range"] = [0, 100_000]
    path = write_ward(tmp_path / "b.csv", records(0))
    assert said(path, "age", "a long tail", changes=changes)


def test_a_mapping_takes_the_findings_away(tmp_path: Path) -> None:
    path = write_ward(tmp_path / "a.csv", changed(weight=lambda r: r["weight"] + "000"))
    assert not said(path, "WRONG", factor={"weight": 0.001})
    path = write_ward(tmp_path / "a.csv", changed(outcome=lambda r: str(len(r["outcome"]) % 2)))
    words = {"outcome": {"1": "alive", "0": "dead"}}
    assert not said(path, "WRONG", words=words)


def test_what_is_shown_cannot_steer_a_screen(tmp_path: Path) -> None:
    path = write_ward(tmp_path / "a.csv", changed(sex=lambda r: "\x1b[2J\u202e"))
    path.write_text(path.read_text().replace("patient", "patient,\x1b]0;x\x07", 1))
    assert all(each.isprintable() for each in findings(path))


def test_a_column_of_marks_is_not_said_to_be_unread(tmp_path: Path) -> None:
    path = write_ward(tmp_path / "a.csv", changed(split=lambda r: "train", note=lambda r: "x"))
    found = [each.said for each in compare(path, contract(), beside={"split"})]
    assert "a.csv: columns that are not read: note" in found
    assert "a.csv: columns that only say which records are for what: split" in found


def test_lines_in_another_encoding_are_said_and_block_nothing(tmp_path: Path) -> None:
    path = write_ward(tmp_path / "a.csv", records(0))
    first, second, rest = path.read_bytes().split(b"\n", 2)
    path.write_bytes(b"\n".join([first + b",f\xfcr", second + b",\xe4", rest]))
    assert said(path, "2 lines are not UTF-8 (first: line 1)", "iconv")
    assert not any("WRONG" in each for each in findings(path))
    path.write_text(path.read_bytes().decode("latin-1"), encoding="utf-8")
    assert not said(path, "UTF-8")
