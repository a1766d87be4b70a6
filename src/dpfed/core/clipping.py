# SPDX-License-Identifier: Apache-2.0
"""Clipping: scale each row down to a norm of at most the clip C, then add up the rows.

One row holds the numbers of one unit, so a unit moves the sum by at most C. The kinds of rows call
this module: rows.py (a matrix of rows), matrices.py and ghost.py (rows that are products of two
factors), stacked.py (many clients at once) and adaptive_rows.py (the clip adapts). Arithmetic is in
double precision, with a margin that covers rounding, on two paths:

    ``weighted``, ``ProductSum``   sums in floats
    ``clip_alone``                 sums in exact integers: each row is scaled by operations that no
                                   other row can change, to the last bit

Guarantee of float sums: two neighbouring sums differ by at most D, what exactly clipped rows could
differ by (D >= C), rounding included. So accounting needs no extra term for rounding. Proof: rows
are cut to C (1 - 2^-20), by norms that are right to 2^-25. Of the 2^-20 C that this leaves, with
u = 2^-53 and m <= 2^25 rows,

    the sum      takes 0.7: s = 2^31 / m rows at a time are off by (s + 2) u s C at most, in any
                 order (Higham 2002, section 3.1); such parts are added by halves, a few thousand
                 at most, and these in pairs of floats, which is as good as exact: together
                 (s + 16) u m C <= 1.25 2^-22 C, in each of the two worlds
    the others   take 0.1: a library may round their norms otherwise where rows come or go. It is
                 asked where m (width + 16) <= 2^28, so that they move by 2^-24 C together for each
                 factor of a row; above, norms are added by halves, and no bit of them moves

| edge case                                    | what happens                                  |
|----------------------------------------------|-----------------------------------------------|
| a norm that is zero or not finite            | the row is zero                               |
| more than 2^25 rows in a sum                 | BadRelease                                    |
| a clip that is not from 2^-300 to 2^300      | BadRelease                                    |
| ``moderate``: an entry below 2^-160          | is zero                                       |
| ``moderate``: a row with one beyond 2^160    | is zero                                       |
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from dpfed.core.errors import BadRelease
from dpfed.core.grid import SHORTFALL, SLACK
from dpfed.core.types import BoundedSum, Vector

Exponents: TypeAlias = NDArray[np.int32]

MAX_ROWS = 2**25
"""The most rows of a float sum."""

# the part of the clip given up in the exact path: more than any norm is off by
_ALONE_SHORTFALL = 2.0**-40
_MAX_PLAIN_SUM = 2**31  # (rows in the sum) x (rows added without compensation)
_MAX_LIBRARY_NORMS = 2**28  # rows x width: above, norms are added up in our own order
_BLOCK_NUMBERS = 1 << 21  # in a block of rows: 16 MiB in double precision
_TILE_NUMBERS, _TILE_WIDTH = 1 << 18, 1 << 12  # converted to double at a time: fits the cache
_LONG_ROW_NUMBERS = 1 << 15  # converted at a time where there is one long row
_MAX_SAFE_CLIP = 2.0**300  # a clip or a step beyond it is not proven to be safe
_MAX_MODERATE = 2.0**160  # products of three numbers within it, and their squares, are safe


def checked_clip(clip: float) -> float:
    """The clip, if it is valid."""
    if not (math.isfinite(clip) and clip > 0):
        raise BadRelease(
            f"clip must be a finite number above 0, got {clip}; set privacy.clip, or the clip that "
            f"the method has of its own"
        )
    if not 1 / _MAX_SAFE_CLIP <= clip <= _MAX_SAFE_CLIP:
        raise BadRelease(
            f"clip must be between 2^-300 and 2^300, where rounding is covered, got {clip}; set "
            f"privacy.clip to the size of a gradient"
        )
    return clip


def bounded(vector: Vector, clip: float) -> BoundedSum:
    """The sum of rows of norm at most ``clip``, with its bounds for rows in any direction.

    Args:
        vector: the sum, in double precision, whatever type its rows have and how many they are.
        clip: the bound of a row's norm, above 0.
    """
    return BoundedSum(vector=vector, bound=clip, replace_bound=2 * clip)


# ------------------------------------------------------------------------------- norms and factors


def row_norms(matrix: torch.Tensor) -> torch.Tensor:
    """Euclidean norms of the rows, in double precision.

    Squares of float32 neither overflow nor underflow there; rows that are double already must be
    ``normalised`` or ``moderate``.
    """
    rows, width = matrix.shape
    if few(rows, width) and matrix.numel() <= _TILE_NUMBERS:
        part = matrix.double()
        return (part * part).sum(dim=1).sqrt_()
    if rows == 1 and few(rows, width) and matrix.is_contiguous():
        return _long_norm(matrix[0])
    squares = torch.zeros(rows, dtype=torch.float64)
    for some in _slices(rows, width):
        for tile in _columns(matrix[some]):
            part = _doubled(tile).square_()
            squares[some] += part.sum(dim=1) if few(rows, width) else _tree_sums(part)
    return squares.sqrt_()


def _long_norm(row: Vector) -> torch.Tensor:
    """The norm of one long row: many tiles at a time, added in their order."""
    whole = row.numel() // _TILE_WIDTH * _TILE_WIDTH
    tiles = torch.split(row[:whole].view(-1, _TILE_WIDTH), _LONG_ROW_NUMBERS // _TILE_WIDTH)
    squares = 0.0
    for some in (*tiles, row[None, whole:]):
        for part in _doubled(some).square_().sum(dim=1).tolist():
            squares += part
    return torch.tensor([squares], dtype=torch.float64).sqrt_()


def few(rows: int, width: int) -> bool:
    """Whether norms of this many rows may be added up in the library's own order."""
    return rows * (width + 16) <= _MAX_LIBRARY_NORMS


def _slices(rows: int, width: int) -> Iterator[slice]:
    """The rows in slices, each converted to double precision at once."""
    step = _TILE_NUMBERS // max(1, min(width, _TILE_WIDTH))
    return (slice(at, at + step) for at in range(0, rows, step))


def _columns(matrix: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A matrix as tiles, from left to right."""
    return (matrix,) if matrix.shape[1] <= _TILE_WIDTH else torch.split(matrix, _TILE_WIDTH, dim=1)


class _Scratch(threading.local):
    """A reused buffer: allocating one takes longer than summing a tile."""

    buffer: torch.Tensor | None = None


_scratch = _Scratch()


def _doubled(tile: torch.Tensor) -> torch.Tensor:
    """A tile in double precision, in the thread's buffer, which the next call overwrites."""
    if _scratch.buffer is None:
        _scratch.buffer = torch.empty(_TILE_NUMBERS, dtype=torch.float64)
    held = _scratch.buffer[: tile.numel()]
    if tile.stride(0) == 1:  # columns lie together in memory, and stay so: adding is faster
        return held.view(tile.T.shape).copy_(tile.T).T
    return held.view(tile.shape).copy_(tile)


def clip_factors(norms: torch.Tensor, clip: float, shortfall: float = SHORTFALL) -> torch.Tensor:
    """The clip rule: min(1, clip / norm), with the clip reduced by ``shortfall``; norm 0 gives 1.

    The other place of the same rule is ``scaled_factors``: for rows that were divided by powers of
    two. A change of one must be made in both.

    Args:
        norms: the norms of the rows, in double precision, at least 0.
        clip: the largest norm that a row may keep, above 0.
        shortfall: the part of the clip to give up, so that rounding cannot exceed it; at least 8
            ulps are given up whatever it is.
    """
    short = clip * (1 - max(shortfall, 2.0**-49))
    return norms.reciprocal().mul_(short).clamp_(max=1.0)


def normalised(matrix: torch.Tensor) -> tuple[torch.Tensor, Exponents]:
    """Each row divided by a power of two, in double precision, and the exponents.

    A row that is not finite becomes zero.

    The largest entry of a row comes to lie between 1/2 and 1, so that squares lose nothing.
    """
    matrix = matrix.double()
    largest = matrix.abs().amax(dim=1) if matrix.numel() else matrix.new_zeros(len(matrix))
    usable = torch.isfinite(largest)
    if not bool(usable.all()):
        matrix = torch.where(usable[:, None], matrix, 0.0)
        largest = torch.where(usable, largest, 0.0)
    _, exponents = np.frexp(largest.numpy())
    exponents = np.maximum(exponents, -1000)  # below, a row is shorter than any clip
    return matrix * torch.from_numpy(np.ldexp(1.0, -exponents))[:, None], exponents


def scaled_factors(norms: torch.Tensor, exponents: Exponents, short: float) -> torch.Tensor:
    """The clip rule of ``clip_factors`` for ``normalised`` rows: restore their size, then clip.

    A row whose norm 2^exponent norm is at most ``short`` gets the factor 2^exponent, any other one
    short / norm; a row of norm 0 gets 0, not 1. A change of one function must be made in both.

    Args:
        norms: the norms of the normalised rows.
        exponents: the exponents of the powers of two that rows were divided by.
        short: the largest norm that a row may keep, above 0: the clip, already reduced by the
            shortfall, unlike the ``clip`` of ``clip_factors``.
    """
    found = norms.numpy()
    with np.errstate(over="ignore", divide="ignore"):  # an infinite norm is longer than any clip
        fits = np.ldexp(found, exponents) <= short
        factors = np.where(fits, np.ldexp(1.0, exponents), short / found)
    return torch.from_numpy(np.where(found > 0, factors, 0.0))


def moderate(matrix: torch.Tensor) -> torch.Tensor:
    """Rows whose products in double precision neither overflow nor lose digits."""
    if matrix.dtype == torch.float32 and bool(torch.isfinite(matrix).all()):
        return matrix
    matrix = matrix.double()
    sizes = matrix.abs()
    largest = sizes.amax(dim=1, keepdim=True) if matrix.numel() else sizes
    usable = (largest <= _MAX_MODERATE) & (sizes >= 1 / _MAX_MODERATE)  # False for a NaN
    return torch.where(usable, matrix, 0.0)


def all_finite(norms: torch.Tensor) -> bool:
    """Whether no norm is infinite or a NaN: their sum tells, as none is near the largest float."""
    return math.isfinite(float(norms.sum()))


# -------------------------------------------------------------------------------------- float sums


def weighted(
    matrix: torch.Tensor, clip: float, plain: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """The factors [rows, 1] that clip rows, and the rows; a row that is not finite is zero.

    Args:
        matrix: one row per unit.
        clip: the largest norm that a row may keep, above 0.
        plain: whether rows that are double are known to be moderate; float32 always is.
    """
    if plain or matrix.dtype == torch.float32:
        norms = row_norms(matrix)
        if all_finite(norms):
            return clip_factors(norms, clip)[:, None], matrix
    matrix, exponents = normalised(matrix)
    factors = scaled_factors(row_norms(matrix), exponents, clip * (1 - SHORTFALL))
    return factors[:, None], matrix


def product_sum(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The sum of rows left_i x right_i: [rows, a] in double precision, [rows, b] in any."""
    if (
        len(left) ** 2 <= _MAX_PLAIN_SUM and right.numel() <= _TILE_NUMBERS
    ):  # all of it in one piece
        return left.T @ (right if right.dtype == torch.float64 else _doubled(right))
    total = ProductSum(len(left), (left.shape[1], right.shape[1]))
    total.add(left, right)
    return total.matrix


Pair = tuple[torch.Tensor, torch.Tensor]


def folded(before: Pair | None, part: torch.Tensor) -> Pair:
    """Add one part to a compensated (high, low) sum: low keeps what high rounds away."""
    if before is None:
        return part, torch.zeros_like(part)
    high, low = before
    both = high + part
    grown = both - high
    return both, low + (high - (both - grown)) + (part - grown)


class ProductSum:
    """A compensated sum of rows left_i x right_i in double precision.

    Its error bound is derived at the top of this file.
    """

    def __init__(self, rows: int, shape: tuple[int, int]) -> None:
        if rows > MAX_ROWS:
            raise BadRelease(
                f"the rows of a sum must be at most 2^25, got {rows}; give a client fewer records"
            )
        self._span = _MAX_PLAIN_SUM // max(1, rows)
        self._part, self._held = torch.zeros(shape, dtype=torch.float64), 0
        self._sum: tuple[torch.Tensor, torch.Tensor] | None = None

    def add(self, left: torch.Tensor, right: torch.Tensor) -> None:
        """Add rows that are products of two factors: [rows, a] in double precision, [rows, b]."""
        if self._span == _MAX_PLAIN_SUM and left.numel() == 1:
            self._add_one(left, right)
            return
        for rows in _slices(*right.shape):
            tall, some = right[rows], left[rows]
            self._make_room(len(some))
            for tile, part in zip(_columns(tall), _columns(self._part), strict=True):
                self._add(some, tile if tile.dtype == torch.float64 else _doubled(tile), part)

    def _add_one(self, factor: torch.Tensor, row: torch.Tensor) -> None:
        """Add the only row of a sum: each coordinate is one product."""
        wide = (torch.split(each, _LONG_ROW_NUMBERS, dim=1) for each in (row, self._part))
        for tile, part in zip(*wide, strict=True):
            part.add_(_doubled(tile).mul_(factor))

    def _add(self, left: torch.Tensor, right: torch.Tensor, part: torch.Tensor) -> None:
        """Add as many rows at a time as the error bound allows; add partial sums by halves."""
        whole = len(left) // self._span * self._span
        if whole:
            first, second = (
                each[:whole].reshape(-1, self._span, each.shape[1]) for each in (left, right)
            )
            parts = torch.bmm(first.mT, second).flatten(1)
            part += _tree_sums(parts.T).view_as(part)
            left, right = left[whole:], right[whole:]
        part.addmm_(left.T, right)

    def _make_room(self, rows: int) -> None:
        if self._held + rows > self._span:
            self._sum = self._folded()
            self._part, self._held = torch.zeros_like(self._part), 0
        self._held += rows

    def _folded(self) -> tuple[torch.Tensor, torch.Tensor]:
        return folded(self._sum, self._part)

    @property
    def matrix(self) -> torch.Tensor:
        """The sum of all that was added."""
        if self._sum is None:
            return self._part
        high, low = self._folded()
        return high + low


# ---------------------------------------------------------------------------------- one by one


def clip_alone(matrix: torch.Tensor, clip: float) -> torch.Tensor:
    """Rows scaled to norm at most ``clip``, each by operations that no other row can change.

    A library's reduction may add up in another order at another place in a matrix, and a row that
    differs in its last bit may differ by a step once it is truncated. Here every operation is on
    single numbers or a maximum, and powers of two keep squares from overflow: bit by bit the same.
    """
    scaled, exponents = normalised(matrix)
    norms = _alone_norms(scaled)
    factors = scaled_factors(norms, exponents, clip * (1 - _ALONE_SHORTFALL))
    return scaled.mul_(factors[:, None])


def directions_and_norms(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows scaled to norm 1, and their norms; both are zero if the norm is 0 or not finite.

    As in ``clip_alone`` no row depends on another one, nor on its place, to the last bit.
    """
    scaled, exponents = normalised(matrix)
    norms = _alone_norms(scaled)
    inverse = torch.where(norms > 0, norms.reciprocal(), 0.0)
    return scaled.mul_(inverse[:, None]), _unscaled(norms, exponents)


def row_norms_alone(matrix: torch.Tensor) -> torch.Tensor:
    """Norms of rows, 0 if not finite; none depends on other rows or on the row's place."""
    if matrix.dtype == torch.float32:  # its squares fit a double, and are exact there
        norms = _tree_sums(matrix.double().square_()).sqrt_()
        return torch.where(torch.isfinite(norms), norms, 0.0)
    scaled, exponents = normalised(matrix)
    return _unscaled(_alone_norms(scaled), exponents)


def _unscaled(norms: torch.Tensor, exponents: Exponents) -> torch.Tensor:
    with np.errstate(over="ignore"):  # a norm beyond the largest float is infinite
        return torch.from_numpy(np.ldexp(norms.numpy(), exponents))


def _alone_norms(scaled: torch.Tensor) -> torch.Tensor:
    """Norms of normalised rows, each the same wherever its row lies."""
    return _tree_sums(scaled * scaled).sqrt_()


def _tree_sums(matrix: torch.Tensor) -> torch.Tensor:
    """The sum of each row, by halves: always in the same order. Overwrites the matrix."""
    width = matrix.shape[1]
    while width > 1:
        half = (width + 1) // 2
        matrix[:, : width - half] += matrix[:, half:width]
        width = half
    return matrix[:, :1].sum(dim=1)


def rows_in_block(size: int) -> int:
    """How many rows of ``size`` numbers are made at a time."""
    return max(1, _BLOCK_NUMBERS // max(1, size))


def stacked(rows: Iterator[Vector], size: int) -> Iterator[torch.Tensor]:
    """Vectors stacked into blocks, ``rows_in_block`` of them in each."""
    while held := list(itertools.islice(rows, rows_in_block(size))):
        yield torch.stack(held)


# ------------------------------------------------------------ rows that are products of two factors

# factors up to this, and above its inverse, neither overflow nor lose digits
_MAX_PLAIN_FACTOR = 2.0**250


def ordinary(matrix: torch.Tensor) -> torch.Tensor:
    """Which rows have a largest entry of ordinary size: exact, and independent of other rows."""
    largest = matrix.abs().amax(dim=1) if matrix.numel() else matrix.new_zeros(len(matrix))
    # a zero is safe, any other finite float32 is of ordinary size, and a NaN fails both tests
    return (largest == 0) | (
        (largest.double() >= 1 / _MAX_PLAIN_FACTOR) & (largest.double() <= _MAX_PLAIN_FACTOR)
    )


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
    if not all(1 / _MAX_SAFE_CLIP <= value <= _MAX_SAFE_CLIP for value in (clip, step)):
        return False
    if not (rows < 2**32 and rows * clip < 2.0**62 * step):  # as integers, it must fit int64
        return False
    lost = rows * 2.0**-53
    error = rows * clip * (lost / (1 - lost) + product_error(widths))
    error += step * math.sqrt(widths[0] * widths[1]) / 2
    return 2 * error * (1 + 2.0**-20) <= SLACK * clip
