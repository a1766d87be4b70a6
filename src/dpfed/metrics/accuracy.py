# SPDX-License-Identifier: Apache-2.0
"""Accuracy: the fraction of units predicted correctly; a unit with several records has their mean.

    row        1 if a record is predicted correctly, else 0; between them if the loss allows it
    accuracy   the noisy mean over the public number of units, in [0, 1]

Bounds. A row is a number of [0, 1], and so is a mean of such: its norm is at most 1, and two of
them are at most 1 apart. Removing or zeroing a unit moves the sum by at most 1, replacing it too.
The denominator is the plan's public number of units, not a count of records.
"""

from __future__ import annotations

from dpfed.core.metric import Metric
from dpfed.metrics._numbers import mean_of


def accuracy() -> Metric:
    """The fraction of units that the model predicts correctly, with noise.

    Returns:
        a metric with the numbers ``accuracy`` and ``accuracy_std``.

    >>> import torch
    >>> accuracy().finish(torch.tensor([0.75]), 0.01)
    {'accuracy': 0.75, 'accuracy_std': 0.01}
    """
    return mean_of("accuracy", lambda scored: scored.right[:, None].clamp(0, 1), largest=1.0)
