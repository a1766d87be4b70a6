# SPDX-License-Identifier: Apache-2.0
"""The path of ``discrete_gaussian`` followed from how many records were drawn.

Before: whether a linear model's sum is rounded as a whole or row by row was decided by the number
of rows that a secret draw had left.
"""

from __future__ import annotations

import pytest
import torch

from dpfed.core.randomness import Noise
from dpfed.core.rows import Outer
from dpfed.core.sampling import Poisson
from dpfed.core.types import Facts
from dpfed.mechanisms.discrete_gaussian import discrete_gaussian

UNITS = 30
Paths = list[tuple[int, bool]]


@pytest.fixture
def paths(monkeypatch: pytest.MonkeyPatch) -> Paths:
    """Of each release: how many rows were drawn, and whether their sum was rounded as a whole."""
    taken: Paths = []
    whole = Outer.rounded_sum

    def noted(rows: Outer, *how: object) -> torch.Tensor | None:
        total = whole(rows, *how)  # type: ignore[arg-type]
        taken.append((int(rows.residual.any(dim=1).sum()), total is not None))
        return total

    monkeypatch.setattr(Outer, "rounded_sum", noted)
    return taken


def test_the_path_does_not_follow_from_the_drawn_number(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpfed.core.rows.covered", lambda rows, *_: rows <= UNITS // 2)
    mechanism = discrete_gaussian(Facts(clip=1.0), std=1.0).with_sampling(Poisson(0.5))
    rows = Outer(torch.ones(UNITS, 1), torch.ones(UNITS, 1), bias=False)
    for seed in range(20):
        mechanism.release(rows, mechanism.init(1), Noise(seed).stream("release"))
    drawn, whole = map(set, zip(*paths, strict=True))
    assert min(drawn) <= UNITS // 2 < max(drawn)
    assert len(whole) == 1
