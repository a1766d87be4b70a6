# SPDX-License-Identifier: Apache-2.0
"""Masks: ChaCha20 streams added to a vector of machine words, which wrap by themselves.

Guarantee: each seed makes one stream and is used for one round only; adding a mask and subtracting
it leaves every word as it was. Flower's own SecAgg+ expands masks with a 32-bit generator that is
not cryptographic (flower issue 7522); this is the cipher's key stream itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NONCE = bytes(16)
_BLOCK_BYTES = 1 << 16  # bytes at a time: the blocks of the vector and of the mask stay in cache
_ZEROS = bytes(_BLOCK_BYTES)


def apply(words: NDArray[Any], plus: Iterable[bytes], minus: Iterable[bytes]) -> None:
    """Add the masks of some seeds to a vector of words, subtract others, in place.

    Args:
        words: unsigned integers of 32 or 64 bits, which wrap; overwritten.
        plus: seeds of 32 bytes whose masks are added.
        minus: seeds of 32 bytes whose masks are subtracted.
    """
    streams: list[tuple[Any, Any]] = [(_stream(seed), np.add) for seed in plus]
    streams += [(_stream(seed), np.subtract) for seed in minus]
    buffer = bytearray(_BLOCK_BYTES + 64)
    mask = np.frombuffer(buffer, words.dtype)
    per_block = _BLOCK_BYTES // words.itemsize
    for start in range(0, words.size, per_block):
        block = words[start : start + per_block]
        zeros = memoryview(_ZEROS)[: block.nbytes]
        for stream, change in streams:
            stream.update_into(zeros, buffer)
            change(block, mask[: block.size], out=block)


def _stream(seed: bytes) -> Any:
    return Cipher(ChaCha20(seed, _NONCE), mode=None).encryptor()
