# SPDX-License-Identifier: Apache-2.0
"""Files of every making, read through one contract."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from dpfed.core.errors import DataError
from dpfed.data.cells import day
from dpfed.data.contracted import read_batches
from dpfed.data.datasets import Dataset, Records, load
from dpfed.data.mapping import FileMapping
from tests.helpers.wards import NAMES, RECORDS, contract, records, write_ward


def loaded(*paths: Path, **given: Any) -> Dataset:
    mapped = msgspec.convert(given.pop("mapping", {}), FileMapping)
    return load([str(path) for path in paths], contract=contract(), mapping=mapped, **given)


def equal(one: Records, other: Records) -> bool:
    same = torch.equal(one.x, other.x) and torch.equal(one.y, other.y)
    assert one.groups is not None
    assert other.groups is not None
    return same and torch.equal(one.groups, other.groups)


def test_one_contract_makes_one_table_of_many_files(tmp_path: Path) -> None:
    plain = loaded(write_ward(tmp_path / "a.csv", records(0)))
    assert plain.train.x.shape == (RECORDS, 5)
    assert plain.classes == 2
    assert plain.contract == contract()
    assert plain.table is not None
    assert plain.table.words == ("alive", "dead")
    same = records(0)
    turned = write_ward(tmp_path / "b.csv", same, NAMES[::-1], ";")
    assert equal(loaded(turned).train, plain.train)
    more = [{"note": '"quoted, ""twice"""', **record} for record in same]
    assert equal(loaded(write_ward(tmp_path / "c.csv", more)).train, plain.train)
    table = pa.table({name: [record[name] for record in same] for name in NAMES})
    parquet.write_table(table, tmp_path / "d.parquet")
    assert equal(loaded(tmp_path / "d.parquet").train, plain.train)


def test_an_owners_names_units_and_words_are_mapped(tmp_path: Path) -> None:
    plain = loaded(write_ward(tmp_path / "a.csv", records(0)))
    own = [
        {
            "alter": each["age"].replace(".", ","),
            "gewicht": f"{int(each['weight']) / 2:g}".replace(".", ","),
            "sex": each["sex"],
            "smoker": {"yes": "ja", "no": "nein", "": ""}[each["smoker"]],
            "outcome": {"alive": "0", "dead": "1"}[each["outcome"]],
            "patient": each["patient"],
        }
        for each in records(0)
    ]
    path = write_ward(tmp_path / "b.csv", own, separator=";")
    mapped = {
        "rename": {"alter": "age", "gewicht": "weight"},
        "factor": {"weight": 2.0},
        "words": {"smoker": {"ja": "yes", "nein": "no"}, "outcome": {"0": "alive", "1": "dead"}},
        "decimal": ",",
    }
    assert equal(loaded(path, mapping=mapped).train, plain.train)


def test_several_files_are_silos_and_nothing_is_removed(tmp_path: Path) -> None:
    twice = [*records(0), *records(0)]
    paths = [write_ward(tmp_path / "a.csv", twice), write_ward(tmp_path / "b.csv", records(1))]
    found = loaded(*paths)
    assert len(found.train) == 3 * RECORDS
    assert found.train.silos is not None
    assert found.train.silos.bincount().tolist() == [2 * RECORDS, RECORDS]


def test_a_record_that_fits_in_nothing_is_a_record_and_unknown(tmp_path: Path) -> None:
    path = write_ward(tmp_path / "a.csv", records(0))
    before = loaded(path).train
    lines = path.read_text().splitlines()
    for wrong in ("1,2", lines[1] + ",9", '"a"b,1,2,3,4,5', lines[1].replace("dead", "q")):
        changed = [*lines[:3], wrong, *lines[4:]]
        path.write_text("\n".join(changed))
        after = loaded(path).train
        assert len(after) == len(before)
        moved = (after.x != before.x).any(1) | (after.y != before.y)
        assert moved.nonzero().flatten().tolist() in ([2], [])


def test_files_are_refused_by_their_header(tmp_path: Path) -> None:
    path = write_ward(tmp_path / "a.csv", records(0), NAMES[1:])
    with pytest.raises(DataError, match=r"a\.csv.*age"):
        loaded(path)
    (tmp_path / "b.csv").write_text(",".join(NAMES) + "\n")
    with pytest.raises(DataError, match="no records"):
        loaded(tmp_path / "b.csv")
    good = write_ward(tmp_path / "c.csv", records(0))
    for option in ({"y": "outcome"}, {"schema": {"age": [0, 1]}}, {"classes": 2}):
        with pytest.raises(DataError, match="beside a contract"):
            loaded(good, **option)
    with pytest.raises(DataError, match="silos"):
        loaded(good, silo="ward")
    with pytest.raises(DataError, match="tables"):
        load("dpfed:fashion-mnist", contract=contract())
    with pytest.raises(DataError, match="label"):
        load(str(good), contract=contract(label=None))


def test_a_split_and_silos_are_columns_beside_the_contract(tmp_path: Path) -> None:
    more = [
        {**each, "split": str(at % 2), "ward": f"w{at % 3}"} for at, each in enumerate(records(0))
    ]
    found = loaded(write_ward(tmp_path / "a.csv", more), silo="ward")
    assert found.test is not None
    assert len(found.train) == len(found.test) == RECORDS // 2
    assert found.train.silos is not None
    assert len(found.train.silos.unique()) == 3


def test_one_file_without_marks_does_not_put_all_into_training(tmp_path: Path) -> None:
    marked = [{**each, "split": str(at % 2)} for at, each in enumerate(records(0))]
    one, other = write_ward(tmp_path / "a.csv", marked), write_ward(tmp_path / "b.csv", records(1))
    with pytest.raises(DataError, match=r"'b\.csv' has no column 'split'"):
        loaded(one, other)
    assert loaded(one, other, split="").test is None


def test_what_is_not_needed_may_be_missing(tmp_path: Path) -> None:
    """A model's user has no labels."""
    path = write_ward(tmp_path / "a.csv", records(0), ["age", "weight", "sex", "smoker"])
    needed = [column.name for column in contract().columns]
    (batch,) = read_batches(path, contract(), needed=needed)
    assert contract().encode(batch.cells).shape == (RECORDS, 5)
    assert batch.numbers[0] == 2


def test_days_of_arrival_are_a_column_beside_the_contract(tmp_path: Path) -> None:
    came = ["2026-03-31", "", "soon"]
    more = [{**each, "admitted": came[at % 3]} for at, each in enumerate(records(0))]
    found = loaded(write_ward(tmp_path / "a.csv", more), arrival="admitted").train
    assert found.days is not None
    assert found.days[:3].tolist() == [day(each) for each in came]
    assert torch.equal(found.take(torch.arange(3)).days, found.days[:3])  # type: ignore[arg-type]
    with pytest.raises(DataError, match="no column 'left' of dates"):
        loaded(tmp_path / "a.csv", arrival="left")
