# SPDX-License-Identifier: Apache-2.0
"""Tables of several files, silos and persons, and a public schema."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from dpfed.core.errors import DataError
from dpfed.data.cells import day
from dpfed.data.datasets import load
from dpfed.data.places import find_files
from dpfed.data.readers import Public
from dpfed.data.tables import FILE, check_schema


def write(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def five(tmp_path: Path) -> Path:
    """Five hospitals; the second has its columns in another order, the third lacks a value."""
    folder = tmp_path / "five"
    write(folder / "a.csv", "age,dose,patient,ill", "30,1.5,1,0", "40,2,1,1")
    write(folder / "b.csv", "ill,dose,age,patient", "1,3,50,1")
    write(folder / "c.csv", "age,dose,patient,ill", "60,,7,1", "61,,8,0")
    write(folder / "d.csv", "age,dose,patient,ill", "70,4,9,1")
    write(folder / "e.csv", "age,dose,patient,ill", "80,5,9,0")
    write(folder / "notes.txt", "not a table")
    return folder


def test_a_folder_a_pattern_and_a_list_are_one_data_set(five: Path) -> None:
    named = [five / f"{letter}.csv" for letter in "abcde"]
    for source in (five, str(five / "*.csv"), named):
        data = load(source, y="ill", groups="patient")
        assert data.train.x[:, 0].tolist() == [30, 40, 50, 60, 61, 70, 80]
        assert data.train.x[2].tolist() == [50, 3], "columns are taken by name"
        assert data.train.x[3:5, 1].isnan().all()
        assert data.train.silos is not None
        assert data.train.silos.tolist() == [0, 0, 1, 2, 2, 3, 4]
        assert data.table is not None
        assert (data.table.silo, data.table.features) == (FILE, ("age", "dose"))
        assert data.source == "five: 5 files"


def test_silos_and_persons_at_once(tmp_path: Path) -> None:
    rows = ["age,hospital,patient,y", "30,north,1,0", "40,south,1,1", "50,north,2,0"]
    data = load(write(tmp_path / "t.csv", *rows), groups="patient", silo="hospital")
    assert data.train.x.tolist() == [[30], [40], [50]], "neither is a feature"
    assert data.train.silos is not None
    assert data.train.groups is not None
    assert data.train.silos.tolist() == [0, 1, 0]
    assert data.train.groups.tolist() == [1, 1, 2]
    kept = data.train.take(torch.tensor([1]))
    assert kept.silos is not None
    assert kept.silos.tolist() == [1]


def test_a_column_names_the_silos_of_several_files(five: Path) -> None:
    data = load(five, y="ill", silo="patient")
    assert data.train.silos is not None
    assert data.train.silos.tolist() == [1, 1, 1, 7, 8, 9, 9]


def test_tables_in_folders_of_their_own_are_named_by_a_pattern(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "ward [7]"  # what looks like a pattern, and is a folder
    for name in ("north", "south"):
        (home / "silos" / name).mkdir(parents=True)
        (home / "silos" / name / "x.csv").write_text("a,y\n1,0\n2,1\n")
    for source, root in (
        ("silos/*/x.csv", home),
        ("silos/*/*.csv", home),
        ("ward*/silos/*/x.csv", None),
    ):
        data = load(source, root=root)
        records = data.train
        assert data.source == "silos: 2 files"
        assert records.silos is not None
        assert records.silos.unique().tolist() == [0, 1]
    for schema in ({"a": [0, 9]}, None):
        with pytest.raises(DataError, match=r"by a pattern, '\*/x\.csv'"):
            load(home / "silos", schema=schema)


def test_what_does_not_fit_together_is_refused(five: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="empty list"):
        load([], y="ill")
    with pytest.raises(DataError, match=r"'\*\.csv' was not found|was not found at"):
        load(str(tmp_path / "none" / "*.csv"))
    write(five / "f.csv", "age,weight,patient,ill", "1,2,3,0")
    with pytest.raises(DataError, match=r"'f\.csv' must have the columns of 'a\.csv', and 'dose'"):
        load(five, y="ill")
    write(five / "f.csv", "age,dose,patient,ill", "1,?,3,0")
    with pytest.raises(DataError, match=r"'dose' holds double in 'a\.csv' and string in 'f\.csv'"):
        load(five, y="ill")
    with pytest.raises(DataError, match=r"got 'notes\.txt'"):
        load([five / "a.csv", five / "notes.txt"])


def test_a_file_whose_name_is_a_pattern_is_found(tmp_path: Path) -> None:
    path = write(tmp_path / "t[1].csv", "a,y", "1,0", "2,1")
    assert find_files(path) == [path]


# ----------------------------------------------------------------------------------------- schema

SCHEMA = {"age": [20, 80], "sex": ["f", "m"], "grade": [1, 2, 3]}


def table(tmp_path: Path, *rows: str) -> Path:
    return write(tmp_path / "t.csv", "id,grade,age,sex,y", *rows)


def test_a_schema_standardises_and_chooses(tmp_path: Path) -> None:
    path = table(tmp_path, "7,1,20,f,0", "8,2,50,m,1", "9,3,80,f,1")
    data = load(path, schema=SCHEMA)
    assert data.train.x.tolist() == [
        [-1, 1, 0, 1, 0, 0],
        [0, 0, 1, 0, 1, 0],
        [1, 1, 0, 0, 0, 1],
    ]
    assert data.table is not None
    names = ("age", "sex=f", "sex=m", "grade=1", "grade=2", "grade=3")
    assert data.table.features == names
    assert data.table.outside == (0,) * 6


def test_one_record_changes_no_other_under_a_schema(tmp_path: Path) -> None:
    """Whatever one record holds, the others' features, their number and their order stay."""
    rows = ["7,01,2e1,f,0", "8,2,50,m,1", "9,3,NA,NA,1"]
    before = load(table(tmp_path, *rows), schema=SCHEMA).train.x
    for other in ("x,?,?,?,0", "8,,,,1", "8,1e30,-9e9,zebra,0", "8,2.0,50.5,m,1"):
        after = load(table(tmp_path, rows[0], other, rows[2]), schema=SCHEMA).train.x
        assert after.shape == before.shape
        assert after[0].equal(before[0])
        torch.testing.assert_close(after[2], before[2], rtol=0, atol=0, equal_nan=True)


def test_a_column_s_type_is_not_read_from_all_records(tmp_path: Path) -> None:
    """Words that look like switches or times stay as written, whatever else is in the column."""
    schema = {"flag": ["true", "false"], "at": ["10:00", "11:00"]}
    for other in ("false,11:00,1", "perhaps,noon,1"):
        path = write(tmp_path / "t.csv", "flag,at,y", "true,10:00,0", other)
        assert load(path, schema=schema).train.x[0].tolist() == [1, 0, 1, 0]


def test_values_beyond_a_schema(tmp_path: Path) -> None:
    path = table(tmp_path, "7,1,200,f,0", "8,2,?,x,1", "9,,10,,0")
    data = load(path, schema=SCHEMA)
    x = data.train.x
    assert x[0].tolist() == [1, 1, 0, 1, 0, 0], "the end of the range"
    assert math.isnan(x[1, 0]), "a word in the place of a number is a missing one"
    assert x[1, 1:3].tolist() == [0, 0], "no category"
    assert x[2, 1:].isnan().all()
    named = load(table(tmp_path, "7,1,30,NA,0", "8,2,30,f,1"), schema={"sex": ["f", "NA"]})
    assert named.train.x.tolist() == [[0, 1], [1, 0]], "a missing word that is a category is one"
    assert data.table is not None
    assert data.table.outside == (2, 1, 0, 0, 0, 0)


@pytest.mark.parametrize(
    "public",
    [[], [3], [5, 5], [9, 1], [0, math.inf], ["a", "a"], ["a", 1], [True, False], [1, 2, 2]],
)
def test_a_schema_without_meaning_is_refused(public: list[object]) -> None:
    with pytest.raises(DataError, match=r"data\.schema\.age must be \[low"):
        check_schema({"age": public})


def test_a_schema_is_for_tables_that_have_its_columns(tmp_path: Path) -> None:
    path = table(tmp_path, "7,1,200,f,0", "8,2,3,x,1")
    with pytest.raises(DataError, match="has no 'weight'"):
        load(path, schema={"weight": [0, 1]})
    with pytest.raises(DataError, match="leave x out"):
        load(path, schema=SCHEMA, x="age")
    with pytest.raises(DataError, match="one or more columns"):
        load(path, schema={})
    with pytest.raises(DataError, match="takes no schema, which"):
        load(write(tmp_path / "t.npz", ""), schema=SCHEMA)


def test_columns_that_are_left_out_are_named(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.csv",
        "age,sex,chol,none,seen,y",
        "1,f,200,,2024-01-02,0",
        "2,m,?,,2024-01-02,1",
    )
    data = load(path)
    assert data.table is not None
    assert data.table.features == ("age",)
    assert data.table.left_out == (
        "sex (text)",
        "chol (text, though 1 of 2 values are numbers)",
        "none (empty)",
        "seen (date32[day])",
    )
    asked = load(path, x="age")
    assert asked.table is not None
    assert asked.table.left_out == (), "whoever names the features has left the others out"


@pytest.mark.parametrize("public", [None, Public(2)])
def test_days_of_arrival_are_no_features(tmp_path: Path, public: Public | None) -> None:
    path = write(
        tmp_path / "a.csv",
        "age,came,patient,ill",
        "30,2026-03-31,1,0",
        "40,2026-04-01 07:30:00,2,1",
    )
    found = load(path, y="ill", groups="patient", arrival="came", public=public).train
    assert found.days is not None
    assert found.days.tolist() == [day("2026-03-31"), day("2026-04-01")]
    assert found.x.shape == (2, 1)
    with pytest.raises(DataError, match="takes no arrival"):
        load("dpfed:fashion-mnist", arrival="came")
