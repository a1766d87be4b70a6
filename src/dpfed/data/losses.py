# SPDX-License-Identifier: Apache-2.0
"""Losses with one value per record, by name: what a network is fitted to.

    cross-entropy     scores [k, classes], labels [k]; weights of classes, label smoothing
    tokens            scores [k, T, classes], labels [k, T]: the sum over a record's tokens
    segmentation      scores [k, classes, ...], labels [k, ...]: the mean over a record's voxels,
                      and one minus its soft Dice
    multi-label       scores [k, labels], 0 or 1 [k, labels]: the sum over the labels
    squared           the sum of half the squared errors of a record's targets
    mse               the mean of their squared errors, as torch has it
    huber             the same, growing with the error itself beyond ``delta``

Labels of ``IGNORED`` (-100) are ignored, and so are labels outside of the classes and targets
that are not finite: no value of a record raises. Tokens and labels are summed, never averaged: the
clip bounds a record whatever its length.
Weights of classes are public: frequencies of the private labels would be a release of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch.nn import functional

from dpfed.core.checks import check_positive, refuse

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(scores [k, ...], targets [k, ...]) -> losses [k]."""

IGNORED = -100
"""The label of records that are ignored, as in torch."""


def cross_entropy(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Cross-entropy per record: the default loss of a network; 0 if the label is ``IGNORED``."""
    return functional.cross_entropy(scores, y, reduction="none", ignore_index=IGNORED)


@runtime_checkable
class JudgingLoss(Protocol):
    """A loss that knows when an output is right."""

    def right(self, scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The fraction of each record that is right, from 0 to 1; NaN for a regression."""


def known_labels(y: torch.Tensor, classes: int) -> torch.Tensor:
    """Labels, ``IGNORED`` in the place of those outside of the classes."""
    return torch.where((y >= 0) & (y < classes), y, IGNORED)


@dataclass(frozen=True)
class CrossEntropy:
    """Cross-entropy with public weights of classes and label smoothing.

    Args:
        weights: one number above 0 per class: public; empty is 1 for each.
        smoothing: the part of a label that is spread over all classes, from 0 to below 1.
    """

    weights: tuple[float, ...] = ()
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        for weight in self.weights:
            check_positive("loss", weights=weight)
        if not 0 <= self.smoothing < 1:
            raise refuse("loss.smoothing", "at least 0 and below 1", self.smoothing)

    def __call__(self, scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """One value per record."""
        return functional.cross_entropy(
            scores,
            known_labels(y, scores.shape[1]),
            weight=self._weight(scores),
            reduction="none",
            ignore_index=IGNORED,
            label_smoothing=self.smoothing,
        )

    def _weight(self, scores: torch.Tensor) -> torch.Tensor | None:
        if not self.weights:
            return None
        if len(self.weights) != scores.shape[1]:
            bound = f"one number per class, {scores.shape[1]} in all"
            raise refuse("loss.weights", bound, self.weights, "give one for each class")
        return scores.new_tensor(self.weights)

    def right(self, scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Whether the largest score is the label's."""
        return (scores.argmax(dim=1) == y).to(scores)


@dataclass(frozen=True)
class Tokens:
    """Cross-entropy of each token, summed over a record's tokens; ``IGNORED`` ones are left out.

    Args:
        shift: whether the scores at a token are for the next one, as a language model's are.
        smoothing: the part of a label that is spread over all classes, from 0 to below 1.
    """

    shift: bool = False
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        CrossEntropy(smoothing=self.smoothing)

    def pairs(self, scores: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores, and for each the token that it predicts; ``IGNORED`` if there is none."""
        if self.shift:
            scores, y = scores[:, :-1], y[:, 1:]
        return scores, known_labels(y, scores.shape[-1])

    def __call__(self, scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """One value per record."""
        scores, y = self.pairs(scores, y)
        losses = functional.cross_entropy(
            scores.mT, y, reduction="none", ignore_index=IGNORED, label_smoothing=self.smoothing
        )
        return losses.sum(dim=1)

    def right(self, scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The fraction of a record's tokens that is right; 0 if all are ignored."""
        scores, y = self.pairs(scores, y)
        counts = (y != IGNORED).sum(dim=1).clamp(min=1)
        return (scores.argmax(dim=-1) == y).sum(dim=1).to(scores) / counts


@dataclass(frozen=True)
class Segmentation:
    """Cross-entropy of each voxel, averaged over the record, and one minus its soft Dice.

    Both are of one record alone: a Dice over a batch would mix records. Voxels that are ``IGNORED``
    are left out. Soft Dice is the mean over classes of (2 sum p t + 1) / (sum p + sum t + 1), the
    background (class 0) left out, as in MONAI's DiceCELoss(include_background=False).

    Args:
        dice: the weight of the Dice part, from 0 to 1; cross-entropy has the rest.
    """

    dice: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.dice <= 1:
            raise refuse("loss.dice", "from 0 to 1", self.dice)

    def __call__(self, scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """One value per record."""
        scores, y = self._flat(scores, y)
        known = (y != IGNORED).to(scores)
        counts = known.sum(dim=1).clamp(min=1.0)
        each = functional.cross_entropy(scores, y, reduction="none", ignore_index=IGNORED)
        losses = each.sum(dim=1) / counts
        if self.dice == 0:
            return losses
        overlap = self._dice(scores.softmax(dim=1) * known[:, None], y).mean(dim=1)
        return (1 - self.dice) * losses + self.dice * (1 - overlap)

    def _flat(self, scores: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores [k, classes, voxels] and labels [k, voxels]; a channel of labels is left out."""
        classes = scores.shape[1]
        if classes < 2:
            bound = "2 or more, the background's first"
            raise refuse("the module's channels", bound, classes, "give the last layer as many")
        y = y[:, 0] if y.dim() == scores.dim() and y.shape[1] == 1 else y
        if y.shape != (len(scores), *scores.shape[2:]):
            bound = f"a class for each voxel, {tuple(scores.shape[2:])}"
            raise refuse("labels of a segmentation", bound, y.shape[1:], "correct them")
        return scores.flatten(2), known_labels(y.flatten(1).long(), classes)

    def _dice(self, parts: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Of each record and class but the background, [k, classes - 1]."""
        classes = torch.arange(parts.shape[1], device=y.device)
        true = (y[:, None] == classes[None, :, None]).to(parts)
        both, total = (parts * true).sum(dim=2), parts.sum(dim=2) + true.sum(dim=2)
        return ((2 * both + 1) / (total + 1))[:, 1:]

    def right(self, scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The record's mean Dice over the classes but the background: what accuracy shows."""
        scores, y = self._flat(scores, y)
        chosen = torch.zeros_like(scores).scatter_(1, scores.argmax(dim=1, keepdim=True), 1.0)
        return self._dice(chosen * (y != IGNORED)[:, None].to(scores), y).mean(dim=1)


@dataclass(frozen=True)
class MultiLabel:
    """Binary cross-entropy of each label, summed; labels below 0 or above 1 are ignored.

    Args:
        weights: what a label that is 1 counts, one number above 0 per label: public; empty is 1.
    """

    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for weight in self.weights:
            check_positive("loss", weights=weight)

    def __call__(self, scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """One value per record."""
        y = y.to(scores.dtype)
        known = (y >= 0) & (y <= 1)
        weight = scores.new_tensor(self.weights) if self.weights else None
        losses = functional.binary_cross_entropy_with_logits(
            scores, torch.where(known, y, 0.0), reduction="none", pos_weight=weight
        )
        return torch.where(known, losses, 0.0).flatten(1).sum(dim=1)

    def right(self, scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The fraction of a record's labels that is right."""
        return ((scores > 0) == (y > 0.5)).to(scores).flatten(1).mean(dim=1)


@dataclass(frozen=True)
class Huber:
    """Half the squared error up to ``delta``, then growing with the error; summed over targets.

    Args:
        delta: above 0; infinite is the squared error.
    """

    delta: float = 1.0

    def __post_init__(self) -> None:
        if not self.delta > 0:
            raise refuse("loss.delta", "above 0", self.delta)

    def __call__(self, scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """One value per record."""
        scores, y = scores.flatten(1), y.to(scores.dtype).reshape(len(scores), -1)
        if scores.shape[1] != y.shape[1]:
            raise refuse(
                "the module's outputs",
                f"{y.shape[1]}, one per target",
                scores.shape[1],
                "give the last layer as many",
            )
        known = torch.isfinite(y)
        error = scores - torch.where(known, y, 0.0)
        size = error.abs()
        squared = 0.5 * error.square()
        if math.isfinite(self.delta):
            squared = torch.where(size <= self.delta, squared, self.delta * (size - self.delta / 2))
        return torch.where(known, squared, 0.0).sum(dim=1)

    def right(self, scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """NaN: a number is not right or wrong."""
        del y
        return scores.new_full((len(scores),), math.nan)


@dataclass(frozen=True)
class MeanSquared(Huber):
    """The mean squared error of a record's targets; one that is not finite has no error."""

    delta: float = field(default=math.inf, init=False)

    def __call__(self, scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """One value per record."""
        return super().__call__(scores, y) * (2 / math.prod(scores.shape[1:]))


LOSSES: dict[str, Callable[..., Any]] = {
    "cross-entropy": CrossEntropy,
    "tokens": Tokens,
    "segmentation": Segmentation,
    "multi-label": MultiLabel,
    "squared": lambda: Huber(math.inf),
    "mse": MeanSquared,
    "huber": Huber,
}


def loss_by_name(name: str, **options: Any) -> Loss:
    """A loss by its name.

    Args:
        name: cross-entropy, tokens, segmentation, multi-label, squared, mse or huber.
        **options: its own: weights, smoothing, shift, dice, delta.

    Returns:
        a function of scores and targets with one value per record.

    >>> loss = loss_by_name("cross-entropy")
    >>> [round(float(each), 3) for each in loss(torch.zeros(2, 2), torch.tensor([0, 1]))]
    [0.693, 0.693]
    """
    if name not in LOSSES:
        raise refuse("loss.name", ", ".join(LOSSES), name)
    given = {key: tuple(v) if isinstance(v, Sequence) else v for key, v in options.items()}
    try:
        made: Loss = LOSSES[name](**given)
    except TypeError as error:
        raise refuse(
            f"the options of loss {name!r}", "its own", sorted(options), str(error)
        ) from None
    return made
