# SPDX-License-Identifier: Apache-2.0
"""The client's half of a round, with the only door out: ``PricedReleaser``.

An algorithm works on the data and hands its rows to the releaser, which clips them, adds noise and
returns a ``Release``. Nothing else that depends on records leaves a client.

    order -> work -> PricedReleaser -> Release -> sum.reply -> bytes
               (rows -> clip -> noise -> grid)

Guarantee: a PricedReleaser releases at most as often as the plan accounts for, and each release is
in the client's ledger, if there is one, before noise is drawn for it. A reply has the channels that
are due, no others. If the algorithm declares ``sends_unmodified``, each release in the reply must
be the one object that the releaser returned for its channel: a run checks identity, but does not
notice a change of that object in place.
For other algorithms a run only checks that the releaser was used; that data reaches their replies
only through releases rests on the law tests (audit/client_laws.py).

Once data has been touched a client does not refuse: whatever goes wrong then becomes a reply of
zero rows with full noise. What it refuses is found before, on made-up records, and
leaves as a class name from a fixed list. How long a reply takes is not covered.

| edge case                                            | what happens                            |
|------------------------------------------------------|-----------------------------------------|
| a broadcast that does not fit model or algorithm     | refused before data is touched          |
| one release more than the plan has, or another channel | UnsoundPlan, likewise                 |
| a channel of the reply without a release             | UnsoundPlan, likewise                   |
| ``sends_unmodified``, and another object is sent     | UnsoundPlan, likewise                   |
| the sum refuses: a wrong cohort, a forged key        | likewise: nothing is entered            |
| the ledger refuses                                   | BudgetSpent; no noise is drawn          |
| a client without data at the release stage           | DataError                               |
| any exception, or lack of memory, on the data itself | zero rows, full noise, the state stays; |
|                                                      | logged and counted here, never sent     |
| a metric's code that raises on a record              | that record's row of metrics is zero    |
| a process that died or took too long on the data     | ``zero_rows``: the same checks, then no |
|                                                      | work                                    |
| a problem of one's own, without ``made_up``          | is not tried: a fault of its code also  |
|                                                      | becomes a reply of zero rows            |
| numbers below the smallest normal float              | are 0 in a client's work: they are slow |
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import torch

from dpfed.core.errors import BadRelease, ClientRefused, DataError, UnsoundPlan, failures, wire_name
from dpfed.core.grid import pack
from dpfed.core.log import log, places
from dpfed.core.metric import Judged, contained_row, joint_replace_bound, joint_row
from dpfed.core.rows import MetricRows
from dpfed.core.sampling import drawn
from dpfed.core.sum_protocol import Signer, StageReply
from dpfed.core.types import (
    METRICS,
    UPDATE,
    BoundedSum,
    Broadcast,
    Mechanism,
    Problem,
    Release,
    Releaser,
    Reply,
    Rows,
    State,
    Stream,
    Unit,
    Vector,
)
from dpfed.core.vector import Layout
from dpfed.training.plan import Plan
from dpfed.training.signal import warn_of_noise


class ClientLedger(Protocol):
    """Where a client's releases are entered before they are made: its ledger (account.py)."""

    def begin(self, plan: Plan, broadcast: Broadcast, client: ClientState) -> tuple[int, ...]:
        """Enter the round of one client, or refuse it."""

    def confirm(self, rows: Iterable[int]) -> None:
        """Confirm that the releases of these rows were made."""


@dataclass(frozen=True, eq=False)
class ClientState:
    """One client between two messages: all of it stays there."""

    client: int
    problem: Problem | None = None
    """Its data; None is enough for a stage that releases nothing."""
    state: State = None
    mechanisms: Mapping[str, State] = field(default_factory=dict)
    secret: bytes = b""
    """What the sum keeps here between stages and rounds."""
    signer: Signer | None = None
    ledger: ClientLedger | None = None
    """Where its releases are entered; without one they are not."""
    zero_rows: bool = False
    """Reply with zero rows and full noise, whatever the data: a process that worked on the data
    died or took too long. All checks before data is touched are made as ever."""
    zeroed: int = 0
    """How many replies were zero rows because its data or code failed. Never sent."""


class PricedReleaser:
    """The one door out of a client: it clips, adds noise, and counts what it let through."""

    def __init__(self, plan: Plan, broadcast: Broadcast, client: ClientState) -> None:
        self.unit: Unit = plan.update.unit
        self.nominal: float = plan.nominal_of(client.client) * plan.sampling_rate(UPDATE)
        fresh = plan.mechanism_states(broadcast.params.numel())
        self.states: dict[str, State] = {**fresh, **client.mechanisms}
        self.made: dict[str, list[Release | None]] = {}  # held only if it must be sent as it is
        self.round = broadcast.round
        self._plan, self._broadcast, self._client = plan, broadcast, client.client

    def __call__(self, rows: Rows, channel: str = UPDATE) -> Release:
        """Release rows on a channel, once more in this round."""
        made = self.made.setdefault(channel, [])
        at = self.round
        known = channel in self._plan.channels
        planned = self._plan.releases(channel, at) if known else 0
        if len(made) >= planned:
            raise UnsoundPlan(
                f"releases on {channel!r} in round {at} must be at most {planned}, as the plan "
                f"accounts for, got number {len(made) + 1}; declare it in the algorithm's channels"
            )
        if isinstance(rows, EmptyRows):
            rows = EmptyRows(self._plan.size(channel, self._broadcast.params.numel()))
        mechanism = self._plan.channels[channel]
        call = (at, self._client, self._broadcast.attempt, channel, len(made))
        rng = self._plan.noise.stream("release", *call)
        release, self.states[channel] = self._release(mechanism, rows, channel, rng)
        made.append(release if self._plan.client.sends_unmodified else None)
        return release

    def _release(
        self, mechanism: Mechanism, rows: Rows, channel: str, rng: Stream
    ) -> tuple[Release, State]:
        return mechanism.release(rows, self.states[channel], rng)


class _Rehearsal(PricedReleaser):
    """A PricedReleaser for rehearsals: rows are drawn, clipped and added, but not released."""

    def _release(
        self, mechanism: Mechanism, rows: Rows, channel: str, rng: Stream
    ) -> tuple[Release, State]:
        made = drawn(rows, mechanism.sampling, rng).clipped_sum(mechanism.clip)
        if made.bound > mechanism.clip:
            raise BadRelease(
                f"rows on {channel!r} must be bounded by {mechanism.clip:g}, got {made.bound:g}; "
                f"give the mechanism this clip"
            )
        grid = pack(made.vector, mechanism.step)
        return Release(grid, mechanism.std, mechanism.step), self.states[channel]


def client_reply(
    plan: Plan,
    broadcast: Broadcast,
    stage: str,
    requests: Mapping[str, bytes],
    client: ClientState,
) -> tuple[StageReply, ClientState]:
    """A client's reply to one stage. Whatever goes wrong leaves as a class name only.

    Args:
        plan: what this client has agreed to.
        broadcast: what the server published for the round.
        stage: the stage of the plan's sum.
        requests: what the sum's server side asks of this client, by name.
        client: what the client keeps.
    """
    try:
        return _reply(plan, broadcast, stage, requests, client)
    except Exception as error:
        return refusal(broadcast, client, error), client


def refusal(broadcast: Broadcast, client: ClientState, error: Exception) -> ClientRefused:
    """What leaves if a client cannot reply: a class name; the rest is in its own log.

    Args:
        broadcast: what the server published for the round.
        client: who cannot reply.
        error: why.
    """
    log.error("client %d could not answer round %d", client.client, broadcast.round, exc_info=error)
    return ClientRefused(wire_name(error))


def _reply(
    plan: Plan,
    broadcast: Broadcast,
    stage: str,
    requests: Mapping[str, bytes],
    client: ClientState,
) -> tuple[StageReply, ClientState]:
    reply: Reply | None = None
    entered: tuple[int, ...] = ()
    context = plan.sum_context(broadcast, client.client, client.signer)
    if stage == plan.sum.release_stage:
        rehearse(plan, broadcast, client)
        plan.sum.reply(stage, requests, zero_reply(plan, broadcast), client.secret, context)
        if client.ledger:  # on the disk before any noise is drawn
            entered = client.ledger.begin(plan, broadcast, client)
        release = PricedReleaser(plan, broadcast, client)
        reply, client = reply_or_zero_rows(plan, broadcast, client, release)
    messages, secret = plan.sum.reply(stage, requests, reply, client.secret, context)
    if client.ledger and entered:  # what is not confirmed counts as spent, too
        client.ledger.confirm(entered)
    return messages, replace(client, secret=secret)


def zero_reply(plan: Plan, broadcast: Broadcast) -> Reply:
    """One zero per channel, to try the sum's checks first: a refusal then costs nothing."""
    zero = torch.zeros(1, dtype=torch.int32)
    return {name: Release(zero, 0.0, plan.step(name)) for name in plan.due(broadcast.round)}


def make_reply(
    plan: Plan, broadcast: Broadcast, client: ClientState, release: Releaser
) -> tuple[Reply, ClientState]:
    """The algorithm's work, then the metrics if they are due: all of it through ``release``.

    Args:
        plan: what this client has agreed to.
        broadcast: what the server published for the round.
        client: what the client keeps; its data is in it.
        release: the one door out; if it is a test's own, what goes wrong is raised.
    """
    if not isinstance(release, PricedReleaser):
        return _work(plan, broadcast, client, release)
    rehearse(plan, broadcast, client)
    return reply_or_zero_rows(plan, broadcast, client, release)


def reply_or_zero_rows(
    plan: Plan, broadcast: Broadcast, client: ClientState, release: PricedReleaser
) -> tuple[Reply, ClientState]:
    """The algorithm's reply from the data; zero rows if that fails, whatever the reason.

    Args:
        plan: what this client has agreed to.
        broadcast: what the server published for the round.
        client: what the client keeps; its round is entered in its ledger.
        release: the one door out.
    """
    if client.zero_rows:
        log.warning(
            "client %d: local training died or took too long in round %d; sent an all-zero update "
            "with full noise, so that the failure does not leak",
            client.client,
            broadcast.round,
        )
        return _zero_rows_reply(plan, broadcast, client)
    try:
        with denormals_as_zero():
            return _work(plan, broadcast, client, release)
    except failures():  # from here on a refusal would tell something of the data
        log.error(
            "client %d: local training failed in round %d; sent an all-zero update with full "
            "noise, so that the failure does not leak. Earlier rounds answered this way: %d. It "
            "was %s",
            client.client,
            broadcast.round,
            client.zeroed,
            places(sys.exception()),
        )
        return _zero_rows_reply(plan, broadcast, client)


def _work(
    plan: Plan, broadcast: Broadcast, client: ClientState, release: Releaser
) -> tuple[Reply, ClientState]:
    problem = _data(client)
    state = plan.client.init(broadcast.params) if client.state is None else client.state
    reply, state = plan.client.work(broadcast, problem, state, release)
    if METRICS in plan.due(broadcast.round):
        rows = _metric_rows(plan, problem, broadcast.params, release)
        reply = {**reply, METRICS: release(rows, METRICS)}
    if not isinstance(release, PricedReleaser):
        return reply, replace(client, state=state)
    _check_reply(plan, reply, release)
    return reply, replace(client, state=state, mechanisms=release.states)


def _metric_rows(plan: Plan, problem: Problem, params: Vector, release: Releaser) -> Rows:
    if not plan.metrics or isinstance(problem, _EmptyProblem):
        return problem.metric_rows(params, release.unit, plan.loss_bound)
    row = joint_row(plan.metrics)
    if not isinstance(release, _Rehearsal):  # there a metric that raises is a fault of its code
        row = contained_row(row)
    made = _judging(problem).judged(params, release.unit, row)
    return MetricRows(made, distance=joint_replace_bound(plan.metrics))


def _judging(problem: Problem) -> Judged:
    """The problem, if it can be judged by any row: its class tells, and no record."""
    if not isinstance(problem, Judged):
        raise UnsoundPlan(
            f"evaluation.metrics needs a problem with a function judged, got a "
            f"{type(problem).__name__}; add one, or leave evaluation.metrics out"
        )
    return problem


def _data(client: ClientState) -> Problem:
    if client.problem is None:
        raise DataError(
            f"client {client.client} has no data, and a release is due; give its ClientState a "
            f"problem"
        )
    return client.problem


def _zero_rows_reply(
    plan: Plan, broadcast: Broadcast, client: ClientState
) -> tuple[Reply, ClientState]:
    """What a client without records would send: the same number of releases, with the same noise.

    What was released before the failure has not left and is dropped; the algorithm's state stays.
    """
    release, due = PricedReleaser(plan, broadcast, client), plan.due(broadcast.round)
    if plan.client.sends_unmodified:
        reply: Reply = {name: release(EmptyRows(), name) for name in due}
    else:
        nowhere = replace(client, problem=_EmptyProblem(broadcast.params))
        reply, _ = _work(plan, broadcast, nowhere, release)
    after = replace(client, mechanisms=release.states, zeroed=client.zeroed + 1)
    return reply, after


@dataclass(frozen=True)
class EmptyRows:
    """Empty rows; the releaser fills in the length."""

    size: int = 0
    units: int = 0

    def select(self, kept: torch.Tensor, room: int = 0) -> EmptyRows:
        """These rows, whoever is drawn."""
        del kept, room
        return self

    def clipped_sum(self, clip: float) -> BoundedSum:
        """A sum of zeros."""
        del clip
        return BoundedSum(torch.zeros(self.size), 0.0, 0.0)

    def clipped_rows(self, clip: float) -> Iterator[torch.Tensor]:
        """No rows."""
        del clip
        return iter(())


@dataclass(frozen=True, eq=False)
class _EmptyProblem:
    """The problem of a client without records."""

    params: Vector

    @property
    def dimension(self) -> int:
        return self.params.numel()

    def rows(self, params: Vector, unit: Unit) -> Rows:
        del params, unit
        return EmptyRows()

    hessian_rows = rows

    def gram_rows(self, unit: Unit) -> Rows:
        del unit
        return EmptyRows()

    def gradient(self, params: Vector) -> Vector:
        return torch.zeros_like(params)

    def metric_rows(self, params: Vector, unit: Unit, loss_bound: float) -> Rows:
        del params, unit, loss_bound
        return EmptyRows()


_DENORMAL = 1e-310


@contextmanager
def denormals_as_zero() -> Iterator[None]:
    """Treat denormal numbers as 0: with them one record could slow a reply down thirty times."""
    before = _DENORMAL * 2.0 == 0.0  # torch sets what it cannot tell
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


# ------------------------------------------------------------------- before data is touched


@runtime_checkable
class _HasMadeUpRecords(Protocol):
    """A problem whose model can be tried on made-up records of the same shape and types."""

    def made_up(self) -> Problem: ...


_tried: WeakKeyDictionary[Plan, set[object]] = WeakKeyDictionary()


def rehearse(plan: Plan, broadcast: Broadcast, client: ClientState) -> None:
    """Rehearse each kind of round on made-up records: what is wrong with code or order raises here.

    A warning of noise that leaves little hope is logged, too.
    Nothing of it depends on a record, so that the refusal may leave. Each type of problem with each
    set of shapes in a broadcast is rehearsed once: a plan's clients have one model.

    Args:
        plan: what this client has agreed to.
        broadcast: what the server published for the round.
        client: what the client keeps; its problem's records are not looked at.
    """
    problem = _data(client)
    if broadcast.params.numel() != problem.dimension:
        raise DataError(
            f"the model must have {problem.dimension} parameters, as this client's has, got "
            f"{broadcast.params.numel()}; give both sides the same model"
        )
    warn_of_noise(plan, _shape_of(problem))
    if plan.metrics:
        _judging(problem)
    sent = {**broadcast.shared, "": broadcast.params}
    shapes = frozenset((name, v.shape, v.dtype) for name, v in sent.items())
    code = getattr(problem, "code", type(problem))
    kind, done = (code, problem.dimension, shapes), _tried.setdefault(plan, set())
    if kind in done or not isinstance(problem, _HasMadeUpRecords):
        return
    for first, _ in plan.round_kinds.values():
        stand_in = ClientState(client.client, problem.made_up())
        at = replace(broadcast, round=first)
        _work(plan, at, stand_in, _Rehearsal(plan, at, stand_in))
    done.add(kind)


def _shape_of(problem: Problem) -> Layout | int:
    """The layout of a problem's model; a problem that has none says how many parameters it has."""
    layout = getattr(getattr(problem, "model", None), "layout", None)
    return layout if isinstance(layout, Layout) else problem.dimension


def _check_reply(plan: Plan, reply: Reply, releaser: PricedReleaser) -> None:
    """Refuse a reply without a release; of ``sends_unmodified``, one with another object."""
    due = plan.due(releaser.round)
    if set(reply) != set(due):
        raise UnsoundPlan(
            f"the reply must be on the channels {sorted(due)} that are due, got {sorted(reply)}; "
            f"send each of them, whatever the data"
        )
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
