# SPDX-License-Identifier: Apache-2.0
"""A rate that follows from the number of rounds alone.

With T the plan's rounds, round t = 0 .. T - 1 has the rate

    rate_t = strength / sqrt(T) * (1 - t / T)

Put after ``adam(rate=1)``, whose direction has entries of about 1 whatever the clip, the noise and
the size of gradients. Where these are noise, the steps of a whole training are a random walk of a
length that does not depend on T, and the last steps are the smallest. All numbers are public.
lab/studies/networks-untuned has where the constant is from, and what was tried.
"""

from __future__ import annotations

import math

from dpfed.core import Aggregate, ServerOptimizer, Vector
from dpfed.core.checks import check_positive

PAPER = ""


def pace(strength: float = 0.5) -> ServerOptimizer:
    """Multiply the direction by a rate that follows from the plan's rounds and falls to 0.

    Args:
        strength: the first rate times the square root of the number of rounds, above 0.

    Returns:
        a server optimizer that keeps nothing, to be put last in a chain.

    >>> import torch
    >>> from dpfed.core import Aggregate
    >>> start, G, optimizer = torch.zeros(2), torch.ones(2), pace(strength=0.2)
    >>> seen = Aggregate(round=2, params=start, mean=G, std=0.1, clients=10, rounds=4)
    >>> optimizer.update(G, optimizer.init(start), seen)[0]
    tensor([0.0500, 0.0500])
    """
    check_positive("pace", strength=strength)

    def init(params: Vector) -> tuple[()]:
        del params
        return ()

    def rate(seen: Aggregate) -> float:
        T = max(1, seen.rounds)
        return strength / math.sqrt(T) * max(0.0, 1 - seen.round / T)

    def update(direction: Vector, state: tuple[()], seen: Aggregate) -> tuple[Vector, tuple[()]]:
        return direction * rate(seen), state

    def update_(direction: Vector, state: tuple[()], seen: Aggregate) -> tuple[Vector, tuple[()]]:
        return direction.mul_(rate(seen)), state

    return ServerOptimizer(init=init, update=update, update_=update_)
