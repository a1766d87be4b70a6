# SPDX-License-Identifier: Apache-2.0
"""The plain sum: each client sends its release, and the server adds them up in int64.

One stage. The server sees every term, so ``plain`` never serves DISTRIBUTED trust. A message is
the release's integers, little-endian, int32 or int64: which one follows from its length. A message
that does not fit is refused, and the round continues without it.

| edge case                                             | what happens                            |
|-------------------------------------------------------|-----------------------------------------|
| a message of the wrong length, a (1,)-shaped one too  | BadReply                                |
| a client outside the cohort, or one that answers twice| BadReply                                |
| values so large that a sum of all clients could wrap  | BadReply                                |
| a row in clear that is longer than the clip, where    | BadReply                                |
| the plan lets the server look (an open population)    |                                         |
| a weight sent by the client                           | there is no field for one               |
| no client answers                                     | Aborted                                 |
| fewer than ``least_clients`` answer                   | the total opens, it is spent; then the  |
|                                                       | training ends (training/stopping.py)    |
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from dpfed.core.checks import refuse
from dpfed.core.errors import BadReply
from dpfed.core.grid import add_weighted
from dpfed.core.sum_protocol import Aborted, Opened, Requests
from dpfed.core.types import Total

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dpfed.core.grid import Integers
    from dpfed.core.sum_protocol import Cohorts, Messages, SumContext
    from dpfed.core.types import Reply


_BLOCK_COORDINATES = 1 << 14  # a norm is summed in blocks of this many
_SAME_PLAN = "use the same plan and the same version of dpfed on all machines"


@dataclass(eq=False)
class Adding:
    """A channel's sum under way. The total grows in place: O(size) memory."""

    cohort: Mapping[int, float]
    total: NDArray[np.int64]
    limit: float
    longest: float | None = None
    """The largest norm of a reply, if it is one row in clear; None allows any."""

    def decode(self, client: int, message: bytes) -> Integers:
        """A client's integers, checked against the schema: a view of the message."""
        if client not in self.cohort:
            raise _unexpected(client)
        integers = _decode(message, self.total.size)
        _check_range(integers, self.limit)
        if self.longest is not None:
            _check_norm(integers, self.longest)
        return integers


@dataclass(eq=False)
class Adder:
    """All channels of a round under way, and who is in their totals."""

    channels: Mapping[str, Adding]
    clients: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Plain:
    """Each client sends its release; the server reads and adds them. For local or central trust."""

    hides_terms: bool = False
    stages: tuple[str, ...] = ("reply",)
    release_stage: str = "reply"
    least_clients: int | None = None
    """How many clients must take part, or training ends; None is more than half, at least 2."""

    @property
    def against(self) -> str:
        """The server that its claims are about: plain sums withstand no stronger one."""
        return "curious"

    def least(self, clients: int) -> int:
        """As declared; or more than half of them, and at least 2 unless there is but one."""
        if self.least_clients is not None:
            return self.least_clients
        return min(clients, max(2, clients // 2 + 1))

    def min_honest(self, clients: int, colluders: int) -> int:
        """1: the server reads each term on its own."""
        del clients, colluders
        return 1

    def adversary(self, colluders: int) -> str:
        """The server: it sees every release."""
        del colluders
        return "the server"

    def failure(self, clients: int, colluders: int) -> float:
        """0: it hides no terms, so no guarantee of it can fail."""
        del clients, colluders
        return 0.0

    def capacity(self) -> float:
        """What int64 holds; larger replies are refused one by one."""
        return 2.0**62

    def reply(
        self,
        stage: str,
        requests: Messages,
        reply: Reply | None,
        secret: bytes,
        context: SumContext,
    ) -> tuple[Messages, bytes]:
        """The releases' integers as bytes."""
        del context
        if stage != "reply" or reply is None:
            raise BadReply(
                f"a plain sum has one stage, 'reply' with a release, got {stage!r}; {_SAME_PLAN}"
            )
        return {name: reply[name].vector.numpy().tobytes() for name in requests}, secret

    def directory(self) -> None:
        """There is nothing to keep."""

    def pack_directory(self, directory: None) -> bytes:
        """Nothing."""
        del directory
        return b""

    def unpack_directory(self, packed: bytes) -> None:
        """Nothing."""

    def begin(
        self, directory: None, cohorts: Cohorts, sizes: Mapping[str, int], context: SumContext
    ) -> tuple[Adder, Requests]:
        """Empty totals, and how large one reply may be so that no sum of all can wrap."""
        del directory
        adding = {
            name: Adding(
                cohort=cohort,
                total=np.zeros(sizes[name], np.int64),
                limit=2.0**62 / max(1, len(cohort)),
                longest=context.longest.get(name),
            )
            for name, cohort in cohorts.items()
        }
        asked = {name: dict.fromkeys(cohort, b"") for name, cohort in cohorts.items()}
        return Adder(adding), Requests("reply", asked)

    def add(self, session: Adder, client: int, messages: Messages) -> Adder:
        """Check a client's messages and add each, scaled by the client's public weight."""
        if messages.keys() != session.channels.keys():
            due = sorted(session.channels)
            raise BadReply(f"a reply must be on {due}, got {sorted(messages)}; {_SAME_PLAN}")
        if client in session.clients:
            raise _unexpected(client)
        found = {n: session.channels[n].decode(client, m) for n, m in messages.items()}
        for name, integers in found.items():
            adding = session.channels[name]
            add_weighted(adding.total, integers, adding.cohort[client])
        session.clients.add(client)
        return session

    def close(self, session: Adder) -> Requests | Opened | Aborted:
        """The totals of the clients that answered."""
        if not session.clients:
            return Aborted("no client answered")
        clients = tuple(sorted(session.clients))
        return Opened(
            {
                name: Total(
                    torch.from_numpy(adding.total),
                    clients,
                    tuple(adding.cohort[client] for client in clients),
                )
                for name, adding in session.channels.items()
            }
        )

    def directory_after(self, session: Adder) -> None:
        """Nothing."""


def plain(least_clients: int | None = None) -> Plain:
    """Add the clients' releases in the clear: the server reads each of them.

    Args:
        least_clients: how many clients must take part, at least 1: a training that too few of them
            have enrolled in asks for nothing, and one in which too few have answered a round ends,
            before it spends the budget of a few silos for a model of their own. None is more than
            half of the plan's clients, and at least 2 (1 of 1). It is not used where clients are
            drawn in secret, or the population is open.

    Returns:
        a sum that hides no term from the server.

    >>> plain().hides_terms, plain().least(clients=5)
    (False, 3)
    """
    if least_clients is not None and (isinstance(least_clients, bool) or least_clients < 1):
        raise refuse("sum.least_clients", "a whole number, at least 1", least_clients)
    return Plain(least_clients=least_clients)


def _unexpected(client: int) -> BadReply:
    return BadReply(f"client {client} is not expected, or has answered; its reply is dropped")


def _decode(message: bytes, size: int) -> Integers:
    """A view of the message, not a copy."""
    kinds = {4 * size: "<i4", 8 * size: "<i8"}
    if len(message) not in kinds:
        raise BadReply(
            f"a reply must be {size} integers of 4 or 8 bytes, got {len(message)} bytes; "
            f"{_SAME_PLAN}"
        )
    return np.frombuffer(message, dtype=kinds[len(message)])


def _check_range(integers: Integers, limit: float) -> None:
    if integers.itemsize == 4 and limit >= 2.0**31:
        return
    least, most = np.minimum.reduce(integers, initial=0), np.maximum.reduce(integers, initial=0)
    largest = max(-int(least), int(most))
    if largest > limit:
        raise BadReply(
            f"a reply must hold at most {limit:.3g}, so that no sum can wrap, got {largest}; "
            f"ask who runs that client what happened"
        )


def _check_norm(integers: Integers, longest: float) -> None:
    """Refuse a row beyond the clip; one grid step per coordinate is allowed for rounding."""
    most = longest + math.sqrt(integers.size)
    parts = (
        integers[at : at + _BLOCK_COORDINATES] / most
        for at in range(0, integers.size, _BLOCK_COORDINATES)
    )
    norm = math.sqrt(math.fsum(float(part @ part) for part in parts))
    if not norm <= 1:
        raise BadReply(
            f"a reply must be at most as long as the clip, got {norm:.3g} times that; ask who runs "
            f"that client what happened"
        )
