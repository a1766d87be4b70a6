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

import hashlib
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from dpfed.accounting.gdp import CAUTION
from dpfed.accounting.guarantee import Guarantee, Spent, guarantee
from dpfed.compose import chain
from dpfed.errors import BadReply, ClientRefused, UnsoundPlan, wire_name
from dpfed.grid import to_values
from dpfed.randomness import Noise
from dpfed.types import (
    METRICS,
    UPDATE,
    Aborted,
    Aggregate,
    Broadcast,
    ClientAlgorithm,
    Mechanism,
    Nominal,
    Problem,
    Release,
    Releaser,
    Reply,
    Requests,
    Rows,
    Secret,
    ServerOptimizer,
    Session,
    State,
    Sum,
    Total,
    Trust,
    Unit,
    Vector,
    Weights,
)
from dpfed.vector import dot

log = logging.getLogger("dpfed")

# ------------------------------------------------------------------------------------- the plan


@dataclass(frozen=True, eq=False)
class Plan:
    """All that a run does and what it costs, in one value. Refuses what would be unsound."""

    client: ClientAlgorithm
    channels: Mapping[str, Mechanism]
    sum: Sum
    server: ServerOptimizer
    nominal: Nominal
    """Public sizes in units, by client: declared at enrolment, never measured under add/remove."""
    rounds: int
    delta: float = 1e-5
    weights: Weights = Weights.SUM
    noise: Noise = field(default_factory=Noise)
    colluders: int = 1
    """How many clients pool what they know, the reader itself included."""
    metrics_every: int = 1
    """On which rounds the metrics channel, if there is one, is used: every k-th, and the last."""
    loss_bound: float = 5.0

    def __post_init__(self) -> None:
        for complaint in (_wrong_numbers, _wrong_channels, _wrong_trust):
            reason = complaint(self)
            if reason:
                raise UnsoundPlan(reason)

    @property
    def update(self) -> Mechanism:
        """The mechanism of the update channel: its unit, adjacency and trust are the plan's."""
        return self.channels[UPDATE]

    @property
    def optimizer(self) -> ServerOptimizer:
        """The server's half of the algorithm, then the plan's own optimizer."""
        companion = self.client.companion
        return chain(companion, self.server) if companion else self.server

    def due(self, round: int) -> list[str]:
        """The channels that are used in a round."""
        return [n for n in self.channels if n != METRICS or self.evaluates(round)]

    def evaluates(self, round: int) -> bool:
        """Whether the model is judged in a round: every k-th, and the last."""
        return (round + 1) % self.metrics_every == 0 or round + 1 == self.rounds

    def size(self, channel: str, dimension: int) -> int:
        """How long a channel's vectors are, for a model of so many parameters."""
        return 2 if channel == METRICS else dimension

    def mechanism_states(self, dimension: int) -> dict[str, State]:
        """The states that the channels' mechanisms start from."""
        return {n: m.init(self.size(n, dimension)) for n, m in self.channels.items()}

    def releases(self, channel: str) -> int:
        """How often a client uses a channel in a round where it is due."""
        return 1 if channel == METRICS else self.client.releases[channel]

    def planned(self, channel: str) -> int:
        """How many releases all rounds make on a channel: the sum over ``due``."""
        every = self.metrics_every if channel == METRICS else 1
        return math.ceil(self.rounds / every) * self.releases(channel)

    def cohort(self, channel: str) -> dict[int, float]:
        """Every client with the public weight of its release in the total; the largest is 1."""
        if self.weights is Weights.SUM or channel == METRICS:
            return dict.fromkeys(range(len(self.nominal)), 1.0)
        least = min(self.nominal)
        return {client: least / size for client, size in enumerate(self.nominal)}

    def denominator(self, channel: str) -> float:
        """The public number that turns the weighted total into the mean."""
        if self.weights is Weights.SUM or channel == METRICS:
            return math.fsum(self.nominal)
        return len(self.nominal) * min(self.nominal)

    def promise(self) -> Guarantee:
        """What the whole run is going to cost if everyone takes part."""
        books = {
            name: {self.hidden_by(self.cohort(name).values()): self.planned(name)}
            for name in self.channels
        }
        return self.guarantee(books, self.rounds)

    def guarantee(self, books: Books, rounds: int) -> Guarantee:
        """What the releases in the books cost."""
        spent = [
            Spent(
                self.channels[name],
                sum(book.values()),
                book if self.client.unchanged else {},
            )
            for name, book in books.items()
        ]
        return guarantee(spent, self.delta, self.noise.source, rounds)

    def fingerprint(self) -> str:
        """A digest of what both sides must agree on. The noise's seed is not in it."""
        channels = sorted((name, repr(m), self.releases(name)) for name, m in self.channels.items())
        facts = (channels, self.client.unchanged, type(self.sum).__name__, self.weights.value,
                 [float(size) for size in self.nominal], self.rounds, self.delta, self.colluders,
                 self.metrics_every, self.loss_bound)  # fmt: skip
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    def hidden_by(self, weights: Iterable[float]) -> float:
        """How many shares of noise protect the most exposed client of a sum from the colluders.

        A client of weight w faces the noise of all honest terms: sum of w_i^2 over w^2 shares.
        """
        squares = sorted((w * w for w in weights), reverse=True)
        worst = squares[0] if squares else 1.0
        # colluders do worst to the heaviest client by being the next heaviest ones
        honest = squares[:1] + squares[1 + self.colluders :]
        return max(1.0, math.fsum(honest) / worst)


Books: TypeAlias = Mapping[str, Mapping[float, int]]
"""Channel -> (shares of noise that an outsider cannot subtract -> number of releases)."""


def _wrong_numbers(plan: Plan) -> str | None:
    if not plan.nominal or not all(math.isfinite(n) and n > 0 for n in plan.nominal):
        return f"nominal sizes are {list(plan.nominal)[:5]}...; each client needs one above 0"
    if plan.rounds < 1 or plan.metrics_every < 1:
        return f"rounds is {plan.rounds}, metrics_every {plan.metrics_every}; both start at 1"
    if plan.colluders < 1:
        return f"colluders is {plan.colluders}, but a reader always knows its own noise: at least 1"
    return None


def _wrong_channels(plan: Plan) -> str | None:
    wanted = set(plan.client.releases)
    if wanted != set(plan.channels) - {METRICS}:
        return f"the algorithm releases on {sorted(wanted)}, priced are {sorted(plan.channels)}"
    kinds = {(m.unit, m.adjacency, m.trust) for m in plan.channels.values()}
    if len(kinds) != 1:
        return f"all channels must share unit, adjacency and trust, but they are {sorted(kinds)}"
    if plan.update.unit not in plan.client.units:
        units = sorted(plan.client.units)
        return f"the algorithm can protect {units}, not each {plan.update.unit}; change the unit"
    return None


def _wrong_trust(plan: Plan) -> str | None:
    trust = plan.update.trust
    if trust is Trust.DISTRIBUTED and not plan.sum.hides_terms:
        return "under distributed trust the server must see only the sum, and this sum shows it all"
    if trust is not Trust.LOCAL and not plan.client.unchanged:
        return f"{trust} trust covers sums of unchanged releases only; use local trust"
    uneven = plan.weights is Weights.AVERAGE and len(set(plan.nominal)) > 1
    if trust is Trust.DISTRIBUTED and uneven:
        return "averaging silos of unequal size exposes the smallest; use weights = 'sum'"
    return None


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

    @property
    def snr(self) -> float | None:
        """The aggregate's signal-to-noise ratio, from the release and its known noise level."""
        seen = self.aggregate
        if seen is None:
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


def start(plan: Plan, params: Vector) -> Progress:
    """The server before the first round."""
    states = plan.mechanism_states(params.numel())
    return Progress(0, params, plan.optimizer.init(params), states, {n: {} for n in plan.channels})


def publish(plan: Plan, progress: Progress) -> Broadcast:
    """What goes out at the start of a round."""
    shared = plan.optimizer.share(progress.optimizer)
    return Broadcast(progress.round, progress.params, shared, progress.attempt)


Answer: TypeAlias = "Mapping[str, bytes] | ClientRefused"
Carry: TypeAlias = Callable[
    [Broadcast, str, Mapping[str, Mapping[int, bytes]]], Iterable[tuple[int, Answer]]
]
"""Takes a stage's requests (by channel and client) out, brings (client, answer) back one by one."""


def play(plan: Plan, progress: Progress, carry: Carry) -> tuple[Progress, Outcome]:
    """One round. An aborted one is booked like any other, and leaves the model as it was."""
    broadcast = publish(plan, progress)
    due = plan.due(progress.round)
    gathered = _gather(plan, broadcast, due, carry)
    progress = _book(plan, progress, due, gathered.totals)
    clients = () if gathered.aborted else gathered.totals[UPDATE].clients
    missing = tuple(sorted(plan.cohort(UPDATE).keys() - set(clients)))
    outcome = Outcome(progress.round, None, clients, missing, gathered.refused, gathered.aborted)
    if gathered.aborted:
        return replace(progress, attempt=progress.attempt + 1), outcome
    progress, aggregate = _aggregate(plan, progress, gathered.totals)
    return _step(plan, progress, aggregate), replace(outcome, aggregate=aggregate)


@dataclass(frozen=True, eq=False)
class _Gathered:
    totals: dict[str, Total]
    refused: dict[int, str]
    aborted: str | None = None


def _gather(plan: Plan, broadcast: Broadcast, due: list[str], carry: Carry) -> _Gathered:
    """Drive the sum's stages on all channels until each is opened, or one cannot be."""
    refused: dict[int, str] = {}
    sessions = {
        name: plan.sum.begin(
            plan.cohort(name), broadcast.round, plan.size(name, broadcast.params.numel())
        )
        for name in due
    }
    stage = plan.sum.stages[0]
    requests: dict[str, Mapping[int, bytes]] = {
        name: dict.fromkeys(plan.cohort(name), b"") for name in due
    }
    while True:
        for client, reply in carry(broadcast, stage, requests):
            _take(plan, sessions, client, reply, refused)
            del reply  # or two messages are alive while the next one is made
        closed = {name: plan.sum.close(session) for name, session in sessions.items()}
        for result in closed.values():
            if isinstance(result, Aborted):
                return _Gathered({}, refused, result.reason)
        totals = {n: r for n, r in closed.items() if isinstance(r, Total)}
        if len(totals) == len(closed):
            return _Gathered(totals, refused)
        following = {n: r for n, r in closed.items() if isinstance(r, Requests)}
        stage = next(iter(following.values())).stage
        requests = {name: request.messages for name, request in following.items()}


def _take(
    plan: Plan,
    sessions: dict[str, Session],
    client: int,
    reply: Answer,
    refused: dict[int, str],
) -> None:
    """Add one client's answer to the sums, or note why it was not."""
    try:
        if isinstance(reply, ClientRefused):
            raise reply
        if set(reply) != set(sessions):
            raise BadReply(f"a reply on {sorted(reply)}, where {sorted(sessions)} are due")
        for name, message in reply.items():
            sessions[name] = plan.sum.add(sessions[name], client, message)
    except (BadReply, ClientRefused) as error:
        log.warning("round without client %d: %s", client, error)
        refused[client] = str(error)


def _book(plan: Plan, progress: Progress, due: list[str], totals: Mapping[str, Total]) -> Progress:
    """Enter the round's releases: asked for is spent, opened or not."""
    shares = {n: plan.hidden_by(totals[n].weights) if n in totals else 1.0 for n in due}
    return replace(progress, books=_with(plan, progress.books, shares))


def _with(plan: Plan, books: Books, shares: Mapping[str, float]) -> Books:
    after = {name: dict(book) for name, book in books.items()}
    for name, hidden_by in shares.items():
        after[name][hidden_by] = after[name].get(hidden_by, 0) + plan.releases(name)
    return after


def affords(plan: Plan, progress: Progress) -> bool:
    """Whether one more round stays within what the plan promised: aborted attempts count too."""
    books = _with(plan, progress.books, dict.fromkeys(plan.due(progress.round), 1.0))
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
    clients = len(totals[UPDATE].clients)
    for name in list(totals):
        rng = plan.noise.stream("finish", progress.round, progress.attempt, name)
        release, states[name] = plan.channels[name].finish(totals.pop(name), states[name], rng)
        divisor = plan.denominator(name)
        means[name] = to_values(release.vector, release.step / divisor, like=progress.params)
        levels[name] = release.std / divisor
    mean = means.pop(UPDATE)
    aggregate = Aggregate(
        progress.round, progress.params, mean, levels[UPDATE], clients, public=means
    )
    return replace(progress, mechanisms=states), aggregate


def _step(plan: Plan, progress: Progress, aggregate: Aggregate) -> Progress:
    """The optimizer acts on the private mean; its buffers may be reused, the mean is a copy."""
    optimizer = plan.optimizer
    update = optimizer.update_ or optimizer.update
    direction, state = update(aggregate.mean.clone(), progress.optimizer, aggregate)
    params = progress.params - direction
    return replace(progress, round=progress.round + 1, params=params, optimizer=state, attempt=0)


# --------------------------------------------------------------------------------- on the client


@dataclass(frozen=True, eq=False)
class Member:
    """One client between two messages: all of it stays there."""

    client: int
    problem: Problem
    state: State = None
    mechanisms: Mapping[str, State] = field(default_factory=dict)
    secrets: Mapping[str, Secret] = field(default_factory=dict)


class Door:
    """The one way out of a client: it clips, adds noise, and counts what it let through."""

    def __init__(self, plan: Plan, broadcast: Broadcast, member: Member) -> None:
        self.unit: Unit = plan.update.unit
        self.nominal: float = plan.nominal[member.client]
        fresh = plan.mechanism_states(broadcast.params.numel())
        self.states: dict[str, State] = {**fresh, **member.mechanisms}
        self.made: dict[str, list[Release]] = {}
        self._plan, self._broadcast, self._client = plan, broadcast, member.client

    def __call__(self, rows: Rows, channel: str = UPDATE) -> Release:
        """Release rows on a channel, once more in this round."""
        made = self.made.setdefault(channel, [])
        if channel not in self._plan.channels or len(made) >= self._plan.releases(channel):
            raise UnsoundPlan(f"release number {len(made) + 1} on {channel!r} was not priced")
        mechanism = self._plan.channels[channel]
        call = (self._broadcast.round, self._client, self._broadcast.attempt, channel, len(made))
        rng = self._plan.noise.stream("release", *call)
        release, self.states[channel] = mechanism.release(rows, self.states[channel], rng)
        made.append(release)
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
    reply: Mapping[str, Release | None] = dict.fromkeys(requests)
    if stage == plan.sum.release_stage:
        reply, member = make_reply(plan, broadcast, member, Door(plan, broadcast, member))
    messages: dict[str, bytes] = {}
    secrets = dict(member.secrets)
    for name, request in requests.items():
        messages[name], secrets[name] = plan.sum.answer(
            stage, request, reply[name], secrets.get(name)
        )
    return messages, replace(member, secrets=secrets)


def make_reply(
    plan: Plan, broadcast: Broadcast, member: Member, door: Releaser
) -> tuple[Reply, Member]:
    """The algorithm's work, then the metrics where they are due: all of it through the door."""
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
        if not made:
            raise UnsoundPlan(f"the reply on {name!r} did not pass the door")
