# SPDX-License-Identifier: Apache-2.0
"""The secure sum over Flower's Message API: the bits of ``plain``, whoever goes silent when."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord, Error, Message

from dpfed.accounting.ledger.balance import Budget
from dpfed.accounting.ledger.ledger import Ledger
from dpfed.core.errors import RoundAborted
from dpfed.core.types import METRICS, UPDATE, Facts
from dpfed.mechanisms.gaussian import gaussian
from dpfed.sums.plain import plain
from dpfed.sums.secure import secure
from dpfed.training.account import Account
from dpfed.training.flower.client import client_app
from dpfed.training.flower.strategy import DPStrategy
from dpfed.training.plan import Plan
from tests.helpers.rounds import client_states, make_plan
from tests.helpers.strategies import INITIAL, app_for, final, grid_for, params
from tests.training.flower.local_grid import LocalGrid, become_a_server, nodes, refused

SIZES = [3, 4, 5, 6, 7]


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPFED_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("DPFED_IDENTITY", "simulated")
    become_a_server(monkeypatch)


def plan_with(sum: object, **changes: object) -> Plan:
    return make_plan(sum=sum, nominal=SIZES, **changes)


def test_the_same_bits_as_plain_in_process_and_over_messages() -> None:
    hidden = plan_with(secure())
    result = DPStrategy(hidden).start(grid_for(hidden, sizes=SIZES), INITIAL)
    assert [row["clients"] for row in result.history] == [5] * 4
    shown = final(plan_with(plain()), SIZES)
    assert torch.equal(params(result), shown)
    assert torch.equal(final(hidden, SIZES), shown)


def test_metrics_are_summed_in_the_same_exchanges() -> None:
    channels = {UPDATE: gaussian(Facts(1.0), 2.0), METRICS: gaussian(Facts(math.sqrt(2)), 1e-6)}
    plan = plan_with(secure(), channels=channels, metrics_every=3)
    grid = grid_for(plan, sizes=SIZES)
    result = DPStrategy(plan).start(grid, INITIAL)
    judged = [row["round"] for row in result.history if row["accuracy"] is not None]
    assert judged == [3, 4]
    assert torch.equal(params(result), final(plan, SIZES))


@pytest.mark.parametrize(
    ("stage", "inside"), [("keys", 4), ("input", 4), ("unmask", 5)], ids=lambda value: str(value)
)
def test_a_client_that_goes_silent_at_a_stage(stage: str, inside: int) -> None:
    plan = plan_with(secure())

    def tamper(node: int, message: Message, reply: Message) -> Message:
        control = message.content.config_records["dpfed"]
        late = control["stage"] == stage and node == 102 and control["round"] == 0
        return Message(Error(3), reply_to=message) if late else reply

    result = DPStrategy(plan).start(grid_for(plan, tamper, SIZES), INITIAL)
    assert [row["clients"] for row in result.history] == [inside, 5, 5, 5]
    assert result.history[0]["absent"] == ("2" if inside == 4 else "")


def test_below_the_floor_the_round_is_not_opened_and_the_attempt_is_spent() -> None:
    plan = plan_with(secure())

    def tamper(node: int, message: Message, reply: Message) -> Message:
        control = message.content.config_records["dpfed"]
        gone = control["stage"] == "input" and control["attempt"] == 0 and control["round"] == 1
        return Message(Error(3), reply_to=message) if gone and node in (101, 103) else reply

    result = DPStrategy(plan).start(grid_for(plan, tamper, SIZES), INITIAL)
    assert [row["round"] for row in result.history] == [1, 1, 1, 2, 3]
    for row in result.history[1:3]:  # the same attempt is asked for again first, at no cost
        assert row["aborted"] == "3 clients are in the total, and 4 are agreed on"
    assert result.history[1]["epsilon"] == result.history[2]["epsilon"]
    assert result.stopped == "the next round would exceed the plan's guarantee"


def test_a_silo_that_crashes_and_comes_back_wastes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Three silos, all of which must be in the total; the second dies within a round."""
    sizes = SIZES[:3]
    plan = make_plan(sum=secure(survivors=1.0), nominal=sizes, rounds=5)
    grid: Returning

    def tamper(node: int, message: Message, reply: Message) -> Message:
        control = message.content.config_records["dpfed"]
        if node == 101 and control["stage"] == "input" and control["round"] == 1 and not grid.died:
            grid.die()
            return Message(Error(3), reply_to=message)
        return reply

    grid = Returning(app_for(plan, sizes), nodes(3), tamper)
    result = DPStrategy(plan, wait_lost=20).start(grid, INITIAL)
    assert [row["round"] for row in result.history] == [1, 1, 2, 3, 4, 5]
    assert result.stopped is None
    assert "waiting up to 20 s for clients that were lost: 1; start their SuperNodes" in caplog.text
    planned = plan.guarantee()
    assert result.guarantee is not None
    assert result.guarantee.claims[0].epsilon == planned.claims[0].epsilon
    assert torch.equal(params(result), final(plan, sizes))


def test_a_silo_that_stays_away_is_waited_for_and_no_longer() -> None:
    sizes = SIZES[:3]
    plan = make_plan(sum=secure(survivors=1.0), nominal=sizes, rounds=9)

    def tamper(node: int, message: Message, reply: Message) -> Message:
        control = message.content.config_records["dpfed"]
        if node == 101 and control["stage"] == "input" and control["round"] == 1:
            grid.offline.add(101)
            return Message(Error(3), reply_to=message)
        return reply

    grid = LocalGrid(app_for(plan, sizes), nodes(3), tamper)
    result = DPStrategy(plan, wait_lost=0.1).start(grid, INITIAL)
    assert result.stopped is not None
    assert "attempts in a row" in result.stopped
    assert result.history[0]["round"] == 1, "the model of the first round is kept"


class Returning(LocalGrid):
    """A grid whose node 101 is away for the next few looks, once."""

    died, looks = False, 0

    def die(self) -> None:
        self.died, self.looks = True, 3
        self.offline.add(101)

    def get_node_ids(self) -> Iterable[int]:
        self.looks -= 1
        if self.died and self.looks < 0:
            self.offline.discard(101)
        return super().get_node_ids()


def test_a_client_without_an_identity_is_not_in_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_with(secure())
    monkeypatch.delenv("DPFED_IDENTITY")
    strategy = DPStrategy(plan)
    with pytest.raises(RoundAborted, match="3 attempts"):
        strategy.start(grid_for(plan, sizes=SIZES), INITIAL)
    assert strategy.step is not None
    history = strategy.step.history
    assert history[0]["aborted"] == "0 clients have sent keys, and 4 are agreed on"
    assert set(refused(history[0]).values()) == {"DataError"}
    assert [row["epsilon"] for row in history] == [0.0] * 3


def test_a_replayed_round_is_refused_even_after_a_restart(tmp_path: Path) -> None:
    plan = plan_with(secure())
    first = DPStrategy(plan, training="t").start(grid_for(plan, sizes=SIZES), INITIAL, num_rounds=2)
    assert len(first.history) == 2
    again = DPStrategy(plan, training="t").start(grid_for(plan, sizes=SIZES), INITIAL, num_rounds=1)
    assert again.history[0]["aborted"] == "0 clients are in the total, and 4 are agreed on"
    assert set(refused(again.history[0]).values()) == {"Untrusted"}
    vaults = list((tmp_path / "state").rglob("sum.vault"))
    assert len(vaults) == 5
    assert {path.stat().st_mode & 0o777 for path in vaults} == {0o600}


def test_only_the_input_stage_has_the_model() -> None:
    plan = plan_with(secure())
    seen: dict[str, set[int]] = {}

    def tamper(node: int, message: Message, reply: Message) -> Message:
        stage = str(message.content.config_records["dpfed"]["stage"])
        arrays: ArrayRecord = message.content.array_records["arrays"]
        seen.setdefault(stage, set()).add(len(arrays))
        return reply

    DPStrategy(plan).start(grid_for(plan, tamper, SIZES), INITIAL)
    assert seen == {"keys": {0}, "input": {len(INITIAL)}, "unmask": {0}}


@pytest.mark.parametrize("poor", [1, 2, 4])
def test_where_too_many_budgets_do_not_suffice_nothing_is_asked_of_the_others(
    poor: int, tmp_path: Path
) -> None:
    """Four of five must be in a total: one refusal is borne, two end the training at enrolment."""
    plan = plan_with(secure())
    people = client_states(SIZES)
    ledgers = [Account(Ledger(tmp_path / f"{i}.sqlite"), f"ward-{i}", False) for i in range(5)]
    for i, each in enumerate(ledgers):
        epsilon = 0.01 if i < poor else 1000.0
        each.ledger.declare(each.key(plan, i), Budget(epsilon, plan.delta))
    app = client_app(
        lambda context: people[context.node_config["partition-id"]].problem,
        plan,
        lambda context: ledgers[context.node_config["partition-id"]],
    )
    strategy = DPStrategy(plan, wait=1.0)
    if poor == 1:
        result = strategy.start(LocalGrid(app, nodes(5)), INITIAL)
        assert [row["clients"] for row in result.history] == [4] * 4
        return
    with pytest.raises(RoundAborted, match=f"{poor} of 5 clients have no budget that suffices"):
        strategy.start(LocalGrid(app, nodes(5)), INITIAL)
    assert strategy.step is not None
    assert strategy.step.history == ()
    rows = [[row.body["kind"] for row in each.ledger.rows()] for each in ledgers]
    assert rows == [["budget"]] * poor + [["budget", "claim", "waive"]] * (5 - poor)
