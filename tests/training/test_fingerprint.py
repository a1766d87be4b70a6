# SPDX-License-Identifier: Apache-2.0
"""Two plans have one fingerprint only if they cost the same; that of version 0.1 stays."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from dpfed.core.randomness import Noise
from dpfed.core.registry import build
from dpfed.core.sampling import Poisson
from dpfed.core.types import METRICS, UPDATE, Adjacency, Channel, Phase, Trust, Unit, Weights
from dpfed.mechanisms.gaussian import gaussian
from dpfed.sums.secure import secure
from dpfed.training.plan import Plan
from tests.goldens.runs import GOLDENS, plan_of
from tests.training.test_round import make_plan

KEPT = Path(__file__).parent.parent / "goldens" / "kept" / "flower" / "progress.safetensors"


def test_a_checkpoint_of_version_0_1_has_the_same_one() -> None:
    with safe_open(KEPT, framework="pt") as file:
        facts = json.loads(file.metadata()["facts"])
    assert facts["plan"] == plan_of(GOLDENS["dp-scaffold"]).fingerprint()


def other(**changes: Any) -> Plan:
    return replace(make_plan(), **changes)


def mechanism(**changes: Any) -> Plan:
    return other(channels={UPDATE: replace(make_plan().update, **changes)})


def algorithm(**changes: Any) -> Plan:
    return other(client=make_plan().client._replace(**changes))


OTHERS = {
    "clip": lambda: mechanism(clip=0.5, replace_bound=1.0),
    "noise": lambda: mechanism(std=2.0000001),
    "replace bound": lambda: mechanism(replace_bound=1.5),
    "adjacency": lambda: mechanism(adjacency=Adjacency.ZERO_OUT),
    "trust": lambda: mechanism(trust=Trust.CENTRAL),
    "record draws": lambda: mechanism(sampling=Poisson(0.5), adjacency=Adjacency.ZERO_OUT),
    "unit": lambda: mechanism(unit=Unit.GROUP),
    "sum": lambda: other(sum=secure(survivors=1.0)),
    "weights": lambda: other(weights=Weights.AVERAGE),
    "sizes": lambda: other(nominal=[12, 30, 22]),
    "rounds": lambda: other(rounds=5),
    "delta": lambda: other(delta=2e-5),
    "colluders": lambda: other(colluders=2),
    "metrics": lambda: other(channels={**make_plan().channels, METRICS: gaussian(2**0.5, 3.0)}),
    "metrics every": lambda: other(metrics_every=2),
    "loss bound": lambda: other(loss_bound=4.0),
    "sends unmodified": lambda: algorithm(sends_unmodified=False),
    "phases": lambda: algorithm(channels={UPDATE: Channel((Phase(None, 2),))}),
    "census": lambda: algorithm(channels={UPDATE: Channel(census=True)}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_changes_the_cost_or_the_terms_changes_it(name: str) -> None:
    assert OTHERS[name]().fingerprint() != make_plan().fingerprint()


def test_what_costs_nothing_does_not() -> None:
    plan = make_plan()
    assert other(noise=Noise(7)).fingerprint() == plan.fingerprint()
    assert other(server=build("server", "adam", {})).fingerprint() == plan.fingerprint()
