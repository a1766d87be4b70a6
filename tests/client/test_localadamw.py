# SPDX-License-Identifier: Apache-2.0
"""localadamw: what it declares, keeps and refuses. Its numbers are in oracles/test_adamw.py."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dpfed.core.errors import RecipeError, UnsoundPlan
from dpfed.core.registry import build
from dpfed.core.types import UPDATE, Facts, Trust, Unit
from dpfed.mechanisms.clear import clear
from dpfed.mechanisms.gaussian import gaussian
from tests.helpers.scaffold_oracle import HIDING, end, federation, make_plan, minimiser
from tests.refusals import named


def test_releases_are_accounted_for_per_step() -> None:
    for unit, expected in [(Unit.RECORD, 30), (Unit.GROUP, 30), (Unit.CLIENT, 10)]:
        client = build("client", "localadamw", {"steps": 3}, unit=unit)
        assert client.units == {unit}
        plan = make_plan(client, federation(2, 6), 10, gaussian(Facts(unit=unit)))
        assert plan.planned(UPDATE) == expected


def test_moments_are_kept_at_record_level_only() -> None:
    assert build("client", "localadamw", {}).reuses_own_releases
    assert not build("client", "localadamw", {"reset": True}).reuses_own_releases
    assert not build("client", "localadamw", {}, unit=Unit.CLIENT).reuses_own_releases
    with pytest.raises(RecipeError, match="data in clear"):
        build("client", "localadamw", {"reset": False}, unit=Unit.CLIENT)


@pytest.mark.parametrize("trust", [Trust.DISTRIBUTED, Trust.CENTRAL])
def test_at_record_level_only_local_trust_covers_it(trust: Trust) -> None:
    for reset in (True, False):
        client = build("client", "localadamw", {"reset": reset})
        with pytest.raises(UnsoundPlan, match="unmodified releases only"):
            make_plan(client, federation(2, 6), 3, gaussian(Facts(trust=trust)), sum=HIDING)


def test_at_client_level_a_trusted_server_may_add_the_noise() -> None:
    client = build("client", "localadamw", {}, unit=Unit.CLIENT)
    central = gaussian(Facts(unit=Unit.CLIENT, trust=Trust.CENTRAL))
    assert make_plan(client, federation(2, 6), 3, central).planned(UPDATE) == 3


@pytest.mark.long
def test_decay_pulls_the_fixed_point_to_zero() -> None:
    """Where the scaled gradient balances decay theta: nearer to 0 than the minimiser is."""
    data = federation(2, 40, alike=True)
    found = {}
    for decay in (0.0, 1.0):
        options = {"rate": 0.01, "decay": decay}
        plan = make_plan(build("client", "localadamw", options), data, 100, clear(Facts(50.0)))
        found[decay] = np.linalg.norm(end(plan, data))
    assert found[0.0] == pytest.approx(np.linalg.norm(minimiser(data)), abs=1e-6)
    assert found[1.0] < 0.99 * found[0.0]


def test_its_noise_level_is_not_stated() -> None:
    assert math.isnan(build("client", "localadamw", {}).channels[UPDATE].noise)


@pytest.mark.parametrize(
    "options",
    [
        {"steps": 0},
        {"rate": 0.0},
        {"rate": math.nan},
        {"eps": 0.0},
        {"decay": -1.0},
        {"decay": math.nan},
        {"beta1": 1.0},
        {"beta2": -0.1},
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=named("localadamw", options)):
        build("client", "localadamw", options)
