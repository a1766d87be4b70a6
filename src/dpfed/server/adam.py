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

Without ``corrected`` only (1 - beta2^(t+1)) std^2 has entered v_t, and so much is taken out. It is
the mean's noise, taken to be the same in all rounds: put adam first in a chain. If it is not finite
nothing is subtracted. ``floor`` has the scale of G^2 and is to be tuned: v_hat_t strays from its
mean by about std^2 sqrt(2 / rounds), so a floor far below that allows steps of any size. The
default keeps the root at 0.01 or more, in the range over which Nair et al. 2026 tunes ``eps``.

All of it is a function of released quantities: post-processing, at no privacy cost.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from dpfed.core.chain import check_adaptive
from dpfed.core.errors import RecipeError
from dpfed.core.types import Aggregate, ServerOptimizer, Vector
from dpfed.core.vector import blocks

PAPER = "Reddi et al. 2021 (FedAdam); Kingma and Ba 2015; Tang et al. 2023 (DP-AdamBC)"


class AdamState(NamedTuple):
    """The two moments and the number of updates so far."""

    m: Vector
    v: Vector
    t: int


def adam(
    rate: float = 0.1,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    corrected: bool = True,
    debias: bool = False,
    floor: float = 1e-4,
) -> ServerOptimizer:
    """Adam on the private aggregate; ``debias`` takes the known noise out of its second moment."""
    check_adaptive("adam", rate, beta1, beta2, eps, usual_eps="1e-8")
    if not (math.isfinite(floor) and floor > 0):
        raise RecipeError(f"adam's floor is {floor}, and must be finite and above 0: try 0.0001")

    def init(params: Vector) -> AdamState:
        return AdamState(torch.zeros_like(params), torch.zeros_like(params), 0)

    def update(G: Vector, state: AdamState, seen: Aggregate) -> tuple[Vector, AdamState]:
        m, v, t = state
        return update_(G.clone(), AdamState(m.clone(), v.clone(), t), seen)

    def update_(G: Vector, state: AdamState, seen: Aggregate) -> tuple[Vector, AdamState]:
        """In one pass over memory, without a temporary: G's block turns into the direction's."""
        m, v, t = state
        weight1, weight2 = 1 - beta1 ** (t + 1), 1 - beta2 ** (t + 1)
        noise = weight2 * seen.std * seen.std if math.isfinite(seen.std) else 0.0
        scale1, scale2 = (1 / weight1, 1 / weight2) if corrected else (1.0, 1.0)
        for part in blocks(G.numel()):
            m[part].lerp_(G[part], 1 - beta1)
            v[part].mul_(beta2).addcmul_(G[part], G[part], value=1 - beta2)
            root = torch.mul(v[part], scale2, out=G[part])
            if debias:
                root.sub_(noise * scale2).clamp_(min=floor)
            torch.div(m[part], root.sqrt_().add_(eps), out=G[part]).mul_(rate * scale1)
        return G, AdamState(m, v, t + 1)

    return ServerOptimizer(init=init, update=update, update_=update_)
