# SPDX-License-Identifier: Apache-2.0
"""DP-FedSOFIM in plain NumPy, written from the paper and from facts about its authors' runs, before any code of ours was read.

Nair, Sen, Sen and Banerjee, "DP-FedSOFIM" (arXiv 2601.09166v3): equations (1) and (2), Algorithm 1, section 3.4.4's warm-up, Appendix E.
The facts, of github.com/sid0nair/DP-FedSOFIM_V2 at 356fb0df: the step preconditions the momentum (train.py, class
DPFedGDServerSOFIM); the rate of the warm-up is not divided by rho (same method); the bias is a column of ones, so that it counts in the
clipped norm, and the start is random (train.py of V1 at 266ae07, lines 300 to 351 and 1159 to 1174); settings by epsilon
(run_dp_fedgd_experiments.py).

One record after another, one client after another. Standard normals are arguments: what scales them is in here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


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


def normal_cdf(x):
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


def delta_of(sigma, epsilon, rounds, clients):
    """Appendix E's last display: delta(epsilon) after `rounds` releases with the multiplier sigma_g."""
    root = math.sqrt(clients * rounds)
    a, b = root / sigma, epsilon * sigma / (2.0 * root)
    return normal_cdf(a - b) - math.exp(epsilon) * normal_cdf(-a - b)


def multiplier(epsilon, delta, rounds, clients):
    """The smallest sigma_g whose delta(epsilon) is at most delta, by bisection, as Appendix E says."""
    low, high = 1e-6, 1.0
    while delta_of(high, epsilon, rounds, clients) > delta:
        high *= 2.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if delta_of(middle, epsilon, rounds, clients) > delta else (low, middle)
    return high


def client_std(epsilon, delta, rounds, clients, clip):
    """The std of the noise on one client's sum: C sigma_g / sqrt(n), equation (2)."""
    return clip * multiplier(epsilon, delta, rounds, clients) / math.sqrt(clients)


def start(normals):
    """The authors' random start: [features + 1, classes] standard normals, times half of Glorot's std."""
    rows, classes = normals.shape
    return 0.5 * math.sqrt(2.0 / (rows + classes)) * normals


def gradient(theta, row, label):
    """The gradient of softmax cross-entropy at one record; the last of theta's rows is the bias."""
    x = np.append(row, 1.0)
    scores = x @ theta
    odds = np.exp(scores - scores.max())
    error = odds / odds.sum()
    error[label] -= 1.0
    return np.outer(x, error)


def release(theta, rows, labels, clip, std, normals):
    """Equations (1) and (2): the sum of clipped gradients and noise, divided by the client's own number of records."""
    total = np.zeros_like(theta)
    for row, label in zip(rows, labels, strict=True):
        g = gradient(theta, row, label)
        total += g * min(1.0, clip / np.linalg.norm(g))
    return (total + std * normals) / len(rows)


def preconditioned(vector, proxy, rho):
    """(proxy proxy^T + rho I)^-1 vector, as a linear system: no Sherman-Morrison."""
    m = proxy.ravel()
    return np.linalg.solve(np.outer(m, m) + rho * np.eye(m.size), vector.ravel()).reshape(vector.shape)


def train(theta, clients, settings, clip, std, normals, printed=False):
    """The model after each round. normals[t][i]: round t's standard normals of client i. printed: H G (Algorithm 1), else H M."""
    memory, path = np.zeros_like(theta), []
    for t, drawn in enumerate(normals, start=1):
        releases = [release(theta, rows, labels, clip, std, z) for (rows, labels), z in zip(clients, drawn, strict=True)]
        aggregate = sum(releases) / len(releases)
        memory = settings.beta * memory + (1.0 - settings.beta) * aggregate
        proxy = memory / (1.0 - settings.beta**t) if settings.corrected else memory
        if t <= settings.warmup:
            step = proxy
        else:
            step = preconditioned(aggregate if printed else proxy, proxy, settings.rho)
        theta = theta - settings.eta * step
        path.append(theta)
    return path
