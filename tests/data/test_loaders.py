# SPDX-License-Identifier: Apache-2.0
"""DataLoaders, streams and parts of data sets: the same rows as their tensors have.

The edge cases are those of the table in loaders.py.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)

from dpfed.core.errors import DataError
from dpfed.core.types import Unit
from dpfed.data.batches import dataset_batches, tensor_batches
from dpfed.data.loaders import Stream
from dpfed.data.modules import Network, seeded

X, Y = torch.rand(12, 4, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
EXAMPLE = (torch.zeros(4), 0)


class Pairs(Dataset[Any]):
    def __len__(self) -> int:
        return len(Y)

    def __getitem__(self, at: int) -> Any:
        return X[at], int(Y[at])


class Flow(IterableDataset[Any]):
    """A generator of records; one that is an error is raised."""

    def __init__(self, records: list[Any]) -> None:
        self.records, self.begun = records, 0

    def __iter__(self) -> Iterator[Any]:
        self.begun += 1
        for each in self.records:
            if isinstance(each, Exception):
                raise each
            yield each


RECORDS = list(zip(X, Y.tolist(), strict=True))


def network() -> Network:
    return Network(seeded(lambda: nn.Linear(4, 3), 0), chunk=5)


def clipped(records: Any, *args: Any, **how: Any) -> torch.Tensor:
    model = network()
    rows: Any = model.problem(records, *args, **how).rows(model.initial(0), Unit.RECORD)
    total: torch.Tensor = rows.clipped_sum(0.1).vector
    return total


WHOLE = clipped((X, Y))


@pytest.mark.parametrize(
    "given",
    [
        (X.numpy().astype("float64"), Y.numpy().astype("int32")),
        (X.tolist(), Y.tolist()),
        TensorDataset(X, Y),
        DataLoader(TensorDataset(X, Y), batch_size=5, shuffle=True, drop_last=True),
        Subset(TensorDataset(X, Y), list(range(12))),
        random_split(TensorDataset(X, Y), [12, 0])[0],
    ],
    ids=["arrays", "lists", "TensorDataset", "DataLoader", "Subset", "random_split"],
)
def test_what_lies_in_memory_has_the_rows_of_its_tensors(given: Any) -> None:
    torch.testing.assert_close(clipped(given), WHOLE)


@pytest.mark.parametrize(
    ("given", "count"),
    [
        (DataLoader(Pairs(), batch_size=5, shuffle=True), None),
        (DataLoader(Pairs(), sampler=WeightedRandomSampler([1.0] * 12, 12)), None),
        (DataLoader(Pairs(), batch_size=None), None),
        (DataLoader(Flow(RECORDS), batch_size=4), 12),
        (Flow(RECORDS), 12),
        (RECORDS, None),
    ],
    ids=["DataLoader", "weighted", "no batches", "DataLoader of a stream", "stream", "list"],
)
def test_what_is_read_by_index_has_them_too(given: Any, count: int | None) -> None:
    torch.testing.assert_close(clipped(given, EXAMPLE, count=count), WHOLE)


def test_a_loaders_collate_sees_one_record_at_a_time() -> None:
    seen = []

    def collate(records: list[Any]) -> Any:
        seen.append(len(records))
        return torch.stack([x for x, _ in records]), torch.tensor([y for _, y in records])

    loader = DataLoader(Pairs(), batch_size=5, collate_fn=collate)
    torch.testing.assert_close(clipped(loader, EXAMPLE), WHOLE)
    assert set(seen) == {1}


def test_it_says_what_of_a_loader_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("dpfed").propagate = True
    for loader, example in (
        (DataLoader(TensorDataset(X, Y)), None),
        (DataLoader(Pairs()), EXAMPLE),
    ):
        caplog.clear()
        clipped(loader, example)
        assert "batch_size, shuffle, sampler and drop_last are not" in caplog.text


@pytest.mark.parametrize("data", [TensorDataset(X, Y), Pairs()], ids=["tensors", "by index"])
def test_a_sampler_that_leaves_records_out_is_refused(data: Any) -> None:
    """Else records would be trained on that were put aside, for a test or for other reasons."""
    loader = DataLoader(data, sampler=SubsetRandomSampler(range(3)))
    with pytest.raises(DataError, match=r"SubsetRandomSampler.*Subset\(loader\.dataset, indices\)"):
        clipped(loader, None if isinstance(data, TensorDataset) else EXAMPLE)
    with pytest.raises(DataError, match="leaves no record out, got a list"):
        clipped(DataLoader(Pairs(), batch_sampler=[[0, 1]]), EXAMPLE)


# ---------------------------------------------------------------------------------------- streams


def test_a_stream_has_its_declared_number_of_records_whatever_there_are() -> None:
    """No error and no count says how many: later ones are not read, missing ones are zero."""
    first = clipped((X[:9], Y[:9]))
    torch.testing.assert_close(clipped(Flow(RECORDS), EXAMPLE, count=9), first)
    few = dataset_batches(Flow(RECORDS[:9]), EXAMPLE, count=12)
    assert len(few) == 12
    torch.testing.assert_close(clipped(few), first)
    empty = dataset_batches(Flow([]), EXAMPLE, count=12)
    assert len(empty) == 12
    assert not clipped(empty).any()
    model = network()
    rows: Any = model.problem(few).rows(model.initial(0), Unit.RECORD)
    assert rows.units == 12


def test_a_pass_reads_a_stream_once_and_keeps_none_of_it() -> None:
    flow = Flow(RECORDS)
    stream = Stream(flow, 12)
    assert [int(stream[at][1]) for at in range(12)] == Y.tolist()
    assert flow.begun == 1
    assert int(stream[7][1]) == int(Y[7])  # back: it begins again
    assert flow.begun == 2
    assert int(stream[11][1]) == int(Y[11])  # on: it goes on
    assert flow.begun == 2
    for at in (12, 13, 12):
        with pytest.raises(LookupError, match="12 records"):
            Stream(flow, 14)[at]


class Patient(Flow):
    """A stream that goes on after an error."""

    def __iter__(self) -> Any:
        return _Patient(list(self.records))


class _Patient:
    def __init__(self, records: list[Any]) -> None:
        self.records = records

    def __iter__(self) -> _Patient:
        return self

    def __next__(self) -> Any:
        if not self.records:
            raise StopIteration
        found = self.records.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


class Skipping(Flow):
    """A generator that can begin after any record, as those of Hugging Face can."""

    def skip(self, number: int) -> Skipping:
        return Skipping(self.records[number:])


@pytest.mark.parametrize("kind", [Patient, Skipping])
@pytest.mark.parametrize("odd", [ValueError("patient 4711"), KeyError("x"), StopAsyncIteration()])
def test_a_record_at_which_a_stream_raises_moves_no_other(kind: Any, odd: Exception) -> None:
    broken = [*RECORDS[:3], odd, *RECORDS[4:]]
    rest = torch.arange(12) != 3
    expected = clipped((X[rest], Y[rest]))
    torch.testing.assert_close(clipped(kind(broken), EXAMPLE, count=12), expected)


def test_a_stream_that_an_error_ends_is_said_to_lose_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logging.getLogger("dpfed").propagate = True
    broken = Flow([*RECORDS[:3], ValueError("patient 4711"), *RECORDS[4:]])
    torch.testing.assert_close(clipped(broken, EXAMPLE, count=12), clipped((X[:3], Y[:3])))
    (said, *_) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert "the guarantee does not cover" in said.getMessage()
    assert "4711" not in said.getMessage()


@pytest.mark.parametrize(
    ("given", "count", "words"),
    [
        (Flow(RECORDS), None, "declared in public, got None; give count=1000"),
        (Flow(RECORDS), 0, "declared in public, got 0"),
        (Flow(RECORDS), True, "declared in public, got True"),
        (iter(RECORDS), 12, "begin again in each round, and a list_iterator cannot"),
        (RECORDS, 12, "count must be left out for a data set that has a length, 12;"),
        ({"train": RECORDS}, None, r"dict with the keys train; give one of its parts"),
        ("train.csv", None, "the text 'train.csv'"),
        (7, None, "got a int, which lacks"),
    ],
)
def test_what_cannot_be_taken_says_what_to_give(given: Any, count: Any, words: str) -> None:
    with pytest.raises(DataError, match=words) as error:
        dataset_batches(given, EXAMPLE, count=count)
    assert "\n" not in str(error.value)


def test_a_data_frame_is_refused_where_columns_have_no_names() -> None:
    class Frame:
        columns = ("a", "b")

        def to_numpy(self) -> Any:
            return X.numpy()

    with pytest.raises(DataError, match=r"got a Frame; give \(x, y\)"):
        network().problem(Frame())
    torch.testing.assert_close(clipped((X, Y)), WHOLE)


def test_an_example_or_a_collate_is_for_what_is_read_by_index() -> None:
    with pytest.raises(DataError, match="example is for data sets that are read by index"):
        network().problem((X, Y), EXAMPLE)
    with pytest.raises(DataError, match="count is for data sets"):
        network().problem(tensor_batches(X, Y), count=3)
    with pytest.raises(DataError, match=r"a Pairs needs example=.*or give \(x, y\)"):
        network().problem(Pairs())


class Steps(Flow):
    """A stream with the steps that one of Hugging Face has, by their classes' names."""

    def __init__(self, *names: str) -> None:
        super().__init__(RECORDS)
        self._ex_iterable = None
        for name in names:
            self._ex_iterable = type(name, (), {"ex_iterable": self._ex_iterable})()


def test_steps_that_choose_or_change_records_are_refused_wherever_they_are() -> None:
    """A filter lets a later record in; a map that raises ends the stream; a batch joins records."""
    fine = Steps("ArrowExamplesIterable", "BufferShuffledExamplesIterable", "TakeExamplesIterable")
    torch.testing.assert_close(clipped(fine, EXAMPLE, count=12), WHOLE)
    for name in ("MappedExamplesIterable", "FilteredExamplesIterable", "SomethingNewIterable"):
        given = Steps("ArrowExamplesIterable", name, "TakeExamplesIterable")
        with pytest.raises(DataError, match=rf"{name}.*do its work in collate="):
            dataset_batches(given, EXAMPLE, count=12)


def test_hugging_face_streams_are_read_and_their_steps_refused() -> None:
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_list([{"x": x.tolist(), "labels": y} for x, y in RECORDS])

    def collate(records: list[Any]) -> Any:
        return torch.tensor([records[0]["x"]]), torch.tensor([records[0]["labels"]])

    example = {"x": [0.0] * 4, "labels": 0}
    stream = whole.to_iterable_dataset()
    torch.testing.assert_close(clipped(stream, example, collate=collate, count=12), WHOLE)
    for step in (stream.map(dict), stream.filter(bool), stream.batch(2)):
        with pytest.raises(DataError, match=r"one by one.*do its work in collate="):
            dataset_batches(step, example, collate=collate, count=12)
    parts = datasets.DatasetDict({"train": whole})
    with pytest.raises(DataError, match=r"DatasetDict with the keys train"):
        dataset_batches(parts, example, collate=collate)
