# SPDX-License-Identifier: Apache-2.0
"""A record's place in a block decided a bit of its row, and a server can make a bit decide a row.

Before: blocks had the length that a recipe or terms ask for. torch computes the last numbers of a
tensor by another function than the rest; with blocks of 7, one record more moved all others, and a
clipped sum by 60 clips where 1 was accounted for (epsilon 1 was printed, at least 197 was true).
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dpfed.core.types import Unit
from dpfed.core.vector import Vector
from dpfed.data.modules import Network, seeded

WIDTH, SCALE = 13, 2.0**60


class Gated(nn.Module):
    """Two linear layers, with SiLU between them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.b(nn.functional.silu(self.a(x)))
        return out


def two_values(chunk: int) -> tuple[float, float, float]:
    """A number, and what SiLU makes of it inside of a tensor of so many records and at its end."""
    for value in torch.linspace(0.5, 3, 4000).tolist():
        made = nn.functional.silu(torch.full((chunk, WIDTH), value))
        if made[0, -1] != made[-1, -1]:
            return value, float(made[0, -1]), float(made[-1, -1])
    pytest.skip("this machine computes a tensor's tail like the rest of it")


def parameters(model: Network, inside: float, edge: float) -> Vector:
    """The last bit of one activation, times 2^60, is a record's score."""
    head = torch.zeros(2, WIDTH)
    head[0, -1] = SCALE
    return model.layout.flatten(
        {
            "a.weight": torch.tensor([[1.0, 0.0]] * WIDTH),
            "a.bias": torch.zeros(WIDTH),
            "b.weight": head,
            "b.bias": torch.tensor([-SCALE * max(inside, edge), 0.0]),
        }
    )


@pytest.mark.parametrize("sampler", ["ghost", "func"])
@pytest.mark.parametrize("chunk", [1, 7, 17, 100])
def test_one_record_more_moves_a_sum_by_one_clip(chunk: int, sampler: str) -> None:
    value, inside, edge = two_values(chunk)
    model, blocks = Network(seeded(Gated, 0), chunk=chunk, sampler=sampler), 40
    params = parameters(model, inside, edge)

    def total(more: int) -> Vector:
        plain = [(0.0, 0.0)]
        rows = plain * more + (plain * (chunk - 1) + [(value, 0.0)]) * blocks
        problem = model.problem((torch.tensor(rows), torch.ones(len(rows), dtype=torch.int64)))
        return problem.rows(params, Unit.RECORD).clipped_sum(1.0).vector

    assert float((total(1) - total(0)).double().norm()) <= 1.0
