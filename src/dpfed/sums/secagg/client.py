# SPDX-License-Identifier: Apache-2.0
"""The client's side of the secure sum: the client, not the server, decides what may be opened.

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
| asks for a key that outlives the round                 | there is no message for it             |
| changes a sealed share, or brings another one          | it is left out; the round continues    |
| gives some clients another layout of the channels      | they share no mask: nothing is opened  |
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from dpfed.core.errors import DataError, Untrusted
from dpfed.core.log import log
from dpfed.sums.secagg import keys, masks, messages, shamir
from dpfed.sums.secagg.graph import Design, neighbours

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dpfed.core.sum_protocol import Signer, SumContext


VERSION = 1
"""The version of the vault's format."""

_ASK = "ask who runs the server what happened"


class Vault(msgspec.Struct, array_like=True):
    """What a client keeps between messages. Secret."""

    run: str
    private: bytes
    version: int = VERSION
    keys: dict[int, bytes] = {}
    """The public keys of others that were verified."""
    pairs: dict[int, bytes] = {}
    """The pair keys that this client shares with them."""
    at: tuple[int, int] = (-1, 0)
    """The last round and attempt that was answered."""
    layout: bytes = b""
    """The digest of that round's layout: what the words mean."""
    cohort: list[int] = []
    out: list[int] = []
    opened: bool = False

    def lock(self) -> bytes:
        """The vault as bytes, to be kept by this client only."""
        return msgspec.msgpack.encode(self)


def open_vault(secret: bytes, context: SumContext) -> Vault:
    """This run's vault; a new one if there is none."""
    if secret:
        vault = _unlocked(secret)
        if vault.run == context.run:
            return vault
    return Vault(context.run, keys.new_key()[0])


def _unlocked(secret: bytes) -> Vault:
    try:
        vault = msgspec.msgpack.decode(secret, type=Vault)
    except (msgspec.DecodeError, ValueError, RecursionError):  # the same as in messages.unpack
        vault = None
    if vault is None or vault.version != VERSION:
        raise DataError(
            "this client's vault is of another version of dpfed; end the training with the version "
            "that it was begun with, or give it another name"
        )
    return vault


def offer_key(vault: Vault, context: SumContext) -> bytes:
    """The client's own key of this run, signed."""
    key = keys.public_half(vault.private)
    signature = _signer(context).sign(keys.signed_text(context.run, context.client, key))
    return messages.pack_message(messages.Key(key, signature))


def _signer(context: SumContext) -> Signer:
    if context.signer is None:
        raise DataError(
            f"a secure sum needs the identity of client {context.client}, got none; give its "
            f"ClientState a signer, such as identity.from_environment returns"
        )
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
    request: messages.Cohort,
    vector: Vector,
    graph: Design,
    least: int,
) -> bytes:
    """Mask the words in place, and pack them with the sealed shares and the commitments.

    Args:
        vault: what this client keeps; it is updated.
        context: this client's place in the sum, by its own knowledge.
        request: who takes part in the round, and new keys.
        vector: the releases' words; overwritten.
        graph: how many neighbours a client has, and how many open a seed.
        least: the least number of clients in a total, this one included.
    """
    _enter(vault, context, request.clients, least)
    vault.layout = keys.layout_digest(vector.sizes)
    near = _near(vault, context, graph)
    _learn(vault, context, request.keys, near)
    seeds = _seeds(vault, near)
    own = secrets.token_bytes(32)
    shares = shamir.split(own, near, graph.threshold)
    plus = [own, *(seed for other, seed in seeds.items() if context.client < other)]
    masks.apply(
        vector.words, plus, [seed for other, seed in seeds.items() if context.client > other]
    )
    message = messages.Masked(
        sealed={n: _seal(vault, context.client, n, share) for n, share in shares.items()},
        shares={n: keys.digest(share) for n, share in shares.items()},
        pairs={n: keys.digest(seed) for n, seed in seeds.items()},
        own=keys.digest(own),
    )
    return messages.pack_masked(message, vector.words.data.cast("B"))


def _seeds(vault: Vault, others: list[int]) -> dict[int, bytes]:
    """The round's seeds with some neighbours."""
    return {other: keys.round_seed(vault.pairs[other], vault.at, vault.layout) for other in others}


def _enter(vault: Vault, context: SumContext, cohort: list[int], least: int) -> None:
    """Begin a new round; one that was answered before is refused."""
    at = (context.round, context.attempt)
    if at <= vault.at:
        raise Untrusted(
            f"the round must be after {vault.at}, since a mask is used once, got {at}; if the "
            f"server went back to an old checkpoint, let it resume from the newest"
        )
    known = len(set(cohort)) == len(cohort) and set(cohort) <= set(range(context.clients))
    if not known or context.client not in cohort:
        raise Untrusted(
            f"a cohort must be of the plan's {context.clients} clients, each once, this one too, "
            f"got {len(cohort)}; {_ASK}"
        )
    _enough(cohort, least)
    vault.at, vault.cohort, vault.out, vault.opened = at, sorted(cohort), [], False


def _enough(clients: Collection[int], least: int) -> None:
    if len(clients) < least:
        raise Untrusted(
            f"a total must be of at least {least} clients, got {len(clients)}; wait for more "
            f"clients, or agree on a lower sum.survivors"
        )


def _near(vault: Vault, context: SumContext, graph: Design) -> list[int]:
    """The neighbours that take part in the round."""
    cohort = set(vault.cohort)
    near = neighbours(context.client, context.clients, graph.degree, context.run)
    return [other for other in near if other in cohort]


def _learn(
    vault: Vault, context: SumContext, offers: dict[int, messages.Key], near: list[int]
) -> None:
    """Verify the neighbours' keys, and agree on a key with each, once per run."""
    for other in near:
        offered = offers.get(other)
        known = vault.keys.get(other)
        if offered is not None and known is not None and offered.key != known:
            raise Untrusted(f"the key of client {other} must not change in a run, but did; {_ASK}")
        if known is not None:
            continue
        if offered is None or not _signed(context, other, offered):
            raise Untrusted(f"client {other} has no key that it has signed for this run; {_ASK}")
        pair = (context.client, other)
        vault.pairs[other] = keys.pair_key(vault.private, offered.key, context.run, pair)
        vault.keys[other] = offered.key


def _signed(context: SumContext, other: int, offered: messages.Key) -> bool:
    text = keys.signed_text(context.run, other, offered.key)
    return len(offered.key) == 32 and _signer(context).verify(other, offered.signature, text)


def _seal(vault: Vault, sender: int, receiver: int, share: bytes) -> bytes:
    return keys.seal(vault.pairs[receiver], vault.at, sender, receiver, share)


# --------------------------------------------------------------------------- repair and unmask


def reveal(
    vault: Vault, context: SumContext, request: messages.Dropped, graph: Design, least: int
) -> bytes:
    """The round's seeds with those who are out: their masks can then be taken off the total.

    Args:
        vault: what this client keeps; it is updated.
        context: this client's place in the sum, by its own knowledge.
        request: who is out of the round, all of them each time.
        graph: how many neighbours a client has.
        least: the least number of clients that must be left in the total.
    """
    _same_round(vault, context)
    out = set(request.clients)
    if context.client in out or not set(vault.out) <= out <= set(vault.cohort):
        raise Untrusted(
            f"the clients that are out must be others of this cohort, and stay out, got {len(out)} "
            f"after {len(vault.out)}; {_ASK}"
        )
    _enough(set(vault.cohort) - out, least)
    vault.out = sorted(out)
    near = [other for other in _near(vault, context, graph) if other in out]
    return messages.pack_message(messages.Seeds(_seeds(vault, near)))


def hand_over(
    vault: Vault, context: SumContext, request: messages.Alive, graph: Design, least: int
) -> bytes:
    """The shares of the own masks of the clients in the total. No client is both in and out.

    Args:
        vault: what this client keeps; it is updated: a round is opened once.
        context: this client's place in the sum, by its own knowledge.
        request: who is in the total, their sealed shares, and the commitments to these.
        graph: how many neighbours a client has.
        least: the least number of clients that must be in the total.
    """
    _same_round(vault, context)
    alive = set(request.clients)
    if alive != set(vault.cohort) - set(vault.out) or len(alive) != len(request.clients):
        raise Untrusted(
            f"the clients that are in must be the cohort without those that are out, got "
            f"{len(request.clients)} of {len(vault.cohort)} with {len(vault.out)} out; {_ASK}"
        )
    _enough(alive, least)
    vault.opened = True
    near = [other for other in _near(vault, context, graph) if other in alive]
    if not set(near) == set(request.sealed) == set(request.marks):
        raise Untrusted(
            f"the sealed shares must be those of the {len(near)} neighbours that are in, got "
            f"{len(request.sealed)} with {len(request.marks)} commitments; {_ASK}"
        )
    found = {other: _read(vault, context.client, other, request) for other in near}
    return messages.pack_message(
        messages.Shares({other: share for other, share in found.items() if share})
    )


def _read(vault: Vault, client: int, sender: int, request: messages.Alive) -> bytes:
    """A neighbour's share; empty if it cannot be unsealed or is not the one committed to.

    The fault is the sender's or the server's. This client would be blamed if it handed it over.
    """
    try:
        sealed = request.sealed[sender]
        share = keys.unseal(vault.pairs[sender], vault.at, sender, client, sealed)
    except Untrusted as error:
        log.warning("%s", error)
        return b""
    if keys.digest(share) != request.marks[sender]:
        log.warning("the share of client %d is not the one that it committed to", sender)
        return b""
    return share


def _same_round(vault: Vault, context: SumContext) -> None:
    if (context.round, context.attempt) != vault.at or context.client not in vault.cohort:
        raise Untrusted(f"nothing was sent in round {(context.round, context.attempt)}; {_ASK}")
    if vault.opened:
        raise Untrusted(f"round {vault.at} was opened before, and is opened once; {_ASK}")
