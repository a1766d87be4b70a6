# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of clipping: norms that neither overflow nor underflow, factors a few ulps short.

Two paths. ``clip_rows`` is fast, in the rows' own precision. ``clip_alone`` is for sums in exact
integers: each row is scaled by operations that no other row can change, to the last bit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import torch

from dpfed.core.errors import BadRelease
from dpfed.core.grid import SLACK
from dpfed.core.types import BoundedSum, Vector

_TINY = {torch.float32: 1e-15, torch.float64: 1e-140}  # below, squares lose digits
_HUGE = {torch.float32: 1e15, torch.float64: 1e140}  # above, squares may overflow
SAFE = {torch.float32: 1e30, torch.float64: 1e300}  # above, clip / norm may be denormal

_SHORTFALL = 2.0**-40  # of the clip, given up in the exact path: more than any norm is off by
_ELEMENTS = 1 << 21  # of a block of rows: 16 MiB in double precision


def checked_clip(clip: float) -> float:
    """The clip, if it is valid."""
    if not (math.isfinite(clip) and clip > 0):
        raise BadRelease(
            f"clip must be a finite number above 0, got {clip}; set privacy.clip, or the clip that "
            f"the method has of its own"
        )
    return clip


def bounded(vector: Vector, clip: float) -> BoundedSum:
    """A sum of rows of norm at most ``clip``, of no particular direction."""
    return BoundedSum(vector=vector, bound=clip, replace_bound=2 * clip)


def within(values: torch.Tensor, low: float, high: float) -> bool:
    """Whether all values lie between: False for a NaN, in one pass.

    Args:
        values: a tensor of any shape; True if it is empty.
        low: the least value that is allowed.
        high: the largest value that is allowed.
    """
    if values.numel() == 0:
        return True
    least, most = torch.aminmax(values)
    return low <= float(least) and float(most) <= high


def row_norms(matrix: torch.Tensor) -> torch.Tensor:
    """Euclidean norms of the rows, without overflow or underflow of the squares."""
    norms: torch.Tensor
    if matrix.is_contiguous():
        norms = torch.linalg.vector_norm(matrix, dim=1)
    else:  # columns lie together in memory: vector_norm would be 30 times slower
        norms = (matrix * matrix).sum(dim=1).sqrt_()
    tiny, huge = _TINY[matrix.dtype], _HUGE[matrix.dtype]
    if not within(norms, tiny, huge):
        doubtful = ~((norms > tiny) & (norms < huge))
        norms[doubtful] = _scaled_norms(matrix[doubtful])
    return norms


def _scaled_norms(matrix: torch.Tensor) -> torch.Tensor:
    largest = matrix.abs().amax(dim=1, keepdim=True)
    scaled = matrix / largest.clamp(min=torch.finfo(matrix.dtype).tiny)
    norms: torch.Tensor = torch.linalg.vector_norm(scaled, dim=1)
    return norms * largest.squeeze(1)


def clip_factors(norms: torch.Tensor, clip: float, shortfall: float = 0.0) -> torch.Tensor:
    """min(1, clip / norm), a few ulps short where it clips; a norm of 0 gives inf, then 1.

    Args:
        norms: the norms of the rows, at least 0.
        clip: the largest norm that a row may keep, above 0.
        shortfall: the part of the clip to give up, so that rounding cannot exceed it; at least 8
            ulps are given up whatever it is.
    """
    short = clip * (1 - max(shortfall, 8 * torch.finfo(norms.dtype).eps))
    return (short / norms).clamp_(max=1.0)


def clip_rows(matrix: torch.Tensor, clip: float) -> torch.Tensor:
    """Each row scaled to norm at most ``clip``; rows that are not finite are zero."""
    norms = row_norms(matrix)
    if not within(norms, 0.0, SAFE[norms.dtype]):
        usable = torch.isfinite(matrix).all(dim=1, keepdim=True)
        matrix, norms = tamed(torch.where(usable, matrix, 0.0))
    return matrix * clip_factors(norms, clip)[:, None]


def tamed(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Finite rows and their norms; rows near the largest float are shrunk, their direction kept."""
    norms = row_norms(matrix)
    beyond = norms > SAFE[matrix.dtype]
    matrix = torch.where(beyond[:, None], matrix * 2.0**-32, matrix)
    return matrix, torch.where(beyond, row_norms(matrix), norms)


def clip_alone(matrix: torch.Tensor, clip: float) -> torch.Tensor:
    """Rows scaled to norm at most ``clip``, each by operations that no other row can change.

    A library's reduction may add up in another order at another place in a matrix, and a row that
    differs in its last bit may differ by a step once it is truncated. Here every operation is on
    single numbers or a maximum, and powers of two keep squares from overflow: bit by bit the same.
    """
    largest = matrix.abs().amax(dim=1) if matrix.numel() else matrix.new_zeros(len(matrix))
    usable = torch.isfinite(largest)
    if not bool(usable.all()):
        matrix = torch.where(usable[:, None], matrix, 0.0)
        largest = torch.where(usable, largest, 0.0)
    _, exponents = np.frexp(largest.numpy())
    exponents = np.maximum(exponents, -1000)  # below, a row is shorter than any clip
    scaled = matrix * torch.from_numpy(np.ldexp(1.0, -exponents))[:, None]
    norms = _tree_sums(scaled * scaled).sqrt_().numpy()
    short = clip * (1 - _SHORTFALL)
    with np.errstate(over="ignore", divide="ignore"):  # an infinite norm is longer than any clip
        fits = np.ldexp(norms, exponents) <= short
        factors = np.where(fits, np.ldexp(1.0, exponents), short / norms)
    return scaled.mul_(torch.from_numpy(factors)[:, None])


def _tree_sums(matrix: torch.Tensor) -> torch.Tensor:
    """The sum of each row, by halves: always in the same order. Overwrites the matrix."""
    width = matrix.shape[1]
    while width > 1:
        half = (width + 1) // 2
        matrix[:, : width - half] += matrix[:, half:width]
        width = half
    return matrix[:, :1].sum(dim=1)


def rows_in_block(size: int) -> int:
    """How many rows of a size are made at a time."""
    return max(1, _ELEMENTS // max(1, size))


def stacked(rows: Iterator[Vector], size: int) -> Iterator[torch.Tensor]:
    """Vectors as the rows of blocks, as many in each as memory allows."""
    while held := list(itertools.islice(rows, rows_in_block(size))):
        yield torch.stack(held)


# ------------------------------------------------------------ rows that are products of two factors

_PLAIN = 2.0**250  # factors within it, and above its inverse, cannot overflow or lose digits
_EXTREME = 2.0**300  # a clip or a step beyond it is not proven to be safe


def ordinary(matrix: torch.Tensor) -> torch.Tensor:
    """Which rows have a largest entry of ordinary size: exact, and independent of other rows."""
    largest = matrix.abs().amax(dim=1) if matrix.numel() else matrix.new_zeros(len(matrix))
    # a zero is safe, any other finite float32 is of ordinary size, and a NaN fails both tests
    return (largest == 0) | ((largest.double() >= 1 / _PLAIN) & (largest.double() <= _PLAIN))


def product_error(widths: tuple[int, int]) -> float:
    """An upper bound on the rounding error of a clipped product of two factors, over its norm."""
    return (sum(widths) + 16) * 2.0**-52


def covered(rows: int, widths: tuple[int, int], clip: float, step: float) -> bool:
    """Whether a float64 sum of products, rounded to a grid, is within SLACK clip / 2 of the truth.

    Twice the error is what two neighbouring sums may differ by beyond what their rows allow. A
    sum of m products is off by at most gamma_m sum |terms| in any order (Higham 2002, section 3.1),
    so in norm by gamma_m m clip; m times what a row may be off by, where its last bits depend on
    its place; rounding adds step sqrt(size) / 2. The last factor covers underflow.

    Args:
        rows: how many products are added.
        widths: the lengths of the two factors of a product.
        clip: the bound of a product's norm.
        step: the step of the grid.
    """
    if not all(1 / _EXTREME <= value <= _EXTREME for value in (clip, step)):
        return False
    if not (rows < 2**32 and rows * clip < 2.0**62 * step):  # as integers, it must fit int64
        return False
    lost = rows * 2.0**-53
    error = rows * clip * (lost / (1 - lost) + product_error(widths))
    error += step * math.sqrt(widths[0] * widths[1]) / 2
    return 2 * error * (1 + 2.0**-20) <= SLACK * clip
