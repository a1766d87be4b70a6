# SPDX-License-Identifier: Apache-2.0
"""Exact draws of a Gaussian rounded to integers, K = round(scale Z), from a stream of words.

One word makes one draw: a bit is the sign, 63 bits begin a uniform U whose further bits are drawn
only when they matter. With the tail put at U near 0, where floats are dense,

    |Z| = -ndtri(U / 2),    |K| = floor(scale |Z| + 1/2).

Guarantee: K has the law of the exactly rounded Gaussian, not of a rounded float. The float result
is taken only where its error could not have changed the integer; all other draws are decided by
comparing U with erfc((|K| -+ 1/2) / (scale sqrt 2)) at 190 bits or more, with a guard band, and
with more bits of U while they are too close to tell. This rests on three things: the stream's bits
are uniform, ndtri and torch's erfinv are right to 2^-42, mpmath's erfc to 32 bits less than it
works with.

Three ways, the next one where the one before could be wrong. (1) sqrt(2) erfinv(1 - U), a fifth of
the time: taken where it is ``MARGIN`` and 2^-42 scale away from a rounding boundary and U >= 2^-8.
(2) -ndtri(U / 2), for 1 draw in 200: taken where it is 2^-42 scale away and U >= 2^-18. Within the
margin a second word is drawn, whether it is needed or not: bits of a release are what they were
when all of these went the third way. (3) mpmath, 1 in 50,000 at a scale of 2^25. What (1) and (2)
make of the same words is compared in every vector.

Why 2^-42 is enough. What is further from a boundary is right if |Z| is right to 2^-42. The errors
of (2), where U >= 2^-18 and so |Z| < 5: ndtri's own, under 2^-48 (tests hold it to mpmath); U cut
after 63 bits, 2^-46 of its value and a quarter of that in |Z|; U as a float, 2^-53 of its value;
the product and the sum, each 2^-53 of at most 5 scale. Together under 2^-46, a factor of 16. Of
(1), where U >= 2^-8 and so |Z| < 2.9: 1 - U as a float is off by 2^-52, which is 2^-45.6 in |Z|,
and its own error under 2^-48; the factor of 16 is then one of 10, and the margin beside.

`log_distance` bounds the error where several such draws are added up and each stands for a
Gaussian. It is too small for any float to show (docs/exact-noise.md has the proof).

| edge case                                        | what happens                              |
|--------------------------------------------------|-------------------------------------------|
| scale not finite, below 2^10 or above 2^40       | BadRelease (see ``_checked``)             |
| a draw close to a rounding boundary              | decided exactly, with more bits           |
| U below 2^-18: a draw far out                    | decided exactly, with more bits           |
| all bits drawn so far are 0                      | more are drawn, until one is not          |
| no draws asked for                               | an empty vector; no word is drawn         |
| erfinv and ndtri do not agree to 2^-42           | BadRelease                                |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from dpfed.core.errors import BadRelease

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]
    Words: TypeAlias = Callable[[int], NDArray[np.uint64]]

MARGIN = 2.0**-12
"""How close to a rounding boundary a draw takes a second word, in units of K."""

_FLOAT_ERROR = 2.0**-42  # of |Z|, allowed for at any scale
_MIN_SCALE, _MAX_SCALE = 2.0**10, 2.0**40
_BLOCK_DRAWS = 1 << 14  # draws at a time, so that temporaries stay in the cache
_MIN_FAST_DRAWS = 1 << 11  # fewer draws are all made by ndtri, since calls dominate the time
_MIN_U_NDTRI = 2.0**-18  # below, the first 63 bits of U are not precise enough
_MIN_U_ERFINV = 2.0**-8  # below, 1 - U as a float is not precise enough
_GUARD_BITS = 32  # of mpmath's working precision, not trusted


def rounded_normal(scale: float, size: int, words: Words) -> NDArray[np.int64]:
    """``size`` independent draws of round(scale Z), Z standard normal; exact.

    Takes ``size`` words from the stream first, then what close cases need: the same stream always
    gives the same draws.

    Args:
        scale: the standard deviation before rounding, between 2^10 and 2^40.
        size: how many draws; 0 takes no words.
        words: called with a number, gives that many uniform 64-bit words, the next of a stream.
    """
    return _rounded(_checked(scale), size, words, _margin(scale))


def _checked(scale: float) -> float:
    """Below, a sum of shares is no longer Gaussian enough; above, floats decide too little."""
    if not _MIN_SCALE <= scale <= _MAX_SCALE:  # also catches a NaN
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

    out = np.empty(size, dtype=np.int64)
    if size == 0:
        return out
    places, drawn, near = _fast(out, scale, words, margin)
    again = _NdtriDraws(drawn, scale)
    again.check(near)
    out[places] = again.draws
    doubtful = np.flatnonzero(~again.sure(margin))
    more = words(len(doubtful)) if len(doubtful) else drawn[:0]
    left = ~again.sure(margin if margin >= 0.5 else scale * _FLOAT_ERROR)[doubtful]
    for index, extra in zip(doubtful[left].tolist(), more[left].tolist(), strict=True):
        word = int(drawn[index])
        size_of_it = _exact(scale, (word >> 1 << 64) | extra, 127, words)
        out[places[index]] = -size_of_it if word & 1 else size_of_it
    return out


def _fast(
    out: NDArray[np.int64], scale: float, words: Words, margin: float
) -> tuple[NDArray[np.intp], NDArray[np.uint64], Floats]:
    """Many draws by erfinv; where ndtri is to be asked: the places, their words, scale |Z|."""
    import numpy as np

    if len(out) < _MIN_FAST_DRAWS:
        return np.arange(len(out)), words(len(out)), np.empty(0)
    room, found = _BlockBuffers(min(len(out), _BLOCK_DRAWS), scale, margin), []
    for start in range(0, len(out), _BLOCK_DRAWS):
        part = out[start : start + _BLOCK_DRAWS]
        drawn = words(len(part))
        close, near = room.fill(part, drawn)
        found.append((start + close, drawn[close], near))
    places, kept, near = (np.concatenate(each) for each in zip(*found, strict=True))
    return places, kept, near


class _BlockBuffers:
    """Memory for a block of draws, used again and again, and what is done there."""

    def __init__(self, size: int, scale: float, margin: float) -> None:
        import numpy as np

        self._place, self._whole, self._close = (np.empty(size, kind) for kind in "dd?")
        self._factor, self._sure = math.sqrt(2) * scale, 0.5 - margin - scale * _FLOAT_ERROR

    def fill(
        self, out: NDArray[np.int64], drawn: NDArray[np.uint64]
    ) -> tuple[NDArray[np.intp], Floats]:
        """The draws of some words; where they are close to a boundary or far out, and scale |Z|."""
        import numpy as np

        place, whole, close = (each[: len(out)] for each in (self._place, self._whole, self._close))
        self._deviations(place, drawn)
        np.rint(place, out=whole)
        place -= whole
        np.greater(place, self._sure, out=close)
        close |= place < -self._sure
        close |= drawn < int(_MIN_U_ERFINV * 2**64)
        where = np.flatnonzero(close)
        near = whole[where] + place[where]
        np.left_shift(drawn, np.uint64(63), out=place.view(np.uint64))
        whole.view(np.uint64)[:] |= place.view(np.uint64)  # the sign
        np.copyto(out, whole, casting="unsafe")
        return where, near

    def _deviations(self, place: Floats, drawn: NDArray[np.uint64]) -> None:
        """Scale |Z| of some words."""
        import numpy as np
        import torch

        bits = self._whole[: len(place)].view(np.uint64)
        np.right_shift(drawn, np.uint64(1), out=bits)
        np.copyto(place, bits.view(np.int64))  # signed integers become floats several times as fast
        place *= -(2.0**-63)
        place += 1 - 2.0**-53  # below 1, so that no draw is infinite
        tensor = torch.from_numpy(place)
        torch.erfinv(tensor, out=tensor)
        place *= self._factor


class _NdtriDraws:
    """What ndtri makes of some words: |K| = floor(scale |Z| + 1/2), and how sure that is."""

    def __init__(self, drawn: NDArray[np.uint64], scale: float) -> None:
        import numpy as np
        from scipy.special import ndtri

        self._scale, self._uniform = scale, (drawn >> np.uint64(1)).astype(np.float64)
        self._uniform += 0.5
        self._uniform *= 2.0**-63
        self._place = ndtri(0.5 * self._uniform)
        self._place *= -scale
        self._place += 0.5
        whole = np.floor(self._place)
        self._fraction = self._place - whole
        self.draws = whole.astype(np.int64)
        np.negative(self.draws, out=self.draws, where=(drawn & np.uint64(1)).astype(bool))

    def sure(self, margin: float) -> NDArray[np.bool_]:
        """Which are further than the margin from a boundary, and not far out."""
        inside = (self._fraction > margin) & (self._fraction < 1 - margin)
        known: NDArray[np.bool_] = inside & (self._uniform >= _MIN_U_NDTRI)
        return known

    def check(self, near: Floats) -> None:
        """Refuse an erfinv that ndtri does not agree with, where both were asked."""
        import numpy as np

        if not len(near):
            return
        apart = np.abs(near + 0.5 - self._place)[self._uniform >= _MIN_U_ERFINV]
        if apart.max(initial=0.0) > self._scale * _FLOAT_ERROR:
            raise BadRelease(
                "torch's erfinv and SciPy's ndtri must agree to 2^-42, and do not here; install "
                "another version of torch, or use mechanism 'gaussian'"
            )


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
    """Whether U lies above P(scale |Z| > boundary); None if it cannot be told yet."""
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
