# SPDX-License-Identifier: Apache-2.0
"""The plain sum: each client sends its release, and the server adds them up in int64.

One stage. The server sees every term, so ``plain`` never serves DISTRIBUTED trust. A message is
the release's integers, little-endian, int32 or int64: which one follows from its length. Whatever
does not fit is refused, one message at a time, and the rest of the round goes on.

| edge case                                             | what happens                            |
|-------------------------------------------------------|-----------------------------------------|
| a message of the wrong length, a (1,)-shaped one too  | BadReply                                |
| a client outside the cohort, or one that answers twice| BadReply                                |
| values so large that a sum of all clients could wrap  | BadReply                                |
| a weight sent by the client                           | there is no field for one               |
| nobody answers                                        | Aborted                                 |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from dpfed.errors import BadReply
from dpfed.grid import add_weighted
from dpfed.types import Aborted, Requests, Total

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dpfed.grid import Integers
    from dpfed.types import Release, Secret


@dataclass(frozen=True, eq=False)
class Adding:
    """A sum under way. The total and the list of who is in it grow in place: O(size) memory."""

    cohort: Mapping[int, float]
    total: NDArray[np.int64]
    limit: float
    clients: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Plain:
    """See the file's docstring."""

    hides_terms: bool = False
    stages: tuple[str, ...] = ("reply",)
    release_stage: str = "reply"

    def answer(
        self, stage: str, request: bytes, release: Release | None, secret: Secret
    ) -> tuple[bytes, Secret]:
        """The release's integers as bytes."""
        del request
        if stage != "reply" or release is None:
            raise BadReply(f"a plain sum has one stage, 'reply' with a release, not {stage!r}")
        return release.vector.numpy().tobytes(), secret

    def begin(self, cohort: Mapping[int, float], round: int, size: int) -> Adding:
        """An empty total, and how large one reply may be so that no sum of all can wrap."""
        del round
        return Adding(cohort, np.zeros(size, np.int64), limit=2.0**62 / max(1, len(cohort)))

    def add(self, session: Adding, client: int, message: bytes) -> Adding:
        """Check one message against the schema and add it, scaled by the client's public weight."""
        if client not in session.cohort or client in session.clients:
            raise BadReply(
                f"client {client} is not expected, or has answered; its reply is dropped"
            )
        integers = _decode(message, session.total.size)
        _check_range(integers, session.limit)
        add_weighted(session.total, integers, session.cohort[client])
        session.clients.add(client)
        return session

    def close(self, session: Adding) -> Requests | Total | Aborted:
        """The total of those who answered."""
        if not session.clients:
            return Aborted("no client answered")
        clients = tuple(sorted(session.clients))
        weights = tuple(session.cohort[client] for client in clients)
        return Total(torch.from_numpy(session.total), clients, weights)


def plain() -> Plain:
    """The one-stage sum: the server reads each release."""
    return Plain()


def _decode(message: bytes, size: int) -> Integers:
    """A view of the message, not a copy."""
    kinds = {4 * size: "<i4", 8 * size: "<i8"}
    if len(message) not in kinds:
        raise BadReply(f"a reply of {len(message)} bytes, where {size} integers are due")
    return np.frombuffer(message, dtype=kinds[len(message)])


def _check_range(integers: Integers, limit: float) -> None:
    if integers.itemsize == 4 and limit >= 2.0**31:
        return
    largest = max(-int(integers.min(initial=0)), int(integers.max(initial=0)))
    if largest > limit:
        raise BadReply(f"a reply holds {largest}, above {limit:.3g}, where a sum could wrap")
