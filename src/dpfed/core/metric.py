# SPDX-License-Identifier: Apache-2.0
"""What a metric is: a short row per record of a known bound, and numbers from noisy means of it.

    records, scored --> row --> a unit's mean --> [clip, noise, sum] --> finish --> named numbers
    client: sensitive                            | the metrics channel |  server: post-processing

A metric is one file of ``metrics/``. Several of them share the channel: each part is divided by its
own bound, so that it has norm at most 1 and gets the same share of the noise, and the parts stand
one after the other. With K parts, each of which replacing a unit moves by at most r_k of its
bounds, the joint row has norm at most sqrt(K), and replacing a unit moves it by at most
sqrt(r_1^2 + ... + r_K^2): coordinates of different parts are different coordinates.

A person's or a client's row is the mean over its own records. Rows lie in a convex set, so means
do too, and both bounds stay.

Guarantee: whatever scores and labels are, and whatever a metric's own code makes of them, a part of
the joint row has no negative entry and norm at most 1, so that bound and replace_bound hold. A part
gives up 2^-20, as clipped rows do: more than rounding may add to a sum.

| edge case                                       | what happens                              |
|-------------------------------------------------|-------------------------------------------|
| a row with a NaN or an infinity                 | that part of the record's row is zero     |
| a negative entry                                | 0                                         |
| a row that is longer than its metric's bound    | shortened to it                           |
| an entry by which two rows could be further     | shortened to replace_bound / sqrt(size)   |
| apart than a replace_bound below sqrt(2) bound  |                                           |
| a record that a metric's own code raises on     | its row is zero, in all parts             |
| rows of another length than the metric declares | DataError: on made-up records, before     |
|                                                 | data is touched                           |
| a mechanism that truncates rows one by one      | rows stay in the set; its cost is 2 clip's |

torch is imported by the functions that need it: a recipe is read without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

from dpfed.core.errors import DataError, failures
from dpfed.core.grid import SHORTFALL
from dpfed.core.types import MadeBy, Unit, Vector

if TYPE_CHECKING:
    import torch


KEPT = 1 - SHORTFALL
"""The largest norm of a part of the joint row."""


class ScoredRecords(NamedTuple):
    """Some records under a model, one entry each. Sensitive."""

    scores: torch.Tensor
    """The model's outputs, [k, ...]: scores of classes or tokens, or predicted numbers."""
    labels: torch.Tensor
    """Classes or numbers, [k, ...]; -100, or a NaN, if there is none."""
    right: torch.Tensor
    """1.0 or 0.0, or the fraction of the record that is right; NaN if the question has no sense."""
    losses: torch.Tensor
    """The losses of the model's own loss function."""


MetricRow: TypeAlias = Callable[[ScoredRecords], "torch.Tensor"]


class Metric(NamedTuple):
    """A row per record, its bounds, and what follows from the noisy means of rows.

    Rows have no negative entries, so that the distance of two is at most sqrt(2) ``bound``:
    |a - b|^2 = |a|^2 + |b|^2 - 2 a.b, and a.b >= 0. joint_row enforces that and both bounds: by a
    largest entry of ``replace_bound`` / sqrt(size) where less than sqrt(2) ``bound`` is declared.
    """

    size: int
    """The length of a row."""
    row: MetricRow
    """Rows of some records, [k, size], each of its own record alone."""
    finish: Callable[[Vector, float], Mapping[str, float]]
    """(noisy means over the public number of units, known std of each) -> the named numbers."""
    names: tuple[str, ...]
    """The names of the numbers of ``finish``: public, known before the first round."""
    bound: float = 1.0
    """The largest norm of a row: what removing a unit, or making it zero, moves a sum by."""
    replace_bound: float = math.sqrt(2)
    """The largest distance of two rows, from ``bound`` to sqrt(2) ``bound``."""
    made_by: MadeBy | None = None
    """The plug-in's name and options: the registry writes it, and both sides compare it."""


Metrics: TypeAlias = Sequence[Metric]


class RowPart(Protocol):
    """A part of a joint row: a metric's, or that of a question about a table."""

    @property
    def size(self) -> int:
        """Its length."""

    @property
    def bound(self) -> float:
        """Its largest norm."""

    @property
    def replace_bound(self) -> float:
        """The largest distance of two, one of which may be zero."""


Part = TypeVar("Part", bound=RowPart)


@runtime_checkable
class Judged(Protocol):
    """A problem that can judge its records by any row. Sensitive."""

    def judged(self, params: Vector, unit: Unit, row: MetricRow) -> torch.Tensor:
        """Per unit, the mean of the row over the unit's own records, [units, size]."""


def joint_size(metrics: Sequence[RowPart]) -> int:
    """The length of the joint row."""
    return sum(metric.size for metric in metrics)


def joint_bound(metrics: Sequence[RowPart]) -> float:
    """The largest norm of the joint row: each part has norm at most 1."""
    return math.sqrt(len(metrics))


def joint_replace_bound(metrics: Sequence[RowPart]) -> float:
    """The largest distance of two joint rows."""
    return math.hypot(*(metric.replace_bound / metric.bound for metric in metrics))


def joint_row(metrics: Metrics) -> MetricRow:
    """The row of all metrics: their parts one after the other, each of norm at most 1."""

    def row(scored: ScoredRecords) -> torch.Tensor:
        import torch

        return torch.cat([_part(metric, scored) for metric in metrics], dim=1)

    return row


def _part(metric: Metric, scored: ScoredRecords) -> torch.Tensor:
    import torch

    made = metric.row(scored).double()
    if made.shape != (len(scored.labels), metric.size):
        raise DataError(
            f"rows of {metric.made_by or metric.names[0]} must have the shape "
            f"{(len(scored.labels), metric.size)}, got {tuple(made.shape)}; correct its row"
        )
    usable = torch.isfinite(made).all(dim=1, keepdim=True)
    made = torch.where(usable, made, 0.0).clamp(min=0.0, max=_largest(metric)) / metric.bound
    longest = made.amax(dim=1, keepdim=True).clamp(min=1.0)  # or a square could overflow
    norms = (made / longest).square().sum(dim=1, keepdim=True).sqrt() * longest
    return made * (KEPT / norms.clamp(min=1.0))


def _largest(metric: Metric) -> float:
    """What an entry may be. Two rows of a box with the sides r / sqrt(size) are at most r apart."""
    if metric.replace_bound >= math.sqrt(2) * metric.bound:
        return math.inf
    return metric.replace_bound / math.sqrt(metric.size)


def contained_row(row: MetricRow) -> MetricRow:
    """``row``, with a zero row for a record that makes it raise; other rows keep their bits.

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
    import torch

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


def metric_parts(metrics: Sequence[Part], mean: Vector) -> Iterator[tuple[Part, Vector]]:
    """Each metric with its own part of a joint mean, in its own scale."""
    import torch

    parts = torch.split(mean.double(), [metric.size for metric in metrics])
    for metric, part in zip(metrics, parts, strict=True):
        yield metric, part * (metric.bound / KEPT)
