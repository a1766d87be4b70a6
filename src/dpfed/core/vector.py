# SPDX-License-Identifier: Apache-2.0
"""Flat vectors: to and from named tensors, and arithmetic in blocks that stay in cache.

A server step reads and writes each long vector a few times. Done block by block, the later passes
hit the cache, and the temporaries are a block long whatever the model's size.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import torch

from dpfed.core.errors import DataError, RecipeError
from dpfed.core.types import Vector

BLOCK = 1 << 16
"""Elements in a block: 256 KiB of float32, so a few vectors' blocks fit in a core's cache."""


@dataclass(frozen=True)
class Layout:
    """The names and shapes of a model's parameters, in the order in which they lie in a vector."""

    shapes: Mapping[str, tuple[int, ...]]
    trained_by: str = field(default="", compare=False, repr=False)
    """The client algorithm that brings this model (``OwnModel``); "" is a model for any."""

    @cached_property
    def size(self) -> int:
        """The length of the flat vector."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def flatten(self, tensors: Mapping[str, torch.Tensor]) -> Vector:
        """Named tensors as one flat vector."""
        wrong = [n for n, s in self.shapes.items() if n not in tensors or tensors[n].shape != s]
        if wrong or len(tensors) != len(self.shapes):
            raise DataError(
                f"tensors {sorted(tensors)} do not fit the layout {dict(self.shapes)}; "
                f"check the names and shapes of {wrong or 'the extra tensors'}"
            )
        return torch.cat([tensors[name].reshape(-1) for name in self.shapes])

    def unflatten(self, vector: Vector) -> dict[str, torch.Tensor]:
        """The flat vector as named views of itself."""
        if vector.shape != (self.size,):
            raise DataError(
                f"the vector must have shape ({self.size},), got {tuple(vector.shape)}; give the "
                f"parameters of the same model"
            )
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        parts = torch.split(vector, sizes)
        return {n: p.view(s) for (n, s), p in zip(self.shapes.items(), parts, strict=True)}


@dataclass(frozen=True)
class Head:
    """The shape of a model that is one linear layer; a bias is one more input, equal to 1."""

    outputs: int
    inputs: int
    bias: bool


def head_of(layout: Layout | None, method: str) -> Head:
    """The linear layer that a layout is, for a method that needs one."""
    shapes = {} if layout is None else dict(layout.shapes)
    weight = shapes.pop("weight", ())
    bias = shapes.pop("bias", None)
    if len(weight) != 2 or shapes or bias not in (None, weight[:1]):
        raise RecipeError(
            f"{method} needs a model of one linear layer with a known layout (weight, bias), got "
            f"{None if layout is None else dict(layout.shapes)}; use softmax, logistic or poisson"
        )
    return Head(weight[0], weight[1] + (bias is not None), bias is not None)


def layout_of(tensors: Mapping[str, torch.Tensor]) -> Layout:
    """The layout of named tensors."""
    return Layout({name: tuple(tensor.shape) for name, tensor in tensors.items()})


def blocks(size: int) -> Iterator[slice]:
    """Slices that cover ``size`` elements, each at most ``BLOCK`` long."""
    for start in range(0, size, BLOCK):
        yield slice(start, min(start + BLOCK, size))


def dot(left: Vector, right: Vector) -> float:
    """The inner product, block by block, the blocks summed in double precision."""
    return math.fsum(float(torch.dot(left[part], right[part])) for part in blocks(left.numel()))


class _Threads(threading.local):
    before: int | None = None
    """The number of threads before the outermost ``one_thread``."""


_threads = _Threads()


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread in our own arithmetic: sums then round the same way on every run.

    Also a decorator, ``@one_thread()``: with several threads the bits of a record may depend on how
    many other records there are, as work is shared out by their number.
    """
    before, outer = torch.get_num_threads(), _threads.before
    _threads.before = before if outer is None else outer
    if before != 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)
        _threads.before = outer


Piece = TypeVar("Piece")
Made = TypeVar("Made")


def side_by_side(
    work: Callable[[Piece], Made], pieces: Iterable[Piece], watch: Callable[[Made], None]
) -> None:
    """The results of ``work`` on each piece, in order: each in one thread, several at a time.

    As many at a time as the caller has torch threads, so that all cores are used, and the bits of a
    piece depend on no other. Gradients are not taken.

    Args:
        work: a function of one piece, which other pieces do not change.
        pieces: what it is called with; those of one shape give the same bits at any place.
        watch: called with each result, in the order of the pieces.
    """
    count = _threads.before or torch.get_num_threads()

    def alone(piece: Piece) -> Made:
        with torch.no_grad():
            return work(piece)

    with (
        one_thread(),
        ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) as pool,
    ):
        ahead: deque[Future[Made]] = deque()
        for piece in pieces:
            ahead.append(pool.submit(alone, piece))
            if len(ahead) > count:
                watch(ahead.popleft().result())
        for left in ahead:
            watch(left.result())


@contextmanager
def users_threads() -> Iterator[None]:
    """Restore the user's number of threads around their own function, inside of ``one_thread``."""
    inside = torch.get_num_threads()
    torch.set_num_threads(_threads.before or inside)
    try:
        yield
    finally:
        torch.set_num_threads(inside)
