# SPDX-License-Identifier: Apache-2.0
"""DP-FedNew: one damped Newton direction per round, agreed on by ADMM.

Krouka et al. 2025, Algorithms 1 and 2, with gamma = alpha + rho:

    y_i = (H_i + gamma I)^{-1} (g_i - lambda_i + rho y),  ytilde_i = y_i + noise,  y+ = their mean
    lambda_i+ = lambda_i + rho (ytilde_i - y+),           theta+ = theta - eta y+

Clients: H_i, g_i are the client's means, and y_i is clipped. Records, groups: H_i and g_i are sums
of matrices clipped to Delta_H and of gradients clipped to c1, over the public size m; b is the
projection of g_i - lambda_i + rho y onto the ball of radius c2; m y_i is released. Its sensitivity:

    y' - y = A'^{-1} (b' - b) - A'^{-1} (A' - A) A^{-1} b,   A = H + gamma I >= least I
    a unit more or less   m |y' - y| <= c1 / least + Delta_H c2 / least^2
    one for another       m |y' - y| <= 2 c1 / least + Delta_H c2 / least^2

as clipped Hessians are positive semidefinite, and two of them differ by at most Delta_H in the
spectral norm, not twice that (Remark 5). Lemma 3 is larger, and needs gamma > Delta_H / m.

Over the reals least = gamma. In floats a sum of clipped Hessians is positive semidefinite up to
OFF Delta_H (matrices.py), so that least = gamma - OFF Delta_H, for m >= 1. Solving gives the
solution of a system that is off by 8 d u |A| at most (u = 2^-53; Higham 2002, theorem 9.5, with the
small growth that is met in practice), which moves m y by 8 d u (m gamma + n Delta_H) c2 / least^2
for n units. The bounds are larger by 2^-16 of themselves, and options for which that is not enough
are refused.

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
from dpfed.core.checks import check_positive, refuse
from dpfed.core.errors import UnsoundPlan
from dpfed.core.grid import values_of
from dpfed.core.matrices import OFF, second_order, solve
from dpfed.core.rows import Dense
from dpfed.core.types import BoundedSum
from dpfed.core.vector import Layout, head_of

PAPER = "Krouka et al. 2025 (DP-FedNew, DP-FedNew-FC)"


_ROUNDING_FRACTION = 2.0**-16
"""The fraction by which bounds are raised, for rounding errors when a system is solved."""


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

        Zero if the server sent what is not finite.
        """
        del clip
        made = self.make()
        usable = bool(torch.isfinite(made).all())
        vector = made if usable else torch.zeros_like(made)
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
    check_positive("fednew", rho=rho, alpha=alpha, c1=c1, c2=c2, hessian=hessian)
    bias, dense = head_of(layout, "fednew").bias, curvature == "hessian"
    gamma, alone = alpha + rho, unit is Unit.CLIENT
    least = gamma if alone else gamma - OFF * hessian
    if least < gamma / 2:
        raise refuse("fednew.hessian", f"at most {gamma / OFF / 2:g}, gamma / 2 / OFF", hessian)
    bound, replace_bound = (
        (k * c1 / least + hessian * c2 / least**2) * (1 + _ROUNDING_FRACTION) for k in (1, 2)
    )
    if alone:
        c1 = c2 = hessian = 1e30  # only the direction is clipped

    def work(
        broadcast: Broadcast, problem: Problem, state: FedNewState, release: Releaser
    ) -> tuple[Reply, FedNewState]:
        problem, params = second_order(problem, "fednew"), broadcast.params
        y, m = broadcast.shared["primal"], release.nominal
        if not alone:
            moved = 8 * params.numel() * 2.0**-53 * (m * gamma + max(m, 2**20) * hessian)
            _refuse_inexact(m, moved * c2 / least**2, bound)
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
        init=_start,
        work=work,
        units=frozenset({unit}),
        channels={UPDATE: channel},
        sends_unmodified=True,
        reuses_own_releases=True,
        linear=True,
        samples=False,
        memory="d^2" if dense else "f^2",
        companion=ServerOptimizer(_start, _keep, lambda state: {"primal": state.vector}),
    )


def _refuse_inexact(m: float, moved: float, bound: float) -> None:
    """Refuse options for which rounding could break the bound; this reads no data."""
    if m < 1:
        raise UnsoundPlan(
            f"privacy.nominal must be at least 1 for fednew, got {m:g}: rounding is bounded in "
            f"proportion to it; declare the number of records"
        )
    if not 2 * moved <= _ROUNDING_FRACTION * bound:
        raise UnsoundPlan(
            f"fednew's bound must be above {2 * moved / _ROUNDING_FRACTION:.3g}, what rounding "
            f"takes, got {bound:.3g}; raise hessian, c1 or rho, or use a smaller model"
        )


def _start(params: Vector) -> FedNewState:
    return FedNewState(torch.zeros_like(params), 0)


def _keep(y: Vector, _: FedNewState, seen: Aggregate) -> tuple[Vector, FedNewState]:
    return y, FedNewState(seen.mean, 1)  # not y: the next optimizer may overwrite it
