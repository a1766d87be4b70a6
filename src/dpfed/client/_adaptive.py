# SPDX-License-Identifier: Apache-2.0
"""A clip that follows a quantile of the norms, around any algorithm with one release a round.

Andrew, Thakkar, McMahan and Ramaswamy 2021 ("Differentially private learning with adaptive
clipping"). In round t the server broadcasts a clip C_t, and a client releases, of its rows r,

    update   the sum of clip(r / C_t, 1)                             R 2, Z 1, A 1
    count    the sum of b - 1/2,  b = 1 if |r| <= C_t                R 1, Z 1/2, A 1/2

each with noise of its own (R replace-one, Z zero-out, A add-remove: how far one unit moves it; the
paper adds noise for 1/2 in all cases). The server multiplies the mean update by the C_t that it
sent, and with bbar = 1/2 + the mean count, cut to [0, 1], continues with

    C_{t+1} = C_t exp(-rate (bbar - quantile))

which is post-processing of releases. Clip, noise and grid are the plan's constants in units of C_t:
a server that broadcasts another number gets other rows, never less noise on them
(core/adaptive_rows.py has what becomes of numbers that are none). The rounds compose adaptively,
and cost what the plan says: share of the squared mu for the counts, the rest for the updates.

Correlated noise is kept in units of C_t as well. Its cost is for rows of norm 1 that may depend
on all earlier releases, so it holds; what a later round takes back is in that round's unit, so that
noise cancels as far as the clip stays. Counts are not summed over rounds: theirs is independent.

Not as in the paper: bbar is cut, so that with much noise a round moves the clip by exp(rate) at
most; a client that does not answer counts as half within.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from dpfed.core import (
    UPDATE,
    Aggregate,
    Broadcast,
    Channel,
    ClientAlgorithm,
    Problem,
    Release,
    Releaser,
    Reply,
    ServerOptimizer,
    State,
    UnsoundPlan,
    Vector,
    checks,
)
from dpfed.core.adaptive_rows import MAX_CLIP, MIN_CLIP, ClipIndicator, ScaledByClip
from dpfed.core.types import MadeBy, Rows, place_of

PAPER = "Andrew et al. 2021 (adaptive clipping)"

COUNT, CLIP = "count", "clip"
"""The channel of the counts, and the name that the clip is broadcast under."""


class AdaptiveState(NamedTuple):
    """The clip of the round to come."""

    clip: float


def adaptive(
    algorithm: ClientAlgorithm,
    first: float,
    *,
    quantile: float = 0.5,
    rate: float = 0.2,
    share: float = 0.01,
) -> ClientAlgorithm:
    """The same algorithm, its rows in units of a clip that the server half adapts.

    Args:
        algorithm: one that sends one release a round as it is, clipped to the recipe's clip.
        first: the clip of the first round.
        quantile: the part of the units whose rows shall be within the clip, between 0 and 1.
        rate: how fast the clip moves, above 0.
        share: the counts' part of the squared mu, between 0 and 1.
    """
    checks.check_fraction("privacy.adaptive", quantile=quantile, share=share)
    checks.check_positive("privacy.adaptive", rate=rate)
    if not MIN_CLIP <= first <= MAX_CLIP:
        raise checks.refuse("privacy.clip", "between 2^-40 and 2^40 where it adapts", first)
    _check(algorithm)
    inner = algorithm.made_by or MadeBy(place_of(algorithm.work))
    options = {"first": first, "quantile": quantile, "rate": rate, "share": share}

    def work(
        broadcast: Broadcast, problem: Problem, state: State, release: Releaser
    ) -> tuple[Reply, State]:
        door = _ScalingReleaser(release, _clip_in(broadcast))
        reply, after = algorithm.work(broadcast, problem, state, door)
        return {**reply, **door.counts}, after

    return algorithm._replace(
        work=work,
        companion=tracking(first, quantile, rate),
        channels={
            UPDATE: Channel(clip=1.0),
            COUNT: Channel(size=1, clip=0.5, budget_fraction=share),
        },
        made_by=MadeBy("adaptive", options, inner),
    )


def _check(algorithm: ClientAlgorithm) -> None:
    own = algorithm.channels != {UPDATE: Channel()} or algorithm.companion is not None
    if own or not algorithm.sends_unmodified or algorithm.reuses_own_releases:
        name = algorithm.made_by.name if algorithm.made_by else "this algorithm"
        raise checks.refuse(
            "privacy.adaptive",
            f"left out for client {name!r} at this unit, which has releases, a clip or a server "
            f"half of its own",
            "a table",
            "leave it out, or set method = 'dp-fedgd'",
        )


def _clip_in(broadcast: Broadcast) -> float:
    sent = broadcast.shared.get(CLIP)
    if sent is None or sent.numel() != 1:
        raise UnsoundPlan(
            f"the server must share one number as {CLIP!r}, got {sorted(broadcast.shared)}; give "
            f"both sides the same plan"
        )
    return float(sent)


class _ScalingReleaser:
    """A releaser that divides rows by the clip, and counts the rows whose norm is within it."""

    def __init__(self, release: Releaser, clip: float) -> None:
        self.unit, self.nominal = release.unit, release.nominal
        self.counts: dict[str, Release] = {}
        self._release, self._clip = release, clip

    def __call__(self, rows: Rows, channel: str = UPDATE) -> Release:
        self.counts[COUNT] = self._release(ClipIndicator(rows, self._clip), COUNT)
        return self._release(ScaledByClip(rows, self._clip), channel)


def tracking(first: float, quantile: float, rate: float) -> ServerOptimizer:
    """The server's half: it gives the mean its own units again, and sets the next round's clip.

    Args:
        first: the clip of the first round, above 0.
        quantile: the part of the units whose rows shall be within the clip.
        rate: how fast the clip moves.
    """

    def following(state: AdaptiveState, seen: Aggregate) -> AdaptiveState:
        if not seen.clients:  # an empty draw, if draws are public
            return state
        within = min(1.0, max(0.0, 0.5 + float(seen.public[COUNT])))
        clip = state.clip * math.exp(-rate * (within - quantile))
        return AdaptiveState(min(MAX_CLIP, max(MIN_CLIP, clip)))

    def update(g: Vector, state: AdaptiveState, seen: Aggregate) -> tuple[Vector, AdaptiveState]:
        return g * state.clip, following(state, seen)

    def update_(g: Vector, state: AdaptiveState, seen: Aggregate) -> tuple[Vector, AdaptiveState]:
        return g.mul_(state.clip), following(state, seen)

    return ServerOptimizer(
        init=lambda _: AdaptiveState(first),
        update=update,
        update_=update_,
        share=lambda state: {CLIP: torch.tensor([state.clip], dtype=torch.float64)},
        gain=lambda state: state.clip,
    )
