# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import pytest
import torch

from dpfed.core.errors import DataError, RecipeError
from dpfed.metrics.recall import recall
from tests.metrics.units import classified, holds_its_word, means, scored


@pytest.mark.parametrize("classes", [2, 4])
def test_it_is_the_part_of_a_class_that_is_right_with_the_noise_that_it_says(classes: int) -> None:
    records = classified(classes)
    for label in range(classes):
        exact = float(records.right[records.labels == label].double().mean())
        holds_its_word(recall(classes), records, exact, f"recall_{label}")


def test_denominators_are_noised() -> None:
    """Noise on hits and misses alike moves the count that a recall is divided by."""
    metric, records = recall(), classified(units=1000)
    total = means(metric, records)
    for cell in range(metric.size):
        moved = total.clone()
        moved[cell] += 0.1
        label = f"recall_{cell % 2}"
        assert metric.finish(moved, 0.0)[label] != metric.finish(total, 0.0)[label]


def test_a_class_of_nobody_has_no_recall() -> None:
    metric = recall(3)
    found = metric.finish(torch.tensor([50.0, 30.0, 1.0, 50.0, 20.0, 1.0]) / 100, 0.01)
    assert math.isnan(found["recall_2"])
    assert math.isnan(found["recall_2_std"])
    assert math.isnan(found["balanced_accuracy"])
    assert found["recall_0"] == pytest.approx(0.5)


def test_labels_that_are_no_classes_and_scores_that_are_no_numbers_have_zero_rows() -> None:
    labels = torch.tensor([-100, 2, 2**62, 0, 1])
    scores = torch.zeros(5, 2)
    scores[3, 0], scores[4, 1] = math.nan, math.inf
    made = recall().row(scored(scores, labels, torch.ones(5)))
    assert not made.any()


def test_another_number_of_classes_is_refused() -> None:
    with pytest.raises(DataError, match="built for 2 classes"):
        recall().row(classified(3, 5))
    with pytest.raises(RecipeError, match=r"recall\.classes must be"):
        recall(1)
