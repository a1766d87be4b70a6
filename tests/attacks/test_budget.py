# SPDX-License-Identifier: Apache-2.0
"""A server that wants more than the owner's budget of 1, by every way round that it has.

Before: what was reserved for one plan paid for any other plan under the same training name (an
epsilon of 47, then gradients in clear, in a ledger that said 0.067), and each adjacency, unit and
trust had a budget of its own. What left is added up here from the releases themselves: the noise is
measured on a client whose rows are all zero, never read from the ledger.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from dpfed.accounting import gdp
from dpfed.accounting.ledger.balance import Budget
from dpfed.accounting.ledger.conversions import LedgerKey
from dpfed.accounting.ledger.ledger import Ledger
from dpfed.core.errors import BudgetSpent, ClientRefused, DpfedError, UnsoundPlan
from dpfed.core.randomness import Noise
from dpfed.core.registry import build
from dpfed.core.rows import Dense
from dpfed.core.sampling import Poisson
from dpfed.core.types import UPDATE, Adjacency, Broadcast, Facts, Rows, Trust, Unit, Vector
from dpfed.mechanisms.clear import clear
from dpfed.mechanisms.gaussian import gaussian
from dpfed.sums.plain import plain
from dpfed.training.account import Account, open_account
from dpfed.training.plan import Plan
from dpfed.training.reply import ClientState, client_reply

SIZE = 2000
BUDGET = Budget(1.0, 1e-5)
LIMIT = gdp.mu_for(*BUDGET[:2]) ** 2


class Silent:
    """A client's data whose rows are zero: what it sends is its noise."""

    dimension = SIZE

    def rows(self, params: Vector, unit: Unit) -> Rows:
        del params, unit
        return Dense(torch.zeros(4, SIZE))

    def gradient(self, params: Vector) -> Vector:
        return torch.zeros_like(params)

    def metric_rows(self, params: Vector, unit: Unit, loss_bound: float) -> Rows:
        raise NotImplementedError


def a_plan(std: float = 20.0, rounds: int = 5, rate: float = 1.0, **facts: Any) -> Plan:
    noise = gaussian(Facts(1.0, **facts), std)
    noise = noise if rate == 1 else noise.with_sampling(Poisson(rate))
    return Plan(
        client=build("client", "gradient", {}, unit=noise.unit),
        channels={UPDATE: noise},
        sum=plain(),
        server=build("server", "scale", {}),
        nominal=[4.0],
        rounds=rounds,
        noise=Noise(),
    )


class Silo:
    """A client with the owner's ledger; it adds up what left, whatever the ledger says."""

    def __init__(self, path: Path) -> None:
        self.account = Account(Ledger(path), "ward", divided=False)
        self.left = 0.0
        self.refusals: list[str] = []

    def ask(self, plan: Plan, training: str, round: int = 0, attempt: int = 0) -> bool:
        """Whether a release left; if so its mu^2, for a record that is replaced, is added."""
        broadcast = Broadcast(round, torch.zeros(SIZE), {}, attempt=attempt, training=training)
        state = ClientState(0, Silent(), ledger=self.account)
        found, _ = client_reply(plan, broadcast, "reply", {UPDATE: b""}, state)
        if isinstance(found, ClientRefused):
            self.refusals.append(str(found))
            return False
        session, _ = plan.sum.begin(None, {UPDATE: {0: 1.0}}, {UPDATE: SIZE}, CONTEXT(plan))
        opened = plan.sum.close(plan.sum.add(session, 0, found))
        noise = opened.totals[UPDATE].vector.double().std() * plan.step(UPDATE)  # type: ignore[union-attr]
        self.left += math.inf if noise == 0 else float(2 / noise) ** 2
        return True


def CONTEXT(plan: Plan):
    broadcast = Broadcast(0, torch.zeros(SIZE), {}, training="x")
    return plan.sum_context(broadcast, -1)


@pytest.fixture
def silo(tmp_path: Path) -> Silo:
    made = Silo(tmp_path / "ledger.sqlite")
    made.account.ledger.declare(LedgerKey("ward"), BUDGET)
    return made


def hostile_plans() -> list[Plan]:
    """One of every kind that a server might find a price gap with."""
    return [
        a_plan(),
        a_plan(adjacency=Adjacency.ZERO_OUT),
        a_plan(adjacency=Adjacency.ADD_REMOVE),
        a_plan(unit=Unit.CLIENT),
        a_plan(unit=Unit.CLIENT, adjacency=Adjacency.ZERO_OUT),
        a_plan(unit=Unit.GROUP),
        a_plan(trust=Trust.CENTRAL),
        a_plan(std=60.0, rate=0.01, adjacency=Adjacency.ZERO_OUT),
        a_plan(std=0.05),
        replace(a_plan(), channels={UPDATE: clear(Facts(1.0))}),
    ]


def test_a_budget_of_one_holds_whatever_the_server_asks_for(silo: Silo) -> None:
    """Another adjacency, unit, trust, plan, training name, round and attempt, in any mixture."""
    released = 0
    for training in ("a", "b", "a"):
        for number, plan in enumerate(hostile_plans()):
            for round in range(plan.rounds):
                for attempt in range(2):
                    released += silo.ask(plan, f"{training}{number % 3}", round, attempt)
    assert released > 0
    assert silo.left <= LIMIT * 1.05  # a standard deviation of 2,000 numbers is known to 1.6 %
    assert not silo.account.ledger.verify()


def test_ten_thousand_orders_buy_no_more_than_one_plan(silo: Silo) -> None:
    plan, asked = a_plan(std=20.0), count()
    for at in range(10_000):
        if silo.ask(plan, "t", at % 5, next(asked) // 5):
            continue
        if at > 50:
            break
    silo.refusals.clear()
    assert not any(silo.ask(plan, "t", at % 5, 100 + at) for at in range(20))
    assert set(silo.refusals) == {"BudgetSpent"}
    assert silo.left <= 5 * (2 / 20.0) ** 2 * 1.1


DRAWN = a_plan(std=60.0, rate=0.01, adjacency=Adjacency.ZERO_OUT)


@pytest.mark.parametrize(
    "second",
    [
        a_plan(std=0.3, rate=0.9, adjacency=Adjacency.ZERO_OUT),
        replace(DRAWN, channels={UPDATE: clear(Facts(1.0, adjacency=Adjacency.ZERO_OUT))}),
        a_plan(std=60.0, rate=0.01, adjacency=Adjacency.ZERO_OUT, rounds=6),
    ],
)
def test_what_was_reserved_for_one_plan_pays_for_no_other(silo: Silo, second: Plan) -> None:
    silo.account.ledger.declare(LedgerKey("ward", adjacency=Adjacency.ZERO_OUT), BUDGET)
    assert silo.ask(DRAWN, "t", 0)
    assert not silo.ask(second, "t", 1)
    broadcast = Broadcast(1, torch.zeros(SIZE), {}, training="t")
    with pytest.raises(UnsoundPlan, match=r"another plan .* 't' .*; give this one another name"):
        silo.account.begin(second, broadcast, ClientState(0))
    assert silo.ask(DRAWN, "t", 1)  # the first plan goes on
    assert not silo.account.ledger.verify()


def _request(silo: Silo, plan: Plan, round: int) -> Any:
    broadcast = Broadcast(round, torch.zeros(SIZE), {}, training="t")
    return silo.account.request(plan, broadcast, ClientState(0))


def test_verify_finds_releases_at_another_price_than_reserved(silo: Silo) -> None:
    ledger = Ledger(silo.account.ledger.path.with_name("other.sqlite"))
    silo.account = Account(ledger, "ward", divided=False)
    assert silo.ask(DRAWN, "t", 0)
    assert not ledger.verify()
    book = next(row.body for row in ledger.rows() if row.body["kind"] == "entry")
    cheap = {**book, "round": 1, "event": {"kind": "NoOp"}}
    with ledger._turn():
        ledger._append(**{k: v for k, v in cheap.items() if k not in {"time", "write"}})
    assert "another cost" in ledger.verify()[0]


def test_a_recipe_neither_opens_a_budget_nor_chooses_a_file_on_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: a server's recipe with a budget of 1000 in a file of its own choice was believed."""
    monkeypatch.setenv("DPFED_LEDGER", str(tmp_path / "owner.sqlite"))
    monkeypatch.setenv("DPFED_DATASET", "ward")
    monkeypatch.setenv("DPFED_STATE", str(tmp_path))
    elsewhere = tmp_path / "elsewhere.sqlite"
    found = open_account("other", path=elsewhere, epsilon=1000.0, environment=True)
    assert found is not None
    assert (found.dataset, found.budget) == ("ward", None)
    assert found.ledger.path == tmp_path / "owner.sqlite"
    assert not elsewhere.exists()
    found.ledger.declare(LedgerKey("ward"), BUDGET)
    with pytest.raises(DpfedError):
        found.begin(a_plan(std=0.01), Broadcast(0, torch.zeros(SIZE), {}), ClientState(0))


def test_a_recipe_opens_no_second_budget_for_another_guarantee(silo: Silo) -> None:
    """Before: a budget for zero-out stood beside the owner's for replace-one."""
    stated = replace(silo.account, budget=Budget(50.0, 1e-5))
    plan = a_plan(std=0.2, adjacency=Adjacency.ZERO_OUT)
    with pytest.raises(DpfedError, match="the recipe states"):
        stated.begin(plan, Broadcast(0, torch.zeros(SIZE), {}), ClientState(0))
    same = replace(silo.account, budget=BUDGET)
    with pytest.raises(BudgetSpent):
        same.begin(plan, Broadcast(0, torch.zeros(SIZE), {}), ClientState(0))
