# SPDX-License-Identifier: Apache-2.0
"""Laws of server optimizers and of rows, for plug-ins of this package and of others.

A law of optimizers takes the name in a recipe, and raises AssertionError with one sentence if the
optimizer breaks it. In a test of your own package:

    @pytest.mark.parametrize("law", SERVER_LAWS)
    def test_law(law):
        law("yours")

What they check: an optimizer builds with no arguments, keeps shape and dtype, writes to nothing
that it was given, is finite at zero, gives equal updates for equal aggregates (so it is
post-processing and costs no privacy), fits into a chain, and its buffer-reusing path gives the same
bits.

A law of rows takes rows that are made of ``hostile_vectors``, whatever a record or a server could
have sent, and one of ``HOSTILE_CLIPS``: no unit adds more than the bound that its rows state, and
none that takes its place moves a sum by more than the ``replace_bound``, in exact arithmetic.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from typing import Any

import torch

from dpfed.core import registry
from dpfed.core.chain import chain
from dpfed.core.rows import UnitRows
from dpfed.core.types import Aggregate, Rows, ServerOptimizer, Vector
from dpfed.core.vector import BLOCK

Law = Callable[[str], None]
DTYPES = (torch.float32, torch.float64)


def builds_with_no_arguments(name: str) -> None:
    """Every option has a default."""
    _build(name)


def keeps_shape_and_dtype(name: str) -> None:
    """The direction has the shape and dtype of the aggregate, and is finite."""
    for dtype in DTYPES:
        for given, got in _walk(_build(name), 7, 3, dtype):
            _hold(got.shape == given.shape, name, f"made {tuple(got.shape)} of 7 numbers")
            _hold(got.dtype == dtype, name, f"made {got.dtype} of {dtype}")
            _hold(bool(torch.isfinite(got).all()), name, "gave a direction that is not finite")


def is_pure(name: str) -> None:
    """``update`` writes neither to the direction nor to the state, and has no memory of its own."""
    optimizer, params = _build(name), torch.zeros(9)
    state = optimizer.init(params)
    for t, G in enumerate(_directions(9, 3)):
        before = copy.deepcopy((G, state))
        first, after = optimizer.update(G, state, _seen(t, params, G))
        again, _ = optimizer.update(G, state, _seen(t, params, G))
        _hold(torch.equal(first, again), name, "gave two directions for one update")
        _hold(_same((G, state), before), name, "wrote to its direction or state in update")
        state = after


def is_finite_at_zero(name: str) -> None:
    """A round without any signal gives a finite direction."""
    optimizer, params = _build(name), torch.zeros(5)
    state = optimizer.init(params)
    for t in range(3):
        G = torch.zeros(5)
        direction, state = optimizer.update(G, state, _seen(t, params, G))
        _hold(bool(torch.isfinite(direction).all()), name, "is not finite where the mean is zero")


def is_post_processing(name: str) -> None:
    """Equal aggregates give equal updates: they depend on nothing else."""
    runs = [[got for _, got in _walk(_build(name), 6, 5)] for _ in range(2)]
    _hold(_same(*runs), name, "gave different directions for equal aggregates")


def fits_into_a_chain(name: str) -> None:
    """In a chain, the optimizer gives the same direction, and the next link takes it."""
    half = registry.build("server", "scale", {"rate": 0.5})
    alone, chained = _walk(_build(name), 6, 3), _walk(chain(_build(name), half), 6, 3)
    for (_, one), (_, both) in zip(alone, chained, strict=True):
        _hold(torch.equal(both, one * 0.5), name, "gave another direction in a chain")


def reuses_buffers_to_the_bit(name: str) -> None:
    """``update_``, if there is one, gives the bits of ``update``, at sizes around a block."""
    optimizer = _build(name)
    if optimizer.update_ is None:
        return
    for size in (1, 13, BLOCK, 2 * BLOCK + 17):
        for dtype in DTYPES:
            _compare_paths(name, optimizer, size, dtype)


def _compare_paths(name: str, optimizer: ServerOptimizer, size: int, dtype: torch.dtype) -> None:
    params = torch.zeros(size, dtype=dtype)
    pure, reusing = optimizer.init(params), optimizer.init(params)
    reuse = optimizer.update_ or optimizer.update
    for t, G in enumerate(_directions(size, 4, dtype)):
        seen = _seen(t, params, G)
        expected, pure = optimizer.update(G, pure, seen)
        got, reusing = reuse(G.clone(), reusing, seen)
        same = torch.equal(expected, got) and _same(pure, reusing)
        _hold(same, name, f"differs between update and update_ at {size} numbers of {dtype}")


SERVER_LAWS: tuple[Law, ...] = (
    builds_with_no_arguments,
    keeps_shape_and_dtype,
    is_pure,
    is_finite_at_zero,
    is_post_processing,
    fits_into_a_chain,
    reuses_buffers_to_the_bit,
)


# --------------------------------------------------------------------------------------- rows

HOSTILE = (
    math.nan,
    math.inf,
    -math.inf,
    0.0,
    5e-324,
    1e-310,
    1e-200,
    1e-60,
    1e-45,
    1e-38,
    1e-15,
    0.6,
    1.0,
    1e5,
    1e8,
    1e18,
    1e37,
    3e38,
    1e60,
    1e160,
    1e300,
    1.7e308,
)
"""Numbers of every magnitude that a server, a file or a record may choose."""

HOSTILE_CLIPS = (2.0**-300, 1e-30, 0.7, 1e30, 2.0**300)


def hostile_vectors(size: int, dtype: torch.dtype) -> Iterator[Vector]:
    """Vectors of each hostile number: everywhere, at one place, falling off; then mixtures."""
    falling = torch.linspace(1.0, -0.5, size, dtype=torch.float64)
    for value in HOSTILE:
        throughout = torch.full((size,), value, dtype=torch.float64)
        alone = torch.ones(size, dtype=torch.float64)
        alone[0] = value
        yield from (each.to(dtype) for each in (throughout, alone, throughout * falling))
    finite = [value for value in HOSTILE if math.isfinite(value)]
    for start in range(len(finite)):
        mixed = [finite[(start + 7 * k) % len(finite)] for k in range(size)]
        yield torch.tensor(mixed, dtype=torch.float64).to(dtype)


def unit_keeps_its_bound(rows: Rows, clip: float) -> float:
    """The norm of one unit's clipped sum, over ``bound``; AssertionError above 1."""
    made = rows.clipped_sum(clip)
    reached = _ratio(made.vector, made.bound, f"a unit's {type(rows).__name__} row")
    if isinstance(rows, UnitRows):
        for row in (row for block in rows.clipped_rows(clip) for row in block):
            _ratio(row, clip, f"a {type(rows).__name__} row that is made alone")
    return reached


def exchange_keeps_its_bound(one: Rows, other: Rows, clip: float) -> float:
    """The distance of two sums whose rows differ in one unit, over ``replace_bound``, at most 1.

    Args:
        one: the rows of a client.
        other: the same with another unit in the place of one of them.
        clip: the bound of a row's norm, above 0.
    """
    made, instead = one.clipped_sum(clip), other.clipped_sum(clip)
    whose = f"an exchanged {type(one).__name__} row"
    return _ratio(made.vector, made.replace_bound, whose, instead.vector)


def absence_keeps_its_bound(whole: Rows, rest: Rows, clip: float) -> float:
    """The distance of two sums, one of them without a unit, over ``bound``, at most 1.

    Args:
        whole: the rows of a client.
        rest: the same without one of the units; the others may have moved up.
        clip: the bound of a row's norm, above 0.
    """
    made, without = whole.clipped_sum(clip), rest.clipped_sum(clip)
    whose = f"an absent {type(whole).__name__} row"
    return _ratio(made.vector, made.bound, whose, without.vector)


def _ratio(vector: Iterable[Any], bound: float, whose: str, other: Vector | None = None) -> float:
    """The norm over the bound; in exact arithmetic, unless it is clearly below."""
    given = [float(value) for value in vector]
    taken = [0.0] * len(given) if other is None else other.tolist()
    pairs = list(zip(given, taken, strict=True))
    near = math.hypot(*(here - there for here, there in pairs)) / bound
    if near < 1 - 2.0**-40:
        return near
    squared = sum((Fraction(here) - Fraction(there)) ** 2 for here, there in pairs)
    ratio = math.sqrt(squared / Fraction(bound) ** 2)
    if squared > Fraction(bound) ** 2:
        raise AssertionError(f"{whose} has {ratio} times the bound of {bound}")
    return ratio


# ------------------------------------------------------------------------------ of the optimizers


def _build(name: str) -> ServerOptimizer:
    built = registry.build("server", name, {})
    _hold(isinstance(built, ServerOptimizer), name, f"is a {type(built).__name__}")
    return built  # type: ignore[no-any-return]


def _hold(lawful: bool, name: str, breach: str) -> None:
    if not lawful:
        raise AssertionError(f"the server optimizer {name!r} {breach}")


def _walk(
    optimizer: ServerOptimizer, size: int, rounds: int, dtype: torch.dtype = torch.float32
) -> Iterator[tuple[Vector, Vector]]:
    """The mean and the direction of each round."""
    params = torch.zeros(size, dtype=dtype)
    state = optimizer.init(params)
    for t, G in enumerate(_directions(size, rounds, dtype)):
        direction, state = optimizer.update(G, state, _seen(t, params, G))
        yield G, direction


def _seen(round: int, params: Vector, mean: Vector) -> Aggregate:
    return Aggregate(round, params, mean, std=0.1, clients=5, rounds=20, clip=2.0)


def _directions(
    size: int, rounds: int, dtype: torch.dtype = torch.float32
) -> Iterator[torch.Tensor]:
    """Public test vectors, without a generator: irregular, of both signs, never zero."""
    for t in range(rounds):
        at = torch.arange(1, size + 1, dtype=torch.float64)
        yield (torch.sin(at * (t + 1) * 12.9898) * 1.7 + 0.01).to(dtype)


def _same(one: Any, other: Any) -> bool:
    """Whether all tensors of two states are equal, bit for bit."""
    pairs = zip(_tensors(one), _tensors(other), strict=True)
    return all(torch.equal(here, there) for here, there in pairs)


def _tensors(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, tuple | list):
        return [found for part in tree for found in _tensors(part)]
    return []
