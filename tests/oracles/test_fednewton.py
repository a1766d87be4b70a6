# SPDX-License-Identifier: Apache-2.0
"""fednewton against Newton's method, and against its two stages in NumPy with the same noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dpfed.core.randomness import Noise
from dpfed.core.registry import build
from dpfed.core.types import UPDATE, Facts, Unit
from dpfed.data.datasets import Records
from dpfed.data.models import Linear
from dpfed.mechanisms.gaussian import gaussian
from dpfed.recipes.build import plan_for
from dpfed.recipes.schema import parse
from dpfed.sums.plain import plain
from dpfed.training.inprocess import rounds
from dpfed.training.plan import Plan

FEATURES, SEED = 4, 3


def data_of(link: str, count: int, seed: int = 0) -> tuple[Any, Any]:
    """Labels that a model explains only in part, so that a minimiser exists."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(count, FEATURES)).astype(np.float32).astype(float)
    score = X @ [0.8, -0.5, 0.3, 0.0] + 0.2
    if link == "poisson":
        return X, rng.poisson(np.exp(score)).astype(float)
    if link == "logistic":
        return X, (rng.random(count) < 1 / (1 + np.exp(-score))).astype(float)
    return X, (score + rng.normal(size=count) > 0).astype(int) + (X[:, 3] > 0.5)


def derivatives(link, theta, X, y):  # type: ignore[no-untyped-def]
    """Per record: gradient and Hessian in nn.Linear's order (weights, then biases)."""
    classes = 3 if link == "softmax" else 1
    W = np.c_[theta[: classes * FEATURES].reshape(classes, -1), theta[classes * FEATURES :]]
    index = np.arange(W.size).reshape(W.shape)
    order = np.concatenate([index[:, :-1].ravel(), index[:, -1]])
    for x, target in zip(np.c_[X, np.ones(len(X))], y, strict=True):
        z = W @ x
        if link == "softmax":
            p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
            r, S = p - np.eye(3)[int(target)], np.diag(p) - np.outer(p, p)
        else:
            p = np.exp(z) if link == "poisson" else 1 / (1 + np.exp(-z))
            r, S = p - target, np.diag(p if link == "poisson" else p * (1 - p))
        H = np.kron(S, np.outer(x, x))
        yield np.outer(r, x).ravel()[order], H[np.ix_(order, order)]


def newton(link, X, y, steps, damping):  # type: ignore[no-untyped-def]
    theta = np.zeros((3 if link == "softmax" else 1) * (FEATURES + 1))
    path = []
    for _ in range(steps):
        rows = list(derivatives(link, theta, X, y))
        g, H = np.mean([r[0] for r in rows], axis=0), np.mean([r[1] for r in rows], axis=0)
        theta = theta - np.linalg.solve(H + damping * np.eye(len(g)), g)
        path.append(theta)
    return path


def problem_of(link: str, X: Any, y: Any) -> tuple[Linear, Any]:
    model = Linear(link, FEATURES, 3 if link == "softmax" else 1)
    labels = torch.from_numpy(y)
    labels = labels.long() if link != "poisson" else labels.float()
    return model, model.problem(Records(torch.from_numpy(X).float(), labels))


@pytest.mark.parametrize("unit", [Unit.RECORD, Unit.CLIENT])
@pytest.mark.parametrize(
    ("link", "damping"), [("logistic", 0.0), ("poisson", 0.0), ("softmax", 0.05)]
)
def test_one_client_without_noise_is_newtons_method(link: str, damping: float, unit: Unit) -> None:
    """Softmax needs the damping: a constant added to all scores changes nothing."""
    X, y = data_of(link, 60)
    expected = newton(link, X, y, 6, damping)
    model, problem = problem_of(link, X, y)
    recipe = parse(
        {
            "rounds": 6,
            "client": {"name": "fednewton", "start": 0, "damping": damping, "hessian": 1e4},
            "privacy": {"mechanism": "clear", "clip": 1e4, "unit": unit},
        }
    )
    plan = plan_for(recipe, [60.0 if unit is Unit.RECORD else 1.0], model.layout)
    for (state, _), theta in zip(rounds(plan, [problem], model.initial(0)), expected, strict=True):
        assert np.abs(state.params.numpy() - theta).max() < 1e-4 * np.abs(theta).max()


def clip(v: Any, bound: float) -> Any:
    return v / max(1.0, np.linalg.norm(v) / bound)


C, CH, S, SH, S0, STEPS, RATE, DAMPING = 0.7, 0.5, 0.4, 0.6, 0.9, 3, 0.5, 0.2


def two_stages(clients, noise, hessian_noise, start, T):  # type: ignore[no-untyped-def]
    """Record level: FedAvg's local steps, then (max(H~, 0) + damping)^{-1} g~ on each client."""
    theta = np.zeros(FEATURES + 1)
    for t in range(T):
        moved = np.zeros_like(theta)
        for i, (X, y) in enumerate(clients):
            local, m = theta.copy(), len(X)
            for call in range(STEPS if t < start else 0):
                G = sum(clip(g, C) for g, _ in derivatives("logistic", local, X, y))
                local -= RATE * (G + S0 * noise(t, i, "start", call)) / m
            if t >= start:
                rows = list(derivatives("logistic", theta, X, y))
                g = (sum(clip(g, C) for g, _ in rows) + S * noise(t, i, UPDATE, 0)) / m
                H = (sum(clip(h, CH) for _, h in rows) + SH * hessian_noise(t, i)) / m
                values, vectors = np.linalg.eigh(H)
                local -= vectors @ (vectors.T @ g / (np.maximum(values, 0) + DAMPING))
            moved += m * (theta - local)
        theta = theta - moved / sum(len(X) for X, _ in clients)
    return theta


def test_the_path_is_both_stages_with_the_noise_of_three_channels() -> None:
    data = [data_of("logistic", m, seed=m) for m in (14, 25, 40)]
    model = Linear("logistic", FEATURES)
    options = {
        "start": 2,
        "steps": STEPS,
        "rate": RATE,
        "hessian": CH,
        "damping": DAMPING,
    }
    client = build("client", "fednewton", options, unit=Unit.RECORD, layout=model.layout)
    channels = {
        UPDATE: gaussian(Facts(C), S),
        "hessian": gaussian(Facts(CH, replace_bound=np.sqrt(2) * CH), SH),
        "start": gaussian(Facts(C), S0),
    }
    sizes = [len(X) for X, _ in data]
    server = build("server", "scale", {"rate": 1.0})
    plan = Plan(
        client=client,
        channels=channels,
        sum=plain(),
        server=server,
        nominal=sizes,
        rounds=5,
        noise=Noise(SEED),
    )
    problems = [problem_of("logistic", X, y)[1] for X, y in data]
    *_, (last, _) = rounds(plan, problems, model.initial(0))

    def noise(t: int, i: int, channel: str, call: int) -> Any:
        return Noise(SEED).stream("release", t, i, 0, channel, call).normal(FEATURES + 1)

    def hessian_noise(t: int, i: int) -> Any:
        E = np.zeros((FEATURES + 1, FEATURES + 1))
        normals = Noise(SEED).stream("release", t, i, 0, "hessian", 0).normal(15)
        for value, a, b in zip(normals, *np.triu_indices(FEATURES + 1), strict=True):
            E[a, b] = E[b, a] = value if a == b else value / np.sqrt(2)
        return E

    expected = two_stages(data, noise, hessian_noise, 2, 5)
    assert np.abs(last.params.numpy() - expected).max() < 1e-5 * np.abs(expected).max()
