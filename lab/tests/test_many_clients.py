# SPDX-License-Identifier: Apache-2.0
"""Many clients at once: the library's parameters within rounding, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from dpfed.client.fedavg import fedavg
from dpfed.client.gradient import gradient
from dpfed.core.chain import chain
from dpfed.core.errors import RecipeError
from dpfed.core.participation import Participation
from dpfed.core.randomness import Noise
from dpfed.core.sampling import Poisson
from dpfed.core.types import METRICS, UPDATE, Adjacency, Facts, Trust, Unit, Weights
from dpfed.data.datasets import Records
from dpfed.data.models import Linear
from dpfed.mechanisms.banded import banded
from dpfed.mechanisms.gaussian import gaussian
from dpfed.mechanisms.tree import tree
from dpfed.server.scale import scale
from dpfed.server.sofim import sofim
from dpfed.sums.plain import plain
from dpfed.training.inprocess import rounds
from dpfed.training.plan import Plan
from dpfed_lab.many_clients import held, parameters

SIZES = (1, 2, 5, 5, 0, 5, 1, 2, 17, 200, 193, 5)
MODEL = Linear("softmax", 6, 3)


def records(model: Linear = MODEL) -> list[Records]:
    made = torch.Generator().manual_seed(1)
    return [
        Records(
            torch.randn(size, model.features, generator=made),
            torch.randint(max(2, model.outputs), (size,), generator=made),
        )
        for size in SIZES
    ]


def plan_for(facts: Facts, **changes: Any) -> Plan:
    options: dict[str, Any] = {
        "client": gradient(),
        "channels": {UPDATE: gaussian(facts, 0.3)},
        "sum": plain(),
        "server": chain(sofim(), scale(0.5)),
        "nominal": [float(max(1, size)) for size in SIZES],
        "rounds": 4,
        "noise": Noise(7),
    }
    return Plan(**{**options, **changes})


def alike(plan: Plan, of: list[Records], model: Linear = MODEL) -> None:
    problems = [model.problem(each) for each in of]
    one_by_one = [state.params for state, _ in rounds(plan, problems, model.initial(0))]
    together = list(parameters(plan, model, held(of)))
    assert len(together) == plan.rounds
    torch.testing.assert_close(together, one_by_one, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("unit", [Unit.RECORD, Unit.CLIENT])
@pytest.mark.parametrize("trust", [Trust.LOCAL, Trust.CENTRAL])
@pytest.mark.parametrize("weights", list(Weights))
@pytest.mark.parametrize("model", [MODEL, Linear("logistic", 9), Linear("poisson", 4, bias=False)])
def test_parameters_are_the_librarys_within_rounding(
    unit: Unit, trust: Trust, weights: Weights, model: Linear
) -> None:
    alike(plan_for(Facts(0.2, unit=unit, trust=trust), weights=weights), records(model), model)


def test_a_draw_of_clients_is_the_librarys() -> None:
    facts = Facts(0.5, unit=Unit.CLIENT, adjacency=Adjacency.ZERO_OUT, trust=Trust.CENTRAL)
    alike(plan_for(facts, client_sampling=Poisson(0.3), rounds=12), records())


@pytest.mark.parametrize("unit", [Unit.RECORD, Unit.CLIENT])
def test_the_servers_correlated_noise_is_the_librarys(unit: Unit) -> None:
    facts = Facts(0.5, unit=unit, trust=Trust.CENTRAL)
    for mechanism in (tree(facts, 0.3), banded(facts, 0.3)):
        alike(plan_for(facts, channels={UPDATE: mechanism}), records())


@pytest.mark.parametrize("unit", [Unit.RECORD, Unit.CLIENT])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e30])
def test_a_row_that_is_not_finite_is_zero(unit: Unit, number: float) -> None:
    spoilt = records()
    spoilt[3].x[2, 1] = number
    alike(plan_for(Facts(0.5, unit=unit)), spoilt)


def test_each_planted_fault_is_seen() -> None:
    plan, of = plan_for(Facts(0.2)), records()
    for other in (
        replace(plan, noise=Noise(8)),
        plan_for(Facts(0.21)),
        plan_for(Facts(0.2), channels={UPDATE: gaussian(Facts(0.2), 0.301)}),
    ):
        problems = [MODEL.problem(each) for each in of]
        *_, (state, _) = rounds(plan, problems, MODEL.initial(0))
        *_, last = parameters(other, MODEL, held(of))
        with pytest.raises(AssertionError):
            torch.testing.assert_close(last, state.params, rtol=1e-5, atol=1e-6)


DRAWN = gaussian(Facts(adjacency=Adjacency.ZERO_OUT)).with_sampling(Poisson(0.5))
CLIENT = Facts(0.5, unit=Unit.CLIENT, trust=Trust.CENTRAL)
REFUSED: dict[str, Plan] = {
    "steps": plan_for(Facts(), client=fedavg()),
    "metrics": plan_for(Facts(), channels={UPDATE: gaussian(), METRICS: gaussian(Facts(1.5))}),
    "groups": plan_for(Facts(unit=Unit.GROUP)),
    "own correlated noise": plan_for(Facts(), channels={UPDATE: tree(Facts(), 0.3)}),
    "turns": plan_for(replace(CLIENT, participation=Participation(min_separation=2, at_most=2))),
    "drawn records": plan_for(
        Facts(),
        channels={
            UPDATE: gaussian(Facts(adjacency=Adjacency.ZERO_OUT)).with_sampling(Poisson(0.5))
        },
    ),
}


@pytest.mark.parametrize("plan", REFUSED.values(), ids=REFUSED)
def test_what_it_does_not_compute_is_refused(plan: Plan) -> None:
    with pytest.raises(RecipeError, match="run this plan through"):
        next(parameters(plan, MODEL, held(records())))
