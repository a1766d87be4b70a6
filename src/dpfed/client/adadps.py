# SPDX-License-Identifier: Apache-2.0
"""AdaDPS: gradients are preconditioned before they are clipped, so that noise meets their scale.

Li et al. 2022 ("Private adaptive optimization with side information"), Algorithm 1; DP-FedAdamW
supplement 2026, appendix A and Table 12. With A > 0 by coordinate, from public numbers, and m the
public size:

    release   sum over records of clip(grad l(theta_t; x, y) / A, C), plus noise: one a round
    step      theta_{t+1} = theta_t - rate release / m, not multiplied back by A

Algorithm 1 has A = sqrt(v) + eps, with second moments v. Here the server publishes, as "scale",

    1 / A = (1 + eps) r / (sqrt(v) + eps r),   r^2 the mean of v over the coordinates; 1 if r = 0

the same up to one public factor, so up to the units of C and rate. This keeps 1 / A near 1, and
with it a clip that suits the gradients; eps is a pure number, and 1 / A at most (1 + eps) / eps.

``side`` names a .safetensors file on the server with such a v, from non-sensitive data; it stays as
it is. Without one, v comes from the private aggregates so far, which is post-processing: mean A
estimates the gradient with noise of std A, whose square is known, so that

    v_{t+1} = beta v_t + (1 - beta) (mean^2 - std^2) A^2,    v_0 = 0; in A, v below 0 counts as 0

Inferred: this v; r; and the default eps = 1, by which no coordinate grows to more than twice its
size: v from aggregates is noisy, and a small eps multiplies up whatever the noise left near 0.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from dpfed.core import (
    UPDATE,
    Aggregate,
    Broadcast,
    ClientAlgorithm,
    DataError,
    Problem,
    Releaser,
    Reply,
    ServerOptimizer,
    State,
    Unit,
    UnsoundPlan,
    Vector,
    stateless,
)
from dpfed.core.checks import check_decay, check_positive
from dpfed.core.rows import Chunks, Dense, Outer, Scaled, made_rows

PAPER = "Li et al. 2022 (AdaDPS)"


class Preconditioner(NamedTuple):
    """The second moments."""

    v: Vector


def adadps(eps: float = 1.0, beta: float = 0.9, side: str | None = None) -> ClientAlgorithm:
    """One clipped, noised sum of preconditioned gradients, sent as it is.

    Args:
        eps: keeps the preconditioner near 1, above 0: it is at most (1 + eps) / eps.
        beta: how much of the second moments is kept per round, in [0, 1).
        side: a .safetensors file on the server with second moments of non-sensitive data; None
            takes them from the private aggregates.
    """
    check_positive("adadps", eps=eps)
    check_decay("adadps", beta=beta)

    def work(
        broadcast: Broadcast, problem: Problem, state: State, release: Releaser
    ) -> tuple[Reply, State]:
        rows = made_rows(problem.rows(broadcast.params, release.unit))
        if not isinstance(rows, Dense | Outer | Chunks):
            raise UnsoundPlan(f"adadps cannot scale {type(rows).__name__} rows; use another client")
        return {UPDATE: release(Scaled(rows, broadcast.shared["scale"]))}, state

    def init(params: Vector) -> Preconditioner:
        return Preconditioner(torch.zeros_like(params) if side is None else _load(side, params))

    def update(
        mean: Vector, state: Preconditioner, seen: Aggregate
    ) -> tuple[Vector, Preconditioner]:
        if side is not None or not seen.clients:  # an empty draw, if draws are public
            return mean, state
        noise = seen.std**2 if math.isfinite(seen.std) else 0.0
        square = mean.square().sub_(noise).div_(_scale(state.v, eps).square_())
        return mean, Preconditioner(torch.lerp(state.v, square, 1 - beta))

    server = ServerOptimizer(init, update, lambda state: {"scale": _scale(state.v, eps)})
    return ClientAlgorithm(
        init=stateless,
        work=work,
        units=frozenset(Unit),
        sends_unmodified=True,
        companion=server,
    )


def _scale(v: Vector, eps: float) -> Vector:
    """1 / A."""
    root = v.clamp(min=0).sqrt_()
    r = float(torch.linalg.vector_norm(root)) / math.sqrt(max(1, v.numel()))
    return root.add_(eps * r).reciprocal_().mul_((1 + eps) * r) if r > 0 else torch.ones_like(v)


def _load(side: str, params: Vector) -> Vector:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        v = load_file(side)["v"].to(params.dtype).reshape(-1)
    except (OSError, KeyError, SafetensorError) as error:
        raise DataError(
            f"adadps.side must be a .safetensors file with a tensor 'v', got {side!r} ({error}); "
            f"write one, or leave it out"
        ) from error
    wrong = int((~torch.isfinite(v) | (v < 0)).sum())
    if v.shape != params.shape or wrong:
        raise DataError(
            f"'v' of {side!r} must be {params.numel()} finite numbers, none below 0, got "
            f"{v.numel()}, {wrong} of them otherwise; write one per parameter"
        )
    return v
