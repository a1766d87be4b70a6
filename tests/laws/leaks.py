# SPDX-License-Identifier: Apache-2.0
"""The law "data leaves by the mechanism alone", as a function that says how it is broken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from dpfed.accounting.calibrate import calibrate
from dpfed.core import registry
from dpfed.core.errors import RecipeError
from dpfed.core.randomness import Noise
from dpfed.core.types import (
    UPDATE,
    Aggregate,
    Broadcast,
    ClientAlgorithm,
    Release,
    Reply,
    Rows,
    Unit,
)
from dpfed.data.datasets import Records
from dpfed.data.models import Linear
from dpfed.data.standardised import Standardised
from dpfed.mechanisms.gaussian import gaussian
from dpfed.sums.plain import plain
from dpfed.training.answer import ClientState, make_reply
from dpfed.training.plan import Plan
from dpfed.training.round import start

MODEL = Linear("softmax", features=4, outputs=3)
NOMINAL = 30.0


class ConstantReleaser:
    """Gives constants that do not depend on the rows: only the number of the call."""

    def __init__(self, plan: Plan, round: int) -> None:
        self.unit, self.nominal = plan.update.unit, NOMINAL
        self._plan, self._round, self._calls = plan, round, 0

    def __call__(self, rows: Rows, channel: str = UPDATE) -> Release:
        self._calls += 1
        assert hasattr(rows, "clipped_sum")
        assert self._plan.releases(channel, self._round)
        size = self._plan.size(channel, model_for(self._plan.client).layout.size)
        vector = torch.arange(size, dtype=torch.int32) * 1000 + self._calls
        return Release(vector, std=1.0, step=2.0**-10)


def records(count: int, seed: int) -> Records:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=generator)
    return Records(x, torch.randint(0, 3, (count,), generator=generator), torch.arange(count) // 2)


def plan_for(algorithm: ClientAlgorithm, unit: Unit) -> Plan:
    mechanism = calibrate(gaussian(unit=unit), epsilon=1.0, delta=1e-5, releases=3)
    channels = {
        name: replace(
            mechanism,
            clip=channel.clip or mechanism.clip,
            replace_bound=channel.replace_bound or 2 * (channel.clip or mechanism.clip),
        )
        for name, channel in algorithm.channels.items()
        if not channel.derived
    }
    server = registry.build("server", "scale", {})
    return Plan(
        client=algorithm, channels=channels, sum=plain(), server=server, nominal=[NOMINAL],
        rounds=4 if algorithm.standardises else 3, noise=Noise(0),
    )  # fmt: skip


def model_for(algorithm: ClientAlgorithm) -> Any:
    """The model, with a standardiser where the algorithm fits one."""
    made = Standardised(MODEL.link, MODEL.features, MODEL.outputs)
    return made if algorithm.standardises else MODEL


def build(name: str, unit: Unit) -> ClientAlgorithm | None:
    """The algorithm for a unit, or None if it says that it cannot protect it."""
    try:
        algorithm: ClientAlgorithm = registry.build(
            "client", name, {}, unit=unit, layout=MODEL.layout
        )
    except RecipeError:
        return None
    return algorithm if unit in algorithm.units else None


def shared_at(plan: Plan, round: int) -> dict[str, torch.Tensor]:
    """What the server half publishes after some rounds of constants."""
    model = model_for(plan.client)
    server = start(plan, model.initial(0))
    optimizer, state = plan.optimizer, server.optimizer
    for past in range(round):
        due = plan.due(past)
        means = {n: torch.linspace(0.1, 1, plan.size(n, model.layout.size)) for n in due}
        lead = means.pop(due[0])
        seen = Aggregate(past, server.params, lead, 0.1, 1, means, 1, 1.0, due[0])
        _, state = optimizer.update(lead.clone(), state, seen)
    return dict(optimizer.share(state))


def watch(algorithm: ClientAlgorithm, unit: Unit, data: Records) -> list[tuple[Reply, Any]]:
    """Replies and kept states of three rounds from a releaser that shows nothing of the data."""
    plan = plan_for(algorithm, unit)
    model = model_for(algorithm)
    client = ClientState(0, model.problem(data))
    seen = []
    for round in range(plan.rounds):
        params = torch.linspace(-1, 1, model.layout.size) * (round + 1)
        broadcast = Broadcast(round, params, shared_at(plan, round))
        releaser = ConstantReleaser(plan, round)
        reply, client = make_reply(plan, broadcast, replace(client), releaser)
        seen.append((reply, client.state))
    return seen


def breaches(algorithm: ClientAlgorithm, unit: Unit) -> list[str]:
    """How the algorithm's replies or state differ on two data sets of different true sizes."""
    pairs = zip(
        watch(algorithm, unit, records(20, 1)), watch(algorithm, unit, records(33, 2)), strict=True
    )
    found = []
    for round, ((one, state), (other, other_state)) in enumerate(pairs):
        if not _equal(one, other):
            found.append(f"the replies of round {round} differ")
        if unit is Unit.RECORD and not _equal(state, other_state):
            found.append(f"the kept states of round {round} differ")
    return found


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return bool(torch.equal(one, other))
    if isinstance(one, Release):
        return _equal((one.vector, one.std, one.step), (other.vector, other.std, other.step))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[k], other[k]) for k in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(_equal, one, other))
    both_unknown = isinstance(one, float) and isinstance(other, float) and one != one != other
    return both_unknown or bool(one == other)
