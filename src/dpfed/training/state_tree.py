# SPDX-License-Identifier: Apache-2.0
"""States as trees: NamedTuples, tuples and dicts of tensors and numbers, in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from dpfed.core.errors import DataError
from dpfed.core.types import State


def leaves(tree: State) -> list[Any]:
    """Tensors and numbers of a state, in order."""
    found: list[Any] = []
    mapped(tree, found.append)
    return found


def rebuilt(template: State, flat: Iterable[Any]) -> State:
    """A state of the template's form with other leaves."""
    found = iter(flat)
    return mapped(template, lambda leaf: _alike(leaf, next(found)))


def _alike(leaf: Any, found: Any) -> Any:
    """What was found, if it can stand where the leaf stood: a wrong shape would be broadcast."""
    if isinstance(found, torch.Tensor) and isinstance(leaf, torch.Tensor):
        if found.shape == leaf.shape or found.dtype == leaf.dtype == torch.uint8:
            return found  # bytes, such as a sum's secret, may be as many as they like
    elif isinstance(found, int | float) and not isinstance(leaf, torch.Tensor):
        return found
    raise DataError("a stored state has a leaf of another type or shape; was the method changed?")


def mapped(tree: State, change: Callable[[Any], Any]) -> State:
    """The same tree with each leaf changed."""
    if isinstance(tree, dict):
        return {name: mapped(tree[name], change) for name in sorted(tree)}
    if isinstance(tree, tuple):
        parts = [mapped(part, change) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    if isinstance(tree, torch.Tensor | int | float):
        return change(tree)
    raise DataError(f"a state may hold tensors and numbers, not {type(tree).__name__}")
