# SPDX-License-Identifier: Apache-2.0
"""DP-AdaFedProx: local steps that a proximal term of adaptive weight holds back.

Nair et al. 2026, section 5.1 and Table 2; Li et al. 2020 (FedProx), Algorithm 2 and section 5.3.
From theta_0 = theta_t, for k = 0 .. K-1, with g_k a release (records, groups) or in clear
(clients):

    theta_{k+1} = theta_k - rate (g_k + mu_t (theta_k - theta_t)),     so that
    theta_t - theta_K = rate (w_0 g_0 + ... + w_{K-1} g_{K-1}),     w_k = (1 - rate mu_t)^(K-1-k)

At record level T rounds cost T K compositions, and the sum in brackets travels, times sqrt(K)/|w|:
its noise level is then sqrt(K) times one release's whatever mu_t, and the server, which knows mu_t,
multiplies back. At client level theta_t - theta_K is the one release. K = 1 is DP-FedAvg.

Inferred: how mu_t adapts; Nair et al. 2026 names mu_0 and Sahoo et al. 2024 only. Here it is
FedProx's rule (up by ``change`` if the loss rises, down after ``patience`` falls in a row) with a
released figure for the loss, which nobody sees: the squared norm of the round's mean less its known
noise, max(0, |mean|^2 - d std^2). mu_t stays in [0, 1 / rate]: beyond, it would overshoot.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from dpfed.client._local_steps import gradient_at, one_release
from dpfed.core import (
    UPDATE,
    Aggregate,
    Broadcast,
    Channel,
    ClientAlgorithm,
    Phase,
    Problem,
    Releaser,
    Reply,
    ServerOptimizer,
    State,
    Unit,
    Vector,
    stateless,
)
from dpfed.core.checks import check_at_least, check_not_negative, check_positive, refuse
from dpfed.core.grid import add_values, repack
from dpfed.core.rows import Dense
from dpfed.core.vector import dot

PAPER = "Sahoo et al. 2024 (AdaFedProx); Li et al. 2020 (FedProx)"


class Proximal(NamedTuple):
    """mu, as a vector of one number; the last round's signal; how often in a row it fell."""

    mu: Vector
    signal: float
    falls: int


def adafedprox(
    steps: int = 3,
    rate: float = 0.1,
    mu: float = 0.1,
    change: float = 0.1,
    patience: int = 5,
    unit: Unit = Unit.RECORD,
) -> ClientAlgorithm:
    """Local steps with a proximal term whose weight follows the released mean.

    Args:
        steps: local steps per round, at least 1; at record level each is a release.
        rate: the size of a local step, above 0.
        mu: the proximal weight to begin with, in [0, 1 / rate].
        change: by how much the weight moves at a time, at least 0.
        patience: after how many falls of the signal in a row the weight goes down, at least 1.
        unit: what one row stands for; the plan fills it in.
    """
    check_at_least(1, "adafedprox", steps=steps, patience=patience)
    check_positive("adafedprox", rate=rate)
    check_not_negative("adafedprox", change=change)
    if not 0 <= mu * rate <= 1:
        raise refuse("adafedprox.mu", f"from 0 to 1 / rate = {1 / rate:g}", mu)

    def by_record(
        broadcast: Broadcast, problem: Problem, state: State, release: Releaser
    ) -> tuple[Reply, State]:
        keep, level = _weights(broadcast.shared["proximal"], rate, steps)
        total = torch.zeros_like(broadcast.params)
        for _ in range(steps):
            made = gradient_at(broadcast.params, total, rate, problem, release)
            step = made.step
            add_values(total.mul_(keep), made, release.nominal)
            del made  # frees this release before the next one is made
        return {UPDATE: repack(total.mul_(release.nominal / level), step)}, state

    def by_client(
        broadcast: Broadcast, problem: Problem, state: State, release: Releaser
    ) -> tuple[Reply, State]:
        pull, theta = rate * float(broadcast.shared["proximal"]), broadcast.params.clone()
        for _ in range(steps):
            gradient = problem.gradient(theta)
            theta.lerp_(broadcast.params, pull).sub_(gradient, alpha=rate)
        return {UPDATE: release(Dense((broadcast.params - theta)[None]))}, state

    def update(mean: Vector, state: Proximal, seen: Aggregate) -> tuple[Vector, Proximal]:
        factor = rate * _weights(state.mu, rate, steps)[1] if unit is not Unit.CLIENT else 1.0
        return mean * factor, _adapted(state, seen, change, patience, 1 / rate)

    start = Proximal(torch.tensor([mu], dtype=torch.float64), math.nan, 0)
    server = ServerOptimizer(lambda _: start, update, lambda state: {"proximal": state.mu})
    if unit is Unit.CLIENT:
        return one_release(by_client)._replace(companion=server)
    return ClientAlgorithm(
        init=stateless,
        work=by_record,
        units=frozenset({unit}),
        channels={UPDATE: Channel((Phase(None, steps),), noise=math.sqrt(steps))},
        companion=server,
    )


def _weights(mu: Vector, rate: float, steps: int) -> tuple[float, float]:
    """What a step leaves of the sum before it, and |w| / sqrt(K)."""
    keep = 1 - rate * float(mu)
    return keep, math.sqrt(math.fsum(keep ** (2 * k) for k in range(steps)) / steps)


def _adapted(old: Proximal, seen: Aggregate, change: float, patience: int, most: float) -> Proximal:
    if not seen.clients:  # an empty draw; if draws are secret, this is the expected number
        return old
    noise = seen.mean.numel() * seen.std**2 if math.isfinite(seen.std) else 0.0
    signal = max(0.0, dot(seen.mean, seen.mean) - noise)
    if signal > old.signal:
        return Proximal((old.mu + change).clamp_(max=most), signal, 0)
    falls = old.falls + 1 if signal < old.signal else 0
    if falls < patience:
        return Proximal(old.mu, signal, falls)
    return Proximal((old.mu - change).clamp_(min=0.0), signal, 0)
