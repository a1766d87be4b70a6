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
from dpfed.core.types import UPDATE, Aggregate, Facts, Weights
from dpfed.data.datasets import Records
from dpfed.data.models import Linear
from dpfed.mechanisms.gaussian import gaussian
from dpfed.server.sofim import sofim
from dpfed.server.sofim_printed import sofim_printed
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
            step = M_hat
        else:
            step = G / rho - M_hat * (M_hat @ G) / (rho**2 + rho * (M_hat @ M_hat))
        theta = theta - eta * step
        path.append(theta)
    return path


def test_seventy_rounds_of_sofim_with_warmup_are_the_papers() -> None:
    gradients = np.random.default_rng(0).normal(size=(ROUNDS, 50))
    expected = sofim_steps(gradients, RATE, BETA, RHO, WARMUP)
    optimizer = chain(
        sofim_printed(RHO, BETA, corrected=True, warmup=WARMUP),
        build("server", "scale", {"rate": RATE}),
    )
    params = torch.zeros(50, dtype=torch.float64)
    state = optimizer.init(params)
    for t, G in enumerate(torch.from_numpy(gradients)):
        assert optimizer.update_ is not None
        direction, state = optimizer.update_(G.clone(), state, Aggregate(t, params, G, 0.0, 1))
        params = params - direction
        assert np.abs(params.numpy() - expected[t]).max() < 1e-12


def algorithm1(clients, noise, C, s, T, step):  # type: ignore[no-untyped-def]
    """Lines 1 to 15 on a softmax head: one record at a time; ``step`` is lines 12 to 14."""
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
        M, by = step(t, M, G)
        W, b = W - by[: W.size].reshape(W.shape), b - by[W.size :]
    return np.concatenate([W.ravel(), b])


def printed(eta, beta, rho):  # type: ignore[no-untyped-def]
    """Algorithm 1 as printed: the inverse proxy times the gradient."""

    def step(_, M, G):  # type: ignore[no-untyped-def]
        M = beta * M + (1 - beta) * G
        return M, eta * (G / rho - M * (M @ G) / (rho**2 + rho * (M @ M)))

    return step


def untuned(T, K, C, std):  # type: ignore[no-untyped-def]
    """DP-FedSOFIM by the rule of docs/dp-fedsofim.md, as a dense solve."""
    keep = 1 - T**-0.5
    slow = 1 / (C * std * T**0.5)
    fast = K / C**2 * (1 + keep) / (1 - keep)
    rho = np.log(K) * max(1 / slow, 1 / fast)

    def step(t, M, G):  # type: ignore[no-untyped-def]
        M = keep * M + (1 - keep) * G
        hat = M / (1 - keep ** (t + 1))
        return M, np.log(K) * np.linalg.solve(np.outer(hat, hat) + rho * np.eye(len(M)), hat)

    return step


STEPS = {
    "printed": lambda *_: (printed(RATE, BETA, RHO), (sofim_printed(RHO, BETA), RATE)),
    "untuned": lambda C, std: (untuned(20, 3, C, std), (sofim("auto", classes=3), 1.0)),
}


@pytest.mark.parametrize("form", STEPS)
@pytest.mark.parametrize("noise_level", [2.0, 0.02])
@pytest.mark.parametrize("weights", [Weights.AVERAGE, Weights.SUM])
def test_the_path_is_algorithm_1(weights: Weights, noise_level: float, form: str) -> None:
    """20 rounds, 4 clients; of unequal size for the paper's average, equal for the sum.

    The first noise level is where the untuned rule is held back by noise, the second by stability.
    """
    rng = np.random.default_rng(1)
    sizes = [15, 30, 22, 9] if weights is Weights.AVERAGE else [20] * 4
    data = [(rng.normal(size=(m, 5)), rng.integers(0, 3, m)) for m in sizes]
    C, s, seed = 0.8, noise_level, 11
    std = s * np.sqrt(sum(m**-2.0 for m in sizes)) / 4
    steps, (optimizer, rate) = STEPS[form](C, std)
    model = Linear("softmax", 5, 3)
    problems = [
        model.problem(Records(torch.from_numpy(X).float(), torch.from_numpy(y))) for X, y in data
    ]
    plan = Plan(
        client=build("client", "gradient", {}),
        channels={UPDATE: gaussian(Facts(C), s)},
        sum=plain(),
        server=chain(optimizer, build("server", "scale", {"rate": rate})),
        nominal=sizes,
        rounds=20,
        weights=weights,
        noise=Noise(seed),
    )
    *_, (last, _) = rounds(plan, problems, model.initial(0))

    def noise(t: int, i: int) -> np.ndarray:
        return Noise(seed).stream("release", t, i, 0, UPDATE, 0).normal(18)

    expected = algorithm1(data, noise, C, s, 20, steps)
    assert np.abs(last.params.numpy() - expected).max() < 2e-5 * np.abs(expected).max()
