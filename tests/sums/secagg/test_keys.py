# SPDX-License-Identifier: Apache-2.0
"""Keys between two, what is derived from them, and messages that only the receiver reads."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from dpfed.core.errors import Untrusted
from dpfed.sums.secagg import keys

P25519 = 2**255 - 19
SMALL_ORDER = [  # RFC 7748, section 6.1; https://cr.yp.to/ecdh.html#validate
    0,
    1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
    P25519 - 1,
    P25519,
    P25519 + 1,
]
KEY = bytes(range(32))
AT = (3, 1)
MESSAGE = b"a share of thirty-three bytes ...."


def pair(run: str = "run", between: tuple[int, int] = (0, 1)) -> tuple[bytes, bytes]:
    """The same two clients' key, from either side."""
    (mine, my_public), (yours, your_public) = FIRST, SECOND
    return (
        keys.pair_key(mine, your_public, run, between),
        keys.pair_key(yours, my_public, run, between[::-1]),
    )


FIRST, SECOND = keys.new_key(), keys.new_key()


def test_both_sides_agree_on_a_key() -> None:
    mine, yours = pair()
    assert mine == yours
    assert len(mine) == 32


def test_the_key_is_another_in_another_run_and_between_others() -> None:
    found = {pair()[0], pair("another run")[0], pair(between=(0, 2))[0], pair(between=(1, 2))[0]}
    assert len(found) == 4


def test_the_key_is_not_the_shared_secret_itself() -> None:
    """RFC 5869: extract without salt, then one block of expand."""
    other = X25519PublicKey.from_public_bytes(SECOND[1])
    shared = X25519PrivateKey.from_private_bytes(FIRST[0]).exchange(other)
    extracted = hmac.digest(bytes(32), shared, hashlib.sha256)
    info = b"14:str:dpfed pair7:str:run5:int:05:int:1"
    assert pair()[0] == hmac.digest(extracted, info + b"\x01", hashlib.sha256)


def test_a_public_half_belongs_to_its_key() -> None:
    assert keys.public_half(FIRST[0]) == FIRST[1]
    assert len({keys.new_key() for _ in range(5)}) == 5


@pytest.mark.parametrize("high", [0, 1], ids=["low", "high bit set"])
@pytest.mark.parametrize("point", SMALL_ORDER)
def test_a_point_of_small_order_is_refused(point: int, high: int) -> None:
    raw = (point | high << 255).to_bytes(32, "little")
    with pytest.raises(Untrusted, match=r"clients \(0, 1\)"):
        keys.pair_key(FIRST[0], raw, "run", (0, 1))


# -------------------------------------------------------------------------------------- derivation


def test_what_is_derived_differs_by_round_attempt_and_direction() -> None:
    """A sealing key is used once: its nonce never varies."""
    seals = {
        keys.seal(KEY, (r, a), s, d, MESSAGE)
        for r in range(3)
        for a in range(3)
        for s in range(3)
        for d in range(3)
    }
    assert len(seals) == 81


def test_a_seed_is_neither_the_pairs_key_nor_anothers() -> None:
    seeds = {keys.round_seed(KEY, at, bytes(32)) for at in ((0, 1), (1, 0), (0, 0), (1, 1))}
    assert len(seeds | {KEY}) == 5
    assert keys.round_seed(bytes(32), (0, 1), bytes(32)) not in seeds
    assert keys.round_seed(KEY, (0, 1), bytes([1] * 32)) not in seeds  # another layout


def test_what_is_signed_tells_runs_and_clients_apart() -> None:
    texts = {
        keys.signed_text(run, client, KEY) for run in ("a", "a1", "1") for client in (1, 11, 111)
    }
    assert len(texts) == 9


@given(
    st.lists(st.text() | st.integers(), max_size=4), st.lists(st.text() | st.integers(), max_size=4)
)
def test_no_two_lists_of_parts_run_together(first: list, second: list) -> None:
    same = [(type(x), x) for x in first] == [(type(x), x) for x in second]
    assert (keys._text(*first) == keys._text(*second)) == same


def test_a_commitment_is_a_digest_with_a_label() -> None:
    expected = hashlib.sha256(b"dpfed commitment" + KEY).digest()
    assert keys.digest(KEY) == expected != hashlib.sha256(KEY).digest()


# ------------------------------------------------------------------------------------------ sealing


@given(st.binary(max_size=100))
def test_a_message_arrives_as_it_was_sent(message: bytes) -> None:
    sealed = keys.seal(KEY, AT, 0, 1, message)
    assert len(sealed) == len(message) + 16
    assert len(message) < 4 or message not in sealed
    assert keys.unseal(KEY, AT, 0, 1, sealed) == message


def test_any_flipped_bit_is_refused() -> None:
    sealed = keys.seal(KEY, AT, 0, 1, MESSAGE)
    for bit in range(8 * len(sealed)):
        changed = bytearray(sealed)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Untrusted, match="client 0 was changed"):
            keys.unseal(KEY, AT, 0, 1, bytes(changed))


@pytest.mark.parametrize("cut", [0, 1, 15, 16, 20])
def test_a_sealed_message_cut_off_is_refused(cut: int) -> None:
    sealed = keys.seal(KEY, AT, 0, 1, MESSAGE)
    with pytest.raises(Untrusted, match="was changed on its way"):
        keys.unseal(KEY, AT, 0, 1, sealed[:cut])


@pytest.mark.parametrize(
    ("key", "at", "sender", "receiver"),
    [
        (bytes(32), AT, 0, 1),
        (KEY, (3, 0), 0, 1),
        (KEY, (2, 1), 0, 1),
        (KEY, (1, 3), 0, 1),
        (KEY, AT, 1, 0),
        (KEY, AT, 2, 1),
        (KEY, AT, 0, 2),
    ],
)
def test_a_message_of_another_key_round_sender_or_receiver_is_refused(
    key: bytes, at: tuple[int, int], sender: int, receiver: int
) -> None:
    sealed = keys.seal(KEY, AT, 0, 1, MESSAGE)
    with pytest.raises(Untrusted, match=f"client {sender} was changed"):
        keys.unseal(key, at, sender, receiver, sealed)
