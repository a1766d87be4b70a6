# SPDX-License-Identifier: Apache-2.0
"""DP-FedSOFIM in plain NumPy, from the paper and facts of its authors' runs, before reading ours.

Nair, Sen, Sen and Banerjee, "DP-FedSOFIM" (arXiv 2601.09166v3): equations (1) and (2), Algorithm 1,
section 5.1's warm-up, Appendix E. The facts, of github.com/sid0nair/DP-FedSOFIM_V2 at 356fb0df
(V2) and sid0nair/DP-FedSOFIM at 266ae07 (V1):

    the step preconditions the momentum, and warm-up is not     V2 train.py, DPFedGDServerSOFIM
        divided by rho
    the bias is a column of ones, inside of the clipped norm    V1 train.py, lines 300 to 351
    the start is random                                         V1 train.py, lines 1159 to 1174
    settings by epsilon                                         V2 run_dp_fedgd_experiments.py

One record after another, one client after another. Standard normals are arguments; what scales them
is in here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Settings:
    """What the authors' runner sets for one epsilon. `warmup` rounds step by the momentum alone."""

    epsilon: float
    eta: float
    rho: float
    beta: float
    corrected: bool
    warmup: int


AUTHORS = (
    Settings(0.5, eta=0.2, rho=0.5, beta=0.95, corrected=True, warmup=10),
    Settings(1.0, eta=3.0, rho=10.0, beta=0.8, corrected=True, warmup=0),
    Settings(5.0, eta=0.8, rho=0.5, beta=0.9, corrected=False, warmup=0),
    Settings(10.0, eta=0.8, rho=0.5, beta=0.9, corrected=False, warmup=0),
)
CLIP, DELTA, CLIENTS, ROUNDS = 10.0, 1e-5, 20, 70


def normal_cdf(x: float) -> float:
    """The standard normal's distribution function."""
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


def delta_of(sigma: float, epsilon: float, rounds: int, clients: int) -> float:
    """Appendix E's last display: delta(epsilon) after all rounds with the multiplier sigma_g."""
    root = math.sqrt(clients * rounds)
    a, b = root / sigma, epsilon * sigma / (2.0 * root)
    return normal_cdf(a - b) - math.exp(epsilon) * normal_cdf(-a - b)


def multiplier(epsilon: float, delta: float, rounds: int, clients: int) -> float:
    """The smallest sigma_g whose delta(epsilon) is at most delta, by bisection."""
    low, high = 1e-6, 1.0
    while delta_of(high, epsilon, rounds, clients) > delta:
        high *= 2.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (
            (middle, high) if delta_of(middle, epsilon, rounds, clients) > delta else (low, middle)
        )
    return high


def client_std(epsilon: float, delta: float, rounds: int, clients: int, clip: float) -> float:
    """The std of the noise on one client's sum: C sigma_g / sqrt(n), equation (2)."""
    return clip * multiplier(epsilon, delta, rounds, clients) / math.sqrt(clients)


def start(normals: Array) -> Array:
    """The authors' random start: a row per feature and one for the bias, half of Glorot's std."""
    rows, classes = normals.shape
    return 0.5 * math.sqrt(2.0 / (rows + classes)) * normals


def gradient(theta: Array, row: Array, label: int) -> Array:
    """The gradient of softmax cross-entropy at one record; the last of theta's rows is the bias."""
    x = np.append(row, 1.0)
    scores = x @ theta
    odds = np.exp(scores - scores.max())
    error = odds / odds.sum()
    error[label] -= 1.0
    return np.asarray(np.outer(x, error))


def release(
    theta: Array, rows: Array, labels: Array, clip: float, std: float, normals: Array
) -> Array:
    """Equations (1) and (2): the sum of clipped gradients, with noise, over the client's size."""
    total = np.zeros_like(theta)
    for row, label in zip(rows, labels, strict=True):
        g = gradient(theta, row, label)
        total += g * min(1.0, clip / np.linalg.norm(g))
    return (total + std * normals) / len(rows)


def preconditioned(vector: Array, proxy: Array, rho: float) -> Array:
    """(proxy proxy^T + rho I)^-1 vector, as a linear system: no Sherman-Morrison."""
    m = proxy.ravel()
    return np.linalg.solve(np.outer(m, m) + rho * np.eye(m.size), vector.ravel()).reshape(
        vector.shape
    )


def train(
    theta: Array,
    clients: Sequence[tuple[Array, Array]],
    settings: Settings,
    clip: float,
    std: float,
    normals: Sequence[Sequence[Array]],
    printed: bool = False,
) -> list[Array]:
    """The model after each round.

    Args:
        theta: the start.
        clients: each one's rows and labels.
        settings: of the server's step.
        clip: the bound of a record's gradient.
        std: of the noise on a client's sum.
        normals: by round and client, the standard normals that noise is made of.
        printed: precondition the aggregate, as Algorithm 1 does, and not the momentum.
    """
    memory, path = np.zeros_like(theta), []
    for t, drawn in enumerate(normals, start=1):
        releases = [
            release(theta, rows, labels, clip, std, z)
            for (rows, labels), z in zip(clients, drawn, strict=True)
        ]
        aggregate = np.mean(releases, axis=0)
        memory = settings.beta * memory + (1.0 - settings.beta) * aggregate
        proxy = memory / (1.0 - settings.beta**t) if settings.corrected else memory
        if t <= settings.warmup:
            step = proxy
        else:
            step = preconditioned(aggregate if printed else proxy, proxy, settings.rho)
        theta = theta - settings.eta * step
        path.append(theta)
    return path
