# SPDX-License-Identifier: Apache-2.0
"""The reference engine: determinism, threads, very many clients. What stops it: test_loop.py."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from dpfed.audit.client_laws import MODEL
from dpfed.client.gradient import gradient
from dpfed.core.participation import Participation
from dpfed.core.randomness import Noise
from dpfed.core.sampling import EVERYONE, Poisson
from dpfed.core.types import UPDATE, Adjacency, Broadcast, Facts, Trust, Unit
from dpfed.data.datasets import Records
from dpfed.data.models import LinearProblem
from dpfed.mechanisms.gaussian import gaussian
from dpfed.mechanisms.tree import tree
from dpfed.server.scale import scale
from dpfed.sums.plain import plain
from dpfed.training.inprocess import InProcess, rounds
from dpfed.training.plan import Plan
from dpfed.training.reply import ClientState
from tests.helpers.round_counts import updates
from tests.helpers.rounds import client_states, make_plan


def finish(plan: Plan, sizes: list[int]) -> torch.Tensor:
    problems = [m.problem for m in client_states(sizes).values()]
    *_, (last, _) = rounds(plan, problems, MODEL.initial(0))
    return last.params


def test_the_same_seed_gives_the_same_bits_whatever_the_threads() -> None:
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append(finish(make_plan(nominal=[4000, 500]), [4000, 500]))
        assert torch.get_num_threads() == threads  # handed back as it was
    torch.set_num_threads(before)
    assert torch.equal(*results)


def test_iteration_can_stop_early() -> None:
    problems = [m.problem for m in client_states().values()]
    run = rounds(make_plan(rounds=50), problems, MODEL.initial(0))
    state, _ = next(run)
    assert state.round == 1
    assert updates(state.release_counts) == 1


# ------------------------------------------------------------------- very many clients, on demand


class Made(Sequence[LinearProblem]):
    """Problems that are made when they are taken."""

    def __init__(self, clients: int) -> None:
        self.clients, self.taken = clients, 0

    def __len__(self) -> int:
        return self.clients

    def __getitem__(self, at: Any) -> Any:
        if at >= self.clients:
            raise IndexError(at)
        self.taken += 1
        made = torch.Generator().manual_seed(at)
        x = torch.randn(3, MODEL.features, generator=made)
        return MODEL.problem(Records(x, torch.randint(2, (3,), generator=made)))


def population(clients: int, count: int, **more: Any) -> Plan:
    # much noise: its price by PLD, which every round has, is a matter of milliseconds
    made = gaussian(
        Facts(0.5, unit=Unit.CLIENT, adjacency=Adjacency.ZERO_OUT, trust=Trust.CENTRAL), 3.0
    )
    return Plan(
        **{
            "client": gradient(),
            "channels": {UPDATE: made},
            "sum": plain(),
            "server": scale(0.5),
            "nominal": [1.0] * clients,
            "rounds": 6,
            "noise": Noise(7),
            "client_sampling": Poisson(count / clients),
            **more,
        }
    )


def test_problems_on_demand_give_the_bits_of_a_list() -> None:
    plan, made = population(200, 40), Made(200)
    on_demand = [state.params for state, _ in rounds(plan, made, MODEL.initial(0))]
    held = [state.params for state, _ in rounds(plan, list(Made(200)), MODEL.initial(0))]
    assert all(torch.equal(*both) for both in zip(on_demand, held, strict=True))
    assert 0 < made.taken < 6 * 200 // 2  # only those who are asked


def test_memory_does_not_grow_with_rounds_or_with_who_took_part() -> None:
    """Planted: a transport that keeps what it took would hold a problem more for each client."""
    plan, made = population(100_000, 300), Made(100_000)
    run, sizes = rounds(plan, made, MODEL.initial(0)), []
    gc.collect()
    gc.freeze()  # what other tests have left is not looked at
    try:
        for _ in range(6):
            next(run)
            gc.collect()
            sizes.append(sum(type(e) in (LinearProblem, ClientState) for e in gc.get_objects()))
    finally:
        gc.unfreeze()
    assert made.taken > 1_000
    assert max(sizes) - min(sizes) <= 300  # those of one pass; not all who were asked
    assert sizes[-1] <= sizes[0] + 50


@pytest.mark.parametrize("problems", [Made(20), list(Made(20))], ids=["on demand", "list"])
def test_an_attempt_is_entered_once_and_never_beyond_the_plan(
    problems: Sequence[LinearProblem],
) -> None:
    plan = population(20, 20, rounds=2)
    engine, asked = InProcess(plan, problems), {UPDATE: dict.fromkeys(range(20), b"")}

    def answers(round: int) -> set[str]:
        found = engine.exchange(Broadcast(round, MODEL.initial(0)), "reply", asked)
        return {str(reply) if isinstance(reply, Exception) else "sent" for _, reply in found}

    assert answers(0) == {"sent"}
    assert answers(0) == {"UnsoundPlan"}
    assert answers(1) == {"sent"}
    assert answers(2) == {"UnsoundPlan"}


def test_turns_are_kept_on_demand() -> None:
    turns = Participation(min_separation=2, at_most=2)
    made = gaussian(Facts(0.5, unit=Unit.CLIENT, trust=Trust.CENTRAL, participation=turns), 0.3)
    plan = population(4, 4, channels={UPDATE: made}, client_sampling=EVERYONE)
    engine, asked = InProcess(plan, Made(4)), {UPDATE: dict.fromkeys(range(4), b"")}
    said = []
    for at in (0, 1, 3, 5):
        found = engine.exchange(Broadcast(at, MODEL.initial(0)), "reply", asked)
        said.append({str(r) if isinstance(r, Exception) else "sent" for _, r in found})
    assert said == [{"sent"}, {"UnsoundPlan"}, {"sent"}, {"BudgetSpent"}]


def test_what_a_client_keeps_of_its_own_is_kept_on_demand() -> None:
    """Local noise of a tree goes on from the open nodes; and the bits are those of a list."""
    made = tree(Facts(0.5, unit=Unit.CLIENT), 0.3, horizon=8)
    plan = population(6, 6, channels={UPDATE: made}, client_sampling=EVERYONE)
    on_demand = [state.params for state, _ in rounds(plan, Made(6), MODEL.initial(0))]
    held = [state.params for state, _ in rounds(plan, list(Made(6)), MODEL.initial(0))]
    assert all(torch.equal(*both) for both in zip(on_demand, held, strict=True))


def test_a_client_that_is_not_there_is_no_client() -> None:
    engine = InProcess(population(3, 3), Made(3))
    assert list(engine.clients) == [0, 1, 2]
    assert 3 not in engine.clients
    with pytest.raises(KeyError):
        engine.clients[3]
    with pytest.raises(KeyError):
        del engine.clients[0]
