# SPDX-License-Identifier: Apache-2.0
"""A law: neither a data type nor the number of rows decides a bound.

All types of floating-point numbers, all samplers, no row to five, and parameters of any scale: one
row more moves the sum by at most a clip, the sum is a double that a grid takes, and n equal rows
add up to n times one of them. Norms are added up here by ``math.fsum``, not by the library.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import nn

from dpfed.core.grid import pack, step_below
from dpfed.core.rows import Chunks, Dense, MeanRows, Outer, Scaled
from dpfed.core.types import Rows, Unit
from dpfed.core.vector import Vector
from dpfed.data.modules import Network, seeded

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COUNTS = range(6)
CLIPS = (1.0, 0.70035, 1e-13, 1e6)
SCALES = (1.0, 1e-30, 1e4, 4e30)


def length(vector: Vector) -> float:
    return math.sqrt(math.fsum(each * each for each in vector.double().tolist()))


def check(sums: list[Vector], clip: float) -> None:
    """Sums of 0, 1, ... equal rows, with one row more each."""
    for vector in sums:
        assert vector.dtype == torch.float64
        assert bool(vector.isfinite().all())
        pack(vector, step_below(clip, 20))
    for less, more in pairwise(sums):
        assert length(more - less) <= clip
    for count, vector in enumerate(sums):
        assert length(vector - count * sums[1]) <= 1e-9 * clip * max(1, count)


ROWS: dict[str, Callable[[torch.Tensor], Rows]] = {
    "dense": Dense,
    "chunks": lambda m: Chunks(lambda index: m[index], len(m), m.shape[1], chunk=2),
    "means": lambda m: MeanRows(lambda index: m[index].double(), len(m), m.shape[1]),
    "outer": lambda m: Outer(m[:, :2], m[:, 2:], bias=False),
    "scaled": lambda m: Scaled(Dense(m), torch.full((m.shape[1],), 3.0, dtype=m.dtype)),
    "scaled outer": lambda m: Scaled(
        Outer(m[:, :2], m[:, 2:], bias=False),
        torch.full((2 * (m.shape[1] - 2),), 3.0, dtype=m.dtype),
    ),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ROWS)
def test_rows_of_any_type_and_number(kind: str, dtype: torch.dtype) -> None:
    one = torch.randn(1, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for scale in (1.0, 3e-8, 6e4, 1e30, 1e-200):
        row = (one / one.abs().max() * scale).to(dtype)
        for clip in CLIPS:
            made = [ROWS[kind](row.expand(n, -1).clone()) for n in COUNTS]
            check([each.clipped_sum(clip).vector for each in made], clip)


def wide() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 8, bias=False),
        nn.Linear(8, 8),
        nn.LayerNorm(8),
        nn.Linear(8, 8, bias=False),
        nn.Linear(8, 3),
    )


def convolved() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (2, 4)), nn.Conv1d(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(9, 3)
    )


def linear() -> nn.Module:
    return nn.Sequential(*[nn.Linear(8, 8, bias=False) for _ in range(11)], nn.Linear(8, 2))


def scaled(model: Network, scale: float) -> Vector:
    """The first layers lead far up, one in the middle is zero, the rest lead far down."""
    parts = model.layout.unflatten(model.initial(0)).items()
    middle, named = len(parts) // 2, {}
    for place, (name, part) in enumerate(parts):
        factor = scale if place < middle else 0.0 if place == middle else 1 / max(scale, 1e-30)
        eye = torch.eye(*part.shape) if part.dim() == 2 and place < len(parts) - 2 else part
        named[name] = part if scale == 1.0 else eye * factor
    return model.layout.flatten(named)


@pytest.mark.parametrize("dtype", [*DTYPES, None], ids=str)
@pytest.mark.parametrize("sampler", ["auto", "ghost", "func", "alone"])
@pytest.mark.parametrize("make", [linear, wide, convolved])
def test_networks_of_any_type_sampler_and_number_of_records(
    make: Callable[[], nn.Module], sampler: str, dtype: torch.dtype | None
) -> None:
    model = Network(seeded(make, 0), dtype=dtype, sampler=sampler)
    x = torch.rand(1, 8, generator=torch.Generator().manual_seed(1)) + 0.5
    for scale in SCALES[-1:] if sampler == "alone" else SCALES:
        params = scaled(model, scale)
        for clip in (1.0, 1e-13):
            problems = [
                model.problem((x.expand(n, -1).clone(), torch.ones(n, dtype=torch.int64)))
                for n in COUNTS
            ]
            rows = [each.rows(params, Unit.RECORD) for each in problems]
            check([each.clipped_sum(clip).vector for each in rows], clip)
