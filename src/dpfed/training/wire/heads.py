# SPDX-License-Identifier: Apache-2.0
"""Signed heads: what a gate hands out of its ledger, and what others keep of it and bring back.

    head    key (32 bytes), signature (64), time (8), nonce (12), sealed content with its tag

    signed   Ed25519, over DSSE's encoding of time, nonce and content: only the holder of the key
             can make one
    sealed   AES-256-GCM, under a key that only the holder of the identity can compute: position and
             costs are for the gate alone, which is the only one that has a use for them
    time     from the chain, in microseconds: the second in which the order came that it answers, or
             one more than the last head's; it counts heads, and nothing else, and never goes back

Guarantee: all heads have ``SIZE`` bytes, and to whoever has no key they are random but for key and
time. So they say nothing of records, of what was spent, or of who took part in a round, where that
is secret. ``Kept`` holds at most MOST_KEYS * HEADS_OF_A_KEY heads, and gives at most MOST_BROUGHT.

| edge case                                      | what happens                                    |
|------------------------------------------------|-------------------------------------------------|
| bytes of another size, or a forged signature   | no head: left out                               |
| a head under a foreign key                     | kept for its gate, and never looked into        |
| an old head again                              | kept once; newer ones push it out               |
| keys without end                               | those that came first are kept                  |
| the file is lost or cut                        | what is whole is read: heads protect no records |
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from dpfed.accounting.ledger.heads import Head, pack, unpack
from dpfed.core.dsse import signed_bytes
from dpfed.core.errors import DataError
from dpfed.core.files import locked_file, replace_file
from dpfed.sums.secagg.identity import SigningKey

CONTENT_BYTES = 2048
"""What a head's content is filled up to."""
MOST_BROUGHT = 14
"""Heads in one message: with them an enrolment is still looked at before a process is made."""
HEADS_OF_A_KEY, MOST_KEYS = 4, 128
FILE = "heads.bin"
_PAYLOAD_TYPE = "application/vnd.dpfed.ledger-head"
_PURPOSE = "seal of a ledger head"
_KEY, _SIGNATURE, _NONCE, _TAG = 32, 64, 12, 16
_START = struct.Struct(">Q")
_LENGTH = struct.Struct(">H")
SIZE = _KEY + _SIGNATURE + _START.size + _NONCE + CONTENT_BYTES + _TAG


def sign_head(head: Head, key: SigningKey, nonce: bytes | None = None) -> bytes:
    """A head as it is handed out.

    Args:
        head: the ledger's.
        key: the gate's.
        nonce: 12 bytes that are used once; None draws them.
    """
    content = pack(head, CONTENT_BYTES - _LENGTH.size)
    filled = (_LENGTH.pack(len(content)) + content).ljust(CONTENT_BYTES, b"\0")
    nonce = os.urandom(_NONCE) if nonce is None else nonce
    start = _START.pack(head.time)
    sealed = AESGCM(key.secret(_PURPOSE)).encrypt(nonce, filled, key.public + start)
    payload = start + nonce + sealed
    return key.public + key.sign(signed_bytes(payload, _PAYLOAD_TYPE)) + payload


def open_head(head: bytes, key: SigningKey) -> Head | None:
    """What a gate's own head says; None if it is none, or of another key.

    Args:
        head: bytes from anywhere.
        key: the gate's.
    """
    if head[:_KEY] != key.public or not is_head(head):
        return None
    payload = head[_KEY + _SIGNATURE :]
    start, rest = payload[: _START.size], payload[_START.size :]
    try:
        filled = AESGCM(key.secret(_PURPOSE)).decrypt(
            rest[:_NONCE], rest[_NONCE:], key.public + start
        )
    except InvalidTag:
        raise DataError(
            "a head under this gate's own key must be one that it can read, and is not; look for "
            "another program that signs with the same key"
        ) from None
    (size,) = _LENGTH.unpack(filled[: _LENGTH.size])
    return unpack(filled[_LENGTH.size : _LENGTH.size + size])


def is_head(head: object) -> bool:
    """Whether bytes are a head that the holder of its key has signed."""
    if not isinstance(head, bytes) or len(head) != SIZE:
        return False
    signature, payload = head[_KEY : _KEY + _SIGNATURE], head[_KEY + _SIGNATURE :]
    try:
        key = Ed25519PublicKey.from_public_bytes(head[:_KEY])
        key.verify(signature, signed_bytes(payload, _PAYLOAD_TYPE))
    except (InvalidSignature, ValueError):
        return False
    return True


def brought(value: object) -> list[bytes]:
    """The heads in a message's field, at most MOST_BROUGHT; what is none is left out.

    Args:
        value: the field, whatever it holds.
    """
    listed = value[:MOST_BROUGHT] if isinstance(value, list) else []
    return [head for head in listed if is_head(head)]


def _time_of(head: bytes) -> int:
    start = _KEY + _SIGNATURE
    return int(_START.unpack(head[start : start + _START.size])[0])


@dataclass(frozen=True)
class Kept:
    """The heads of others, in a file.

    Args:
        folder: made when the first head is kept.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Kept(Path(folder)).newest()
    []
    """

    folder: Path

    def keep(self, heads: Iterable[bytes]) -> None:
        """Keep what are heads, the newest of each key.

        Args:
            heads: bytes from anywhere.
        """
        fresh = [head for head in heads if is_head(head)]
        if not fresh:
            return
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with locked_file(self.folder / f"{FILE}.lock"):
            by_key = self._read()
            before = list(chain.from_iterable(by_key.values()))
            for head in fresh:
                key = head[:_KEY]
                if key not in by_key and len(by_key) >= MOST_KEYS:
                    continue
                known = dict.fromkeys([*by_key.get(key, ()), head])  # of one time: the last to come
                by_key[key] = sorted(known, key=_time_of)[-HEADS_OF_A_KEY:]
            after = list(chain.from_iterable(by_key.values()))
            if after != before:
                replace_file(self.folder / FILE, b"".join(after))

    def newest(self, most: int = MOST_BROUGHT) -> list[bytes]:
        """The newest head of each key, then the second of each, and so on.

        Args:
            most: how many at most.
        """
        by_key = self._read().values()
        ranked = [
            (place, -_time_of(head), head)
            for heads in by_key
            for place, head in enumerate(reversed(heads))
        ]
        return [head for _, _, head in sorted(ranked)[:most]]

    def of(self, key: bytes) -> list[bytes]:
        """All heads of one key, the oldest first.

        Args:
            key: the public key, 32 bytes.
        """
        return self._read().get(key, [])

    def _read(self) -> dict[bytes, list[bytes]]:
        try:
            content = (self.folder / FILE).read_bytes()
        except OSError:
            return {}
        found: dict[bytes, list[bytes]] = {}
        for at in range(0, len(content) - SIZE + 1, SIZE):
            head = content[at : at + SIZE]
            found.setdefault(head[:_KEY], []).append(head)
        return found
