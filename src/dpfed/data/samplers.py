# SPDX-License-Identifier: Apache-2.0
"""Per-record gradients that are materialised: by torch.func, by Opacus, or one by one.

    func      vmap over grad: all records of a chunk at once, any module that vmap can go through
    opacus    Opacus' grad samplers, on a private copy of the module (needs the opacus extra)
    alone     one record at a time through autograd: any module; slow, and the oracle of the others

``layer_hooks.py`` has the factors for ghost clipping, which materialises no gradient.

Guarantee: a record that makes a module or a loss raise has a zero row, and the rows of others are
as ever, to the last bit: records are computed in whole blocks, empty ones after the last, in one
thread.
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import nn

from dpfed.core.errors import RecipeError, failures
from dpfed.core.extras import require_extra
from dpfed.core.log import log, places
from dpfed.core.types import Vector
from dpfed.core.vector import Layout, one_thread
from dpfed.data.batches import Batch

PerRecord = Callable[[Batch], torch.Tensor]
"""A batch of k records -> one row per record, [k, size]."""

BLOCK = 64
"""A block of records is a multiple of this long, whatever a user, a recipe or terms ask for.

torch computes the last numbers of a tensor, where they fill no vector register, by another function
than the rest (up to 64 numbers are computed at a time). In blocks of 7 records, SiLU of a number
had other bits at a block's end: one record more moved all others to other places, and parameters
that a server chose made that bit decide their rows (60 clips where 1 was accounted for).
"""


def whole(records: int) -> int:
    """The length of a block for so many records: up to the next multiple of ``BLOCK``."""
    return -(-records // BLOCK) * BLOCK


class ScoredNetwork(Protocol):
    """What the samplers need of a network."""

    @property
    def module(self) -> nn.Module:
        """What is trained."""

    @property
    def layout(self) -> Layout:
        """The layout of the flat parameters."""

    def placed(self, params: Vector) -> Vector:
        """Parameters where the module computes."""

    def losses(self, params: Vector, batch: Batch) -> torch.Tensor:
        """One loss per record."""

    def losses_at(self, named: Mapping[str, torch.Tensor], batch: Batch) -> torch.Tensor:
        """One loss per record, at these parameters by name."""

    def losses_of(self, module: nn.Module, batch: Batch) -> torch.Tensor:
        """One loss per record, of a copy of the module."""


def in_blocks(compute: PerRecord, block: int, empty: Batch) -> PerRecord:
    """``compute`` on whole blocks, filled up with empty records, so that other records' bits stay.

    A person's records are computed apart from all others, and need no filling.

    Args:
        compute: what makes one row per record.
        block: how many records are computed at a time.
        empty: one made-up record.
    """

    def gradients(batch: Batch) -> torch.Tensor:
        size = -(-len(batch) // block) * block
        return compute(batch.filled(size, empty))[: len(batch)]

    return gradients


@one_thread()
def forgiving(compute: PerRecord, batch: Batch, empty: Batch) -> torch.Tensor:
    """One row per record; zero for a record that makes ``compute`` raise, or is not usable.

    The others are computed again with made-up records in the place of those: in a batch of the
    same size their bits are the same.

    Args:
        compute: what makes one row per record.
        batch: the records.
        empty: one made-up record.
    """
    try:
        made = compute(batch)
    except failures():
        fails = failing(compute, batch)
        made = compute(batch.without(fails, empty))
        made[fails] = 0
    if batch.usable is not None:
        made[~batch.usable] = 0
    return made


def failing(compute: Callable[[Batch], Any], batch: Batch) -> torch.Tensor:
    """Which records make ``compute`` raise on their own, bool [k]: it raised on all of them."""
    alone = [fails(compute, batch[i : i + 1]) for i in range(len(batch))]
    why = places(sys.exception())
    log.error("%d of %d records failed; they are ignored: %s", sum(alone), len(batch), why)
    return torch.tensor(alone, dtype=torch.bool)


def fails(compute: Callable[[Batch], Any], batch: Batch) -> bool:
    """Whether ``compute`` raises."""
    try:
        compute(batch)
    except failures():
        return True
    return False


# ------------------------------------------------------------------------------------ the samplers


def by_func(model: ScoredNetwork, params: Vector) -> PerRecord:
    """Per-record gradients by vmap over grad."""
    params = model.placed(params)

    def gradients(batch: Batch) -> torch.Tensor:
        def loss(flat: Vector, record: Mapping[str, torch.Tensor]) -> torch.Tensor:
            return model.losses(flat, batch.like({n: t[None] for n, t in record.items()}))[0]

        rows = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0), randomness="different")
        with warnings.catch_warnings():  # torch warns of operations that it loops over
            warnings.filterwarnings("ignore", message="There is a performance drop")
            result: torch.Tensor = rows(params, batch.tensors())
        return result.detach().cpu()

    return gradients


def by_itself(model: ScoredNetwork, params: Vector) -> PerRecord:
    """Per-record gradients, one record after the other: whatever autograd can go through."""
    params = model.placed(params).detach().clone().requires_grad_()

    def gradients(batch: Batch) -> torch.Tensor:
        made = [_gradient(model, params, batch[i : i + 1]) for i in range(len(batch))]
        return torch.stack(made).cpu() if made else params.new_zeros(0, params.numel())

    return gradients


def _gradient(model: ScoredNetwork, params: Vector, record: Batch) -> Vector:
    found: Vector = torch.autograd.grad(model.losses(params, record).sum(), params)[0]
    return found


def by_opacus(model: ScoredNetwork, params: Vector) -> PerRecord:
    """Per-record gradients by Opacus' hooks on a private copy of the module."""
    if any(each in _tied(model.module) for each in model.layout.shapes):
        raise RecipeError("the model ties parameters, which Opacus miscounts; use sampler 'func'")
    sampled = _hooked(model, params)

    def gradients(batch: Batch) -> torch.Tensor:
        nonlocal sampled
        sampled.zero_grad()
        try:
            _backward(model.losses_of(sampled, batch).sum())
        except failures():  # the hooks still hold what the unfinished pass has left
            sampled = _hooked(model, params)
            raise
        named = dict(sampled._module.named_parameters())
        samples: list[torch.Tensor] = [
            getattr(named[n], "grad_sample").flatten(1)  # noqa: B009 (Opacus adds the attribute)
            for n in model.layout.shapes
        ]
        return torch.cat(samples, dim=1).detach().cpu()

    return gradients


def _tied(module: nn.Module) -> set[str]:
    """Names of trainable parameters that are in the module twice; frozen ones have no gradient."""
    names: dict[int, list[str]] = {}
    for name, each in module.named_parameters(remove_duplicate=False):
        if each.requires_grad:
            names.setdefault(id(each), []).append(name)
    return {name for found in names.values() if len(found) > 1 for name in found}


def _hooked(model: ScoredNetwork, params: Vector) -> Any:
    """A copy of the module at these parameters, with Opacus' hooks: they work in train() only."""
    with require_extra("opacus", "sampler 'opacus'"):
        from opacus import GradSampleModule
    twin = copy.deepcopy(model.module)
    named = dict(twin.named_parameters())
    with torch.no_grad():
        for name, value in model.layout.unflatten(params).items():
            named[name].copy_(value)
    for layer in twin.modules():  # its hooks see layers in train() only; these have no other mode
        if any(p.requires_grad for p in layer.parameters(recurse=False)):
            layer.training = True
    return GradSampleModule(twin, loss_reduction="sum")


def _backward(loss: torch.Tensor) -> None:
    with warnings.catch_warnings():  # torch warns that inputs get no gradient, as intended
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        torch.autograd.backward(loss)


SAMPLERS: dict[str, Callable[[Any, Vector], PerRecord]] = {
    "func": by_func,
    "opacus": by_opacus,
    "alone": by_itself,
}
