# SPDX-License-Identifier: Apache-2.0
"""DP-FedSAM's client: local steps of sharpness-aware minimization.

DP-FedAdamW supplement 2026, Tables 10 and 11; Foret et al. 2021, eq. (2) and Algorithm 1; Qu et al.
2022. From theta_0 = theta_t, for k = 0 .. K-1:

    climb     a_k = gradient at theta_k
    descend   g_k = gradient at theta_k + radius a_k / |a_k|,      theta_{k+1} = theta_k - rate g_k

At record and group level a_k and g_k are releases: T rounds cost 2 T K compositions, twice
DP-FedAvg's. (DP-FedAdamW's supplement puts that at about 2 epsilon; exactly, mu grows by
sqrt(2).) At client level both are in clear, and the one release is theta_0 - theta_K.

The reply is g_0 + ... + g_{K-1}, and the server half multiplies by the rate. Its stated noise
level, sqrt(K) times one release's, is that of the steps themselves; the noise of the a_k only moves
the points at which they are taken, by at most the radius.

Inferred: that the climb is a release of its own, on all records of the client. Where a_k = 0 there
is nothing to climb, and g_k is taken at theta_k.
"""

from __future__ import annotations

import math

import torch

from dpfed.client._local_steps import gradient_at, one_release
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
    Vector,
    rescale,
    stateless,
)
from dpfed.core.checks import check_at_least, check_not_negative, check_positive
from dpfed.core.grid import add_values, repack, values_of
from dpfed.core.rows import Dense
from dpfed.core.vector import dot

PAPER = "Qu et al. 2022 (FedSAM); Foret et al. 2021 (SAM)"


def fedsam(
    steps: int = 3, rate: float = 0.1, radius: float = 0.05, unit: Unit = Unit.RECORD
) -> ClientAlgorithm:
    """Local steps by the gradient at a point uphill: two releases a step at record level.

    Args:
        steps: local steps per round, at least 1; at record level each is two releases.
        rate: the size of a local step, above 0.
        radius: how far uphill the gradient is taken, in the parameters' norm; 0 is DP-FedAvg.
        unit: what one row stands for; the plan fills it in.
    """
    check_at_least(1, "fedsam", steps=steps)
    check_positive("fedsam", rate=rate)
    check_not_negative("fedsam", radius=radius)

    def by_record(
        broadcast: Broadcast, problem: Problem, state: State, release: Releaser
    ) -> tuple[Reply, State]:
        params, total = broadcast.params, torch.zeros_like(broadcast.params)
        for _ in range(steps):
            made = gradient_at(params, total, rate, problem, release)
            climb = _climb(values_of(made, release.nominal, params), radius)
            del made  # frees this release before the next one is made
            rows = problem.rows(climb.sub_(total, alpha=rate).add_(params), release.unit)
            del climb
            made = release(rows)
            step = made.step
            add_values(total, made, release.nominal)
            del made
        return {UPDATE: repack(total.mul_(release.nominal), step)}, state

    def by_client(
        broadcast: Broadcast, problem: Problem, state: State, release: Releaser
    ) -> tuple[Reply, State]:
        theta = broadcast.params.clone()
        for _ in range(steps):
            above = _climb(problem.gradient(theta).clone(), radius).add_(theta)
            theta.sub_(problem.gradient(above), alpha=rate)
        return {UPDATE: release(Dense((broadcast.params - theta)[None]))}, state

    if unit is Unit.CLIENT:
        return one_release(by_client)
    return ClientAlgorithm(
        init=stateless,
        work=by_record,
        units=frozenset({unit}),
        channels={UPDATE: Channel((Phase(None, 2 * steps),), noise=math.sqrt(steps))},
        companion=rescale(rate),
    )


def _climb(gradient: Vector, radius: float) -> Vector:
    """The gradient, scaled in place to the norm ``radius``."""
    norm = math.sqrt(dot(gradient, gradient))
    return gradient.mul_(radius / norm if norm > 0 else 0.0)
