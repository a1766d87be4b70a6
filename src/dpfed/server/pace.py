# SPDX-License-Identifier: Apache-2.0
"""A rate that follows from the size of the start and the number of rounds: nothing to tune.

With theta_0 the d initial parameters and T the plan's rounds, round t = 0 .. T - 1 has the rate

    rate_t = strength * max(|theta_0| / sqrt(d), least) / sqrt(T) * (1 - t / T)

Put after ``adam(rate=1)``, whose direction has entries of about 1 whatever the clip, the noise and
the size of gradients: under noise the steps of a whole training then add up to a random walk of
about 0.4 ``strength`` times the typical size of a parameter, and the last steps are the smallest.
All numbers are public. lab/studies/networks-untuned has the constants, and what was tried.
"""

from __future__ import annotations

import math

from dpfed.core import Aggregate, ServerOptimizer, Vector
from dpfed.core.checks import check_positive

PAPER = ""


def pace(strength: float = 3.0, least: float = 0.01) -> ServerOptimizer:
    """Multiply the direction by a rate that follows from the start and falls to 0.

    Args:
        strength: how far a training may go, in typical sizes of an initial parameter, above 0.
        least: the size that parameters count as at least, above 0: some models start at 0.

    Returns:
        a server optimizer that keeps one number, to be put last in a chain.

    >>> import torch
    >>> from dpfed.core import Aggregate
    >>> start, G, optimizer = torch.full((2,), 0.1), torch.ones(2), pace(strength=2.0)
    >>> seen = Aggregate(round=0, params=start, mean=G, std=0.1, clients=10, rounds=4)
    >>> optimizer.update(G, optimizer.init(start), seen)[0]
    tensor([0.1000, 0.1000])
    """
    check_positive("pace", strength=strength, least=least)

    def init(params: Vector) -> float:
        size = float(params.double().norm()) / math.sqrt(max(1, params.numel()))
        return max(size, least)

    def rate(size: float, seen: Aggregate) -> float:
        T = max(1, seen.rounds)
        return strength * size / math.sqrt(T) * max(0.0, 1 - seen.round / T)

    def update(direction: Vector, size: float, seen: Aggregate) -> tuple[Vector, float]:
        return direction * rate(size, seen), size

    def update_(direction: Vector, size: float, seen: Aggregate) -> tuple[Vector, float]:
        return direction.mul_(rate(size, seen)), size

    return ServerOptimizer(init=init, update=update, update_=update_)
