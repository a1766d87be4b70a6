# SPDX-License-Identifier: Apache-2.0
"""Exponential moving average of the aggregates: the EMA-only ablation of DP-FedSOFIM.

Nair et al. 2026, section H.1, without the Sherman-Morrison step:

    M_t = beta M_{t-1} + (1 - beta) G_t,  M_{-1} = 0;     direction M_t
                                     with ``corrected``:  M_t / (1 - beta^(t+1))
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from dpfed.core import Aggregate, ServerOptimizer, Vector
from dpfed.core.checks import check_decay

PAPER = "Nair et al. 2026, H.1 (EMA-only)"


class EmaState(NamedTuple):
    """M and the number of updates so far."""

    M: Vector
    t: int


def ema(beta: float = 0.9, corrected: bool = False) -> ServerOptimizer:
    """The moving average of the aggregates as the direction.

    Args:
        beta: how much of the average is kept per round, in [0, 1).
        corrected: divide the average by the weight that it has gathered so far.

    Returns:
        a server optimizer that keeps one vector of the model's size.

    >>> import torch
    >>> from dpfed.core import Aggregate
    >>> G, optimizer = torch.tensor([3.0, 4.0]), ema(beta=0.9)
    >>> seen = Aggregate(round=0, params=torch.zeros(2), mean=G, std=0.1, clients=10)
    >>> optimizer.update(G, optimizer.init(seen.params), seen)[0]
    tensor([0.3000, 0.4000])
    """
    check_decay("ema", beta=beta)

    def init(params: Vector) -> EmaState:
        return EmaState(torch.zeros_like(params), 0)

    def factor(t: int) -> float:
        return 1 / (1 - beta ** (t + 1)) if corrected else 1.0

    def update(direction: Vector, state: EmaState, _: Aggregate) -> tuple[Vector, EmaState]:
        M = torch.lerp(state.M, direction, 1 - beta)
        return M * factor(state.t), EmaState(M, state.t + 1)

    def update_(direction: Vector, state: EmaState, _: Aggregate) -> tuple[Vector, EmaState]:
        M = state.M.lerp_(direction, 1 - beta)
        return torch.mul(M, factor(state.t), out=direction), EmaState(M, state.t + 1)

    return ServerOptimizer(init=init, update=update, update_=update_)
