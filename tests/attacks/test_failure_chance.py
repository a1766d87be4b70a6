# SPDX-License-Identifier: Apache-2.0
"""The secure sum's chance of failure: clients drop out anew in every attempt, so it is met in each.

Before: it was taken out of delta once per run, so that a plan of 70 rounds stated a delta that was
short of 69 of these chances. Whoever sets ``Plan.delta_reserved`` to 0, or takes it once, fails
here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dpfed.accounting import gdp
from dpfed.accounting.ledger.ledger import Ledger
from dpfed.core.errors import UnsoundPlan
from dpfed.core.types import UPDATE, Broadcast, Trust
from dpfed.flower import make_plan
from dpfed.sums.secagg.graph import design
from dpfed.training.account import Account
from dpfed.training.plan import Plan
from dpfed.training.reply import ClientState
from tests.attacks.asking import START

CLIENTS = 200
ONE = design(CLIENTS, 160, 1).failure


def a_plan(rounds: int = 7, spare: int = 0, **privacy: Any) -> Plan:
    given = {"trust": "distributed", "epsilon": 1.0, "spare_attempts": spare, **privacy}
    return make_plan([4.0] * CLIENTS, rounds=rounds, privacy=given, sum={"name": "secure"})


@pytest.mark.parametrize(("rounds", "spare"), [(1, 0), (7, 0), (7, 3)])
def test_it_is_reserved_for_each_attempt(rounds: int, spare: int) -> None:
    plan = a_plan(rounds, spare)
    assert ONE > 0
    assert plan.delta_reserved == pytest.approx((rounds + spare) * ONE, rel=1e-12, abs=0)


def test_epsilon_is_stated_at_the_delta_that_is_left() -> None:
    """At a delta of which the reserve is a large part, so that one chance fewer would show."""
    plan = a_plan(7, 3)
    tight = replace(plan, delta=101 * plan.delta_reserved)
    mu = gdp.mu_for(1.0, plan.delta - plan.delta_reserved)
    left = tight.delta - 10 * ONE
    stated = tight.guarantee().claims[0].epsilon
    assert stated == pytest.approx(gdp.epsilon_for(left, mu), rel=1e-9)
    assert stated > gdp.epsilon_for(tight.delta - ONE, mu) * (1 + 1e-5)


def test_noise_is_calibrated_at_the_delta_that_is_left() -> None:
    delta = 1001 * ONE
    plan = a_plan(7, 3, delta=delta)
    assert plan.guarantee().claims[0].epsilon <= 1.0
    mechanism = plan.channels[UPDATE]
    mu = gdp.mu_squared(mechanism.noise_multiplier(), 10, mechanism.adjacency) ** 0.5  # type: ignore[attr-defined]
    assert gdp.epsilon_for(delta - 10 * ONE, mu) <= 1.0 * (1 + 1e-9)


def test_a_chance_above_a_hundredth_of_delta_is_refused() -> None:
    with pytest.raises(UnsoundPlan, match=r"failure.*most 0.01 of delta"):
        a_plan(7, 3, delta=999 * ONE)


def test_the_ledger_reserves_all_of_it() -> None:
    plan = a_plan(7, 3)
    request = Account(Ledger.__new__(Ledger), "ward").request(
        plan, Broadcast(0, START), ClientState(0)
    )
    assert request.delta_reserved == pytest.approx(10 * ONE, rel=1e-12, abs=0)


def test_nothing_is_reserved_where_the_sum_hides_nothing() -> None:
    assert a_plan(trust=Trust.LOCAL).delta_reserved == 0
