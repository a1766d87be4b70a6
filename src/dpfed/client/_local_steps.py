# SPDX-License-Identifier: Apache-2.0
"""Local gradient steps on a client, and what leaves after them.

    records, groups   theta_{k+1} = theta_k - rate g_k, each g_k a release; the reply is their sum
    clients           the same along the mean gradient, in clear; then theta_0 - theta_K is released

Guarantee: what ``local_steps`` returns is a release, or a function of releases. Few vectors are
held at a time: the point is made anew from what was moved so far, and a release is dropped once it
is added.
"""

from __future__ import annotations

import torch

from dpfed.core.grid import add_values, repack
from dpfed.core.rows import Dense
from dpfed.core.types import UPDATE, Problem, Release, Releaser, Unit, Vector


def local_steps(
    params: Vector,
    steps: int,
    rate: float,
    problem: Problem,
    release: Releaser,
    channel: str = UPDATE,
) -> Release:
    """So many local steps; at record level the sum of their gradients, to be scaled by the rate."""
    if release.unit is Unit.CLIENT:
        moved = steps_in_clear(params, steps, rate, problem)
        return release(Dense(moved[None]), channel)
    total = torch.zeros_like(params)
    for _ in range(steps):
        made = gradient_at(params, total, rate, problem, release, channel)
        step = made.step
        add_values(total, made, release.nominal)
        del made
    return repack(total.mul_(release.nominal), step)


def gradient_at(
    params: Vector,
    moved: Vector,
    rate: float,
    problem: Problem,
    release: Releaser,
    channel: str = UPDATE,
) -> Release:
    """The release of the gradients at params - rate moved; the point itself is dropped."""
    rows = problem.rows(torch.sub(params, moved, alpha=rate), release.unit)
    return release(rows, channel)


def steps_in_clear(params: Vector, steps: int, rate: float, problem: Problem) -> Vector:
    """theta_0 - theta_K after steps along the mean gradient. Sensitive: one row, to be released."""
    theta = params.clone()
    for _ in range(steps):
        theta.sub_(problem.gradient(theta), alpha=rate)
    return params - theta
