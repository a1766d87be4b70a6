# SPDX-License-Identifier: Apache-2.0
"""The law of sensitivity over models of every shape: no record moves a sum by more than is stated.

The server chooses the parameters, of every magnitude; records are ordinary, or such that tokens
cancel but for their rounding. A record is alone, is exchanged, or is absent, so that all others
are computed at another place of the batch: their rows must not change with that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from dpfed.core import ghost
from dpfed.core.log import log
from dpfed.core.testing import (
    absence_keeps_its_bound,
    exchange_keeps_its_bound,
    hostile_vectors,
    unit_keeps_its_bound,
)
from dpfed.core.types import Unit
from dpfed.data.batches import Batch, Batches, tensor_batches
from dpfed.data.modules import Network
from tests.laws.shapes import ADAPTERS, SHAPES, Shape

CLIPS = (1e-4, 0.7)
HEIGHTS = (0.05, 1e5, 1.0, 1e2, 1e15)
CHUNK = 8
ONE_BY_ONE = Shape("bert", padded=True)
"""Of what torch.func cannot go through, one is enough: the rows are those of any record."""


def marks_of(shape: Shape) -> list[pytest.MarkDecorator]:
    """CI has each transformer with and without padding, and with and without tied weights."""
    if shape not in ADAPTERS:
        return []
    in_ci = shape.padded == shape.tied or shape == ONE_BY_ONE
    return [pytest.mark.slow if in_ci else pytest.mark.long]


CELLS = [
    pytest.param(shape, sampler, id=f"{shape}-{sampler}", marks=marks_of(shape))
    for shape in SHAPES
    for sampler in ("ghost", "func", "alone")
    if sampler == "ghost"
    or (sampler == "func" and not shape.padded)
    or (sampler == "alone" and shape == ONE_BY_ONE)
]


@pytest.fixture(autouse=True)
def no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hostile parameters make a client log whole tracebacks, which takes longer than its work."""
    monkeypatch.setattr(log, "disabled", True)


def hostile_params(model: Network) -> Iterator[torch.Tensor]:
    """What a server may send: waves of every height, and numbers of every magnitude."""
    start, size = model.initial(0), model.layout.size
    for height in HEIGHTS:
        yield start + height * torch.sin(torch.arange(size) * 1.7)
    yield from list(hostile_vectors(size, torch.float32))[7::20]


def cancelling(batches: Batches) -> Batches:
    """The same records, every second number along the last axis but one takes back the first."""
    whole = batches.read(torch.arange(len(batches)))
    changed = {n: t if n == "targets" else _taken_back(t) for n, t in whole.tensors().items()}
    made: Batch = whole.like(changed)
    return tensor_batches(made.inputs, made.targets)


def _taken_back(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    if not x.is_floating_point():  # words: the same one throughout
        return x[:, :1].expand_as(x).contiguous() if x.dim() > 1 else x
    if x.dim() > 2:
        x[:, 1::2] = -x[:, ::2][:, : x[:, 1::2].shape[1]] * (1 + 2.0**-20)
    return x * 1e5


def rows(model: Network, batches: Batches, params: torch.Tensor, chosen: list[int]) -> Any:
    return model.problem(batches.take(torch.tensor(chosen))).rows(params, Unit.RECORD)


def reached(model: Network, batches: Batches, params: torch.Tensor) -> float:
    """The largest part of a bound that a record has reached, alone, exchanged or absent."""
    whole = rows(model, batches, params, [0, 1, 2, 3, 4])
    other = rows(model, batches, params, [0, 5, 2, 3, 4])
    rest = rows(model, batches, params, [1, 2, 3, 4])
    most = 0.0
    for clip in CLIPS:
        most = max(most, unit_keeps_its_bound(rows(model, batches, params, [6]), clip))
        most = max(most, absence_keeps_its_bound(whole, rest, clip))
        exchange_keeps_its_bound(whole, other, clip)
    return most


@pytest.mark.parametrize(("shape", "sampler"), CELLS)
@pytest.mark.sample(8)
def test_no_record_moves_a_sum_by_more_than_is_stated(shape: Shape, sampler: str) -> None:
    model, batches = shape.build(sampler, CHUNK)
    most = 0.0
    chosen = list(hostile_params(model))[:: 3 if shape in ADAPTERS else 1]
    for records in (batches, cancelling(batches)):
        for params in chosen:
            most = max(most, reached(model, records, params))
    assert most > 0.99  # the law is not empty


def test_norms_of_single_precision_break_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bug that was feared: Gram norms of tokens that cancel."""

    def single(self: ghost.Products) -> ghost.Norms:
        left, right = self.left.float(), self.right.float()
        grams = torch.bmm(left, left.mT) * torch.bmm(right, right.mT)
        norms = grams.sum(dim=(1, 2)).clamp(min=0.0).sqrt().double()
        return ghost.Norms(norms, norms)

    model, batches = Shape("linear, pooled").build("ghost", CHUNK)
    monkeypatch.setattr(ghost.Products, "norms", single)
    held = cancelling(batches)
    with pytest.raises(AssertionError, match="times the bound"):
        max(reached(model, held, params) for params in hostile_params(model))
