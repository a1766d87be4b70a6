# SPDX-License-Identifier: Apache-2.0
"""Signed statements: the round trip, one hostile envelope per line of the table, another reader."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpfed.core.dsse import (
    MOST_BYTES,
    PAYLOAD_TYPE,
    Statement,
    canonical_json,
    claimed_key,
    make_statement,
    open_statement,
    signed_bytes,
    strict_json,
)
from dpfed.core.errors import DataError

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw()
SAID = Statement({"model": "ab" * 32}, "urn:example:1", {"rounds": 3, "epsilon": 0.1})


def envelope(**changes: Any) -> bytes:
    return canonical_json({**json.loads(make_statement(SAID, KEY.sign, PUBLIC)), **changes})


def signed(payload: bytes, **changes: Any) -> bytes:
    """An honest signature over any payload."""
    sig = base64.b64encode(KEY.sign(signed_bytes(payload))).decode()
    text = base64.b64encode(payload).decode()
    return envelope(payload=text, signatures=[{"keyid": PUBLIC.hex(), "sig": sig}], **changes)


def statement(**changes: Any) -> bytes:
    tree = json.loads(base64.b64decode(json.loads(envelope())["payload"]))
    return signed(canonical_json({**tree, **changes}))


def test_what_was_signed_is_read_again() -> None:
    made = make_statement(SAID, KEY.sign, PUBLIC)
    assert open_statement(made, PUBLIC) == SAID
    assert claimed_key(made) == PUBLIC
    assert made == make_statement(SAID, KEY.sign, PUBLIC)  # Ed25519 draws nothing


HOSTILE = {
    "not JSON": b"{",
    "not UTF-8": b'"\xff"',
    "a number": b"3",
    "another type": envelope(payloadType="application/json"),
    "more keys": envelope(more=1),
    "no signature": envelope(signatures=[]),
    "two signatures": envelope(signatures=2 * json.loads(envelope())["signatures"]),
    "a signature of more": envelope(signatures=[{"keyid": "", "sig": "", "more": ""}]),
    "base64 with blanks": envelope(payload=json.loads(envelope())["payload"] + " "),
    "another payload": envelope(payload=base64.b64encode(b"{}").decode()),
    "a payload that is no text": envelope(payload=3),
    "a key twice in the envelope": envelope().replace(b"{", b'{"payload":"",', 1),
    "a key twice in the statement": signed(
        b'{"_type":"a","_type":"b","subject":[],"predicateType":"","predicate":{}}'
    ),
    "infinity": signed(b'{"_type":1e999}'),
    "NaN": signed(b'{"_type":NaN}'),
    "a lone surrogate": signed(b'{"_type":"\\ud800"}'),
    "a deep one": signed(b"[" * 10_000 + b"]" * 10_000),
    "a long integer": signed(b"9" * 10_000),
    "another _type": statement(_type="https://in-toto.io/Statement/v0.1"),
    "a predicate that is a list": statement(predicate=[]),
    "no subject": statement(subject=[]),
    "a subject by md5": statement(subject=[{"name": "model", "digest": {"md5": "00"}}]),
    "a subject twice": statement(subject=2 * [{"name": "m", "digest": {"sha256": "ab" * 32}}]),
    "a digest that is none": statement(subject=[{"name": "m", "digest": {"sha256": "AB" * 32}}]),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_envelope_is_refused(content: bytes) -> None:
    with pytest.raises(DataError):
        open_statement(content, PUBLIC)


def test_what_is_too_large_is_not_parsed() -> None:
    with pytest.raises(DataError, match="at most"):
        open_statement(b" " * (MOST_BYTES + 1), PUBLIC)
    with pytest.raises(DataError, match="at most 10 bytes"):
        open_statement(envelope(), PUBLIC, most_bytes=10)


def test_another_key_is_refused_and_so_is_no_key() -> None:
    other = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key().public_bytes_raw()
    for key in (other, b"", b"short", bytes(33)):
        with pytest.raises(DataError, match="signature must be by the key"):
            open_statement(envelope(), key)


def test_brackets_in_text_are_not_depth() -> None:
    deep = {"text": "[" * 100 + '\\"' + "{" * 100}
    assert strict_json(canonical_json(deep)) == deep


@pytest.mark.parametrize("keyid", [3, "", "zz", "ab" * 31])
def test_a_keyid_that_names_no_key_is_refused(keyid: object) -> None:
    with pytest.raises(DataError, match="keyid"):
        claimed_key(envelope(signatures=[{"keyid": keyid, "sig": ""}]))


def test_another_implementation_reads_the_envelope() -> None:
    dsse = pytest.importorskip("securesystemslib.dsse")
    signer = pytest.importorskip("securesystemslib.signer")
    made = json.loads(make_statement(SAID, KEY.sign, PUBLIC))
    found = dsse.Envelope.from_dict(made)
    key = signer.SSlibKey(PUBLIC.hex(), "ed25519", "ed25519", {"public": PUBLIC.hex()})
    assert found.payload_type == PAYLOAD_TYPE
    assert found.verify([key], 1) == {PUBLIC.hex(): key}
    assert json.loads(found.payload)["predicate"] == SAID.predicate
