# SPDX-License-Identifier: Apache-2.0
"""Laws of server optimizers, over all that the registry finds."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from dpfed import registry
from dpfed.compose import chain
from dpfed.types import Aggregate, ServerOptimizer
from dpfed.vector import BLOCK

OPTIMIZERS = list(registry.names("server"))


def aggregate(round: int, params: torch.Tensor, mean: torch.Tensor) -> Aggregate:
    return Aggregate(round, params, mean, std=0.1, clients=5)


def directions(size: int, rounds: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(size)
    return [torch.randn(size, generator=generator, dtype=dtype) for _ in range(rounds)]


def tensors(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, tuple | list):
        return [t for part in tree for t in tensors(part)]
    return []


@pytest.fixture(params=OPTIMIZERS)
def optimizer(request: pytest.FixtureRequest) -> ServerOptimizer:
    """Builds with no arguments: itself a law."""
    built = registry.build("server", request.param, {})
    assert isinstance(built, ServerOptimizer)
    return built


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shape_and_dtype_are_kept(optimizer: ServerOptimizer, dtype: torch.dtype) -> None:
    params = torch.zeros(7, dtype=dtype)
    state = optimizer.init(params)
    for round, G in enumerate(directions(7, 3, dtype)):
        direction, state = optimizer.update(G, state, aggregate(round, params, G))
        assert direction.shape == G.shape
        assert direction.dtype == dtype
        assert bool(torch.isfinite(direction).all())


def test_update_is_pure(optimizer: ServerOptimizer) -> None:
    params = torch.zeros(9)
    state = optimizer.init(params)
    for round, G in enumerate(directions(9, 3, torch.float32)):
        before = copy.deepcopy((G, state))
        first, after = optimizer.update(G, state, aggregate(round, params, G))
        again, _ = optimizer.update(G, state, aggregate(round, params, G))
        assert torch.equal(first, again)
        for now, then in zip(tensors((G, state)), tensors(before), strict=True):
            assert torch.equal(now, then)
        state = after


def test_zero_gives_a_finite_direction(optimizer: ServerOptimizer) -> None:
    params = torch.zeros(5)
    state = optimizer.init(params)
    for round in range(3):
        direction, state = optimizer.update(
            torch.zeros(5), state, aggregate(round, params, torch.zeros(5))
        )
        assert bool(torch.isfinite(direction).all())


@pytest.mark.parametrize("size", [1, 13, BLOCK, 2 * BLOCK + 17])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_buffer_reusing_path_gives_the_same_bits(
    optimizer: ServerOptimizer, size: int, dtype: torch.dtype
) -> None:
    if optimizer.update_ is None:
        pytest.skip("has no buffer-reusing path")
    params = torch.zeros(size, dtype=dtype)
    pure, reusing = optimizer.init(params), optimizer.init(params)
    for round, G in enumerate(directions(size, 4, dtype)):
        seen = aggregate(round, params, G)
        expected, pure = optimizer.update(G, pure, seen)
        got, reusing = optimizer.update_(G.clone(), reusing, seen)
        assert torch.equal(expected, got)
        for one, other in zip(tensors(pure), tensors(reusing), strict=True):
            assert torch.equal(one, other)


def test_equal_aggregates_give_equal_updates(optimizer: ServerOptimizer) -> None:
    """Preconditioning is post-processing: nothing but the aggregate enters."""
    params = torch.ones(6)
    runs = []
    for _ in range(2):
        state = optimizer.init(params)
        for round, G in enumerate(directions(6, 5, torch.float32)):
            direction, state = optimizer.update(G, state, aggregate(round, params, G))
        runs.append(direction)
    assert torch.equal(*runs)


def test_a_chain_is_its_links_one_after_the_other(optimizer: ServerOptimizer) -> None:
    half = registry.build("server", "scale", {"rate": 0.5})
    both = chain(optimizer, half)
    params = torch.zeros(6)
    state, inner = both.init(params), optimizer.init(params)
    for round, G in enumerate(directions(6, 3, torch.float32)):
        seen = aggregate(round, params, G)
        got, state = both.update(G, state, seen)
        expected, inner = optimizer.update(G, inner, seen)
        assert torch.equal(got, expected * 0.5)
