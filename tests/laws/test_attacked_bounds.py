# SPDX-License-Identifier: Apache-2.0
"""No broadcast, option or record that a search finds makes a unit move more than is priced.

attacked_bounds.py has the search. CI attacks every algorithm that states a bound of its own, at
least 1,000 evaluations for each unit and adjacency; the long suite every choice of all algorithms,
longer. Of six seeds, four find the indefinite derivative
below in 1,000 evaluations, and as many in 2,000 (two in 600).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from dpfed.core import registry
from dpfed.core.log import log
from dpfed.core.types import Adjacency, Unit
from dpfed.data import models
from tests.laws.attacked_bounds import Attack, Target, targets
from tests.laws.sensitivity import LINEAR

EVALUATIONS, MANY = 1000, 6000
ALL = list(targets())
OWN = [target for target in ALL if target.states_bounds]


def leaves_out(target: Target) -> bool:
    """Whether a choice only leaves out channels that another choice has, under the same bounds."""
    mine = target.plan.client.channels
    others = [
        each.plan.client.channels
        for each in OWN
        if (each.case.algorithm, each.case.unit) == (target.case.algorithm, target.case.unit)
    ]
    bounds = {name: (c.clip, c.replace_bound) for name, c in mine.items()}
    return any(
        len(other) > len(mine)
        and all(name in other and bounds[name] == other[name][2:4] for name in bounds)
        for other in others
    )


QUICK = [target for target in OWN if not leaves_out(target)]


@pytest.fixture(autouse=True)
def no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "disabled", True)


def hold(target: Target, found: Attack, evaluations: int) -> None:
    """No fault, and the search is not empty: half of each bound is reached."""
    assert found.faults == set()
    for adjacency in target.plans:
        assert found.tried[adjacency] >= evaluations
        assert 0.5 <= found.best[adjacency] <= 1 + 1e-9, f"{target} / {adjacency}"


def by_turns() -> Iterator[Any]:
    """The first choice of each algorithm and unit; the long suite has the others."""
    seen = set()
    for target in QUICK:
        case = target.case.algorithm, target.case.unit
        yield pytest.param(target, marks=[pytest.mark.long] * (case in seen), id=str(target))
        seen.add(case)


@pytest.mark.slow
@pytest.mark.parametrize("target", by_turns())
@pytest.mark.sample(8)
def test_no_search_breaks_a_bound_that_an_algorithm_states_itself(target: Target) -> None:
    hold(target, Attack(target).search(EVALUATIONS), EVALUATIONS)


@pytest.mark.long  # the test above has those that state bounds
@pytest.mark.parametrize("target", ALL, ids=str)
def test_no_longer_search_breaks_any_algorithms_bound(target: Target) -> None:
    for seed in (1, 2):
        hold(target, Attack(target, seed).search(MANY), MANY)


@pytest.mark.long
@pytest.mark.parametrize("model", LINEAR[1:])
def test_so_it_is_with_other_links(model: str) -> None:
    for target in targets(model):
        if target.states_bounds:
            hold(target, Attack(target, 3).search(EVALUATIONS), EVALUATIONS)


def test_every_algorithm_unit_and_stated_bound_is_a_target() -> None:
    """By discovery: what is registered, under each unit that a plan allows."""
    assert {target.case.algorithm for target in ALL} == set(registry.names("client"))
    assert {target.case.unit for target in ALL} == set(Unit)
    stated = {target.case.algorithm for target in QUICK}
    assert stated == {target.case.algorithm for target in OWN}
    assert {"fednew", "fednewton", "fedfc", "fedauto"} <= stated
    for target in ALL:
        assert set(target.plans) >= {Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT}


# ------------------------------------------------------------------- the law is itself tested


def _difference(self: object, scores: torch.Tensor) -> torch.Tensor:
    """What stood here before: indefinite in floats where a class is nearly certain."""
    p = torch.softmax(scores, dim=1)
    return torch.diag_embed(p) - p[:, :, None] * p[:, None, :]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("unit", [Unit.RECORD, pytest.param(Unit.GROUP, marks=pytest.mark.long)])
def test_the_search_finds_the_second_derivative_that_was_indefinite(
    unit: Unit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models._Softmax, "curvature", _difference)
    (target,) = (
        t
        for t in OWN
        if t.case.algorithm == "fednew" and t.case.unit is unit and t.plan.client.memory == "d^2"
    )
    for seed in range(4):
        found = Attack(target, seed).search(EVALUATIONS)
        if found.faults:
            break
    assert len(found.faults) >= len(target.plans)
    assert min(found.best.values()) > 1.5
