# SPDX-License-Identifier: Apache-2.0
"""sofim against the dense solve that it avoids, and its options one by one."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpfed.core.errors import RecipeError
from dpfed.core.types import Aggregate
from dpfed.server.sofim import sofim
from tests.refusals import named


def seen(round: int, G: torch.Tensor) -> Aggregate:
    return Aggregate(round, torch.zeros_like(G), G, std=0.0, clients=1)


@given(
    st.integers(1, 300),
    st.integers(0, 2**31),
    st.floats(1e-2, 1e2),
    st.floats(0, 0.99),
    st.booleans(),
)
def test_sofim_is_the_dense_solve(
    d: int, seed: int, rho: float, beta: float, corrected: bool
) -> None:
    """(M M^T + rho I) x = G, by torch.linalg.solve, to 1e-6."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = sofim(rho, beta, corrected)
    state = optimizer.init(torch.zeros(d, dtype=torch.float64))
    M = torch.zeros(d, dtype=torch.float64)
    for t in range(4):
        G = torch.randn(d, generator=generator, dtype=torch.float64)
        got, state = optimizer.update(G, state, seen(t, G))
        M = beta * M + (1 - beta) * G
        proxy = M / (1 - beta ** (t + 1)) if corrected else M
        dense = torch.outer(proxy, proxy) + rho * torch.eye(d, dtype=torch.float64)
        expected = torch.linalg.solve(dense, G)
        assert torch.allclose(got, expected, rtol=1e-6, atol=1e-6 * float(expected.abs().max()))


def run(optimizer: object, G: torch.Tensor, rounds: int) -> list[torch.Tensor]:
    state = optimizer.init(torch.zeros_like(G))  # type: ignore[attr-defined]
    out = []
    for t in range(rounds):
        direction, state = optimizer.update(G, state, seen(t, G))  # type: ignore[attr-defined]
        out.append(direction)
    return out


def test_warmup_takes_steps_of_the_corrected_average_over_rho() -> None:
    G = torch.randn(6, dtype=torch.float64)
    steps = run(sofim(rho=4.0, beta=0.9, corrected=True, warmup=3), G, 5)
    for step in steps[:3]:
        assert torch.allclose(step, G / 4.0)  # M_hat of a constant is the constant
    assert not torch.allclose(steps[3], G / 4.0)


def test_warmup_without_rho_takes_steps_of_the_average_itself() -> None:
    G = torch.randn(6, dtype=torch.float64)
    steps = run(sofim(rho=4.0, corrected=True, warmup=2, warmup_by_rho=False), G, 2)
    assert torch.allclose(steps[1], G)


def test_warmup_without_correction_uses_the_plain_average() -> None:
    G = torch.randn(6, dtype=torch.float64)
    steps = run(sofim(rho=2.0, beta=0.5, warmup=2), G, 2)
    assert torch.allclose(steps[0], 0.5 * G / 2.0)
    assert torch.allclose(steps[1], 0.75 * G / 2.0)


def test_the_ramp_starts_at_a_scaled_gradient_and_ends_at_the_full_step() -> None:
    G = torch.randn(6, dtype=torch.float64)
    ramped = run(sofim(rho=0.5, ramp=4), G, 6)
    full = run(sofim(rho=0.5), G, 6)
    assert torch.allclose(ramped[0], G / 0.5)
    middle = 0.5 * G / 0.5 + 0.5 * full[2]
    assert torch.allclose(ramped[2], middle)
    assert torch.allclose(ramped[5], full[5])


def test_a_step_is_never_longer_than_g_over_rho() -> None:
    """Nair et al. 2026, Lemma 4.14, eq. (13)."""
    for scale in (1e-6, 1.0, 1e6):
        G = torch.randn(50, dtype=torch.float64) * scale
        for step in run(sofim(rho=0.3), G, 5):
            assert float(step.norm()) <= float(G.norm()) / 0.3 * (1 + 1e-12)


@pytest.mark.parametrize(
    "options",
    [{"rho": 0.0}, {"rho": math.nan}, {"rho": math.inf}, {"beta": 1.0}, {"beta": -0.1},
     {"beta": math.nan}, {"ramp": -1}, {"warmup": -1}],
)  # fmt: skip
def test_options_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(RecipeError, match=named("sofim", options)):
        sofim(**options)  # type: ignore[arg-type]


def test_noise_far_above_rho_turns_the_step_uphill() -> None:
    """M holds a part of the noise of G, so that more than all of M is taken from G.

    With |noise|^2 = N in d >> 1 coordinates and rho << N, the step keeps of a constant gradient g
    1 - (|g|^2 + (1 - beta) N) / (|g|^2 + N (1 - beta) / (1 + beta)), which tends to -beta.
    """
    size, noise, beta, rho = 40_000, 100.0, 0.9, 1e-3
    gradient = torch.zeros(size, dtype=torch.float64)
    gradient[0] = 1.0
    made = torch.Generator().manual_seed(0)
    optimizer = sofim(beta=beta, rho=rho)
    state, kept = optimizer.init(gradient), []
    for t in range(400):
        drawn = torch.randn(size, generator=made, dtype=torch.float64)
        private = gradient + (noise / size) ** 0.5 * drawn
        step, state = optimizer.update(private, state, seen(t, private))
        kept.append(rho * float(step[0]))
    expected = 1 - (1 + (1 - beta) * noise) / (1 + noise * (1 - beta) / (1 + beta))
    assert expected < -0.7
    assert sum(kept[50:]) / 350 == pytest.approx(expected, abs=0.05)
