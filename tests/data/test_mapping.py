# SPDX-License-Identifier: Apache-2.0
"""One owner's names, words and units, as the contract's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dpfed.core.errors import DataError, RecipeError
from dpfed.data.contract import contract_of
from dpfed.data.mapping import FileMapping, read_mapping

WARD = contract_of(
    {
        "columns": [
            {"name": "weight", "kind": "number", "range": [0, 200], "unit": "kg"},
            {"name": "sex", "kind": "category", "words": ["f", "m"]},
        ],
        "label": {"column": "outcome", "words": ["alive", "dead"]},
        "missing_words": ["-999", "na"],
    }
)


def mapping(**fields: Any) -> FileMapping:
    made = msgspec.convert(fields, FileMapping)
    made.check(WARD)
    return made


def test_names() -> None:
    own = mapping(rename={"gewicht": "weight"})
    assert own.names(["gewicht", "sex"]) == ("weight", "sex")
    assert own.wanted(WARD) == {"gewicht", "sex", "outcome"}


@pytest.mark.parametrize(
    ("cell", "read"),
    [("100", 50.0), (" 3 ", 1.5), ("-999", ""), ("NA", ""), ("", ""), ("heavy", "heavy")],
)
def test_units_leave_alone_what_means_missing(cell: str, read: object) -> None:
    assert mapping(factor={"weight": 0.5}).reader("weight", WARD)(cell) == read


def test_an_offset_comes_after_the_factor() -> None:
    own = mapping(factor={"weight": 0.5}, offset={"weight": 1.0})
    assert own.reader("weight", WARD)("10") == 6.0


@pytest.mark.parametrize(
    ("cell", "read"),
    [("3,5", 3.5), ("1.234,5", 1234.5), ("1.234", 1234.0), ("7", 7.0), ("3.5", "3.5")],
)
def test_decimal_commas(cell: str, read: object) -> None:
    assert mapping(decimal=",").reader("weight", WARD)(cell) == read


def test_words() -> None:
    read = mapping(words={"outcome": {"1": "dead", "0": "alive"}}).reader("outcome", WARD)
    assert [read(cell) for cell in ("1", 1.0, "00", "dead", None)] == [
        "dead",
        "dead",
        "alive",
        "dead",
        None,
    ]


WRONG: list[dict[str, Any]] = [
    {"rename": {"gewicht": "mass"}},
    {"rename": {"a": "weight", "b": "weight"}},
    {"factor": {"sex": 2}},
    {"factor": {"weight": 0}},
    {"factor": {"weight": float("nan")}},
    {"offset": {"weight": float("inf")}},
    {"words": {"weight": {"a": "b"}}},
    {"words": {"sex": {"w": "x"}}},
    {"words": {"sex": {"w\x1b": "f"}}},
    {"decimal": ";"},
    {"rename": {f"c{i}": "weight" for i in range(1001)}},
]


@pytest.mark.parametrize("fields", WRONG, ids=str)
def test_what_the_contract_does_not_have_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(RecipeError):
        mapping(**fields)


def test_all_of_it_is_said() -> None:
    own = mapping(
        rename={"gewicht": "weight"},
        factor={"weight": 0.4536},
        offset={"weight": 1},
        words={"sex": {"w": "f"}},
        decimal=",",
    )
    assert list(own.said(WARD)) == [
        "'gewicht' is read as 'weight'",
        "weight = 0.4536 * the file's number + 1 (kg)",
        "in sex, 'w' is 'f'",
        "numbers have a decimal comma",
    ]


def test_a_table_has_the_contracts_names_units_and_words() -> None:
    own = mapping(rename={"gewicht": "weight"}, factor={"weight": 0.5}, words={"sex": {"w": "f"}})
    found = own.table(WARD, {"note": ["x"], "sex": ["w"], "gewicht": ["100"]})
    assert found == {"weight": [50.0], "sex": ["f"]}
    with pytest.raises(DataError, match="'weight' 2 times"):
        own.table(WARD, {"weight": ["1"], "gewicht": ["100"]})


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mapping.toml"
    path.write_text('rename = {gewicht = "weight"}\ndecimal = ","\n')
    assert read_mapping(path) == mapping(rename={"gewicht": "weight"}, decimal=",")
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("rounds = 3\n[data]\nsource = 'a.csv'\n[data.mapping]\n" + path.read_text())
    assert read_mapping(recipe) == read_mapping(path), "of a recipe, its own mapping"
    for text, why in (
        ("rename = 3", "cannot be read"),
        ("a =", "not TOML"),
        ("#" * 65537, "65536"),
    ):
        path.write_text(text)
        with pytest.raises(RecipeError, match=why):
            read_mapping(path)
    with pytest.raises(RecipeError, match="check the path"):
        read_mapping(tmp_path / "none.toml")


def test_a_mapping_of_two_owners_files_and_words_of_a_number_are_refused_in_words() -> None:
    with pytest.raises(RecipeError, match=r"got 'sex twice'; a mapping is for one owner's files"):
        mapping(rename={"Sex": "sex", "geschlecht": "sex"})
    with pytest.raises(RecipeError, match=r"about a column with words of the contract .*sex"):
        mapping(words={"weight": {"<18": "18"}})
