# SPDX-License-Identifier: Apache-2.0
"""Laws of client algorithms, for plug-ins of this package and of others.

A law takes a name in a recipe, or the function of a plug-in that is not installed yet, and raises
AssertionError with one sentence if the algorithm breaks it. In a test of your own package:

    @pytest.mark.parametrize("law", CLIENT_LAWS)
    def test_law(law):
        law("yours")

What they check, for every unit that the algorithm says it protects:

    data leaves only through the mechanism    two made-up data sets of different size get the same
                                              releases; then the replies must be equal, and at
                                              record level the kept states, too
    releases are as many as declared          on each channel, in each round; declared releases are
                                              those that the plan accounts for

That no record moves a release by more than its bound is a law of rows: ``dpfed.core.testing``.
"""

from __future__ import annotations

from collections.abc import Callable
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
    Facts,
    FeatureRange,
    Release,
    Reply,
    Rows,
    Unit,
)
from dpfed.data.datasets import Records
from dpfed.data.models import Linear
from dpfed.mechanisms.gaussian import gaussian
from dpfed.sums.plain import plain
from dpfed.training.plan import Plan
from dpfed.training.reply import ClientState, PricedReleaser, make_reply
from dpfed.training.round import start

Factory = str | Callable[..., ClientAlgorithm]
"""A name in a recipe, or the plug-in's function."""

MODEL = Linear("softmax", features=4, outputs=3)
NOMINAL = 30.0


class ConstantReleaser:
    """Returns constants that depend only on the number of the call, never on the rows.

    Args:
        plan: what is due.
        round: in which round.
    """

    def __init__(self, plan: Plan, round: int) -> None:
        self.unit, self.nominal = plan.update.unit, NOMINAL
        self._plan, self._round, self._calls = plan, round, 0

    def __call__(self, rows: Rows, channel: str = UPDATE) -> Release:
        """A release that does not depend on the rows."""
        self._calls += 1
        if not hasattr(rows, "clipped_sum"):
            raise AssertionError(
                "release() must get rows with a clipped_sum, such as problem.rows()"
            )
        if not self._plan.releases(channel, self._round):
            raise AssertionError(f"channel {channel!r} has no release in round {self._round}")
        size = self._plan.size(channel, model_for(self._plan.client).layout.size)
        vector = torch.arange(size, dtype=torch.int32) * 1000 + self._calls
        return Release(vector, std=1.0, step=2.0**-10)


def records(count: int, seed: int) -> Records:
    """Made-up records; each person has two of them.

    Args:
        count: how many.
        seed: of their values.
    """
    at = torch.arange(count * 4).view(count, 4)
    x = 2 * torch.sin((at + 1) * (seed + 0.5))
    return Records(x, torch.arange(count) * (seed + 1) % 3, torch.arange(count) // 2)


def law_plan(algorithm: ClientAlgorithm, unit: Unit) -> Plan:
    """A small plan with the algorithm's own channels.

    Args:
        algorithm: the client's half.
        unit: whom it protects.
    """
    mechanism = calibrate(gaussian(Facts(unit=unit)), epsilon=1.0, delta=1e-5, releases=3)
    channels = {
        name: mechanism.with_facts(
            clip=channel.clip or mechanism.clip,
            replace_bound=channel.replace_bound or 2 * (channel.clip or mechanism.clip),
        )
        for name, channel in algorithm.channels.items()
        if not channel.derived
    }
    server = registry.build("server", "scale", {})
    return Plan(
        client=algorithm,
        channels=channels,
        sum=plain(),
        server=server,
        nominal=[NOMINAL],
        rounds=max(3, algorithm.needs.rounds),
        noise=Noise(0),
    )


def model_for(algorithm: ClientAlgorithm) -> Any:
    """A linear model, or what the algorithm puts in its place."""
    if algorithm.model is None:
        return MODEL
    return algorithm.model.around(MODEL, lambda _: FeatureRange(), algorithm.channels)


def algorithm_for(name: Factory, unit: Unit) -> ClientAlgorithm | None:
    """The algorithm for a unit, or None if it says that it cannot protect it.

    Args:
        name: in a recipe, or the plug-in's function.
        unit: whom it is to protect.
    """
    try:
        algorithm: ClientAlgorithm = (
            registry.build("client", name, {}, unit=unit, layout=MODEL.layout)
            if isinstance(name, str)
            else name()
        )
    except RecipeError:
        return None
    return algorithm if unit in algorithm.units else None


def shared_at(plan: Plan, round: int) -> dict[str, torch.Tensor]:
    """What the server's half publishes after rounds whose aggregates are constants.

    Args:
        plan: the plan.
        round: how many rounds are done.
    """
    model = model_for(plan.client)
    server = start(plan, model.initial(0))
    optimizer, state = plan.optimizer, server.optimizer
    for past in range(round):
        due = plan.due(past)
        means = {n: torch.linspace(0.1, 1, plan.size(n, model.layout.size)) for n in due}
        lead = means.pop(due[0])
        seen = Aggregate(
            round=past,
            params=server.params,
            mean=lead,
            std=0.1,
            clients=1,
            public=means,
            enrolled=1,
            participation_rate=1.0,
            lead=due[0],
        )
        _, state = optimizer.update(lead.clone(), state, seen)
    return dict(optimizer.share(state))


def watch(algorithm: ClientAlgorithm, unit: Unit, data: Records) -> list[tuple[Reply, Any]]:
    """Replies and kept states of all rounds, with releases that do not depend on the data.

    Args:
        algorithm: the client's half.
        unit: whom it protects.
        data: the client's records.
    """
    plan = law_plan(algorithm, unit)
    model = model_for(algorithm)
    client = ClientState(0, model.problem(data))
    seen = []
    for at in range(plan.rounds):
        params = torch.linspace(-1, 1, model.layout.size) * (at + 1)
        broadcast = Broadcast(at, params, shared_at(plan, at))
        releaser = ConstantReleaser(plan, at)
        reply, client = make_reply(plan, broadcast, replace(client), releaser)
        seen.append((reply, client.state))
    return seen


def breaches(algorithm: ClientAlgorithm, unit: Unit) -> list[str]:
    """How the algorithm's replies or state differ on two data sets of different true sizes.

    Args:
        algorithm: the client's half.
        unit: whom it protects.
    """
    pairs = zip(
        watch(algorithm, unit, records(20, 1)), watch(algorithm, unit, records(33, 2)), strict=True
    )
    found = []
    for at, ((one, state), (other, other_state)) in enumerate(pairs):
        if not _equal(one, other):
            found.append(f"the replies of round {at} differ")
        if unit is Unit.RECORD and not _equal(state, other_state):
            found.append(f"the kept states of round {at} differ")
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


# ------------------------------------------------------------------------------------------- laws


def protects_some_unit(name: Factory) -> None:
    """It builds with no arguments, for at least one unit."""
    if not any(algorithm_for(name, unit) for unit in Unit):
        raise AssertionError(f"{_named(name)} protects no unit: name some in ClientAlgorithm.units")


def data_leaves_by_the_mechanism_alone(name: Factory) -> None:
    """If the releases are equal, replies and (at record level) kept state are equal, too."""
    for unit in Unit:
        algorithm = algorithm_for(name, unit)
        found = breaches(algorithm, unit) if algorithm else []
        if found:
            raise AssertionError(
                f"{_named(name)} lets data out past the mechanism at {unit} level: {found[0]}; "
                f"send and keep nothing but what release() returns"
            )


def releases_are_as_many_as_declared(name: Factory) -> None:
    """It makes exactly the releases that it declares, on each channel and in each round."""
    for unit in Unit:
        algorithm = algorithm_for(name, unit)
        if algorithm is not None:
            _count_releases(_named(name), law_plan(algorithm, unit))


def _count_releases(name: str, plan: Plan) -> None:
    model = model_for(plan.client)
    client = ClientState(0, model.problem(records(20, 1)))
    for at in range(plan.rounds):
        shared = shared_at(plan, at)
        broadcast = Broadcast(at, torch.zeros(model.layout.size), shared)
        releaser = PricedReleaser(plan, broadcast, client)
        reply, client = make_reply(plan, broadcast, client, releaser)
        made = {channel: len(each) for channel, each in releaser.made.items()}
        due = {n: k for n in plan.channels if (k := plan.releases(n, at))}
        if made != due or set(reply) != set(plan.due(at)):
            raise AssertionError(
                f"{name} makes {made} releases in round {at}, sends {sorted(reply)} and "
                f"declares {due}; correct the phases of its channels"
            )


def _named(name: Factory) -> str:
    return name if isinstance(name, str) else name.__name__


CLIENT_LAWS: tuple[Callable[[Factory], None], ...] = (
    protects_some_unit,
    data_leaves_by_the_mechanism_alone,
    releases_are_as_many_as_declared,
)
"""The laws that every client algorithm must satisfy."""
