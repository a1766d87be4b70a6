# SPDX-License-Identifier: Apache-2.0
"""Private FedHybrid: a few rounds of FedAvg first, then FedSGD from there.

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

from dpfed.client._local_steps import START, by_stage, local_steps, start_channel
from dpfed.core import (
    UPDATE,
    Broadcast,
    Channel,
    ClientAlgorithm,
    Phase,
    Problem,
    Releaser,
    Reply,
    State,
    Unit,
    stateless,
)
from dpfed.core.checks import check_at_least, check_fraction, check_positive

PAPER = "Auddy et al. 2026 (FedHybrid)"


def fedhybrid(
    start: int = 2,
    steps: int = 5,
    rate: float = 0.1,
    step: float = 1.0,
    share: float = 0.5,
    unit: Unit = Unit.RECORD,
) -> ClientAlgorithm:
    """Rounds of local steps first, then one gradient per round.

    Args:
        start: rounds of local steps at the beginning, at least 0; 0 is DP-FedGD.
        steps: local steps per such round, at least 1; at record level each is a release.
        rate: the size of a local step, above 0.
        step: the size of a step in the later rounds, above 0.
        share: the start's part of the squared mu, between 0 and 1.
        unit: what one row stands for; the plan fills it in.
    """
    check_at_least(0, "fedhybrid", start=start)
    check_at_least(1, "fedhybrid", steps=steps)
    check_positive("fedhybrid", rate=rate, step=step)
    check_fraction("fedhybrid", share=share)

    def work(
        broadcast: Broadcast, problem: Problem, state: State, release: Releaser
    ) -> tuple[Reply, State]:
        if broadcast.round < start:
            made = local_steps(broadcast.params, steps, rate, problem, release, START)
            return {START: made}, state
        return {UPDATE: release(problem.rows(broadcast.params, release.unit))}, state

    alone = unit is Unit.CLIENT
    channels = {UPDATE: Channel((Phase(start, 0), Phase(None, 1)))}
    if start:
        channels[START] = start_channel(start, 1 if alone else steps, share)
    return ClientAlgorithm(
        init=stateless,
        work=work,
        units=frozenset({unit}),
        channels=channels,
        sends_unmodified=alone or not start,
        companion=by_stage(1.0 if alone else rate, step),
    )
