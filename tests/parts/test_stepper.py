# SPDX-License-Identifier: Apache-2.0
"""A server optimizer alone: the steps that a run makes, in both forms."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from dpfed.core.chain import chain
from dpfed.core.errors import RecipeError
from dpfed.core.types import ServerOptimizer
from dpfed.parts import ServerStepper, server_step
from dpfed.server.adam import adam
from dpfed.server.ema import ema
from dpfed.server.scale import scale
from dpfed.server.sofim import sofim

OPTIMIZERS = {
    "sofim": lambda: sofim(rho=1.0),
    "auto": lambda: sofim(rho="auto", classes=3),
    "chain": lambda: chain(adam(), scale(0.1)),
}


def test_a_step_is_the_papers_formula() -> None:
    """M = (1 - beta) G, and M / (rho + |M|^2), by hand."""
    G = torch.tensor([3.0, 4.0])
    params, state = server_step(sofim(rho=2.0, beta=0.5), torch.ones(2), G)
    M = 0.5 * G.double()
    step = M / (2 + float(M @ M))
    assert params.tolist() == pytest.approx((1 - step).tolist())
    assert state.t == 1
    assert G.tolist() == [3.0, 4.0]  # not changed


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_stepper_makes_the_steps_of_the_pure_function(name: str) -> None:
    draw = torch.Generator().manual_seed(1)
    facts: dict[str, Any] = {"rounds": 5, "std": 0.1, "clip": 1.0}
    weight, bias = (torch.nn.Parameter(torch.zeros(n)) for n in (4, 2))
    stepper = ServerStepper([weight, bias], OPTIMIZERS[name](), **facts)
    flat, state = torch.zeros(6), None
    for at in range(5):
        mean = torch.randn(6, generator=draw)
        flat, state = server_step(OPTIMIZERS[name](), flat, mean, state, round=at, **facts)
        weight.grad, bias.grad = mean[:4].clone(), mean[4:].clone()
        stepper.step()
        if at == 2:  # stopped and started again
            kept = stepper.state_dict()
            stepper = ServerStepper([weight, bias], OPTIMIZERS[name](), **facts)
            stepper.load_state_dict(kept)
    assert torch.allclose(torch.cat([weight, bias]), flat, atol=1e-6)


def test_it_is_an_optimizer_of_torch() -> None:
    weight = torch.nn.Parameter(torch.zeros(2, 1))
    stepper = ServerStepper([weight], ema(beta=0.0))
    schedule = torch.optim.lr_scheduler.StepLR(stepper, step_size=1, gamma=0.5)

    def closure() -> float:
        stepper.zero_grad()
        loss = weight.sum()
        loss.backward()
        return float(loss.detach())

    assert stepper.step(closure) == 0.0
    schedule.step()
    assert stepper.step(closure) == -2.0
    assert weight.flatten().tolist() == [-1.5, -1.5]
    stepper.zero_grad()
    stepper.step()  # no gradient: a mean of 0
    assert weight.flatten().tolist() == [-1.5, -1.5]


def test_what_is_not_known_is_nan() -> None:
    seen = []

    def update(G: torch.Tensor, state: Any, about: Any) -> Any:
        seen.append(about)
        return G, state

    server_step(ServerOptimizer(lambda _: (), update), torch.zeros(1), torch.zeros(1))
    assert math.isnan(seen[0].std)
    assert math.isnan(seen[0].clip)
    assert seen[0].rounds == 0


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(RecipeError, match="mean must be one flat vector like params"):
        server_step(ema(), torch.zeros(2), torch.zeros(3))
    groups: Any = [{"params": [torch.nn.Parameter(torch.zeros(1))]} for _ in range(2)]
    with pytest.raises(RecipeError, match="params must be one group, got 2"):
        ServerStepper(groups, ema())
