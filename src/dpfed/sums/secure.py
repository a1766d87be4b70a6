# SPDX-License-Identifier: Apache-2.0
"""The secure sum: the server learns the total of all releases, and no single one.

Bonawitz et al. 2017, with Bell et al. 2020's graph for many clients. A client adds to its vector of
words a mask shared with each neighbour, which cancels in the sum, and a mask of its own, whose seed
is Shamir-shared with the neighbours and opened if the client is in the total. Pair keys are agreed
on once per run; a round derives its seeds from them, so that

    no client drops out    2 exchanges: input, unmask        (the first round: keys, input, unmask)
    a client drops out     3: input, repair, unmask          (and one more for each new dropout)

A dropout is repaired by revealing the round's seeds with it, never a key that outlives the round
(compare Ma et al. 2023, Flamingo). The client decides what may be opened: see secagg/client.py.
Which adversary that protects against, and why, is in docs/privacy.md:

    against      honest terms in whatever is opened      graph
    curious      least - colluders                       complete up to 64 clients, then k-regular
    malicious    2 least - n - colluders                 complete

Guarantee: the total equals ``plain``'s, to the bit. Every term counts alike (public weights of 1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from dpfed.core.checks import refuse
from dpfed.core.errors import BadReply, UnsoundPlan
from dpfed.sums.secagg import client, messages
from dpfed.sums.secagg.graph import Design, design
from dpfed.sums.secagg.messages import SAME_PLAN
from dpfed.sums.secagg.server import INPUT, KEYS, REPAIR, SUM, UNMASK, Directory, Session

if TYPE_CHECKING:
    from dpfed.core.sum_protocol import Aborted, Cohorts, Messages, Opened, Requests, SumContext
    from dpfed.core.types import Reply

PAPER = "Bonawitz et al. 2017; Bell et al. 2020"


class Against(StrEnum):
    """What the server may do beyond reading what it receives."""

    CURIOUS = "curious"
    """Nothing: it follows the protocol, and pools what it sees with the colluders."""
    MALICIOUS = "malicious"
    """Anything: it may tell each client something else about who takes part."""


@dataclass(frozen=True)
class Secure:
    """Clients mask their releases in pairs, so that the server can open only their sum."""

    survivors: float = 0.8
    against: Against = Against.CURIOUS
    bits: int = 64
    degree: int | None = None
    hides_terms: bool = True
    stages: tuple[str, ...] = (KEYS, INPUT, REPAIR, UNMASK)
    release_stage: str = INPUT

    def least(self, clients: int) -> int:
        """The least number of terms that a client agrees to be summed with, its own included."""
        return max(2, math.ceil(self.survivors * clients - 1e-9))

    def min_honest(self, clients: int, colluders: int) -> int:
        """The least number of honest terms in any total that the adversary can open."""
        least = self.least(clients)
        self._graph(clients, colluders)
        found = least - colluders
        if self.against is Against.MALICIOUS:
            found = 2 * least - clients - colluders
        if found < 2:
            raise UnsoundPlan(
                f"honest terms must be at least 2, so that they hide each other, got {found} with "
                f"{least} of {clients} clients and {colluders} colluders against a {self.against} "
                f"server; raise sum.survivors, or use local trust"
            )
        return found

    def adversary(self, colluders: int) -> str:
        """The server, its conduct, and how many clients it may have on its side."""
        conduct = "keeps to the protocol" if self.against is Against.CURIOUS else "may do anything"
        some = f"{colluders} client{'' if colluders == 1 else 's'}"
        return f"the server, which {conduct} and has up to {some} on its side"

    def failure(self, clients: int, colluders: int) -> float:
        """The chance that a run's graph, with one attempt's dropouts, hides fewer honest terms."""
        return self._graph(clients, colluders).failure

    def capacity(self) -> float:
        """Half of the modulus: totals are signed."""
        return 2.0 ** (self.bits - 1)

    def _graph(self, clients: int, colluders: int) -> Design:
        degree = 0 if self.against is Against.MALICIOUS else self.degree
        return design(clients, self.least(clients), colluders, degree)

    # ------------------------------------------------------------------------------- the client

    def reply(
        self,
        stage: str,
        requests: Messages,
        reply: Reply | None,
        secret: bytes,
        context: SumContext,
    ) -> tuple[Messages, bytes]:
        """One message; ``secret`` is the client's vault, before and after it."""
        if set(requests) != {SUM} or stage not in self.stages:
            raise BadReply(
                f"a secure sum has no stage {stage!r} with {sorted(requests)}; {SAME_PLAN}"
            )
        vault = client.open_vault(secret, context)
        message = self._message(stage, requests[SUM], reply, vault, context)
        return {SUM: message}, vault.lock()

    def cohort_in(self, requests: Messages) -> tuple[int, ...]:
        """Whom the client is summed with, by the request that it answers with a masked vector."""
        return tuple(messages.unpack(requests[SUM], messages.Cohort).clients)

    def _message(
        self,
        stage: str,
        request: bytes,
        reply: Reply | None,
        vault: client.Vault,
        context: SumContext,
    ) -> bytes:
        if stage == KEYS:
            return client.offer_key(vault, context)
        limits = self._graph(context.clients, context.colluders), self.least(context.clients)
        if stage == INPUT:
            cohort = messages.unpack(request, messages.Cohort)
            return client.mask(vault, context, cohort, self._vector(reply or {}), *limits)
        if stage == REPAIR:
            dropped = messages.unpack(request, messages.Dropped)
            return client.reveal(vault, context, dropped, *limits)
        alive = messages.unpack(request, messages.Alive)
        return client.hand_over(vault, context, alive, *limits)

    def _vector(self, reply: Reply) -> client.Vector:
        """All channels' integers in one vector of words, modulo 2^bits, in order of their names.

        A server that could choose the order could put one client's release on a channel where the
        others have little.
        """
        if not reply:
            raise BadReply(
                f"stage {INPUT!r} needs a release, got none; give `answer` the reply of this round"
            )
        parts = {name: reply[name].vector.numpy() for name in sorted(reply)}
        whole = np.concatenate([part.astype(np.int64, copy=False) for part in parts.values()])
        words = whole.view(np.uint64) if self.bits == 64 else whole.astype(np.uint32)
        return client.Vector(words, {name: part.size for name, part in parts.items()})

    # ------------------------------------------------------------------------------- the server

    def directory(self) -> Directory:
        """A directory without keys."""
        return Directory()

    def pack_directory(self, directory: Directory) -> bytes:
        """The signed keys and who has seen which, so that a repeated request has the same bytes."""
        seen = {client: sorted(others) for client, others in directory.seen.items()}
        return messages.pack_message(messages.Keys(dict(directory.keys), seen))

    def unpack_directory(self, packed: bytes) -> Directory:
        """The same directory again."""
        found = messages.unpack(packed, messages.Keys)
        return Directory(found.keys, {c: frozenset(others) for c, others in found.seen.items()})

    def begin(
        self, directory: Directory, cohorts: Cohorts, sizes: Mapping[str, int], context: SumContext
    ) -> tuple[Session, Requests]:
        """An empty total, and the first thing to ask for."""
        asked = [dict(cohort) for cohort in cohorts.values()]
        if any(each != asked[0] for each in asked) or set(asked[0].values()) - {1.0}:
            raise UnsoundPlan(
                "a secure sum adds all clients alike, on the same channels; use weights = 'sum'"
            )
        session = Session(
            keys=dict(directory.keys),
            seen=dict(directory.seen),
            sizes={name: sizes[name] for name in sorted(sizes)},
            cohort=set(asked[0]),
            context=context,
            graph=self._graph(context.clients, context.colluders),
            least=self.least(context.clients),
            total=np.zeros(sum(sizes.values()), f"<u{self.bits // 8}"),
        )
        return session, session.begin()

    def add(self, session: Session, client: int, messages: Messages) -> Session:
        """Add one client's message of the stage."""
        if set(messages) != {SUM}:
            raise BadReply(f"a reply must be on {[SUM]}, got {sorted(messages)}; {SAME_PLAN}")
        session.add(client, messages[SUM])
        return session

    def close(self, session: Session) -> Requests | Opened | Aborted:
        """The next stage, or the end."""
        return session.close()

    def directory_after(self, session: Session) -> Directory:
        """The keys that are known by now, and who has seen them."""
        return Directory(session.keys, session.seen)


def secure(
    survivors: float = 0.8,
    against: Against = Against.CURIOUS,
    bits: int = 64,
    degree: int | None = None,
) -> Secure:
    """Add the clients' releases so that the server sees only the sum (secure aggregation).

    Args:
        survivors: the fraction of the plan's clients that a total must have, above 0, at most 1.
        against: what the server may do: follow the protocol (curious), or anything (malicious).
        bits: the size of a word, 32 or 64; half of 2^bits is the largest total.
        degree: neighbours that a client shares masks with, even; None chooses, 0 is all clients.

    Returns:
        a sum for distributed trust: the noise shares in a total add up.

    >>> made = secure(survivors=0.8)
    >>> made.least(clients=10), made.min_honest(clients=10, colluders=1)
    (8, 7)
    """
    if not 0 < survivors <= 1:
        raise refuse("sum.survivors", "above 0 and at most 1", survivors)
    if bits not in (32, 64):
        raise refuse("sum.bits", "32 or 64", bits)
    if against not in list(Against):
        raise refuse("sum.against", f"one of {', '.join(Against)}", against)
    against = Against(against)
    if degree is not None and degree % 2:
        raise refuse("sum.degree", "even, half of the neighbours on either side", degree)
    if degree is not None and against is Against.MALICIOUS:
        bound = "left out against a malicious server, where all clients are neighbours"
        raise refuse("sum.degree", bound, degree, "leave it out, or set sum.against = 'curious'")
    return Secure(survivors, against, bits, degree)
