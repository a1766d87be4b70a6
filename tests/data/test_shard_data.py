# SPDX-License-Identifier: Apache-2.0
"""One shard of data, of the kind that the app has, and made-up records of its shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from dpfed.core.errors import DataError
from dpfed.data.datasets import Records
from dpfed.data.shard_data import Items, count, made_up, part

X, Y = np.arange(12, dtype=np.float32).reshape(6, 2), np.array([0, 1, 2, 0, 1, 2])
INDEX = np.array([1, 4])
ITEMS = [{"img": torch.from_numpy(x), "label": int(y)} for x, y in zip(X, Y, strict=True)]
TENSORS = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))


class Table:
    """What pandas has that is used here."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, name: str) -> Any:
        class Column:
            def to_numpy(inner) -> Any:
                return self.columns[name]

        return Column()

    @property
    def iloc(self) -> _Rows:
        return _Rows(self)

    def copy(self) -> Table:
        return self


class _Rows:
    def __init__(self, table: Table) -> None:
        self.table = table

    def __getitem__(self, index: Any) -> Table:
        return Table({name: each[index] for name, each in self.table.columns.items()})


KINDS: dict[str, Any] = {
    "records": Records(torch.from_numpy(X), torch.from_numpy(Y)),
    "tuple": (X, Y),
    "list": [torch.from_numpy(X), torch.from_numpy(Y)],
    "mapping": {"x": X, "y": Y},
    "array": X,
    "tensor": torch.from_numpy(X),
    "table": Table({"x": X[:, 0], "y": Y, "words": np.array(list("abcdef"))}),
    "tensors": TENSORS,
    "items": Items(ITEMS),
    "loader": DataLoader(TENSORS, batch_size=2, shuffle=True),
    "loader of items": DataLoader(Items(ITEMS), batch_size=4, drop_last=True),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_has_its_own_records_and_the_kind_of_the_whole(kind: str) -> None:
    whole = KINDS[kind]
    assert count(whole) == 6
    found = part(whole, INDEX)
    assert count(found) == 2
    assert type(found) is type(whole) or kind == "records"


@pytest.mark.parametrize("kind", KINDS)
def test_made_up_records_have_the_kind_and_nothing_of_the_records(kind: str) -> None:
    made = made_up(KINDS[kind], 8, 3)
    assert count(made) == 8
    assert type(made) is type(KINDS[kind])
    assert count(part(made, np.arange(8))) == 8


def test_what_a_part_holds() -> None:
    x, y = part(KINDS["tuple"], INDEX)
    assert x.tolist() == X[INDEX].tolist()
    assert y.tolist() == Y[INDEX].tolist()
    assert not np.shares_memory(x, X)
    assert [item["label"] for item in part(KINDS["items"], INDEX).items] == [1, 1]
    loader = part(KINDS["loader"], INDEX)
    assert loader.batch_size == 2
    assert sorted(torch.cat([y for _, y in loader]).tolist()) == [1, 1]


def test_made_up_labels_go_round() -> None:
    assert made_up((X, Y), 5, 3)[1].tolist() == [0, 1, 2, 0, 1]
    assert [item["label"] for item in made_up(KINDS["items"], 4).items] == [0, 1, 0, 1]
    assert set(made_up(KINDS["table"], 3).columns["words"]) == {""}


def test_a_loader_that_would_drop_all_of_a_shard_keeps_it() -> None:
    assert len(list(part(KINDS["loader of items"], INDEX))) == 1


def test_images_and_numbers_of_items() -> None:
    image = pytest.importorskip("PIL.Image").new("L", (3, 2), 9)
    made = made_up(Items([(image, 1.5, "word", np.float32(2))]), 1)[0]
    assert made[0].size == (3, 2)
    assert not any(made[0].getdata())
    assert made[2] == ""


@pytest.mark.parametrize("data", [iter([1, 2]), 7, Items([object()]), (X, Y[:3])])
def test_what_has_no_length_or_no_items_is_refused(data: Any) -> None:
    with pytest.raises(DataError):
        made_up(data, count(data))
