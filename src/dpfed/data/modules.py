# SPDX-License-Identifier: Apache-2.0
"""Any torch module as a model: rows of gradients by torch.func, or by Opacus' samplers.

Guarantee: no value of a record makes rows or metrics raise: a record that fails has a zero row and
a zero metric, and the others' are as ever, to the last bit. Module and loss are tried on made-up
records first. What a trial cannot prove stays the user's word: that the output and the loss of a
record depend on that record alone, and that the module keeps nothing of it.

| edge case                                            | what happens                           |
|------------------------------------------------------|----------------------------------------|
| a loss that reduces over the batch                   | RecipeError when the network is made   |
| a loss that is not one value per record              | RecipeError when a problem is made     |
| a module or loss that fails on made-up records       | RecipeError when a problem is made     |
| made-up records that move each other's loss or row   | RecipeError, at the first rows at last |
| a record on which the module or the loss raises      | zero row, zero metric, a line in the   |
|                                                      | local log                              |
| unit client: the same                                | the client's one row is zero           |
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from dpfed.core.checks import refuse
from dpfed.core.errors import DpfedError, RecipeError
from dpfed.core.log import log
from dpfed.core.rows import Chunks, Dense
from dpfed.core.types import Rows, Unit, Vector
from dpfed.core.vector import Layout, layout_of
from dpfed.data._checks import first_sentence
from dpfed.data.datasets import Records
from dpfed.data.models import made_up, metric_rows, say_unknown, unit_ids, whole_blocks


def seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A module whose start follows from the seed alone; the caller's generator stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(scores [k, ...], targets [k]) -> losses [k]."""


def cross_entropy(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Cross-entropy per record: the default loss of a network; 0 where the label is ``IGNORED``."""
    return functional.cross_entropy(scores, y, reduction="none", ignore_index=IGNORED)


IGNORED = -100
"""The label of records that count for nothing, as torch has it."""


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
        if getattr(self.loss, "reduction", "none") != "none" or _reduces(self.loss):
            raise _not_per_record(self.loss, "one number for all")

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
        """One client's records under the network; module and loss are tried on made-up ones."""
        outputs = self._once(_try_losses, records)
        if self.loss is cross_entropy and not records.y.is_floating_point():
            known = (records.y >= 0) & (records.y < outputs)
            say_unknown(known)
            records = replace(records, y=torch.where(known, records.y, IGNORED))
        return NetworkProblem(self, records)

    def _once(self, trial: Callable[[Network, Records], int], like: Records) -> int:
        """Try the module on made-up records of a shape and type, unless that was done before."""
        key = (trial.__name__, like.x.shape[1:], like.y.shape[1:], like.y.dtype)
        if key not in self._tried:
            self._tried[key] = trial(self, _made_up(like))
        return self._tried[key]

    @cached_property
    def _tried(self) -> dict[object, int]:
        return {}

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
        compute = _in_blocks(lambda x, y: self._judge(self.score(params, x), y), 64)
        judged = [_forgiving(compute, x, y) for x, y in pieces]
        correct, losses = torch.cat(judged).unbind(dim=1)
        return correct, losses

    def _judge(self, scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Right or not, and the loss, [records, 2]."""
        losses = self.loss(scores, y)
        classes = scores.dim() == 2 and not y.is_floating_point()
        nowhere = torch.full_like(losses, math.nan)
        right = (scores.argmax(1) == y).to(losses) if classes else nowhere
        return torch.stack([right, losses], dim=1)


_CLASSES = 64  # of which each is tried as a label that might weigh on others

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

    def made_up(self) -> NetworkProblem:
        """The same on made-up records, on which a round is tried before it touches data."""
        return NetworkProblem(self.model, _made_up(self.records))

    def rows(self, params: Vector, unit: Unit) -> Rows:
        """Per-record gradients in chunks; by group, or the client's mean as one row."""
        if unit is Unit.CLIENT:
            return Dense(self.gradient(params)[None])
        groups = self.records.groups
        ids = None if unit is Unit.RECORD else unit_ids(groups, unit, len(self.records))
        self.model._once(_try_rows, self.records)
        rows = _SAMPLERS[self.model.sampler](self.model, params)
        rows = rows if ids is not None else _in_blocks(rows, self.model.chunk)
        x, y = self.records.x, self.records.y
        return Chunks(
            gradients=lambda index: _forgiving(rows, x[index], y[index]),
            records=len(self.records), size=self.dimension, chunk=self.model.chunk, groups=ids,
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


PerRecord = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(x [k, ...], y [k, ...]) -> one row per record, [k, size]."""


def _in_blocks(compute: PerRecord, block: int) -> PerRecord:
    """The same of whole blocks, empty records at the end: other records' bits stay as they are.

    A person's records are computed beside nobody else's, and need it not.
    """

    def gradients(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return compute(whole_blocks(x, block), whole_blocks(y, block))[: len(x)]

    return gradients


def _forgiving(compute: PerRecord, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One row per record; zero for a record that makes ``compute`` raise.

    The others are computed again beside made-up records in the place of those: in a batch of the
    same size their bits are the same.
    """
    try:
        return compute(x, y)
    except Exception:
        alone = [_fails(compute, x[i : i + 1], y[i : i + 1]) for i in range(len(x))]
        fails = torch.tensor(alone, dtype=torch.bool)
        log.exception("%d of %d records failed; they count for nothing", int(fails.sum()), len(x))
    x, y = x.clone(), y.clone()
    x[fails], y[fails] = 0, 0
    made = compute(x, y)
    made[fails] = 0
    return made


def _fails(compute: PerRecord, x: torch.Tensor, y: torch.Tensor) -> bool:
    try:
        compute(x, y)
    except Exception:
        return True
    return False


def _by_func(model: Network, params: Vector) -> PerRecord:
    """Per-record gradients by vmap over grad."""

    def loss(flat: Vector, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return model.loss(model.score(flat, x[None]), y[None])[0]

    rows = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0), randomness="different")

    def gradients(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = rows(params, x, y)
        return result.detach()

    return gradients


def _by_opacus(model: Network, params: Vector) -> PerRecord:
    """Per-record gradients by Opacus' hooks on a private copy of the module."""
    if len(list(model.module.parameters())) != len(_every_use(model.module)):
        raise RecipeError("the model ties parameters, which Opacus miscounts; use sampler 'func'")
    sampled = _hooked(model, params)

    def gradients(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        nonlocal sampled
        sampled.zero_grad()
        try:
            _backward(model.loss(sampled(x), y).sum())
        except Exception:  # the hooks would go on with what an unfinished pass has left
            sampled = _hooked(model, params)
            raise
        named = dict(sampled._module.named_parameters())
        samples: list[torch.Tensor] = [
            getattr(named[n], "grad_sample").flatten(1)  # noqa: B009 (Opacus adds the attribute)
            for n in model.layout.shapes
        ]
        return torch.cat(samples, dim=1).detach()

    return gradients


def _hooked(model: Network, params: Vector) -> Any:
    """A copy of the module at these parameters, with Opacus' hooks."""
    try:
        from opacus import GradSampleModule
    except ImportError as error:
        raise RecipeError("sampler 'opacus' needs opacus; pip install 'dpfed[opacus]'") from error
    twin = copy.deepcopy(model.module)
    named = dict(twin.named_parameters())
    with torch.no_grad():
        for name, value in model.layout.unflatten(params).items():
            named[name].copy_(value)
    return GradSampleModule(twin, loss_reduction="sum")


def _backward(loss: torch.Tensor) -> None:
    with warnings.catch_warnings():  # torch warns that inputs get no gradient, as intended
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        torch.autograd.backward(loss)


def _every_use(module: nn.Module) -> list[str]:
    return [name for name, _ in module.named_parameters(remove_duplicate=False)]


_SAMPLERS: dict[str, Callable[[Network, Vector], PerRecord]] = {
    "func": _by_func,
    "opacus": _by_opacus,
}


# ------------------------------------------------------------------------ trials on made-up records


def _made_up(like: Records) -> Records:
    return Records(*made_up(like.x, like.y, like.groups))


def _reduces(loss: Loss) -> bool:
    """Whether a loss gives one number for two records; False where made-up scores do not fit."""
    try:
        return loss(torch.zeros(2, 2), torch.zeros(2, dtype=torch.int64)).dim() == 0
    except Exception:
        return False


def _not_per_record(loss: Loss, got: str) -> RecipeError:
    return RecipeError(
        f"the loss must be one value per record, got {got} from {_name(loss)}: reduced over a "
        f"batch, one record would scale the gradients of the others; give it reduction='none'"
    )


def _name(loss: Loss) -> str:
    return getattr(loss, "__name__", type(loss).__name__)


def _try_losses(model: Network, made: Records) -> int:
    """Refuse a module or a loss that fails, is not per record, or mixes records."""

    def judged(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        shape = model.loss(scores, y).shape
        if shape != (len(y),):
            raise _not_per_record(model.loss, f"shape {tuple(shape)} for {len(y)} records")
        return model._judge(scores, y)

    params = _somewhere(model)
    scores = _tried_on(lambda x, _: model.score(params, x), made.x, made.y, "output")
    outputs = scores[0].numel()
    _tried_on(judged, scores[:2], made.y[:2], "loss")
    for label in {1, *range(2, min(outputs, _CLASSES)), max(1, outputs - 1)}:
        _tried_on(judged, scores, made.y, "loss", label)
    return outputs


def _try_rows(model: Network, made: Records) -> int:
    """Refuse a sampler that fails on the module, or whose rows depend on other records."""
    rows = _SAMPLERS[model.sampler](model, _somewhere(model))
    return len(_tried_on(rows, made.x, made.y, "gradient"))


def _somewhere(model: Network) -> Vector:
    """Beside the module's start, where no layer is zero, so that mixing shows."""
    start = model.initial(0)
    return start + 0.01 * torch.sin(torch.arange(start.numel()) * 12.9898).to(start)


def _tried_on(
    compute: PerRecord, x: torch.Tensor, y: torch.Tensor, what: str, label: int = 1
) -> torch.Tensor:
    """Rows of made-up records, none of which may move if another record is changed.

    What is refused here says nothing about data. A lint, not a proof: mixing that shows at other
    values only passes.
    """
    other, others_y = x.clone(), y.clone()
    other[1] = torch.linspace(1, 0, x[1].numel()).view(x[1].shape)
    others_y[1] = label
    try:
        rows = _seeded_rows(compute, x, y)
        if _fails(partial(_seeded_rows, compute), other, others_y):  # a model of one class
            others_y[1] = 0
        changed = _seeded_rows(compute, other, others_y)
    except DpfedError:
        raise
    except Exception as error:
        raise RecipeError(
            f"the {what} of a network must work for any record, and failed on made-up records of "
            f"shape {tuple(x.shape[1:])} ({first_sentence(error)}); correct the module or the loss"
        ) from error
    rest = torch.arange(len(x)) != 1
    if not torch.allclose(rows[rest], changed[rest], rtol=1e-3, atol=1e-6, equal_nan=True):
        raise RecipeError(
            f"the {what} of a record must depend on that record alone, and changed with another "
            f"made-up record; use layers and a loss that do not mix records (GroupNorm, LayerNorm)"
        )
    return rows


def _seeded_rows(compute: PerRecord, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # dropout leaves out the same
        return compute(x, y).detach()
