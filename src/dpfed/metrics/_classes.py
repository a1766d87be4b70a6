# SPDX-License-Identifier: Apache-2.0
"""Scores and labels of classes, and recalls from noisy counts: what metrics of classes share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch

from dpfed.core.checks import check_at_least
from dpfed.core.errors import DataError
from dpfed.core.metric import Metric, ScoredRecords
from dpfed.core.types import Vector

MIN_SIGNAL_TO_NOISE = 3.0
"""A noisy count is divided by only if it is this many standard deviations of its noise or more."""


def class_scores(name: str, scored: ScoredRecords, classes: int) -> torch.Tensor:
    """Scores of classes in double precision, [k, classes]; one score stands for two classes.

    Args:
        name: the metric, for the error.
        scored: records with labels that are classes.
        classes: how many the metric was built for.
    """
    scores = scored.scores
    single = scores.dim() == 1 or (scores.dim() == 2 and scores.shape[1] == 1)
    if single:
        score = scores.reshape(-1).double()
        scores = torch.stack([torch.zeros_like(score), score], dim=1)
    if scores.dim() != 2 or scored.labels.dim() != 1 or scores.shape[1] != classes:
        raise DataError(
            f"metric {name!r} was built for {classes} classes, got scores of shape "
            f"{tuple(scores.shape)} and labels of shape {tuple(scored.labels.shape)}; set "
            f"evaluation.metrics = [{{name = {name!r}, classes = N}}] to the model's number"
        )
    return scores.double()


def class_cells(labels: torch.Tensor, classes: int) -> torch.Tensor:
    """One-hot rows of labels, [k, classes]; zero if a label is none of the classes."""
    return (labels[:, None] == torch.arange(classes, device=labels.device)).double()


def recalls(means: Vector, std: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Per class the noisy hits over noisy hits and misses, and the std that noise gives it.

    With h hits and m misses, r = h / (h + m) has the derivatives (1 - r) / (h + m) and
    -r / (h + m), so that its std is std sqrt((1 - r)^2 + r^2) / (h + m) to first order.

    Args:
        means: hits of each class, then misses of each.
        std: of the noise in each of them.
    """
    hits, misses = means.view(2, -1)
    counts = hits + misses
    known = counts > MIN_SIGNAL_TO_NOISE * math.sqrt(2) * std
    part = torch.where(known, hits / counts, math.nan).clamp(0.0, 1.0)
    spread = std * torch.hypot(part, 1 - part) / counts
    return part, torch.where(known, spread, math.nan)


def by_class(
    name: str,
    classes: int,
    names: tuple[str, ...],
    finish: Callable[[Vector, float], Mapping[str, float]],
) -> Metric:
    """A metric of hits and misses by class: one cell of 2 x classes is 1 (or parts of two).

    Args:
        name: the metric's.
        classes: how many there are, at least 2.
        names: of the numbers that ``finish`` gives.
        finish: what follows from hits and misses.
    """
    check_at_least(2, name, classes=classes)

    def row(scored: ScoredRecords) -> torch.Tensor:
        scores = class_scores(name, scored, classes)
        cells = class_cells(scored.labels, classes).to(scores.device)
        right = scored.right.double()[:, None].clamp(0.0, 1.0)
        made = torch.cat([cells * right, cells * (1 - right)], dim=1)
        return torch.where(torch.isfinite(scores).all(dim=1, keepdim=True), made, 0.0)

    return Metric(2 * classes, row, finish, names, bound=1.0, replace_bound=math.sqrt(2))
