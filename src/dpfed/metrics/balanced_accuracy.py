# SPDX-License-Identifier: Apache-2.0
"""Balanced accuracy: the mean over classes of the fraction of a class that is predicted correctly.

    row                 a 1 in one of 2 x classes cells: (hit, label) or (miss, label)
    balanced_accuracy   the mean over classes of hits / (hits + misses)

Bounds. A row has one 1 at most, or two entries h and 1 - h in [0, 1]: its norm is at most 1, and no
entry is negative, so that two rows are at most sqrt(2) apart; two records of different classes are.
A mean over a unit's records keeps both. Hits and misses are noised, so that the class counts in the
denominators, which are their sums, are noised too: nothing is divided by a true count.

It is NaN if a class's noisy count is below 3 standard deviations of its noise. ``recall`` has
the same rows and gives this number as well: name one of the two.
"""

from __future__ import annotations

import torch

from dpfed.core.metric import Metric
from dpfed.core.types import Vector
from dpfed.metrics._classes import by_class, recalls


def balanced_accuracy(classes: int = 2) -> Metric:
    """The mean over classes of the fraction of a class that the model gets right, with noise.

    Args:
        classes: how many classes the model has.

    Returns:
        a metric with the numbers ``balanced_accuracy`` and ``balanced_accuracy_std``.

    >>> import torch
    >>> found = balanced_accuracy().finish(torch.tensor([0.5, 0.2, 0.0, 0.2]), 0.001)
    >>> found["balanced_accuracy"]
    0.75
    """

    def finish(means: Vector, std: float) -> dict[str, float]:
        part, spread = recalls(means, std)
        together = float(torch.linalg.vector_norm(spread)) / classes
        return {"balanced_accuracy": float(part.mean()), "balanced_accuracy_std": together}

    names = ("balanced_accuracy", "balanced_accuracy_std")
    return by_class("balanced_accuracy", classes, names, finish)
