# SPDX-License-Identifier: Apache-2.0
"""The server's side of the secure sum: it transports sealed shares, adds words, removes masks.

Guarantee: the opened total is the sum of the vectors of those in it, to the bit; a message that
does not fit is refused with the sender's name, and its sender is out of the round. O(size) memory:
masked vectors are spooled to disk beyond 256 MB, since one is needed again if its sender goes
silent while a dropout is repaired.

| edge case                                          | what happens                               |
|----------------------------------------------------|--------------------------------------------|
| a client sends no key                              | it is not in the round's cohort            |
| a client sends no masked vector                    | repair: its pair masks are taken off       |
| a client goes silent in repair                     | its vector is taken off too; repair again  |
| a client goes silent in unmask                     | others' shares open its own mask           |
| a share or a seed that does not fit its commitment | BadReply naming the sender                 |
| a key that is not signed, where a roster is known  | BadReply: it is not in the cohort          |
| a client deals shares of something else            | others are used; too few true: Aborted     |
| two clients commit to different seeds              | Aborted, naming both                       |
| fewer than ``least`` are left                      | Aborted: nothing is opened                 |
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dpfed.core.errors import BadReply
from dpfed.core.sum_protocol import Aborted, Opened, Requests
from dpfed.core.types import Total
from dpfed.sums.secagg import keys, masks, messages, shamir
from dpfed.sums.secagg.graph import Design, neighbours
from dpfed.sums.secagg.messages import ASK_CLIENT, SAME_PLAN

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dpfed.core.sum_protocol import SumContext

KEYS, INPUT, REPAIR, UNMASK = "keys", "input", "repair", "unmask"
SUM = "sum"
"""The name under which the secure sum's messages are sent."""

_MAX_MEMORY_BYTES = 256 << 20


@dataclass(frozen=True, eq=False)
class Directory:
    """The clients' signed keys, and who has seen whose: public, kept between rounds."""

    keys: Mapping[int, messages.Key] = field(default_factory=dict)
    seen: Mapping[int, frozenset[int]] = field(default_factory=dict)


@dataclass(eq=False)
class Session:
    """The state of a round's sum."""

    keys: dict[int, messages.Key]
    seen: dict[int, frozenset[int]]
    sizes: Mapping[str, int]
    cohort: set[int]
    context: SumContext
    graph: Design
    least: int
    total: NDArray[Any]
    stage: str = KEYS
    asked: set[int] = field(default_factory=set)
    answered: set[int] = field(default_factory=set)
    alive: set[int] = field(default_factory=set)
    out: set[int] = field(default_factory=set)
    masked: dict[int, messages.Masked] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)
    seeds: dict[tuple[int, int], bytes] = field(default_factory=dict)
    shares: dict[int, dict[int, bytes]] = field(default_factory=dict)
    spool: Any = field(default_factory=lambda: tempfile.SpooledTemporaryFile(_MAX_MEMORY_BYTES))  # noqa: SIM115

    def __post_init__(self) -> None:
        # A round that ends by an exception never comes to close(); its file goes with it.
        weakref.finalize(self, self.spool.close)

    # ------------------------------------------------------------------------------ messages in

    def add(self, client: int, data: bytes) -> None:
        """Check and take one client's message of the stage."""
        if client not in self.asked or client in self.answered:
            raise BadReply(
                f"client {client} is not expected in {self.stage!r}, or has answered; its message "
                f"is dropped"
            )
        take = {
            KEYS: self._take_key,
            INPUT: self._take_input,
            REPAIR: self._take_seeds,
            UNMASK: self._take_shares,
        }
        take[self.stage](client, data)
        self.answered.add(client)

    def _take_key(self, client: int, data: bytes) -> None:
        key = messages.unpack(data, messages.Key)
        roster, text = self.context.roster, keys.signed_text(self.context.run, client, key.key)
        signed = roster is None or roster.verify(client, key.signature, text)
        if not signed or not keys.is_key(key.key):
            raise BadReply(
                f"client {client} sent a key that is not valid, or that it has not signed; check "
                f"its DPFED_IDENTITY"
            )
        self.keys[client] = key

    def _take_input(self, client: int, data: bytes) -> None:
        message, raw = messages.unpack_masked(data)
        if len(raw) != self.total.nbytes:
            raise BadReply(
                f"a vector must have {self.total.nbytes} bytes, got {len(raw)}; {SAME_PLAN}"
            )
        near = set(self._near(client, self.cohort))
        marks = (*message.shares.values(), *message.pairs.values(), message.own)
        lengths = {len(text) for text in message.sealed.values()}
        if not set(message.sealed) == set(message.shares) == set(message.pairs) == near:
            raise BadReply(
                f"client {client} must seal a share for each of its neighbours, and no other; "
                f"{ASK_CLIENT}"
            )
        if {len(mark) for mark in marks} != {32} or lengths != {shamir.SHARE_BYTES + 16}:
            raise BadReply(
                f"client {client} sent shares or commitments of the wrong length; {SAME_PLAN}"
            )
        self.seen[client] = self.seen.get(client, frozenset()) | near
        self.total += np.frombuffer(raw, self.total.dtype)
        self.masked[client] = message
        self.places[client] = self.spool.seek(0, 2)
        self.spool.write(raw)

    def _take_seeds(self, client: int, data: bytes) -> None:
        seeds = messages.unpack(data, messages.Seeds).seeds
        if set(seeds) != set(self._near(client, self.out)):
            raise BadReply(
                f"client {client} must reveal the seeds that it was asked for, and no other; "
                f"{ASK_CLIENT}"
            )
        for other, seed in seeds.items():
            if len(seed) != 32 or keys.digest(seed) != self.masked[client].pairs[other]:
                raise BadReply(f"client {client} forged its seed with client {other}; {ASK_CLIENT}")
        self.seeds.update({(client, other): seed for other, seed in seeds.items()})

    def _take_shares(self, client: int, data: bytes) -> None:
        shares = messages.unpack(data, messages.Shares).shares
        if not set(shares) <= set(self._near(client, self.alive)):
            raise BadReply(
                f"client {client} handed over shares that it was not asked for; {ASK_CLIENT}"
            )
        for other, share in shares.items():
            if keys.digest(share) != self.masked[other].shares[client]:
                raise BadReply(
                    f"client {client} forged its share of client {other}'s mask; {ASK_CLIENT}"
                )
        for other, share in shares.items():
            self.shares.setdefault(other, {})[client] = share

    def _near(self, client: int, among: set[int]) -> list[int]:
        found = neighbours(client, self.context.clients, self.graph.degree, self.context.run)
        return [other for other in found if other in among]

    # ------------------------------------------------------------------------------- stages over

    def begin(self) -> Requests:
        """Ask for keys that are missing; if none are, for masked vectors at once."""
        missing = self.cohort - set(self.keys)
        return self._ask(KEYS, dict.fromkeys(sorted(missing), b"")) if missing else self._inputs()

    def close(self) -> Requests | Opened | Aborted:
        """What comes after the stage."""
        following = self._following()
        if not isinstance(following, Requests):
            self.spool.close()
        return following

    def _following(self) -> Requests | Opened | Aborted:
        if self.stage == KEYS:
            self.cohort &= set(self.keys)
            return self._too_few(self.cohort, "have sent keys") or self._inputs()
        if self.stage == INPUT:
            self.alive = set(self.masked)
            self.out = self.cohort - self.alive
            return self._disagreement() or self._next()
        if self.stage == REPAIR:
            silent = self.alive - self.answered
            self._take_off(silent)
            return self._next() if silent else self._unmask()
        return self._open()

    def _next(self) -> Requests | Aborted:
        short = self._too_few(self.alive, "are in the total")
        return short or (self._repair() if self.out else self._unmask())

    def _inputs(self) -> Requests:
        return self._ask(INPUT, {client: self._cohort(client) for client in sorted(self.cohort)})

    def _cohort(self, client: int) -> bytes:
        """A client's request, with the neighbours' keys that it has not seen."""
        unseen = set(self._near(client, self.cohort)) - self.seen.get(client, frozenset())
        offers = {other: self.keys[other] for other in sorted(unseen)}
        return messages.pack_message(messages.Cohort(sorted(self.cohort), offers))

    def _repair(self) -> Requests:
        message = messages.pack_message(messages.Dropped(sorted(self.out)))
        return self._ask(REPAIR, dict.fromkeys(sorted(self.alive), message))

    def _unmask(self) -> Requests:
        alive = sorted(self.alive)
        return self._ask(UNMASK, {client: self._alive(client, alive) for client in alive})

    def _alive(self, client: int, alive: list[int]) -> bytes:
        near = {other: self.masked[other] for other in self._near(client, self.alive)}
        return messages.pack_message(
            messages.Alive(
                alive,
                sealed={other: message.sealed[client] for other, message in near.items()},
                marks={other: message.shares[client] for other, message in near.items()},
            )
        )

    def _ask(self, stage: str, requests: dict[int, bytes]) -> Requests:
        self.stage, self.answered, self.asked = stage, set(), set(requests)
        return Requests(stage, {SUM: requests})

    # ----------------------------------------------------------------------------- what can fail

    def _too_few(self, clients: set[int], what: str) -> Aborted | None:
        if len(clients) >= self.least:
            return None
        return Aborted(f"{len(clients)} clients {what}, and {self.least} are agreed on")

    def _disagreement(self) -> Aborted | None:
        """Two clients that commit to different seeds would leave a mask in the total."""
        for client, message in self.masked.items():
            for other, mark in message.pairs.items():
                if other in self.masked and self.masked[other].pairs[client] != mark:
                    return Aborted(f"clients {client} and {other} disagree on their seed")
        return None

    def _take_off(self, silent: set[int]) -> None:
        """Subtract the vectors of clients that dropped out before their masks were repaired."""
        for client in silent:
            self.spool.seek(self.places.pop(client))
            raw = self.spool.read(self.total.nbytes)
            self.total -= np.frombuffer(raw, self.total.dtype)
            del self.masked[client]
        self.alive -= silent
        self.out |= silent

    # ----------------------------------------------------------------------------------- the end

    def _open(self) -> Opened | Aborted:
        """Remove all masks: what is left is the sum."""
        need = self.graph.threshold
        short = [c for c in sorted(self.alive) if len(self.shares.get(c, {})) < need]
        if short:
            return Aborted(f"fewer than {need} true shares of the masks of clients {short}")
        own = {c: self._own(c) for c in sorted(self.alive)}
        liars = [c for c, seed in own.items() if seed is None]
        if liars:
            return Aborted(f"the shares of clients {liars} are not those of their own masks")
        pairs = [(i < j, seed) for (i, j), seed in self.seeds.items() if i in self.alive]
        added = [seed for plus, seed in pairs if plus]
        masks.apply(
            self.total,
            [seed for plus, seed in pairs if not plus],
            [*filter(None, own.values()), *added],
        )
        return Opened(self._totals())

    def _own(self, client: int) -> bytes | None:
        """The seed of a client's own mask, if its shares are of what it committed to."""
        shares = dict(sorted(self.shares[client].items())[: self.graph.threshold])
        try:
            seed = shamir.join(shares)
        except BadReply:
            return None
        return seed if keys.digest(seed) == self.masked[client].own else None

    def _totals(self) -> dict[str, Total]:
        signed = self.total.view(np.dtype(f"<i{self.total.itemsize}")).astype(np.int64, copy=False)
        clients = tuple(sorted(self.alive))
        found, start = {}, 0
        for name, size in self.sizes.items():
            part = torch.from_numpy(signed[start : start + size])
            found[name] = Total(part, clients, (1.0,) * len(clients))
            start += size
        return found
