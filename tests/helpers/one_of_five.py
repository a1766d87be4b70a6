# SPDX-License-Identifier: Apache-2.0
"""A secure sum for a roster of few."""

from __future__ import annotations

from dpfed.core.sampling import Poisson
from dpfed.core.types import UPDATE, Adjacency, Facts, Trust, Unit
from dpfed.mechanisms.gaussian import gaussian
from dpfed.training.plan import Plan
from tests.helpers.rounds import make_plan


def secret() -> Plan:
    facts = Facts(unit=Unit.CLIENT, trust=Trust.CENTRAL, adjacency=Adjacency.ZERO_OUT)
    unit = gaussian(facts, std=2.0)
    return make_plan(nominal=[1] * 5, client_sampling=Poisson(0.4), channels={UPDATE: unit})
