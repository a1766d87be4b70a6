# SPDX-License-Identifier: Apache-2.0
"""Accuracy: the part of the units that is right; of a unit with several records, their mean.

    row        1 where a record is right, 0 where it is not; a part, where the loss knows parts
    accuracy   the noisy mean over the public number of units, in [0, 1]

Bounds. A row is a number of [0, 1], and so is a mean of such: its norm is at most 1, and two of
them are at most 1 apart. Removing or zeroing a unit moves the sum by at most 1, replacing it too.
The denominator is the plan's public number of units, not a count of records.
"""

from __future__ import annotations

from dpfed.core.metric import Metric
from dpfed.metrics._numbers import mean_of


def accuracy() -> Metric:
    """The part of the units that is right."""
    return mean_of("accuracy", lambda scored: scored.right[:, None].clamp(0, 1), largest=1.0)
