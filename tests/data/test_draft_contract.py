# SPDX-License-Identifier: Apache-2.0
"""A draft has a mark wherever a value was read off records, and terms refuse it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from dpfed.core.errors import DataError, RecipeError
from dpfed.data.contract import Contract, contract_of
from dpfed.data.draft_contract import describe
from tests.helpers.wards import records, ward_terms, write_ward


def drafted(path: Path, label: str | None = "outcome", person: str | None = "patient") -> Contract:
    return contract_of(tomllib.loads(describe(path, label, person)))


def test_every_value_that_was_read_is_marked(tmp_path: Path) -> None:
    found = drafted(write_ward(tmp_path / "a.csv", records(0), separator=";"))
    assert [column.name for column in found.columns] == ["age", "weight", "sex", "smoker"]
    assert found.person == "patient"
    assert found.drafted == (
        "columns.age.range",
        "columns.weight.range",
        "columns.sex.words",
        "columns.smoker.words",
        "label.words",
    )


def test_terms_refuse_a_draft(tmp_path: Path) -> None:
    text = describe(write_ward(tmp_path / "a.csv", records(0)), "outcome", "patient")
    with pytest.raises(RecipeError, match=r"from_records.*columns\.age\.range"):
        ward_terms(tmp_path, agreed=tomllib.loads(text))
    unmarked = text.replace("from_records", "missing_words").replace('["range"]', "[]")
    unmarked = unmarked.replace(', missing_words = ["words"]', "")
    assert ward_terms(tmp_path, agreed=tomllib.loads(unmarked)).pins.shape == [6]


def test_flags_codes_and_targets(tmp_path: Path) -> None:
    lines = [f"{at % 2},{at % 5},{at},,{at / 7}" for at in range(120)]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["flag,code,amount,empty,y", *lines]))
    found = drafted(path, None, None)
    assert [column.kind for column in found.columns] == ["flag", "category", "number", "category"]
    assert found.label is not None
    assert found.label.range is not None
    assert len(found.drafted) == 5


def test_marks_of_training_and_test_are_no_feature_and_no_label(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("age,ill,split\n" + "61,yes,train\n44,no,test\n" * 30)
    found = drafted(path, None, None)
    assert [column.name for column in found.columns] == ["age"]
    assert found.label is not None
    assert found.label.column == "ill"


def test_a_column_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="weight2"):
        describe(write_ward(tmp_path / "a.csv", records(0)), "weight2")


def test_hostile_words_do_not_break_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('note,y\n"x"" ] \x1b[2J",0\n' + "z" * 200 + ",1\n")
    assert len(drafted(path, None, None).columns[0].words) == 2


def test_no_word_is_listed_of_a_column_of_names_or_dates(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("who,ward,y\n" + "".join(f"N{at},{at % 3}b,{at % 2}\n" for at in range(120)))
    text = describe(path)
    assert "N7" not in text
    assert '"who", kind = "category", words = ["CHANGE"]' in text
    found = drafted(path, None, None)
    assert set(found.columns[1].words) == {"0b", "1b", "2b"}
    assert "columns.who.words" in found.drafted, "terms refuse it as long as the line is there"


def test_numbers_with_a_decimal_comma_are_numbers_and_the_draft_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    rows = "".join(f"{20 + at};{at},5;1.{at:03},5;{at % 2}\n" for at in range(120))
    path.write_text(f"age;lactate;platelets;ill\n{rows}")
    age, lactate, platelets = drafted(path, None, None).columns
    assert lactate.range == (0.5, 119.5)
    assert platelets.range == (1000.5, 1119.5)
    lines = describe(path).splitlines()
    said = [line for line in lines if 'say decimal = ","' in line]
    assert len(said) == 2
    assert age.kind is lactate.kind
    assert not any('"age"' in line for line in said)
