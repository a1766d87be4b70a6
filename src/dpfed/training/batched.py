# SPDX-License-Identifier: Apache-2.0
"""Many clients of one process in a few passes: the replies that each would give alone, bit for bit.

    orders -> by kind of problem -> entered one by one -> rows, clip, noise, grid of all -> bytes

A small client costs calls, not arithmetic. Where an algorithm is one release of rows, a problem can
be stacked and a mechanism makes several releases (core/stacked.py), the rows of many clients are
made and clipped together. All else goes through ``client_reply``, one by one.

Guarantee: what leaves, what a client keeps, and what it refuses are those of ``client_reply``. Each
client is asked by the sum, enters its own ledger, and has noise under its own key, in that order.

| edge case                                         | what happens                             |
|---------------------------------------------------|------------------------------------------|
| metrics are due, a stage without a release, a     | ``client_reply``                         |
| wrapped algorithm, groups, drawn records, a sum   |                                          |
| with keys                                         |                                          |
| a client's ledger or sum refuses                  | only that client is left out             |
| one client has a number that is not finite        | it is made alone, by ``client_reply``    |
| anything raises in a pass                         | its clients are made alone               |
| this machine rounds a stack otherwise (tried once | those of that kind are made alone        |
| for a kind: its first and last client)            |                                          |
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard
from weakref import WeakKeyDictionary

import torch

from dpfed.core.log import log
from dpfed.core.stacked import (
    BoundedSums,
    ReleasesMany,
    RowsOf,
    Stackable,
    StackedRows,
    defines,
    rows_of,
)
from dpfed.core.sum_protocol import Messages, SendsReleases, StageReply, Sum
from dpfed.core.types import UPDATE, Broadcast, Stream, Unit
from dpfed.training.plan import Plan
from dpfed.training.reply import (
    ClientState,
    PricedReleaser,
    client_reply,
    denormals_as_zero,
    refusal,
    rehearse,
    reply_or_zero_rows,
    zero_reply,
)

if TYPE_CHECKING:
    from dpfed.core.grid import Integers, Releases

NUMBERS_PER_PASS = 1 << 17
"""Numbers in the releases of one pass: they fit the cache, whatever the number of clients."""

MIN_CLIENTS_PER_PASS = 2
"""With fewer clients whose problems can be stacked, a pass is not worth it."""

NO_CLIENT = -1
"""A client index for sums that do not look at it."""

Order = tuple[ClientState, Messages]
"""A client, and what the sum asks of it."""


class _EnteredClient(NamedTuple):
    """A client whose round is entered in its ledger, so that it may release."""

    place: int
    client: ClientState
    asked: Messages
    rows: tuple[int, ...]
    """The rows of its ledger that were entered."""


def client_replies(
    plan: Plan, broadcast: Broadcast, stage: str, orders: Sequence[Order]
) -> Iterator[tuple[StageReply, ClientState]]:
    """The clients' replies to one stage, in their order.

    Args:
        plan: what the clients have agreed to.
        broadcast: what the server published for the round.
        stage: the stage of the plan's sum.
        orders: who is asked for what.
    """
    if not _fits(plan, broadcast, stage):
        for client, asked in orders:
            yield client_reply(plan, broadcast, stage, asked, client)
        return
    many = max(1, NUMBERS_PER_PASS // max(1, broadcast.params.numel()))
    for start in range(0, len(orders), many):
        yield from _Pass(plan, broadcast).run(orders[start : start + many])


def _fits(plan: Plan, broadcast: Broadcast, stage: str) -> bool:
    """Whether this round of the plan can be computed for many clients together."""
    return (
        stage == plan.sum.release_stage
        and _sends_releases(plan.sum)
        and plan.update.unit is not Unit.GROUP
        and plan.due(broadcast.round) == [UPDATE] == list(plan.channels)
        and plan.releases(UPDATE, broadcast.round) == 1
        and rows_of(plan.client.work) is not None
        and defines(type(plan.update), "release", "release_many")
    )


def _sends_releases(kind: Sum) -> TypeGuard[SendsReleases]:
    return isinstance(kind, SendsReleases) and defines(type(kind), "reply", "packed")


class _Pass:
    """Some clients' replies at the release stage."""

    def __init__(self, plan: Plan, broadcast: Broadcast) -> None:
        self.plan, self.broadcast = plan, broadcast
        self.stage = plan.sum.release_stage
        assert _sends_releases(plan.sum)  # noqa: S101
        self.sum: SendsReleases = plan.sum
        self.nothing = zero_reply(plan, broadcast)
        self.fresh = plan.mechanism_states(broadcast.params.numel())
        self.context = plan.sum_context(broadcast, NO_CLIENT)  # the sum ignores the index
        self.accepted: Messages | None = None

    def run(self, orders: Sequence[Order]) -> list[tuple[StageReply, ClientState]]:
        """The replies, in the order of the orders."""
        found: dict[int, tuple[StageReply, ClientState]] = {}
        for places in _by_kind(orders):
            if self._can_be_tried(orders[places[0]][0]):
                found.update(self._together({place: orders[place] for place in places}))
        for place, (client, asked) in enumerate(orders):
            if place not in found:
                found[place] = client_reply(self.plan, self.broadcast, self.stage, asked, client)
        return [found[place] for place in range(len(orders))]

    def _can_be_tried(self, first: ClientState) -> bool:
        """Whether the rehearsal passes; clients of one kind share a model. If not, each refuses."""
        try:
            rehearse(self.plan, self.broadcast, first)
        except Exception:  # ``client_reply`` raises it again, and logs it
            return False
        return True

    def _together(
        self, orders: Mapping[int, Order]
    ) -> Iterator[tuple[int, tuple[StageReply, ClientState]]]:
        entered: list[_EnteredClient] = []
        for place, (client, asked) in orders.items():
            try:
                entered.append(self._enter(place, client, asked))
            except Exception as error:
                yield place, (refusal(self.broadcast, client, error), client)
        releases = self._releases([each.client for each in entered])
        for each, integers in zip(entered, releases, strict=True):
            yield each.place, self._sent(each, integers)

    def _enter(self, place: int, client: ClientState, asked: Messages) -> _EnteredClient:
        """Let the sum refuse (at no cost), then the ledger: both before noise is drawn."""
        if asked != self.accepted:  # such a sum knows nothing else of a client
            self.plan.sum.reply(self.stage, asked, self.nothing, client.secret, self.context)
            self.accepted = asked
        rows = client.ledger.begin(self.plan, self.broadcast, client) if client.ledger else ()
        return _EnteredClient(place, client, asked, rows)

    def _sent(
        self, each: _EnteredClient, integers: Integers | None
    ) -> tuple[StageReply, ClientState]:
        """The client's messages, and what it keeps."""
        try:
            if integers is None:
                messages, client = self._made_alone(each)
            else:
                messages = dict.fromkeys(each.asked, self.sum.packed(integers))
                client = self._after(each.client)
            if client.ledger and each.rows:
                client.ledger.confirm(each.rows)
        except Exception as error:
            return refusal(self.broadcast, each.client, error), each.client
        return messages, client

    def _made_alone(self, each: _EnteredClient) -> tuple[Messages, ClientState]:
        plan, at = self.plan, self.broadcast
        reply, client = reply_or_zero_rows(
            plan, at, each.client, PricedReleaser(plan, at, each.client)
        )
        asked, context = each.asked, self.context
        messages, secret = plan.sum.reply(self.stage, asked, reply, client.secret, context)
        return messages, client if secret == client.secret else replace(client, secret=secret)

    def _after(self, client: ClientState) -> ClientState:
        """The client with what its algorithm and mechanism begin with, from its first round on."""
        if client.state is not None and client.mechanisms.keys() == self.fresh.keys():
            return client
        known = client.state
        state = self.plan.client.init(self.broadcast.params) if known is None else known
        states = {**self.fresh, **client.mechanisms} if client.mechanisms else self.fresh
        return replace(client, state=state, mechanisms=states)

    def _releases(self, clients: Sequence[ClientState]) -> Sequence[Integers | None]:
        """Each client's release; None if it has to be made alone."""
        alone: list[Integers | None] = [None] * len(clients)
        if len(clients) < MIN_CLIENTS_PER_PASS:
            return alone
        try:
            with denormals_as_zero():
                sums = self._sums(clients)
                made = sums and self._released(clients, sums)
        except Exception:  # one client's bad data must not affect the others
            log.debug("a stacked pass failed; its clients are computed one by one", exc_info=True)
            return alone
        if not sums or not made:
            return alone
        usable = sums.usable.tolist()
        return [one if right else None for one, right in zip(made.lines, usable, strict=True)]

    def _sums(self, clients: Sequence[ClientState]) -> BoundedSums | None:
        """Each client's clipped sums; None if stacking rounds differently on this machine."""
        problems = [client.problem for client in clients if client.problem is not None]
        first, rows = problems[0], rows_of(self.plan.client.work)
        assert isinstance(first, Stackable) and rows is not None  # noqa: PT018, S101
        together = first.stack(problems)
        if together is None:
            return None
        stack = rows(self.broadcast, together, self.plan.update.unit)
        if not isinstance(stack, StackedRows):
            return None
        sums = stack.clipped_sums(self.plan.update.clip)
        return sums if self._same_bits(first.stack_key, clients, sums, rows) else None

    def _same_bits(
        self, kind: Hashable, clients: Sequence[ClientState], sums: BoundedSums, rows: RowsOf
    ) -> bool:
        """Whether the first and the last client have the sums that they have alone."""
        known = _agreed.setdefault(self.plan, {})
        if kind not in known:
            ends = [at for at in (0, len(clients) - 1) if bool(sums.usable[at])]
            known[kind] = all(self._alone(clients[at], rows, sums.matrix[at]) for at in ends)
        return known[kind]

    def _alone(self, client: ClientState, rows: RowsOf, line: torch.Tensor) -> bool:
        assert client.problem is not None  # noqa: S101
        made = rows(self.broadcast, client.problem, self.plan.update.unit)
        vector = made.clipped_sum(self.plan.update.clip).vector
        return vector.dtype == line.dtype and torch.equal(vector, line)

    def _released(self, clients: Sequence[ClientState], sums: BoundedSums) -> Releases | None:
        plan, at = self.plan, self.broadcast
        assert isinstance(plan.update, ReleasesMany)  # noqa: S101

        def stream(line: int) -> Stream:
            who = clients[line].client
            return plan.noise.stream("release", at.round, who, at.attempt, UPDATE, 0)

        if not bool(sums.usable.all()):
            sums = replace(sums, matrix=torch.where(sums.usable[:, None], sums.matrix, 0.0))
        return plan.update.release_many(sums, stream)


_agreed: WeakKeyDictionary[Plan, dict[Hashable, bool]] = WeakKeyDictionary()


def _by_kind(orders: Sequence[Order]) -> list[list[int]]:
    """The positions of clients whose problems can be stacked, by kind of problem."""
    kinds: dict[Hashable, list[int]] = {}
    for place, (client, _) in enumerate(orders):
        problem: Any = client.problem
        if _stacks(type(problem)):
            kinds.setdefault((type(problem), problem.stack_key), []).append(place)
    return list(kinds.values())


_stackable: dict[type, bool] = {}  # cached: the check takes longer than a small gradient


def _stacks(kind: type) -> bool:
    if kind not in _stackable:
        _stackable[kind] = defines(kind, "rows", "stack", "stack_key")
    return _stackable[kind]
