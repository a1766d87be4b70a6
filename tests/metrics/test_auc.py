# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import mannwhitneyu

from dpfed.accounting import gdp
from dpfed.core.errors import RecipeError
from dpfed.core.metric import ScoredRecords
from dpfed.metrics.auc import auc
from tests.metrics.units import classified, holds_its_word, means, scored


def exact_area(records: ScoredRecords) -> float:
    """The mean of each class against the rest, of scores as they are: Mann and Whitney's U."""
    odds = records.scores.double().log_softmax(dim=1)
    odds = odds - torch.log1p(-odds.exp())
    found = []
    for label in range(odds.shape[1]):
        mine = records.labels == label
        one, rest = odds[mine, label].numpy(), odds[~mine, label].numpy()
        found.append(mannwhitneyu(one, rest).statistic / (len(one) * len(rest)))
    return float(sum(found) / len(found))


@pytest.mark.parametrize("classes", [2, 3])
def test_it_is_the_area_with_the_noise_that_it_says(classes: int) -> None:
    records = classified(classes)
    holds_its_word(auc(classes=classes), records, exact_area(records), "auc", near=0.001)


def test_more_bins_have_less_of_an_error() -> None:
    records = classified(units=20_000)
    exact = exact_area(records)
    few, many = (abs(auc(b).finish(means(auc(b), records), 0.0)["auc"] - exact) for b in (4, 128))
    assert many < 1e-4
    assert few > 1e-3


def ward(seed: int, records: int = 5000) -> ScoredRecords:
    """Two classes of equal size, a calibrated score, an area of 0.76."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 2, (records,), generator=generator)
    score = torch.randn(records, generator=generator) + labels - 0.5
    return scored(score[:, None], labels)


@pytest.mark.parametrize("moved", [math.sqrt(2), 1.0], ids=["replace-one", "zero-out"])
def test_at_epsilon_1_five_thousand_records_give_it_within_0_02(moved: float) -> None:
    """Measured over these seeds: 0.0121 and 0.0086 at most; root mean square 0.0048 and 0.0035."""
    std = moved / gdp.mu_for(1.0, 1e-5) / 5000
    metric, errors = auc(), []
    for seed in range(40):
        records = ward(seed)
        total = means(metric, records)
        generator = torch.Generator().manual_seed(1000 + seed)
        noisy = total + torch.randn(metric.size, generator=generator) * std
        both = torch.cat([torch.zeros(5000, 1), records.scores], dim=1)
        exact = exact_area(records._replace(scores=both))
        errors.append(metric.finish(noisy, std)["auc"] - exact)
    assert max(map(abs, errors)) < 0.02
    assert math.hypot(*errors) / math.sqrt(40) < 0.006


def test_one_score_is_that_of_the_second_class() -> None:
    records = ward(0, 500)
    both = records._replace(scores=torch.cat([torch.zeros(500, 1), records.scores], dim=1))
    assert torch.equal(auc().row(records), auc().row(both))


def test_bins_come_from_no_record() -> None:
    """A row is the same beside any other record."""
    records = ward(0, 50)
    extreme = scored(torch.full((60, 1), 4.0), torch.ones(60, dtype=torch.int64))
    joined = ScoredRecords(*(torch.cat(pair) for pair in zip(records, extreme, strict=True)))
    for metric in (auc(), auc(7)):
        assert torch.equal(metric.row(joined)[:50], metric.row(records))


def test_two_records_are_sqrt_2_apart_and_one_is_1_long() -> None:
    for classes in (2, 3):
        scores = torch.zeros(2, classes)
        scores[1] = torch.linspace(-30, 30, classes)
        made = auc(classes=classes).row(scored(scores, torch.tensor([0, 1])))
        assert made.norm(dim=1).tolist() == pytest.approx([1.0, 1.0])
        assert float((made[0] - made[1]).norm()) == pytest.approx(auc().replace_bound)


def test_what_is_no_number_or_no_class_has_a_zero_row() -> None:
    scores = torch.zeros(5, 2)
    scores[0, 0], scores[1, 1], scores[2, 0] = math.nan, math.inf, -math.inf
    made = auc().row(scored(scores, torch.tensor([0, 1, 0, -100, 2**62])))
    assert not made.any()


def test_too_few_of_a_class_have_no_area() -> None:
    found = auc(2).finish(torch.tensor([0.0, 0.01, 0.5, 0.4]), 0.01)
    assert math.isnan(found["auc"])
    with pytest.raises(RecipeError, match=r"auc\.bins must be"):
        auc(1)
