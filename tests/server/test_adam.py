# SPDX-License-Identifier: Apache-2.0
"""adam against torch.optim.Adam, and what debias takes out."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from dpfed.core.errors import RecipeError
from dpfed.core.types import Aggregate, ServerOptimizer
from dpfed.core.vector import BLOCK
from dpfed.server.adam import adam
from tests.refusals import named


def seen(round: int, G: torch.Tensor, std: float = 0.0) -> Aggregate:
    return Aggregate(round, torch.zeros_like(G), G, std=std, clients=1)


def aggregates(size: int, rounds: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(size)
    return [torch.randn(size, generator=generator, dtype=torch.float64) for _ in range(rounds)]


def run(
    optimizer: ServerOptimizer, given: list[torch.Tensor], std: float = 0.0
) -> list[torch.Tensor]:
    state, out = optimizer.init(torch.zeros_like(given[0])), []
    for t, G in enumerate(given):
        direction, state = optimizer.update(G, state, seen(t, G, std))
        out.append(direction)
    return out


@pytest.mark.parametrize(
    ("rate", "beta1", "beta2", "eps"),
    [(0.1, 0.9, 0.999, 1e-8), (0.02, 0.0, 0.8, 1e-3), (1.0, 0.95, 0.9999, 0.1)],
)
def test_each_step_is_that_of_torch(rate: float, beta1: float, beta2: float, eps: float) -> None:
    params = torch.nn.Parameter(torch.ones(11, dtype=torch.float64))
    oracle = torch.optim.Adam([params], lr=rate, betas=(beta1, beta2), eps=eps)
    given = aggregates(11, 50)
    theta = params.detach().clone()
    for G, direction in zip(given, run(adam(rate, beta1, beta2, eps), given), strict=True):
        params.grad = G
        oracle.step()
        theta = theta - direction
        assert torch.allclose(theta, params.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("corrected", [True, False])
@pytest.mark.parametrize("std", [0.0, 0.7, 30.0])
def test_every_form_follows_its_equation(corrected: bool, std: float) -> None:
    given = aggregates(9, 20)
    got = run(adam(0.3, 0.8, 0.9, 1e-2, corrected, debias=True, floor=0.05), given, std)
    m = v = torch.zeros(9, dtype=torch.float64)
    for t, (G, direction) in enumerate(zip(given, got, strict=True)):
        m, v = 0.8 * m + 0.2 * G, 0.9 * v + 0.1 * G**2
        a, b = 1 - 0.8 ** (t + 1), 1 - 0.9 ** (t + 1)
        if corrected:
            clean, mean = v / b - std**2, m / a
        else:  # of the noise only the share b has entered v
            clean, mean = v - b * std**2, m
        expected = 0.3 * mean / (clean.clamp(min=0.05).sqrt() + 1e-2)
        assert torch.allclose(direction, expected, rtol=1e-12, atol=1e-14)


def test_without_correction_the_moments_enter_as_they_are() -> None:
    G = torch.tensor([2.0, -3.0], dtype=torch.float64)
    (step,) = run(adam(1.0, 0.9, 0.99, 1e-8, corrected=False), [G])
    assert torch.allclose(step, 0.1 * G / (0.1 * G.abs() + 1e-8))


def test_debias_finds_the_step_that_noise_hides() -> None:
    """A signal of 1 in noise of std 2: Adam divides by sqrt(5), DP-AdamBC by about 1."""
    given = [1 + 2 * noise for noise in aggregates(4001, 400)]
    options: dict[str, Any] = {"rate": 1.0, "beta1": 0.98}
    plain = run(adam(**options), given, std=2.0)[-1]
    clean = run(adam(**options, debias=True), given, std=2.0)[-1]
    assert float(plain.median()) == pytest.approx(1 / math.sqrt(5), rel=0.05)
    assert float(clean.median()) == pytest.approx(1, rel=0.05)


def test_the_floor_holds_where_noise_is_all_there_is() -> None:
    G = torch.tensor([1e-3, -1.0], dtype=torch.float64)
    (step,) = run(adam(1.0, debias=True, floor=0.25, eps=1e-8), [G], std=10.0)
    assert torch.allclose(step, G / 0.5)


@pytest.mark.parametrize("std", [math.inf, math.nan])
def test_a_noise_level_that_is_not_finite_is_not_subtracted(std: float) -> None:
    given = aggregates(5, 3)
    for got, expected in zip(run(adam(debias=True), given, std), run(adam(), given), strict=True):
        assert torch.allclose(got, expected)


def test_the_noise_level_enters_by_debias_alone() -> None:
    given = aggregates(5, 3)
    for one, other in zip(run(adam(), given, 3.0), run(adam(), given, 0.0), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_debias_gives_the_same_bits_in_place(dtype: torch.dtype) -> None:
    optimizer = adam(debias=True, corrected=False)
    assert optimizer.update_ is not None
    given = [G.to(dtype) for G in aggregates(BLOCK + 5, 3)]
    pure, reusing = (optimizer.init(torch.zeros_like(given[0])) for _ in range(2))
    for t, G in enumerate(given):
        expected, pure = optimizer.update(G, pure, seen(t, G, 0.5))
        got, reusing = optimizer.update_(G.clone(), reusing, seen(t, G, 0.5))
        assert torch.equal(got, expected)
        assert torch.equal(reusing.m, pure.m)
        assert torch.equal(reusing.v, pure.v)


@pytest.mark.parametrize(
    "options",
    [
        {"rate": 0.0},
        {"rate": math.nan},
        {"rate": math.inf},
        {"beta1": 1.0},
        {"beta1": math.nan},
        {"beta2": -0.1},
        {"beta2": 1.0},
        {"eps": 0.0},
        {"eps": math.nan},
        {"eps": math.inf},
        {"floor": 0.0},
        {"floor": math.nan},
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=named("adam", options)):
        adam(**options)


def test_the_least_eps_is_enough_for_zeros_in_float32() -> None:
    optimizer = adam(eps=1e-30)
    zero = torch.zeros(3)
    direction, _ = optimizer.update(zero, optimizer.init(zero), seen(0, zero))
    assert torch.equal(direction, zero)
