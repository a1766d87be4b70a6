# SPDX-License-Identifier: Apache-2.0
"""A rate that changes with the round t = 0, 1, ..., rounds - 1.

constant    eta
cosine      floor + (eta - floor) (1 + cos(pi t / rounds)) / 2
inverse     max(floor, eta / (1 + t / period))               the 1/t decay
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dpfed.core import Aggregate, ServerOptimizer, State, Vector, stateless
from dpfed.core.checks import check_at_least, check_positive, refuse

PAPER = "Loshchilov and Hutter 2017 (cosine); Robbins and Monro 1951 (1/t)"


def rates(
    rate: float, shape: str, rounds: int, period: float, floor: float
) -> Callable[[int], float]:
    """The rate as a function of the round.

    Args:
        rate: the rate of round 0.
        shape: constant, cosine or inverse.
        rounds: where cosine ends.
        period: after how many rounds inverse has halved the rate.
        floor: the least rate.
    """

    def cosine(t: int) -> float:
        return floor + (rate - floor) * (1 + math.cos(math.pi * min(t, rounds) / rounds)) / 2

    def inverse(t: int) -> float:
        return max(floor, rate / (1 + t / period))

    shapes: dict[str, Callable[[int], float]] = {
        "constant": lambda _: rate,
        "cosine": cosine,
        "inverse": inverse,
    }
    if shape not in shapes:
        raise refuse("schedule.shape", f"one of {', '.join(shapes)}", shape)
    return shapes[shape]


def schedule(
    rate: float = 1.0,
    shape: str = "cosine",
    rounds: int = 70,
    period: float = 10.0,
    floor: float = 0.0,
) -> ServerOptimizer:
    """Multiply the direction by a rate that follows a schedule (constant, cosine, inverse).

    Args:
        rate: the rate of round 0.
        shape: constant, cosine or inverse.
        rounds: where cosine ends, at least 1: the run's rounds.
        period: after how many rounds inverse has halved the rate, above 0.
        floor: the least rate.

    Returns:
        a server optimizer without state, to be put last in a chain.

    >>> import torch
    >>> from dpfed.core import Aggregate
    >>> G, optimizer = torch.tensor([3.0, 4.0]), schedule(rate=0.5, shape="cosine", rounds=70)
    >>> seen = Aggregate(round=0, params=torch.zeros(2), mean=G, std=0.1, clients=10)
    >>> optimizer.update(G, optimizer.init(seen.params), seen)[0]
    tensor([1.5000, 2.0000])
    """
    check_at_least(1, "schedule", rounds=rounds)
    check_positive("schedule", period=period)
    at = rates(rate, shape, rounds, period, floor)

    def update(direction: Vector, state: State, seen: Aggregate) -> tuple[Vector, State]:
        return direction * at(seen.round), state

    def update_(direction: Vector, state: State, seen: Aggregate) -> tuple[Vector, State]:
        return direction.mul_(at(seen.round)), state

    return ServerOptimizer(init=stateless, update=update, update_=update_)
