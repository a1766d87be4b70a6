# SPDX-License-Identifier: Apache-2.0
"""The client's half of a round: data goes in, and only releases come out, through one door.

    order -> work -> PricedReleaser -> Release -> sum.answer -> bytes
               (rows -> clip -> noise -> grid)

Guarantee: an algorithm can send nothing but what a PricedReleaser gave it, as often as the plan
accounts for; each release is in the client's ledger, if there is one, before noise is drawn for it;
whatever goes wrong leaves as a class name from a fixed list.

| edge case                                            | what happens                            |
|------------------------------------------------------|-----------------------------------------|
| one release more than the plan has, or another channel | UnsoundPlan, nothing leaves           |
| a reply that was not released, or was changed        | UnsoundPlan, nothing leaves             |
| the ledger refuses                                   | BudgetSpent; no noise is drawn          |
| a client without data at the release stage           | DataError                               |
| any other exception                                  | logged locally; ClientError leaves      |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from dpfed.core.errors import ClientRefused, DataError, UnsoundPlan, wire_name
from dpfed.core.log import log
from dpfed.core.sum_protocol import Answer, Signer
from dpfed.core.types import (
    METRICS,
    UPDATE,
    Broadcast,
    Problem,
    Release,
    Releaser,
    Reply,
    Rows,
    State,
    Unit,
)
from dpfed.training.plan import Plan


class ClientLedger(Protocol):
    """Where a client's releases are entered before they are made: its ledger (account.py)."""

    def begin(self, plan: Plan, broadcast: Broadcast, client: ClientState) -> tuple[int, ...]:
        """Enter the round of one client, or refuse it."""

    def confirm(self, rows: Iterable[int]) -> None:
        """The releases of these rows were made."""


@dataclass(frozen=True, eq=False)
class ClientState:
    """One client between two messages: all of it stays there."""

    client: int
    problem: Problem | None = None
    """Its data; a stage that releases nothing does without."""
    state: State = None
    mechanisms: Mapping[str, State] = field(default_factory=dict)
    secret: bytes = b""
    """What the sum keeps here between stages and rounds."""
    signer: Signer | None = None
    ledger: ClientLedger | None = None
    """Where its releases are entered; without one they are not."""


class PricedReleaser:
    """The one door out of a client: it clips, adds noise, and counts what it let through."""

    def __init__(self, plan: Plan, broadcast: Broadcast, client: ClientState) -> None:
        self.unit: Unit = plan.update.unit
        self.nominal: float = plan.nominal[client.client] * plan.expected(UPDATE)
        fresh = plan.mechanism_states(broadcast.params.numel())
        self.states: dict[str, State] = {**fresh, **client.mechanisms}
        self.made: dict[str, list[Release | None]] = {}  # held only if it must be sent as it is
        self._plan, self._broadcast, self._client = plan, broadcast, client.client

    def __call__(self, rows: Rows, channel: str = UPDATE) -> Release:
        """Release rows on a channel, once more in this round."""
        made = self.made.setdefault(channel, [])
        at = self._broadcast.round
        known = channel in self._plan.channels
        planned = self._plan.releases(channel, at) if known else 0
        if len(made) >= planned:
            raise UnsoundPlan(
                f"releases on {channel!r} in round {at} must be at most {planned}, as the plan "
                f"accounts for, got number {len(made) + 1}; declare it in the algorithm's channels"
            )
        mechanism = self._plan.channels[channel]
        call = (at, self._client, self._broadcast.attempt, channel, len(made))
        rng = self._plan.noise.stream("release", *call)
        release, self.states[channel] = mechanism.release(rows, self.states[channel], rng)
        made.append(release if self._plan.client.sends_unmodified else None)
        return release


def answer(
    plan: Plan,
    broadcast: Broadcast,
    stage: str,
    requests: Mapping[str, bytes],
    client: ClientState,
) -> tuple[Answer, ClientState]:
    """A client's answer to one stage. Whatever goes wrong leaves as a class name only.

    Args:
        plan: what this client has agreed to.
        broadcast: what the server published for the round.
        stage: the stage of the plan's sum.
        requests: what the sum's server side asks of this client, by name.
        client: what the client keeps.
    """
    try:
        return _answer(plan, broadcast, stage, requests, client)
    except Exception as error:
        log.exception("client %d could not answer round %d", client.client, broadcast.round)
        return ClientRefused(wire_name(error)), client


def _answer(
    plan: Plan,
    broadcast: Broadcast,
    stage: str,
    requests: Mapping[str, bytes],
    client: ClientState,
) -> tuple[Answer, ClientState]:
    reply: Reply | None = None
    entered: tuple[int, ...] = ()
    if stage == plan.sum.release_stage:
        if client.ledger:  # on the disk before any noise is drawn
            entered = client.ledger.begin(plan, broadcast, client)
        reply, client = make_reply(plan, broadcast, client, PricedReleaser(plan, broadcast, client))
    context = plan.sum_context(broadcast, client.client, client.signer)
    messages, secret = plan.sum.answer(stage, requests, reply, client.secret, context)
    if client.ledger and entered:  # what is not confirmed counts as spent, too
        client.ledger.confirm(entered)
    return messages, replace(client, secret=secret)


def make_reply(
    plan: Plan, broadcast: Broadcast, client: ClientState, release: Releaser
) -> tuple[Reply, ClientState]:
    """The algorithm's work, then the metrics where they are due: all of it through ``release``.

    Args:
        plan: what this client has agreed to.
        broadcast: what the server published for the round.
        client: what the client keeps; its data is in it.
        release: the one door out.
    """
    if client.problem is None:
        raise DataError(
            f"client {client.client} has no data, and a release is due; give its ClientState a "
            f"problem"
        )
    state = plan.client.init(broadcast.params) if client.state is None else client.state
    reply, state = plan.client.work(broadcast, client.problem, state, release)
    if METRICS in plan.due(broadcast.round):
        rows = client.problem.metric_rows(broadcast.params, release.unit, plan.loss_bound)
        reply = {**reply, METRICS: release(rows, METRICS)}
    if isinstance(release, PricedReleaser):
        _check_reply(plan, reply, release)
        client = replace(client, mechanisms=release.states)
    return reply, replace(client, state=state)


def _check_reply(plan: Plan, reply: Reply, releaser: PricedReleaser) -> None:
    """Refuse a reply that was not released, or was modified where the algorithm says it is not."""
    for name, release in reply.items():
        made = releaser.made.get(name, [])
        if plan.client.sends_unmodified and [id(release)] != [id(one) for one in made]:
            raise UnsoundPlan(
                f"the reply on {name!r} is not the one release that was made for it; send that "
                f"release, or declare sends_unmodified = False"
            )
        derived = name in plan.declared and plan.declared[name].derived
        if not made and not (derived and any(releaser.made.values())):
            raise UnsoundPlan(
                f"the reply on {name!r} was not released; make it with the releaser that work gets"
            )
