# SPDX-License-Identifier: Apache-2.0
"""Two plans have one fingerprint only if they do and cost the same; that of 0.1 is still known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord

from dpfed.core.participation import Participation
from dpfed.core.randomness import Noise
from dpfed.core.registry import build, own_names
from dpfed.core.sampling import Poisson
from dpfed.core.types import (
    METRICS,
    UPDATE,
    Adjacency,
    Broadcast,
    Channel,
    Facts,
    Mechanism,
    Phase,
    Trust,
    Unit,
    Weights,
)
from dpfed.core.vector import layout_of
from dpfed.flower import make_plan as plan_for
from dpfed.mechanisms.gaussian import gaussian
from dpfed.sums.secure import secure
from dpfed.training.fingerprint import WIRE_FORMAT
from dpfed.training.plan import Plan
from dpfed.training.wire.codec import CONTROL, Envelope, Sender, write_reply
from tests.helpers.rounds import make_plan

DRAWS = ("gaussian", "clear")
REPRS: dict[str, list[str]] = json.loads(
    (Path(__file__).parent.parent / "goldens" / "mechanism_reprs.json").read_text(encoding="utf-8")
)


def other(**changes: Any) -> Plan:
    return replace(make_plan(), **changes)


def facts(**changes: Any) -> Plan:
    return other(channels={UPDATE: make_plan().update.with_facts(**changes)})


def drawn(mechanism: Mechanism) -> Plan:
    return other(channels={UPDATE: mechanism.with_sampling(Poisson(0.5))})


def algorithm(**changes: Any) -> Plan:
    return other(client=make_plan().client._replace(**changes))


def measuring(name: str, made_by: str | None = None, **options: Any) -> Plan:
    metric = build("metrics", name, options)
    metric = metric if made_by is None else metric._replace(made_by=made_by)
    channels = {**make_plan().channels, METRICS: gaussian(Facts(2**0.5), 3.0)}
    return other(channels=channels, metrics=(metric,))


@pytest.mark.parametrize("name", own_names("mechanisms"))
def test_a_mechanism_is_written_as_in_version_0_2(name: str) -> None:
    """The digests of checkpoints and of enrolled clients hash these texts, letter by letter."""
    limits = Participation(min_separation=3, at_most=2)
    devices = Facts(2.0, Unit.CLIENT, Adjacency.ZERO_OUT, Trust.CENTRAL, participation=limits)
    written = [
        repr(build("mechanisms", name, {})),
        *(
            [repr(build("mechanisms", name, {}).with_sampling(Poisson(0.1)))]
            if name in DRAWS
            else []
        ),
        *(
            [repr(build("mechanisms", name, {"std": 3.0}, facts=devices, rounds=6, horizon=6))]
            if name != "clear"
            else []
        ),
    ]
    assert written == REPRS[name]


OF_0_2 = "9766b4b91b3da69beb60bfdaeefa17634c8fa389f8029c89c6fc4eef1b4a8930"
"""Printed by version 0.2.0 for the plan below."""


def test_an_option_that_0_2_did_not_have_counts_only_where_it_does_something() -> None:
    def known_by(**more: Any) -> str:
        given = {"rounds": 6, "method": "dp-fedadamw", "privacy": {"epsilon": 2.0}, **more}
        return plan_for([200.0] * 4, **given).fingerprint()

    assert known_by() == OF_0_2
    assert known_by(client={"name": "fedadamw", "moments": "mean"}) != OF_0_2


OTHERS = {
    "clip": lambda: facts(clip=0.5, replace_bound=1.0),
    "noise": lambda: other(channels={UPDATE: make_plan().update.with_std(2.0000001)}),
    "replace bound": lambda: facts(replace_bound=1.5),
    "adjacency": lambda: facts(adjacency=Adjacency.ZERO_OUT),
    "trust": lambda: facts(trust=Trust.CENTRAL),
    "record draws": lambda: drawn(make_plan().update.with_facts(adjacency=Adjacency.ZERO_OUT)),
    "unit": lambda: facts(unit=Unit.GROUP),
    "sum": lambda: other(sum=secure(survivors=1.0)),
    "weights": lambda: other(weights=Weights.AVERAGE),
    "sizes": lambda: other(nominal=[12, 30, 22]),
    "rounds": lambda: other(rounds=5),
    "delta": lambda: other(delta=2e-5),
    "colluders": lambda: other(colluders=2),
    "metrics": lambda: other(
        channels={**make_plan().channels, METRICS: gaussian(Facts(2**0.5), 3.0)}
    ),
    "metrics every": lambda: other(metrics_every=2),
    "loss bound": lambda: other(loss_bound=4.0),
    "an own metric": lambda: measuring("accuracy"),
    "another metric": lambda: measuring("mae"),
    "a metric's option": lambda: measuring("mae", bound=2.0),
    "a metric's code": lambda: measuring("mae", made_by=""),
    "sends unmodified": lambda: algorithm(sends_unmodified=False),
    "phases": lambda: algorithm(channels={UPDATE: Channel((Phase(None, 2),))}),
    "noise source": lambda: other(noise=Noise(None)),
    "algorithm": lambda: algorithm(made_by="adadps()"),
    "reuses releases": lambda: algorithm(reuses_own_releases=True),
    "spare attempts": lambda: other(spare=1),
    "census": lambda: algorithm(channels={UPDATE: Channel(census=True)}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_changes_the_cost_or_the_terms_changes_it(name: str) -> None:
    assert OTHERS[name]().fingerprint() != make_plan().fingerprint()


def test_no_two_of_them_are_the_same() -> None:
    found = [make().fingerprint() for make in OTHERS.values()]
    assert len(set(found)) == len(found)


def test_what_costs_nothing_does_not() -> None:
    plan = make_plan()
    assert other(noise=Noise(7)).fingerprint() == plan.fingerprint()
    assert other(server=build("server", "adam", {})).fingerprint() == plan.fingerprint()


def test_the_wire_format_is_the_one_that_its_number_stands_for() -> None:
    """Whoever changes a message raises WIRE_FORMAT, and then this test."""
    layout = layout_of({"w": torch.zeros(2)})
    sender = Sender(layout, "fingerprint", ConfigRecord(), Broadcast(0, torch.zeros(2)))
    sent = sender.order("reply", {UPDATE: b""}).config_records[CONTROL]
    back = write_reply(Envelope(0, 0, "reply", 1), {UPDATE: bytes(8)}).config_records[CONTROL]
    assert (WIRE_FORMAT, sorted(sent), sorted(back)) == (
        2,
        [
            "attempt",
            "channels",
            "fingerprint",
            "names",
            "requests",
            "round",
            "since",
            "stage",
            "training",
        ],
        ["attempt", "client", "round", "stage"],
    )
