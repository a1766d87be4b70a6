# SPDX-License-Identifier: Apache-2.0
"""The whole path against Nair et al.'s Algorithm 1, written out in NumPy from the paper alone.

The oracle shares nothing with the package but the data and the noise draws.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpfed.core.chain import chain
from dpfed.core.randomness import Noise
from dpfed.core.registry import build
from dpfed.core.types import UPDATE, Aggregate, Weights
from dpfed.data.datasets import Records
from dpfed.data.models import Linear
from dpfed.mechanisms.gaussian import gaussian
from dpfed.server.sofim import sofim
from dpfed.sums.plain import plain
from dpfed.training.inprocess import rounds
from dpfed.training.plan import Plan

ROUNDS, WARMUP, RHO, BETA, RATE = 70, 20, 0.7, 0.9, 0.4


def sofim_steps(gradients, eta, beta, rho, warmup):  # type: ignore[no-untyped-def]
    """Algorithm 1, lines 12 to 14, with section 5.1's correction and warm-up."""
    theta = np.zeros(gradients.shape[1])
    M = np.zeros_like(theta)
    path = []
    for t, G in enumerate(gradients):
        M = beta * M + (1 - beta) * G
        M_hat = M / (1 - beta ** (t + 1))
        if t < warmup:
            step = M_hat / rho
        else:
            step = G / rho - M_hat * (M_hat @ G) / (rho**2 + rho * (M_hat @ M_hat))
        theta = theta - eta * step
        path.append(theta)
    return path


def test_seventy_rounds_of_sofim_with_warmup_are_the_papers() -> None:
    gradients = np.random.default_rng(0).normal(size=(ROUNDS, 50))
    expected = sofim_steps(gradients, RATE, BETA, RHO, WARMUP)
    optimizer = chain(
        sofim(RHO, BETA, corrected=True, warmup=WARMUP), build("server", "scale", {"rate": RATE})
    )
    params = torch.zeros(50, dtype=torch.float64)
    state = optimizer.init(params)
    for t, G in enumerate(torch.from_numpy(gradients)):
        assert optimizer.update_ is not None
        direction, state = optimizer.update_(G.clone(), state, Aggregate(t, params, G, 0.0, 1))
        params = params - direction
        assert np.abs(params.numpy() - expected[t]).max() < 1e-12


def algorithm1(clients, noise, C, s, eta, beta, rho, T):  # type: ignore[no-untyped-def]
    """Lines 1 to 15 on a softmax head: one record at a time."""
    (features, classes) = clients[0][0].shape[1], 3
    W, b = np.zeros((classes, features)), np.zeros(classes)
    M = np.zeros(W.size + b.size)
    for t in range(T):
        G = np.zeros_like(M)
        for i, (X, y) in enumerate(clients):
            S = np.zeros_like(M)
            for x, label in zip(X, y, strict=True):
                p = np.exp(W @ x + b - (W @ x + b).max())
                r = p / p.sum() - np.eye(classes)[label]
                g = np.concatenate([np.outer(r, x).ravel(), r])
                S += g / max(1, np.linalg.norm(g) / C)
            G += (S + s * noise(t, i)) / len(X) / len(clients)
        M = beta * M + (1 - beta) * G
        step = G / rho - M * (M @ G) / (rho**2 + rho * (M @ M))
        W, b = W - eta * step[: W.size].reshape(W.shape), b - eta * step[W.size :]
    return np.concatenate([W.ravel(), b])


@pytest.mark.parametrize("weights", [Weights.AVERAGE, Weights.SUM])
def test_the_path_is_algorithm_1(weights: Weights) -> None:
    """20 rounds, 4 clients; of unequal size for the paper's average, equal for the sum."""
    rng = np.random.default_rng(1)
    sizes = [15, 30, 22, 9] if weights is Weights.AVERAGE else [20] * 4
    data = [(rng.normal(size=(m, 5)), rng.integers(0, 3, m)) for m in sizes]
    C, s, seed = 0.8, 2.0, 11
    model = Linear("softmax", 5, 3)
    problems = [
        model.problem(Records(torch.from_numpy(X).float(), torch.from_numpy(y))) for X, y in data
    ]
    plan = Plan(
        client=build("client", "gradient", {}),
        channels={UPDATE: gaussian(C, s)},
        sum=plain(),
        server=chain(sofim(RHO, BETA), build("server", "scale", {"rate": RATE})),
        nominal=sizes,
        rounds=20,
        weights=weights,
        noise=Noise(seed),
    )
    *_, (last, _) = rounds(plan, problems, model.initial(0))

    def noise(t: int, i: int) -> np.ndarray:
        return Noise(seed).stream("release", t, i, 0, UPDATE, 0).normal(18)

    expected = algorithm1(data, noise, C, s, RATE, BETA, RHO, 20)
    assert np.abs(last.params.numpy() - expected).max() < 2e-5 * np.abs(expected).max()
