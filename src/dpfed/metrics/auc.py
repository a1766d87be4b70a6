# SPDX-License-Identifier: Apache-2.0
"""The area under the ROC curve, from noisy histograms of scores over public bins.

    bin of a score   bins of equal width of sigmoid(s / 2), s the log odds of the class
    row              a 1 in one of 2 x bins cells: (of the class or not, bin of its score)
    auc              P(score of one of the class > of one that is not)

Two classes have one histogram, of class 1; C > 2 classes have one each against the rest, their rows
are divided by sqrt(C), and the area is the mean over classes.

Bounds. A row has one 1, or C entries of 1 / sqrt(C): its norm is 1, or 0 if the label is no
class or a score is not a number. No entry is negative, so that two rows are at most sqrt(2) apart,
and two that share no cell are. Removing or zeroing a unit moves a sum by at most 1. A mean over a
unit's records keeps both. The bins come from no record, and the class counts in the denominator are
sums of noisy cells.

The area of noisy histograms p, n (of the class, of the rest) is U = sum_i p_i f_i / (sum p sum n),
f_i = sum_{j<i} n_j + n_i / 2 + (n_{i-1} - n_{i+1}) / 12: the trapezoids of the ROC curve, and what
they leave out where densities are linear from bin to bin. It is bilinear, and noises of different
cells are independent, so that noise gives the numerator no bias. With F_i = f_i / sum n, dU/dp_i =
(F_i - U) / sum p, and likewise for n: so the std is std sqrt(sum_i ((F_i - U) / sum p)^2 + ...) to
first order. More bins have less of an error of their own, and more noise. It is NaN if a class's
noisy count is below 3 standard deviations of its noise.
"""

from __future__ import annotations

import math

import torch

from dpfed.core.checks import check_at_least
from dpfed.core.metric import Metric, ScoredRecords
from dpfed.core.types import Vector
from dpfed.metrics._classes import MIN_SIGNAL_TO_NOISE, class_cells, class_scores


def auc(bins: int = 16, classes: int = 2) -> Metric:
    """The area under the ROC curve; of more than two classes, the mean of each against the rest.

    Args:
        bins: how many bins the scores are counted in, at least 2: more bins are finer and noisier.
        classes: how many classes the model has.

    Returns:
        a metric with the numbers ``auc`` and ``auc_std``.

    >>> import torch
    >>> auc(bins=2).finish(torch.tensor([0.0, 0.5, 0.5, 0.0]), 0.001)["auc"]
    1.0
    """
    check_at_least(2, "auc", bins=bins, classes=classes)
    curves = 1 if classes == 2 else classes

    def row(scored: ScoredRecords) -> torch.Tensor:
        scores = class_scores("auc", scored, classes)
        labels = class_cells(scored.labels, classes).to(scores.device)
        usable = labels.any(dim=1) & torch.isfinite(scores).all(dim=1)
        made = [_cells(scores, labels, each, bins) for each in range(classes - curves, classes)]
        return torch.where(usable[:, None], torch.cat(made, dim=1), 0.0) / math.sqrt(curves)

    def finish(means: Vector, std: float) -> dict[str, float]:
        scale = math.sqrt(curves)
        pairs = (means * scale).view(curves, 2, bins)
        areas, variances = zip(
            *(_area(mine, rest, std * scale) for mine, rest in pairs), strict=True
        )
        value = math.fsum(areas) / curves
        spread = math.sqrt(math.fsum(variances)) / curves
        return {"auc": min(1.0, max(0.0, value)) if value == value else value, "auc_std": spread}

    return Metric(
        size=2 * bins * curves,
        row=row,
        finish=finish,
        names=("auc", "auc_std"),
        bound=1.0,
        replace_bound=math.sqrt(2),
    )


def _cells(scores: torch.Tensor, labels: torch.Tensor, which: int, bins: int) -> torch.Tensor:
    """The cell of each record in the histograms of one class against the rest."""
    rest = torch.cat([scores[:, :which], scores[:, which + 1 :]], dim=1)
    odds = scores[:, which] - torch.logsumexp(rest, dim=1)
    place = (torch.sigmoid(odds / 2) * bins).nan_to_num(0.0).long().clamp(0, bins - 1)
    hot = class_cells(place, bins)
    mine = labels[:, which, None]
    return torch.cat([hot * mine, hot * (1 - mine)], dim=1)


def _area(mine: Vector, rest: Vector, std: float) -> tuple[float, float]:
    """The area of two noisy histograms, and the variance that noise gives it."""
    first, second = float(mine.sum()), float(rest.sum())
    if not min(first, second) > MIN_SIGNAL_TO_NOISE * std * math.sqrt(len(mine)):
        return math.nan, math.nan
    below = _middle(rest) / second
    value = float(mine @ below) / first
    above = 1 - _middle(mine) / first
    slopes = torch.cat([(below.clamp(0, 1) - value) / first, (above.clamp(0, 1) - value) / second])
    return value, float((std * slopes).square().sum())


def _middle(counts: Vector) -> Vector:
    """How much lies below each bin's scores: lower bins, half its own, a term of its neighbours."""
    around = torch.cat([counts.new_zeros(1), counts, counts.new_zeros(1)])
    return counts.cumsum(0) - counts / 2 + (around[:-2] - around[2:]) / 12
