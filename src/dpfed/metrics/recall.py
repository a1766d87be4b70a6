# SPDX-License-Identifier: Apache-2.0
"""The recall of each class (the fraction of its units predicted correctly), and their mean.

    row               a 1 in one of 2 x classes cells: (hit, label) or (miss, label)
    recall_c          hits of c / (hits of c + misses of c)
    balanced_accuracy the mean of the recalls

Bounds. A row has one 1 at most, or two entries h and 1 - h in [0, 1]: its norm is at most 1, and no
entry is negative, so that two rows are at most sqrt(2) apart; two records of different classes are.
A mean over a unit's records keeps both. Hits and misses are noised, so that the class counts in the
denominators, which are their sums, are noised too: nothing is divided by a true count.

A class whose noisy count is below 3 standard deviations of its noise has no recall (NaN).
"""

from __future__ import annotations

from dpfed.core.metric import Metric
from dpfed.core.types import Vector
from dpfed.metrics._classes import by_class, recalls


def recall(classes: int = 2) -> Metric:
    """The recall of each class, and the mean of all recalls, with noise.

    Args:
        classes: how many classes the model has.

    Returns:
        a metric with ``recall_0``, ``recall_0_std`` and so on, and ``balanced_accuracy``.

    >>> import torch
    >>> recall().finish(torch.tensor([0.5, 0.2, 0.0, 0.2]), 0.001)["recall_0"]
    1.0
    """
    each = [f"recall_{label}" for label in range(classes)]
    spreads = [f"{name}_std" for name in each]

    def finish(means: Vector, std: float) -> dict[str, float]:
        part, spread = recalls(means, std)
        found = dict(zip([*each, *spreads], [*part.tolist(), *spread.tolist()], strict=True))
        return {**found, "balanced_accuracy": float(part.mean())}

    return by_class("recall", classes, (*each, *spreads, "balanced_accuracy"), finish)
