# SPDX-License-Identifier: Apache-2.0
"""The type of a network's numbers, and the number of rows, decided a bound.

Before: factors of a network in double precision were squared as they were, so that a norm came out
as 0 and its row was not clipped: 879 clips. The sum of one or two rows in half precision was
rounded to half precision, beyond its bound, or could not be packed: a client with one or two
records answered with zero rows, one with three did not (epsilon 1.2 was printed, at least 4.0).
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dpfed.core.rows import Dense
from dpfed.core.types import Broadcast, Unit
from dpfed.data.modules import Network, seeded
from dpfed.flower import make_plan
from dpfed.parts import NoisySum
from dpfed.training.reply import ClientState, PricedReleaser, reply_or_zero_rows

W = 8


def deep() -> nn.Module:
    layers = [nn.Linear(W, W, bias=False) for _ in range(11)]
    return nn.Sequential(*layers, nn.Linear(W, 2, bias=False))


def test_squares_of_doubles_do_not_switch_clipping_off() -> None:
    """Weights that lead up to 1e153 and down to 1e-163, all of them float32."""
    model = Network(seeded(deep, 0), dtype=torch.float64)
    named = {}
    for place, name in enumerate(model.layout.shapes):
        scale = 4e30 if place < 5 else 0.0 if place == 5 else 2.5e-33
        named[name] = torch.eye(W) * scale if place < 11 else torch.tensor([[1.0], [-1.0]]) * 1.0
    named[name] = named[name].expand(2, W)
    params = model.layout.flatten(named)
    x, y = torch.rand(20, W) + 0.5, torch.zeros(20, dtype=torch.int64)
    problems = [model.problem((x[first:], y[first:])) for first in (0, 1)]
    clip = 1e-13
    sums = [p.rows(params, Unit.RECORD).clipped_sum(clip).vector.double() for p in problems]
    assert float((sums[0] - sums[1]).norm()) <= clip


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_a_half_precision_sum_is_within_its_bound_and_can_be_released(rows: int) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        for clip in (1.0, 0.9999, 0.70035):
            made = Dense(torch.ones(rows, 4).to(dtype)).clipped_sum(clip).vector
            assert float(made.double().norm()) <= rows * clip
        NoisySum(clip=1e6, epsilon=1.0, delta=1e-5)((torch.ones(rows, 4) * 6e4).to(dtype))


@pytest.mark.parametrize("records", [1, 2, 3])
def test_a_client_with_few_records_in_half_precision_answers_with_their_sum(records: int) -> None:
    privacy = {"epsilon": 200.0, "delta": 1e-5, "clip": 1.0, "adjacency": "add-remove"}
    plan = make_plan([3.0] * 3, rounds=1, privacy={**privacy, "nominal": 3.0})
    model = Network(seeded(lambda: nn.Linear(4, 3), 0), dtype=torch.bfloat16, sampler="func")
    client = ClientState(
        0, model.problem((torch.ones(records, 4) * 10, torch.zeros(records, dtype=torch.int64)))
    )
    asked = Broadcast(0, model.initial(0), {})
    reply, after = reply_or_zero_rows(plan, asked, client, PricedReleaser(plan, asked, client))
    assert not after.zeroed
    sent = reply["update"].vector.double() * reply["update"].step
    noise = plan.update.std * sent.numel() ** 0.5
    assert abs(float(sent.norm()) - records) < 4 * noise
