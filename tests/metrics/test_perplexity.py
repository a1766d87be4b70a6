# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from dpfed.core.errors import DataError, RecipeError
from dpfed.core.metric import ScoredRecords
from dpfed.metrics.perplexity import perplexity
from tests.metrics.units import UNITS, holds_its_word, means, scored


def texts(units: int = UNITS, tokens: int = 5, classes: int = 4) -> ScoredRecords:
    """Records of unequal length: the rest is no token."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(units, tokens, classes, generator=generator)
    labels = torch.randint(0, classes, (units, tokens), generator=generator)
    lengths = torch.randint(1, tokens + 1, (units, 1), generator=generator)
    labels[torch.arange(tokens) >= lengths] = -100
    return scored(scores, labels)


def test_it_is_that_of_all_tokens_with_the_noise_that_it_says() -> None:
    records = texts()
    losses = functional.cross_entropy(records.scores.mT, records.labels, reduction="none")
    counted = records.labels != -100
    exact = math.exp(float(losses[counted].double().clamp(max=3.0).mean()))
    metric = perplexity(tokens=5, bound=3.0)
    holds_its_word(metric, records, exact, "perplexity", near=1e-5)


def test_a_record_has_so_many_tokens_at_most() -> None:
    scores = torch.zeros(1, 6, 2)
    scores[0, 4:, 0] = 100.0  # the last two are wrong
    labels = torch.ones(1, 6, dtype=torch.int64)
    labels[0, 0] = -100
    made = perplexity(tokens=3, bound=2.0).row(scored(scores, labels))
    assert made[0].tolist() == pytest.approx([math.log(2) / 2, 1.0])


def test_the_number_of_tokens_is_noised() -> None:
    metric = perplexity(tokens=5)
    total = means(metric, texts(1000))
    more = total + torch.tensor([0.0, 0.1])
    assert metric.finish(more, 0.0)["perplexity"] < metric.finish(total, 0.0)["perplexity"]


def test_what_is_no_token_counts_for_nothing_and_an_infinite_loss_as_the_bound() -> None:
    scores = torch.zeros(4, 2)
    scores[0, 1], scores[1, 1] = math.nan, -math.inf
    made = perplexity(tokens=1, bound=2.0).row(scored(scores, torch.tensor([0, 1, 7, -1])))
    assert made.tolist() == [[0.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]
    assert math.isnan(perplexity().finish(torch.tensor([0.1, 0.1]), 0.1)["perplexity"])


def test_numbers_and_bad_options_are_refused() -> None:
    with pytest.raises(DataError, match="'perplexity' needs scores"):
        perplexity().row(scored(torch.zeros(4, 3), torch.zeros(4)))
    with pytest.raises(RecipeError, match=r"perplexity\.tokens must be"):
        perplexity(tokens=0)
