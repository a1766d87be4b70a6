# SPDX-License-Identifier: Apache-2.0
"""The metrics channel: what clients release of how good the model is, with noise.

It is a channel like any other: the plan accounts for it. A plan that names no metrics has
(correct, loss / bound) of every unit, a point of the unit square; else it is the joint row of the
metrics that it names (core/metric.py).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dpfed.core.metric import Metrics, joint_bound, joint_replace_bound, joint_size
from dpfed.core.types import METRICS, Aggregate, Channel, Channels, Phase, Vector

if TYPE_CHECKING:
    from dpfed.training.plan import Plan


def metrics_channel(
    rounds: int,
    every: int,
    share: float | None = None,
    metrics: Metrics = (),
    *,
    truncates: bool = False,
) -> Channel:
    """The channel of every unit's metrics.

    Args:
        rounds: how many rounds the run has.
        every: it is used in every k-th round, and in the last.
        share: the part of the squared mu that it may use.
        metrics: what is measured; none are correct and loss / bound.
        truncates: whether the mechanism sums rows one by one, and prices 2 clip whatever they are.
    """
    judged = ((at + 1) % every == 0 or at + 1 == rounds for at in range(rounds))
    phases = tuple(Phase(1, int(due)) for due in judged) if every > 1 else (Phase(None, 1),)
    if not metrics:
        return Channel(phases, size=2, clip=math.sqrt(2), share=share, census=True)
    return Channel(
        phases, size=joint_size(metrics), clip=joint_bound(metrics), share=share, census=True,
        replace_bound=None if truncates else joint_replace_bound(metrics),
    )  # fmt: skip


def with_metrics(plan: Plan) -> Channels:
    """The channels of a plan's algorithm, and that of metrics where the plan has noise for it."""
    if METRICS not in plan.channels:
        return plan.client.channels
    channel = metrics_channel(
        plan.rounds, plan.metrics_every, metrics=plan.metrics,
        truncates=plan.channels[METRICS].exact,
    )  # fmt: skip
    return {**plan.client.channels, METRICS: channel}


def measured(seen: Aggregate | None, loss_bound: float, metrics: Metrics = ()) -> dict[str, float]:
    """What the metrics channel says of the model that the round began with.

    Args:
        seen: the aggregate of the round; None has nothing.
        loss_bound: what losses were clipped to, where no metrics are named.
        metrics: what is measured.
    """
    if seen is None or METRICS not in seen.public:
        return {}
    mean = seen.public[METRICS]
    if metrics:
        return _finished(mean, seen.levels[METRICS], metrics)
    correct, loss = mean.tolist()  # noise may leave the range
    return {"accuracy": min(1.0, max(0.0, correct)), "loss": max(0.0, loss * loss_bound)}


def _finished(mean: Vector, std: float, metrics: Metrics) -> dict[str, float]:
    from dpfed.core.metric_rows import metric_parts  # torch: a plan is made without it

    found: dict[str, float] = {}
    for metric, part in metric_parts(metrics, mean):
        found.update(metric.finish(part, std * metric.bound))
    return found
