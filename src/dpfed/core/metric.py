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

No torch is imported here at run time: a recipe is read without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, runtime_checkable

from dpfed.core.types import Unit, Vector

if TYPE_CHECKING:
    import torch


class ScoredRecords(NamedTuple):
    """Some records under a model, one entry each. Sensitive."""

    scores: torch.Tensor
    """The model's outputs, [k, ...]: scores of classes or tokens, or predicted numbers."""
    labels: torch.Tensor
    """Classes or numbers, [k, ...]; -100, or a NaN, where there is none."""
    right: torch.Tensor
    """1.0 or 0.0, or the part of the record that is right; NaN where that is no question."""
    losses: torch.Tensor
    """By the model's own loss."""


MetricRow: TypeAlias = Callable[[ScoredRecords], "torch.Tensor"]


class Metric(NamedTuple):
    """A row per record, its bounds, and what follows from the noisy means of rows.

    Rows have no negative entries, so that the distance of two is at most sqrt(2) ``bound``:
    |a - b|^2 = |a|^2 + |b|^2 - 2 a.b, and a.b >= 0. joint_row enforces that and ``bound``.
    """

    size: int
    """The length of a row."""
    row: MetricRow
    """Rows of some records, [k, size], each of its own record alone."""
    finish: Callable[[Vector, float], Mapping[str, float]]
    """(noisy means over the public number of units, known std of each) -> the named numbers."""
    names: tuple[str, ...]
    """Of these numbers: public, before the first round."""
    bound: float = 1.0
    """The largest norm of a row: what removing a unit, or making it zero, moves a sum by."""
    replace_bound: float = math.sqrt(2)
    """The largest distance of two rows, from ``bound`` to sqrt(2) ``bound``."""
    made_by: str = ""
    """The plug-in's name and options: the registry writes it, and both sides compare it."""


Metrics: TypeAlias = Sequence[Metric]


@runtime_checkable
class Judged(Protocol):
    """A problem that can judge its records by any row. Sensitive."""

    def judged(self, params: Vector, unit: Unit, row: MetricRow) -> torch.Tensor:
        """Per unit, the mean of the row over the unit's own records, [units, size]."""


def joint_size(metrics: Metrics) -> int:
    """The length of the joint row."""
    return sum(metric.size for metric in metrics)


def joint_bound(metrics: Metrics) -> float:
    """The largest norm of the joint row: each part has norm at most 1."""
    return math.sqrt(len(metrics))


def joint_replace_bound(metrics: Metrics) -> float:
    """The largest distance of two joint rows."""
    return math.hypot(*(metric.replace_bound / metric.bound for metric in metrics))
