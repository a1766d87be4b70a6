# SPDX-License-Identifier: Apache-2.0
"""Noise from one ChaCha20 stream per release, under a 32-byte key of its own.

Guarantee: two releases never share a key. In deployment the key is drawn from the operating
system (no state, so a fork or a restart cannot repeat it); in research it is

    SHA-256(seed, purpose, round, client, attempt, channel, call)

so that any engine makes the same noise. The generators of torch and numpy never make noise:
they are not cryptographic, user code reseeds them, and torch's CPU generator keeps 32 bits of
its seed.

| edge case                                 | what happens                                       |
|-------------------------------------------|----------------------------------------------------|
| numpy, random or torch seeded by the user | the noise does not change (keyed) or repeat (os)   |
| the process forks                         | os keys differ, since they are drawn at each call  |
| two fields whose texts run together       | distinct keys: each field's length is hashed too   |
| the uniform is 0                          | cannot be: (word + 1/2) / 2^64, so no infinite draw |
"""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from dpfed.core.types import NoiseSource

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NONCE = bytes(16)  # a key is used for one stream only, so the nonce need not vary
_BLOCK = 1 << 13  # pairs of normals made at a time: the temporaries stay small, and in cache


class Stream(Protocol):
    """A source of random bits, and of normals made from them."""

    def normal(self, size: int) -> NDArray[np.float64]:
        """So many independent standard normals."""

    def words(self, count: int) -> NDArray[np.uint64]:
        """So many 64-bit words."""


class KeyStream:
    """The stream of one key: words, and normals made of them."""

    def __init__(self, key: bytes) -> None:
        self._encrypt = Cipher(ChaCha20(key, _NONCE), mode=None).encryptor()

    def words(self, count: int) -> NDArray[np.uint64]:
        """The next ``count`` 64-bit words."""
        return np.frombuffer(self._encrypt.update(bytes(8 * count)), dtype="<u8")

    def normal(self, size: int) -> NDArray[np.float64]:
        """``size`` independent standard normals (Box and Muller 1958), as floats: idealized."""
        pairs = (size + 1) // 2
        out = np.empty(2 * pairs)
        for start in range(0, pairs, _BLOCK):
            stop = min(start + _BLOCK, pairs)
            self._fill(out[2 * start : 2 * stop])
        return out[:size]

    def _fill(self, out: NDArray[np.float64]) -> None:
        half = out.size // 2
        uniform = (self.words(out.size) + 0.5) * 2.0**-64
        radius = np.sqrt(-2.0 * np.log(uniform[:half]))
        angle = (2.0 * math.pi) * uniform[half:]
        np.multiply(radius, np.cos(angle), out=out[:half])
        np.multiply(radius, np.sin(angle), out=out[half:])


@dataclass(frozen=True)
class Noise:
    """Where a run's noise comes from: the operating system, or a seed (research only)."""

    seed: int | None = None

    @property
    def source(self) -> NoiseSource:
        """What the guarantee sentence says about the noise."""
        return NoiseSource.OPERATING_SYSTEM if self.seed is None else NoiseSource.KEYED

    def stream(self, purpose: str, *fields: int | str) -> KeyStream:
        """The stream of one purpose: fields are round, client, attempt, channel, call."""
        if self.seed is None:
            return KeyStream(os.urandom(32))
        return KeyStream(derive(self.seed, purpose, *fields))


def derive(seed: int, purpose: str, *fields: int | str) -> bytes:
    """SHA-256 over the fields, each with its type and length in front.

    Args:
        seed: the seed of the run.
        purpose: what the key is for, such as "release".
        *fields: what sets this key apart from others of the purpose, in a fixed order.
    """
    texts = [f"{type(part).__name__}:{part}".encode() for part in (seed, purpose, *fields)]
    return hashlib.sha256(b"".join(b"%d:%b" % (len(text), text) for text in texts)).digest()
