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
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from dpfed.core.normals import AT_ONCE, BLOCK, Draws, Room, fits, uniform
from dpfed.core.types import NoiseSource

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NONCE = bytes(16)  # a key is used for one stream only, so the nonce need not vary
_ZEROS = memoryview(bytes(8 * AT_ONCE))  # what is encrypted


class KeyStream:
    """The stream of one key: words, and normals made of them (normals.py)."""

    def __init__(self, key: bytes) -> None:
        self._encrypt = Cipher(ChaCha20(key, _NONCE), mode=None).encryptor()
        self._room: tuple[int, Room] | None = None

    def words(self, count: int) -> NDArray[np.uint64]:
        """The next ``count`` 64-bit words."""
        out = np.empty(count, dtype="<u8")
        self.write(out)
        return out

    def write(self, out: NDArray[np.uint64]) -> None:
        """Write the next words into ``out``."""
        raw = out.reshape(-1).view(np.uint8).data
        for start in range(0, len(raw), len(_ZEROS)):
            part = raw[start : start + len(_ZEROS)]
            self._encrypt.update_into(_ZEROS[: len(part)], part)

    def normal(self, size: int) -> NDArray[np.float64]:
        """``size`` independent standard normals (Box and Muller 1958), as floats: idealized."""
        out = np.empty(size + size % 2)
        for start in range(0, out.size, BLOCK):
            self._fill(out[start : start + BLOCK])
        return out[:size]

    def _fill(self, out: NDArray[np.float64]) -> None:
        half = out.size // 2
        made = uniform(self.words(out.size))
        radius = np.sqrt(-2.0 * np.log(made[:half]))
        angle = (2.0 * math.pi) * made[half:]
        np.multiply(radius, np.cos(angle), out=out[:half])
        np.multiply(radius, np.sin(angle), out=out[half:])

    def draws(self, size: int, level: float, step: float) -> Draws:
        """The next ``size`` normals times a level, several times as fast if the grid allows it.

        Args:
            size: how many; fast up to AT_ONCE, in whole blocks or less than one.
            level: their standard deviation.
            step: of the grid that they will be rounded to, with what they are added to.
        """
        if not fits(size, level, step):
            return Draws(self.normal(size) * level)
        if self._room is None or self._room[0] != size:
            self._room = size, Room(size)
        self.write(self._room[1].words)
        return self._room[1].draws(level)


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
    return hashlib.sha256(b"".join([_text(p) for p in (seed, purpose, *fields)])).digest()


@lru_cache(maxsize=4096, typed=True)
def _text(part: int | str) -> bytes:
    """A field with its type and length; cached, as most are those of the stream before."""
    text = f"{type(part).__name__}:{part}".encode()
    return b"%d:%b" % (len(text), text)


def public_seed(seed: int, purpose: str) -> int:
    """A seed for what is public (a model's start, partitions), apart from the noise's keys.

    Args:
        seed: the seed of the run.
        purpose: what it is for, such as "model".
    """
    return int.from_bytes(derive(seed, purpose)[:4], "big")
