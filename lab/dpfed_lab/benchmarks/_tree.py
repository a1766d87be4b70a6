# SPDX-License-Identifier: Apache-2.0
"""A tree of aggregators, as a simulation: each adds up its devices' replies, the root their totals.

    devices -- replies --> aggregator -- an int64 total, and who is in it --> root: noise, step

Not a part of dpfed: it is here to be measured (lab/scripts/tree_load.py; its processes:
_tree_nodes.py).

Guarantee: the root's total has the bits of one server's, whatever the shards and the order. An
aggregator reads replies by the code of the plain sum, and refuses what one server refuses;
integers add up exactly; noise is added once, at the root, by the round itself.

What it does not do: an aggregator reads each reply in clear, and one that adds a device's twice
doubles what that device moves, which the root cannot see. So each is trusted as the server is.

| edge case                                          | what happens                               |
|----------------------------------------------------|--------------------------------------------|
| a reply beyond the clip, of a wrong length, a      | BadReply at the aggregator, as at a server |
| second one, or one of another shard's device       |                                            |
| replies so large that the root's sum could wrap    | BadReply at the aggregator: the limit is   |
|                                                    | the whole cohort's, not the shard's        |
| a total of a wrong length, a second one, or one    | BadReply at the root, and all of it is     |
| that so many replies cannot add up to              | left out: a sum cannot be taken apart      |
| an aggregator that is lost                         | its devices add zero; each has spent       |
| nobody answered any of them                        | Aborted, as at a server                    |
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from dpfed.core.errors import BadReply
from dpfed.core.grid import add_weighted
from dpfed.core.sum_protocol import StageReply
from dpfed.core.types import Broadcast
from dpfed.sums.plain import Adder, Adding, Plain, plain
from dpfed.training.round import SERVER, Exchange, add_replies

if TYPE_CHECKING:
    from dpfed.core.grid import Integers
    from dpfed.core.sum_protocol import Cohorts, Messages, SumContext
    from dpfed.training.plan import Plan

WHO = "who"
"""Beside the channels' totals: a bit for each device of the shard."""

Shards = tuple[Sequence[int], ...]
"""By aggregator: the slots whose replies it may add up. No slot is in two of them."""


# ----------------------------------------------------------------------------- the aggregator


def begin(cohorts: Cohorts, sizes: Mapping[str, int], context: SumContext, everyone: int) -> Adder:
    """A plain sum over a shard.

    Args:
        cohorts: the shard's devices with their public weights, by channel.
        sizes: how long each channel's vectors are.
        context: the server's, of the round.
        everyone: how many devices the whole round has: no sum of theirs may wrap.
    """
    session, _ = plain().begin(None, cohorts, sizes, context)
    limit = plain().capacity() / max(1, everyone)
    return Adder({name: replace(adding, limit=limit) for name, adding in session.channels.items()})


def gather(session: Adder, answers: Iterable[tuple[int, StageReply]]) -> Adder:
    """Add up what comes; a reply that does not fit is dropped, and the rest goes on."""
    after: Adder = add_replies(plain(), session, answers, {}, logging.DEBUG)
    return after


def partial_total(session: Adder, slots: Sequence[int]) -> dict[str, bytes]:
    """What an aggregator hands to the root: totals, and which of its slots are in them."""
    who = np.packbits(np.fromiter((slot in session.clients for slot in slots), bool, len(slots)))
    totals = {n: each.total.astype("<i8", copy=False) for n, each in session.channels.items()}
    return {WHO: who.tobytes(), **{name: total.tobytes() for name, total in totals.items()}}


# ----------------------------------------------------------------------------------- the root


@dataclass(frozen=True)
class Partials(Plain):
    """The root's sum: partial totals take the place of replies."""

    shards: Shards = ()

    def add(self, session: Adder, client: int, messages: Messages) -> Adder:
        """Check an aggregator's totals and add them; ``client`` is its number."""
        if client not in range(len(self.shards)):
            raise BadReply(f"there is no aggregator {client}; its totals are dropped")
        if messages.keys() != {WHO, *session.channels}:
            raise BadReply(f"a partial total must be on {sorted(session.channels)} and {WHO!r}")
        slots = self.shards[client]
        inside = _named(messages[WHO], slots)
        if not session.clients.isdisjoint(slots):
            raise BadReply(f"aggregator {client} has answered; its totals are dropped")
        found = {n: _checked(each, inside, messages[n]) for n, each in session.channels.items()}
        for name, integers in found.items():
            add_weighted(session.channels[name].total, integers, 1.0)  # weighted by the aggregator
        session.clients.update(inside)
        return session


def _named(who: bytes, slots: Sequence[int]) -> set[int]:
    bits = np.unpackbits(np.frombuffer(who, np.uint8))
    if len(who) != math.ceil(len(slots) / 8) or bits[len(slots) :].any():
        raise BadReply(f"a partial total must name {len(slots)} devices by a bit each")
    return {slot for slot, bit in zip(slots, bits, strict=False) if bit}


def _checked(adding: Adding, inside: set[int], message: bytes) -> Integers:
    """A channel's integers, if so many replies can add up to them."""
    size, count = adding.total.size, len(inside)
    if len(message) != 8 * size or not inside <= adding.cohort.keys():
        raise BadReply(f"a partial total must be {size} integers of 8 bytes, of devices asked")
    one = None if adding.longest is None else adding.longest + math.sqrt(size)
    whole = replace(
        adding,
        cohort={SERVER: 1.0},
        limit=count * int(adding.limit),
        longest=None if one is None else count * one,
    )
    return whole.decode(SERVER, message)


# ------------------------------------------------------------------------------ all in one process


def through(plan: Plan, shards: Shards, devices: Exchange) -> Exchange:
    """The exchange of a root whose aggregators ask the devices, one after the other.

    Args:
        plan: what is done, and what it costs.
        shards: which slots each aggregator has.
        devices: how requests reach devices and their answers come back.
    """

    def exchange(
        broadcast: Broadcast, stage: str, requests: Mapping[str, Mapping[int, bytes]]
    ) -> Iterator[tuple[int, StageReply]]:
        context = plan.sum_context(broadcast, SERVER)
        sizes = {name: plan.size(name, broadcast.params.numel()) for name in requests}
        everyone = max(map(len, requests.values()))
        for number, slots in enumerate(shards):
            asked = {
                n: {slot: to[slot] for slot in slots if slot in to} for n, to in requests.items()
            }
            cohorts = {name: plan.cohort(name, to) for name, to in asked.items()}
            session = begin(cohorts, sizes, context, everyone)
            gather(session, devices(broadcast, stage, asked))
            yield number, partial_total(session, slots)

    return exchange


def even_shards(count: int, aggregators: int) -> Shards:
    """Slots in a row for each of them, as even as can be."""
    ends = [count * number // aggregators for number in range(aggregators + 1)]
    return tuple(range(*pair) for pair in pairwise(ends))
