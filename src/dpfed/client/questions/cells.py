# SPDX-License-Identifier: Apache-2.0
"""Cells of values, and the matrix by which cumulative counts have little noise."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache

import torch

from dpfed.client.questions.columns import Column
from dpfed.core.checks import refuse

MOST_CELLS = 1024
"""Of one question."""


def one_hot(cells: torch.Tensor, size: int) -> torch.Tensor:
    """A one in each record's cell, [records, size]; a cell of -1 is none.

    Args:
        cells: from 0, or -1.
        size: how many there are.
    """
    made = torch.zeros(len(cells), size + 1, dtype=torch.float64)
    made.scatter_(1, torch.where(cells < 0, size, cells)[:, None], 1.0)
    return made[:, :size]


def cell_of(values: torch.Tensor, column: Column, edges: Sequence[float]) -> torch.Tensor:
    """The cell of each value: its code, or its bin [a, b); the last bin has its end, too.

    Args:
        values: features or codes, NaN where one is missing.
        column: what is public of it.
        edges: of bins, for numbers; compared as features, to the last bit.
    """
    if column.words:
        return values.nan_to_num(-1.0).long()
    ends = _as_features(column, edges)
    place = torch.searchsorted(ends, values.nan_to_num(math.inf), right=True) - 1
    place = torch.where(values == ends[-1], len(ends) - 2, place)
    return torch.where(place >= len(ends) - 1, -1, place)


def upper_cell(values: torch.Tensor, column: Column, edges: Sequence[float]) -> torch.Tensor:
    """The cell (a, b] of each value; what is outside of the edges is in the nearest cell.

    Args:
        values: features, NaN where one is missing.
        column: what is public of it.
        edges: of the cells; compared as features, to the last bit.
    """
    place = torch.searchsorted(_as_features(column, edges[1:-1]), values.nan_to_num(0.0))
    return torch.where(torch.isfinite(values), place, -1)


def _as_features(column: Column, values: Sequence[float]) -> torch.Tensor:
    return torch.tensor([column.feature(each) for each in values], dtype=torch.float64)


def cell_labels(edges: Sequence[float], words: Sequence[str]) -> list[str]:
    """What cells are called.

    Args:
        edges: of bins.
        words: of a category.
    """
    if words:
        return list(words)
    return [f"{low:g} to {high:g}" for low, high in itertools.pairwise(edges)]


@lru_cache(maxsize=8)  # of up to 8 MiB
def halved_sum(size: int) -> torch.Tensor:
    """C: lower triangular and Toeplitz, C C x is the cumulative sum of x.

    Its first column has the coefficients of (1 - z)^(-1/2): 1, 1/2, 3/8, ... (Fichtenberger,
    Henzinger and Upadhyay 2023): released as C x, a cumulative sum has noise that grows with
    log(size), and not with its square root.

    Args:
        size: how many cells.
    """
    first = [1.0]
    for k in range(1, size):
        first.append(first[-1] * (2 * k - 1) / (2 * k))
    column = torch.tensor(first, dtype=torch.float64)
    index = torch.arange(size)[:, None] - torch.arange(size)[None, :]
    return torch.where(index >= 0, column[index.clamp(min=0)], 0.0)


def summed_rows(cells: torch.Tensor, size: int) -> torch.Tensor:
    """C's column for each record's cell, [records, size]; a cell of -1 is none.

    Args:
        cells: from 0, or -1.
        size: how many there are.
    """
    made = halved_sum(size).T[cells.clamp(min=0)]
    return torch.where((cells < 0)[:, None], 0.0, made)


@lru_cache(maxsize=256)
def summed_bounds(size: int) -> tuple[float, float]:
    """The longest column of C, and the largest distance of two, zero being one of them.

    Args:
        size: how many cells.
    """
    C = halved_sum(size)
    gram = C.T @ C
    norms = gram.diagonal()
    apart = (norms[:, None] + norms[None, :] - 2 * gram).clamp(min=0.0).max()
    up = 1 + 2.0**-40  # for the rounding of these sums
    longest = math.sqrt(float(norms.max())) * up
    return longest, max(longest, math.sqrt(float(apart)) * up)


def check_cells(name: str, column: Column, edges: Sequence[float], words: Sequence[str]) -> None:
    """Refuse edges of a category, none for numbers, and words that are not the column's.

    Args:
        name: the question's.
        column: what is public of the column.
        edges: of its cells.
        words: of its cells.
    """
    if column.words:
        if edges or tuple(words) != column.words:
            raise refuse(f"the words of question {name!r}", "those of its column", list(words)[:5])
        return
    if words:
        raise refuse(f"question {name!r}", "edges, as its column holds numbers", list(words)[:5])
    check_ascending(name, "edges", edges, 2)


def check_ascending(name: str, what: str, values: Sequence[float], least: int) -> None:
    """Refuse what does not ascend, or is not finite.

    Args:
        name: the question's.
        what: edges or times.
        values: these.
        least: how many there are at least.
    """
    finite = all(math.isfinite(value) for value in values)
    pairs = itertools.pairwise(values)
    enough = least <= len(values) <= MOST_CELLS + 1
    if not (finite and enough and all(a < b for a, b in pairs)):
        bound = f"{least} to {MOST_CELLS + 1} finite numbers that ascend"
        raise refuse(f"{what} of question {name!r}", bound, list(values)[:5], "give public ones")
