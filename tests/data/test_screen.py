# SPDX-License-Identifier: Apache-2.0
"""What the owner of records is shown, and what it may not change."""

from __future__ import annotations

from dataclasses import replace

import torch

from dpfed.data.datasets import Dataset, Records
from dpfed.data.screen import screen
from dpfed.data.tables import TableFacts

NAN, INF = float("nan"), float("inf")


def dataset(rows: list[list[float]], **facts: object) -> Dataset:
    x = torch.tensor(rows, dtype=torch.float32)
    table = TableFacts(tuple("abcdefgh"[: x.shape[1]]), **facts) if x.dim() == 2 else None  # type: ignore[arg-type]
    records = Records(x, torch.zeros(len(x), dtype=torch.int64))
    return Dataset(records, None, 2, "made up", table=table)


def test_nothing_to_say_about_complete_and_scaled_records() -> None:
    found = screen(dataset([[1, 0], [-2, 1], [3, 1]]))
    assert found.findings() == []
    assert (found.lost, found.incomplete) == ("", 0)


def test_a_missing_value_is_said_until_it_is_decided() -> None:
    data = dataset([[1, NAN], [2, INF], [3, 1], [1, 2]])
    found = screen(data)
    assert found.lost == "2 of 4 records (50 %) are ignored"
    (sentence,) = found.findings()
    assert sentence.startswith(f"{found.lost}, since a value is missing (b 2); set data.missing")
    dropped, filled = screen(data, "drop"), screen(data, "fill")
    assert (dropped.findings(), dropped.lost) == ([], found.lost)
    assert (filled.findings(), filled.lost, filled.incomplete) == ([], "", 2)


def test_persons_are_counted_per_silo() -> None:
    data = dataset([[1, NAN], [2, 1], [NAN, 1], [1, 2]])
    whose, where = torch.tensor([5, 5, 5, 6]), torch.tensor([0, 0, 1, 1])
    data = replace(data, train=replace(data.train, groups=whose))
    assert screen(data).persons == 1
    data = replace(data, train=replace(data.train, silos=where))
    assert screen(data).persons == 2
    assert "all records of 2 persons where unit = 'group'" in screen(data).findings()[0]


def test_the_test_part_is_looked_at_too() -> None:
    data = dataset([[1, 1], [2, 1.5]])
    both = replace(data, test=Records(torch.tensor([[NAN, 30.0]]), torch.zeros(1).long()))
    found = screen(both)
    assert (found.records, found.incomplete, found.columns[1].high) == (3, 1, 30)


def test_constant_and_unscaled_columns() -> None:
    found = screen(dataset([[1, 300, 7], [2, 200, 7], [0.5, NAN, 7]]), "drop")
    assert [each.constant for each in found.columns] == [False, False, True]
    constant, unscaled = found.findings()
    assert constant.startswith("columns have one value only: c;")
    assert "over 100 times the smallest (b and the model's constant 1)" in unscaled
    small = screen(dataset([[1, 0.001], [2, 0.002]])).findings()
    assert "over 100 times the smallest (a and b)" in small[0]
    assert screen(dataset([[1, 19], [2, 3]])).findings() == [], "below 20 times"


def test_a_schema_answers_for_constant_and_unscaled_columns() -> None:
    found = screen(dataset([[0.001, 1], [0.002, 1]], outside=(0, 3)))
    (outside,) = found.findings()
    assert outside.startswith("3 values lie outside of data.schema (b 3), and are taken as")


def test_a_column_without_a_value_is_missing_and_not_constant() -> None:
    found = screen(dataset([[NAN, 1], [NAN, 2]]), "fill")
    assert found.columns[0].missing == 2
    assert not found.columns[0].constant
    assert found.findings() == []


def test_columns_that_were_left_out_are_said() -> None:
    names = tuple(f"c{i} (text)" for i in range(8))
    (sentence,) = screen(dataset([[1, 2], [2, 1]], left_out=names)).findings()
    assert "c0 (text), c1 (text)" in sentence
    assert "c5 (text) and 2 more; give their categories" in sentence


def test_images_and_features_without_names() -> None:
    image = torch.zeros(3, 1, 2, 2)
    image[1, 0, 0, 0] = NAN
    found = screen(Dataset(Records(image, torch.zeros(3).long()), None, 2, "images"))
    assert (found.incomplete, found.columns) == (1, ())
    assert found.findings()[0].startswith("1 of 3 records (33 %) are ignored, since")
    plain = Dataset(Records(image.flatten(1)[:, :2], torch.zeros(3).long()), None, 2, "array")
    assert [each.name for each in screen(plain).columns] == ["0", "1"]
