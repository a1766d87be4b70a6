# SPDX-License-Identifier: Apache-2.0
"""What metrics share whose row is one number in [0, 1]."""

from __future__ import annotations

import math

from dpfed.core.metric import Metric, MetricRow
from dpfed.core.types import Vector


def mean_of(name: str, row: MetricRow, scale: float = 1.0, largest: float = math.inf) -> Metric:
    """The mean of a number of [0, 1], and the standard deviation of its noise.

    Args:
        name: of the mean; that of the noise's level is ``NAME_std``.
        row: the number of each record, [k, 1].
        scale: what the mean is multiplied by.
        largest: what the result can be at most: noise may leave the range.
    """

    def finish(mean: Vector, std: float) -> dict[str, float]:
        value = min(largest, max(0.0, float(mean[0]) * scale))
        return {name: value, f"{name}_std": std * scale}

    return Metric(
        size=1, row=row, finish=finish, names=(name, f"{name}_std"), bound=1.0, replace_bound=1.0
    )
