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

import torch

from dpfed.core import ServerOptimizer, Vector
from dpfed.server._moments import Moments

PAPER = "Reddi et al. 2021 (FedYogi); Zaheer et al. 2018"


def yogi(
    rate: float = 0.1,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-3,
    corrected: bool = True,
) -> ServerOptimizer:
    """Adam with an additive second moment, on the private aggregate.

    Args:
        rate: the length of a step, above 0.
        beta1: how much of the first moment is kept per round, in [0, 1).
        beta2: how slowly the second moment moves, in [0, 1).
        eps: added to the root of the second moment, in units of the aggregate.
        corrected: divide the moments by the weight that they have gathered so far.

    Returns:
        a server optimizer that keeps two vectors of the model's size.

    >>> import torch
    >>> from dpfed.core import Aggregate
    >>> G, optimizer = torch.tensor([3.0, 4.0]), yogi(rate=0.1)
    >>> seen = Aggregate(round=0, params=torch.zeros(2), mean=G, std=0.1, clients=10)
    >>> optimizer.update(G, optimizer.init(seen.params), seen)[0]
    tensor([0.1000, 0.1000])
    """
    moments = Moments("yogi", rate, beta1=beta1, beta2=beta2, eps=eps, corrected=corrected)

    def second(v: Vector, G: Vector) -> None:
        square = G.square()
        v.addcmul_(torch.sign(v - square), square, value=beta2 - 1)

    return moments.optimizer(second)
