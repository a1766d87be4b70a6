# SPDX-License-Identifier: Apache-2.0
"""What several client algorithms share: local gradient steps, and what leaves after them.

    records, groups   theta_{k+1} = theta_k - rate g_k, each g_k a release; the reply is their sum
    clients           the same along the mean gradient, in clear; then theta_0 - theta_K is released

Guarantee: what ``local_steps`` returns is a release, or a function of releases. Few vectors are
held at a time: the point is made anew from what was moved so far, and a release is dropped once it
is added.
"""

from __future__ import annotations

import math

import torch

from dpfed.core import (
    UPDATE,
    Aggregate,
    Channel,
    ClientAlgorithm,
    Phase,
    Problem,
    Release,
    Releaser,
    ServerOptimizer,
    State,
    Unit,
    Vector,
    checks,
    stateless,
)
from dpfed.core.grid import add_values, repack
from dpfed.core.rows import Dense
from dpfed.core.types import Work

START = "start"
"""The channel of methods that begin with rounds of local steps."""


def local_steps(
    params: Vector,
    steps: int,
    rate: float,
    problem: Problem,
    release: Releaser,
    channel: str = UPDATE,
) -> Release:
    """``steps`` local steps; at record level the sum of their gradients, to be scaled by the rate.

    Args:
        params: where the steps begin.
        steps: how many.
        rate: the size of a step.
        problem: the client's data and model.
        release: releases each step at record level, their sum at client level.
        channel: the channel that it is released on.
    """
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
    """The release of the gradients at params - rate moved; that point is not kept.

    Args:
        params: where the round began.
        moved: the sum of the directions so far.
        rate: the size of a step.
        problem: the client's data and model.
        release: releases the gradients.
        channel: the channel that it is released on.
    """
    rows = problem.rows(torch.sub(params, moved, alpha=rate), release.unit)
    return release(rows, channel)


def steps_in_clear(params: Vector, steps: int, rate: float, problem: Problem) -> Vector:
    """theta_0 - theta_K after steps along the mean gradient. Sensitive: one row, to be released.

    Args:
        params: where the steps begin.
        steps: how many.
        rate: the size of a step.
        problem: the client's data and model.
    """
    theta = params.clone()
    for _ in range(steps):
        theta.sub_(problem.gradient(theta), alpha=rate)
    return params - theta


def one_release(work: Work) -> ClientAlgorithm:
    """An algorithm at client level: it sends one released row, unmodified."""
    return ClientAlgorithm(
        init=stateless, work=work, units=frozenset({Unit.CLIENT}), sends_unmodified=True
    )


def start_channel(rounds: int, releases: int, share: float) -> Channel:
    """The channel of the rounds that a method begins with; its noise is sized apart.

    Args:
        rounds: how many rounds there are.
        releases: how many releases a client makes in each.
        share: their part of the squared mu.
    """
    phases = (Phase(rounds, releases), Phase(None, 0))
    return Channel(phases, budget_fraction=share, noise=math.sqrt(releases))


def by_stage(start: float, later: float) -> ServerOptimizer:
    """Multiply by the rate of the stage, which is read off the channel that leads the round."""

    def update(direction: Vector, state: State, seen: Aggregate) -> tuple[Vector, State]:
        return direction * (start if seen.lead == START else later), state

    def update_(direction: Vector, state: State, seen: Aggregate) -> tuple[Vector, State]:
        return direction.mul_(start if seen.lead == START else later), state

    return ServerOptimizer(stateless, update, update_=update_)


def check_adamw(
    owner: str, steps: int, rate: float, *, beta1: float, beta2: float, eps: float, decay: float
) -> None:
    """Refuse what local steps of AdamW cannot work with.

    Args:
        owner: the algorithm's name, for the error.
        steps: local steps, at least 1.
        rate: the size of a step, above 0.
        beta1: how much of the first moment is kept, in [0, 1).
        beta2: how much of the second moment is kept, in [0, 1).
        eps: added to the root of the second moment.
        decay: weight decay, at least 0.
    """
    checks.check_at_least(1, owner, steps=steps)
    checks.check_positive(owner, rate=rate)
    checks.check_decay(owner, beta1=beta1, beta2=beta2)
    checks.check_stabilizer(owner, eps=eps)
    checks.check_not_negative(owner, decay=decay)
