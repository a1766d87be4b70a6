# SPDX-License-Identifier: Apache-2.0
"""THE PATH: one private round, from the broadcast to the step.

    server                       client                           server
    ------                       ------                           ------
    publish -> Broadcast ------> answer: work -> Door -> Release
                                   (rows -> clip -> noise -> grid)
                                 sum.answer -> bytes ------------> sum.add, one message at a time
                                                                   sum.close -> Total
                                                                   finish -> Aggregate -> step

``play`` walks it; an engine only carries bytes (its ``carry``). Everything here knows protocols
only, never a particular algorithm, mechanism or sum. State goes in, state comes out.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

import torch

from dpfed.accounting.gdp import CAUTION
from dpfed.core.errors import (
    WIRE_NAMES,
    BadReply,
    BudgetSpent,
    ClientRefused,
    DataError,
    UnsoundPlan,
    wire_name,
)
from dpfed.core.grid import to_values
from dpfed.core.types import (
    METRICS,
    UPDATE,
    Aborted,
    Aggregate,
    Broadcast,
    Directory,
    Opened,
    Problem,
    Release,
    Releaser,
    Reply,
    Requests,
    Rows,
    Seat,
    Session,
    Signer,
    State,
    Total,
    Unit,
    Vector,
    Verifier,
)
from dpfed.core.vector import dot
from dpfed.training.plan import Books, Plan

log = logging.getLogger("dpfed")

# --------------------------------------------------------------------------------- on the server


@dataclass(frozen=True, eq=False)
class Progress:
    """The server between two rounds."""

    round: int
    params: Vector
    optimizer: State
    mechanisms: Mapping[str, State]
    books: Books
    attempt: int = 0
    cohort: tuple[int, ...] = ()
    """Who is asked in the round to come."""
    directory: Directory = None
    """What the sum keeps between rounds, such as clients' public keys."""
    roster: Verifier | None = None
    training: str = "run"


@dataclass(frozen=True, eq=False)
class Outcome:
    """What happened in a round, for the report: nothing here is data."""

    round: int
    aggregate: Aggregate | None
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
        """Whether nobody could pay for the round: asking again would not help."""
        words = set(self.refused.values())
        return self.aborted is not None and words == {BudgetSpent.__name__}

    @property
    def snr(self) -> float | None:
        """The aggregate's signal-to-noise ratio, from the release and its known noise level."""
        seen = self.aggregate
        if seen is None:
            return None
        if math.isnan(seen.std):
            return None
        noise = seen.mean.numel() * seen.std**2
        signal = max(0.0, dot(seen.mean, seen.mean) - noise)
        return math.sqrt(signal / noise) if noise else math.inf

    def measured(self, loss_bound: float) -> dict[str, float]:
        """Accuracy and loss by the metrics channel, of the model that the round began with."""
        if self.aggregate is None or METRICS not in self.aggregate.public:
            return {}
        correct, loss = self.aggregate.public[METRICS].tolist()  # noise may leave the range
        return {"accuracy": min(1.0, max(0.0, correct)), "loss": max(0.0, loss * loss_bound)}


def start(
    plan: Plan, params: Vector, training: str = "run", roster: Verifier | None = None
) -> Progress:
    """The server before the first round."""
    states = plan.mechanism_states(params.numel())
    books: Books = {name: {} for name in plan.channels}
    optimizer = plan.optimizer.init(params)
    cohort, directory = plan.draw(0, 0), plan.sum.directory()
    return Progress(
        0, params, optimizer, states, books,
        cohort=cohort, directory=directory, roster=roster, training=training,
    )  # fmt: skip


def publish(plan: Plan, progress: Progress) -> Broadcast:
    """What goes out at the start of a round."""
    shared = plan.optimizer.share(progress.optimizer)
    at = progress.round, progress.params, shared, progress.attempt
    return Broadcast(*at, progress.training)


Answer: TypeAlias = "Mapping[str, bytes] | ClientRefused"
Carry: TypeAlias = Callable[
    [Broadcast, str, Mapping[str, Mapping[int, bytes]]], Iterable[tuple[int, Answer]]
]
"""Takes a stage's requests (by channel and client) out, brings (client, answer) back one by one."""


def play(plan: Plan, progress: Progress, carry: Carry) -> tuple[Progress, Outcome]:
    """One round. An aborted one is booked like any other, and leaves the model as it was."""
    broadcast = publish(plan, progress)
    due = plan.due(progress.round)
    gathered = _gather(plan, broadcast, progress, carry)
    if gathered.asked:
        progress = _book(plan, progress, gathered.totals)
    clients = () if gathered.aborted else gathered.totals[due[0]].clients
    missing = tuple(sorted(set(progress.cohort) - set(clients)))
    outcome = Outcome(
        progress.round, None, clients, missing, gathered.refused, gathered.aborted, gathered.asked
    )
    if gathered.aborted:
        return _again(plan, progress), outcome
    progress, aggregate = _aggregate(plan, progress, gathered.totals)
    return _step(plan, progress, aggregate), replace(outcome, aggregate=aggregate)


def _again(plan: Plan, progress: Progress) -> Progress:
    """The same round as a new attempt."""
    attempt = progress.attempt + 1
    return replace(progress, attempt=attempt, cohort=plan.draw(progress.round, attempt))


def spent_attempt(plan: Plan, progress: Progress) -> Progress:
    """After an attempt of which nobody knows how it ended: spent, and to be made anew."""
    return _again(plan, _book(plan, progress, {}))


@dataclass(frozen=True, eq=False)
class _Gathered:
    totals: dict[str, Total]
    refused: dict[int, str]
    aborted: str | None = None
    asked: bool = True
    """Whether releases were asked for: these count as spent, opened or not."""


def _gather(plan: Plan, broadcast: Broadcast, progress: Progress, carry: Carry) -> _Gathered:
    """Drive the sum's stages until the totals are opened, or cannot be."""
    refused: dict[int, str] = {}
    due = plan.due(broadcast.round)
    cohorts = {name: plan.cohort(name, progress.cohort) for name in due}
    sizes = {name: plan.size(name, broadcast.params.numel()) for name in due}
    if not any(cohorts.values()):  # to draw again would not be the draw that is priced
        return _Gathered({name: _nothing(size) for name, size in sizes.items()}, refused)
    seat = replace(_seat(plan, broadcast, SERVER), roster=progress.roster)
    following: Requests | Opened | Aborted
    session, following = plan.sum.begin(progress.directory, cohorts, sizes, seat)
    asked = False
    while isinstance(following, Requests):
        asked = asked or following.stage == plan.sum.release_stage
        for client, reply in carry(broadcast, following.stage, following.messages):
            session = _take(plan, session, client, reply, refused)
            del reply  # or two messages are alive while the next one is made
        following = plan.sum.close(session)
    if isinstance(following, Aborted):
        return _Gathered({}, refused, following.reason, asked)
    return _Gathered({name: following.totals[name] for name in due}, refused)


def _nothing(size: int) -> Total:
    return Total(torch.zeros(size, dtype=torch.int64), (), ())


SERVER = -1
"""The server's own seat at the table."""


def _seat(plan: Plan, broadcast: Broadcast, client: int, signer: Signer | None = None) -> Seat:
    clients, mark = len(plan.nominal), plan.fingerprint()
    at = broadcast.round, broadcast.attempt
    return Seat(client, clients, plan.colluders, *at, f"{broadcast.training}/{mark}", signer)


def _take(
    plan: Plan, session: Session, client: int, reply: Answer, refused: dict[int, str]
) -> Session:
    """Add one client's answer to the sum, or note why it was not."""
    try:
        if isinstance(reply, ClientRefused):
            raise reply
        return plan.sum.add(session, client, reply)
    except (BadReply, ClientRefused) as error:
        hint = "; its own log says why" if str(error) in WIRE_NAMES else ""
        log.warning("client %d is left out of this round: %s%s", client, error, hint)
        refused[client] = str(error)
        return session


def _book(plan: Plan, progress: Progress, totals: Mapping[str, Total]) -> Progress:
    """Enter the round's releases: asked for is spent, opened or not."""
    shares = {name: plan.hidden_by(total.weights) for name, total in totals.items()}
    return replace(progress, books=_with(plan, progress, shares))


def _with(plan: Plan, progress: Progress, shares: Mapping[str, float]) -> Books:
    """The books after the coming round, where so many shares of noise hide a release."""
    after = {name: dict(book) for name, book in progress.books.items()}
    for name, book in after.items():
        count, hidden_by = plan.releases(name, progress.round), shares.get(name, 1.0)
        if count:
            book[hidden_by] = book.get(hidden_by, 0) + count
    return after


def affords(plan: Plan, progress: Progress) -> bool:
    """Whether one more round stays within what the plan promised: aborted attempts count too."""
    books = _with(plan, progress, {})
    planned = plan.promise().claims[0].epsilon
    spent = plan.guarantee(books, progress.round + 1).claims[0].epsilon
    return spent <= planned * (1 + 4 * CAUTION)


def _aggregate(
    plan: Plan, progress: Progress, totals: dict[str, Total]
) -> tuple[Progress, Aggregate]:
    """Totals become means with a known noise level. Frees each total before the next is made."""
    states = dict(progress.mechanisms)
    means: dict[str, Vector] = {}
    levels: dict[str, float] = {}
    lead = next(iter(totals))
    clients = len(totals[lead].clients)
    for name in list(totals):
        release = _finish(plan, progress, name, totals.pop(name), states)
        divisor = plan.denominator(name)
        means[name] = to_values(release.vector, release.step / divisor, like=progress.params)
        levels[name] = release.std / divisor
    aggregate = Aggregate(
        progress.round, progress.params, means.pop(lead),
        levels[lead] * plan.client.channels[lead].noise, clients, means,
        len(plan.nominal), plan.participation.rate, lead,
    )  # fmt: skip
    return replace(progress, mechanisms=states), aggregate


def _finish(
    plan: Plan, progress: Progress, name: str, total: Total, states: dict[str, State]
) -> Release:
    if name not in plan.channels:  # derived
        return Release(total.vector, math.nan, plan.step(name))
    rng = plan.noise.stream("finish", progress.round, progress.attempt, name)
    release, states[name] = plan.channels[name].finish(total, states[name], rng)
    return release


def _step(plan: Plan, progress: Progress, aggregate: Aggregate) -> Progress:
    """The optimizer acts on the private mean; its buffers may be reused, the mean is a copy."""
    optimizer = plan.optimizer
    update = optimizer.update_ or optimizer.update
    direction, state = update(aggregate.mean.clone(), progress.optimizer, aggregate)
    following = progress.round + 1
    return replace(
        progress, round=following, params=progress.params - direction, optimizer=state,
        attempt=0, cohort=plan.draw(following, 0),
    )  # fmt: skip


# --------------------------------------------------------------------------------- on the client


class Booking(Protocol):
    """Where a client's releases are booked: its own ledger (see booking.py)."""

    def begin(self, plan: Plan, broadcast: Broadcast, member: Member) -> tuple[int, ...]:
        """Book the round of one client, or refuse it."""

    def confirm(self, rows: Iterable[int]) -> None:
        """The releases of these rows were made."""


@dataclass(frozen=True, eq=False)
class Member:
    """One client between two messages: all of it stays there."""

    client: int
    problem: Problem | None = None
    """Its data; a stage that releases nothing does without."""
    state: State = None
    mechanisms: Mapping[str, State] = field(default_factory=dict)
    secret: bytes = b""
    """What the sum keeps here between stages and rounds."""
    signer: Signer | None = None
    ledger: Booking | None = None
    """Where its releases are booked before they are made; without one they are not."""


class Door:
    """The one way out of a client: it clips, adds noise, and counts what it let through."""

    def __init__(self, plan: Plan, broadcast: Broadcast, member: Member) -> None:
        self.unit: Unit = plan.update.unit
        self.nominal: float = plan.nominal[member.client] * plan.expected(UPDATE)
        fresh = plan.mechanism_states(broadcast.params.numel())
        self.states: dict[str, State] = {**fresh, **member.mechanisms}
        self.made: dict[str, list[Release | None]] = {}  # held only if it must be sent as it is
        self._plan, self._broadcast, self._client = plan, broadcast, member.client

    def __call__(self, rows: Rows, channel: str = UPDATE) -> Release:
        """Release rows on a channel, once more in this round."""
        made = self.made.setdefault(channel, [])
        at = self._broadcast.round
        known = channel in self._plan.channels
        if not known or len(made) >= self._plan.releases(channel, at):
            raise UnsoundPlan(f"release number {len(made) + 1} on {channel!r} was not priced")
        mechanism = self._plan.channels[channel]
        call = (at, self._client, self._broadcast.attempt, channel, len(made))
        rng = self._plan.noise.stream("release", *call)
        release, self.states[channel] = mechanism.release(rows, self.states[channel], rng)
        made.append(release if self._plan.client.unchanged else None)
        return release


def answer(
    plan: Plan, broadcast: Broadcast, stage: str, requests: Mapping[str, bytes], member: Member
) -> tuple[Answer, Member]:
    """A client's answer to one stage. Whatever goes wrong crosses the wire as a class name only."""
    try:
        return _answer(plan, broadcast, stage, requests, member)
    except Exception as error:
        log.exception("client %d could not answer round %d", member.client, broadcast.round)
        return ClientRefused(wire_name(error)), member


def _answer(
    plan: Plan, broadcast: Broadcast, stage: str, requests: Mapping[str, bytes], member: Member
) -> tuple[Answer, Member]:
    reply: Reply | None = None
    booked: tuple[int, ...] = ()
    if stage == plan.sum.release_stage:
        if member.ledger:  # on the disk before any noise is drawn
            booked = member.ledger.begin(plan, broadcast, member)
        reply, member = make_reply(plan, broadcast, member, Door(plan, broadcast, member))
    seat = _seat(plan, broadcast, member.client, member.signer)
    messages, secret = plan.sum.answer(stage, requests, reply, member.secret, seat)
    if member.ledger and booked:  # what is not confirmed counts as spent, too
        member.ledger.confirm(booked)
    return messages, replace(member, secret=secret)


def make_reply(
    plan: Plan, broadcast: Broadcast, member: Member, door: Releaser
) -> tuple[Reply, Member]:
    """The algorithm's work, then the metrics where they are due: all of it through the door."""
    if member.problem is None:
        raise DataError(f"client {member.client} has no data, and a release is due; give it some")
    state = plan.client.init(broadcast.params) if member.state is None else member.state
    reply, state = plan.client.work(broadcast, member.problem, state, door)
    if METRICS in plan.due(broadcast.round):
        rows = member.problem.metric_rows(broadcast.params, door.unit, plan.loss_bound)
        reply = {**reply, METRICS: door(rows, METRICS)}
    if isinstance(door, Door):
        _check_reply(plan, reply, door)
        member = replace(member, mechanisms=door.states)
    return reply, replace(member, state=state)


def _check_reply(plan: Plan, reply: Reply, door: Door) -> None:
    """An algorithm that says that it sends releases unchanged is held to it."""
    for name, release in reply.items():
        made = door.made.get(name, [])
        if plan.client.unchanged and [id(release)] != [id(one) for one in made]:
            raise UnsoundPlan(f"the reply on {name!r} is not the one release that was made for it")
        if not made and not (name != METRICS and any(door.made.values())):
            raise UnsoundPlan(f"the reply on {name!r} did not pass the door")
