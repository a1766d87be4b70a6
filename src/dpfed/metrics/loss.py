# SPDX-License-Identifier: Apache-2.0
"""The mean loss, by the model's own loss, of records whose losses are clipped to a public bound.

    row    the loss in [0, bound], over bound
    loss   bound times the noisy mean over the public number of units, at least 0

Bounds. A row is a number of [0, 1], and so is a mean of such: its norm is at most 1, and two of
them are at most 1 apart. An infinite loss counts as the bound; a record with a NaN loss has a
zero row.
"""

from __future__ import annotations

from dpfed.core.checks import check_positive
from dpfed.core.metric import Metric
from dpfed.metrics._numbers import mean_of


def loss(bound: float = 5.0) -> Metric:
    """The mean of the model's own loss, each record's loss clipped to a public bound, with noise.

    Args:
        bound: a larger loss of a record counts as this; the same for all clients.

    Returns:
        a metric with the numbers ``loss`` and ``loss_std``.

    >>> import torch
    >>> loss(bound=4.0).finish(torch.tensor([0.25]), 0.01)
    {'loss': 1.0, 'loss_std': 0.04}
    """
    check_positive("loss", bound=bound)
    return mean_of(
        "loss", lambda scored: scored.losses[:, None].clamp(0, bound) / bound, scale=bound
    )
