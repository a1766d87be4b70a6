# SPDX-License-Identifier: Apache-2.0
"""The metrics channel: noisy evaluation metrics released by clients.

It is a channel like any other: the plan accounts for it. Default metrics of a unit: correct (its
accuracy) and loss / bound, both in [0, 1]. A plan that names metrics releases their joint row
instead (core/metric.py).
"""

from __future__ import annotations

import math

from dpfed.core.metric import Metrics, joint_bound, joint_replace_bound, joint_size, metric_parts
from dpfed.core.types import METRICS, Aggregate, Channel, Phase, Vector


def metrics_channel(
    rounds: int,
    every: int,
    budget_fraction: float | None = None,
    metrics: Metrics = (),
    *,
    truncates: bool = False,
) -> Channel:
    """The channel of every unit's metrics.

    Args:
        rounds: how many rounds the run has.
        every: it is used in every k-th round, and in the last.
        budget_fraction: the fraction of the squared mu that it may use.
        metrics: what is measured; if empty: correct and loss / bound.
        truncates: whether the mechanism sums rows one by one, and always accounts for 2 clip.
    """
    judged = ((at + 1) % every == 0 or at + 1 == rounds for at in range(rounds))
    phases = tuple(Phase(1, int(due)) for due in judged) if every > 1 else (Phase(None, 1),)
    if not metrics:
        return Channel(
            phases, size=2, clip=math.sqrt(2), budget_fraction=budget_fraction, census=True
        )
    return Channel(
        phases,
        size=joint_size(metrics),
        clip=joint_bound(metrics),
        budget_fraction=budget_fraction,
        census=True,
        replace_bound=None if truncates else joint_replace_bound(metrics),
    )


def measured(seen: Aggregate | None, loss_bound: float, metrics: Metrics = ()) -> dict[str, float]:
    """What the metrics channel says of the model that the round began with.

    Args:
        seen: the aggregate of the round; None has nothing.
        loss_bound: what losses were clipped to, if no metrics are named.
        metrics: what is measured.
    """
    if seen is None or METRICS not in seen.public:
        return {}
    mean = seen.public[METRICS]
    if metrics:
        return _finished(mean, seen.noise_stds[METRICS], metrics)
    correct, loss = mean.tolist()  # noise may leave the range
    return {"accuracy": min(1.0, max(0.0, correct)), "loss": max(0.0, loss * loss_bound)}


def _finished(mean: Vector, std: float, metrics: Metrics) -> dict[str, float]:
    found: dict[str, float] = {}
    for metric, part in metric_parts(metrics, mean):
        found.update(metric.finish(part, std * metric.bound))
    return found
