# SPDX-License-Identifier: Apache-2.0
"""Private FedNewton: a FedAvg start, then averaged local Newton steps.

Auddy, Paul and Peng 2026: a Newton step on each client takes away most of the bias that
averaging leaves, in few rounds, as long as clients are not too many for their sizes.

    rounds 0 .. start-1   as FedAvg: ``steps`` local gradient steps at ``rate``, then the mean
    rounds start ..       theta+ = theta - mean over clients of (H_i + damping I)^{-1} g_i

Records, groups: g_i and H_i are two releases, of gradients under the recipe's clip and of Hessians
under the clip ``hessian``, whose sum moves by sqrt(2) times that if one unit is replaced; the step
is a function of both, so its noise level is not known. Clients: the step is made in clear, then
clipped and released. ``share`` of the squared mu is the start's, ``hessian_share`` the Hessians'.

Inferred: their text has the stages, but no pseudocode; the start's mu / sqrt(2) is FedHybrid's
in its appendix, the split within a Newton round is ours. A noisy H_i may be indefinite: negative
eigenvalues are set to 0 before the damping is added (post-processing). The fixed point is where the
mean of (H_i + damping I)^{-1} g_i is 0, which is the pooled minimiser only if clients are alike.
"""

from __future__ import annotations

import math

import torch

from dpfed.client._local_steps import START, by_stage, local_steps, start_channel
from dpfed.core import (
    UPDATE,
    Broadcast,
    Channel,
    ClientAlgorithm,
    Phase,
    Problem,
    Release,
    Releaser,
    Reply,
    State,
    Unit,
    Vector,
    checks,
    stateless,
)
from dpfed.core.grid import repack, values_of
from dpfed.core.matrices import from_triangle, positive_part, second_order, solve, triangle
from dpfed.core.rows import Dense
from dpfed.core.vector import Layout, head_of

PAPER = "Auddy et al. 2026 (FedNewton)"

HESSIAN = "hessian"


def fednewton(
    start: int = 1,
    steps: int = 5,
    rate: float = 0.1,
    share: float = 0.5,
    hessian: float = 1.0,
    hessian_share: float = 0.25,
    damping: float = 0.1,
    unit: Unit = Unit.RECORD,
    layout: Layout | None = None,
) -> ClientAlgorithm:
    """A start by local gradient steps, then the mean of the clients' own Newton steps.

    Args:
        start: rounds of local gradient steps at the beginning, at least 0.
        steps: local steps per such round, at least 1; at record level each is a release.
        rate: the size of such a step, above 0.
        share: the start's part of the squared mu, between 0 and 1.
        hessian: the clip of a record's Hessian in Frobenius norm, above 0.
        hessian_share: the Hessians' part of the squared mu; with ``share`` below 1.
        damping: added to the Hessian's diagonal, at least 0.
        unit: what one row stands for; the plan fills it in.
        layout: the model's names and shapes; the plan fills it in.
    """
    checks.check_at_least(1, "fednewton", steps=steps)
    checks.check_at_least(0, "fednewton", start=start)
    checks.check_positive("fednewton", rate=rate, hessian=hessian)
    checks.check_fraction("fednewton", share=share, hessian_share=hessian_share)
    if share + hessian_share >= 1:
        raise checks.refuse("fednewton.share + hessian_share", "below 1", share + hessian_share)
    checks.check_not_negative("fednewton", damping=damping)
    head, alone = head_of(layout, "fednewton"), unit is Unit.CLIENT

    def work(
        broadcast: Broadcast, problem: Problem, state: State, release: Releaser
    ) -> tuple[Reply, State]:
        if broadcast.round < start:
            made = local_steps(broadcast.params, steps, rate, problem, release, START)
            return {START: made}, state
        return {UPDATE: _newton(damping, broadcast.params, problem, release)}, state

    later = (Phase(start, 0), Phase(None, 1))
    channels = {UPDATE: Channel(later, noise=1.0 if alone else math.nan)}
    if not alone:
        channels[HESSIAN] = Channel(
            phases=later,
            size=triangle(head.inputs * head.outputs),
            clip=hessian,
            replace_bound=math.sqrt(2) * hessian,
            budget_fraction=hessian_share,
            sent=False,
        )
    if start:
        channels[START] = start_channel(start, 1 if alone else steps, share)
    return ClientAlgorithm(
        init=stateless,
        work=work,
        units=frozenset({unit}),
        channels=channels,
        sends_unmodified=alone,
        linear=True,
        memory="d^2",
        companion=by_stage(1.0 if alone else rate, 1.0),
    )


def _newton(damping: float, params: Vector, problem: Problem, release: Releaser) -> Release:
    problem = second_order(problem, "fednewton")
    matrices, m = problem.hessian_rows(params, release.unit), release.nominal
    if release.unit is Unit.CLIENT:
        step = _solve(matrices.clipped_matrix(1e30), problem.gradient(params), damping)
        return release(Dense(step[None]))
    made, noisy = release(problem.rows(params, release.unit)), release(matrices, HESSIAN)
    H, g = (values_of(each, m, params.double()) for each in (noisy, made))
    return repack(_solve(positive_part(from_triangle(H)), g, damping) * m, made.step)


def _solve(H: torch.Tensor, g: Vector, damping: float) -> Vector:
    return solve(H, g, max(damping, 1e-7 * float(H.trace())))  # below float32's precision
