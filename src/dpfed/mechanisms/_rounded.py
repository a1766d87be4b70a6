# SPDX-License-Identifier: Apache-2.0
"""Exact draws of a Gaussian rounded to integers, K = round(scale Z), from a stream of words.

One word makes one draw: a bit is the sign, 63 bits begin a uniform U whose further bits are drawn
only when they matter. With the tail put at U near 0, where floats are dense,

    |Z| = -ndtri(U / 2),    |K| = floor(scale |Z| + 1/2).

Guarantee: K has the law of the exactly rounded Gaussian, not of a rounded float. The float answer
is taken only where its error could not have changed the integer; all other draws are decided by
comparing U with erfc((|K| -+ 1/2) / (scale sqrt 2)) at 190 bits or more, with a guard band, and
with more bits of U while they are too close to tell. This rests on three things: the stream's bits
are uniform, ndtri is right to 2^-42, mpmath's erfc to 32 bits less than it works with.

Why ``MARGIN`` is enough. What is far from an integer by the margin is right if |Z| is right to
margin / scale, 2^-37 for a scale up to 2^25 and never less than 2^-42 (``_margin``). The
errors, where U >= 2^-18 and so |Z| < 5: ndtri's own, under 2^-48 (tests hold it to mpmath); U cut
after 63 bits, 2^-46 of its value and a quarter of that in |Z|; U as a float, 2^-53 of its value;
the product and the sum, each 2^-53 of at most 5 scale. Together under 2^-46: a factor of 500 up to
2^25, of 16 at the largest scale.

`log_distance` bounds the error where several such draws are added up and each stands for a
Gaussian. It is too small for any float to show (docs/exact-noise.md has the proof).

| edge case                                        | what happens                              |
|--------------------------------------------------|-------------------------------------------|
| scale not finite, below 2^10 or above 2^40       | BadRelease (see ``_checked``)             |
| a draw close to a rounding boundary (1 in 2,000) | decided exactly, with more bits           |
| U below 2^-18: a draw far out                    | decided exactly, with more bits           |
| all bits drawn so far are 0                      | more are drawn, until one is not          |
| no draws asked for                               | an empty vector; no word is drawn         |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from dpfed.core.errors import BadRelease

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Words: TypeAlias = Callable[[int], NDArray[np.uint64]]

MARGIN = 2.0**-12
"""How far from a rounding boundary a float answer must be to be taken, in units of K."""

_FLOAT_ERROR = 2.0**-42  # of |Z|, allowed for at any scale
_LEAST, _MOST = 2.0**10, 2.0**40
_BLOCK = 1 << 14  # temporaries stay in cache
_FAR = 2.0**-18  # below, 63 bits do not tell U well enough
_GUARD_BITS = 32  # of mpmath's working precision, not trusted


def rounded_normal(scale: float, size: int, words: Words) -> NDArray[np.int64]:
    """``size`` independent draws of round(scale Z), Z standard normal; exact.

    Takes ``size`` words from the stream first, then what close cases need: the same stream always
    gives the same draws.

    Args:
        scale: the standard deviation before rounding, between 2^10 and 2^40.
        size: how many draws; 0 takes no words.
        words: gives so many uniform 64-bit words, the next ones of a stream.
    """
    return _rounded(_checked(scale), size, words, _margin(scale))


def _checked(scale: float) -> float:
    """Below, a sum of shares is no longer Gaussian enough; above, floats decide too little."""
    if not _LEAST <= scale <= _MOST:  # also catches a NaN
        raise BadRelease(
            f"the noise must be 2^10 to 2^40 steps of the grid to be drawn exactly, got {scale}; "
            f"set privacy.options.bits between 10 and 30"
        )
    return scale


def _margin(scale: float) -> float:
    return max(MARGIN, scale * _FLOAT_ERROR)


def _rounded(scale: float, size: int, words: Words, margin: float) -> NDArray[np.int64]:
    """The draws; a margin of 1/2 or more decides every one of them exactly (for tests)."""
    import numpy as np

    if size == 0:
        return np.empty(0, dtype=np.int64)
    drawn = words(size)
    out = np.empty(size, dtype=np.int64)
    close = [
        start + _fill(out[start : start + _BLOCK], drawn[start : start + _BLOCK], scale, margin)
        for start in range(0, size, _BLOCK)
    ]
    doubtful = np.concatenate(close)
    more = words(len(doubtful)) if len(doubtful) else drawn[:0]
    for index, extra in zip(doubtful.tolist(), more.tolist(), strict=True):
        word = int(drawn[index])
        size_of_it = _exact(scale, (word >> 1 << 64) | extra, 127, words)
        out[index] = -size_of_it if word & 1 else size_of_it
    return out


def _fill(
    out: NDArray[np.int64], drawn: NDArray[np.uint64], scale: float, margin: float
) -> NDArray[np.int64]:
    """The float answers of one block, and where they cannot be trusted."""
    import numpy as np
    from scipy.special import ndtri

    uniform = (drawn >> np.uint64(1)).astype(np.float64)
    uniform += 0.5
    uniform *= 2.0**-63
    place = ndtri(0.5 * uniform)
    place *= -scale
    place += 0.5
    whole = np.floor(place)
    np.copyto(out, whole, casting="unsafe")
    np.negative(out, out=out, where=(drawn & np.uint64(1)).astype(bool))
    place -= whole
    sure = (place > margin) & (place < 1 - margin) & (uniform >= _FAR)
    return np.flatnonzero(~sure)


def _exact(scale: float, leading: int, bits: int, words: Words) -> int:
    """|K| of the U in [leading, leading + 1] / 2^bits, whose further bits come from ``words``."""
    from scipy.special import ndtri

    while leading == 0:
        leading, bits = int(words(1)[0]), bits + 64
    guess = -scale * float(ndtri(0.5 * math.ldexp(float(leading), -bits))) + 0.5
    size = max(0, math.floor(guess))
    while True:
        above = size > 0 and _compare(scale, size - 0.5, leading, bits)
        below = _compare(scale, size + 0.5, leading, bits)
        if above is None or below is None:  # too close to tell: look at more of U
            leading, bits = (leading << 64) | int(words(1)[0]), bits + 64
        elif above:  # U > erfc at the lower boundary: |K| is smaller
            size -= 1
        elif not below:
            size += 1
        else:
            return size


def _compare(scale: float, boundary: float, leading: int, bits: int) -> bool | None:
    """Whether U lies above P(scale |Z| > boundary); None where it cannot be told yet."""
    import mpmath

    with mpmath.workprec(bits + 2 * _GUARD_BITS):
        tail: Any = mpmath.erfc(mpmath.mpf(boundary) / (mpmath.mpf(scale) * mpmath.sqrt(2)))
        scaled = mpmath.ldexp(tail, bits)
        guard = mpmath.ldexp(scaled, -bits - _GUARD_BITS)
        if leading >= scaled + guard:
            return True
        return False if leading + 1 <= scaled - guard else None


def log_distance(scale: float, shares: int) -> float:
    """A bound on log(total variation), per coordinate, between the opened and the accounted law.

    Opened: the sum of ``shares`` draws of round(scale Z). Accounted for: a Gaussian of scale
    sqrt(shares), to which data-independent values are added and which is then rounded:
    post-processing. See docs/exact-noise.md; with q = exp(-pi^2 scale^2) and y = 2 / (1 - q^3),

        tau <= q (1 + (2 pi sqrt(2 h) scale^2 + h + 1) / (scale sqrt(2 pi h)) h y exp(h q y)).

    A natural logarithm, since tau itself underflows; one share is exact, and gives -inf.
    """
    if shares < 1 or not scale > 0:
        raise ValueError(
            f"shares must be at least 1 and scale above 0, got {shares} and {scale}; give those of "
            f"a sum of noises"
        )
    if shares == 1:
        return -math.inf
    exponent = (math.pi * scale) ** 2
    q = math.exp(-exponent)
    y = 2 / (1 - q**3)
    window = 2 * math.pi * math.sqrt(2 * shares) * scale**2 + shares + 1
    factor = math.log(window / (scale * math.sqrt(2 * math.pi * shares)) * shares * y)
    grown = factor + shares * q * y
    # log(1 + e^grown), where e^grown may overflow at a tiny scale
    return max(grown, 0.0) + math.log1p(math.exp(-abs(grown))) - exponent
