# SPDX-License-Identifier: Apache-2.0
"""Laws of rows: whatever a record or a server chose, no unit adds more than it may.

Server-chosen numbers (parameters, a scale, shared vectors, the clip of the plan) are of every
magnitude, in both precisions, and so are the records'.
"""

from __future__ import annotations

import importlib
import pkgutil
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

import dpfed.client
import dpfed.core
from dpfed.core.adaptive_rows import ClipIndicator, ScaledByClip
from dpfed.core.ghost import Ghost, Layer, Lookups, Made, Products
from dpfed.core.matrices import Gram, Hessians
from dpfed.core.rows import Chunks, Dense, MeanRows, Outer, Scaled
from dpfed.core.testing import (
    HOSTILE_CLIPS,
    exchange_keeps_its_bound,
    hostile_vectors,
    unit_keeps_its_bound,
)
from dpfed.core.types import Rows, Unit
from dpfed.data.datasets import Records
from dpfed.data.models import Linear, Model
from dpfed.data.modules import Network, seeded

DRAWS = 100
PERSON = torch.tensor([4, 4])
Pick = Callable[..., torch.Tensor]


def picker(seed: int, dtype: torch.dtype) -> Pick:
    """Draws hostile vectors: ``pick(3)`` is one of size 3, ``pick(2, 3)`` two of them."""
    chosen = random.Random(seed)
    known: dict[Any, list[torch.Tensor]] = {}

    def pick(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        size = shape[-1]
        vectors = known.setdefault((size, dtype), list(hostile_vectors(size, dtype)))
        count = 1 if len(shape) == 1 else shape[0]
        found = torch.stack([chosen.choice(vectors) for _ in range(count)])
        return found[0] if len(shape) == 1 else found

    return pick


def means(matrix: torch.Tensor, groups: torch.Tensor | None = None) -> MeanRows:
    return MeanRows(lambda index: matrix[index].double(), len(matrix), matrix.shape[1], groups)


def chunks(matrix: torch.Tensor, groups: torch.Tensor | None = None) -> Chunks:
    return Chunks(lambda index: matrix[index], len(matrix), matrix.shape[1], 1, groups)


def ghost(*layers: Layer) -> Ghost:
    """Of one record: its own gradients are the oracle."""
    row = torch.cat([layer.row(0) for layer in layers])[None]
    usable = torch.ones(1, dtype=torch.bool)
    return Ghost(lambda _: (layers, usable), chunks(row))


def ghost_person(pick: Pick) -> Ghost:
    """Of two records of one person: their own gradients are the oracle."""
    left = pick(2, 3)[:, None]
    layers: list[Layer] = [Products(left, torch.full((2, 1, 4), 0.5)), Made(left.sum(dim=1))]
    rows = torch.stack([torch.cat([layer.row(i) for layer in layers]) for i in range(2)])
    usable = torch.ones(2, dtype=torch.bool)
    return Ghost(lambda _: (layers, usable), Chunks(lambda i: rows[i], 2, 15, 2, PERSON))


def several(left: torch.Tensor) -> Ghost:
    """Layers of all kinds, of one factor: of several, one is hostile to the rest."""
    one = torch.full_like(left, 0.5)
    table = Lookups(torch.tensor([[1, 1]]), left, 3)
    made = (Made(each.sum(dim=1)) for each in (left, left * one))
    return ghost(Products(left, one), *made, table)


def cancelling(pick: Pick) -> Layer:
    """Two positions, of which the second takes back the first but for its rounding."""
    left, right = pick(1, 3), pick(1, 4)
    back = -right * (1 + 2.0**-20)
    return Products(left.expand(2, 3)[None], torch.cat([right, back])[None])


def curvature(pick: Pick, count: int) -> torch.Tensor:
    """Positive semidefinite: v v^T."""
    v = pick(count, 2)
    return v[:, :, None] * v[:, None, :]


def other(pick: Pick, size: int) -> torch.Tensor:
    """A scale, in the other precision as often as not: the server chooses that, too."""
    wide = bool(torch.isnan(pick(1)).any()) or float(pick(1)[0]) > 1
    return pick(size, dtype=torch.float64 if wide else torch.float32)


def number(pick: Pick) -> float:
    """A clip that is broadcast: a hostile number in double precision."""
    return float(pick(1, dtype=torch.float64)[0])


CASES: dict[str, Callable[[Pick], Rows]] = {
    "Dense": lambda pick: Dense(pick(1, 6)),
    "Dense, a person": lambda pick: Dense(pick(2, 6), PERSON),
    "MeanRows": lambda pick: means(pick(1, 6)),
    "MeanRows, a person": lambda pick: means(pick(2, 6), PERSON),
    "Outer": lambda pick: Outer(pick(1, 3), pick(1, 4)),
    "Outer, a person": lambda pick: Outer(pick(2, 3), pick(2, 4), groups=PERSON),
    "Chunks": lambda pick: chunks(pick(1, 6)),
    "Chunks, a person": lambda pick: chunks(pick(2, 6), PERSON),
    "Scaled Dense": lambda pick: Scaled(Dense(pick(1, 6)), other(pick, 6)),
    "Scaled Outer": lambda pick: Scaled(Outer(pick(1, 3), pick(1, 4)), other(pick, 12)),
    "Scaled Outer, a person": lambda pick: Scaled(
        Outer(pick(2, 3), pick(2, 4), bias=False, groups=PERSON), other(pick, 12)
    ),
    "Scaled Chunks": lambda pick: Scaled(chunks(pick(1, 6)), other(pick, 6)),
    "ScaledByClip Dense": lambda pick: ScaledByClip(Dense(pick(1, 6)), number(pick)),
    "ScaledByClip Dense, a person": lambda pick: ScaledByClip(
        Dense(pick(2, 6), PERSON), number(pick)
    ),
    "ScaledByClip Outer": lambda pick: ScaledByClip(Outer(pick(1, 3), pick(1, 4)), number(pick)),
    "ScaledByClip Ghost": lambda pick: ScaledByClip(several(pick(2, 3)[None]), number(pick)),
    "ClipIndicator Dense": lambda pick: ClipIndicator(Dense(pick(1, 6)), number(pick)),
    "ClipIndicator Outer": lambda pick: ClipIndicator(Outer(pick(1, 3), pick(1, 4)), number(pick)),
    "ClipIndicator Ghost, a person": lambda pick: ClipIndicator(ghost_person(pick), number(pick)),
    "Ghost": lambda pick: ghost(Products(pick(2, 3)[None], pick(2, 4)[None])),
    "Ghost, Gram matrices": lambda pick: ghost(Products(pick(1, 9)[None], pick(1, 8)[None])),
    "Ghost, cancelling": lambda pick: ghost(cancelling(pick)),
    "Ghost, a person": ghost_person,
    "Ghost, layers": lambda pick: several(pick(2, 3)[None]),
    "Gram": lambda pick: Gram(pick(1, 3)),
    "Gram, a person": lambda pick: Gram(pick(2, 3), PERSON),
    "Gram, a client": lambda pick: Gram(pick(2, 3), mean=True),
    "Hessians": lambda pick: Hessians(curvature(pick, 1), pick(1, 3)),
    "Hessians, a person": lambda pick: Hessians(curvature(pick, 2), pick(2, 3), groups=PERSON),
    "Hessians, a client": lambda pick: Hessians(curvature(pick, 2), pick(2, 3), mean=True),
}
ELSEWHERE = {
    "Direction",  # not made of rows: tests/attacks/test_hostile_rows.py
    "MetricRows",  # bounded by how they are made: tests/core/test_metric.py
    "StackedDense",  # of many clients, line by line as Dense and Outer: tests/core/test_stacked.py
    "StackedOuter",
}


def found_kinds() -> set[str]:
    """The classes with a ``clipped_sum`` of the rooms that make rows."""
    found = set()
    for room in (dpfed.core, dpfed.client):
        for module in pkgutil.iter_modules(room.__path__, f"{room.__name__}."):
            for thing in vars(importlib.import_module(module.name)).values():
                if isinstance(thing, type) and thing.__module__ == module.name:
                    found |= {thing.__name__} if hasattr(thing, "clipped_sum") else set()
    return {name for name in found if not name.startswith("_")}


def test_every_kind_of_rows_is_held_to_the_laws() -> None:
    protocols = {"Rows", "UnitRows", "MatrixRows"}
    held = {word for name in CASES for word in name.replace(",", "").split()}
    assert found_kinds() - protocols - ELSEWHERE <= held


DTYPES = [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.sample(14)
def test_a_unit_adds_no_more_than_its_bound(name: str, dtype: torch.dtype) -> None:
    pick, reached = picker(1, dtype), 0.0
    for _ in range(DRAWS):
        rows = CASES[name](pick)
        reached = max(reached, *(unit_keeps_its_bound(rows, clip) for clip in HOSTILE_CLIPS))
    assert reached > 0.99  # the law is not empty


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.sample(14)
def test_an_exchanged_unit_moves_a_sum_by_no_more_than_is_stated(
    name: str, dtype: torch.dtype
) -> None:
    pick, reached = picker(2, dtype), 0.0
    made = [CASES[name](pick) for _ in range(DRAWS)]
    for one, instead in pairwise(made):
        for clip in HOSTILE_CLIPS:
            reached = max(reached, exchange_keeps_its_bound(one, instead, clip))
    assert reached > 0.45


# ------------------------------------------------------------------- what a server makes of a model

MODELS: dict[str, Model] = {
    **{link: Linear(link, 3, 2 if link == "softmax" else 1) for link in ("softmax", "logistic")},
    "poisson": Linear("poisson", 3),
    "network": Network(seeded(lambda: nn.Sequential(nn.Linear(3, 2), nn.Tanh()), 0)),
}


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_no_parameters_make_a_record_add_more(name: str) -> None:
    """The server chooses the point at which gradients and second derivatives are taken."""
    pick, model = picker(3, torch.float32), MODELS[name]
    for _ in range(DRAWS // 4):
        params = pick(model.layout.size)
        one, instead = (
            model.problem(Records(pick(1, 3), torch.tensor([k]), torch.tensor([0])))
            for k in range(2)
        )
        for unit in Unit:
            kinds = [
                (p.rows(params, unit), p.metric_rows(params, unit, 5.0)) for p in (one, instead)
            ]
            if isinstance(model, Linear):
                kinds = [
                    (*made, p.gram_rows(unit), p.hessian_rows(params, unit))  # type: ignore[attr-defined]
                    for made, p in zip(kinds, (one, instead), strict=True)
                ]
            for rows, exchanged in zip(*kinds, strict=True):
                for clip in (0.01, 2.0):
                    unit_keeps_its_bound(rows, clip)
                    exchange_keeps_its_bound(rows, exchanged, clip)
