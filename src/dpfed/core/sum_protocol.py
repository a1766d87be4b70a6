# SPDX-License-Identifier: Apache-2.0
"""The protocol of a sum: replies become totals in one or more exchanges of bytes.

server   begin -> Requests -+-> close -> Requests (the next stage), or Opened, or Aborted
                            |     ^
client                      +-> answer -> bytes -> add, one client at a time
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from dpfed.core.errors import ClientRefused
from dpfed.core.types import Reply, Total

Messages: TypeAlias = Mapping[str, bytes]
"""What one client sends or gets in a stage: by channel, or under a name of the sum's own."""


StageReply: TypeAlias = "Messages | ClientRefused"
"""A client's messages, or why there are none."""


@dataclass(frozen=True)
class Requests:
    """A stage is over: what to ask each client for in the next one, by name and client."""

    stage: str
    messages: Mapping[str, Mapping[int, bytes]]


@dataclass(frozen=True, eq=False)
class Opened:
    """All stages are over: the total of each channel."""

    totals: Mapping[str, Total]


@dataclass(frozen=True)
class Aborted:
    """The round cannot be opened."""

    reason: str


class Verifier(Protocol):
    """Who the clients are: a roster of their public keys (see identity.py)."""

    def verify(self, client: int, signature: bytes, message: bytes) -> bool:
        """Whether the client has signed the message."""


@runtime_checkable
class NamesCohort(Protocol):
    """A sum whose clients are told who else is in it."""

    def cohort_in(self, requests: Messages) -> tuple[int, ...]:
        """The clients of the cohort, by the request for a release."""


class Signer(Verifier, Protocol):
    """Who a client is towards the others, and who they are."""

    def sign(self, message: bytes) -> bytes:
        """This client's signature of the message."""


@dataclass(frozen=True, eq=False)
class SumContext:
    """A client's place in a sum, by its own knowledge: what all its messages are bound to."""

    client: int
    clients: int
    """How many the plan has."""
    colluders: int
    round: int
    attempt: int
    run: str
    """The training's name and the plan's fingerprint."""
    signer: Signer | None = None
    roster: Verifier | None = None
    """The server's own knowledge of who the clients are, if it has any."""
    longest: Mapping[str, float] = field(default_factory=dict)
    """The norm of a reply at most, in steps, by channel, if the server can tell."""


Session: TypeAlias = Any
"""The state of a Sum on the server between messages."""

Directory: TypeAlias = Any
"""What a Sum keeps on the server between rounds: public, such as clients' keys. Never changed."""


class Sum(Protocol):
    """Turns replies into totals in one or more exchanges of bytes.

    What a client keeps between stages and rounds is its ``secret``: bytes that never leave it.
    """

    @property
    def hides_terms(self) -> bool:
        """Whether the server learns nothing but the total."""

    @property
    def against(self) -> str:
        """The server that it withstands if it hides terms: "curious" or "malicious"."""

    @property
    def stages(self) -> tuple[str, ...]:
        """The names of the exchanges, in their order."""

    @property
    def release_stage(self) -> str:
        """The stage at which a client hands over its release."""

    def least(self, clients: int) -> int:
        """The least number of terms that a total needs."""

    def min_honest(self, clients: int, colluders: int) -> int:
        """The least number of honest terms in any total that the adversary can open."""

    def adversary(self, colluders: int) -> str:
        """The server that it stands against, in the words of the guarantee."""

    def failure(self, clients: int, colluders: int) -> float:
        """The chance that one attempt shows more than that; delta reserves it for each attempt."""

    def capacity(self) -> float:
        """The largest value of a total that does not wrap."""

    def reply(
        self,
        stage: str,
        requests: Messages,
        reply: Reply | None,
        secret: bytes,
        context: SumContext,
    ) -> tuple[Messages, bytes]:
        """On the client: the messages of a stage, and the new secret; may refuse."""

    def directory(self) -> Directory:
        """On the server: the directory before the first round."""

    def pack_directory(self, directory: Directory) -> bytes:
        """The directory as bytes, for a checkpoint."""

    def unpack_directory(self, packed: bytes) -> Directory:
        """The directory that ``pack_directory`` wrote."""

    def begin(
        self, directory: Directory, cohorts: Cohorts, sizes: Mapping[str, int], context: SumContext
    ) -> tuple[Session, Requests]:
        """On the server: who may answer on each channel, how long vectors are, what to ask."""

    def add(self, session: Session, client: int, messages: Messages) -> Session:
        """Add one client's message; O(size) memory in all. Refuses what does not fit the schema."""

    def close(self, session: Session) -> Requests | Opened | Aborted:
        """End the stage at its deadline: what comes next."""

    def directory_after(self, session: Session) -> Directory:
        """The directory with what the round has added, whether it was opened or not."""


Cohorts: TypeAlias = Mapping[str, Mapping[int, float]]
"""Channel -> client -> the public weight of its release in the total."""
