# SPDX-License-Identifier: Apache-2.0
"""Any torch module as a model: rows of gradients by torch.func, or by Opacus' samplers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn
from torch.nn import functional

from dpfed.core.checks import refuse
from dpfed.core.errors import RecipeError
from dpfed.core.rows import Chunks, Dense
from dpfed.core.types import Rows, Unit, Vector
from dpfed.core.vector import Layout, layout_of
from dpfed.data.datasets import Records
from dpfed.data.models import metric_rows, unit_ids


def seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A module whose start follows from the seed alone; the caller's generator stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(scores [k, ...], targets [k]) -> losses [k]."""


def cross_entropy(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Cross-entropy per record: the default loss of a network."""
    return functional.cross_entropy(scores, y, reduction="none")


@dataclass(frozen=True, eq=False)
class Network:
    """Any torch module whose output for a record depends on that record alone.

    ``sampler`` is "func" (torch.func: any module) or "opacus" (its grad samplers: faster for some
    layers, needs the opacus extra). ``chunk`` bounds memory: that many gradients at a time.
    """

    module: nn.Module
    loss: Loss = cross_entropy
    chunk: int = 64
    sampler: str = "func"

    def __post_init__(self) -> None:
        mixing = [
            n or type(m).__name__ for n, m in self.module.named_modules() if isinstance(m, _MIXING)
        ]
        if mixing:
            raise RecipeError(
                f"layer {mixing[0]!r} is a BatchNorm, which mixes records, so that one record's "
                f"gradient is not defined; use GroupNorm or LayerNorm instead"
            )
        if self.sampler not in _SAMPLERS:
            raise refuse("sampler", " or ".join(map(repr, _SAMPLERS)), self.sampler)

    @cached_property
    def layout(self) -> Layout:
        """The trainable parameters; a tied one appears once."""
        return layout_of(self.trainable)

    @property
    def trainable(self) -> dict[str, torch.Tensor]:
        """Names and values of the parameters that are trained."""
        return {n: p.detach() for n, p in self.module.named_parameters() if p.requires_grad}

    def initial(self, seed: int) -> Vector:
        """The values that the module was built with: build it under a seed of your own."""
        del seed
        return self.layout.flatten(self.trainable).clone()

    def problem(self, records: Records) -> NetworkProblem:
        """One client's records under the network."""
        return NetworkProblem(self, records)

    def score(self, params: Vector, x: torch.Tensor) -> torch.Tensor:
        """The module's output at these parameters."""
        out: torch.Tensor = torch.func.functional_call(
            self.module, self.layout.unflatten(params), (x,)
        )
        return out

    @torch.no_grad()
    def judge(self, params: Vector, records: Records) -> tuple[torch.Tensor, torch.Tensor]:
        """Per record: right or not, and the loss."""
        pieces = zip(torch.split(records.x, 512), torch.split(records.y, 512), strict=True)
        judged = [self._judge(self.score(params, x), y) for x, y in pieces]
        correct, losses = zip(*judged, strict=True)
        return torch.cat(correct), torch.cat(losses)

    def _judge(self, scores: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        losses = self.loss(scores, y)
        classes = scores.dim() == 2 and not y.is_floating_point()
        nowhere = torch.full_like(losses, math.nan)
        return (scores.argmax(1) == y).float() if classes else nowhere, losses


_MIXING = (nn.modules.batchnorm._BatchNorm,)


@dataclass(frozen=True, eq=False)
class NetworkProblem:
    """One client's side of a network."""

    model: Network
    records: Records

    @property
    def dimension(self) -> int:
        """The number of trainable parameters."""
        return self.model.layout.size

    def rows(self, params: Vector, unit: Unit) -> Rows:
        """Per-record gradients in chunks; by group, or the client's mean as one row."""
        if unit is Unit.CLIENT:
            return Dense(self.gradient(params)[None])
        groups = self.records.groups
        ids = None if unit is Unit.RECORD else unit_ids(groups, unit, len(self.records))
        gradients = _SAMPLERS[self.model.sampler](self.model, params, self.records)
        return Chunks(
            gradients=gradients, records=len(self.records), size=self.dimension,
            chunk=self.model.chunk, groups=ids,
        )  # fmt: skip

    def gradient(self, params: Vector) -> Vector:
        """The mean gradient over all records, in clear."""
        total = torch.zeros_like(params)
        for index in torch.split(torch.arange(len(self.records)), 512):
            here = params.detach().clone().requires_grad_()
            scores = self.model.score(here, self.records.x[index])
            loss = self.model.loss(scores, self.records.y[index]).sum()
            total += torch.autograd.grad(loss, here)[0]
        return total / max(1, len(self.records))

    def metric_rows(self, params: Vector, unit: Unit, loss_bound: float) -> Rows:
        """Per unit: right or not, and the clipped loss."""
        correct, losses = self.model.judge(params, self.records)
        return metric_rows(correct, losses, self.records.groups, unit, loss_bound)


Gradients = Callable[[torch.Tensor], torch.Tensor]


def _by_func(model: Network, params: Vector, records: Records) -> Gradients:
    """Per-record gradients by vmap over grad."""

    def loss(flat: Vector, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return model.loss(model.score(flat, x[None]), y[None])[0]

    rows = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0), randomness="different")

    def gradients(index: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = rows(params, records.x[index], records.y[index])
        return result.detach()

    return gradients


def _by_opacus(model: Network, params: Vector, records: Records) -> Gradients:
    """Per-record gradients by Opacus' hooks on a private copy of the module."""
    import copy

    try:
        from opacus import GradSampleModule
    except ImportError as error:
        raise RecipeError("sampler 'opacus' needs opacus; pip install 'dpfed[opacus]'") from error
    if len(list(model.module.parameters())) != len(_every_use(model.module)):
        raise RecipeError("the model ties parameters, which Opacus miscounts; use sampler 'func'")
    twin = copy.deepcopy(model.module)
    named = dict(twin.named_parameters())
    with torch.no_grad():
        for name, value in model.layout.unflatten(params).items():
            named[name].copy_(value)
    sampled = GradSampleModule(twin, loss_reduction="sum")

    def gradients(index: torch.Tensor) -> torch.Tensor:
        sampled.zero_grad()
        loss = model.loss(sampled(records.x[index]), records.y[index]).sum()
        with warnings.catch_warnings():  # torch warns that inputs get no gradient, as intended
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            torch.autograd.backward(loss)
        samples: list[torch.Tensor] = [
            getattr(named[n], "grad_sample").flatten(1)  # noqa: B009 (Opacus adds the attribute)
            for n in model.layout.shapes
        ]
        return torch.cat(samples, dim=1).detach()

    return gradients


def _every_use(module: nn.Module) -> list[str]:
    return [name for name, _ in module.named_parameters(remove_duplicate=False)]


_SAMPLERS: dict[str, Callable[[Network, Vector, Records], Gradients]] = {
    "func": _by_func,
    "opacus": _by_opacus,
}
