# SPDX-License-Identifier: Apache-2.0
"""The mean loss, by the model's own loss, of records whose losses are clipped to a public bound.

    row    the loss in [0, bound], over bound
    loss   bound times the noisy mean over the public number of units, at least 0

Bounds. A row is a number of [0, 1], and so is a mean of such: its norm is at most 1, and two of
them are at most 1 apart. A loss that is infinite counts as the bound; one that is a NaN as nothing.
"""

from __future__ import annotations

from dpfed.core.checks import positive
from dpfed.core.metric import Metric
from dpfed.metrics._numbers import mean_of


def loss(bound: float = 5.0) -> Metric:
    """The mean loss.

    Args:
        bound: a larger loss of a record counts as this, which is public.
    """
    positive("loss", bound=bound)
    return mean_of(
        "loss", lambda scored: scored.losses[:, None].clamp(0, bound) / bound, scale=bound
    )
