# SPDX-License-Identifier: Apache-2.0
"""DP-LocalAdamW's client: local steps of AdamW on private gradients.

DP-FedAdamW supplement 2026, Algorithm 2; Loshchilov and Hutter 2019, Algorithm 2. From
theta_0 = theta_t, with g_k a release over the public batch size (records, groups) or in clear
(clients), k = 1, 2, ...:

    m_k = beta1 m_{k-1} + (1 - beta1) g_k,      m_hat = m_k / (1 - beta1^k)
    v_k = beta2 v_{k-1} + (1 - beta2) g_k^2,    v_hat = v_k / (1 - beta2^k)
    theta_k = (1 - rate decay) theta_{k-1} - rate m_hat / (sqrt(v_hat) + eps)

Four lines of Algorithm 2 are not taken by the letter:
- 11 scales the noise by C twice. A record moves a clipped sum by C, so noise of multiplier sigma
  has std sigma C on the sum and sigma C / (sR) on the mean: what a release over sR has;
- 16 adds decay theta, and weights grow. A step down (decay / 2) |theta|^2 subtracts it;
- 6 draws batches of a fixed size, which no accountant here covers: record_rate draws each record on
  its own;
- 4 resets m and v each round, before v has gathered much with beta2 = 0.999. Here they are kept, as
  in centralized AdamW; ``reset`` is line 4.

At record level they are functions of the client's own releases. At client level they would be data
that was never released: there a round always starts anew, and theta_0 - theta_K is the one release.
Otherwise (theta_0 - theta_K) / rate travels, and the server half multiplies by the rate; its noise
level is not known, for the steps are not linear in the noise.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from dpfed.client._local_steps import check_adamw, gradient_at, one_release
from dpfed.core import (
    UPDATE,
    Broadcast,
    Channel,
    ClientAlgorithm,
    Phase,
    Problem,
    RecipeError,
    Releaser,
    Reply,
    State,
    Unit,
    Vector,
    rescale,
    stateless,
)
from dpfed.core.grid import repack, values_of
from dpfed.core.rows import Dense

PAPER = "DP-FedAdamW supplement, 2026, Algorithm 2; Loshchilov and Hutter 2019 (AdamW)"


class LocalMoments(NamedTuple):
    """The moments after k steps."""

    m: Vector
    v: Vector
    k: int


def localadamw(
    steps: int = 5,
    rate: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    decay: float = 0.01,
    reset: bool | None = None,
    unit: Unit = Unit.RECORD,
) -> ClientAlgorithm:
    """Local steps of AdamW; the moments carry over from round to round, except at client level.

    Args:
        steps: local steps per round, at least 1; at record level each is a release.
        rate: the size of a local step, above 0.
        beta1: how much of the first moment is kept per step, in [0, 1).
        beta2: how much of the second moment is kept per step, in [0, 1).
        eps: added to the root of the second moment, in units of the gradient.
        decay: weight decay per unit of rate, at least 0.
        reset: begin each round with zero moments, as the paper's line 4 does. Left out, it is
            done only where kept moments would be data in clear: not as in the paper.
        unit: what one row stands for; the plan fills it in.
    """
    check_adamw("localadamw", steps, rate, beta1=beta1, beta2=beta2, eps=eps, decay=decay)
    if unit is Unit.CLIENT and reset is False:
        raise RecipeError(
            "localadamw.reset must be true at client level, got False: kept moments would be data "
            "in clear; leave it out"
        )
    keeps = unit is not Unit.CLIENT and not reset

    def adam(g: Vector, m: Vector, v: Vector, k: int) -> Vector:
        """m_hat / (sqrt(v_hat) + eps) in g's place; the moments move in theirs."""
        m.lerp_(g, 1 - beta1)
        v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        root = torch.mul(v, 1 / (1 - beta2**k), out=g).sqrt_().add_(eps)
        return torch.div(m, root, out=g).mul_(1 / (1 - beta1**k))

    def by_record(
        broadcast: Broadcast, problem: Problem, state: State, release: Releaser
    ) -> tuple[Reply, State]:
        params, before = broadcast.params, state if keeps else _zero(broadcast.params)
        m, v, total = before.m.clone(), before.v.clone(), torch.zeros_like(params)
        for k in range(before.k + 1, before.k + steps + 1):
            made = gradient_at(params, total, rate, problem, release)
            g, grid = values_of(made, release.nominal, params), made.step
            del made  # frees this release before the next one is made
            total.mul_(1 - rate * decay).add_(params, alpha=decay).add_(adam(g, m, v, k))
            del g
        after = LocalMoments(m, v, before.k + steps) if keeps else state
        return {UPDATE: repack(total.mul_(release.nominal), grid)}, after

    def by_client(
        broadcast: Broadcast, problem: Problem, state: State, release: Releaser
    ) -> tuple[Reply, State]:
        (m, v, _), theta = _zero(broadcast.params), broadcast.params.clone()
        for k in range(1, steps + 1):
            step = adam(problem.gradient(theta).clone(), m, v, k)
            theta.mul_(1 - rate * decay).sub_(step, alpha=rate)
        return {UPDATE: release(Dense((broadcast.params - theta)[None]))}, state

    if unit is Unit.CLIENT:
        return one_release(by_client)
    return ClientAlgorithm(
        init=_zero if keeps else stateless,
        work=by_record,
        units=frozenset({unit}),
        channels={UPDATE: Channel((Phase(None, steps),), noise=math.nan)},
        reuses_own_releases=keeps,
        companion=rescale(rate),
    )


def _zero(params: Vector) -> LocalMoments:
    return LocalMoments(torch.zeros_like(params), torch.zeros_like(params), 0)
