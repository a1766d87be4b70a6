# SPDX-License-Identifier: Apache-2.0
"""The secure sum's messages, in the order in which they are sent.

    stage     server -> client                      client -> server
    keys      -                                     Key: a signed X25519 key, once per run
    input     Cohort: who takes part, new keys      Masked: sealed shares, commitments; the vector
    repair    Dropped: who did not                  Seeds: the round's seed with each of those
    unmask    Alive: who did, their sealed shares   Shares: of the own masks of those

Everything is msgpack by msgspec, which refuses what does not fit the type; a Masked is followed by
the masked words as they lie in memory.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from dpfed.core.errors import BadReply

SAME_PLAN = "use the same plan and the same version of dpfed on all machines"
ASK_CLIENT = "ask who runs that client what happened"
"""What to do about messages that do not fit, and about those that only a lie explains."""


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """Fields by position, after a tag with the message's kind, so that kinds are not confused."""


class Key(_Message, frozen=True):
    """A client's public key of this run, signed by its identity."""

    key: bytes
    signature: bytes


class Keys(_Message, frozen=True):
    """The keys of all, and who has seen whose: what the server's own checkpoint keeps."""

    keys: dict[int, Key]
    seen: dict[int, list[int]] = {}


class Cohort(_Message, frozen=True):
    """Who takes part in a round, and keys that the client has not seen."""

    clients: list[int]
    keys: dict[int, Key]


class Masked(_Message, frozen=True):
    """What goes with a masked vector: all by neighbour."""

    sealed: dict[int, bytes]
    """A share of the sender's own seed for each neighbour, which only that one can read."""
    shares: dict[int, bytes]
    """Commitments to these shares, so that a forged one is detected."""
    pairs: dict[int, bytes]
    """Commitments to the round's seeds with the neighbours."""
    own: bytes
    """The commitment to the seed that was shared."""


class Dropped(_Message, frozen=True):
    """Those of the cohort who are out of the round, for good."""

    clients: list[int]


class Seeds(_Message, frozen=True):
    """The round's seeds that the sender shares with those who are out."""

    seeds: dict[int, bytes]


class Alive(_Message, frozen=True):
    """Those whose vectors are in the total, and their sealed shares for the receiver."""

    clients: list[int]
    sealed: dict[int, bytes]
    marks: dict[int, bytes]
    """The commitments to these shares: one that does not fit is not handed over."""


class Shares(_Message, frozen=True):
    """Shares of the own seeds of those in the total, without those that could not be read."""

    shares: dict[int, bytes]


M = TypeVar("M", bound=msgspec.Struct)

_HEAD_BYTES = 4  # bytes that say how long the message before the words is


def pack_message(message: msgspec.Struct) -> bytes:
    """A message as bytes."""
    return msgspec.msgpack.encode(message)


def unpack(data: bytes | memoryview, kind: type[M]) -> M:
    """A message of this kind; the error of another one quotes nothing of it."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadReply(
            f"a message must be of kind {kind.__name__}, got {len(data)} other bytes; {SAME_PLAN}"
        ) from error


def pack_masked(message: Masked, words: memoryview) -> bytes:
    """The message, then the words."""
    head = pack_message(message)
    return b"".join((len(head).to_bytes(_HEAD_BYTES, "little"), head, words))


def unpack_masked(data: bytes) -> tuple[Masked, memoryview]:
    """The message, and a view of the words."""
    view = memoryview(data)
    end = _HEAD_BYTES + int.from_bytes(view[:_HEAD_BYTES], "little")
    if end > len(view):
        raise BadReply(
            f"a masked vector must have at least {end} bytes, got {len(view)}; {SAME_PLAN}"
        )
    return unpack(view[_HEAD_BYTES:end], Masked), view[end:]
