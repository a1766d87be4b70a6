# SPDX-License-Identifier: Apache-2.0
"""The mean absolute error of predicted numbers; errors are clipped to a public bound.

    row   the mean over a record's targets of min(|prediction - target|, bound) / bound
    mae   bound times the noisy mean over the public number of units, at least 0

Bounds. A row is a number of [0, 1], and so is a mean of such: its norm is at most 1, and two of
them are at most 1 apart. An infinite prediction counts as the bound; a record with a NaN has a
zero row.
"""

from __future__ import annotations

import torch

from dpfed.core.checks import check_positive
from dpfed.core.errors import DataError
from dpfed.core.metric import Metric, ScoredRecords
from dpfed.metrics._numbers import mean_of


def mae(bound: float = 1.0) -> Metric:
    """The mean absolute error of predicted numbers, each error clipped to a public bound.

    Args:
        bound: a larger error counts as this; choose it from the range of the targets, not the data.

    Returns:
        a metric with the numbers ``mae`` and ``mae_std``.

    >>> import torch
    >>> mae(bound=2.0).finish(torch.tensor([0.25]), 0.01)
    {'mae': 0.5, 'mae_std': 0.02}
    """
    check_positive("mae", bound=bound)

    def row(scored: ScoredRecords) -> torch.Tensor:
        predicted = scored.scores.flatten(1).double()
        targets = scored.labels.reshape(len(predicted), -1).double()
        if predicted.shape != targets.shape:
            raise DataError(
                f"metric 'mae' needs one prediction per target, got {predicted.shape[1]} for "
                f"{targets.shape[1]}; leave it out of evaluation.metrics for classes"
            )
        errors = (predicted - targets).abs().clamp(max=bound) / bound
        return errors.mean(dim=1, keepdim=True)

    return mean_of("mae", row, scale=bound)
