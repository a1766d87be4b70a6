# SPDX-License-Identifier: Apache-2.0
"""Any torch module as a model: per-record gradients by ghost clipping, or materialised.

    ghost     factors of the layers' gradients (layer_hooks.py, core/ghost.py): of records and of
              persons, if every trained layer is of a known kind and is used once
    func, opacus, alone    rows that are made (samplers.py): for exact integers, and where not
    auto      ghost where that works, else func, else alone; the local log says which and why

Guarantee: no value of a record makes rows or metrics raise: a record that fails has a zero row and
a zero metric, and the others' are as ever, to the last bit. Module and loss are tried on made-up
records first. What a trial cannot prove stays the user's word: that the output and the loss of a
record depend on that record alone, and that the module keeps nothing of it.

| edge case                                            | what happens                           |
|------------------------------------------------------|----------------------------------------|
| no module, no trained parameter, no such device      | RecipeError when the network is made,  |
|                                                      | or the module is first used            |
| a loss that reduces over the batch                   | RecipeError when the network is made   |
| a loss that is not one value per record              | RecipeError when a problem is made     |
| a module or loss that fails on made-up records       | RecipeError when a problem is made     |
| made-up records that move each other's loss or row   | RecipeError, at the first rows at last |
| BatchNorm that is trained or in train(), InstanceNorm| RecipeError when the network is made,  |
| that keeps statistics                                | and where rows or metrics are          |
| labels of another type or shape than the loss takes  | RecipeError when a problem is made     |
| scores that are probabilities, a loss that ignores   | a warning in the local log             |
| labels, dropout in eval(), no gradient at all        |                                        |
| records that look wrong (first_look.py)              | a warning in the local log             |
| dropout in train()                                   | masks by each record's content         |
| other random numbers (masks.py)                      | RecipeError when a problem is made     |
| ghost rows that are not the gradients of single ones | other rows, or RecipeError if asked for|
| a record on which the module or the loss raises      | zero row, zero metric, a line in the   |
|                                                      | local log                              |
| unit client: the same                                | the client's one row is zero           |
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import torch
from torch import nn

from dpfed.core.checks import check_at_least, refuse
from dpfed.core.errors import RecipeError, failures
from dpfed.core.ghost import Ghost, Layer
from dpfed.core.metric import MetricRow, ScoredRecords
from dpfed.core.rows import Chunks, Dense
from dpfed.core.types import Rows, Unit, Vector
from dpfed.core.vector import Layout, layout_of, one_thread
from dpfed.data import module_checks
from dpfed.data.batches import Batch, Batches, Inputs, record_batches
from dpfed.data.datasets import Records
from dpfed.data.first_look import look
from dpfed.data.layer_hooks import LayerFactors, factors_of
from dpfed.data.losses import JudgingLoss, Loss, Tokens, cross_entropy, known_labels, loss_by_name
from dpfed.data.masks import content_seeds, drawn_by_content
from dpfed.data.models import metric_rows, unit_ids, unit_means, whole_blocks
from dpfed.data.samplers import BLOCK, SAMPLERS, PerRecord, failing, forgiving, in_blocks, whole


def seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A module whose start follows from the seed alone; the caller's generator stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


CHOICES = ("auto", "ghost", *SAMPLERS)


@dataclass(frozen=True, eq=False, repr=False)
class Network:
    """Any torch module whose output for a record depends on that record alone.

    Args:
        module: the torch module.
        loss: a function of scores and targets with one value per record, or the name of one, as
            ``loss_by_name`` takes it.
        chunk: how many records' gradients are in memory at a time: up to the next multiple of
            64 (``BLOCK``), or just so many of one person's.
        sampler: how gradients of single records are made; auto chooses (docs/models.md).
        device: where the module computes. Parameters go over once per round, rows of "ghost" are
            clipped and added there, and one vector comes back.
        dtype: the precision that the module computes in; None is its own. Norms and sums are in
            double precision whatever it is.

    >>> Network(nn.Linear(4, 3)).layout.size
    15
    """

    module: nn.Module
    loss: Loss | str = cross_entropy
    chunk: int = 64
    sampler: str = "auto"
    device: str = "cpu"
    dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        module_checks.check_module(self.module)
        module_checks.check_place(self.device, self.dtype)
        check_at_least(1, "Network", chunk=self.chunk)
        if self.sampler not in CHOICES:
            raise refuse("sampler", ", ".join(map(repr, CHOICES)), self.sampler)
        if isinstance(self.loss, str):
            object.__setattr__(self, "loss", loss_by_name(self.loss))
        module_checks.check_loss(self.loss)
        if getattr(self.loss, "reduction", "none") != "none" or module_checks.reduces(self._loss):
            raise module_checks.not_per_record(self._loss, "one number for all")

    def __repr__(self) -> str:
        loss = getattr(self.loss, "__name__", None) or type(self.loss).__name__
        size, sampler = self.layout.size, self.sampler
        name = type(self.module).__name__
        return f"Network({name}, {size:,} trained parameters, {loss=!s}, {sampler=!s})"

    @property
    def _loss(self) -> Loss:
        return cast("Loss", self.loss)  # a name was replaced when the network was made

    @property
    def block(self) -> int:
        """How many records are computed together, made-up ones included; public.

        N records are ceil(N / block) blocks. Nothing else about a block depends on N, so a public
        number of blocks, some of them all made up, needs only more of the same.
        """
        return whole(self.chunk)

    @cached_property
    def layout(self) -> Layout:
        """The trainable parameters; a tied one appears once."""
        return layout_of(self.trainable)

    @property
    def trainable(self) -> dict[str, torch.Tensor]:
        """Names and values of the parameters that are trained."""
        return {n: p.detach() for n, p in self.module.named_parameters() if p.requires_grad}

    @cached_property
    def _start(self) -> Vector:
        return self.layout.flatten({n: p.float() for n, p in self.trainable.items()}).cpu().clone()

    def initial(self, seed: int) -> Vector:
        """The values that the module was built with: build it under a seed of your own."""
        del seed
        return self._start.clone()

    def problem(self, records: Any, example: Any = None, **how: Any) -> NetworkProblem:
        """One client's records under the network; module and loss are tried on made-up ones.

        What looks wrong in the records is said in this machine's log, before anything is spent.

        Args:
            records: (x, y) of tensors, arrays or data frames; ``Records``; a TensorDataset; what
                ``tensor_batches`` and ``dataset_batches`` make; or, with an example, a data set, a
                DataLoader or a stream.
            example: one made-up record of the shapes that all have: public.
            **how: collate, target, fill, groups, most and count, as ``dataset_batches`` takes them.
        """
        batches = record_batches(records, example, **how)
        outputs = self._once(module_checks.check_losses, batches)
        self.draws(batches)
        y = batches.stand_in.targets
        one = module_checks.fits_classes(self.loss) and not y.is_floating_point() and y.dim() == 1
        classes = outputs if one else None
        named = any(isinstance(each, nn.Embedding) for each in self.module.modules())
        look(batches, classes, numbers=not named, said=self._said)
        return NetworkProblem(self, batches)

    def _has_classes(self, y: torch.Tensor) -> bool:
        return self.loss is cross_entropy and not y.is_floating_point() and y.dim() == 1

    def _once(self, trial: Callable[[Any, Batches], Any], like: Batches) -> Any:
        """Try the module on made-up records of a shape and type, unless that was done before.

        In train() it may compute something else than in eval(): each mode is tried.
        """
        shapes = {n: (t.shape[1:], t.dtype) for n, t in like.stand_in.tensors().items()}
        mode = tuple(each.training for each in self.module.modules())
        key = (trial.__name__, mode, *sorted(shapes.items()))
        if key not in self._tried:
            self._tried[key] = trial(self, like.made_up())
        return self._tried[key]

    @cached_property
    def _tried(self) -> dict[object, Any]:
        return {}

    @cached_property
    def _said(self) -> set[str]:
        """What was said of clients' records: the same of the next client is left unsaid."""
        return set()

    @cached_property
    def _placed(self) -> nn.Module:
        """The module where it computes, in its precision; the start is read before."""
        if self.dtype is None and torch.device(self.device) == torch.device("cpu"):
            return self.module
        self.initial(0)
        module_checks.check_device(self.device, self.dtype)
        return self.module.to(device=self.device, dtype=self.dtype)

    def placed(self, params: Vector) -> Vector:
        """Parameters where the module computes, in its precision; the module goes there, too."""
        like = next(self._placed.parameters(), params)
        return params.to(device=like.device, dtype=self.dtype)

    def score(self, params: Vector, x: Inputs) -> torch.Tensor:
        """The module's output at these parameters."""
        return self._scores_at(self.layout.unflatten(self.placed(params)), x)

    @torch.no_grad()
    def scores_of(self, params: Vector, x: torch.Tensor) -> torch.Tensor:
        """Scores of records whose labels nobody knows, in whole blocks, on the processor."""
        blocks = (whole_blocks(part, BLOCK) for part in torch.split(x, BLOCK))
        made = [self.score(params, block).float().cpu() for block in blocks]
        return torch.cat(made or [self.score(params, whole_blocks(x[:0], BLOCK))[:0]])[: len(x)]

    def _scores_at(self, named: Mapping[str, torch.Tensor], x: Inputs) -> torch.Tensor:
        args = () if isinstance(x, dict) else (self._cast(x),)
        kwargs = {n: self._cast(each) for n, each in x.items()} if isinstance(x, dict) else {}
        return _scores(torch.func.functional_call(self._placed, dict(named), args, kwargs))

    def _cast(self, given: torch.Tensor) -> torch.Tensor:
        dtype = self.dtype if given.is_floating_point() else None
        return given.to(device=self.device, dtype=dtype)

    def losses(self, params: Vector, batch: Batch) -> torch.Tensor:
        """One per record, at these parameters."""
        return self.losses_at(self.layout.unflatten(params), batch)

    def losses_at(self, named: Mapping[str, torch.Tensor], batch: Batch) -> torch.Tensor:
        """One loss per record, at these parameters by name."""
        with drawn_by_content(batch.seeds):
            return self._losses(self._scores_at(named, batch.inputs), batch.targets)

    def losses_of(self, module: nn.Module, batch: Batch) -> torch.Tensor:
        """One loss per record, of another module: a copy with Opacus' hooks."""
        x = batch.inputs
        with drawn_by_content(batch.seeds):
            scores = _scores(module(**x) if isinstance(x, dict) else module(x))
            return self._losses(scores, batch.targets)

    def _losses(self, scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        half = scores.dtype in (torch.float16, torch.bfloat16)
        return self._loss(scores.float() if half else scores, targets.to(scores.device))

    def judge(
        self, params: Vector, records: Records | Batches
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Per record: right or not, and the loss; zero of a record that fails."""
        correct, losses, _ = self.judge_read(params, records)
        return correct, losses

    @torch.no_grad()
    def judge_read(
        self, params: Vector, records: Records | Batches
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Per record: right or not, the loss, and 1 or 0: whether it could be read and judged."""

        def judge(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            judged = self._judge(scores, y)
            return torch.cat([judged, torch.ones_like(judged[:, :1])], dim=1)

        correct, losses, read = self._tabled(params, record_batches(records), judge).unbind(dim=1)
        return correct, losses, read

    @torch.no_grad()
    def table(self, params: Vector, records: Batches, row: MetricRow) -> torch.Tensor:
        """One row per record, by its scores, label and loss; zero of a record that fails."""

        def judge(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            losses, y = self._losses(scores, y), y.to(scores.device)
            right = self._right(scores, y, losses)
            if isinstance(self.loss, Tokens):
                scores, y = self.loss.pairs(scores, y)
            return row(ScoredRecords(scores, y, right, losses)).cpu()

        return self._tabled(params, records, judge)

    def _tabled(self, params: Vector, batches: Batches, judge: Loss) -> torch.Tensor:
        """What ``judge`` makes of scores and targets, one row per record."""
        turn, params, empty = turn_of(params), self.placed(params), batches.stand_in[:1]

        def compute(batch: Batch) -> torch.Tensor:
            with drawn_by_content(batch.seeds):
                return judge(self.score(params, batch.inputs), batch.targets)

        blocks = in_blocks(compute, BLOCK, empty)
        made = [forgiving(blocks, batch, empty) for batch in self._read(batches, turn)]
        return torch.cat(made or [blocks(empty)[:0]])

    def _read(self, batches: Batches, turn: bytes) -> Any:
        """All records, as many at a time as they say, with labels that the loss knows."""
        for index in torch.split(torch.arange(len(batches)), batches.most):
            yield self.seen(batches, index, turn)

    def seen(self, batches: Batches, index: torch.Tensor, turn: bytes) -> Batch:
        """Records as the module sees them at one turn: known labels, and seeds if it draws.

        All rows and metrics begin here, so here the layers are looked at once more: whoever has the
        module may have called its train() since the network was made.
        """
        module_checks.check_layers(self.module)
        batch = self.known(batches, batches.read(index))
        if not self.draws(batches):
            return batch
        return replace(batch, seeds=content_seeds(batch, turn))

    def draws(self, batches: Batches) -> bool:
        """Whether the module leaves out entries at random, as it is now (train() or eval())."""
        chosen: bool = self._once(module_checks.check_draws, batches)
        return chosen

    def known(self, batches: Batches, batch: Batch) -> Batch:
        """The batch with ``IGNORED`` in the place of labels that are none of the outputs."""
        if not self._has_classes(batch.targets):
            return batch
        outputs = self._once(module_checks.check_losses, batches)
        return replace(batch, targets=known_labels(batch.targets, outputs))

    def _judge(self, scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Right or not, and the loss, [records, 2]."""
        losses = self._losses(scores, y)
        y = y.to(scores.device)
        return torch.stack([self._right(scores, y, losses), losses], dim=1).float().cpu()

    def _right(self, scores: torch.Tensor, y: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        if isinstance(self.loss, JudgingLoss):
            return self.loss.right(scores, y).to(like)
        if scores.dim() == 2 and not y.is_floating_point() and y.dim() == 1:
            return (scores.argmax(1) == y).to(like)
        return torch.full_like(like, math.nan)

    def rows_by(self, batches: Batches) -> str:
        """The sampler of such records' gradients: ``sampler``, or the one that auto has chosen."""
        if self.sampler != "auto":
            return self.sampler
        chosen: str = self._once(module_checks.sampler_for, batches)
        return chosen

    def made_by(self, batches: Batches) -> str:
        """The sampler that materialises gradients: for exact integers, and for large persons."""
        if self.sampler not in ("auto", "ghost"):
            return self.sampler
        chosen: str = self._once(module_checks.made_sampler_for, batches)
        return chosen


def _scores(output: Any) -> torch.Tensor:
    """The tensor of a module's output; of a transformer's, its logits."""
    if isinstance(output, torch.Tensor):
        return output
    scores = getattr(output, "logits", None)
    if not isinstance(scores, torch.Tensor):
        raise RecipeError(
            f"the output of a network must be a tensor or have logits, got a "
            f"{type(output).__name__}; wrap the module so that it returns its scores"
        )
    return scores


@dataclass(frozen=True, eq=False, repr=False)
class NetworkProblem:
    """One client's side of a network."""

    model: Network
    records: Batches

    def __repr__(self) -> str:
        return f"NetworkProblem({self.model!r}, {self.records!r})"

    @property
    def dimension(self) -> int:
        """The number of trainable parameters."""
        return self.model.layout.size

    def made_up(self) -> NetworkProblem:
        """The same on made-up records, on which a round is tried before it touches data."""
        return NetworkProblem(self.model, self.records.made_up())

    def rows(self, params: Vector, unit: Unit) -> Rows:
        """Per-record gradients in chunks; by group, or the client's mean as one row."""
        return self._at(params)._rows(params, unit)

    def _at(self, params: Vector) -> NetworkProblem:
        """The problem with its records as training sees them at these parameters."""
        if self.records.change is None:
            return self
        return replace(self, records=self.records.at(turn_of(params)))

    def _rows(self, params: Vector, unit: Unit) -> Rows:
        if unit is Unit.CLIENT:
            return Dense(self.gradient(params)[None])
        groups = self.records.groups
        ids = None if unit is Unit.RECORD else unit_ids(groups, unit, len(self.records))
        made = self._made(params, ids)
        if self.model.rows_by(self.records) != "ghost":
            return made
        self.model._once(module_checks.check_ghost, self.records)
        block = self.model.block if ids is None else 1  # no other person's records in the block
        return Ghost(self._factors(factors_of(self.model, params), block, turn_of(params)), made)

    def rows_in_words(self, unit: Unit, *, exact: bool = False) -> str:
        """How rows are clipped. Public: it follows from the model and the records' shapes.

        Args:
            unit: whose rows.
            exact: whether they are added up in exact integers, one by one.
        """
        if unit is Unit.CLIENT:
            return "one row per client"
        if not exact and self.model.rows_by(self.records) == "ghost":
            return "per-record gradients: ghost clipping (never materialised)"
        return (
            f"per-record gradients: materialised, by sampler {self.model.made_by(self.records)!r}"
        )

    def _made(self, params: Vector, ids: torch.Tensor | None) -> Chunks:
        sampler, empty = self.model.made_by(self.records), self.records.stand_in[:1]
        self.model._once(module_checks.SAMPLER_CHECKS[sampler], self.records)
        made: list[PerRecord] = []

        def rows(batch: Batch) -> torch.Tensor:
            if not made:  # ghost clipping needs none of these
                made.append(SAMPLERS[sampler](self.model, params))
            return made[0](batch)

        block = rows if ids is not None else in_blocks(rows, self.model.block, empty)
        turn = turn_of(params)
        return Chunks(
            gradients=lambda index: forgiving(block, self._batch(index, turn), empty),
            records=len(self.records),
            size=self.dimension,
            chunk=self.model.block if ids is None else self.model.chunk,
            groups=ids,
        )

    def _factors(
        self, layer_factors: LayerFactors, block: int, turn: bytes
    ) -> Callable[[torch.Tensor], tuple[list[Layer], torch.Tensor]]:
        """The factors of records, and which of them are usable; computed in whole blocks."""
        empty = self.records.stand_in[:1]

        @one_thread()
        def factors(index: torch.Tensor) -> tuple[list[Layer], torch.Tensor]:
            batch = self._batch(index, turn)
            usable = torch.ones(len(batch), dtype=torch.bool)
            usable = usable if batch.usable is None else batch.usable
            try:
                layers = layer_factors(batch.filled(block, empty))
            except failures():
                fails = failing(layer_factors, batch)
                usable = usable & ~fails
                layers = layer_factors(batch.without(fails, empty).filled(block, empty))
            if len(batch) < block:
                layers = [layer.part(slice(len(batch))) for layer in layers]
            return layers, usable

        return factors

    def _batch(self, index: torch.Tensor, turn: bytes) -> Batch:
        return self.model.seen(self.records, index, turn)

    @one_thread()
    def gradient(self, params: Vector) -> Vector:
        """The mean gradient over all records, in clear."""
        total = torch.zeros_like(params)
        for batch in self.model._read(self._at(params).records, turn_of(params)):
            here = params.detach().clone().requires_grad_()
            loss = self.model.losses(self.model.placed(here), _usable(batch)).sum()
            total += torch.autograd.grad(loss, here)[0]
        return total / max(1, len(self.records))

    def metric_rows(self, params: Vector, unit: Unit, loss_bound: float) -> Rows:
        """Per unit: right or not, and the clipped loss."""
        correct, losses = self.model.judge(params, self.records)
        return metric_rows(correct, losses, self.records.groups, unit, loss_bound)

    def judged(self, params: Vector, unit: Unit, row: MetricRow) -> torch.Tensor:
        """Per unit, the mean of the row over its own records; zero of a record that fails."""
        return unit_means(self.model.table(params, self.records, row), self.records.groups, unit)


def turn_of(params: Vector) -> bytes:
    """A digest of the parameters: masks and augmentation change with it. Public."""
    raw = params.detach().cpu().contiguous().numpy()
    return hashlib.sha256(raw.data).digest()


def _usable(batch: Batch) -> Batch:
    return batch if batch.usable is None else batch[batch.usable]
