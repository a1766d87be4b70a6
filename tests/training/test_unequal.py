# SPDX-License-Identifier: Apache-2.0
"""Unequal silos (PRIVACY section 1): what a record of the smallest moves, over the noise.

The noise is measured on what the round really opens: real releases, weighted and added by the sum.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dpfed.core.errors import UnsoundPlan
from dpfed.core.rows import Dense
from dpfed.core.types import UPDATE, Broadcast, Facts, Rows, Trust, Unit, Vector, Weights
from dpfed.mechanisms.discrete_gaussian import discrete_gaussian
from dpfed.mechanisms.gaussian import gaussian
from dpfed.sums.secure import secure
from dpfed.training.plan import Plan
from dpfed.training.reply import ClientState, client_reply
from dpfed.training.round import run_round, start
from tests.helpers.rounds import make_plan

SIZE = 40_000  # coordinates: the standard error of a standard deviation is 0.35 %
STD = 3.0

SPLITS = {
    "equal": [1000.0] * 20,
    "lognormal": np.random.default_rng(0).lognormal(7.0, 1.0, 20).round().tolist(),
    "one of 900": [1000.0] * 19 + [900.0],
    "one of 500": [1000.0] * 19 + [500.0],
    "two sizes": [500.0] * 10 + [1500.0] * 10,
    "one of 50": [1000.0] * 19 + [50.0],
}
PRINTED = {
    "equal": 1.0,
    "one of 900": 1.105,
    "one of 500": 1.865,
    "two sizes": 1.342,
    "one of 50": 4.370,
}


class Silent:
    """A client whose gradients are zero: what it sends is noise."""

    dimension = SIZE

    def rows(self, params: Vector, unit: Unit) -> Rows:
        return Dense(torch.zeros(1, SIZE))

    def gradient(self, params: Vector) -> Vector:
        raise NotImplementedError

    def metric_rows(self, params: Vector, unit: Unit, loss_bound: float) -> Rows:
        raise NotImplementedError


def measured_noise(plan: Plan) -> float:
    """The standard deviation of the mean that a round opens, over its coordinates."""
    people = {i: ClientState(i, Silent()) for i in range(len(plan.nominal))}

    def transport(broadcast: Broadcast, stage: str, requests):  # type: ignore[no-untyped-def]
        for client in sorted(set().union(*requests.values())):
            asked = {name: to[client] for name, to in requests.items()}
            reply, people[client] = client_reply(plan, broadcast, stage, asked, people[client])
            yield client, reply

    _, result = run_round(plan, start(plan, torch.zeros(SIZE, dtype=torch.float64)), transport)
    assert result.aggregate is not None
    measured = float(result.aggregate.mean.std())
    assert measured == pytest.approx(result.aggregate.std, rel=0.015)
    return measured


@pytest.mark.parametrize("split", SPLITS)
def test_the_average_exposes_the_smallest_silo_as_the_formula_says(split: str) -> None:
    sizes = SPLITS[split]
    n, least = len(sizes), min(sizes)
    plan = make_plan(
        nominal=sizes,
        weights=Weights.AVERAGE,
        channels={UPDATE: gaussian(Facts(1.0), STD)},
        rounds=1,
    )
    # D = 1: a record of the smallest moves the mean by 1 / (n least); if all were of one size,
    # mu would be 1 / (s sqrt(n))
    kappa = (1 / (n * least)) / measured_noise(plan) * STD * math.sqrt(n)
    formula = math.sqrt(n) / least / math.sqrt(sum(1 / m**2 for m in sizes))
    assert kappa == pytest.approx(formula, rel=0.015)
    if split in PRINTED:
        assert formula == pytest.approx(PRINTED[split], abs=1e-3)
    squares = [w * w for w in plan.cohort(UPDATE).values()]
    assert n / formula**2 == pytest.approx(sum(squares))  # the shares that the accounting counts


@pytest.mark.parametrize("split", SPLITS)
def test_the_sum_exposes_all_silos_alike(split: str) -> None:
    sizes = SPLITS[split]
    plan = make_plan(nominal=sizes, channels={UPDATE: discrete_gaussian(Facts(1.0), STD)}, rounds=1)
    moved = 1 / math.fsum(sizes)
    assert moved / measured_noise(plan) == pytest.approx(1 / (STD * math.sqrt(20)), rel=0.015)


@pytest.mark.parametrize("split", sorted(set(SPLITS) - {"equal"}))
def test_the_average_of_unequal_silos_is_refused_under_distributed_trust(split: str) -> None:
    shares = {UPDATE: gaussian(Facts(trust=Trust.DISTRIBUTED), shares=19)}
    distributed = {"nominal": SPLITS[split], "channels": shares, "sum": secure(survivors=1.0)}
    make_plan(**distributed)
    with pytest.raises(UnsoundPlan, match="use weights = 'sum'"):
        make_plan(**distributed, weights=Weights.AVERAGE)
