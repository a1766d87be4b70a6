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
| a reply to another attempt is stored          | it is written over by the next one of its stage |
| a file that is cut off, torn or not ours      | its checksum is wrong: as if nothing were stored|
| a refusal                                     | is not stored: it depends on no record          |
"""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path

import msgspec
from flwr.app import Array, RecordDict

from dpfed.core.files import write_over
from dpfed.core.sum_protocol import Messages

_FOLDER = "answers"
_ORDER = 64  # hexadecimal digits of the order's digest
_HEAD = _ORDER + 4  # and the checksum of it and all that follows


@dataclass(frozen=True)
class StoredReply:
    """The place of one reply: at most one per stage, that of the latest attempt."""

    folder: Path
    """Where the client keeps its state (``states.folder_for``)."""
    stage: int
    """Which of the sum's stages it is: never a word that the server chose."""
    order: str
    """The digest of the order."""

    @property
    def path(self) -> Path:
        """The file of this reply."""
        return self.folder / _FOLDER / f"{self.stage}"

    def read(self) -> Messages | None:
        """What was sent for this very order, if anything was."""
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return None
        with file:
            head = file.read(_HEAD)
            if head[:_ORDER] != self.order.encode():
                return None
            content = file.read()
        if head != self._head(content):
            return None
        return msgspec.msgpack.decode(content, type=dict[str, bytes])

    def write(self, messages: Messages) -> None:
        """Keep what is about to be sent; it is on the disk when the call returns."""
        content = msgspec.msgpack.encode(dict(messages))
        if not self.path.exists():
            self.path.parent.mkdir(exist_ok=True, mode=0o700)
        write_over(self.path, self._head(content), content)

    def _head(self, content: bytes) -> bytes:
        """The order, and a checksum by which a write that was torn is found."""
        order = self.order.encode()
        return order + zlib.crc32(content, zlib.crc32(order)).to_bytes(4, "big")


_MAX_KEPT_BYTES = 1 << 24
_hashed: dict[str, tuple[bytes, bytes]] = {}  # of the last large array: it, and its digest


def _digest(data: bytes) -> bytes:
    """SHA-256. Simulated clients share a process, and all get one model: it is hashed once."""
    if len(data) < 1 << 16:
        return hashlib.sha256(data).digest()
    kept, found = _hashed.get("last", (b"", b""))
    if kept != data:
        found = hashlib.sha256(data).digest()
        if len(data) <= _MAX_KEPT_BYTES:
            _hashed["last"] = data, found
    return found


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
                add(key, value.dtype, repr(value.shape), value.stype, _digest(value.data))
            else:
                add(key, repr(value))
    return found.hexdigest()
