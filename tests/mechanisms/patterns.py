# SPDX-License-Identifier: Apache-2.0
"""The worst unit by brute force: all patterns of participations, and all signs of what is added."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np


def lower(column: list[float], n: int) -> np.ndarray:
    """The lower triangular Toeplitz matrix with this first column."""
    C = np.zeros((n, n))
    for lag, value in enumerate(column[:n]):
        C += value * np.eye(n, k=-lag)
    return C


def node_matrix(n: int) -> np.ndarray:
    """Which steps the node covers that each step of a tree opens."""
    C = np.zeros((n, n))
    for t in range(1, n + 1):
        C[t - 1, t - (t & -t) : t] = 1.0
    return C


def patterns(n: int, b: int, k: int, begin: int = 0) -> Iterator[list[int]]:
    """All sets of up to k steps of n that are at least b apart."""
    yield []
    if k:
        for first in range(begin, n):
            for rest in patterns(n, b, k - 1, first + b):
                yield [first, *rest]


def worst(C: np.ndarray, b: int, k: int) -> float:
    """The largest squared norm that a unit can add to C S, with 1 or -1 in each step it is in."""
    most = 0.0
    for steps in patterns(len(C), b, k):
        for signs in product([1.0, -1.0], repeat=max(0, len(steps) - 1)):
            u = np.zeros(len(C))
            u[steps] = [1.0, *signs][: len(steps)]
            most = max(most, float(np.square(C @ u).sum()))
    return most
