# SPDX-License-Identifier: Apache-2.0
"""ftrl against the prefix sums that it avoids."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from dpfed.core.errors import RecipeError
from dpfed.core.types import Aggregate, ServerOptimizer
from dpfed.server.ftrl import ftrl
from tests.refusals import named

ROUNDS = 40


def aggregates(size: int = 9) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(size)
    return [torch.randn(size, generator=generator, dtype=torch.float64) for _ in range(ROUNDS)]


def path(optimizer: ServerOptimizer, theta: torch.Tensor) -> list[torch.Tensor]:
    state, out = optimizer.init(theta), []
    for t, G in enumerate(aggregates()):
        direction, state = optimizer.update(G, state, Aggregate(t, theta, G, 0.0, 1))
        theta = theta - direction
        out.append(theta)
    return out


def prefix_sums(
    theta: torch.Tensor, rate: float, momentum: float, restart: int
) -> list[torch.Tensor]:
    """Algorithm 1 with momentum as it is written: theta_0 - rate v_t, v_t = momentum v + S_t."""
    start, S, v, out = theta, torch.zeros_like(theta), torch.zeros_like(theta), []
    for t, G in enumerate(aggregates()):
        if restart and t % restart == 0:
            start, S, v = theta, torch.zeros_like(theta), torch.zeros_like(theta)
        S = S + G
        v = momentum * v + S
        theta = start - rate * v
        out.append(theta)
    return out


@pytest.mark.parametrize("restart", [0, 1, 7, 20, 100])
@pytest.mark.parametrize(("rate", "momentum"), [(1.0, 0.9), (0.3, 0.0), (5.0, 0.99)])
def test_the_path_is_that_of_the_prefix_sums(rate: float, momentum: float, restart: int) -> None:
    theta = torch.linspace(-1, 1, 9, dtype=torch.float64)
    got = path(ftrl(rate, momentum, restart), theta)
    for one, other in zip(got, prefix_sums(theta, rate, momentum, restart), strict=True):
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-11)


def test_a_restart_forgets_the_momentum() -> None:
    theta = torch.zeros(9, dtype=torch.float64)
    plain, restarted = path(ftrl(), theta), path(ftrl(restart=10), theta)
    assert torch.equal(plain[9], restarted[9])
    assert torch.allclose(restarted[10], restarted[9] - aggregates()[10])
    assert not torch.allclose(plain[10], restarted[10])


def test_a_restart_gives_the_same_bits_in_place() -> None:
    optimizer = ftrl(restart=3)
    assert optimizer.update_ is not None
    pure, reusing = (optimizer.init(torch.zeros(9, dtype=torch.float64)) for _ in range(2))
    for t, G in enumerate(aggregates()):
        seen = Aggregate(t, G, G, 0.0, 1)
        expected, pure = optimizer.update(G, pure, seen)
        got, reusing = optimizer.update_(G.clone(), reusing, seen)
        assert torch.equal(got, expected)
        assert torch.equal(reusing.u, pure.u)


@pytest.mark.parametrize(
    "options",
    [
        {"rate": 0.0},
        {"rate": math.nan},
        {"rate": math.inf},
        {"momentum": 1.0},
        {"momentum": -0.1},
        {"momentum": math.nan},
        {"restart": -1},
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=named("ftrl", options)):
        ftrl(**options)
