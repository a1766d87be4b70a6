# SPDX-License-Identifier: Apache-2.0
"""States as trees: NamedTuples, tuples and dicts of tensors and numbers, in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from dpfed.core.errors import DataError
from dpfed.core.types import State

_WAY_OUT = "resume with the recipe that the training was begun with, or begin a new training"


def leaves(tree: State) -> list[Any]:
    """Tensors and numbers of a state, in order."""
    found: list[Any] = []
    mapped(tree, found.append)
    return found


def split_state(tree: State) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """The tensors and the numbers of a state, each by its place: what files hold."""
    found = dict(enumerate(leaves(tree)))
    tensors = {str(i): x.contiguous() for i, x in found.items() if isinstance(x, torch.Tensor)}
    numbers = {str(i): x for i, x in found.items() if not isinstance(x, torch.Tensor)}
    return tensors, numbers


def join_state(
    template: State, tensors: Mapping[str, torch.Tensor], numbers: Mapping[str, float]
) -> State:
    """A state of the template's form from the two parts of ``split_state``.

    Args:
        template: a state of the same form: what a new run begins with.
        tensors: the tensors, by place.
        numbers: the numbers, by place.
    """
    places = (str(i) for i in range(len(leaves(template))))
    found = (tensors[i] if i in tensors else numbers[i] for i in places)
    try:
        return mapped(template, lambda leaf: _alike(leaf, next(found)))
    except KeyError as error:
        raise DataError(f"a stored state has no leaf {error}; {_WAY_OUT}") from error


def _alike(leaf: Any, found: Any) -> Any:
    """The value found, if it has the leaf's type and shape: torch would broadcast a wrong shape."""
    if isinstance(found, torch.Tensor) and isinstance(leaf, torch.Tensor):
        if found.shape == leaf.shape or found.dtype == leaf.dtype == torch.uint8:
            return found  # bytes, such as a sum's secret, may have any length
    elif isinstance(found, int | float) and not isinstance(leaf, torch.Tensor):
        return found
    raise DataError(f"a stored state has a leaf of another type or shape; {_WAY_OUT}")


def mapped(tree: State, change: Callable[[Any], Any]) -> State:
    """A tree of the same form, with each leaf changed."""
    if isinstance(tree, dict):
        return {name: mapped(tree[name], change) for name in sorted(tree)}
    if isinstance(tree, tuple):
        parts = [mapped(part, change) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    if isinstance(tree, torch.Tensor | int | float):
        return change(tree)
    raise DataError(
        f"a state must hold tensors and numbers only, got {type(tree).__name__}; keep them in "
        f"tuples or dicts"
    )
