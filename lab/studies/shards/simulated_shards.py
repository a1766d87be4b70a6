# SPDX-License-Identifier: Apache-2.0
"""A train function in shards, for linear heads, all shards of all silos at once.

SGD on a linear model stays in the span of the shard's records: W = W0 + X^T A, with one row of A for
each record. So the scores of a shard are X W0 + (X X^T) A, and X X^T is the same in every round. A
step costs records x width of a shard, and no shard's parameters are ever made: a round of 20,000
records takes some hundredths of a second, where one process for each shard takes 20 s. It is the
library's way in all else: clip, noise by mu and rounds, mean over all shards, adaptive clip, momentum.
lab/tests/test_simulated_shards.py holds it to the library's own rows and to real train functions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dpfed.accounting.gdp import mu_for
from dpfed.sums.secure import secure


class Shards(NamedTuple):
    """Records by shard [shards, width, columns], with a last column of ones, and what is padding."""

    x: Tensor
    y: Tensor
    present: Tensor
    gram: Tensor
    silos: tuple[int, ...]
    """How many shards each silo has."""
    outputs: int
    """Columns of the head: one for two classes with the logistic loss."""


class Function(NamedTuple):
    """What the train function does: epochs of SGD over batches, in the records' order."""

    epochs: int = 5
    batch: int = 32
    rate: float = 0.1
    momentum: float = 0.0
    loss: str = "softmax"
    """softmax, or logistic: one class against the rest, as scikit-learn's SGDClassifier has it."""


class Setting(NamedTuple):
    """Of a plan: the budget, who adds noise, the clip and the server's step."""

    epsilon: float
    trust: str
    clip: float
    """The first one, where it adapts."""
    quantile: float | None = None
    """None keeps the clip."""
    clip_rate: float = 1.0
    share: float = 0.02
    momentum: float = 0.0
    rounds: int = 10
    delta: float = 1e-5


def cut(silos: Sequence[tuple[Tensor, Tensor]], counts: Sequence[int], outputs: int) -> Shards:
    """Each silo's records, one after the other to its shards in turn.

    Args:
        silos: features and classes of each, in an order that says nothing.
        counts: shards of each silo.
        outputs: columns of the head.
    """
    width = max(math.ceil(len(y) / k) for (_, y), k in zip(silos, counts, strict=True))
    x = torch.zeros(sum(counts), width, silos[0][0].shape[1] + 1)
    y, present = torch.zeros(x.shape[:2], dtype=torch.long), torch.zeros(x.shape[:2])
    first = 0
    for (features, classes), k in zip(silos, counts, strict=True):
        place = torch.arange(len(classes))
        shard, row = first + place % k, place // k
        x[shard, row, :-1], x[shard, row, -1] = features, 1.0
        y[shard, row], present[shard, row] = classes, 1.0
        first += k
    return Shards(x, y, present, torch.bmm(x, x.transpose(1, 2)), tuple(counts), outputs)


def trained(W: Tensor, shards: Shards, function: Function) -> tuple[Tensor, Tensor]:
    """The function on every shard: A, of which X^T A is the update, and the updates' norms.

    Args:
        W: the parameters [columns, outputs].
        shards: the records.
        function: what is done on each.
    """
    width = shards.x.shape[1]
    scores = shards.x @ W
    goal = _goal(shards)
    A = torch.zeros_like(scores)
    velocity = torch.zeros_like(scores)
    for start in list(range(0, width, function.batch)) * function.epochs:
        at = slice(start, min(width, start + function.batch))
        now = scores[:, at] + torch.bmm(shards.gram[:, at], A)
        wrong = torch.softmax(now, -1) if function.loss == "softmax" else torch.sigmoid(now)
        here = shards.present[:, at]
        each = here / here.sum(1, keepdim=True).clamp(min=1)
        step = wrong.sub_(goal[:, at]).mul_(each[..., None])
        if function.momentum:
            velocity.mul_(function.momentum)[:, at] += step
            A.sub_(velocity, alpha=function.rate)
        else:
            A[:, at] -= function.rate * step
    squares = (A * torch.bmm(shards.gram, A)).sum((1, 2))
    return A, squares.clamp(min=0).sqrt()


def _goal(shards: Shards) -> Tensor:
    if shards.outputs == 1:
        return shards.y[..., None].float()
    return torch.nn.functional.one_hot(shards.y, shards.outputs).float()


def weighted_sum(shards: Shards, A: Tensor, weights: Tensor) -> Tensor:
    """The sum of the shards' updates, each times its weight.

    Args:
        shards: the records.
        A: what ``trained`` gave.
        weights: one for each shard.
    """
    flat = (A * weights[:, None, None]).reshape(-1, A.shape[2])
    return shards.x.reshape(-1, shards.x.shape[2]).T @ flat


def noise_of_mean(setting: Setting, shards: Shards) -> float:
    """The standard deviation of the mean's noise, at clip 1 and without the counts' part.

    Replacing a record moves the sum by at most two clips in each round. Under local trust every
    silo adds all of it; under the secure sum so much that the honest terms of whatever total can be
    opened add enough: seven of ten silos' by default.
    """
    copies = noise_copies(setting.trust, len(shards.silos))
    mu = mu_for(setting.epsilon, setting.delta)
    return 2 * math.sqrt(setting.rounds * copies) / mu / sum(shards.silos)


def noise_copies(trust: str, silos: int) -> float:
    """How many times the variance that a record needs is in the sum.

    Args:
        trust: local, or distributed with the secure sum as it is by default.
        silos: how many there are, of which one colludes.
    """
    return silos if trust == "local" else silos / secure().min_honest(silos, 1)


def train(
    shards: Shards, function: Function, setting: Setting, generator: torch.Generator
) -> Tensor:
    """The parameters after all rounds.

    Args:
        shards: the records.
        function: what is done on each.
        setting: budget, clip and step.
        generator: of the noise.
    """
    W = torch.zeros(shards.x.shape[2], shards.outputs)
    velocity, clip = torch.zeros_like(W), setting.clip
    share = 0.0 if setting.quantile is None else setting.share
    std = noise_of_mean(setting, shards)
    for _ in range(setting.rounds):
        A, norms = trained(W, shards, function)
        mean = weighted_sum(shards, A, clip / norms.clamp(min=clip)) / sum(shards.silos)
        noise = clip * std / math.sqrt(1 - share) * torch.randn(W.shape, generator=generator)
        velocity = setting.momentum * velocity + mean + noise
        W = W + velocity
        if setting.quantile is not None:
            counted = float((norms <= clip).float().mean())
            off = float(torch.randn(1, generator=generator)) * std / 2 / math.sqrt(share)
            within = min(1.0, max(0.0, counted + off))
            clip *= math.exp(-setting.clip_rate * (within - setting.quantile))
    return W


def accuracy(W: Tensor, x: Tensor, y: Tensor) -> float:
    """Percent of records that the head puts in their class.

    Args:
        W: the parameters.
        x: features.
        y: classes.
    """
    scores = x @ W[:-1] + W[-1]
    found = scores.argmax(1) if W.shape[1] > 1 else (scores[:, 0] > 0).long()
    return 100 * float((found == y).float().mean())
