# SPDX-License-Identifier: Apache-2.0
"""Add-remove for whole clients said that nobody learns who was there. Everybody could.

Under local trust each client brings its own share of noise: the spread of a total tells how many
shares it has. With 9 or 8 shares that a colluder cannot subtract, 5 rounds and 999 numbers, epsilon
is at least 6.83; 0.30 was printed. Under central trust the number of clients reached optimizers and
history.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from scipy.stats import chi2

from dpfed.core.errors import RecipeError, UnsoundPlan
from dpfed.core.vector import Layout
from dpfed.flower import make_plan
from dpfed.recipes.compare_mechanisms import compare_mechanisms
from dpfed.recipes.noise_for import noise_for
from dpfed.training.plan import Plan

LAYOUT = Layout({"weight": (1, 999), "bias": (1,)})


def plan(rounds: int = 5, **privacy: Any) -> Plan:
    given = {"epsilon": 1.0, "delta": 1e-5, "unit": "client", "nominal": 1.0, **privacy}
    return make_plan([1] * 10, LAYOUT, rounds=rounds, method="dp-fedgd", privacy=given)


def test_the_spread_of_a_total_tells_who_was_there() -> None:
    """What the attack computes, and what zero-out, which stays allowed, prints: why it is so."""
    numbers = 5 * 999
    cut = 8.5 * numbers
    found, wrong = chi2.sf(cut / 9, numbers), chi2.sf(cut / 8, numbers)
    assert math.log((found - 1e-5) / wrong) > 6.8
    assert plan(adjacency="zero-out").guarantee().claims[-1].epsilon < 0.31


@pytest.mark.parametrize(
    ("privacy", "why"),
    [
        ({}, "its share of the noise is missing; use 'zero-out'"),
        ({"client_rate": 0.5}, "its share of the noise is missing; use 'zero-out'"),
        ({"trust": "central"}, "how many clients took part; .* privacy.client_rate"),
        ({"mechanism": "discrete_gaussian"}, "its share of the noise is missing"),
    ],
)
def test_add_remove_is_refused_where_presence_shows(privacy: dict[str, Any], why: str) -> None:
    with pytest.raises(UnsoundPlan, match=f"got 'add-remove': .*{why}"):
        plan(adjacency="add-remove", **privacy)


def test_add_remove_is_refused_in_a_secure_sum() -> None:
    with pytest.raises(UnsoundPlan, match="got 'add-remove'"):
        make_plan(
            [1] * 10,
            LAYOUT,
            rounds=5,
            method="dp-fedgd",
            sum={"name": "secure"},
            privacy={
                "epsilon": 1.0,
                "unit": "client",
                "nominal": 1.0,
                "trust": "distributed",
                "adjacency": "add-remove",
            },
        )


@pytest.mark.long
def test_a_secret_draw_and_smaller_units_may_be_added_or_removed() -> None:
    """A drawn client that is not there is a zero, and a record's client brings its noise anyway."""
    assert plan(adjacency="add-remove", trust="central", client_rate=0.5).guarantee().epsilon <= 1
    assert plan(adjacency="add-remove", unit="record").guarantee().epsilon <= 1
    assert plan(adjacency="add-remove", unit="group").guarantee().epsilon <= 1


def test_no_noise_is_calibrated_for_it() -> None:
    given = {"epsilon": 1.0, "delta": 1e-5, "rounds": 5}
    for trust in ("local", "distributed", "central"):
        with pytest.raises(RecipeError, match="who takes part shows"):
            noise_for(**given, clients=10, unit="client", adjacency="add-remove", trust=trust)  # type: ignore[arg-type]
    assert noise_for(**given, clients=10, unit="record", adjacency="add-remove")  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match="who takes part shows"):
        compare_mechanisms(**given, population=100, cohort=10, adjacency="add-remove")  # type: ignore[arg-type]
