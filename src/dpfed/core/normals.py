# SPDX-License-Identifier: Apache-2.0
"""Normals of 64-bit words (Box and Muller 1958): fast ones, and exact ones where that decides.

A pair of words, v and w, stands for two real numbers: with u = (v // 2 + 1/2) / 2^63 as a float,

    sqrt(-2 log u) cos(2 pi (w + 1/2) / 2^64),    and the same with the sine.

What is released is such a number times a level, added to a value and rounded to a grid. So it
need not be known to its last bit, only to the step that it is nearest to. A ``Room`` makes
normals with the fastest functions that the libraries have, off by ``ERROR`` at most; where that
could decide between two steps (1 in 10^6, on a grid of 2^20 steps to the level) the grid asks for
the number to its last bit (``exactly``). Noise is so the same on every machine, whatever its
libraries make of a last bit.

Why ``ERROR`` is enough. The float u is the same in both, and log u, its root and their product
with a cosine are each right to some units in the last place, of at most 9.5: 2^-48. The angle is
rounded three times, 3 pi 2^-53, which is 2^-46.5 at that radius. Together under 2^-45, for
functions that are right to 4 units in the last place.

| edge case                                | what happens                                 |
|------------------------------------------|----------------------------------------------|
| the uniform is 0                         | cannot be: (v // 2 + 1/2) / 2^63             |
| a grid too fine for ``ERROR``            | the formula in double precision, as it is    |
| an odd number of draws                   | the last one of the last pair is not used    |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal, localcontext
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]
    Words: TypeAlias = NDArray[np.uint64]
    Places: TypeAlias = NDArray[np.intp]

ERROR = 2.0**-42
"""The largest error of a fast normal."""

BLOCK = 1 << 14
"""Draws of one block: cosines of 2^13 pairs, then their sines."""

AT_ONCE = 2 * BLOCK
"""The most draws that are made at a time: temporaries stay in cache."""

# in steps: where fast normals are off by more, the grid is too fine for them
_MAX_STEP_ERROR = 2.0**-10
_MAX_LEVEL = 2.0**400  # a level beyond it has a square that is no ordinary float
_EXACT_DIGITS = 48  # decimal digits of an exact normal: a float has 17
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")


class Draws(NamedTuple):
    """Noise for a block of values; good until the stream's next draw."""

    values: Floats
    """The draws; the caller may overwrite them."""
    error: float = 0.0
    """The largest error of each."""
    exactly: Callable[[Places], Floats] | None = None
    """Gives the draws at some places, right to the last bit; None if values are exact enough."""


def uniform(words: Words) -> Floats:
    """(word + 1/2) / 2^64 in floats; 32 bits at a time, which rounds once and is fast."""
    made = (words >> np.uint64(32)).view(np.int64).astype(np.float64)
    made *= 2.0**32
    made += (words & np.uint64(2**32 - 1)).view(np.int64).astype(np.float64)
    made += 0.5
    made *= 2.0**-64
    return made


def fits(size: int, level: float, step: float) -> bool:
    """Whether ``size`` draws at a time can be made in the fast way.

    Args:
        size: how many: whole blocks up to AT_ONCE, or less than one.
        level: their standard deviation.
        step: the step of the grid that they will be rounded to.
    """
    whole = size % BLOCK == 0 or size < BLOCK
    ordinary = 1 / _MAX_LEVEL <= level <= _MAX_LEVEL
    return 0 < size <= AT_ONCE and whole and ordinary and ERROR * level <= _MAX_STEP_ERROR * step


class Room:
    """Words and normals of some blocks, or of a part of one, in memory that is used again.

    Args:
        size: how many draws; beyond a block, whole blocks.
    """

    def __init__(self, size: int) -> None:
        import torch

        half, blocks = min(size + 1, BLOCK) // 2, -(-size // BLOCK)
        self._width = min(size, BLOCK)
        self.words: Words = np.empty((blocks, 2, half), dtype=np.uint64)
        self._radius, self._values = np.empty((blocks, half)), np.empty((blocks, 2, half))
        views = (self._radius, self._values[:, 0], self._values[:, 1])
        self._tensors = tuple(torch.from_numpy(each) for each in views)

    def draws(self, level: float) -> Draws:
        """The normals of the words that lie here, times a level."""
        import torch

        radius, cosine, angle = self._tensors
        self._uniforms()
        torch.log(radius, out=radius)
        self._radius *= -2.0 * level * level
        torch.sqrt(radius, out=radius)
        np.copyto(self._values[:, 1], self.words[:, 1].view(np.int64))
        self._values[:, 1] *= 2.0 * math.pi * 2.0**-64  # half a turn either way
        torch.cos(angle, out=cosine)
        torch.sin(angle, out=angle)
        self._values *= self._radius[:, None]
        lines = self._values.reshape(len(self._values), -1)[:, : self._width]
        return Draws(lines.reshape(-1), ERROR * level, lambda where: self._exactly(level, where))

    def _uniforms(self) -> None:
        """From 63 bits, since signed integers become floats several times as fast."""
        spare = self._values[:, 1]
        np.right_shift(self.words[:, 0], np.uint64(1), out=spare.view(np.uint64))
        np.copyto(self._radius, spare.view(np.int64))
        self._radius += 0.5
        self._radius *= 2.0**-63

    def _exactly(self, level: float, where: Places) -> Floats:
        half = self.words.shape[2]
        block, rest = np.divmod(where, self._width)
        first, second = (self.words[block, which, rest % half].tolist() for which in (0, 1))
        found = [normal(*each) for each in zip(first, second, rest >= half, strict=True)]
        return level * np.array(found, dtype=np.float64)


def normal(first: int, second: int, sine: bool) -> float:
    """A normal of two words, to the last bit; in decimals, which load faster than mpmath.

    Args:
        first: the word that makes the radius.
        second: the word that makes the angle.
        sine: whether it is the pair's sine, not its cosine.
    """
    with localcontext(Context(prec=_EXACT_DIGITS)):
        quarters = (2 * second + 1 + (1 << 62)) >> 63  # of a turn, to the nearest
        rest = _PI * (2 * second + 1 - (quarters << 63)) / (1 << 64)
        uniform = Decimal((float(first >> 1) + 0.5) * 2.0**-63)
        return float((-2 * uniform.ln()).sqrt() * _cosine(quarters - sine, rest))


def _cosine(quarters: int, rest: Decimal) -> Decimal:
    """The cosine of ``quarters`` quarter turns plus a rest of at most half a quarter."""
    odd = quarters % 2
    term = total = rest if odd else Decimal(1)
    for k in range(2 + odd, _EXACT_DIGITS, 2):
        term *= -rest * rest / (k * (k - 1))
        total += term
    return -total if quarters % 4 in (1, 2) else total
