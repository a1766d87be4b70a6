# SPDX-License-Identifier: Apache-2.0
"""The law "a draw that is priced is hidden", over every optimizer and every client algorithm.

Two rounds whose totals are equal, and that differ only in how many clients were drawn, give equal
updates, equal states and equal shared vectors: with everyone, with one, with nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from dpfed.audit.client_laws import MODEL, _equal, model_for
from dpfed.core import registry
from dpfed.core.errors import RecipeError, UnsoundPlan
from dpfed.core.randomness import Noise
from dpfed.core.sampling import Poisson
from dpfed.core.sum_protocol import StageReply
from dpfed.core.types import Adjacency, Broadcast, ClientAlgorithm, Facts, Trust, Unit
from dpfed.mechanisms.gaussian import gaussian
from dpfed.sums.plain import plain
from dpfed.training.plan import Plan
from dpfed.training.round import Exchange, publish, run_round, start

DRAWS: list[tuple[int, ...]] = [(0, 1, 2, 3), (2,), ()]
LOCAL_ONLY = {"scaffold", "fednew"}
"""Their clients build later replies on their own releases: central trust refuses them."""


def drawn_plan(client: ClientAlgorithm, server: str, trust: Trust = Trust.CENTRAL) -> Plan:
    mechanism = gaussian(
        Facts(unit=Unit.CLIENT, adjacency=Adjacency.ZERO_OUT, trust=trust), std=2.0
    )
    channels = {
        name: mechanism.with_facts(
            clip=channel.clip or 1.0, replace_bound=2 * (channel.clip or 1.0)
        )
        for name, channel in client.channels.items()
        if not channel.derived
    }
    return Plan(
        client=client,
        channels=channels,
        sum=plain(),
        noise=Noise(3),
        rounds=4,
        server=registry.build("server", server, {}),
        nominal=[1.0] * 4,
        client_sampling=Poisson(0.5),
    )


def of_client_level(name: str) -> ClientAlgorithm | None:
    try:
        made: ClientAlgorithm = registry.build(
            "client", name, {}, unit=Unit.CLIENT, layout=MODEL.layout
        )
    except RecipeError:  # it says that it cannot protect a client
        return None
    return made if Unit.CLIENT in made.units else None


def zeros(plan: Plan) -> Exchange:
    """Everyone who is asked answers with zeros: the total does not depend on who that is."""

    def exchange(
        broadcast: Broadcast, stage: str, requests: Mapping[str, Mapping[int, bytes]]
    ) -> Iterable[tuple[int, StageReply]]:
        del stage
        size = broadcast.params.numel()
        for client in sorted(set().union(*requests.values())):
            yield client, {name: bytes(8 * plan.size(name, size)) for name in requests}

    return exchange


def watched(plan: Plan, drawn: tuple[int, ...]) -> list[Any]:
    """What three rounds leave and publish, whoever the plan's own draw would ask."""
    size = model_for(plan.client).layout.size
    state, seen = start(plan, torch.linspace(-1, 1, size)), []
    for _ in range(3):
        state, result = run_round(plan, replace(state, cohort=drawn), zeros(plan))
        sent = publish(plan, state)
        seen.append(
            (
                state.params,
                state.optimizer,
                dict(state.mechanisms),
                dict(state.release_counts),
                sent.params,
                dict(sent.shared),
                sent.attempt,
                result.aborted,
                None if result.aggregate is None else vars(result.aggregate),
            )
        )
    return seen


def shows_the_draw(plan: Plan) -> bool:
    first, *others = (watched(plan, drawn) for drawn in DRAWS)
    return not all(_equal(first, other) for other in others)


@pytest.mark.parametrize("name", registry.names("server"))
def test_no_server_optimizer_shows_a_draw_that_is_priced(name: str) -> None:
    assert not shows_the_draw(drawn_plan(registry.build("client", "gradient", {}), name))


@pytest.mark.parametrize("name", registry.names("client"))
def test_no_companion_shows_a_draw_that_is_priced(name: str) -> None:
    client = of_client_level(name)
    if client is None:
        return
    try:
        plan = drawn_plan(client, "scale")
    except UnsoundPlan:
        assert name in LOCAL_ONLY
        return
    assert not shows_the_draw(plan)


def test_the_law_sees_a_draw_that_is_shown() -> None:
    """Under local trust the draw is not priced: there the number of clients may be used, and is."""
    for name in ("adadps", "adafedprox"):
        client = of_client_level(name)
        assert client is not None
        assert shows_the_draw(drawn_plan(client, "scale", Trust.LOCAL))
