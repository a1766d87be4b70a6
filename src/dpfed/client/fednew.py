# SPDX-License-Identifier: Apache-2.0
"""DP-FedNew: one damped Newton direction per round, agreed on by ADMM.

Krouka et al. 2025, Algorithms 1 and 2, with gamma = alpha + rho:

    y_i = (H_i + gamma I)^{-1} (g_i - lambda_i + rho y),  ytilde_i = y_i + noise,  y+ = their mean
    lambda_i+ = lambda_i + rho (ytilde_i - y+),           theta+ = theta - eta y+

Clients: H_i, g_i are the client's means, and y_i is clipped. Records, groups: H_i and g_i are sums
of matrices clipped to Delta_H and of gradients clipped to c1, over the public size m; b is the
projection of g_i - lambda_i + rho y onto the ball of radius c2; m y_i is released. Its sensitivity:

    y' - y = A'^{-1} (b' - b) - A'^{-1} (A' - A) A^{-1} b,   A = H + gamma I >= gamma I
    a unit more or less   m |y' - y| <= c1 / gamma + Delta_H c2 / gamma^2
    one for another       m |y' - y| <= 2 c1 / gamma + Delta_H c2 / gamma^2

as clipped Hessians are positive semidefinite, and two of them differ by at most Delta_H in the
spectral norm, not twice that (Remark 5). Lemma 3 is larger, and needs gamma > Delta_H / m.

Fixed: the paper scales -lambda + rho y by xi (Lemma 4), which depends on the private g_i while
Lemma 3 holds it fixed: one record may move y_i by sqrt(2 / m). A projection is 1-Lipschitz.
Inferred: y is broadcast; who missed rounds takes the newest. ``curvature = "covariance"`` (section
4.3) takes I_c (x) x x^T, of spectral norm |x|^2, for a Hessian: one [f, f] matrix for all outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch

from dpfed.core import (
    UPDATE,
    Aggregate,
    Broadcast,
    Channel,
    ClientAlgorithm,
    Problem,
    Releaser,
    Reply,
    ServerOptimizer,
    Unit,
    Vector,
)
from dpfed.core.checks import positive
from dpfed.core.clipping import SHORTFALL
from dpfed.core.grid import values_of
from dpfed.core.matrices import second_order, solve
from dpfed.core.rows import Dense
from dpfed.core.types import BoundedSum
from dpfed.core.vector import Layout, head_of

PAPER = "Krouka et al. 2025 (DP-FedNew, DP-FedNew-FC)"


class FedNewState(NamedTuple):
    """A client's lambda_i + rho ytilde_i, or the server's y; and whether there was a round."""

    vector: Vector
    begun: int


class Direction(NamedTuple):
    """One client's m y_i: not a sum over units, but bounded like one."""

    make: Callable[[], Vector]
    bound: float
    replace_bound: float

    def clipped_sum(self, clip: float) -> BoundedSum:
        """The options set the clips; a mechanism that was built for less refuses the bound.

        Shorter by more than rounding adds; zero if the server sent what is not finite.
        """
        del clip
        made = self.make()
        usable = bool(torch.isfinite(made).all())
        vector = made.mul_(1 - SHORTFALL) if usable else torch.zeros_like(made)
        return BoundedSum(vector, self.bound, self.replace_bound)


def fednew(
    rho: float = 1.0,
    alpha: float = 0.1,
    c1: float = 1.0,
    c2: float = 1.0,
    hessian: float = 1.0,
    curvature: Literal["hessian", "covariance"] = "hessian",
    unit: Unit = Unit.RECORD,
    layout: Layout | None = None,
) -> ClientAlgorithm:
    """ADMM on damped Newton directions; at record level the direction itself is released.

    Args:
        rho: the weight of the agreement between clients, above 0.
        alpha: the damping of the Newton step, above 0; gamma = alpha + rho.
        c1: the clip of a record's gradient, above 0; at client level nothing but the direction is.
        c2: the radius onto which the right-hand side is projected, above 0.
        hessian: the clip of a record's matrix in Frobenius norm, above 0.
        curvature: "hessian", or "covariance" of the inputs: one small matrix for all outputs.
        unit: what one row stands for; the plan fills it in.
        layout: the model's names and shapes; the plan fills it in.
    """
    positive("fednew", rho=rho, alpha=alpha, c1=c1, c2=c2, hessian=hessian)
    bias, dense = head_of(layout, "fednew").bias, curvature == "hessian"
    gamma, alone = alpha + rho, unit is Unit.CLIENT
    bound, replace_bound = (k * c1 / gamma + hessian * c2 / gamma**2 for k in (1, 2))
    if alone:
        c1 = c2 = hessian = 1e30  # the direction is clipped, and nothing before

    def work(
        broadcast: Broadcast, problem: Problem, state: FedNewState, release: Releaser
    ) -> tuple[Reply, FedNewState]:
        problem, params = second_order(problem, "fednew"), broadcast.params
        y, m = broadcast.shared["primal"], release.nominal
        dual = state.vector - rho * state.begun * y
        matrices = problem.hessian_rows(params, unit) if dense else problem.gram_rows(unit)
        gradients, size = problem.rows(params, unit), 1.0 if alone else m

        def make() -> Vector:
            b = gradients.clipped_sum(c1).vector.double() / size - dual + rho * y
            b = b * (c2 / max(c2, float(torch.linalg.vector_norm(b))))
            return size * solve(matrices.clipped_matrix(hessian) / size, b, gamma, bias)

        made = release(Dense(make()[None]) if alone else Direction(make, bound, replace_bound))
        return {UPDATE: made}, FedNewState(dual.add(values_of(made, m, params), alpha=rho), 1)

    channel = Channel() if alone else Channel(clip=bound, replace_bound=replace_bound)
    return ClientAlgorithm(
        init=_start, work=work, units=frozenset({unit}), channels={UPDATE: channel},
        sends_unmodified=True, reuses_own_releases=True, linear=True, samples=False,
        memory="d^2" if dense else "f^2",
        companion=ServerOptimizer(_start, _keep, lambda state: {"primal": state.vector}),
    )  # fmt: skip


def _start(params: Vector) -> FedNewState:
    return FedNewState(torch.zeros_like(params), 0)


def _keep(y: Vector, _: FedNewState, seen: Aggregate) -> tuple[Vector, FedNewState]:
    return y, FedNewState(seen.mean, 1)  # y itself is the next optimizer's to overwrite
