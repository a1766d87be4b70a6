# SPDX-License-Identifier: Apache-2.0
"""Checks on made-up records that a module computes each record's gradient from that record alone.

They run before any data is read, so a refusal reveals nothing of it. Heuristic: a module that
mixes records only for some inputs passes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from dpfed.core.errors import DpfedError, RecipeError, first_sentence
from dpfed.core.log import log
from dpfed.core.types import Vector
from dpfed.data.batches import Batch, Batches
from dpfed.data.layer_hooks import Unsupported, factors_of
from dpfed.data.losses import Loss
from dpfed.data.masks import content_seeds, draws_of
from dpfed.data.samplers import SAMPLERS, PerRecord, by_itself, fails

_WAY_OUT = "correct the module or the loss"
_MAX_LABELS_TRIED = 64  # each is tried as a label that could change other records' losses


def reduces(loss: Loss) -> bool:
    """Whether a loss gives one number for two records; False if made-up scores do not fit.

    Scores and targets of several forms are tried. One value per record for any of them is enough:
    a sum over tokens may give one number where the scores have no tokens.
    """
    found = {_form_of(loss, scores, targets) for scores, targets in _made_up()}
    return () in found and (2,) not in found


def _form_of(loss: Loss, scores: torch.Tensor, targets: torch.Tensor) -> tuple[int, ...] | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that two shapes are broadcast
            return tuple(loss(scores, targets).shape)
    except Exception:
        return None


def _made_up() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Two records: of classes, of one number, of several, of tokens."""
    yield torch.zeros(2, 2), torch.zeros(2, dtype=torch.int64)
    yield torch.zeros(2, 1), torch.zeros(2, 1)
    yield torch.zeros(2, 3), torch.zeros(2, 3)
    yield torch.zeros(2, 3, 2), torch.zeros(2, 3, dtype=torch.int64)


def not_per_record(loss: Loss, got: str) -> RecipeError:
    """The error of a loss that reduces over a batch."""
    name = getattr(loss, "__name__", type(loss).__name__)
    return RecipeError(
        f"the loss must be one value per record, got {got} from {name}: reduced over a "
        f"batch, one record would scale the gradients of the others; give it reduction='none'"
    )


def check_losses(model: Any, made: Batches) -> int:
    """Refuse a module or a loss that fails, is not per record, or mixes records."""

    def judged(batch: Batch) -> torch.Tensor:
        shape = model._losses(batch.inputs, batch.targets).shape
        if shape != (len(batch),):
            got = f"shape {tuple(shape)} for {len(batch)} records"
            raise not_per_record(model.loss, got)
        found: torch.Tensor = model._judge(batch.inputs, batch.targets)
        return found

    params, whole = probe_params(model), _all(made)
    scores = _checked_rows(lambda batch: model.score(params, batch.inputs), whole, "output")
    outputs = scores[0].numel()
    held = Batch(scores, whole.targets.to(scores.device))
    _checked_rows(judged, held[:2], "loss")
    for label in {1, *range(2, min(outputs, _MAX_LABELS_TRIED)), max(1, outputs - 1)}:
        _checked_rows(judged, held, "loss", label)
    return outputs


def check_draws(model: Any, made: Batches) -> bool:
    """Whether the module draws masks; refuse random numbers that do not follow from a record."""
    batch, params = _all(made), model.placed(probe_params(model)).requires_grad_()
    try:
        return draws_of(lambda: model.losses(params, batch), content_seeds(batch, b"made up"))
    except DpfedError:
        raise
    except Exception as error:
        raise _failed("gradient", batch, error, _WAY_OUT) from error


def _all(made: Batches) -> Batch:
    return made.read(torch.arange(len(made)))


def _keyed(model: Any, made: Batches) -> Batch:
    """All of them, as the module sees them."""
    seen: Batch = model.seen(made, torch.arange(len(made)), b"made up")
    return seen


def _check_rows(sampler: str, model: Any, made: Batches) -> int:
    """Refuse a sampler that fails on the module, or whose rows depend on other records."""
    rows = SAMPLERS[sampler](model, probe_params(model))
    way_out = _WAY_OUT if sampler == "alone" else "use sampler 'auto'"
    return len(_checked_rows(rows, _keyed(model, made), "gradient", way_out=way_out))


def _sampler_check(sampler: str) -> Callable[[Any, Batches], int]:
    def trial(model: Any, made: Batches) -> int:
        return _check_rows(sampler, model, made)

    trial.__name__ = f"rows by {sampler}"
    return trial


SAMPLER_CHECKS = {sampler: _sampler_check(sampler) for sampler in SAMPLERS}


def check_ghost(model: Any, made: Batches) -> int:
    """Refuse ghost clipping if its factors do not give the gradients of single records."""
    params, batch = probe_params(model), _keyed(model, made)
    try:
        factors = factors_of(model, params)
        rows = _checked_rows(partial(_rows, factors), batch, "gradient")
        rows, alone = _rows(factors, batch), by_itself(model, params)(batch).double()
        apart = float(torch.linalg.vector_norm(rows - alone))
        if not apart <= _apart(model) * float(torch.linalg.vector_norm(alone)) + 1e-6:
            raise Unsupported("the factors do not give the gradients of single records")
    except Unsupported as error:
        raise RecipeError(
            f"sampler 'ghost' needs layers that it knows, each used once, and cannot be used here "
            f"({error}); use sampler 'auto'"
        ) from error
    return len(rows)


def _apart(model: Any) -> float:
    """The relative error that rows may have, from rounding in the module's precision."""
    half = model.dtype in (torch.float16, torch.bfloat16)
    return 0.05 if half else 1e-3


def _rows(factors: Callable[[Batch], Any], batch: Batch) -> torch.Tensor:
    layers = factors(batch)
    made = [torch.cat([layer.row(at) for layer in layers]) for at in range(len(batch))]
    return torch.stack(made).cpu()


def sampler_for(model: Any, made: Batches) -> str:
    """The sampler that ``sampler = "auto"`` stands for, for a module and records of this shape."""
    try:
        check_ghost(model, made)
    except DpfedError as error:
        chosen = made_sampler_for(model, made)
        log.info("per-record gradients: materialised, by sampler %r (%s)", chosen, error)
        return chosen
    log.info("per-record gradients: ghost clipping (never materialised)")
    return "ghost"


def made_sampler_for(model: Any, made: Batches) -> str:
    """The sampler that materialises gradients: torch.func, or one by one if that fails."""
    try:
        SAMPLER_CHECKS["func"](model, made)
    except RecipeError as error:
        SAMPLER_CHECKS["alone"](model, made)
        log.info("per-record gradients: computed one by one (%s)", error)
        return "alone"
    return "func"


def probe_params(model: Any) -> Vector:
    """Parameters near the initial ones, with no layer at zero: mixing of records would show."""
    start: Vector = model.initial(0)
    return start + 0.01 * torch.sin(torch.arange(start.numel()) * 12.9898).to(start)


def _checked_rows(
    compute: PerRecord, batch: Batch, what: str, label: int = 1, way_out: str = _WAY_OUT
) -> torch.Tensor:
    """Rows of made-up records; refuse if one changes when another record is changed."""
    other = _second_changed(batch, label)
    try:
        rows = _seeded_rows(compute, batch)
        if fails(partial(_seeded_rows, compute), other):  # a model of one class
            other = _second_changed(batch, 0)
        changed = _seeded_rows(compute, other)
    except (DpfedError, Unsupported):
        raise
    except Exception as error:
        raise _failed(what, batch, error, way_out) from error
    rest = torch.arange(len(batch)) != 1
    if not torch.allclose(rows[rest], changed[rest], rtol=1e-3, atol=1e-6, equal_nan=True):
        raise RecipeError(
            f"the {what} of a record must depend on that record alone, and changed with another "
            f"made-up record; use layers and a loss that do not mix records (GroupNorm, LayerNorm)"
        )
    return rows


def _failed(what: str, batch: Batch, error: Exception, way_out: str) -> RecipeError:
    return RecipeError(
        f"the {what} of a network must work for any record, and failed on made-up records of "
        f"shape {_shape(batch)} ({first_sentence(error)}); {way_out}"
    )


def _shape(batch: Batch) -> Any:
    if isinstance(batch.inputs, torch.Tensor):
        return tuple(batch.inputs.shape[1:])
    return {name: tuple(each.shape[1:]) for name, each in batch.inputs.items()}


def _second_changed(batch: Batch, label: int) -> Batch:
    """The records with another second one: falling numbers, or the last record reversed."""
    made = {}
    for name, each in batch.tensors().items():
        made[name] = each.clone()
        if name == "targets":
            made[name][1] = label
        elif each.is_floating_point():
            falling = torch.linspace(1, 0, each[1].numel()).view(each[1].shape)
            made[name][1] = falling.to(each)
        else:
            made[name][1] = each[-1].flip(list(range(each[-1].dim())))
    return batch.like(made)


def _seeded_rows(compute: PerRecord, batch: Batch) -> torch.Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # dropout leaves out the same
        return compute(batch).detach()
