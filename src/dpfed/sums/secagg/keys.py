# SPDX-License-Identifier: Apache-2.0
"""Keys between two clients, what is derived from them, and sealed messages through the server.

    pair key          X25519 of both private keys, then HKDF-SHA256 over run and pair: once per run
    round's seed      HKDF(pair key, layout, round, attempt): if revealed, tells of no other round
    sealing key       HKDF(pair key, round, attempt, sender, receiver): AES-256-GCM, used once

Each client's X25519 key is signed by its identity key (identity.py), with the run and the client's
index in the signed text: a server that replaces a key, or brings one of another run, is detected.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from dpfed.core.errors import Untrusted
from dpfed.sums.secagg.messages import ASK_CLIENT

_NONCE = bytes(12)  # a sealing key seals one message only, so the nonce need not vary


def new_key() -> tuple[bytes, bytes]:
    """A private X25519 key and its public half."""
    private = X25519PrivateKey.generate()
    return private.private_bytes_raw(), private.public_key().public_bytes_raw()


def public_half(private: bytes) -> bytes:
    """The public key of a private one."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def signed_text(run: str, client: int, key: bytes) -> bytes:
    """What a client signs about its key.

    Args:
        run: the training's name and the plan's fingerprint.
        client: the index of the client that signs.
        key: its public X25519 key of this run.
    """
    return _text("dpfed key", run, client) + key


def pair_key(private: bytes, other: bytes, run: str, pair: tuple[int, int]) -> bytes:
    """The key that two clients share for a run: the same from either side.

    Args:
        private: this client's private X25519 key, 32 bytes.
        other: the other client's public X25519 key, 32 bytes.
        run: the training's name and the plan's fingerprint.
        pair: the indices of both clients, in any order.
    """
    secret = X25519PrivateKey.from_private_bytes(private)
    try:
        shared = secret.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError as error:  # a point of small order
        raise Untrusted(
            f"clients {pair} cannot agree on a key, since a public key is of small order; "
            f"{ASK_CLIENT}"
        ) from error
    info = _text("dpfed pair", run, *sorted(pair))
    return HKDF(SHA256(), 32, salt=None, info=info).derive(shared)


def round_seed(pair: bytes, at: tuple[int, int], layout: bytes) -> bytes:
    """The seed of a pair's mask in one attempt at a round, for vectors laid out like this.

    Args:
        pair: the key that the two clients share.
        at: the round and the attempt.
        layout: the digest of the vector's layout.
    """
    return _derived(pair, b"mask" + layout, *at)


def layout_digest(sizes: Mapping[str, int]) -> bytes:
    """A digest of what a vector's words mean: clients with different layouts share no mask."""
    parts = [part for name in sorted(sizes) for part in (name, sizes[name])]
    return hashlib.sha256(_text("dpfed layout", *parts)).digest()


def is_key(key: bytes) -> bool:
    """Whether keys can be agreed with this one: 32 bytes, not a point of small order."""
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(key))
    except ValueError:
        return False
    return True


def seal(pair: bytes, at: tuple[int, int], sender: int, receiver: int, letter: bytes) -> bytes:
    """A message that only the receiver can read, though the server transports it.

    Args:
        pair: the key that sender and receiver share.
        at: the round and the attempt.
        sender: the index of the client that seals.
        receiver: the index of the client that may read.
        letter: the message; only one per pair, round, attempt and direction.
    """
    key = _derived(pair, b"seal", *at, sender, receiver)
    return AESGCM(key).encrypt(_NONCE, letter, None)


def unseal(pair: bytes, at: tuple[int, int], sender: int, receiver: int, sealed: bytes) -> bytes:
    """The message; one that was changed, or is of another round or sender, is refused.

    Args:
        pair: the key that sender and receiver share.
        at: the round and the attempt.
        sender: the index of the client that sealed it.
        receiver: the index of this client.
        sealed: the sealed message.
    """
    key = _derived(pair, b"seal", *at, sender, receiver)
    try:
        return AESGCM(key).decrypt(_NONCE, sealed, None)
    except InvalidTag as error:
        raise Untrusted(
            f"the sealed share of client {sender} was changed on its way; the round continues "
            f"without it"
        ) from error


def digest(secret: bytes) -> bytes:
    """A commitment to a secret of 32 random bytes."""
    return hashlib.sha256(b"dpfed commitment" + secret).digest()


def _derived(pair: bytes, purpose: bytes, *numbers: int) -> bytes:
    info = b"dpfed round " + purpose + struct.pack(f">{len(numbers)}q", *numbers)
    return HKDFExpand(SHA256(), 32, info=info).derive(pair)


def _text(*parts: str | int) -> bytes:
    """Parts with their lengths, so that no two lists of parts run together."""
    texts = [f"{type(part).__name__}:{part}".encode() for part in parts]
    return b"".join(b"%d:%b" % (len(text), text) for text in texts)
