# SPDX-License-Identifier: Apache-2.0
"""THE PATH: one private round, from the broadcast to the step. The client's half is reply.py.

    server                       client                                      server
    ------                       ------                                      ------
    publish -> Broadcast ------> client_reply: work -> PricedReleaser -> Release
                                   (rows -> clip -> noise -> grid)
                                 sum.reply -> bytes -----------------------> sum.add, as they come
                                                                             sum.close -> Total
                                                                             finish -> Aggregate
                                                                             step

``run_round`` walks it; a transport exchanges the bytes. Everything here uses protocols only, never
a particular algorithm, mechanism or sum. State goes in, state comes out.

Guarantee: if the accounting relies on a secret draw of clients (``Plan.draw_is_secret``),
nothing that leaves the server depends on who was drawn, except for the noisy total.

| edge case                            | the draw is secret            | it is not              |
|--------------------------------------|-------------------------------|------------------------|
| no client is drawn                   | zeros, and the full noise     | the same               |
| a client that is asked is not there  | it adds zero; only the debug  | the row and the log    |
|                                      | log says so                   | name it                |
| none of them replies                 | as if none had been drawn     | the round is aborted   |
| how many an optimizer is told        | the expected number           | those in the total     |
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch

from dpfed.accounting.event_tree import RoundCounts
from dpfed.core.errors import WIRE_NAMES, BadReply, BudgetSpent, ClientRefused
from dpfed.core.grid import to_values
from dpfed.core.log import log
from dpfed.core.sum_protocol import (
    Aborted,
    Directory,
    Opened,
    Requests,
    Session,
    StageReply,
    Sum,
    Verifier,
)
from dpfed.core.types import UPDATE, Aggregate, Broadcast, Release, State, Total, Vector
from dpfed.training.plan import Plan


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
    """If a process that died asked for the coming attempt: the counts without that attempt."""


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundResult:
    """What happened in a round: the server's own; history.py says what of it may be shown."""

    round: int
    aggregate: Aggregate | None = None
    clients: tuple[int, ...]
    """The clients in the total."""
    missing: tuple[int, ...]
    """The clients that were asked and are not in the total."""
    refused: Mapping[int, str]
    """Of the missing ones that sent something: why it was refused."""
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
        roster: who the clients are, if the sum asks for signatures.
    """
    return ServerState(
        params=params,
        optimizer=plan.optimizer.init(params),
        mechanisms=plan.mechanism_states(params.numel()),
        release_counts={},
        cohort=plan.draw(0, 0),
        directory=plan.sum.directory(),
        roster=roster,
        training=training,
    )


def clients_told(plan: Plan, inside: int) -> float:
    """How many clients others are told a total has: under a secret draw, the expected number."""
    return plan.participation_rate * len(plan.nominal) if plan.draw_is_secret else inside


def publish(plan: Plan, state: ServerState) -> Broadcast:
    """The broadcast at the start of a round."""
    shared = plan.optimizer.share(state.optimizer)
    return Broadcast(
        state.round, state.params, shared, attempt=state.attempt, training=state.training
    )


Exchange: TypeAlias = Callable[
    [Broadcast, str, Mapping[str, Mapping[int, bytes]]], Iterable[tuple[int, StageReply]]
]
"""Takes a stage's requests (by channel and client) out, brings (client, reply) back one by one."""


def run_round(
    plan: Plan, state: ServerState, exchange: Exchange
) -> tuple[ServerState, RoundResult]:
    """One round. An aborted one counts like any other, and leaves the model as it was.

    Args:
        plan: what is done, and what it costs.
        state: the server before the round.
        exchange: how a stage's requests reach clients and their replies come back.
    """
    broadcast = publish(plan, state)
    gathered = _gather(plan, broadcast, state, exchange)
    spent = gathered.asked or state.counts_before is not None
    counts = state.release_counts if state.counts_before is None else state.counts_before
    state = replace(state, directory=gathered.directory, release_counts=counts, counts_before=None)
    if spent:  # asked for is spent, opened or not
        # behind a secret draw the server's noise alone hides a release
        counted = {} if plan.draw_is_secret else gathered.totals
        weights = {name: total.weights for name, total in counted.items()}
        state = replace(state, release_counts=plan.counts_after(counts, state.round, weights))
    clients = () if gathered.aborted else next(iter(gathered.totals.values())).clients
    result = RoundResult(
        round=state.round,
        clients=clients,
        missing=tuple(sorted(set(state.cohort) - set(clients))),
        refused=gathered.refused,
        aborted=gathered.aborted,
        spent=spent,
    )
    if gathered.aborted:
        return next_attempt(plan, state), result
    state, aggregate = _aggregate(plan, state, gathered.totals)
    return _step(plan, state, aggregate), replace(result, aggregate=aggregate)


def next_attempt(plan: Plan, state: ServerState) -> ServerState:
    """The same round as a new attempt."""
    attempt = state.attempt + 1
    return replace(state, attempt=attempt, cohort=plan.draw(state.round, attempt))


@dataclass(frozen=True, eq=False, kw_only=True)
class _GatheredTotals:
    totals: dict[str, Total]
    refused: dict[int, str]
    directory: Directory
    aborted: str | None = None
    asked: bool = True
    """Whether releases were asked for: these count as spent, opened or not."""


def _gather(
    plan: Plan, broadcast: Broadcast, state: ServerState, exchange: Exchange
) -> _GatheredTotals:
    """Drive the sum's stages until the totals are opened, or cannot be."""
    refused: dict[int, str] = {}
    due = plan.due(broadcast.round)
    cohorts = {name: plan.cohort(name, state.cohort) for name in due}
    sizes = {name: plan.size(name, broadcast.params.numel()) for name in due}
    if not state.cohort:  # drawing again would invalidate the accounting
        return _GatheredTotals(totals=_zeros(sizes), refused=refused, directory=state.directory)
    context = replace(plan.sum_context(broadcast, SERVER), roster=state.roster)
    following: Requests | Opened | Aborted
    session, following = plan.sum.begin(state.directory, cohorts, sizes, context)
    asked = False
    while isinstance(following, Requests):
        asked = asked or following.stage == plan.sum.release_stage
        level = logging.DEBUG if plan.draw_is_secret else logging.WARNING  # Flower's log is read
        replies = exchange(broadcast, following.stage, following.messages)
        session = add_replies(plan.sum, session, replies, refused, level)
        following = plan.sum.close(session)
    if isinstance(following, Aborted) and plan.draw_is_secret:
        following = Opened(_zeros(sizes))  # giving up would tell that somebody had been drawn
    opened = {} if isinstance(following, Aborted) else following.totals
    return _GatheredTotals(
        totals={name: opened[name] for name in due if name in opened},
        refused=refused,
        directory=plan.sum.directory_after(session),
        aborted=following.reason if isinstance(following, Aborted) else None,
        asked=asked,
    )


def add_replies(
    adder: Sum,
    session: Session,
    replies: Iterable[tuple[int, StageReply]],
    refused: MutableMapping[int, str],
    level: int,
) -> Session:
    """The session after all replies of a stage: each is added to the sum, or noted as refused.

    An error of the transport is raised: there is no round.

    Args:
        adder: the sum.
        session: its session.
        replies: (client, reply), as they come.
        refused: why clients are left out, which is added to.
        level: of the log, for these.
    """
    for client, reply in replies:
        try:
            if isinstance(reply, ClientRefused):
                raise reply
            session = adder.add(session, client, reply)
        except (BadReply, ClientRefused) as error:
            refused[client] = str(error)
            hint = "; its own log says why" if str(error) in WIRE_NAMES else ""
            log.log(level, "client %d is left out of this round: %s%s", client, error, hint)
        del reply  # or two messages are alive while the next one is made
    return session


def _zeros(sizes: Mapping[str, int]) -> dict[str, Total]:
    """All-zero totals: no client was drawn."""
    return {n: Total(torch.zeros(size, dtype=torch.int64), (), ()) for n, size in sizes.items()}


SERVER = -1
"""The server's own index in a sum."""


def _aggregate(
    plan: Plan, state: ServerState, totals: dict[str, Total]
) -> tuple[ServerState, Aggregate]:
    """Totals become means with a known noise level. Frees each total before the next is made."""
    states = dict(state.mechanisms)
    means: dict[str, Vector] = {}
    noise_stds: dict[str, float] = {}
    lead = next(iter(totals))
    clients = clients_told(plan, len(totals[lead].clients))
    planned_std = plan.noise_std(UPDATE)
    for name, divisor in {name: plan.denominator(name) for name in totals}.items():
        release = _finish(plan, state, name, totals.pop(name), states)
        means[name] = to_values(release.vector, release.step / divisor, like=state.params)
        noise_stds[name] = release.std / divisor
    aggregate = Aggregate(
        round=state.round,
        params=state.params,
        mean=means.pop(lead),
        std=noise_stds[lead] * plan.declared[lead].noise,
        clients=clients,
        public=means,
        enrolled=len(plan.nominal),
        participation_rate=plan.participation_rate,
        lead=lead,
        rounds=plan.rounds,
        planned_std=planned_std,
        noise_stds=noise_stds,
        clip=plan.channels[lead].clip if lead in plan.channels else math.nan,
    )
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
        state,
        round=following,
        params=state.params - direction,
        optimizer=after,
        attempt=0,
        cohort=plan.draw(following, 0),
    )
