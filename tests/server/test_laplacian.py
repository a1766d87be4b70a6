# SPDX-License-Identifier: Apache-2.0
"""laplacian against the dense solve that it avoids."""

from __future__ import annotations

import math

import pytest
import torch

from dpfed.core.errors import RecipeError
from dpfed.core.types import Aggregate
from dpfed.core.vector import BLOCK
from dpfed.server.laplacian import laplacian
from tests.refusals import named

SIZES = [1, 2, 3, 7, 64]


def smoothed(G: torch.Tensor, smoothing: float) -> torch.Tensor:
    optimizer = laplacian(smoothing)
    direction, _ = optimizer.update(G, optimizer.init(G), Aggregate(0, G, G, std=0.0, clients=1))
    return direction


def vector(size: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(size), dtype=dtype)


def dense(size: int) -> torch.Tensor:
    """The periodic Laplacian; where neighbours coincide their entries add up."""
    L = torch.zeros(size, size, dtype=torch.float64)
    for j in range(size):
        L[j, j] += 2
        L[j, (j - 1) % size] -= 1
        L[j, (j + 1) % size] -= 1
    return L


def test_the_dense_matrix_of_the_smallest_sizes() -> None:
    assert dense(1).tolist() == [[0]]
    assert dense(2).tolist() == [[2, -2], [-2, 2]]
    assert dense(3).tolist() == [[2, -1, -1], [-1, 2, -1], [-1, -1, 2]]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("smoothing", [0.0, 1e-3, 1.0, 50.0])
def test_it_is_the_dense_solve(size: int, smoothing: float) -> None:
    G = vector(size)
    matrix = torch.eye(size, dtype=torch.float64) + smoothing * dense(size)
    expected = torch.linalg.solve(matrix, G)
    assert torch.allclose(smoothed(G, smoothing), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_long_vector_solves_the_equation(dtype: torch.dtype) -> None:
    G = vector(2 * BLOCK + 17, dtype)
    x = smoothed(G, 3.0)
    assert x.dtype == dtype
    back = x + 3.0 * (2 * x - x.roll(1) - x.roll(-1))
    assert float((back - G).abs().max()) < (1e-4 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("size", [*SIZES, 1001])
@pytest.mark.parametrize("smoothing", [0.0, 1e-12, 1.0, 1e6, 1e308])
def test_the_sum_is_kept_and_the_norm_does_not_grow(size: int, smoothing: float) -> None:
    G = vector(size)
    x = smoothed(G, smoothing)
    assert float(x.sum()) == pytest.approx(float(G.sum()), rel=1e-10, abs=1e-12)
    assert float(x.norm()) <= float(G.norm()) * (1 + 1e-14)


def test_no_smoothing_leaves_every_bit() -> None:
    G = vector(17, torch.float32)
    assert torch.equal(smoothed(G, 0.0), G)


def test_more_smoothing_leaves_less_noise() -> None:
    norms = [float(smoothed(vector(1000), sigma).norm()) for sigma in (0.0, 0.5, 1.0, 3.0, 10.0)]
    assert norms == sorted(norms, reverse=True)
    assert norms[-1] < norms[0] / 2


@pytest.mark.parametrize("smoothing", [-0.1, math.nan, math.inf])
def test_smoothing_out_of_range_is_refused(smoothing: float) -> None:
    with pytest.raises(RecipeError, match=named("laplacian", ["smoothing"])):
        laplacian(smoothing)
