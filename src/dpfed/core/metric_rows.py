# SPDX-License-Identifier: Apache-2.0
"""The joint row of several metrics, and the way back from its noisy mean.

Guarantee: whatever scores and labels are, and whatever a metric's own code makes of them, a part of
the joint row has no negative entry and norm at most 1, so that bound and replace_bound hold
(metric.py). A part gives up 2^-20, as clipped rows do: more than rounding may add to a sum.

| edge case                                       | what happens                              |
|-------------------------------------------------|-------------------------------------------|
| a row with a NaN or an infinity                 | that part of the record's row is zero     |
| a negative entry                                | 0                                         |
| a row that is longer than its metric's bound    | shortened to it                           |
| a record that a metric's own code raises on     | its row is zero, in all parts             |
| rows of another length than the metric declares | DataError: on made-up records, before     |
|                                                 | data is touched                           |
| a mechanism that truncates rows one by one      | rows stay in the set, and 2 clip is priced |
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from dpfed.core.clipping import SHORTFALL
from dpfed.core.errors import DataError, failures
from dpfed.core.metric import Metric, MetricRow, Metrics, ScoredRecords
from dpfed.core.rows import Dense
from dpfed.core.types import BoundedSum, Vector

KEPT = 1 - SHORTFALL
"""How long the longest part is."""


@dataclass(frozen=True, eq=False)
class MetricRows(Dense):
    """Joint rows, one per unit; replacing one moves their sum by at most ``distance``."""

    distance: float = math.inf  # not stated: what any clipped rows keep

    def select(self, kept: torch.Tensor) -> MetricRows:
        """The rows of the units in ``kept``."""
        return replace(self, matrix=self.matrix[kept])

    def clipped_sum(self, clip: float) -> BoundedSum:
        """The sum, with the bound of these rows where the clip leaves them as they are."""
        made = super().clipped_sum(clip)
        return replace(made, replace_bound=min(self.distance, made.replace_bound))


def joint_row(metrics: Metrics) -> MetricRow:
    """The row of all metrics: their parts one after the other, each of norm at most 1."""

    def row(scored: ScoredRecords) -> torch.Tensor:
        return torch.cat([_part(metric, scored) for metric in metrics], dim=1)

    return row


def _part(metric: Metric, scored: ScoredRecords) -> torch.Tensor:
    made = metric.row(scored).double()
    if made.shape != (len(scored.labels), metric.size):
        raise DataError(
            f"rows of {metric.made_by or metric.names[0]} must have the shape "
            f"{(len(scored.labels), metric.size)}, got {tuple(made.shape)}; correct its row"
        )
    usable = torch.isfinite(made).all(dim=1, keepdim=True)
    made = torch.where(usable, made, 0.0).clamp(min=0.0) / metric.bound
    longest = made.amax(dim=1, keepdim=True).clamp(min=1.0)  # or a square could overflow
    norms = (made / longest).square().sum(dim=1, keepdim=True).sqrt() * longest
    return made * (KEPT / norms.clamp(min=1.0))


def contained_row(row: MetricRow) -> MetricRow:
    """The same, and a record that makes ``row`` raise has a zero row: the others' stay as they are.

    They are computed again beside empty entries in the place of those, in a batch of the same size.

    Args:
        row: rows of some records, each of its own record alone.
    """

    def contained(scored: ScoredRecords) -> torch.Tensor:
        try:
            return row(scored)
        except failures():
            failed = _failing(row, scored)
            made = row(ScoredRecords(*(_emptied(each, failed) for each in scored)))
            made[failed.to(made.device)] = 0
            return made

    return contained


def _failing(row: MetricRow, scored: ScoredRecords) -> torch.Tensor:
    """Which records make ``row`` raise, bool [k]: it raised on all of them; by halves."""
    size = len(scored.labels)
    if size <= 1:
        return torch.ones(size, dtype=torch.bool)
    halves = [
        ScoredRecords(*part) for part in zip(*(_halved(each) for each in scored), strict=True)
    ]
    found = []
    for half in halves:
        try:
            row(half)
            found.append(torch.zeros(len(half.labels), dtype=torch.bool))
        except failures():
            found.append(_failing(row, half))
    return torch.cat(found)


def _halved(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    middle = len(tensor) // 2
    return tensor[:middle], tensor[middle:]


def _emptied(tensor: torch.Tensor, failed: torch.Tensor) -> torch.Tensor:
    made = tensor.clone()
    made[failed.to(made.device)] = 0
    return made


def metric_parts(metrics: Metrics, mean: Vector) -> Iterator[tuple[Metric, Vector]]:
    """Each metric with its own part of a joint mean, in its own scale."""
    parts = torch.split(mean.double(), [metric.size for metric in metrics])
    for metric, part in zip(metrics, parts, strict=True):
        yield metric, part * (metric.bound / KEPT)
