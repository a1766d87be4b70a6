# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import torch

from dpfed.metrics.accuracy import accuracy
from tests.metrics.units import classified, holds_its_word, scored


def test_it_is_the_part_that_is_right_with_the_noise_that_it_says() -> None:
    records = classified(3)
    holds_its_word(accuracy(), records, float(records.right.double().mean()), "accuracy")


def test_noise_does_not_leave_the_range() -> None:
    for mean in (-0.3, 1.3):
        found = accuracy().finish(torch.tensor([mean]), 0.1)["accuracy"]
        assert found == (mean > 0)


def test_a_question_that_is_none_has_no_row() -> None:
    made = accuracy().row(scored(torch.zeros(1, 2), torch.zeros(1), torch.tensor([float("nan")])))
    assert made.isnan().all()  # and joint_row makes zero of it
