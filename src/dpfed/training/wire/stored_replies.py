# SPDX-License-Identifier: Apache-2.0
"""Stores a client's replies of its latest attempt before they leave, to send the same bytes again.

Guarantee: a byte-identical order gets the same bytes, without new noise and without a new entry in
the ledger, also after a crash of either side. No other order gets them. If clients sent the same
releases again under another mask, cohort or attempt, the server could subtract one total from the
other. Clients that are in only one of the two totals would then be hidden by no noise but their
own: a single client by one share of noise, instead of the shares of all honest clients.
Two orders are the same only if everything in them is: plan, training, round, attempt, stage, the
sum's requests, parameters, shared vectors, configuration.

| edge case                                     | what happens                                    |
|-----------------------------------------------|-------------------------------------------------|
| the same attempt and stage, anything changed  | not found: the ledger refuses a second release, |
|                                               | and the secure sum opens nothing twice          |
| entered in the ledger, but nothing is stored  | spent: the ledger refuses it                    |
| a reply to another attempt is stored          | replies to the attempt before are deleted       |
| a file that is cut off or is not ours         | as if nothing were stored                       |
| a refusal                                     | is not stored: it depends on no record          |
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import msgspec
from flwr.app import Array, RecordDict

from dpfed.core.files import replace_file
from dpfed.core.sum_protocol import Messages

_FOLDER = "answers"


class _Stored(msgspec.Struct, array_like=True):
    order: str
    messages: dict[str, bytes]


@dataclass(frozen=True)
class StoredReply:
    """The place of one reply: at most one per stage, and those of one attempt only."""

    folder: Path
    """Where the client keeps its state (``states.folder_for``)."""
    attempt: str
    """The round and its attempt."""
    stage: int
    """Which of the sum's stages it is: never a word that the server chose."""
    order: str
    """The digest of the order."""

    @property
    def path(self) -> Path:
        """The file of this reply."""
        return self.folder / _FOLDER / f"{self.attempt}.{self.stage}"

    def read(self) -> Messages | None:
        """What was sent for this very order, if anything was."""
        if not self.path.exists():
            return None
        try:
            found = msgspec.msgpack.decode(self.path.read_bytes(), type=_Stored)
        except msgspec.DecodeError:
            return None
        return found.messages if found.order == self.order else None

    def write(self, messages: Messages) -> None:
        """Keep what is about to be sent; it is on the disk when the call returns."""
        self.path.parent.mkdir(exist_ok=True, mode=0o700)
        content = msgspec.msgpack.encode(_Stored(self.order, dict(messages)))
        replace_file(self.path, content)
        for other in self.path.parent.iterdir():
            if other.stem != self.attempt:
                other.unlink()


def order_digest(content: RecordDict) -> str:
    """A digest of everything in a message to a client."""
    found = hashlib.sha256()

    def add(*parts: str | bytes) -> None:
        for part in parts:  # with its length, so that parts cannot be shifted
            raw = part.encode() if isinstance(part, str) else part
            found.update(len(raw).to_bytes(8, "big"))
            found.update(raw)

    for name, record in sorted(content.items()):
        add(type(record).__name__, name, str(len(record)))
        for key, value in sorted(record.items()):
            if isinstance(value, Array):
                add(key, value.dtype, repr(value.shape), value.stype, value.data)
            else:
                add(key, repr(value))
    return found.hexdigest()
