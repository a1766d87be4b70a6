# SPDX-License-Identifier: Apache-2.0
"""What a record becomes depends on that record: removing another one changes nothing of it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dpfed.core.errors import DataError
from dpfed.core.testing import absence_keeps_its_bound, exchange_keeps_its_bound
from dpfed.core.types import Rows, Unit
from dpfed.data.augment import augmented
from dpfed.data.batches import Batch, Batches, tensor_batches
from dpfed.data.modules import Network, seeded

SECRET = bytes(range(32))
RECORDS = 9
Y = torch.arange(RECORDS) % 3
MODEL = Network(
    seeded(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), 0), chunk=4
)


def records() -> Batches:
    x = torch.randn(RECORDS, 4, generator=torch.Generator().manual_seed(1))
    return tensor_batches(x, Y)


def shaken(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return x + 10 * torch.randn(x.shape, generator=generator)


def seen(batches: Batches, chosen: torch.Tensor, turn: bytes = b"1") -> torch.Tensor:
    """What training sees of the chosen records."""
    inputs = batches.take(chosen).at(turn).read(torch.arange(len(chosen))).inputs
    assert isinstance(inputs, torch.Tensor)
    return inputs


@pytest.mark.parametrize("gone", [0, 4, RECORDS - 1])
def test_a_record_that_leaves_changes_no_other(gone: int) -> None:
    batches = augmented(records(), shaken, secret=SECRET)
    everyone = torch.arange(RECORDS)
    whole, rest = seen(batches, everyone), seen(batches, everyone[everyone != gone])
    assert torch.equal(whole[everyone != gone], rest)
    assert not torch.equal(whole, records().read(everyone).inputs)


def test_a_record_is_changed_by_content_turn_and_secret() -> None:
    twice = tensor_batches(torch.ones(3, 4), torch.tensor([0, 0, 1]))
    one, two = augmented(twice, shaken, secret=SECRET), augmented(twice, shaken, secret=bytes(32))
    first = seen(one, torch.arange(3))
    assert torch.equal(first[0], first[1])  # the same record
    assert not torch.equal(first[0], first[2])  # of another label
    assert not torch.equal(first, seen(one, torch.arange(3), b"2"))
    assert not torch.equal(first, seen(two, torch.arange(3)))
    drawn = [seen(augmented(twice, shaken), torch.arange(3)) for _ in range(2)]
    assert not torch.equal(*drawn)


def rows(batches: Batches, chosen: list[int], sampler: str = "ghost") -> Rows:
    model = Network(MODEL.module, chunk=4, sampler=sampler)
    return model.problem(batches.take(torch.tensor(chosen))).rows(model.initial(0), Unit.RECORD)


@pytest.mark.sample(2)
@pytest.mark.parametrize("sampler", ["ghost", "func"])
def test_the_law_of_sensitivity_holds(sampler: str) -> None:
    batches, most = augmented(records(), shaken, secret=SECRET), 0.0
    everyone = list(range(RECORDS - 1))
    for gone in everyone:
        rest = [each for each in everyone if each != gone]
        other = [RECORDS - 1 if each == gone else each for each in everyone]
        whole = rows(batches, everyone, sampler)
        most = max(most, absence_keeps_its_bound(whole, rows(batches, rest, sampler), 0.01))
        exchange_keeps_its_bound(whole, rows(batches, other, sampler), 0.01)
    assert most > 0.99


def test_a_stream_by_index_breaks_the_law() -> None:
    """The bug that was feared: all records after the one that left are changed anew."""

    def by_index(batch: Batch, turn: bytes) -> Batch:
        generator = torch.Generator().manual_seed(turn[0])
        assert isinstance(batch.inputs, torch.Tensor)
        return batch.like({"x": shaken(batch.inputs, generator), "targets": batch.targets})

    from dataclasses import replace

    batches = replace(records(), change=by_index)
    everyone = list(range(RECORDS))
    with pytest.raises(AssertionError, match="an absent Ghost row has"):
        absence_keeps_its_bound(rows(batches, everyone), rows(batches, everyone[1:]), 0.01)


def test_each_point_has_its_own_changes_and_gives_them_again() -> None:
    problem = MODEL.problem(augmented(records(), shaken, secret=SECRET))
    plain = MODEL.problem(records())
    here, there = MODEL.initial(0), MODEL.initial(0) + 1e-6
    made = [problem.rows(at, Unit.RECORD).clipped_sum(1.0).vector for at in (here, here, there)]
    assert torch.equal(made[0], made[1])
    assert not torch.allclose(made[0], made[2], atol=1e-3)
    clear = [problem.gradient(here), plain.gradient(here)]
    assert not torch.allclose(*clear, atol=1e-3)  # at client level, too
    judged = [
        each.metric_rows(here, Unit.RECORD, 5.0).clipped_sum(2.0) for each in (problem, plain)
    ]
    assert torch.equal(judged[0].vector, judged[1].vector)  # what is measured is not changed


def test_a_record_that_cannot_be_changed_counts_for_nothing() -> None:
    def picky(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        if float(x[0]) > 50:
            raise ValueError("too large")
        return x[:2] if float(x[0]) < -50 else x

    batches = records()
    x = batches.read(torch.arange(RECORDS)).inputs
    assert isinstance(x, torch.Tensor)
    x[0, 0], x[3, 0] = 100.0, -100.0
    kept = [each for each in range(RECORDS) if each not in (0, 3)]
    whole = rows(augmented(tensor_batches(x, Y), picky), list(range(RECORDS)))
    rest = rows(tensor_batches(x, Y), kept)
    torch.testing.assert_close(whole.clipped_sum(1.0).vector, rest.clipped_sum(1.0).vector)


def test_keywords_are_changed_by_name_and_nothing_is_read_of_no_record() -> None:
    def masked(x: dict[str, torch.Tensor], generator: torch.Generator) -> dict[str, torch.Tensor]:
        dropped = torch.rand(x["ids"].shape, generator=generator) < 0.5
        return {**x, "ids": torch.where(dropped, 0, x["ids"])}

    ids = torch.arange(1, 13).view(3, 4)
    batches = augmented(tensor_batches({"ids": ids}, torch.zeros(3)), masked, secret=SECRET)
    inputs = batches.at(b"1").read(torch.arange(3)).inputs
    assert isinstance(inputs, dict)
    assert 0 < int((inputs["ids"] == 0).sum()) < 12
    assert bool(((inputs["ids"] == 0) | (inputs["ids"] == ids)).all())
    assert len(batches.at(b"1").read(torch.arange(0))) == 0


def test_what_fails_on_made_up_records_is_refused() -> None:
    with pytest.raises(DataError, match="keep a record's shapes"):
        augmented(records(), lambda x, generator: x[:2])
    with pytest.raises(DataError, match=r"\(ValueError: no\); correct it"):
        augmented(records(), lambda x, generator: (_ for _ in ()).throw(ValueError("no")))
    with pytest.raises(DataError, match="secret must have 32 bytes, got 3"):
        augmented(records(), shaken, secret=b"abc")
