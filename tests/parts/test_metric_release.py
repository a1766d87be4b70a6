# SPDX-License-Identifier: Apache-2.0
"""Metrics of scores that are at hand: right on average, with the noise that the bounds ask for."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from dpfed.core.errors import RecipeError, UnsoundPlan
from dpfed.data.losses import loss_by_name
from dpfed.parts import NoisySum, noisy_metrics


def scored(records: int, right: float) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.arange(records) % 3
    shown = torch.where(torch.arange(records) < right * records, labels, (labels + 1) % 3)
    return 4.0 * torch.nn.functional.one_hot(shown, 3).double(), labels


def test_the_figures_are_those_of_the_records() -> None:
    scores, labels = scored(3000, right=0.7)
    found = noisy_metrics(scores, labels, ["accuracy", "loss"], epsilon=1e5).figures
    assert found["accuracy"] == pytest.approx(0.7, abs=1e-3)
    right = -math.log(math.exp(4) / (math.exp(4) + 2))
    wrong = -math.log(1 / (math.exp(4) + 2))
    assert found["loss"] == pytest.approx(0.7 * right + 0.3 * wrong, abs=0.01)


def test_the_noise_is_that_of_a_row_of_norm_one() -> None:
    """Replacing a record moves accuracy's row by 1, not by 2: half the noise of any row's."""
    scores, labels = scored(1000, right=0.5)
    found = noisy_metrics(scores, labels, epsilon=1.0)
    any_row = NoisySum(clip=1.0, epsilon=1.0, delta=1e-5)
    assert found.figures["accuracy_std"] == pytest.approx(any_row.std / 2 / 1000, rel=1e-3)
    assert found.guarantee.epsilon == pytest.approx(1.0, rel=1e-6)
    assert "accuracy_std" in found._repr_html_()
    drawn = [noisy_metrics(scores, labels, epsilon=1.0).figures["accuracy"] for _ in range(200)]
    spread = torch.tensor(drawn).std()
    assert float(spread) == pytest.approx(found.figures["accuracy_std"], rel=0.2)


def test_a_record_that_is_not_finite_or_has_no_class_moves_no_other() -> None:
    scores, labels = scored(600, right=1.0)
    scores[2], labels[1] = math.nan, 99
    asked: list[Any] = ["accuracy", {"name": "auc", "classes": 3}]
    found = noisy_metrics(scores, labels, asked, epsilon=1e5)
    assert found.figures["accuracy"] == pytest.approx(598 / 600, abs=1e-3)
    assert found.figures["auc"] > 0.99


def test_numbers_have_a_loss_of_their_own() -> None:
    y = torch.linspace(0, 1, 500)[:, None]
    squared = loss_by_name("squared")
    found = noisy_metrics(y + 0.1, y, ["mae"], epsilon=1e5, loss=squared)
    assert found.figures["mae"] == pytest.approx(0.1, abs=1e-2)


def test_it_is_entered_in_the_ledger_once(tmp_path: Path) -> None:
    scores, labels = scored(90, right=1.0)
    where = {"dataset": "ward", "name": "test", "ledger": tmp_path / "ledger.sqlite"}
    noisy_metrics(scores, labels, epsilon=1.0, **where)
    with pytest.raises(UnsoundPlan, match="in the ledger already"):
        noisy_metrics(scores, labels, epsilon=1.0, **where)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"adjacency": "add-remove"}, "adjacency must be replace-one or zero-out"),
        ({"metrics": ["f2"]}, "has no plug-in 'f2'"),
        ({"labels": torch.zeros(3)}, "labels must be one per record"),
    ],
)
def test_what_cannot_be_measured_is_refused(changes: dict[str, Any], said: str) -> None:
    scores, labels = scored(90, right=1.0)
    asked = {"scores": scores, "labels": labels, "epsilon": 1.0, **changes}
    with pytest.raises(RecipeError, match=said):
        noisy_metrics(**asked)
