# SPDX-License-Identifier: Apache-2.0
"""DP-FedFC: gradients preconditioned by the private covariance of the features.

Krouka et al. 2025, Algorithms 5 and 6 (Mehta et al.'s DP-FC, federated), for one linear layer with
inputs x (a bias is one more input, equal to 1, and counts in |x|):

    C = mean of clip(x x^T, R^2) + noise, once,   P = (C + gamma I)^{-1}
    records, groups   U_k = P (mean of clipped gradients + noise), on the server, row by row of W
    clients           u_i,k = clip(P g_i,k) + noise on the clients, U_k their mean

Adding a unit moves the sum by at most R^2, as in the paper, replacing one by sqrt(2) R^2
(matrices.py). Both parts share the budget: mu^2 = mu_C^2 + T mu_g^2, mu_C^2 = share mu^2.

Inferred or fixed:
- a noisy C may be indefinite, and the paper relies on gamma alone: here its negative eigenvalues
  are set to 0 before gamma is added, so that P is positive definite (post-processing);
- C is a mean over units, at client level over the clients' means, where the paper divides sums
  over records by the number of clients: gamma and R then do not depend on how many records are;
- C is sent with the first gradient, not in an exchange of its own: at record level this changes
  nothing, at client level the first step has P = I / gamma.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch

from dpfed.core import (
    UPDATE,
    Aggregate,
    Broadcast,
    Channel,
    ClientAlgorithm,
    Phase,
    Problem,
    Releaser,
    Reply,
    ServerOptimizer,
    State,
    Unit,
    Vector,
    checks,
    stateless,
)
from dpfed.core.matrices import from_triangle, positive_part, second_order, to_triangle, triangle
from dpfed.core.rows import Dense, linear_matrix, linear_vector
from dpfed.core.vector import Head, Layout, head_of

PAPER = "Krouka et al. 2025 (DP-FedFC); Mehta et al. 2023 (DP-FC)"

COVARIANCE, PRECONDITIONER = "covariance", "preconditioner"


class FedFCState(NamedTuple):
    """The server half's P = (C + gamma I)^{-1}, [inputs, inputs]."""

    P: torch.Tensor


def fedfc(
    gamma: float = 1.0,
    radius: float = 1.0,
    share: float = 0.1,
    unit: Unit = Unit.RECORD,
    layout: Layout | None = None,
) -> ClientAlgorithm:
    """Gradients, preconditioned by one private release of the features' covariance.

    Args:
        gamma: added to the covariance's diagonal before it is inverted, above 0.
        radius: the bound of a row of features, the bias included, above 0.
        share: the covariance's part of the squared mu, between 0 and 1.
        unit: what one row stands for; the plan fills it in.
        layout: the model's names and shapes; the plan fills it in.
    """
    checks.check_positive("fedfc", gamma=gamma, radius=radius)
    checks.check_fraction("fedfc", share=share)
    head = head_of(layout, "fedfc")

    def work(
        broadcast: Broadcast, problem: Problem, state: State, release: Releaser
    ) -> tuple[Reply, State]:
        problem, params = second_order(problem, "fedfc"), broadcast.params
        if unit is Unit.CLIENT:
            P = from_triangle(broadcast.shared[PRECONDITIONER])
            reply = {UPDATE: release(Dense(_times(P, problem.gradient(params), head)[None]))}
        else:
            reply = {UPDATE: release(problem.rows(params, unit))}
        if broadcast.round == 0:
            reply[COVARIANCE] = release(problem.gram_rows(unit), COVARIANCE)
        return reply, state

    covariance = Channel(
        phases=(Phase(1, 1), Phase(None, 0)),
        size=triangle(head.inputs),
        clip=radius**2,
        replace_bound=math.sqrt(2) * radius**2,
        budget_fraction=share,
    )
    return ClientAlgorithm(
        init=stateless,
        work=work,
        units=frozenset({unit}),
        channels={UPDATE: Channel(), COVARIANCE: covariance},
        sends_unmodified=True,
        linear=True,
        memory="f^2",
        companion=_preconditioned(gamma, head, unit),
    )


def _preconditioned(gamma: float, head: Head, unit: Unit) -> ServerOptimizer:
    """Keeps P; applies it, or publishes it where the clients do."""

    def init(params: Vector) -> FedFCState:
        return FedFCState(torch.eye(head.inputs, dtype=params.dtype) / gamma)

    def update(g: Vector, state: FedFCState, seen: Aggregate) -> tuple[Vector, FedFCState]:
        if COVARIANCE in seen.public:
            state = FedFCState(_inverse(seen.public[COVARIANCE], gamma))
        return g if unit is Unit.CLIENT else _times(state.P, g, head), state

    def share(state: FedFCState) -> Mapping[str, Vector]:
        return {PRECONDITIONER: to_triangle(state.P)} if unit is Unit.CLIENT else {}

    return ServerOptimizer(init, update, share)


def _inverse(covariance: Vector, gamma: float) -> torch.Tensor:
    C = positive_part(from_triangle(covariance))
    P: torch.Tensor = torch.linalg.inv(C + gamma * torch.eye(len(C), dtype=C.dtype))
    return P.to(covariance.dtype)


def _times(P: torch.Tensor, vector: Vector, head: Head) -> Vector:
    """P on each output's row of the layer: P is symmetric."""
    return linear_vector(linear_matrix(vector, head.inputs, head.bias) @ P, head.bias)
