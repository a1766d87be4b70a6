# SPDX-License-Identifier: Apache-2.0
"""DP-FedYogi's server: Adam with a second moment that moves by additions.

Nair et al. 2026, section 5.1; Reddi et al. 2021, Algorithm 2; Zaheer et al. 2018. With G_t the
aggregate, t = 0, 1, ..., and squares, signs and roots taken by coordinate:

    m_t = beta1 m_{t-1} + (1 - beta1) G_t,                                m_{-1} = 0
    v_t = v_{t-1} - (1 - beta2) sign(v_{t-1} - G_t^2) G_t^2,              v_{-1} = 0
    direction  rate m_hat_t / (sqrt(v_hat_t) + eps)

v_t moves by at most (1 - beta2) G_t^2, so one round of small aggregates cannot make the next steps
long; nor can it fall below 0, since it only falls where it is above G_t^2.

``corrected`` divides m_t by 1 - beta1^(t+1) and v_t by 1 - beta2^(t+1), as Adam does. The first
step is then rate G_0 / (|G_0| + eps) whatever the betas; without it m_hat_t = m_t and v_hat_t = v_t
(Reddi et al.). The default of ``eps`` is the one of Zaheer et al.

All of it is a function of released quantities: post-processing, at no privacy cost.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from dpfed.core.chain import check_adaptive
from dpfed.core.types import Aggregate, ServerOptimizer, Vector
from dpfed.core.vector import blocks

PAPER = "Reddi et al. 2021 (FedYogi); Zaheer et al. 2018"


class YogiState(NamedTuple):
    """The two moments and the number of updates so far."""

    m: Vector
    v: Vector
    t: int


def yogi(
    rate: float = 0.1,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-3,
    corrected: bool = True,
) -> ServerOptimizer:
    """Adam with an additive second moment, on the private aggregate."""
    check_adaptive("yogi", rate, beta1, beta2, eps, usual_eps="1e-3")

    def init(params: Vector) -> YogiState:
        return YogiState(torch.zeros_like(params), torch.zeros_like(params), 0)

    def factor(beta: float, t: int) -> float:
        return 1 / (1 - beta ** (t + 1)) if corrected else 1.0

    def update(G: Vector, state: YogiState, seen: Aggregate) -> tuple[Vector, YogiState]:
        m, v, t = state
        return update_(G.clone(), YogiState(m.clone(), v.clone(), t), seen)

    def update_(G: Vector, state: YogiState, _: Aggregate) -> tuple[Vector, YogiState]:
        """In one pass over memory: temporaries are a block long, G turns into the direction."""
        m, v, t = state
        for part in blocks(G.numel()):
            m[part].lerp_(G[part], 1 - beta1)
            square = G[part].square()
            v[part].addcmul_(torch.sign(v[part] - square), square, value=beta2 - 1)
            torch.mul(v[part], factor(beta2, t), out=G[part]).sqrt_().add_(eps)
            torch.div(m[part], G[part], out=G[part]).mul_(rate * factor(beta1, t))
        return G, YogiState(m, v, t + 1)

    return ServerOptimizer(init=init, update=update, update_=update_)
