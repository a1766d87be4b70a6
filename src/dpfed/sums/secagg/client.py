# SPDX-License-Identifier: Apache-2.0
"""The client's side of the secure sum: it, and not the server, holds the terms.

Guarantee: a client's masked vector can be opened only as part of a total over at least ``least``
clients that this client was told of, and only once. It keeps a vault (bytes on its own disk) with
its private key, the keys it has verified, and how far the current round has gone.

| the server                                             | what the client does                   |
|--------------------------------------------------------|----------------------------------------|
| asks for a round or an attempt that is not a new one   | Untrusted                              |
| names a cohort with strangers, doubles, or too few     | Untrusted                              |
| brings a key that is unsigned, or another than before  | Untrusted                              |
| says that someone is out, then that it is in (or back) | Untrusted: the two lists must add up   |
| leaves fewer than ``least`` in the total               | Untrusted, whatever its message says   |
| asks to open a second time                             | Untrusted                              |
| asks for any key that outlives the round               | there is no message for it             |
| changes a sealed letter, or brings another one         | it is not read; other shares will do   |
| lays out channels otherwise for some                   | they share no mask: nothing is opened  |
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from dpfed.core.errors import DataError, Untrusted
from dpfed.core.log import log
from dpfed.sums.secagg import keys as letters
from dpfed.sums.secagg import masks as pads
from dpfed.sums.secagg import messages as wire
from dpfed.sums.secagg import shamir
from dpfed.sums.secagg.graph import Design, neighbours

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dpfed.core.sum_protocol import Signer, SumContext


VERSION = 1
"""Of the vault's form."""

_ASK = "ask who runs the server what happened"


class Vault(msgspec.Struct, array_like=True):
    """What a client keeps between messages. Secret."""

    run: str
    private: bytes
    version: int = VERSION
    keys: dict[int, bytes] = {}
    """The public keys of others that were verified."""
    pairs: dict[int, bytes] = {}
    """The keys that are shared with them."""
    at: tuple[int, int] = (-1, 0)
    """The last round and attempt that was answered."""
    layout: bytes = b""
    """What its words meant."""
    cohort: list[int] = []
    out: list[int] = []
    opened: bool = False

    def lock(self) -> bytes:
        """The vault as bytes, to be kept by this client only."""
        return msgspec.msgpack.encode(self)


def open_vault(secret: bytes, context: SumContext) -> Vault:
    """This run's vault; a new one where there is none."""
    if secret:
        vault = _unlocked(secret)
        if vault.run == context.run:
            return vault
    return Vault(context.run, letters.new_key()[0])


def _unlocked(secret: bytes) -> Vault:
    try:
        vault = msgspec.msgpack.decode(secret, type=Vault)
    except (msgspec.DecodeError, ValueError, RecursionError):  # as wire.unpack has it
        vault = None
    if vault is None or vault.version != VERSION:
        raise DataError(
            "this client's vault is of another version of dpfed; end the training with the version "
            "that it was begun with, or give it another name"
        )
    return vault


def offer_key(vault: Vault, context: SumContext) -> bytes:
    """The client's own key of this run, signed."""
    key = letters.public_half(vault.private)
    signature = _signer(context).sign(letters.signed_text(context.run, context.client, key))
    return wire.pack_message(wire.Key(key, signature))


def _signer(context: SumContext) -> Signer:
    if context.signer is None:
        raise DataError("a secure sum needs this client's identity; see dpfed.sums.secagg.identity")
    return context.signer


# ------------------------------------------------------------------------------------- the input


@dataclass(frozen=True, eq=False)
class Vector:
    """All channels' integers as words, in the order of the channels' names."""

    words: NDArray[Any]
    sizes: Mapping[str, int]


def mask(
    vault: Vault,
    context: SumContext,
    request: wire.Cohort,
    vector: Vector,
    graph: Design,
    least: int,
) -> bytes:
    """Mask the words in place, and say what goes with them."""
    _enter(vault, context, request.clients, least)
    vault.layout = letters.layout_digest(vector.sizes)
    near = _near(vault, context, graph)
    _learn(vault, context, request.keys, near)
    seeds = _seeds(vault, near)
    own = secrets.token_bytes(32)
    shares = shamir.split(own, near, graph.threshold)
    plus = [own, *(seed for other, seed in seeds.items() if context.client < other)]
    pads.apply(
        vector.words, plus, [seed for other, seed in seeds.items() if context.client > other]
    )
    message = wire.Masked(
        sealed={n: _seal(vault, context.client, n, share) for n, share in shares.items()},
        shares={n: letters.digest(share) for n, share in shares.items()},
        pairs={n: letters.digest(seed) for n, seed in seeds.items()},
        own=letters.digest(own),
    )
    return wire.pack_masked(message, vector.words.data.cast("B"))


def _seeds(vault: Vault, others: list[int]) -> dict[int, bytes]:
    """The round's seeds with some neighbours."""
    return {
        other: letters.round_seed(vault.pairs[other], vault.at, vault.layout) for other in others
    }


def _enter(vault: Vault, context: SumContext, cohort: list[int], least: int) -> None:
    """A new round: never one that was answered before."""
    at = (context.round, context.attempt)
    if at <= vault.at:
        raise Untrusted(
            f"round {at} was asked for after {vault.at}, and a mask is used once; if the server "
            f"went back to an old checkpoint, let it go on from the newest"
        )
    known = len(set(cohort)) == len(cohort) and set(cohort) <= set(range(context.clients))
    if not known or context.client not in cohort:
        raise Untrusted(
            f"a cohort of {len(cohort)} is not one of the plan's {context.clients}; {_ASK}"
        )
    _enough(cohort, least)
    vault.at, vault.cohort, vault.out, vault.opened = at, sorted(cohort), [], False


def _enough(clients: Collection[int], least: int) -> None:
    if len(clients) < least:
        raise Untrusted(
            f"{len(clients)} would be in the total, and {least} are agreed on; wait for more "
            f"clients, or agree on a lower sum.survivors"
        )


def _near(vault: Vault, context: SumContext, graph: Design) -> list[int]:
    """The neighbours who take part in the round."""
    cohort = set(vault.cohort)
    near = neighbours(context.client, context.clients, graph.degree, context.run)
    return [other for other in near if other in cohort]


def _learn(vault: Vault, context: SumContext, keys: dict[int, wire.Key], near: list[int]) -> None:
    """Verify the neighbours' keys, and agree on a key with each, once per run."""
    for other in near:
        offered = keys.get(other)
        known = vault.keys.get(other)
        if offered is not None and known is not None and offered.key != known:
            raise Untrusted(f"the key of client {other} is another one than before; {_ASK}")
        if known is not None:
            continue
        if offered is None or not _signed(context, other, offered):
            raise Untrusted(f"client {other} has no key that it has signed for this run; {_ASK}")
        pair = (context.client, other)
        vault.pairs[other] = letters.pair_key(vault.private, offered.key, context.run, pair)
        vault.keys[other] = offered.key


def _signed(context: SumContext, other: int, offered: wire.Key) -> bool:
    text = letters.signed_text(context.run, other, offered.key)
    return len(offered.key) == 32 and _signer(context).verify(other, offered.signature, text)


def _seal(vault: Vault, sender: int, receiver: int, share: bytes) -> bytes:
    return letters.seal(vault.pairs[receiver], vault.at, sender, receiver, share)


# --------------------------------------------------------------------------- repair and unmask


def reveal(
    vault: Vault, context: SumContext, request: wire.Dropped, graph: Design, least: int
) -> bytes:
    """The round's seeds with those who are out: their masks can then be taken off the total."""
    _same_round(vault, context)
    out = set(request.clients)
    if context.client in out or not set(vault.out) <= out <= set(vault.cohort):
        raise Untrusted(f"those who are out are not of this cohort, or some are back; {_ASK}")
    _enough(set(vault.cohort) - out, least)
    vault.out = sorted(out)
    near = [other for other in _near(vault, context, graph) if other in out]
    return wire.pack_message(wire.Seeds(_seeds(vault, near)))


def hand_over(
    vault: Vault, context: SumContext, request: wire.Alive, graph: Design, least: int
) -> bytes:
    """The shares of the own masks of those who are in. Nobody is both in and out."""
    _same_round(vault, context)
    alive = set(request.clients)
    if alive != set(vault.cohort) - set(vault.out) or len(alive) != len(request.clients):
        raise Untrusted(f"those who are in, and those who are out, are not the cohort; {_ASK}")
    _enough(alive, least)
    vault.opened = True
    near = [other for other in _near(vault, context, graph) if other in alive]
    if not set(near) == set(request.sealed) == set(request.marks):
        raise Untrusted(f"the letters are not those of the neighbours who are in; {_ASK}")
    found = {other: _read(vault, context.client, other, request) for other in near}
    return wire.pack_message(wire.Shares({other: share for other, share in found.items() if share}))


def _read(vault: Vault, client: int, sender: int, request: wire.Alive) -> bytes:
    """The share in a letter; nothing, if it cannot be read or is not the one committed to.

    Its sender or the server is at fault: who reads it must not be called the forger.
    """
    try:
        letter = request.sealed[sender]
        share = letters.unseal(vault.pairs[sender], vault.at, sender, client, letter)
    except Untrusted as error:
        log.warning("%s", error)
        return b""
    if letters.digest(share) != request.marks[sender]:
        log.warning("the share of client %d is not the one that it committed to", sender)
        return b""
    return share


def _same_round(vault: Vault, context: SumContext) -> None:
    if (context.round, context.attempt) != vault.at or context.client not in vault.cohort:
        raise Untrusted(f"nothing was sent in round {(context.round, context.attempt)}; {_ASK}")
    if vault.opened:
        raise Untrusted(f"round {vault.at} was opened before; {_ASK}")
