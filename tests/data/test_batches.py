# SPDX-License-Identifier: Apache-2.0
"""Records that are read by index: tensors of any type, dicts, and map-style data sets."""

from __future__ import annotations

import resource
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpfed.core.errors import DataError
from dpfed.core.types import Unit
from dpfed.data.batches import Batches, dataset_batches, record_batches, tensor_batches
from dpfed.data.datasets import Records
from dpfed.data.modules import Network, seeded

CLIP, WORDS, LENGTH = 1.0, 11, 6


class Texts(nn.Module):
    """A bag of words under a mask: what it is called with are keywords."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(WORDS, 5), nn.Linear(5, 3)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        mask = attention_mask[:, :, None].to(self.head.weight)
        out: torch.Tensor = self.head((self.table(input_ids) * mask).sum(dim=1))
        return out


def network(sampler: str = "auto") -> Network:
    return Network(seeded(Texts, 0), chunk=4, sampler=sampler)


class Listed:
    """A data set in memory that notes what was read, and may raise."""

    def __init__(self, records: list[Any]) -> None:
        self.records, self.read = records, list[int]()

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, at: int) -> Any:
        self.read.append(at)
        if isinstance(self.records[at], Exception):
            raise self.records[at]
        return self.records[at]


def text(length: int, label: int) -> dict[str, Any]:
    ids = [(label + 3 * k) % WORDS for k in range(length)]
    return {"input_ids": ids, "attention_mask": [1] * length, "labels": label, "text": "a word"}


EXAMPLE = text(LENGTH, 0)
FILL = {"input_ids": 0, "attention_mask": 0}


def texts(count: int = 9) -> Listed:
    return Listed([text(1 + k % LENGTH, k % 3) for k in range(count)])


def as_tensors(data: Listed) -> Batches:
    """The same records, padded by hand."""
    ids = torch.zeros(len(data), LENGTH, dtype=torch.int64)
    mask = torch.zeros(len(data), LENGTH, dtype=torch.int64)
    for row, record in enumerate(data.records):
        ids[row, : len(record["input_ids"])] = torch.tensor(record["input_ids"])
        mask[row, : len(record["input_ids"])] = 1
    labels = torch.tensor([record["labels"] for record in data.records])
    return tensor_batches({"input_ids": ids, "attention_mask": mask}, labels)


def clipped(model: Network, records: Records | Batches, unit: Unit = Unit.RECORD) -> torch.Tensor:
    params = model.initial(0) + 0.1
    return model.problem(records).rows(params, unit).clipped_sum(CLIP).vector


@pytest.mark.parametrize("sampler", ["auto", "func", "alone"])
def test_a_data_set_gives_the_rows_of_its_tensors(sampler: str) -> None:
    data = texts()
    lazy = dataset_batches(data, EXAMPLE, fill=FILL)
    found, expected = clipped(network(sampler), lazy), clipped(network(sampler), as_tensors(data))
    torch.testing.assert_close(found, expected)
    params = network().initial(0)
    for one, other in zip(
        network().judge(params, lazy), network().judge(params, as_tensors(data)), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_records_are_read_when_they_are_needed_and_no_others() -> None:
    data = texts(20)
    lazy = dataset_batches(data, EXAMPLE, fill=FILL, groups=torch.arange(20) // 2, most=3)
    problem = network().problem(lazy)
    assert data.read == [0, 1, 2, 0]  # three at most are in memory; the first once more
    data.read.clear()
    kept = torch.zeros(20, dtype=torch.bool)
    kept[[4, 17]] = True
    rows: Any = problem.rows(network().initial(0), Unit.RECORD)
    rows.select(kept).clipped_sum(CLIP)
    assert data.read == [4, 17]
    data.read.clear()
    part = lazy.take(torch.tensor([3, 5]))
    assert (len(part), part.groups.tolist(), data.read) == (2, [1, 2], [])  # type: ignore[union-attr]
    clipped(network(), part)
    assert data.read == [3, 5, 3, 3, 5]
    data.read.clear()
    people: Any = problem.rows(network().initial(0), Unit.GROUP)
    people.select(torch.arange(10) == 6).clipped_sum(CLIP)
    assert data.read == list(range(20))  # how many records a person has would show


def test_integers_and_pairs_are_taken() -> None:
    ids = torch.randint(0, WORDS, (8, LENGTH), generator=torch.Generator().manual_seed(0))
    labels = torch.arange(8) % 3
    module = seeded(
        lambda: nn.Sequential(nn.Embedding(WORDS, 4), nn.Flatten(), nn.Linear(24, 3)), 0
    )
    model = Network(module, chunk=4)
    whole = clipped(model, tensor_batches(ids, labels))
    example = (torch.zeros(LENGTH, dtype=torch.int64), 0)
    lazy = dataset_batches(TensorDataset(ids, labels), example)
    torch.testing.assert_close(clipped(model, lazy), whole)


def test_records_are_the_batches_of_their_tensors() -> None:
    x, y = torch.rand(7, 4), torch.arange(7) % 3
    model = Network(seeded(lambda: nn.Linear(4, 3), 0))
    assert torch.equal(clipped(model, Records(x, y)), clipped(model, tensor_batches(x, y)))
    assert record_batches(Records(x, y)).groups is None


# ------------------------------------------------------------------- records that are not as others


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "odd",
    [
        ValueError("patient 4711"),
        {"labels": 1},
        {**EXAMPLE, "labels": "ill"},
        None,
        7,
        {**EXAMPLE, "input_ids": [[1, 2]]},
        {**EXAMPLE, "input_ids": [10**6] * 3},
        {**EXAMPLE, "labels": 5},
        {**EXAMPLE, "labels": -100},
    ],
    ids=str,
)
def test_an_odd_record_counts_for_nothing_and_moves_no_other(odd: Any) -> None:
    data = texts(6)
    without = clipped(network(), dataset_batches(Listed(data.records[1:]), EXAMPLE, fill=FILL))
    data.records[0] = odd
    lazy = dataset_batches(data, EXAMPLE, fill=FILL)
    torch.testing.assert_close(clipped(network(), lazy), without)
    correct, losses = network().judge(network().initial(0), lazy)
    assert (float(correct[0]), float(losses[0])) == (0.0, 0.0)


def test_no_record_decides_how_long_the_others_are_padded() -> None:
    """A batch that is padded to its longest record would let one record move the rows of others."""
    data = texts(6)
    lazy = dataset_batches(data, EXAMPLE, fill=FILL)
    first = lazy.read(torch.arange(6))
    data.records[2] = text(3 * LENGTH, 1)  # cut
    second = lazy.read(torch.arange(6))
    rest = torch.arange(6) != 2
    for name, each in first[rest].tensors().items():
        assert torch.equal(each, second[rest].tensors()[name])
    assert first.usable is not None
    assert bool(first.usable.all())
    unfilled = dataset_batches(data, EXAMPLE).read(torch.arange(6)).usable
    assert unfilled is not None
    assert unfilled.tolist() == [False, False, False, False, False, True]


def test_a_collate_function_of_ones_own_is_used() -> None:
    data = Listed([("abc" * k, k % 3) for k in range(1, 7)])

    def collate(records: list[Any]) -> Any:
        ids = torch.tensor([[len(word) % WORDS] * LENGTH for word, _ in records])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, torch.tensor(
            [label for _, label in records]
        )

    lazy = dataset_batches(data, ("a", 0), collate=collate)
    assert lazy.read(torch.tensor([1])).tensors()["input_ids"].tolist() == [[6] * LENGTH]
    assert clipped(network(), lazy).any()


@pytest.mark.parametrize("example", [{"input_ids": [1]}, 7, ("a", 0)])
def test_an_example_that_is_no_record_is_refused(example: Any) -> None:
    with pytest.raises(DataError, match="the example must be a record"):
        dataset_batches(texts(), example)


def test_tensors_and_groups_of_another_length_are_refused() -> None:
    with pytest.raises(DataError, match=r"one row per record, got lengths \[2, 3\]"):
        tensor_batches(torch.zeros(2, 3), torch.zeros(3))
    with pytest.raises(DataError, match=r"groups.*record, 2 in all, got 3"):
        tensor_batches(torch.zeros(2, 3), torch.zeros(2), torch.zeros(3, dtype=torch.int64))


def test_hugging_face_data_sets_are_read() -> None:
    datasets = pytest.importorskip("datasets")
    data = texts()
    hub = datasets.Dataset.from_list(data.records)
    found = clipped(network(), dataset_batches(hub, EXAMPLE, fill=FILL))
    torch.testing.assert_close(found, clipped(network(), as_tensors(data)))


# ----------------------------------------------------------------------- more than fits into memory

LARGE = """
import resource, torch
from torch import nn
from dpfed.core.types import Unit
from dpfed.data.batches import dataset_batches
from dpfed.data.modules import Network, seeded

class Large:
    def __len__(self):
        return 600
    def __getitem__(self, at):
        generator = torch.Generator().manual_seed(at)
        return torch.randn(250_000, generator=generator), at % 2

example = (torch.zeros(250_000), 0)
model = Network(seeded(lambda: nn.Linear(250_000, 2), 0), chunk=8)
problem = model.problem(dataset_batches(Large(), example, most=8))
params = model.initial(0)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
limit = used + 300_000_000
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
rows = problem.rows(params, Unit.RECORD)
print(float(rows.clipped_sum(1.0).vector.norm()))
try:
    torch.zeros(600, 250_000)
except RuntimeError:
    print("too large to be loaded")
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_data_set_larger_than_the_memory_is_trained_on() -> None:
    """600 MB of records under a limit of 300: the limit is the test's own, set by rlimit."""
    done = subprocess.run(
        [sys.executable, "-c", LARGE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    norm, refused = done.stdout.splitlines()
    assert float(norm) > 0
    assert refused == "too large to be loaded"
    assert resource.getrlimit(resource.RLIMIT_AS)[0] != 0
