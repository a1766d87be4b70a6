# SPDX-License-Identifier: Apache-2.0
"""yogi against its equations in NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dpfed.core.errors import RecipeError
from dpfed.core.types import Aggregate
from dpfed.server.yogi import yogi
from tests.refusals import named


def seen(round: int, G: torch.Tensor) -> Aggregate:
    return Aggregate(round, torch.zeros_like(G), G, std=0.0, clients=1)


def oracle(
    given: list[NDArray[np.float64]],
    rate: float,
    beta1: float,
    beta2: float,
    eps: float,
    corrected: bool,
) -> list[NDArray[np.float64]]:
    m = v = np.zeros_like(given[0])
    out = []
    for t, G in enumerate(given, start=1):
        m = beta1 * m + (1 - beta1) * G
        v = v - (1 - beta2) * np.sign(v - G**2) * G**2
        a, b = (1 - beta1**t, 1 - beta2**t) if corrected else (1.0, 1.0)
        out.append(rate * (m / a) / (np.sqrt(v / b) + eps))
    return out


@pytest.mark.parametrize("corrected", [True, False])
@pytest.mark.parametrize(
    "options", [(0.1, 0.9, 0.999, 1e-3), (0.02, 0.0, 0.5, 1e-5), (1.0, 0.95, 0.0, 0.1)]
)
def test_every_step_follows_the_equations(
    options: tuple[float, float, float, float], corrected: bool
) -> None:
    rng = np.random.default_rng(7)
    given = [rng.normal(size=13) * 3 ** rng.normal() for _ in range(50)]
    optimizer = yogi(*options, corrected)
    state = optimizer.init(torch.zeros(13, dtype=torch.float64))
    for t, expected in enumerate(oracle(given, *options, corrected)):
        G = torch.from_numpy(given[t])
        direction, state = optimizer.update(G, state, seen(t, G))
        np.testing.assert_allclose(direction.numpy(), expected, rtol=1e-12, atol=1e-14)


def test_the_second_moment_moves_by_a_bounded_amount_and_stays_above_zero() -> None:
    optimizer = yogi(beta2=0.9)
    state = optimizer.init(torch.zeros(200))
    generator = torch.Generator().manual_seed(0)
    for t in range(50):
        G = torch.randn(200, generator=generator) * (100.0 if t % 7 == 0 else 1e-3)
        before = state.v
        _, state = optimizer.update(G, state, seen(t, G))
        assert bool((state.v >= 0).all())
        # the sum is rounded at the scale of v, which may be far above the move itself
        slack = 1e-6 * (before + state.v)
        assert bool(((state.v - before).abs() <= 0.1 * G**2 * (1 + 1e-5) + slack).all())


def test_the_first_corrected_step_does_not_depend_on_the_betas() -> None:
    G = torch.tensor([2.0, -0.5], dtype=torch.float64)
    for beta1, beta2 in ((0.0, 0.0), (0.9, 0.999)):
        optimizer = yogi(0.1, beta1, beta2, eps=0.01)
        direction, _ = optimizer.update(G, optimizer.init(G), seen(0, G))
        assert torch.allclose(direction, 0.1 * G / (G.abs() + 0.01))


@pytest.mark.parametrize(
    "options",
    [
        {"rate": 0.0},
        {"rate": math.nan},
        {"rate": math.inf},
        {"beta1": 1.0},
        {"beta1": math.nan},
        {"beta2": 1.0},
        {"beta2": -0.1},
        {"eps": 0.0},
        {"eps": math.nan},
        {"eps": math.inf},
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=named("yogi", options)):
        yogi(**options)
