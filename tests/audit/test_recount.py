# SPDX-License-Identifier: Apache-2.0
"""The audit's own price of a run: equal to the plan's where the plan is kept, worse where not."""

from __future__ import annotations

import math

import pytest

from dpfed.audit.recount import epsilon_with, level, movement, mu_with
from dpfed.core.types import UPDATE
from tests.audit.planted import small, target


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
def test_a_plan_that_is_kept_costs_what_it_claims(adjacency: str) -> None:
    whole = target(small(adjacency=adjacency))
    assert epsilon_with(whole) == pytest.approx(whole.claimed, rel=1e-6)


@pytest.mark.slow
def test_records_that_are_drawn_are_priced_by_an_event_of_its_own() -> None:
    whole = target(small(adjacency="add-remove", record_rate=0.5, nominal=120))
    assert epsilon_with(whole) == pytest.approx(whole.claimed, rel=1e-2)


def test_half_the_noise_or_twice_the_movement_doubles_mu() -> None:
    plan = target().plan
    noise, moves = {UPDATE: level(plan, UPDATE)}, {UPDATE: movement(plan, UPDATE)}
    honest = mu_with(plan, noise, moves)
    assert mu_with(plan, {UPDATE: noise[UPDATE] / 2}, moves) == pytest.approx(2 * honest)
    assert mu_with(plan, noise, {UPDATE: moves[UPDATE] * 2}) == pytest.approx(2 * honest)
    assert honest == pytest.approx(math.sqrt(10) * moves[UPDATE] / noise[UPDATE])


def test_no_noise_has_no_bound() -> None:
    assert epsilon_with(target(), noise={UPDATE: 0.0}) == math.inf
