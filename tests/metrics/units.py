# SPDX-License-Identifier: Apache-2.0
"""Many units, their totals, and noise on these: what tests of every metric share."""

from __future__ import annotations

import math

import torch

from dpfed.core.metric import KEPT, Metric, ScoredRecords, joint_row

UNITS, DRAWS, STD = 100_000, 400, 30.0


def scored(
    scores: torch.Tensor,
    labels: torch.Tensor,
    right: torch.Tensor | None = None,
    losses: torch.Tensor | None = None,
) -> ScoredRecords:
    """Records; what a test does not say is 0."""
    nothing = torch.zeros(len(labels))
    return ScoredRecords(
        scores, labels, nothing if right is None else right, nothing if losses is None else losses
    )


def classified(classes: int = 2, units: int = UNITS, seed: int = 0) -> ScoredRecords:
    """Records of classes of unequal size, under a model that is right more often than not."""
    generator = torch.Generator().manual_seed(seed)
    prior = torch.linspace(1.0, 2.0, classes)
    labels = torch.multinomial(prior, units, replacement=True, generator=generator)
    scores = torch.randn(units, classes, generator=generator)
    scores[torch.arange(units), labels] += 1.0
    return scored(scores, labels, (scores.argmax(dim=1) == labels).float())


def means(metric: Metric, records: ScoredRecords) -> torch.Tensor:
    """The mean row, by the way that rows go out: joint, and back."""
    return joint_row([metric])(records).mean(dim=0) * (metric.bound / KEPT)


def holds_its_word(
    metric: Metric, records: ScoredRecords, exact: float, name: str, near: float = 1e-6
) -> None:
    """Without noise the exact value; with noise as much spread as is said, and no more bias.

    Args:
        metric: what is measured.
        records: on which.
        exact: what it is, by another way.
        name: of the number.
        near: how far off the value may be without noise, such as by bins.
    """
    total = means(metric, records)
    clean = metric.finish(total, 0.0)
    assert set(clean) == set(metric.names)
    assert abs(clean[name] - exact) <= near
    generator = torch.Generator().manual_seed(1)
    std = STD * metric.bound / len(records.labels)
    noise = torch.randn(DRAWS, metric.size, generator=generator, dtype=torch.float64) * std
    found = [metric.finish(total + each, std) for each in noise]
    values = torch.tensor([each[name] for each in found])
    stated = sum(each[f"{name}_std"] for each in found) / DRAWS
    spread = float(values.std())
    assert 0.87 < spread / stated < 1.13  # 3.5 standard errors of the spread of 400
    bias = float(values.mean()) - clean[name]
    assert abs(bias) < 4 * spread / math.sqrt(DRAWS)
