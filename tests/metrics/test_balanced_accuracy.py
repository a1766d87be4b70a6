# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from dpfed.metrics.balanced_accuracy import balanced_accuracy
from dpfed.metrics.recall import recall
from tests.metrics.units import classified, holds_its_word, means


@pytest.mark.parametrize("classes", [2, 5])
def test_it_is_the_mean_of_recalls_with_the_noise_that_it_says(classes: int) -> None:
    records = classified(classes)
    parts = [float(records.right[records.labels == c].double().mean()) for c in range(classes)]
    exact = sum(parts) / classes
    holds_its_word(balanced_accuracy(classes), records, exact, "balanced_accuracy")


def test_recall_says_the_same() -> None:
    records = classified(3, 1000)
    total = means(recall(3), records) + 0.01
    one, other = balanced_accuracy(3).finish(total, 0.001), recall(3).finish(total, 0.001)
    assert one["balanced_accuracy"] == other["balanced_accuracy"]
