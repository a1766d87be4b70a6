# SPDX-License-Identifier: Apache-2.0
"""Signed statements: in-toto Statements (v1) in DSSE envelopes, with one Ed25519 signature each.

What is signed is the payload's own bytes, with their type and lengths before them (DSSE v1)::

    PAE = "DSSEv1" SP len(type) SP type SP len(payload) SP payload

so no reader has to write JSON again before a signature can be checked. Other tools read the same
files: securesystemslib the envelope, in-toto the statement.

Guarantee: ``open_statement`` returns what the holder of that key has signed, or raises; whatever
bytes it gets, it parses at most ``MOST_BYTES`` of them, and returns JSON that has one reading.

| edge case                                          | what happens                            |
|----------------------------------------------------|-----------------------------------------|
| more bytes than allowed; not UTF-8; not JSON       | DataError                               |
| a key twice in one object, NaN, infinity, a lone   | DataError: readers differ about these   |
| surrogate, objects in too many others              |                                         |
| another type of payload, no signature or two,      | DataError                               |
| keys that the form does not have                   |                                         |
| base64 that is not the one way to write the bytes  | DataError                               |
| a signature by another key, over another payload   | DataError                               |
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from dpfed.core.errors import DataError

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
MOST_BYTES = 1 << 22
"""The maximum size of an envelope."""
_MOST_DEPTH = 32
_ENVELOPE_KEYS = {"payloadType", "payload", "signatures"}
_STATEMENT_KEYS = {"_type", "subject", "predicateType", "predicate"}

Json = dict[str, Any]


class Statement(NamedTuple):
    """An in-toto Statement: what it is about, by digest, and what it says."""

    subject: dict[str, str]
    """By name: the SHA-256 digest, as 64 hexadecimal digits."""
    predicate_type: str
    predicate: Json


def make_statement(
    statement: Statement, sign: Callable[[bytes], bytes], public_key: bytes
) -> bytes:
    """A statement in its envelope, signed.

    Args:
        statement: what is said.
        sign: from a message to its Ed25519 signature.
        public_key: the signer's 32 bytes; their digits are the envelope's keyid.

    >>> from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    >>> key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    >>> public = key.public_key().public_bytes_raw()
    >>> said = Statement({"model": "0" * 64}, "urn:example:1", {"rounds": 3})
    >>> open_statement(make_statement(said, key.sign, public), public) == said
    True
    """
    tree = {
        "_type": STATEMENT_TYPE,
        "subject": [
            {"name": name, "digest": {"sha256": digest}}
            for name, digest in sorted(statement.subject.items())
        ],
        "predicateType": statement.predicate_type,
        "predicate": statement.predicate,
    }
    payload = canonical_json(tree)
    envelope = {
        "payloadType": PAYLOAD_TYPE,
        "payload": base64.b64encode(payload).decode(),
        "signatures": [
            {
                "keyid": public_key.hex(),
                "sig": base64.b64encode(sign(signed_bytes(payload))).decode(),
            }
        ],
    }
    return canonical_json(envelope)


def open_statement(
    envelope: bytes, public_key: bytes, *, most_bytes: int = MOST_BYTES
) -> Statement:
    """The statement in an envelope, once its signature by this key is verified.

    Args:
        envelope: bytes from anywhere.
        public_key: the 32 bytes of the key that must have signed.
        most_bytes: the maximum size of the envelope.
    """
    payload, signature = _parts(envelope, most_bytes)
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, signed_bytes(payload))
    except (InvalidSignature, ValueError):
        raise DataError(
            f"the signature must be by the key {public_key.hex()[:16]}..., and is not; ask the "
            f"silo for its statement again"
        ) from None
    return _statement(payload, most_bytes)


def claimed_key(envelope: bytes, *, most_bytes: int = MOST_BYTES) -> bytes:
    """The public key that an envelope names as its signer's; nothing of it is verified.

    Args:
        envelope: bytes from anywhere.
        most_bytes: its maximum size.
    """
    tree = strict_json(envelope, most_bytes=most_bytes)
    try:
        found = bytes.fromhex(tree["signatures"][0]["keyid"])
    except (TypeError, KeyError, IndexError, ValueError):
        raise _malformed("signatures", "a keyid of 64 hexadecimal digits") from None
    if len(found) != 32:
        raise _malformed("signatures", "a keyid of 64 hexadecimal digits")
    return found


def signed_bytes(payload: bytes, payload_type: str = PAYLOAD_TYPE) -> bytes:
    """DSSE's pre-authentication encoding: what the signature is over.

    >>> signed_bytes(b"hello world", "http://example.com/HelloWorld")
    b'DSSEv1 29 http://example.com/HelloWorld 11 hello world'
    """
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def canonical_json(tree: Any) -> bytes:
    """The same bytes for equal values: keys sorted, no spaces, floats to the last bit."""
    return json.dumps(tree, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def strict_json(content: bytes, *, most_bytes: int = MOST_BYTES) -> Any:
    """JSON that every reader reads alike, or DataError.

    Args:
        content: bytes from anywhere.
        most_bytes: how many there may be.

    >>> strict_json(b'{"rounds": 3}')
    {'rounds': 3}
    """
    if len(content) > most_bytes:
        raise DataError(
            f"the JSON must be at most {most_bytes} bytes, got {len(content)}; shorten it"
        )
    _refuse_deep(content)
    try:
        tree = json.loads(
            content.decode(),
            object_pairs_hook=_object,
            parse_constant=_no_number,
            parse_float=_finite,
        )
        json.dumps(tree, ensure_ascii=False).encode()  # a lone surrogate is no text
    except DataError:
        raise
    except (ValueError, RecursionError):
        raise DataError(
            "the JSON must be valid, in UTF-8, and is not; write the file again"
        ) from None
    return tree


def _refuse_deep(content: bytes) -> None:
    depth = most = 0
    quoted = escaped = False
    if content.count(b"[") + content.count(b"{") <= _MOST_DEPTH:
        return
    for byte in content:
        if quoted:
            quoted, escaped = escaped or byte != 0x22, byte == 0x5C and not escaped
        elif byte == 0x22:
            quoted = True
        elif byte in b"[{":
            depth += 1
            most = max(most, depth)
        elif byte in b"]}":
            depth -= 1
    if most > _MOST_DEPTH:
        raise DataError(
            f"the JSON must be at most {_MOST_DEPTH} deep, got {most}; write it flatter"
        )


def _object(pairs: Sequence[tuple[str, Any]]) -> Json:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise DataError(f"the JSON must have each key once, got {twice[:40]!r} twice; remove one")
    return found


def _no_number(word: str) -> float:
    raise DataError(f"the JSON must have finite numbers, got {word}; write a number")


def _finite(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):
        raise DataError(f"the JSON must have finite numbers, got {text[:20]}; write a smaller one")
    return found


def _parts(envelope: bytes, most_bytes: int) -> tuple[bytes, bytes]:
    """Payload and signature of an envelope."""
    tree = strict_json(envelope, most_bytes=most_bytes)
    if not isinstance(tree, dict) or set(tree) != _ENVELOPE_KEYS:
        raise _malformed("an envelope", f"the keys {sorted(_ENVELOPE_KEYS)}")
    if tree["payloadType"] != PAYLOAD_TYPE:
        raise _malformed("payloadType", PAYLOAD_TYPE)
    signatures = tree["signatures"]
    if not isinstance(signatures, list) or len(signatures) != 1:
        raise _malformed("signatures", "one signature")
    if not isinstance(signatures[0], dict) or set(signatures[0]) != {"keyid", "sig"}:
        raise _malformed("a signature", "the keys ['keyid', 'sig']")
    return _unbased(tree["payload"], "payload"), _unbased(signatures[0]["sig"], "sig")


def _unbased(text: object, label: str) -> bytes:
    try:
        if not isinstance(text, str):
            raise TypeError(label)
        found = base64.b64decode(text, validate=True)
        if base64.b64encode(found).decode() != text:
            raise ValueError(label)
    except (TypeError, ValueError, binascii.Error):
        raise _malformed(label, "base64, as RFC 4648 writes it") from None
    return found


def _statement(payload: bytes, most_bytes: int) -> Statement:
    tree = strict_json(payload, most_bytes=most_bytes)
    if not isinstance(tree, dict) or set(tree) != _STATEMENT_KEYS:
        raise _malformed("a statement", f"the keys {sorted(_STATEMENT_KEYS)}")
    if tree["_type"] != STATEMENT_TYPE:
        raise _malformed("_type", STATEMENT_TYPE)
    kind, predicate = tree["predicateType"], tree["predicate"]
    if not isinstance(kind, str) or not isinstance(predicate, dict):
        raise _malformed("predicateType and predicate", "a text and an object")
    return Statement(_subject(tree["subject"]), kind, predicate)


def _subject(listed: object) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in listed if isinstance(listed, list) else []:
        match each:
            case {"name": str(name), "digest": {"sha256": str(digest), **other}, **more}:
                if other or more or name in found or not _is_digest(digest):
                    break
                found[name] = digest
            case _:
                break
    if not isinstance(listed, list) or not listed or len(found) != len(listed):
        raise _malformed("subject", "names, each once, with one sha256 digest")
    return found


def _is_digest(text: str) -> bool:
    return len(text) == 64 and set(text) <= set("0123456789abcdef")


def _malformed(label: str, bound: str) -> DataError:
    return DataError(
        f"{label} must have {bound}, and has not; ask the silo for its statement again"
    )
