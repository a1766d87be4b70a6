# SPDX-License-Identifier: Apache-2.0
"""The public grid of releases: integers, so that a total is the same in whatever order it is added.

The step is a power of two made from public numbers (clip and noise level) only: multiplying by it
is exact, and it tells nothing about data.

Guarantee of ``truncated_sum``: each row adds integers whose norm is at most clip / step, exactly:
whatever floats did to the row before, its integers are checked. They are added up exactly, so
removing a row moves the sum by at most clip / step.

| edge case                                     | what happens                                  |
|-----------------------------------------------|-----------------------------------------------|
| a row with a NaN or an infinity               | is ignored                                    |
| a row longer than the clip, once truncated    | is ignored                                    |
| no rows                                       | zeros                                         |
| rows of another size                          | BadRelease                                    |
| clip / step above 2^30, or one out of range   | BadRelease: squares would not be exact        |
| a value beyond 2^62 steps (``to_grid``)       | BadRelease                                    |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, TypeAlias

from dpfed.core.errors import BadRelease

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from dpfed.core.normals import Draws
    from dpfed.core.types import Release, Vector

    Integers: TypeAlias = NDArray[np.int32] | NDArray[np.int64]
    Floats: TypeAlias = NDArray[np.float64]
    Drawn: TypeAlias = Draws | Floats

BLOCK = 1 << 14
"""Numbers that are worked on at a time: temporaries stay in cache."""

NOISY_BITS = 20
"""Where noise is added before rounding: the step is about noise / 2^20, far below the noise."""

SLACK = 2.0**-12
"""The part of a clip by which a rounded float sum may exceed it: the accounting includes it."""

SHORTFALL = 2.0**-20
"""The part of a clip that rows give up in float sums: more than rounding may add to them."""

EXACT_BITS = 36
"""Where no noise is added: about clip / 2^36, far below the rounding of a float32 sum."""


MAX_STEPS = 2**30
"""The most steps of a clip on a grid of exact sums: all squared norms then fit int64."""

# in steps: what floats may have rounded away where a case is doubtful
_MAX_FLOAT_ERROR = 2.0**-10
# rows of at most 2^30 steps each: their sum is below 2^53, so floats add them up exactly
_MAX_EXACT_ROWS = 1 << 21


def step_below(scale: float, bits: int) -> float:
    """The largest power of two that is at most scale / 2^bits."""
    return math.ldexp(1.0, math.frexp(scale)[1] - 1 - bits)  # a logarithm may round up


def to_grid(values: Floats, step: float) -> Vector:
    """Values as integers on the grid, rounded to the nearest; overwrites ``values``."""
    import numpy as np
    import torch

    # int32 where it fits: a release then weighs no more than float32
    fits = _round(values, values, step) < 2.0**31
    return torch.from_numpy(values.astype(np.int32 if fits else np.int64))


def _round(values: Floats, whole: Floats, step: float) -> float:
    """Divide values by the step in place, round them into ``whole``; the largest size there."""
    import numpy as np

    values *= 1.0 / step  # a power of two: exact
    np.rint(values, out=whole)
    least, most = np.minimum.reduce(whole, initial=0.0), np.maximum.reduce(whole, initial=0.0)
    largest = max(-float(least), float(most))
    _check_size(largest, step)
    return largest


def _check_size(largest: float, step: float) -> None:
    if not largest < 2.0**62:  # also catches a NaN
        raise BadRelease(
            f"a release of size {largest * step:.3g} does not fit a grid of step {step:.3g}; "
            f"look for values that are not finite, or lower privacy.clip"
        )


def pack(
    values: torch.Tensor,
    step: float,
    noise: Callable[[int], Drawn] | None = None,
    factor: float = 1.0,
) -> Vector:
    """Values, with noise added to each block, as integers on the grid; blocks bound the memory.

    Args:
        values: a flat vector of floats; it is not changed.
        step: the step of the grid, a power of two.
        noise: from a number of draws to that many draws of noise, in the values' unit; None adds
            none.
        factor: what the values are multiplied by before noise is added.
    """
    import numpy as np
    import torch

    vector = torch.empty(values.numel(), dtype=torch.int32)
    room = np.empty(min(values.numel(), 2 * BLOCK))  # used again: to get it anew takes longer
    for part in _parts(values.numel()):
        clear, whole = values[part].numpy(), room[: part.stop - part.start]
        if factor != 1.0:
            clear = clear * np.float64(factor)
        largest = _rounded(clear, whole, noise(clear.size) if noise else None, step)
        if largest >= 2.0**31 and vector.dtype == torch.int32:
            vector = vector.to(torch.int64)  # rare: a value beyond 2^31 steps
        np.copyto(vector[part].numpy(), whole, casting="unsafe")
    return vector


def _parts(size: int) -> Iterator[slice]:
    """Slices: two blocks at a time, then one, then the rest; normals are fast in these numbers."""
    start = 0
    while start < size:
        left = size - start
        length = next((some for some in (2 * BLOCK, BLOCK) if some <= left), left)
        yield slice(start, start + length)
        start += length


def _rounded(clear: Floats, whole: Floats, drawn: Drawn | None, step: float) -> float:
    """Values, with what is drawn added, rounded into ``whole``, and the largest size there.

    Exact draws are asked for where fast ones could decide.
    """
    import numpy as np

    if drawn is None:
        whole[:] = clear
        return _round(whole, whole, step)
    from dpfed.core.normals import Draws

    if not isinstance(drawn, Draws) or drawn.exactly is None:
        np.add(drawn.values if isinstance(drawn, Draws) else drawn, clear, out=whole)
        return _round(whole, whole, step)
    place = drawn.values
    place += clear
    largest = _round(place, whole, step)
    place -= whole
    sure = 0.5 - drawn.error / step - min(_MAX_FLOAT_ERROR, largest * 2.0**-51)
    if np.minimum.reduce(place) <= -sure or np.maximum.reduce(place) >= sure:
        close = np.flatnonzero(np.abs(place) >= sure)
        again = clear[close] + drawn.exactly(close)
        largest = max(largest, _round(again, again, step))
        whole[close] = again
    return largest


def truncated_sum(
    blocks: Iterable[torch.Tensor], size: int, clip: float, step: float
) -> torch.Tensor:
    """The sum of clipped rows on the grid: each truncated toward zero, checked, added exactly.

    Args:
        blocks: matrices of clipped rows, [any number, size] each, in double precision.
        size: the length of a row, and of the sum.
        clip: the bound of a row's norm; a row beyond it is ignored.
        step: the step of the grid, a power of two; at most 2^30 of them in a clip.
    """
    import torch

    limit = squared_limit(clip, step)
    total = torch.zeros(size, dtype=torch.int64)
    for block in blocks:
        if block.shape[1:] != total.shape:  # or it would be broadcast
            raise BadRelease(
                f"rows must have length {size}, got rows of shape {tuple(block.shape)}; make them "
                f"as long as the channel's vector"
            )
        for rows in torch.split(block, _MAX_EXACT_ROWS):
            total += truncated(rows, limit, step).sum(dim=0).long()
    return total


def squared_limit(clip: float, step: float) -> int:
    """The largest squared norm, in steps, that a row of norm ``clip`` may have."""
    plain = all(2.0**-300 <= value <= 2.0**300 for value in (clip, step))  # False for a NaN
    if not plain or Fraction(clip) > MAX_STEPS * Fraction(step):
        raise BadRelease(
            f"clip must be at most 2^30 steps of the grid, and both from 2^-300 to 2^300, to be "
            f"summed exactly, got a clip of {clip:.3g} and a step of {step:.3g}; lower "
            f"privacy.options.bits, or use mechanism 'gaussian'"
        )
    return math.floor((Fraction(clip) / Fraction(step)) ** 2)


def truncated(rows: torch.Tensor, limit: int, step: float) -> torch.Tensor:
    """Rows in steps, as whole numbers in floats; zero if a squared norm exceeds ``limit``.

    Below 2^53 sums of squares are exact in floats, and a larger one is never rounded to less than
    2^53. Above, floats only tell which rows int64 can hold.

    Args:
        rows: a matrix of rows in double precision.
        limit: the largest squared norm in steps (``squared_limit``).
        step: the step of the grid, a power of two.
    """
    import torch

    whole = (rows * (1.0 / step)).trunc_()  # a power of two: exact
    squares = (whole * whole).sum(dim=1)
    if limit < 2**53:
        fits = squares <= limit  # False for a NaN
    else:
        fits = squares <= 2.0 * limit
        integers = torch.where(fits[:, None], whole, 0.0).long()
        fits &= (integers * integers).sum(dim=1) <= limit
    return torch.where(fits[:, None], whole, 0.0)


def narrow(integers: torch.Tensor) -> Vector:
    """The integers as int32 if they fit: a release is then no larger than float32."""
    import torch

    if integers.numel():
        least, most = torch.aminmax(integers)
        if not -(2**31) < int(least) <= int(most) < 2**31:
            return integers
    return integers.to(torch.int32)


def repack(values: torch.Tensor, step: float) -> Release:
    """A function of releases, put on the grid of one of them: post-processing, so it may leave."""
    from dpfed.core.types import Release

    return Release(pack(values, step), math.nan, step)


def add_values(total: torch.Tensor, release: Release, divisor: float) -> None:
    """``total += what was released / divisor``, block by block: no vector is made for it.

    Args:
        total: the vector that is added to, in its place.
        release: what is added; as long as the total.
        divisor: a public number, such as the nominal size.
    """
    factor = release.step / divisor
    for start in range(0, total.numel(), BLOCK):
        part = slice(start, start + BLOCK)
        total[part].add_(to_values(release.vector[part], factor, like=total))


def values_of(release: Release, divisor: float, like: torch.Tensor) -> Vector:
    """The released value, divided by a public number.

    Args:
        release: integers on a grid.
        divisor: a public number, such as the nominal size.
        like: a tensor of the type that is wanted.
    """
    return to_values(release.vector, release.step / divisor, like)


def add_weighted(total: NDArray[np.int64], integers: Integers, weight: float) -> None:
    """``total += round(weight * integers)`` in place; temporaries are a block long.

    Args:
        total: the sum so far, which is changed.
        integers: what is added; as long as the total.
        weight: the public weight; with 1 nothing is rounded.
    """
    import numpy as np

    if weight == 1.0:
        np.add(total, integers, out=total)
        return
    for start in range(0, total.size, BLOCK):
        part = slice(start, start + BLOCK)
        scaled = integers[part] * weight
        total[part] += np.rint(scaled, out=scaled).astype(np.int64)


def to_values(integers: torch.Tensor, factor: float, like: torch.Tensor) -> Vector:
    """``integers * factor`` in the type of ``like``: one new vector, no other temporaries.

    Args:
        integers: a flat vector on a grid.
        factor: the grid's step over a public number.
        like: a tensor of the type that is wanted.
    """
    import torch

    values = torch.empty(integers.numel(), dtype=like.dtype)
    values.copy_(integers)
    return values.mul_(factor)
