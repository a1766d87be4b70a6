# SPDX-License-Identifier: Apache-2.0
"""fedsam against a loop in NumPy; two releases a step; its bias is of the size of the radius."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from dpfed.client.fedsam import _climb
from dpfed.core.errors import RecipeError, UnsoundPlan
from dpfed.core.registry import build
from dpfed.core.types import UPDATE, Facts, Trust, Unit, Weights
from dpfed.mechanisms.clear import clear
from dpfed.mechanisms.gaussian import gaussian
from tests.helpers.scaffold_oracle import (
    HIDING,
    SIZE,
    Data,
    end,
    federation,
    make_plan,
    minimiser,
    private,
    unit_rows,
)
from tests.refusals import named

K, RATE, RADIUS = 3, 0.3, 0.4


def sam(data: Data, unit: Unit, C: float, std: float, T: int) -> np.ndarray:
    """Climb, then descend, K times a round on each client."""
    theta = np.zeros(SIZE)
    for t in range(T):
        total = np.zeros(SIZE)
        for i in range(len(data)):
            local = theta.copy()

            def gradient(at: np.ndarray, call: int, t: int = t, i: int = i) -> np.ndarray:
                rows = unit_rows(at, data[i], unit)
                return rows[0] if unit is Unit.CLIENT else private(rows, C, std, t, i, call)

            for k in range(K):
                a = gradient(local, 2 * k)
                local = local - RATE * gradient(local + RADIUS * a / np.linalg.norm(a), 2 * k + 1)
            moved = theta - local
            total += private(moved[None], C, std, t, i, 0) if unit is Unit.CLIENT else moved
        theta = theta - total / len(data)
    return theta


@pytest.mark.parametrize("weights", list(Weights))
@pytest.mark.parametrize("unit", list(Unit))
def test_the_path_is_sam_on_every_client(unit: Unit, weights: Weights) -> None:
    data = federation(3, 20)
    client = build("client", "fedsam", {"steps": K, "rate": RATE, "radius": RADIUS}, unit=unit)
    plan = make_plan(client, data, 5, gaussian(Facts(0.7, unit=unit), 0.5), weights=weights)
    expected = sam(data, unit, 0.7, 0.5, 5)
    assert np.abs(end(plan, data) - expected).max() < 1e-5
    assert np.abs(expected).max() > 0.1


def test_a_radius_of_zero_is_fedavg_at_twice_the_cost() -> None:
    data = federation(3, 20)
    options = {"steps": K, "rate": RATE}
    flat = make_plan(
        build("client", "fedsam", {**options, "radius": 0.0}), data, 5, clear(Facts(50.0))
    )
    plain = make_plan(build("client", "fedavg", options), data, 5, clear(Facts(50.0)))
    assert np.abs(end(flat, data) - end(plain, data)).max() < 1e-12
    assert flat.planned(UPDATE) == 2 * plain.planned(UPDATE) == 30


@pytest.mark.long
def test_it_ends_within_a_tenth_of_the_radius_of_the_minimiser() -> None:
    """On clients that are alike, without noise: SAM's bias shrinks with the radius."""
    data = federation(3, 40, alike=True)
    goal = minimiser(data)
    for radius in (0.05, 0.01):
        client = build("client", "fedsam", {"rate": 0.3, "radius": radius})
        away = np.abs(end(make_plan(client, data, 150, clear(Facts(50.0))), data) - goal).max()
        assert away < 0.1 * radius


def test_nowhere_to_climb() -> None:
    assert torch.equal(_climb(torch.zeros(3), 0.5), torch.zeros(3))
    assert torch.equal(_climb(torch.tensor([0.0, 2.0, 0.0]), 0.5), torch.tensor([0.0, 0.5, 0.0]))


def test_releases_are_two_a_step() -> None:
    for unit, expected in [(Unit.RECORD, 60), (Unit.GROUP, 60), (Unit.CLIENT, 10)]:
        client = build("client", "fedsam", {"steps": 3}, unit=unit)
        assert client.units == {unit}
        assert client.sends_unmodified == (unit is Unit.CLIENT)
        plan = make_plan(client, federation(2, 6), 10, gaussian(Facts(unit=unit)))
        assert plan.planned(UPDATE) == expected
    assert build("client", "fedsam", {"steps": 4}).channels[UPDATE].noise == 2.0


@pytest.mark.parametrize("trust", [Trust.DISTRIBUTED, Trust.CENTRAL])
def test_at_record_level_only_local_trust_covers_it(trust: Trust) -> None:
    with pytest.raises(UnsoundPlan, match="unmodified releases only"):
        make_plan(
            build("client", "fedsam", {}),
            federation(2, 6),
            3,
            gaussian(Facts(trust=trust)),
            sum=HIDING,
        )


@pytest.mark.parametrize(
    "options", [{"steps": 0}, {"rate": 0.0}, {"radius": -1.0}, {"radius": math.nan}]
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=named("fedsam", options)):
        build("client", "fedsam", options)
