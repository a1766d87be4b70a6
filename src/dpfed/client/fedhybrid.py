# SPDX-License-Identifier: Apache-2.0
"""Private FedHybrid: a few rounds of FedAvg as a start, then FedSGD.

Auddy, Paul and Peng 2026: FedAvg's estimator, whose federation bias does not vanish, is
where FedSGD begins, which has none. With K = steps, R = start:

    rounds 0 .. R-1   theta_{k+1} = theta_k - rate g_k, K times on each client, then the mean
    rounds R ..       theta_{t+1} = theta_t - step (mean of gradients)

Each stage is mu / sqrt(2)-GDP (the paper's appendix), that is half of the squared mu: ``share`` is
the start's part, and the rest is FedSGD's. At record and group level each local step is a release
of a clipped, noised gradient sum; the start's reply g_0 + ... + g_{K-1} has sqrt(K) times the noise
of one release. At client level local steps are in clear, and theta_0 - theta_K is clipped and
released once a round.

The start's replies have a channel of their own, since its noise is sized apart; the server half
multiplies by the stage's rate, so that the plan's own optimizer is ``scale`` with rate 1. With
start = 0 this is DP-FedGD, to the bit.
"""

from __future__ import annotations

import math

from dpfed.client._local_steps import local_steps
from dpfed.core.chain import stateless
from dpfed.core.errors import RecipeError
from dpfed.core.types import (
    UPDATE,
    Aggregate,
    Broadcast,
    Channel,
    ClientAlgorithm,
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

PAPER = "Auddy et al. 2026 (FedHybrid)"

START = "start"


def fedhybrid(
    start: int = 2,
    steps: int = 5,
    rate: float = 0.1,
    step: float = 1.0,
    share: float = 0.5,
    unit: Unit = Unit.RECORD,
) -> ClientAlgorithm:
    """Rounds of local steps first, then one gradient per round."""
    if start < 0 or steps < 1 or not all(math.isfinite(v) and v > 0 for v in (rate, step)):
        raise RecipeError(
            f"fedhybrid's start is {start}, its steps {steps}, its rate {rate} and its step {step};"
            f" they are at least 0 and 1, and finite and above 0"
        )
    if not 0 < share < 1:
        raise RecipeError(f"fedhybrid's share is {share}; it lies between 0 and 1: try 0.5")

    def start_at(params: Vector, problem: Problem, release: Releaser) -> Release:
        return local_steps(params, steps, rate, problem, release, START)

    def work(
        broadcast: Broadcast, problem: Problem, state: State, release: Releaser
    ) -> tuple[Reply, State]:
        if broadcast.round < start:
            return {START: start_at(broadcast.params, problem, release)}, state
        return {UPDATE: release(problem.rows(broadcast.params, release.unit))}, state

    channels = {UPDATE: Channel((Phase(start, 0), Phase(None, 1)))}
    if start:
        count = 1 if unit is Unit.CLIENT else steps
        once = (Phase(start, count), Phase(None, 0))
        channels[START] = Channel(once, share=share, noise=math.sqrt(count))
    return ClientAlgorithm(
        stateless, work, frozenset({unit}), channels,
        unchanged=unit is Unit.CLIENT or not start,
        companion=_by_stage(1.0 if unit is Unit.CLIENT else rate, step),
    )  # fmt: skip


def _by_stage(rate: float, step: float) -> ServerOptimizer:
    """The stage is read off the channel that leads the round."""

    def update(direction: Vector, state: State, seen: Aggregate) -> tuple[Vector, State]:
        return direction * (rate if seen.lead == START else step), state

    def update_(direction: Vector, state: State, seen: Aggregate) -> tuple[Vector, State]:
        return direction.mul_(rate if seen.lead == START else step), state

    return ServerOptimizer(stateless, update, update_=update_)
