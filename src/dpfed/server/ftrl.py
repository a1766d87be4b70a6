# SPDX-License-Identifier: Apache-2.0
"""The server half of DP-FTRL with momentum: follow the leader over noisy prefix sums.

Kairouz et al. 2021, Algorithm 1 and its momentum variant DP-FTRLM; a baseline of Nair et al. 2026,
section 5.1. With G_t the aggregate and S_t = G_0 + ... + G_t its prefix sum, t = 0, 1, ...:

    v_t = momentum v_{t-1} + S_t,        v_{-1} = 0
    theta_{t+1} = theta_0 - rate v_t

(1 / rate is the paper's lambda.) theta_0 is fixed, and with u_t = v_t - v_{t-1} neither it nor S_t
need be kept:

    u_t = momentum (v_{t-1} - v_{t-2}) + (S_t - S_{t-1}) = momentum u_{t-1} + G_t,      u_{-1} = 0
    theta_{t+1} - theta_t = -rate (v_t - v_{t-1}) = -rate u_t,   so the direction is rate u_t

What sets DP-FTRL apart from plain momentum is the noise alone: a tree mechanism correlates that of
the G_t such that the noise of S_t stays small. The tree, with its restarts, is the mechanism's.

``restart`` starts again after that many rounds: theta_0 becomes the current point, and S, v and u
start from zero. 0 means never. Without momentum it changes nothing, as the sums then telescope.

All of it is a function of released quantities: post-processing, at no privacy cost.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from dpfed.core import Aggregate, ServerOptimizer, Vector
from dpfed.core.checks import check_at_least, check_decay, check_positive

PAPER = "Kairouz et al. 2021 (DP-FTRL)"


class FtrlState(NamedTuple):
    """The last change u of v, and the number of updates so far."""

    u: Vector
    t: int


def ftrl(rate: float = 1.0, momentum: float = 0.9, restart: int = 0) -> ServerOptimizer:
    """Follow the regularized leader, with momentum, over the noisy prefix sums.

    Args:
        rate: the size of a step, above 0: 1 / lambda.
        momentum: how much of the last change is kept, in [0, 1).
        restart: start again after this many rounds; 0 is never.

    Returns:
        a server optimizer that keeps one vector of the model's size.

    >>> import torch
    >>> from dpfed.core import Aggregate
    >>> G, optimizer = torch.tensor([3.0, 4.0]), ftrl(rate=0.5)
    >>> seen = Aggregate(round=0, params=torch.zeros(2), mean=G, std=0.1, clients=10)
    >>> optimizer.update(G, optimizer.init(seen.params), seen)[0]
    tensor([1.5000, 2.0000])
    """
    check_positive("ftrl", rate=rate)
    check_decay("ftrl", momentum=momentum)
    check_at_least(0, "ftrl", restart=restart)

    def init(params: Vector) -> FtrlState:
        return FtrlState(torch.zeros_like(params), 0)

    def kept(t: int) -> float:
        return 0.0 if restart and t % restart == 0 else momentum

    def update(G: Vector, state: FtrlState, _: Aggregate) -> tuple[Vector, FtrlState]:
        u = torch.add(G, state.u, alpha=kept(state.t))
        return u * rate, FtrlState(u, state.t + 1)

    def update_(G: Vector, state: FtrlState, _: Aggregate) -> tuple[Vector, FtrlState]:
        u = torch.add(G, state.u, alpha=kept(state.t), out=state.u)
        return torch.mul(u, rate, out=G), FtrlState(u, state.t + 1)

    return ServerOptimizer(init=init, update=update, update_=update_)
