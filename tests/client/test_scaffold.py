# SPDX-License-Identifier: Apache-2.0
"""scaffold: what it declares, where it ends, and what control variates are for."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpfed.core.errors import RecipeError, UnsoundPlan
from dpfed.core.registry import build
from dpfed.core.types import UPDATE, Facts, Trust, Unit
from dpfed.mechanisms.clear import clear
from dpfed.mechanisms.gaussian import gaussian
from tests.helpers.scaffold_oracle import (
    HIDING,
    check_pure,
    end,
    federation,
    make_plan,
    minimiser,
    walk,
)
from tests.refusals import named


@pytest.mark.long
def test_it_reaches_the_pooled_minimiser_on_unlike_clients_where_fedavg_does_not() -> None:
    """Without noise, 5 local steps: SCAFFOLD has no drift, FedAvg's is a tenth of the goal."""
    data = federation(4, 40)
    goal = minimiser(data)
    options = {"steps": 5, "rate": 0.2}
    plan = make_plan(build("client", "scaffold", options), data, 250, clear(Facts(50.0)))
    drifting = make_plan(build("client", "fedavg", options), data, 250, clear(Facts(50.0)))
    assert np.abs(end(plan, data) - goal).max() < 1e-6
    assert np.abs(end(drifting, data) - goal).max() > 0.1 * np.abs(goal).max()


@pytest.mark.long
def test_the_client_level_reaches_it_too() -> None:
    data = federation(4, 40)
    client = build("client", "scaffold", {"steps": 5, "rate": 0.2}, unit=Unit.CLIENT)
    plan = make_plan(client, data, 250, clear(Facts(50.0, unit=Unit.CLIENT)))
    assert np.abs(end(plan, data) - minimiser(data)).max() < 1e-6


@pytest.mark.parametrize("unit", list(Unit))
def test_the_warm_start_leaves_the_model_and_sets_the_control(unit: Unit) -> None:
    data = federation(3, 12)
    client = build("client", "scaffold", {}, unit=unit)
    plan = make_plan(client, data, 2, clear(Facts(50.0, unit=unit)))
    state, broadcast, _ = next(iter(walk(plan, data)))
    assert not bool(state.params.any())
    assert not bool(broadcast.shared["control"].any())
    assert bool(state.optimizer[0].c.any())


def test_releases_are_accounted_for_by_phase() -> None:
    for unit, warm, expected in [
        (Unit.RECORD, True, 1 + 9 * 4),
        (Unit.GROUP, False, 10 * 4),
        (Unit.CLIENT, True, 10),
        (Unit.CLIENT, False, 10),
    ]:
        client = build("client", "scaffold", {"steps": 4, "warm": warm}, unit=unit)
        plan = make_plan(client, federation(2, 6), 10, gaussian(Facts(unit=unit)))
        assert plan.planned(UPDATE) == expected
        assert client.units == {unit}


@pytest.mark.parametrize("unit", [Unit.RECORD, Unit.CLIENT])
@pytest.mark.parametrize("trust", [Trust.DISTRIBUTED, Trust.CENTRAL])
def test_only_local_trust_covers_it(trust: Trust, unit: Unit) -> None:
    client = build("client", "scaffold", {}, unit=unit)
    with pytest.raises(UnsoundPlan, match=r"unmodified releases only|its own releases"):
        make_plan(client, federation(2, 6), 3, gaussian(Facts(unit=unit, trust=trust)), sum=HIDING)


def test_at_client_level_the_reason_is_what_a_client_keeps() -> None:
    client = build("client", "scaffold", {}, unit=Unit.CLIENT)
    central = gaussian(Facts(unit=Unit.CLIENT, trust=Trust.CENTRAL))
    with pytest.raises(UnsoundPlan, match="builds its later replies"):
        make_plan(client, federation(2, 6), 3, central)


def test_its_noise_level_is_not_stated_and_its_server_half_is_pure() -> None:
    for unit in (Unit.RECORD, Unit.CLIENT):
        client = build("client", "scaffold", {}, unit=unit)
        assert math.isnan(client.channels[UPDATE].noise) == (unit is Unit.RECORD)
        check_pure(client)


@pytest.mark.parametrize("options", [{"steps": 0}, {"rate": 0.0}, {"rate": math.inf}])
def test_options_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(RecipeError, match=named("scaffold", options)):
        build("client", "scaffold", options)
