# SPDX-License-Identifier: Apache-2.0
"""DP-LocalAdamW against torch.optim.AdamW, and its supplement's Algorithm 2 in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dpfed.core.registry import build
from dpfed.core.types import Facts, Unit, Weights
from dpfed.mechanisms.clear import clear
from dpfed.mechanisms.gaussian import gaussian
from tests.helpers.scaffold_oracle import (
    SIZE,
    clipped,
    draw,
    end,
    federation,
    make_plan,
    mean_of,
    private,
    problems,
    unit_rows,
    walk,
)

OPTIONS: dict[str, Any] = {
    "steps": 4,
    "rate": 0.05,
    "beta1": 0.8,
    "beta2": 0.99,
    "eps": 1e-6,
    "decay": 0.3,
}


def torchs(theta: torch.Tensor) -> tuple[torch.nn.Parameter, torch.optim.AdamW]:
    parameter = torch.nn.Parameter(theta.clone())
    betas = OPTIONS["beta1"], OPTIONS["beta2"]
    return parameter, torch.optim.AdamW(
        [parameter], OPTIONS["rate"], betas, OPTIONS["eps"], OPTIONS["decay"]
    )


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-9)])
def test_one_client_without_noise_is_torchs_adamw(dtype: torch.dtype, tolerance: float) -> None:
    """Eight rounds of four steps are 32 steps: rounds leave no mark on the moments."""
    data = federation(1, 30)
    plan = make_plan(build("client", "localadamw", OPTIONS), data, 8, clear(Facts(50.0)))
    (problem,) = problems(data, dtype)
    parameter, oracle = torchs(torch.zeros(SIZE, dtype=dtype))
    for state, _, clients in walk(plan, data, dtype=dtype):
        for _ in range(OPTIONS["steps"]):
            parameter.grad = problem.gradient(parameter.detach())
            oracle.step()
        assert float((state.params - parameter.detach()).abs().max()) < tolerance
        assert clients[0].state.k == state.round * OPTIONS["steps"]
    assert float(parameter.detach().abs().max()) > 0.3


@pytest.mark.parametrize("unit", [Unit.RECORD, Unit.CLIENT])
def test_with_reset_every_round_is_a_new_adamw(unit: Unit) -> None:
    """At client level this is so without asking; there the move is clipped, in clear before."""
    data = federation(3, 20)
    options = OPTIONS if unit is Unit.CLIENT else {**OPTIONS, "reset": True}
    C = 0.25 if unit is Unit.CLIENT else 50.0
    plan = make_plan(
        build("client", "localadamw", options, unit=unit), data, 5, clear(Facts(C, unit=unit))
    )
    theta = torch.zeros(SIZE, dtype=torch.float64)
    shortened = 0
    for state, _, clients in walk(plan, data):
        moves = []
        for problem in problems(data):
            parameter, oracle = torchs(theta)
            for _ in range(OPTIONS["steps"]):
                parameter.grad = problem.gradient(parameter.detach())
                oracle.step()
            moves.append((theta - parameter.detach()).numpy())
            shortened += np.linalg.norm(moves[-1]) > C
        theta = theta - torch.from_numpy(clipped(np.stack(moves), C).mean(axis=0))
        assert float((state.params - theta).abs().max()) < 1e-8
        assert clients[0].state == ()
    assert (shortened > 0) == (unit is Unit.CLIENT)


def algorithm_2(data, unit, C, std, T, reset, absent):  # type: ignore[no-untyped-def]
    """Lines 1 to 22 with the four changes that the file states."""
    K, eta, b1, b2, tau, decay = OPTIONS.values()
    theta = np.zeros(SIZE)
    m, v, steps = np.zeros((len(data), SIZE)), np.zeros((len(data), SIZE)), [0] * len(data)
    for t in range(T):
        total = np.zeros(SIZE)
        for i, one in enumerate(data):
            if absent(t, i):
                continue
            local = theta.copy()
            if reset:
                m[i], v[i], steps[i] = 0, 0, 0
            for k in range(K):
                g = private(unit_rows(local, one, unit), C, std, t, i, k)
                steps[i] += 1
                m[i] = b1 * m[i] + (1 - b1) * g
                v[i] = b2 * v[i] + (1 - b2) * g * g
                m_hat, v_hat = m[i] / (1 - b1 ** steps[i]), v[i] / (1 - b2 ** steps[i])
                local = local - eta * (m_hat / (np.sqrt(v_hat) + tau) + decay * local)
            total += theta - local
        theta = theta - total / len(data)
    return theta


@pytest.mark.parametrize("weights", list(Weights))
@pytest.mark.parametrize("unit", [Unit.RECORD, Unit.GROUP])
@pytest.mark.parametrize("reset", [False, True])
def test_the_path_is_algorithm_2(reset: bool, unit: Unit, weights: Weights) -> None:
    """Three clients, six rounds, keyed noise; one client misses round 2."""
    data = federation(3, 20)
    client = build("client", "localadamw", {**OPTIONS, "reset": reset}, unit=unit)
    plan = make_plan(client, data, 6, gaussian(Facts(0.8, unit=unit), 0.5), weights=weights)

    def absent(t: int, i: int) -> bool:
        return (t, i) == (2, 1)

    *_, (last, _, _) = walk(plan, data, absent)
    expected = algorithm_2(data, unit, 0.8, 0.5, 6, reset, absent)
    assert np.abs(last.params.numpy() - expected).max() < 2e-5
    assert np.abs(expected).max() > 0.1


def test_the_noise_on_a_mean_is_sigma_c_over_the_size() -> None:
    """Line 11 as printed has sigma C^2 / (sR): the draws here are the oracle's, with C once."""
    data = federation(1, 20)
    C, sigma = 3.0, 2.0
    options = {**OPTIONS, "steps": 1, "beta1": 0.0, "decay": 0.0, "eps": 1e3}
    plan = make_plan(build("client", "localadamw", options), data, 1, gaussian(Facts(C), sigma * C))
    start = clipped(unit_rows(np.zeros(SIZE), data[0], Unit.RECORD), C).sum(axis=0)
    g = (start + sigma * C * draw(0, 0, 0)) / 20
    # eps drowns the root, so that the step is rate g / eps to three digits
    assert end(plan, data) == pytest.approx(-OPTIONS["rate"] * g / 1e3, rel=5e-3)


@pytest.mark.long
@pytest.mark.slow
def test_kept_moments_reach_what_forgotten_ones_circle() -> None:
    """Without noise on clients that are alike: 1e-6 from the minimiser, against 1e-3."""
    from tests.helpers.scaffold_oracle import minimiser

    data = federation(3, 40, alike=True)
    goal, away = minimiser(data), {}
    for reset in (False, True):
        options = {"rate": 0.01, "decay": 0.0, "reset": reset}
        plan = make_plan(build("client", "localadamw", options), data, 100, clear(Facts(50.0)))
        away[reset] = np.abs(end(plan, data) - goal).max()
    assert away[False] < 1e-6
    assert 1e-3 < away[True] < 1e-2


def test_the_mean_gradient_of_the_oracle_is_the_problems() -> None:
    (data,) = federation(1, 12)
    (problem,) = problems([data])
    theta = np.linspace(-1, 1, SIZE)
    assert np.allclose(problem.gradient(torch.from_numpy(theta)).numpy(), mean_of(theta, data))
