# SPDX-License-Identifier: Apache-2.0
"""Perplexity: the exponential of the mean loss per token, for records of unequal length.

    row          (sum over tokens of min(loss, bound) / (bound tokens), their number / tokens)
    perplexity   exp(bound * first / second), both noisy

A record's first ``tokens`` tokens with a label count, each with a loss of cross-entropy in nats
that is clipped to [0, bound]; a model without tokens has one per record.

Bounds. Both entries are in [0, 1], as are those of a mean over a unit's records: the norm is at
most sqrt(2), and so is the distance of two rows, which lie in the unit square. The number of tokens
is noised like the losses: nothing is divided by a true count. A token with a NaN loss is left
out; one with an infinite loss counts as the bound.

It is NaN if the noisy number of tokens is below 3 standard deviations of its noise.
"""

from __future__ import annotations

import math

import torch

from dpfed.core.checks import check_at_least, check_positive
from dpfed.core.errors import DataError
from dpfed.core.metric import Metric, ScoredRecords
from dpfed.core.types import Vector
from dpfed.metrics._classes import MIN_SIGNAL_TO_NOISE


def perplexity(tokens: int = 128, bound: float = 10.0) -> Metric:
    """The exponential of the mean loss per token, with noise.

    Args:
        tokens: how many tokens of a record count at most; the fewer, the less noise.
        bound: a larger loss of a token counts as this, in nats.

    Returns:
        a metric with the numbers ``perplexity`` and ``perplexity_std``.

    >>> import torch
    >>> perplexity(bound=10.0).finish(torch.tensor([0.0, 0.5]), 0.001)["perplexity"]
    1.0
    """
    check_at_least(1, "perplexity", tokens=tokens)
    check_positive("perplexity", bound=bound)

    def row(scored: ScoredRecords) -> torch.Tensor:
        losses = _token_losses(scored)
        known = torch.isfinite(losses) | (losses == math.inf)
        known &= known.cumsum(dim=1) <= tokens
        clipped = torch.where(known, losses.clamp(0.0, bound), 0.0).sum(dim=1) / bound
        return torch.stack([clipped, known.sum(dim=1).double()], dim=1) / tokens

    def finish(means: Vector, std: float) -> dict[str, float]:
        clipped, count = means.tolist()
        if not count > MIN_SIGNAL_TO_NOISE * std:
            return {"perplexity": math.nan, "perplexity_std": math.nan}
        part = min(1.0, max(0.0, clipped / count))
        value = math.exp(bound * part)
        slope = value * bound / count * math.hypot(1.0, part)  # of exp(bound first / second)
        return {"perplexity": value, "perplexity_std": slope * std}

    return Metric(
        size=2,
        row=row,
        finish=finish,
        names=("perplexity", "perplexity_std"),
        bound=math.sqrt(2),
        replace_bound=math.sqrt(2),
    )


def _token_losses(scored: ScoredRecords) -> torch.Tensor:
    """Cross-entropy of each token, [k, T]; NaN if it has no label."""
    scores, labels = scored.scores, scored.labels
    if scores.shape[:-1] == labels.shape and labels.dim() == 1:
        scores, labels = scores[:, None], labels[:, None]
    if labels.dim() != 2 or scores.shape[:-1] != labels.shape or labels.is_floating_point():
        raise DataError(
            f"metric 'perplexity' needs scores [records, tokens, classes] and labels of classes, "
            f"got {tuple(scores.shape)} and {labels.dtype} {tuple(labels.shape)}; leave it out of "
            f"evaluation.metrics for this model"
        )
    known = (labels >= 0) & (labels < scores.shape[-1])
    scores = scores if scores.dtype == torch.float64 else scores.float()
    chosen = scores.gather(-1, torch.where(known, labels, 0)[..., None])[..., 0]
    losses = (torch.logsumexp(scores, dim=-1) - chosen).double()
    return torch.where(known, losses, math.nan)
