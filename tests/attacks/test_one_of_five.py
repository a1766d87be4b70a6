# SPDX-License-Identifier: Apache-2.0
"""One hospital of five takes part: its whole budget was spent for a model of its own.

Under a plain sum every total opened, whoever was in it. Now a training that fewer than
``sum.least_clients`` have enrolled in (more than half of the roster, and at least 2) asks for
nothing, and one in which fewer have answered ends. Where a draw of clients is priced an end would
tell who was drawn, so there is none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Message

from dpfed.audit.client_laws import MODEL
from dpfed.core.errors import RecipeError, RoundAborted
from dpfed.core.sampling import Poisson
from dpfed.flower import DPStrategy, client_app
from dpfed.flower import make_plan as recipe_plan
from dpfed.sums.plain import plain
from dpfed.training.inprocess import InProcess
from dpfed.training.loop import train
from dpfed.training.plan import Plan
from dpfed.training.stopping import least_clients
from tests.helpers.one_of_five import secret
from tests.helpers.quiet import Quiet
from tests.helpers.rounds import client_states, make_plan
from tests.training.flower.local_grid import LocalGrid, become_a_server, nodes

INITIAL = ArrayRecord(MODEL.layout.unflatten(torch.zeros(MODEL.layout.size)))
FIVE = [20] * 5
TRAININGS = count()


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPFED_STATE", str(tmp_path / "state"))
    become_a_server(monkeypatch)


def app_for(plan: Plan) -> Any:
    problems = [each.problem for each in client_states([20] * len(plan.nominal)).values()]
    return client_app(lambda context: problems[int(context.node_config["partition-id"])], plan)


def over_flower(plan: Plan, here: int, silent: Callable[[int, int], bool] | None = None) -> Any:
    """A strategy's training with so many of the plan's nodes; some may lose a round's answer."""

    def tamper(node: int, order: Message, reply: Message) -> Message | None:
        at = order.content.config_records["dpfed"]["round"]
        return None if silent and silent(int(at), node - 100) else reply

    strategy = DPStrategy(plan, training=f"t{next(TRAININGS)}", wait=0.1, wait_lost=0.0)
    grid = LocalGrid(app_for(plan), nodes(here), tamper)
    return strategy, lambda: strategy.start(grid, INITIAL, timeout=0.3)


@pytest.mark.parametrize(("clients", "least"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (20, 11)])
def test_more_than_half_of_the_roster_and_at_least_two(clients: int, least: int) -> None:
    assert least_clients(make_plan(nominal=[9] * clients)) == least
    assert least_clients(make_plan(nominal=[9] * clients, sum=plain(1))) == 1


@pytest.mark.parametrize("here", [1, 2])
def test_too_few_who_enrol_are_asked_for_nothing(here: int) -> None:
    strategy, start = over_flower(make_plan(nominal=FIVE), here)
    with pytest.raises(RoundAborted, match=f"{here} of the plan's 5 clients .*at least 3 must"):
        start()
    assert strategy.step.history == ()
    assert strategy.step.state.release_counts == {}
    assert "nothing was spent" in strategy.step.stopped


def test_enough_of_them_go_on_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    _, start = over_flower(make_plan(nominal=FIVE), 3)
    with caplog.at_level(logging.WARNING, logger="dpfed"):
        assert [row["clients"] for row in start().history] == [3] * 4
    assert "3 of the plan's 5 clients are connected" in caplog.text


def test_a_consortium_may_ask_for_more_or_for_one() -> None:
    _, start = over_flower(make_plan(nominal=FIVE, sum=plain(least_clients=5)), 4)
    with pytest.raises(RoundAborted, match="at least 5 must"):
        start()
    _, start = over_flower(make_plan(nominal=FIVE, sum=plain(least_clients=1)), 1)
    assert [row["clients"] for row in start().history] == [1] * 4


def test_a_round_that_too_few_have_answered_is_the_last_one() -> None:
    """All five have enrolled; from the second round on four of them are silent."""
    _, start = over_flower(make_plan(nominal=FIVE), 5, lambda at, client: at >= 1 and client > 0)
    result = start()
    assert [row["clients"] for row in result.history] == [5, 1]
    assert "1 of 5 clients answered when they were last asked, by round 2" in result.stopped
    spent = result.guarantee.realised[0]
    assert f"epsilon {spent:.4g} at delta 1e-05 is spent" in result.stopped


def test_after_the_last_round_there_is_nothing_to_end() -> None:
    _, start = over_flower(make_plan(nominal=FIVE), 5, lambda at, client: at == 3 and client > 0)
    result = start()
    assert [row["clients"] for row in result.history] == [5, 5, 5, 1]
    assert result.stopped is None


def test_it_goes_on_from_its_checkpoint_when_the_others_are_back(tmp_path: Path) -> None:
    plan, away = make_plan(nominal=FIVE), {1, 2, 3, 4}

    def tamper(node: int, order: Message, reply: Message) -> Message | None:
        return None if node - 100 in away else reply

    grid = LocalGrid(app_for(plan), nodes(5), tamper)
    strategy = DPStrategy(plan, training="t", checkpoint=tmp_path / "run", wait=0.1)
    first = strategy.start(grid, INITIAL, timeout=0.3)
    assert first.stopped is not None
    assert [row["clients"] for row in first.history] == [1]
    away.clear()
    result = DPStrategy(plan, training="t", checkpoint=tmp_path / "run").start(grid, INITIAL)
    assert [row["clients"] for row in result.history] == [1, 5, 5, 5]
    assert result.stopped is None


def in_process(plan: Plan, silent: Any) -> Any:
    problems = [each.problem for each in client_states([20] * len(plan.nominal)).values()]
    transport = Quiet(InProcess(plan, problems, None), silent)
    *_, last = train(plan, torch.zeros(MODEL.layout.size), transport)
    return last


def test_in_one_process_it_ends_likewise() -> None:
    last = in_process(make_plan(nominal=FIVE), lambda at, stage, client: client > 1)
    assert (last.state.round, [row["clients"] for row in last.history]) == (1, [2])
    assert "2 of 5 clients answered" in last.stopped


def test_two_of_five_that_miss_a_round_end_nothing() -> None:
    last = in_process(make_plan(nominal=FIVE), lambda at, stage, client: client == at.round)
    assert (last.state.round, last.stopped) == (4, None)


def test_one_client_alone_trains_as_ever() -> None:
    last = in_process(make_plan(nominal=[20]), lambda *_: False)
    assert (last.state.round, last.stopped) == (4, None)


def drawn(rate: float = 0.5, **changes: Any) -> Plan:
    """A draw that hides nothing, since records are protected: it is not priced."""
    return make_plan(nominal=[20] * 8, client_sampling=Poisson(rate), rounds=12, **changes)


def test_where_a_part_is_asked_it_counts_who_answered_when_last_asked() -> None:
    plan = drawn()
    last = in_process(plan, lambda at, stage, client: client > 3)
    assert last.stopped is not None
    assert "4 of 8 clients answered when they were last asked" in last.stopped
    assert 1 < last.state.round < plan.rounds  # not by the size of one draw
    assert in_process(plan, lambda *_: False).state.round == plan.rounds


@pytest.mark.parametrize("here", [1, 5])
def test_a_draw_that_is_priced_never_ends_a_training(here: int) -> None:
    assert least_clients(secret()) == 1
    _, start = over_flower(secret(), here, lambda at, client: client > 0)
    result = start()
    assert (result.stopped, len(result.history)) == (None, 4)


def test_the_option_is_checked_and_in_the_fingerprint() -> None:
    sections: Any = {"rounds": 4, "method": "dp-fedgd", "privacy": {"epsilon": 1.0}}
    usual = recipe_plan([20] * 5, **sections)
    given = recipe_plan([20] * 5, sum={"name": "plain", "least_clients": 4}, **sections)
    assert given.fingerprint() != usual.fingerprint()  # silos have agreed to it
    for wrong in (0, True, 6):
        with pytest.raises(RecipeError, match="least_clients"):
            recipe_plan([20] * 5, sum={"name": "plain", "least_clients": wrong}, **sections)
    hidden = {
        "epsilon": 1.0,
        "unit": "client",
        "trust": "central",
        "client_rate": 0.5,
        "adjacency": "zero-out",
    }
    with pytest.raises(RecipeError, match="drawn in secret"):
        recipe_plan(
            [1] * 5, sum={"name": "plain", "least_clients": 3}, **{**sections, "privacy": hidden}
        )


def test_nobody_who_enrols_leaves_no_model_and_no_guarantee_of_nothing() -> None:
    """It said (0, 0.001)-DP of the model that it began with."""
    strategy, start = over_flower(make_plan(nominal=FIVE), 0)
    with pytest.raises(RoundAborted, match="no round was completed"):
        start()
    assert strategy.step.state.round == 0
