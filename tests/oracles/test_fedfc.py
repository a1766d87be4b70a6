# SPDX-License-Identifier: Apache-2.0
"""fedfc against Krouka et al.'s Algorithms 5 and 6 in NumPy: dense, one record at a time.

The oracle shares nothing with the package but the data and the noise draws; the eigenvalue floor is
written as the nearest positive semidefinite matrix.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dpfed.core.randomness import Noise
from dpfed.core.registry import build
from dpfed.core.types import UPDATE, Facts, Unit, Weights
from dpfed.data.datasets import Records
from dpfed.data.models import Linear
from dpfed.mechanisms.gaussian import gaussian
from dpfed.sums.plain import plain
from dpfed.training.inprocess import rounds
from dpfed.training.plan import Plan

CLASSES, FEATURES, SEED, ROUNDS = 3, 4, 9, 8
INPUTS = FEATURES + 1
SIZE = CLASSES * INPUTS
GAMMA, RADIUS, CLIP, ETA = 0.3, 1.5, 0.8, 0.6


def order() -> Any:
    index = np.arange(SIZE).reshape(CLASSES, INPUTS)
    return np.concatenate([index[:, :-1].ravel(), index[:, -1]])


def clip(v: Any, bound: float) -> Any:
    return v / max(1.0, np.linalg.norm(v) / bound)


def symmetric(normals: Any) -> Any:
    """Noise on an upper triangle: std 1 on the diagonal, 1/sqrt(2) on each of two twins."""
    E = np.zeros((INPUTS, INPUTS))
    for value, i, j in zip(normals, *np.triu_indices(INPUTS), strict=True):
        E[i, j] = E[j, i] = value if i == j else value / np.sqrt(2)
    return E


def gradients(theta: Any, X: Any, y: Any) -> Any:
    W = np.empty(SIZE)
    W[order()] = theta
    for x, label in zip(X, y, strict=True):
        scores = W.reshape(CLASSES, -1) @ x
        p = np.exp(scores - scores.max())
        yield np.outer(p / p.sum() - np.eye(CLASSES)[label], x)


def preconditioner(total: Any, divisor: float) -> Any:
    values, vectors = np.linalg.eigh(total / divisor)
    C = vectors @ np.diag(np.maximum(values, 0)) @ vectors.T
    return np.linalg.inv(C + GAMMA * np.eye(INPUTS))


def algorithm5(clients, cov_noise, noise, s_c, s, weights):  # type: ignore[no-untyped-def]
    """Record level; weights of a client's total are 1, or 1 / |D_i| for the paper's average."""
    C = np.zeros((INPUTS, INPUTS))
    for i, (X, _) in enumerate(clients):
        X = np.array([clip(x, RADIUS) for x in X])
        C += weights[i] * (X.T @ X + s_c * symmetric(cov_noise(i)))
    divisor = sum(w * len(X) for w, (X, _) in zip(weights, clients, strict=True))
    P = preconditioner(C, divisor)
    theta = np.zeros(SIZE)
    for k in range(ROUNDS):
        U = np.zeros(SIZE)
        for i, (X, y) in enumerate(clients):
            S = sum(clip(g, CLIP) for g in gradients(theta, X, y)).ravel()[order()]
            U += weights[i] * (S + s * noise(k, i)) / divisor
        M = np.empty(SIZE)
        M[order()] = U
        theta = theta - ETA * (M.reshape(CLASSES, -1) @ P).ravel()[order()]
    return theta


def algorithm6(clients, cov_noise, noise, s_c, s):  # type: ignore[no-untyped-def]
    """Client level: the preconditioned mean gradient is clipped; round 0 has I / gamma."""
    n = len(clients)
    C = sum(
        clip(X.T @ X / len(X), RADIUS**2) + s_c * symmetric(cov_noise(i))
        for i, (X, _) in enumerate(clients)
    )
    theta, P = np.zeros(SIZE), np.eye(INPUTS) / GAMMA
    for k in range(ROUNDS):
        U = np.zeros(SIZE)
        for i, (X, y) in enumerate(clients):
            g = np.mean(list(gradients(theta, X, y)), axis=0)
            U += (clip(g @ P, CLIP).ravel()[order()] + s * noise(k, i)) / n
        theta, P = theta - ETA * U, preconditioner(C, n)
    return theta


def clients_of(sizes: list[int]) -> list[tuple[Any, Any]]:
    """Features of single precision with a column of ones, on skewed axes."""
    rng = np.random.default_rng(2)
    skew = np.diag([1.5, 0.7, 0.3, 0.1])
    made = [(rng.normal(size=(m, FEATURES)) @ skew, rng.integers(0, CLASSES, m)) for m in sizes]
    return [(np.c_[X.astype(np.float32).astype(float), np.ones(len(X))], y) for X, y in made]


def cov_draws(i: int) -> Any:
    return (
        Noise(SEED).stream("release", 0, i, 0, "covariance", 0).normal(INPUTS * (INPUTS + 1) // 2)
    )


def draws(k: int, i: int) -> Any:
    return Noise(SEED).stream("release", k, i, 0, UPDATE, 0).normal(SIZE)


def run(data: Any, unit: Unit, s_c: float, s: float, weights: Weights = Weights.SUM) -> Any:
    model = Linear("softmax", FEATURES, CLASSES)
    options = {"gamma": GAMMA, "radius": RADIUS}
    client = build("client", "fedfc", options, unit=unit, layout=model.layout)
    covariance = client.channels["covariance"]
    channels = {
        UPDATE: gaussian(Facts(CLIP, unit=unit), s),
        "covariance": gaussian(
            Facts(covariance.clip, unit=unit, replace_bound=covariance.replace_bound), s_c
        ),
    }
    sizes = [len(X) for X, _ in data] if unit is Unit.RECORD else [1] * len(data)
    plan = Plan(
        client=client,
        channels=channels,
        sum=plain(),
        server=build("server", "scale", {"rate": ETA}),
        nominal=sizes,
        rounds=ROUNDS,
        weights=weights,
        noise=Noise(SEED),
    )
    problems = [
        model.problem(Records(torch.from_numpy(X[:, :-1]).float(), torch.from_numpy(y)))
        for X, y in data
    ]
    *_, (last, _) = rounds(plan, problems, model.initial(0))
    return last.params.numpy()


@pytest.mark.parametrize("weights", list(Weights))
@pytest.mark.parametrize(("s_c", "s"), [(1e-9, 1e-9), (1.0, 0.5), (30.0, 0.5)])
def test_the_path_is_algorithm_5(weights: Weights, s_c: float, s: float) -> None:
    """Without noise to speak of, with some, and with so much that the covariance is indefinite."""
    data = clients_of([15, 30, 22, 9])
    found = run(data, Unit.RECORD, s_c, s, weights)
    shares = [1.0 if weights is Weights.SUM else 1 / len(X) for X, _ in data]
    expected = algorithm5(data, cov_draws, draws, s_c, s, shares)
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize(("s_c", "s"), [(1e-9, 1e-9), (0.3, 0.05), (3.0, 0.05)])
def test_the_path_is_algorithm_6(s_c: float, s: float) -> None:
    data = clients_of([15, 30, 22, 9])
    found = run(data, Unit.CLIENT, s_c, s)
    expected = algorithm6(data, cov_draws, draws, s_c, s)
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


def test_the_loudest_noise_makes_the_covariance_indefinite() -> None:
    """The case that the floor is for is really among those above."""
    data = clients_of([15, 30, 22, 9])
    total = sum(X.T @ X + 30.0 * symmetric(cov_draws(i)) for i, (X, _) in enumerate(data))
    assert np.linalg.eigvalsh(total / 76 + GAMMA * np.eye(INPUTS)).min() < 0
