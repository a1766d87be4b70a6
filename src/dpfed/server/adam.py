# SPDX-License-Identifier: Apache-2.0
"""DP-FedAdam's server: Adam on the private aggregate.

Nair et al. 2026, section 5.1; Reddi et al. 2021, Algorithm 2; Kingma and Ba 2015, Algorithm 1. With
G_t the aggregate, t = 0, 1, ..., and squares and roots taken by coordinate:

    m_t = beta1 m_{t-1} + (1 - beta1) G_t,                m_{-1} = 0
    v_t = beta2 v_{t-1} + (1 - beta2) G_t^2,              v_{-1} = 0
    direction  rate m_hat_t / (sqrt(v_hat_t) + eps)

``corrected`` (Kingma and Ba) puts m_hat_t = m_t / (1 - beta1^(t+1)), and v_hat_t likewise; without
it (Reddi et al.) m_hat_t = m_t and v_hat_t = v_t.

``debias`` is DP-AdamBC (Tang et al. 2023). The noise adds its variance std^2 to the mean of every
v_hat_t, which makes all coordinates look alike; std is public, so it is taken out again:

    v_hat_t <- max(v_hat_t - std^2, floor)

Without ``corrected`` only (1 - beta2^(t+1)) std^2 has entered v_t, and so much is taken out. std is
the noise of the mean, assumed to be the same in all rounds: so put adam first in a chain. If std is
not finite, nothing is subtracted. ``floor`` has the scale of G^2 and is to be tuned: v_hat_t varies
around its mean by about std^2 sqrt(2 / rounds), so a floor far below that allows steps of any size.
The default keeps the root at 0.01 or more, in the range over which Nair et al. 2026 tunes ``eps``.

All of it is a function of released quantities: post-processing, at no privacy cost.
"""

from __future__ import annotations

import math

from dpfed.core import Aggregate, ServerOptimizer, Vector
from dpfed.core.checks import check_positive
from dpfed.server._moments import Moments

PAPER = "Reddi et al. 2021 (FedAdam); Kingma and Ba 2015; Tang et al. 2023 (DP-AdamBC)"


def adam(
    rate: float = 0.1,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    corrected: bool = True,
    debias: bool = False,
    floor: float = 1e-4,
) -> ServerOptimizer:
    """Adam on the private aggregate; ``debias`` takes the known noise out of its second moment.

    Args:
        rate: the length of a step, above 0.
        beta1: how much of the first moment is kept per round, in [0, 1).
        beta2: how much of the second moment is kept per round, in [0, 1).
        eps: added to the root of the second moment, in units of the aggregate.
        corrected: divide the moments by the weight that they have gathered so far.
        debias: subtract the noise's known variance from the second moment.
        floor: the least that debias leaves of it, in units of the squared aggregate, above 0.

    Returns:
        a server optimizer that keeps two vectors of the model's size.

    >>> import torch
    >>> from dpfed.core import Aggregate
    >>> G, optimizer = torch.tensor([3.0, 4.0]), adam(rate=0.1)
    >>> seen = Aggregate(round=0, params=torch.zeros(2), mean=G, std=0.1, clients=10)
    >>> optimizer.update(G, optimizer.init(seen.params), seen)[0]
    tensor([0.1000, 0.1000])
    """
    moments = Moments("adam", rate, beta1=beta1, beta2=beta2, eps=eps, corrected=corrected)
    check_positive("adam", floor=floor)

    def second(v: Vector, G: Vector) -> None:
        v.mul_(beta2).addcmul_(G, G, value=1 - beta2)

    def without_noise(root: Vector, t: int, seen: Aggregate) -> None:
        weight = 1 - beta2 ** (t + 1)
        noise = weight * seen.std * seen.std if math.isfinite(seen.std) else 0.0
        root.sub_(noise * moments.scale(beta2, t)).clamp_(min=floor)

    return moments.optimizer(second, without_noise if debias else None)
