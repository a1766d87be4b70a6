# SPDX-License-Identifier: Apache-2.0
"""A draw of clients that is priced must show nowhere: the price counts on its secrecy.

Before: a round in which nobody was drawn left the state of ``adadps`` and ``adafedprox`` as it was,
and the next broadcast said so; a drawn client that was not there aborted the round, and the attempt
was in the next broadcast; rows, logs and release counts had the realised number. Whoever reads that
knows the draw, and the amplification that was priced is void.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.stats import beta

from dpfed.core import registry
from dpfed.core.errors import ClientRefused, UnsoundPlan
from dpfed.core.randomness import Noise
from dpfed.core.rows import Dense
from dpfed.core.sampling import Poisson
from dpfed.core.sum_protocol import StageReply
from dpfed.core.types import UPDATE, Adjacency, Broadcast, Facts, Rows, Trust, Unit, Vector
from dpfed.mechanisms.gaussian import gaussian
from dpfed.sums.plain import plain
from dpfed.sums.secure import secure
from dpfed.training.inprocess import InProcess
from dpfed.training.loop import Step, train
from dpfed.training.plan import Plan
from dpfed.training.round import publish

SIZE = 3
TWO_SIDED = ("adadps", "adafedprox")


class Nobody:
    """A client whose rows are zero: it can be told from an absent one by the draw alone."""

    dimension = SIZE

    def rows(self, params: Vector, unit: Unit) -> Rows:
        return Dense(torch.zeros(1, SIZE))

    def gradient(self, params: Vector) -> Vector:
        return torch.zeros(SIZE)

    def metric_rows(self, params: Vector, unit: Unit, loss_bound: float) -> Rows:
        return Dense(torch.zeros(1, 2))


def plan_of(client: str, seed: int = 0, rate: float = 0.5, std: float = 4.0, **more: Any) -> Plan:
    mechanism = gaussian(
        Facts(unit=Unit.CLIENT, adjacency=Adjacency.ADD_REMOVE, trust=Trust.CENTRAL), std=std
    )
    given: dict[str, Any] = {
        "client": registry.build("client", client, {}, unit=Unit.CLIENT),
        "channels": {UPDATE: mechanism},
        "sum": plain(),
        "server": registry.build("server", "scale", {}),
        "nominal": [1.0],
        "rounds": 4,
        "noise": Noise(seed),
        "client_sampling": Poisson(rate),
        **more,
    }
    return Plan(**given)


def trained(plan: Plan, *, present: bool) -> list[Step]:
    """A whole training with the plan's clients there, or with none of them."""
    transport = InProcess(plan, [Nobody() for _ in plan.nominal])
    if not present:
        transport.clients = {}
    return list(train(plan, torch.zeros(SIZE), transport))


def seen(plan: Plan, steps: list[Step]) -> list[Any]:
    """All that leaves the server: each broadcast, the rows, and what the guarantee is made of."""
    sent: list[Broadcast] = [publish(plan, step.state) for step in steps]
    told = [
        (
            each.round,
            each.attempt,
            each.params.tolist(),
            {name: vector.tolist() for name, vector in each.shared.items()},
        )
        for each in sent
    ]
    last = steps[-1]
    return [told, list(last.history), last.stopped, last.state.release_counts]


@pytest.mark.parametrize("client", [*TWO_SIDED, "gradient", "fedavg"])
@pytest.mark.parametrize("clients", [1, 3])
def test_who_was_drawn_changes_no_bit_of_what_leaves_the_server(client: str, clients: int) -> None:
    """Before: attempts, ``scale``, ``proximal``, rows and counts told the two worlds apart."""
    for seed in range(6):
        plan = plan_of(client, seed, nominal=[1.0] * clients)
        there, absent = (seen(plan, trained(plan, present=each)) for each in (True, False))
        assert there == absent


def lower_bound(found: int, false: int, runs: int, delta: float) -> float:
    """A lower bound of epsilon from an event's frequency in two worlds, wrong once in 1000."""
    least = float(beta.ppf(0.0005, found, runs - found + 1)) if found else 0.0
    most = float(beta.ppf(0.9995, false + 1, runs - false)) if false < runs else 1.0
    return math.log((least - delta) / most) if least > delta else 0.0


@pytest.mark.long
@pytest.mark.parametrize("client", TWO_SIDED)
def test_the_broadcasts_do_not_tell_more_than_is_claimed(client: str) -> None:
    """Before: a client in the data moved what was shared, and none did without it."""
    plan, runs = plan_of(client, std=16.0, rounds=6), 80
    first = publish(plan, trained(plan, present=False)[0].state).shared

    def moved(seed: int, present: bool) -> bool:
        drawn = replace(plan, noise=Noise(seed))
        now = publish(drawn, trained(drawn, present=present)[-1].state).shared
        return any(not torch.equal(first[name], vector) for name, vector in now.items())

    there = sum(moved(seed, True) for seed in range(runs))
    absent = sum(moved(seed + runs, False) for seed in range(runs))
    bounds = [lower_bound(there, absent, runs, plan.delta)]
    bounds.append(lower_bound(runs - there, runs - absent, runs, plan.delta))
    assert max(bounds) <= plan.guarantee().epsilon


def test_rows_and_the_log_have_no_realised_number(caplog: pytest.LogCaptureFixture) -> None:
    """Before: clients, missing, absent and refused were those of the draw, and so was the log."""

    class Spent(InProcess):
        def exchange(self, *order: Any) -> Iterable[tuple[int, StageReply]]:
            for client, reply in super().exchange(*order):
                yield client, ClientRefused("BudgetSpent") if client % 2 else reply

    plan = plan_of("gradient", nominal=[1.0] * 4, rounds=6)
    transport = Spent(plan, [Nobody() for _ in plan.nominal])
    with caplog.at_level(logging.INFO, "dpfed"):
        *_, last = train(plan, torch.zeros(SIZE), transport)
    hidden = ("clients", "missing", "absent", "refused", "aborted", "seconds")
    shown = {tuple(row[name] for name in hidden) for row in last.history}
    assert shown == {(2.0, None, None, None, None, None)}
    assert "left out of this round" not in caplog.text
    assert last.result is not None
    assert last.result.aggregate is not None
    assert last.result.aggregate.clients == 2.0


def test_a_round_without_anybody_has_the_full_noise() -> None:
    """An empty draw is a total of zeros plus noise, like any other."""
    plan = plan_of("gradient", rounds=1, nominal=[1.0], rate=1e-6)
    *_, last = trained(plan, present=True)
    assert last.result is not None
    assert last.result.aggregate is not None
    assert float(last.result.aggregate.mean.abs().min()) > 0
    assert last.result.aggregate.std == plan.update.std / plan.denominator(UPDATE)


def test_a_sum_that_aborts_for_missing_clients_is_refused_where_a_draw_is_priced() -> None:
    """Before: a secure sum gave up where too few were drawn, and the next attempt said so."""
    with pytest.raises(UnsoundPlan, match="secure"):
        plan_of("gradient", nominal=[1.0] * 5, sum=secure())


def test_the_duration_of_a_round_is_named() -> None:
    assert "how long a round takes is not covered" in plan_of("gradient").guarantee().sentence
