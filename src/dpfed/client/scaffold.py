# SPDX-License-Identifier: Apache-2.0
"""DP-SCAFFOLD: local steps whose drift is taken out by control variates.

Noble et al. 2022, Algorithm 1; Krouka et al. 2025, Algorithm 4. Client i keeps c_i, the server
their mean c. From y = x, for k = 0 .. K-1:

    records, groups   y <- y - rate (g_k - c_i + c),   g_k a release: T rounds cost T K compositions
    clients           the same with the gradient in clear; then one release zeta of x - y_K
    then              c_i <- c_i - c + (x - y_K) / (K rate),   at client level with zeta for x - y_K

At record level this is the mean of the g_k: at either level c_i holds nothing but releases.
The papers send two vectors, y_K - x and the change of c_i. One is enough: with P_i = (x - y_K)/rate
the change is P_i / K - c, and the server knows c. If of n clients the part q is expected and S
answer, and mean = (sum of their P_i) / (q n):

    x <- x - rate mean,      c <- c + q mean / K - (S / n) c

This keeps c = (1/n) sum of c_i, whoever is absent, if all have one size or weights are "average".
P_i's noise level is not stated: that of c_i and c, of earlier rounds, is in it too. Inferred: q.

``warm`` (both papers): round 0 makes one release, the noisy gradient at x. It becomes c_i, c their
mean, and the model stays; who missed it starts from c_i = 0.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import torch

from dpfed.client._local_steps import gradient_at
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
    Unit,
    Vector,
)
from dpfed.core.checks import check_at_least, check_positive
from dpfed.core.grid import add_values, repack, values_of
from dpfed.core.rows import Dense

PAPER = "Noble et al. 2022 (DP-SCAFFOLD); Karimireddy et al. 2020"


class Control(NamedTuple):
    """A control variate: c_i on a client, c on the server."""

    c: Vector


Answer: TypeAlias = tuple[Reply, Control]


def scaffold(
    steps: int = 5, rate: float = 0.1, warm: bool = True, unit: Unit = Unit.RECORD
) -> ClientAlgorithm:
    """Several local steps, with control variates against the clients' drift.

    Args:
        steps: local steps per round, at least 1; at record level each is a release.
        rate: the size of a local step, above 0.
        warm: spend round 0 on one gradient, from which the control variates begin.
        unit: what one row stands for; the plan fills it in.
    """
    check_at_least(1, "scaffold", steps=steps)
    check_positive("scaffold", rate=rate)
    client = unit is Unit.CLIENT

    def work(broadcast: Broadcast, problem: Problem, state: Control, release: Releaser) -> Answer:
        x = broadcast.params
        if warm and broadcast.round == 0:
            made = release(problem.rows(x, release.unit))
            return {UPDATE: made}, Control(values_of(made, release.nominal, x))
        local = by_client if client else by_record
        return local(x, broadcast.shared["control"], state.c, problem, release)

    def by_record(x: Vector, c: Vector, c_i: Vector, problem: Problem, release: Releaser) -> Answer:
        moved = torch.zeros_like(x)
        for _ in range(steps):
            made = gradient_at(x, moved, rate, problem, release)
            step = made.step
            add_values(moved, made, release.nominal)
            del made  # frees this release before the next one is made
            moved.add_(c).sub_(c_i)
        kept = Control((moved / steps).sub_(c).add_(c_i))
        return {UPDATE: repack(moved.mul_(release.nominal), step)}, kept

    def by_client(x: Vector, c: Vector, c_i: Vector, problem: Problem, release: Releaser) -> Answer:
        y = x.clone()
        for _ in range(steps):
            y.sub_(problem.gradient(y), alpha=rate).sub_(c, alpha=rate).add_(c_i, alpha=rate)
        made = release(Dense((x - y)[None]))
        zeta = values_of(made, release.nominal * steps * rate, y)
        return {UPDATE: made}, Control(zeta.sub_(c).add_(c_i))

    phases = (Phase(1, 1), Phase(None, steps)) if warm else (Phase(None, steps),)
    return ClientAlgorithm(
        init=_zero,
        work=work,
        units=frozenset({unit}),
        channels={UPDATE: Channel() if client else Channel(phases, noise=math.nan)},
        sends_unmodified=client,
        reuses_own_releases=True,
        companion=_server(steps, rate, warm, factor=rate if client else 1.0),
    )


def _zero(params: Vector) -> Control:
    return Control(torch.zeros_like(params))


def _server(steps: int, rate: float, warm: bool, factor: float) -> ServerOptimizer:
    """The server's half, where replies are P_i times ``factor``."""

    def update(mean: Vector, state: Control, seen: Aggregate) -> tuple[Vector, Control]:
        if warm and seen.round == 0:
            return torch.zeros_like(mean), Control(mean * seen.participation_rate)
        c = state.c * (1 - seen.clients / seen.enrolled)
        c.add_(mean, alpha=seen.participation_rate / (steps * factor))
        return mean * (rate / factor), Control(c)

    return ServerOptimizer(_zero, update, share=lambda state: {"control": state.c})
