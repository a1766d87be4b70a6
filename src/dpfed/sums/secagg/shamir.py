# SPDX-License-Identifier: Apache-2.0
"""Shamir's secret sharing (1979) of 32-byte seeds.

Guarantee: any ``threshold`` shares give the seed; fewer are uniform and independent of it. The
field is the integers modulo the least prime above 2^256, so a seed is one element and a share
takes 33 bytes. Written by hand, since maintained libraries work on 16 bytes at a time and need
seconds for 100 shares; the coefficients come from the operating system.

| edge case                                  | what happens                                   |
|--------------------------------------------|------------------------------------------------|
| fewer holders than the threshold           | refused: the seed could never be opened        |
| a share that is not a field element        | refused                                        |
| shares of another polynomial among them    | another seed comes out: compare its digest     |
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from functools import lru_cache

from dpfed.core.errors import BadReply, UnsoundPlan

PRIME = 2**256 + 297
SHARE_BYTES = 33
"""Bytes of a share."""


def split(seed: bytes, holders: Iterable[int], threshold: int) -> dict[int, bytes]:
    """A share for each holder; holders are client indices.

    Args:
        seed: the secret, 32 bytes.
        holders: the indices of the clients that get a share.
        threshold: how many shares open the seed, between 1 and the number of holders.
    """
    among = list(holders)
    if not 1 <= threshold <= len(among):
        raise UnsoundPlan(
            f"the threshold must be between 1 and the {len(among)} clients that hold shares, got "
            f"{threshold}; wait for more clients, or lower sum.survivors"
        )
    tail = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    line = [*reversed(tail), int.from_bytes(seed, "big")]
    return {holder: _at(line, holder + 1).to_bytes(SHARE_BYTES, "big") for holder in among}


def _at(line: list[int], x: int) -> int:
    value = 0
    for coefficient in line:
        value = (value * x + coefficient) % PRIME
    return value


def join(shares: Mapping[int, bytes]) -> bytes:
    """The seed from as many shares as its threshold, by holder."""
    values = [int.from_bytes(share, "big") for share in shares.values()]
    if any(len(share) != SHARE_BYTES for share in shares.values()) or max(values) >= PRIME:
        raise BadReply(
            f"a share must be {SHARE_BYTES} bytes, an element of the field; reconstruct the "
            f"seed from other shares"
        )
    at_zero = _coefficients(tuple(shares))
    seed = sum(c * value for c, value in zip(at_zero, values, strict=True)) % PRIME
    return (seed % 2**256).to_bytes(32, "big")


@lru_cache(maxsize=64)  # on the complete graph all seeds are opened by the same holders
def _coefficients(holders: tuple[int, ...]) -> list[int]:
    """Lagrange's coefficients at zero."""
    points = [holder + 1 for holder in holders]
    found = []
    for x in points:
        above = below = 1
        for other in points:
            if other != x:
                above = above * other % PRIME
                below = below * (other - x) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return found
