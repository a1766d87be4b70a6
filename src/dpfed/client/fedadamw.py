# SPDX-License-Identifier: Apache-2.0
"""DP-FedAdamW: local AdamW from a common second moment, aligned to a common direction.

DP-FedAdamW supplement 2026, eqs. (17), (18), Lemma 5, appendix B.4. The server publishes Delta, the
last round's mean of (theta_0 - theta_K) / (K rate), and rms_b, one number per block b of
coordinates. A round starts at m = 0, v = rms_b^2; for k = 1 .. K, g_k a release over the public
size, s the std of its noise:

    m_k = beta1 m_{k-1} + (1 - beta1) g_k,                m_hat = m_k / (1 - beta1^k)
    v_k = beta2 v_{k-1} + (1 - beta2) (g_k^2 - s^2),      v_hat = max(v_k / w_k, floor s^2)
    theta <- theta - rate (gamma m_hat / (sqrt(v_hat) + eps) + (1 - gamma) Delta + decay theta)

v_k gives its start the weight beta2^k: a start that is an estimate itself needs no correction, so
w_k = 1, where the supplement's Lemma 5 divides by 1 - beta2^t; where rms_b = 0, as in the first
round, nothing is known, and w_k = 1 - beta2^k. Noise adds
s^2 to a square's mean and is taken out (DP-AdamBC): so clients of unequal s can share rms_b. With
u_b a block's mean of v_K / w_K, floored like v_hat, over the clients who answer:

    moments = "root"    rms_b = mean of sqrt(u_b)
    moments = "mean"    rms_b = sqrt(mean of u_b), eq. (18)

u_b is a function of the round's releases, free under local trust. Both agree where clients are
alike; otherwise a client with large moments counts for more in "mean". Replies lie on the update's
grid, made for gradients: a root suits it, and a mean of squares is sent SQUARES_SCALE times
as large.
Inferred, from a supplement alone: the step, by Lemma 5; where noise is taken out; the root; the
floor, in units of s^2 to suit any noise; the blocks by _blocks.py (16 parts of an unknown model).
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch

from dpfed.client._blocks import Blocks, blocks_of, check_kind, of_sizes
from dpfed.client._local_steps import check_adamw, gradient_at
from dpfed.core import (
    UPDATE,
    Aggregate,
    Broadcast,
    Channel,
    ClientAlgorithm,
    Phase,
    Problem,
    RecipeError,
    Releaser,
    Reply,
    ServerOptimizer,
    State,
    Unit,
    Vector,
    stateless,
)
from dpfed.core.checks import check_not_negative, refuse
from dpfed.core.grid import repack, values_of
from dpfed.core.vector import Layout

PAPER = "DP-FedAdamW supplement, 2026"

SQUARES_SCALE = 2.0**12
"""What a mean of squares is multiplied by: it is about s^2, and the grid was made for gradients."""


class Common(NamedTuple):
    """What the server publishes: Delta, and rms by block."""

    delta: Vector
    rms: Vector


def fedadamw(
    steps: int = 5,
    rate: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    decay: float = 0.01,
    gamma: float = 0.5,
    floor: float = 0.1,
    blocks: list[int] | str = "tensors",
    head_size: int | None = None,
    moments: Literal["root", "mean"] = "root",
    unit: Unit = Unit.RECORD,
    layout: Layout | None = None,
) -> ClientAlgorithm:
    """Local AdamW from common block-wise second moments, aligned to the global direction.

    Args:
        steps: local steps per round, at least 1; at record level each is a release.
        rate: the size of a local step, above 0.
        beta1: how much of the first moment is kept per step, in [0, 1).
        beta2: how much of the second moment is kept per step, in [0, 1).
        eps: added to the root of the second moment, in units of the gradient.
        decay: weight decay per unit of rate, at least 0.
        gamma: the part of a step that is the client's own; the rest is the global direction.
        floor: the least second moment, in units of the noise's variance, at least 0.
        blocks: what shares a second moment: tensors, channels, heads, or sizes that add up.
        head_size: outputs of an attention head, for heads.
        moments: what clients average by block: "root", the root of the second moment, which is
            not the paper's; or "mean", the second moment itself, as in its eq. (18).
        unit: what one row stands for; the plan fills it in.
        layout: the model's names and shapes; the plan fills it in.
    """
    if unit is Unit.CLIENT:
        raise RecipeError(
            "privacy.unit must be record or group for fedadamw, got client: its moments would "
            "leave without noise; use localadamw"
        )
    check_adamw("fedadamw", steps, rate, beta1=beta1, beta2=beta2, eps=eps, decay=decay)
    check_not_negative("fedadamw", floor=floor)
    if not 0 <= gamma <= 1:
        raise refuse("fedadamw.gamma", "from 0 to 1", gamma)
    if moments not in ("root", "mean"):
        raise refuse("fedadamw.moments", "root or mean", moments)
    known = _known(blocks, head_size, layout)

    def work(
        broadcast: Broadcast, problem: Problem, state: State, release: Releaser
    ) -> tuple[Reply, State]:
        params, size, parts = broadcast.params, release.nominal, _blocks(known, broadcast.params)
        rms, delta = (broadcast.shared[name] for name in ("rms", "direction"))
        total, m, v = torch.zeros_like(params), torch.zeros_like(params), parts.spread(rms**2)
        for k in range(1, steps + 1):
            made = gradient_at(params, total, rate, problem, release)
            g, grid, noise = values_of(made, size, params), made.step, (made.std / size) ** 2
            del made  # frees this release before the next one is made
            w = (rms > 0).to(rms.dtype).mul_(beta2**k).add_(1 - beta2**k)
            m.lerp_(g, 1 - beta1)
            v.mul_(beta2).addcmul_(g, g, value=1 - beta2).sub_((1 - beta2) * noise)
            torch.div(v, parts.spread(w), out=g).clamp_(min=floor * noise).sqrt_().add_(eps)
            torch.div(m, g, out=g).mul_(gamma / (1 - beta1**k)).add_(params, alpha=decay)
            total.mul_(1 - rate * decay).add_(delta, alpha=1 - gamma).add_(g)
            del g
        u = parts.means(v).div_(w).clamp_(min=floor * noise)
        sent = u.sqrt_() if moments == "root" else u.mul_(SQUARES_SCALE)
        return {
            UPDATE: repack(total.mul_(size), grid),
            "moments": repack(sent.mul_(size), grid),
        }, state

    return ClientAlgorithm(
        init=stateless,
        work=work,
        units=frozenset({unit}),
        channels={
            UPDATE: Channel((Phase(None, steps),), noise=math.nan),
            "moments": Channel((Phase(None, 0),), size=known.number if known else 16),
        },
        companion=_server(steps, rate, known, moments == "mean"),
    )


def _known(blocks: list[int] | str, head_size: int | None, layout: Layout | None) -> Blocks | None:
    """The blocks, where the model is known or they are given; None is 16 parts of any model."""
    if not isinstance(blocks, str):
        return of_sizes(blocks)
    check_kind(blocks, head_size)
    return None if layout is None else blocks_of(layout, blocks, head_size)


def _blocks(known: Blocks | None, params: Vector) -> Blocks:
    if known is None:
        return of_sizes([len(block) for block in torch.tensor_split(params, 16)])
    if min(known.sizes, default=0) < 0 or sum(known.sizes) != params.numel():
        bound = f"sizes that add up to the model's {params.numel()}"
        raise refuse("fedadamw.blocks", bound, known.sizes)
    return known


def _server(steps: int, rate: float, known: Blocks | None, squares: bool) -> ServerOptimizer:
    def init(params: Vector) -> Common:
        return Common(torch.zeros_like(params), params.new_zeros(_blocks(known, params).number))

    def update(mean: Vector, state: Common, seen: Aggregate) -> tuple[Vector, Common]:
        if not seen.clients:
            return mean, state
        found = seen.public["moments"] * (seen.participation_rate * seen.enrolled / seen.clients)
        # noise, or a client that breaks the rules, can make a mean of squares negative
        rms = found.clamp(min=0).div(SQUARES_SCALE).sqrt() if squares else found
        return mean * rate, Common(mean / steps, rms)

    return ServerOptimizer(init, update, lambda at: {"direction": at.delta, "rms": at.rms})
