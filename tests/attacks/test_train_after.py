# SPDX-License-Identifier: Apache-2.0
"""``train()`` after ``Network(...)``: what is refused there is refused where rows are made.

Before: a frozen BatchNorm in eval() was accepted, and train() was not looked at again: records
mixed, and one that was replaced moved a sum by 19.1 clips where 2 were accounted for.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from dpfed.core.errors import RecipeError
from dpfed.core.types import Unit
from dpfed.data.modules import Network, seeded

X, Y = torch.randn(70, 4), torch.arange(70) % 2


def normed(sampler: str) -> Network:
    module = seeded(
        lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2)), 0
    )
    module[1].requires_grad_(False)
    return Network(module.eval(), sampler=sampler)


@pytest.mark.parametrize("sampler", ["auto", "ghost", "func", "alone"])
def test_a_batchnorm_in_train_is_refused_where_rows_are_made(sampler: str) -> None:
    model = normed(sampler)
    problem, params = model.problem((X, Y)), model.initial(0)
    before = problem.rows(params, Unit.RECORD)
    before.clipped_sum(1.0)
    model.module.train()
    for use in (
        lambda: problem.rows(params, Unit.RECORD).clipped_sum(1.0),
        lambda: before.clipped_sum(1.0),
        lambda: problem.rows(params, Unit.CLIENT),
        lambda: problem.metric_rows(params, Unit.RECORD, 1.0),
        lambda: problem.judged(params, Unit.RECORD, lambda scored: scored.losses[:, None]),
    ):
        with pytest.raises(RecipeError, match="BatchNorm, which mixes records"):
            use()
    model.module.eval()
    before.clipped_sum(1.0)


class Centred(nn.Module):
    """Mixes records, in train() only."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)
        return out - out.mean(dim=0) if self.training else out


@pytest.mark.parametrize("sampler", ["auto", "ghost", "opacus"])
def test_a_module_is_tried_in_the_mode_that_it_is_in(sampler: str) -> None:
    if sampler == "opacus":
        pytest.importorskip("opacus")
    model: Any = Network(seeded(Centred, 0).eval(), sampler=sampler)
    problem = model.problem((X, Y))
    problem.rows(model.initial(0), Unit.RECORD).clipped_sum(1.0)
    model.module.train()
    with pytest.raises(RecipeError, match="must depend on that record alone"):
        problem.rows(model.initial(0), Unit.RECORD).clipped_sum(1.0)
