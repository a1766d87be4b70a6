# SPDX-License-Identifier: Apache-2.0
"""The reference engine: determinism, threads, counts. What stops it: test_loop.py."""

from __future__ import annotations

import pytest
import torch

from dpfed.audit.client_laws import MODEL
from dpfed.core.participation import Participation
from dpfed.core.types import UPDATE, Broadcast, Facts, Trust, Unit
from dpfed.mechanisms.gaussian import gaussian
from dpfed.training.inprocess import InProcess, rounds
from dpfed.training.plan import Plan
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


def test_an_attempt_is_entered_once_and_never_beyond_the_plan() -> None:
    problems = [m.problem for m in client_states().values()]
    engine = InProcess(make_plan(rounds=2), problems)
    asked = {UPDATE: dict.fromkeys(range(3), b"")}

    def answers(round: int) -> set[str]:
        replies = engine.exchange(Broadcast(round, MODEL.initial(0)), "reply", asked)
        return {str(reply) if isinstance(reply, Exception) else "sent" for _, reply in replies}

    assert answers(0) == {"sent"}
    assert answers(0) == {"UnsoundPlan"}
    assert answers(1) == {"sent"}
    assert answers(2) == {"UnsoundPlan"}


def test_a_client_whose_count_refuses_is_left_out_alone(caplog: pytest.LogCaptureFixture) -> None:
    plan, problems = make_plan(), [m.problem for m in client_states().values()]
    engine, at = InProcess(plan, problems), Broadcast(0, MODEL.initial(0))
    engine.clients[1].ledger.begin(plan, at, engine.clients[1])  # type: ignore[union-attr]
    replies = dict(engine.exchange(at, "reply", {UPDATE: dict.fromkeys(range(3), b"")}))
    assert [client for client, r in replies.items() if isinstance(r, Exception)] == [1]
    assert "client 1 could not answer round 0" in caplog.text


def test_turns_are_kept() -> None:
    turns = Participation(min_separation=2, at_most=2)
    facts = Facts(0.5, unit=Unit.CLIENT, trust=Trust.CENTRAL, participation=turns)
    plan = make_plan(channels={UPDATE: gaussian(facts, 0.3)}, rounds=6)
    engine = InProcess(plan, [m.problem for m in client_states().values()])
    said = []
    for at in (0, 1, 3, 5):
        asked = {UPDATE: dict.fromkeys(range(3), b"")}
        replies = engine.exchange(Broadcast(at, MODEL.initial(0)), "reply", asked)
        said.append({str(r) if isinstance(r, Exception) else "sent" for _, r in replies})
    assert said == [{"sent"}, {"UnsoundPlan"}, {"sent"}, {"BudgetSpent"}]
