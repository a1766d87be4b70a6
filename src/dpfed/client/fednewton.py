# SPDX-License-Identifier: Apache-2.0
"""Private FedNewton: a FedAvg start, then averaged local Newton steps.

Auddy, Paul and Peng 2026: a Newton step on each client takes away most of the bias that
averaging leaves, in few rounds, as long as clients are not too many for their sizes.

    rounds 0 .. start-1   as FedAvg: ``steps`` local gradient steps at ``rate``, then the mean
    rounds start ..       theta+ = theta - mean over clients of (H_i + damping I)^{-1} g_i

Records, groups: g_i and H_i are two releases, of gradients under the recipe's clip and of Hessians
under the clip ``hessian``, whose sum moves by sqrt(2) times that where one is exchanged; the step
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

from dpfed.client._local_steps import local_steps
from dpfed.core.chain import stateless
from dpfed.core.errors import RecipeError, UnsoundPlan
from dpfed.core.grid import repack, values_of
from dpfed.core.matrices import from_triangle, positive, solve, triangle
from dpfed.core.rows import Dense
from dpfed.core.types import (
    UPDATE,
    Aggregate,
    Broadcast,
    Channel,
    ClientAlgorithm,
    LinearProblem,
    Phase,
    Problem,
    Release,
    Releaser,
    Reply,
    ServerOptimizer,
    State,
    Unit,
    Vector,
)
from dpfed.core.vector import Layout, head_of

PAPER = "Auddy et al. 2026 (FedNewton)"

START, HESSIAN = "start", "hessian"


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
    """A start by local gradient steps, then the mean of the clients' own Newton steps."""
    numbers = (steps, rate, hessian, share, hessian_share)
    fine = all(0 < v < math.inf for v in numbers) and share + hessian_share < 1
    if not fine or start < 0 or not 0 <= damping < math.inf:
        raise RecipeError(
            f"fednewton's steps, rate, hessian and shares are {numbers}, its start {start} and "
            f"damping {damping}; the first are above 0, both shares below 1, the last from 0 on"
        )
    head, alone = head_of(layout, "fednewton"), unit is Unit.CLIENT

    def start_at(params: Vector, problem: Problem, release: Releaser) -> Release:
        return local_steps(params, steps, rate, problem, release, START)

    def work(
        broadcast: Broadcast, problem: Problem, state: State, release: Releaser
    ) -> tuple[Reply, State]:
        if broadcast.round < start:
            return {START: start_at(broadcast.params, problem, release)}, state
        return {UPDATE: _newton(damping, broadcast.params, problem, release)}, state

    later, size = (Phase(start, 0), Phase(None, 1)), triangle(head.inputs * head.outputs)
    channels = {UPDATE: Channel(later, noise=1.0 if alone else math.nan)}
    if not alone:
        swap = math.sqrt(2) * hessian
        channels[HESSIAN] = Channel(later, size, hessian, swap, hessian_share, sent=False)
    if start:
        phases = (Phase(start, 1 if alone else steps), Phase(None, 0))
        channels[START] = Channel(phases, share=share, noise=math.sqrt(phases[0].releases))

    def by_stage(direction: Vector, state: State, seen: Aggregate) -> tuple[Vector, State]:
        return direction * (rate if seen.lead == START and not alone else 1.0), state

    return ClientAlgorithm(
        stateless, work, frozenset({unit}), channels, unchanged=alone, linear=True, memory="d^2",
        companion=ServerOptimizer(stateless, by_stage),
    )  # fmt: skip


def _newton(damping: float, params: Vector, problem: Problem, release: Releaser) -> Release:
    if not isinstance(problem, LinearProblem):
        raise UnsoundPlan("fednewton needs a model of one linear layer; use logistic or poisson")
    matrices, m = problem.hessian_rows(params, release.unit), release.nominal
    if release.unit is Unit.CLIENT:
        step = _solve(matrices.clipped_matrix(1e30), problem.gradient(params), damping)
        return release(Dense(step[None]))
    made, noisy = release(problem.rows(params, release.unit)), release(matrices, HESSIAN)
    H, g = (values_of(each, m, params.double()) for each in (noisy, made))
    return repack(_solve(positive(from_triangle(H)), g, damping) * m, made.step)


def _solve(H: torch.Tensor, g: Vector, damping: float) -> Vector:
    return solve(H, g, max(damping, 1e-7 * float(H.trace())))  # no digits of a float32 below that
