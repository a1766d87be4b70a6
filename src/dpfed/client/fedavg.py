# SPDX-License-Identifier: Apache-2.0
"""DP-FedAvg's client: several local steps, then one pseudo-gradient.

Nair et al. 2026, section 5.1; McMahan et al. 2018. From theta_0 = theta_t, for k = 0 .. K-1:

    records, groups   theta_{k+1} = theta_k - rate g_k,   g_k = (clipped sum at theta_k + noise) / m
                      every step is a release: T rounds cost T K compositions
    clients           theta_{k+1} = theta_k - rate grad f_i(theta_k), in clear, on the client;
                      then one release: the clipped and noised theta_0 - theta_K

The reply is theta_0 - theta_K. At record level it travels as g_0 + ... + g_{K-1}, and the server
half multiplies by the rate: the noise level of that sum is known, sqrt(K) times one release's.
"""

from __future__ import annotations

import math

from dpfed.client._local_steps import local_steps, one_release
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
    rescale,
    stateless,
)
from dpfed.core.checks import check_at_least, check_positive

PAPER = "McMahan et al. 2018 (DP-FedAvg)"


def fedavg(steps: int = 5, rate: float = 0.1, unit: Unit = Unit.RECORD) -> ClientAlgorithm:
    """Several local gradient steps; at record level each is a release.

    Args:
        steps: local steps per round, at least 1; at record level each is a release.
        rate: the size of a local step, above 0.
        unit: what one row stands for; the plan fills it in.
    """
    check_at_least(1, "fedavg", steps=steps)
    check_positive("fedavg", rate=rate)

    def work(
        broadcast: Broadcast, problem: Problem, state: State, release: Releaser
    ) -> tuple[Reply, State]:
        return {UPDATE: local_steps(broadcast.params, steps, rate, problem, release)}, state

    if unit is Unit.CLIENT:
        return one_release(work)
    return ClientAlgorithm(
        init=stateless,
        work=work,
        units=frozenset({unit}),
        channels={UPDATE: Channel((Phase(None, steps),), noise=math.sqrt(steps))},
        companion=rescale(rate),
    )
