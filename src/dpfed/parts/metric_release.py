# SPDX-License-Identifier: Apache-2.0
"""Metrics with noise of scores and labels that are at hand: one release, with its cost.

The same plug-ins, bounds and mechanism as federated metrics (docs/watching.md): each record has one
row of all metrics, the rows go through one door, and the figures are read off the noisy means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dpfed.accounting.calibrate import calibrate
from dpfed.accounting.event_tree import ChannelUse, TrainingReleases
from dpfed.accounting.guarantee import Guarantee, guarantee
from dpfed.core.checks import refuse
from dpfed.core.html import html_table
from dpfed.core.metric import (
    Metric,
    ScoredRecords,
    contained_row,
    joint_bound,
    joint_replace_bound,
    joint_row,
    metric_parts,
)
from dpfed.core.randomness import Noise
from dpfed.core.registry import build
from dpfed.core.rows import MetricRows
from dpfed.core.types import METRICS, Adjacency, Facts
from dpfed.data.losses import CrossEntropy, JudgingLoss, Loss
from dpfed.mechanisms.gaussian import gaussian
from dpfed.parts.charge import charged


@dataclass(frozen=True)
class NoisyMetrics:
    """Metrics that were released with noise, and what that has cost.

    >>> found = noisy_metrics(torch.eye(3)[[0, 1, 2] * 90], torch.arange(3).repeat(90), epsilon=8.0)
    >>> found.figures["accuracy"] > 0.5, found.guarantee.rounds
    (True, 1)
    """

    figures: Mapping[str, float]
    """By name; those that end in _std are the error from noise."""
    guarantee: Guarantee

    def _repr_html_(self) -> str:
        rows = [(name, f"{value:.4g}") for name, value in self.figures.items()]
        return html_table("", (), rows, self.guarantee.sentence)


def noisy_metrics(
    scores: torch.Tensor,
    labels: torch.Tensor,
    metrics: Sequence[str | Mapping[str, Any]] = ("accuracy",),
    *,
    epsilon: float,
    delta: float = 1e-5,
    adjacency: Adjacency | str = Adjacency.REPLACE_ONE,
    loss: Loss | None = None,
    dataset: str | None = None,
    name: str = "",
    ledger: str | Path | None = None,
) -> NoisyMetrics:
    """Accuracy, AUC and the like with noise: one release of records' scores and labels.

    Args:
        scores: what a model says of each record, [records, ...]; a model that these records have
            trained needs a budget of its own.
        labels: their classes or numbers, [records, ...].
        metrics: names of metrics, or tables such as {"name": "auc", "bins": 12}.
        epsilon: what the release may cost.
        delta: the delta of that.
        adjacency: replace-one or zero-out: the number of records is public.
        loss: one value per record, from scores and labels; None is cross-entropy.
        dataset: the owner's name for the data, whose ledger the cost is entered in; None enters
            nothing.
        name: what the release is called there; a name is used once.
        ledger: the ledger's file; None is DPFED_LEDGER, or the default place.

    Returns:
        the figures by name, and the guarantee.

    >>> scores, labels = torch.tensor([[2.0, 0.0], [0.0, 2.0]]).repeat(500, 1), torch.arange(2)
    >>> found = noisy_metrics(scores, labels.repeat(500), ["accuracy", "auc"], epsilon=4.0)
    >>> sorted(found.figures), found.figures["accuracy"] > 0.9
    (['accuracy', 'accuracy_std', 'auc', 'auc_std'], True)
    """
    if adjacency == Adjacency.ADD_REMOVE:
        bound = "replace-one or zero-out, since figures are divided by the number of records"
        raise refuse("adjacency", bound, str(adjacency))
    if not len(scores) or len(scores) != len(labels):
        raise refuse("labels", f"one per record, {len(scores)}", len(labels), "give both of all")
    if not isinstance(metrics, list | tuple):  # others may be records, and names are quoted
        raise refuse("metrics", "a list of names or tables", metrics, "for example ['accuracy']")
    made = [_metric(each) for each in metrics]
    facts = Facts(
        clip=joint_bound(made),
        adjacency=Adjacency(adjacency),
        replace_bound=joint_replace_bound(made),
    )
    mechanism = calibrate(gaussian(facts), epsilon=epsilon, delta=delta, releases=1)
    if dataset is not None:
        with charged(
            mechanism.event(1),
            dataset=dataset,
            name=name,
            adjacency=adjacency,
            delta=delta,
            ledger=ledger,
        ):
            pass
    rows = contained_row(joint_row(made))(_scored(scores, labels, loss))
    joint = MetricRows(rows, distance=joint_replace_bound(made))
    release, _ = mechanism.release(joint, (), Noise().stream("release"))
    mean, std = release.vector * (release.step / len(scores)), release.std / len(scores)
    figures: dict[str, float] = {}
    for metric, part in metric_parts(made, mean):
        figures.update(metric.finish(part, std * metric.bound))
    kind = (ChannelUse(METRICS, 1),)
    released = TrainingReleases({METRICS: mechanism}, {kind: 1}, pooled=False)
    return NoisyMetrics(figures, guarantee(released, delta, Noise().source, rounds=1))


def _metric(given: str | Mapping[str, Any]) -> Metric:
    table = {"name": given} if isinstance(given, str) else dict(given)
    made: Metric = build("metrics", str(table.pop("name", "")), table)
    return made


def _scored(scores: torch.Tensor, labels: torch.Tensor, loss: Loss | None) -> ScoredRecords:
    """Scores and labels with the loss of each record, and whether it is right."""
    judge = CrossEntropy() if loss is None else loss
    plain = scores.detach().double()
    right = torch.full((len(plain),), torch.nan, dtype=torch.float64)
    if isinstance(judge, JudgingLoss):
        right = judge.right(plain, labels).double()
    return ScoredRecords(plain, labels, right, judge(plain, labels))
