# SPDX-License-Identifier: Apache-2.0
"""DP-FedSOFIM: precondition the private aggregate by a rank-one Fisher proxy, in O(d).

Nair et al. 2026, sections 3.4 and 5.1, Algorithm 1, lines 12 and 13. With G_t the aggregate:

    M_t = beta M_{t-1} + (1 - beta) G_t,                M_{-1} = 0
    H_t = (M_t M_t^T + rho I)^{-1}
    H_t G_t = G_t / rho - M_t (M_t . G_t) / (rho^2 + rho |M_t|^2)          (Sherman-Morrison)

``corrected`` (the paper: for epsilon <= 1) puts M_hat_t = M_t / (1 - beta^(t+1)) into the proxy.

``ramp`` is the paper's warm start: q_t = (1 - lambda_t) G_t / rho + lambda_t H_t G_t, with lambda_t
rising linearly from 0 to 1 over that many rounds.

``warmup`` is its delayed start (20 rounds at epsilon = 0.5): EMA-only steps before the first
preconditioned one. The paper does not give their size. Here the direction is M_hat_t / rho, which
meets lambda_t = 0 without a jump in scale; ``warmup_by_rho=False`` gives M_hat_t.

All of it is a function of released quantities: post-processing, at no privacy cost.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from dpfed.core import Aggregate, ServerOptimizer, Vector
from dpfed.core.checks import at_least, decay, positive
from dpfed.core.vector import blocks, dot

PAPER = "Nair et al. 2026 (DP-FedSOFIM)"


class SofimState(NamedTuple):
    """The momentum buffer M and the number of updates so far."""

    M: Vector
    t: int


class _Options(NamedTuple):
    rho: float
    beta: float
    corrected: bool
    ramp: int
    warmup: int
    warmup_by_rho: bool


def sofim(
    rho: float = 1.0,
    beta: float = 0.9,
    corrected: bool = False,
    ramp: int = 0,
    warmup: int = 0,
    warmup_by_rho: bool = True,
) -> ServerOptimizer:
    """Rank-one natural-gradient preconditioning of the private aggregate.

    Args:
        rho: added to the proxy's diagonal, above 0; the step is at most the aggregate over rho.
        beta: how much of the momentum buffer is kept per round, in [0, 1).
        corrected: divide the buffer by the weight that it has gathered so far.
        ramp: rounds over which the preconditioner's strength rises from 0 to 1; 0 is at once.
        warmup: rounds of EMA-only steps before the first preconditioned one.
        warmup_by_rho: divide these steps by rho, so that no jump in scale follows.
    """
    positive("sofim", rho=rho)
    decay("sofim", beta=beta)
    at_least(0, "sofim", ramp=ramp, warmup=warmup)
    options = _Options(
        rho=rho, beta=beta, corrected=corrected, ramp=ramp, warmup=warmup,
        warmup_by_rho=warmup_by_rho,
    )  # fmt: skip

    def init(params: Vector) -> SofimState:
        return SofimState(torch.zeros_like(params), 0)

    def update(G: Vector, state: SofimState, _: Aggregate) -> tuple[Vector, SofimState]:
        M = torch.lerp(state.M, G, 1 - beta)
        a, b = _coefficients(options, state.t, dot(M, G), dot(M, M))
        return (G * a).add_(M, alpha=b), SofimState(M, state.t + 1)

    def update_(G: Vector, state: SofimState, _: Aggregate) -> tuple[Vector, SofimState]:
        """The same in two passes over memory: each block is read and written once a pass."""
        parts = list(blocks(G.numel()))
        products = [_accumulate(state.M[part], G[part], 1 - beta) for part in parts]
        MG, MM = (math.fsum(column) for column in zip(*products, strict=True))
        a, b = _coefficients(options, state.t, MG, MM)
        for part in parts:
            G[part].mul_(a).add_(state.M[part], alpha=b)
        return G, SofimState(state.M, state.t + 1)

    return ServerOptimizer(init=init, update=update, update_=update_)


def _coefficients(o: _Options, t: int, MG: float, MM: float) -> tuple[float, float]:
    """The direction is a G + b M, with these a and b."""
    c = 1 / (1 - o.beta ** (t + 1)) if o.corrected else 1.0
    if t < o.warmup:
        return 0.0, c / o.rho if o.warmup_by_rho else c
    strength = min(1.0, (t - o.warmup) / o.ramp) if o.ramp else 1.0
    return 1 / o.rho, -strength * c * c * MG / (o.rho * o.rho + o.rho * c * c * MM)


def _accumulate(M: Vector, G: Vector, weight: float) -> tuple[float, float]:
    M.lerp_(G, weight)
    return float(torch.dot(M, G)), float(torch.dot(M, M))
