# SPDX-License-Identifier: Apache-2.0
"""The public grid of releases: integers, so that a total is the same in whatever order it is added.

The step is a power of two made from public numbers (clip and noise level) only: multiplying by it
is exact, and it tells nothing about data.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

from dpfed.errors import BadRelease

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from dpfed.types import Vector

    Integers: TypeAlias = NDArray[np.int32] | NDArray[np.int64]

_BLOCK = 1 << 14

NOISY_BITS = 20
"""Where noise is added before rounding: the step is about noise / 2^20, lost in the noise."""

EXACT_BITS = 36
"""Where it is not: about clip / 2^36, far below the rounding of a float32 sum."""


def step_below(scale: float, bits: int) -> float:
    """The largest power of two that is at most scale / 2^bits."""
    return 2.0 ** (math.floor(math.log2(scale)) - bits)


def to_grid(values: NDArray[np.float64], step: float) -> Vector:
    """Values as integers on the grid, rounded to the nearest; overwrites ``values``."""
    import numpy as np
    import torch

    values *= 1.0 / step  # a power of two: exact
    np.rint(values, out=values)
    largest = max(-float(values.min(initial=0.0)), float(values.max(initial=0.0)))
    if not largest < 2.0**62:  # also catches a NaN
        raise BadRelease(
            f"a release of size {largest * step:.3g} does not fit a grid of step {step:.3g}; "
            f"look for values that are not finite, or lower mechanism.clip"
        )
    # int32 where it fits: a release then weighs no more than float32
    return torch.from_numpy(values.astype(np.int32 if largest < 2.0**31 else np.int64))


def add_weighted(total: NDArray[np.int64], integers: Integers, weight: float) -> None:
    """``total += round(weight * integers)`` in place; temporaries are a block long."""
    import numpy as np

    if weight == 1.0:
        np.add(total, integers, out=total)
        return
    for start in range(0, total.size, _BLOCK):
        part = slice(start, start + _BLOCK)
        scaled = integers[part] * weight
        total[part] += np.rint(scaled, out=scaled).astype(np.int64)


def to_values(integers: torch.Tensor, factor: float, like: torch.Tensor) -> Vector:
    """``integers * factor`` in the type of ``like``: one new vector, no other temporaries."""
    import torch

    values = torch.empty(integers.numel(), dtype=like.dtype)
    values.copy_(integers)
    return values.mul_(factor)
