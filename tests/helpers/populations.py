# SPDX-License-Identifier: Apache-2.0
"""An open population of devices that come and go."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from dpfed.core.rows import Dense
from dpfed.core.types import Rows, Unit, Vector
from dpfed.flower import make_plan
from dpfed.training.plan import Plan

SIZE, COHORT, ROUNDS = 8, 4, 12


START = torch.zeros(SIZE)


LIMITS = {"min_separation": 3, "at_most": 3}


class Device:
    """One row, of the norm of the clip."""

    dimension = SIZE

    def __init__(self, number: int = 0) -> None:
        self.row = torch.zeros(SIZE)
        self.row[number % SIZE] = 1.0

    def rows(self, params: Vector, unit: Unit) -> Rows:
        assert unit is Unit.CLIENT
        return Dense(self.row[None])

    def gradient(self, params: Vector) -> Vector:
        return self.row

    def metric_rows(self, params: Vector, unit: Unit, loss_bound: float) -> Rows:
        return Dense(torch.zeros(1, 2))


def plan_with(mechanism: str = "tree", *, rounds: int = ROUNDS, **privacy: Any) -> Plan:
    table = {
        "mechanism": mechanism,
        "epsilon": 2.0,
        "unit": "client",
        "trust": "central",
        "adjacency": "zero-out",
        "noise": "keyed",
        "participation": LIMITS,
        "cohort": COHORT,
        **privacy,
    }
    return make_plan([], rounds=rounds, method="dp-fedgd", privacy=table)


def come_and_go(round: int) -> range:
    return range(3 * round, 3 * round + 12)


def within_limits(answered: dict[int, list[int]], plan: Plan) -> bool:
    pattern = plan.participation
    assert pattern is not None
    return all(
        len(rounds) <= pattern.at_most
        and all(b - a >= pattern.min_separation for a, b in pairwise(rounds))
        for rounds in answered.values()
    )
