# SPDX-License-Identifier: Apache-2.0
"""THE PATH: one private round, from the broadcast to the step. The client's half is answer.py.

    server                       client                                      server
    ------                       ------                                      ------
    publish -> Broadcast ------> answer: work -> PricedReleaser -> Release
                                   (rows -> clip -> noise -> grid)
                                 sum.answer -> bytes ----------------------> sum.add, as they come
                                                                             sum.close -> Total
                                                                             finish -> Aggregate
                                                                             step

``run_round`` walks it; a transport exchanges the bytes. Everything here uses protocols only, never
a particular algorithm, mechanism or sum. State goes in, state comes out.

Guarantee: where a draw of clients is priced (``draw_is_secret``), nothing that leaves the server
depends on who was drawn, but for the total that has the noise.

| edge case                            | the draw is priced            | it is not              |
|--------------------------------------|-------------------------------|------------------------|
| nobody is drawn                      | zeros, and the full noise     | the same               |
| a client that is asked is not there  | it adds zero, and nobody says | the row and the log    |
|                                      | so; the log at level debug    | name it                |
| none of them answers                 | as if nobody had been drawn   | the round is aborted   |
| how many an optimizer is told        | the expected number           | those in the total     |
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch

from dpfed.accounting.event_tree import RoundCounts
from dpfed.core.errors import BudgetSpent
from dpfed.core.grid import to_values
from dpfed.core.sampling import Everyone
from dpfed.core.sum_protocol import (
    Aborted,
    Answer,
    Directory,
    Opened,
    Requests,
    Verifier,
)
from dpfed.core.types import UPDATE, Aggregate, Broadcast, Release, State, Total, Vector
from dpfed.training.plan import Plan
from dpfed.training.take import Taking


@dataclass(frozen=True, eq=False, kw_only=True)
class ServerState:
    """The server between two rounds."""

    round: int = 0
    params: Vector
    optimizer: State
    mechanisms: Mapping[str, State]
    release_counts: RoundCounts
    """Attempts that were asked for, by what they release."""
    attempt: int = 0
    cohort: tuple[int, ...] = ()
    """Who is asked in the round to come."""
    directory: Directory = None
    """What the sum keeps between rounds, such as clients' public keys."""
    roster: Verifier | None = None
    training: str = "run"
    counts_before: RoundCounts | None = None
    """Where the attempt to come was asked for by a process that died: the counts without it."""


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundResult:
    """What happened in a round: the server's own; history.py says what of it may be shown."""

    round: int
    aggregate: Aggregate | None = None
    clients: tuple[int, ...]
    """Those in the total."""
    missing: tuple[int, ...]
    """Those who were asked and are not."""
    refused: Mapping[int, str]
    """Why, where something came."""
    aborted: str | None = None
    spent: bool = True
    """Whether releases were asked for; if not, an aborted round has cost nothing."""

    @property
    def exhausted(self) -> bool:
        """Whether every refusal was for a spent budget: asking again would not help."""
        words = set(self.refused.values())
        return self.aborted is not None and words == {BudgetSpent.__name__}


def start(
    plan: Plan, params: Vector, training: str = "run", roster: Verifier | None = None
) -> ServerState:
    """The server before the first round.

    Args:
        plan: what is done, and what it costs.
        params: the model's flat parameters to begin with.
        training: the name of the training, under which clients keep state.
        roster: who the clients are, where the sum asks for signatures.
    """
    return ServerState(
        params=params, optimizer=plan.optimizer.init(params),
        mechanisms=plan.mechanism_states(params.numel()),
        release_counts={}, cohort=plan.draw(0, 0),
        directory=plan.sum.directory(), roster=roster, training=training,
    )  # fmt: skip


def draw_is_secret(plan: Plan) -> bool:
    """Whether the price counts on it that nobody but the server knows who was drawn."""
    return not isinstance(plan.amplified, Everyone)


def clients_told(plan: Plan, inside: int) -> float:
    """How many clients a total has, as others are told: a secret draw gives the expected number."""
    return plan.part_asked * len(plan.nominal) if draw_is_secret(plan) else inside


def publish(plan: Plan, state: ServerState) -> Broadcast:
    """What goes out at the start of a round."""
    shared = plan.optimizer.share(state.optimizer)
    return Broadcast(
        state.round, state.params, shared, attempt=state.attempt, training=state.training
    )


Exchange: TypeAlias = Callable[
    [Broadcast, str, Mapping[str, Mapping[int, bytes]]], Iterable[tuple[int, Answer]]
]
"""Takes a stage's requests (by channel and client) out, brings (client, answer) back one by one."""


def run_round(
    plan: Plan, state: ServerState, exchange: Exchange
) -> tuple[ServerState, RoundResult]:
    """One round. An aborted one counts like any other, and leaves the model as it was.

    Args:
        plan: what is done, and what it costs.
        state: the server before the round.
        exchange: how a stage's requests reach clients and their answers come back.
    """
    broadcast = publish(plan, state)
    gathered = _gather(plan, broadcast, state, exchange)
    spent = gathered.asked or state.counts_before is not None
    counts = state.release_counts if state.counts_before is None else state.counts_before
    state = replace(state, directory=gathered.directory, release_counts=counts, counts_before=None)
    if spent:
        state = _count(plan, state, gathered.totals)
    clients = () if gathered.aborted else next(iter(gathered.totals.values())).clients
    result = RoundResult(
        round=state.round, clients=clients,
        missing=tuple(sorted(set(state.cohort) - set(clients))), refused=gathered.refused,
        aborted=gathered.aborted, spent=spent,
    )  # fmt: skip
    if gathered.aborted:
        return next_attempt(plan, state), result
    state, aggregate = _aggregate(plan, state, gathered.totals)
    return _step(plan, state, aggregate), replace(result, aggregate=aggregate)


def next_attempt(plan: Plan, state: ServerState) -> ServerState:
    """The same round as a new attempt."""
    attempt = state.attempt + 1
    return replace(state, attempt=attempt, cohort=plan.draw(state.round, attempt))


@dataclass(frozen=True, eq=False, kw_only=True)
class _Gathered:
    totals: dict[str, Total]
    refused: dict[int, str]
    directory: Directory
    aborted: str | None = None
    asked: bool = True
    """Whether releases were asked for: these count as spent, opened or not."""


def _gather(plan: Plan, broadcast: Broadcast, state: ServerState, exchange: Exchange) -> _Gathered:
    """Drive the sum's stages until the totals are opened, or cannot be."""
    refused: dict[int, str] = {}
    due = plan.due(broadcast.round)
    cohorts = {name: plan.cohort(name, state.cohort) for name in due}
    sizes = {name: plan.size(name, broadcast.params.numel()) for name in due}
    if not state.cohort:  # drawing again would invalidate the accounting
        return _Gathered(totals=_zeros(sizes), refused=refused, directory=state.directory)
    context = replace(plan.sum_context(broadcast, SERVER), roster=state.roster)
    following: Requests | Opened | Aborted
    session, following = plan.sum.begin(state.directory, cohorts, sizes, context)
    asked = False
    while isinstance(following, Requests):
        asked = asked or following.stage == plan.sum.release_stage
        level = logging.DEBUG if draw_is_secret(plan) else logging.WARNING  # Flower's log is read
        answers = exchange(broadcast, following.stage, following.messages)
        session = Taking(plan.sum, session, refused, level).all(answers)
        following = plan.sum.close(session)
    if isinstance(following, Aborted) and draw_is_secret(plan):
        following = Opened(_zeros(sizes))  # giving up would tell that somebody had been drawn
    opened = {} if isinstance(following, Aborted) else following.totals
    return _Gathered(
        totals={name: opened[name] for name in due if name in opened}, refused=refused,
        directory=plan.sum.directory_after(session),
        aborted=following.reason if isinstance(following, Aborted) else None, asked=asked,
    )  # fmt: skip


def _zeros(sizes: Mapping[str, int]) -> dict[str, Total]:
    """The totals of nobody."""
    return {n: Total(torch.zeros(size, dtype=torch.int64), (), ()) for n, size in sizes.items()}


SERVER = -1
"""The server's own index in a sum."""


def _count(plan: Plan, state: ServerState, totals: Mapping[str, Total]) -> ServerState:
    """Enter the round's releases: asked for is spent, opened or not."""
    counted = {} if draw_is_secret(plan) else totals  # there the server's noise alone hides them
    shares = {name: plan.hidden_by(total.weights) for name, total in counted.items()}
    return replace(state, release_counts=with_next(plan, state, shares))


def with_next(plan: Plan, state: ServerState, shares: Mapping[str, float]) -> RoundCounts:
    """The attempts after the coming one.

    Args:
        plan: what is done, and what it costs.
        state: the server before the round.
        shares: how many shares of noise hide a release, by channel; 1 where it is left out.
    """
    kind = plan.round_kind(state.round, shares)
    return {**state.release_counts, kind: state.release_counts.get(kind, 0) + 1}


def _aggregate(
    plan: Plan, state: ServerState, totals: dict[str, Total]
) -> tuple[ServerState, Aggregate]:
    """Totals become means with a known noise level. Frees each total before the next is made."""
    states = dict(state.mechanisms)
    means: dict[str, Vector] = {}
    levels: dict[str, float] = {}
    lead = next(iter(totals))
    clients = clients_told(plan, len(totals[lead].clients))
    for name in list(totals):
        release = _finish(plan, state, name, totals.pop(name), states)
        divisor = plan.denominator(name)
        means[name] = to_values(release.vector, release.step / divisor, like=state.params)
        levels[name] = release.std / divisor
    aggregate = Aggregate(
        round=state.round, params=state.params, mean=means.pop(lead),
        std=levels[lead] * plan.declared[lead].noise, clients=clients, public=means,
        enrolled=len(plan.nominal), rate=plan.part_asked, lead=lead,
        rounds=plan.rounds, planned_std=plan.level(UPDATE), levels=levels,
        clip=plan.channels[lead].clip if lead in plan.channels else math.nan,
    )  # fmt: skip
    return replace(state, mechanisms=states), aggregate


def _finish(
    plan: Plan, state: ServerState, name: str, total: Total, states: dict[str, State]
) -> Release:
    if name not in plan.channels:  # derived
        return Release(total.vector, math.nan, plan.step(name))
    rng = plan.noise.stream("finish", state.round, state.attempt, name)
    release, states[name] = plan.channels[name].finish(total, states[name], rng)
    return release


def _step(plan: Plan, state: ServerState, aggregate: Aggregate) -> ServerState:
    """The optimizer acts on the private mean; its buffers may be reused, the mean is a copy."""
    optimizer = plan.optimizer
    update = optimizer.update_ or optimizer.update
    direction, after = update(aggregate.mean.clone(), state.optimizer, aggregate)
    following = state.round + 1
    return replace(
        state, round=following, params=state.params - direction, optimizer=after,
        attempt=0, cohort=plan.draw(following, 0),
    )  # fmt: skip
