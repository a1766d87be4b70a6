# SPDX-License-Identifier: Apache-2.0
"""Trainings with draws in a ledger: a round has one price, and runs add up by a proven rule."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dpfed.accounting import events, gdp
from dpfed.accounting.guarantee import epsilon_of
from dpfed.accounting.ledger.balance import Budget
from dpfed.accounting.ledger.conversions import LedgerKey, Server
from dpfed.accounting.ledger.ledger import Ledger
from dpfed.accounting.ledger.request import ChannelRequest
from dpfed.core.errors import BudgetSpent, UnsoundPlan
from dpfed.core.sampling import Poisson
from dpfed.core.types import Adjacency, Broadcast, Facts, Unit
from dpfed.flower import make_plan
from dpfed.mechanisms.gaussian import gaussian
from dpfed.mechanisms.tree import tree
from dpfed.training.account import Account, whole_cost
from dpfed.training.plan import Plan
from tests.helpers.ledgers import request

CLIENTS, ROUNDS, DELTA = 50, 6, 1e-5
KEY = LedgerKey("wards", Unit.CLIENT, Adjacency.ZERO_OUT, Server.OUTSIDERS, None)


def plan_of(rate: float = 0.1, std: float = 1.0, **more: Any) -> Plan:
    privacy = {
        "std_over_clip": std,
        "unit": "client",
        "trust": "central",
        "delta": DELTA,
        "adjacency": "zero-out",
        "client_rate": rate,
        **more,
    }
    return make_plan([1] * CLIENTS, rounds=ROUNDS, method="dp-fedavg", privacy=privacy)


JOINT = plan_of(adaptive={"share": 0.5})
MEMBER: Any = SimpleNamespace(client=0, mechanisms=None)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite")


@pytest.fixture
def wards(ledger: Ledger) -> Account:
    return Account(ledger, "wards", divided=False)


def enter(account: Account, plan: Plan, training: str, round: int, attempt: int = 0) -> None:
    order = Broadcast(round, None, attempt=attempt, training=training)  # type: ignore[arg-type]
    account.confirm(account.begin(plan, order, MEMBER))


def epsilon(ledger: Ledger) -> float:
    return ledger.spent(KEY).epsilon(DELTA, KEY.adjacency)


# ----------------------------------------------------------------------- a round has one price


def test_a_drawn_training_costs_what_its_guarantee_says(wards: Account, ledger: Ledger) -> None:
    for at in range(ROUNDS):
        enter(wards, JOINT, "t", at)
    assert epsilon(ledger) == JOINT.guarantee().epsilon
    assert ledger.verify() == []
    rows = [row.body for row in ledger.rows() if row.body["kind"] == "entry"]
    first = [row["event"] for row in rows if row["channel"] == "update"]
    others = [row["event"] for row in rows if row["channel"] != "update"]
    assert {each["kind"] for each in first} == {"PoissonSampled"}
    assert {each["kind"] for each in others} == {"NoOp"}


def test_what_an_officer_is_told_is_the_same_price() -> None:
    found = whole_cost(JOINT, KEY, Budget(100.0, DELTA))
    assert found == JOINT.guarantee().epsilon


def test_verify_finds_a_drawn_round_at_another_price(wards: Account, ledger: Ledger) -> None:
    enter(wards, JOINT, "t", 0)
    body = next(row.body for row in ledger.rows() if row.body["kind"] == "entry")
    cheap = {**body, "round": 1, "event": {**body["event"], "rate": 0.01}}
    with ledger._turn():
        ledger._append(**{k: v for k, v in cheap.items() if k not in {"write", "time"}})
    assert "another cost" in ledger.verify()[0]


# ------------------------------------------------------------------- runs that are chosen in turn


def test_a_lone_run_may_use_the_whole_budget(wards: Account, ledger: Ledger) -> None:
    ledger.declare(KEY, Budget(JOINT.guarantee().epsilon, DELTA))
    enter(wards, JOINT, "t", 0)
    with pytest.raises(BudgetSpent):
        enter(wards, plan_of(std=50.0), "u", 0)


def test_runs_with_draws_add_up_by_basic_composition(wards: Account, ledger: Ledger) -> None:
    plans = {"t": JOINT, "u": plan_of(std=2.0), "v": plan_of(std=3.0)}
    for name, plan in plans.items():
        enter(wards, plan, name, 0)
    parts = [
        epsilon_of(plan.whole_event, DELTA / (k * (k + 1)), KEY.adjacency)[0]
        for k, plan in enumerate(plans.values(), start=1)
    ]
    assert epsilon(Ledger(ledger.path)) == pytest.approx(sum(parts), rel=1e-12)


def test_a_budget_is_never_exceeded_by_runs_with_draws(wards: Account, ledger: Ledger) -> None:
    """Recounted from the plans that were admitted, not from the ledger."""
    budget = 2.0
    ledger.declare(KEY, Budget(budget, DELTA))
    admitted = []
    for number in range(6):
        plan = plan_of(std=1.5 + number)
        try:
            enter(wards, plan, f"t{number}", 0)
            admitted.append(plan)
        except BudgetSpent:
            pass
    total = sum(
        p.guarantee().epsilon_at(DELTA / (k * (k + 1))) for k, p in enumerate(admitted, start=1)
    )
    assert len(admitted) >= 2
    assert total <= budget * (1 + 1e-8)


@pytest.mark.sample(2)
@pytest.mark.parametrize("budget", [True, False])
def test_a_draw_after_gaussian_releases(wards: Account, ledger: Ledger, budget: bool) -> None:
    if budget:
        ledger.declare(KEY, Budget(50.0, DELTA))
    enter(wards, plan_of(rate=1.0, std=20.0), "plain", 0)
    if budget:
        with pytest.raises(UnsoundPlan, match=r"Gaussian releases.*'t' draws"):
            enter(wards, JOINT, "t", 0)
        return
    plain = epsilon_of(events.composed([ledger.rows()[0].body["event"]]), DELTA / 2, KEY.adjacency)
    enter(wards, JOINT, "t", 0)  # recorded, and shown by basic composition
    drawn = epsilon_of(JOINT.whole_event, DELTA / 6, KEY.adjacency)
    assert epsilon(ledger) == pytest.approx(plain[0] + drawn[0], rel=1e-9)


def test_a_gaussian_training_after_a_draw_is_one_more_run(wards: Account, ledger: Ledger) -> None:
    ledger.declare(KEY, Budget(50.0, DELTA))
    enter(wards, JOINT, "t", 0)
    enter(wards, plan_of(rate=1.0, std=20.0), "plain", 0)
    assert [row.body["kind"] for row in ledger.rows()].count("reserve") == 2


def test_an_enrolled_training_stops_no_run_that_is_paid_for(wards: Account, ledger: Ledger) -> None:
    ledger.declare(KEY, Budget(50.0, DELTA))
    enter(wards, JOINT, "t", 0)
    wards.admit(plan_of(rate=1.0, std=20.0), "plain", 0)
    enter(wards, JOINT, "t", 1)
    enter(wards, plan_of(std=5.0), "another", 0)


@pytest.mark.parametrize("after_a_draw", [False, True])
def test_a_gaussian_run_counts_the_same_with_and_without_draws_before(
    wards: Account, ledger: Ledger, after_a_draw: bool
) -> None:
    """Rows that are closer than two clips: replace-one's events are in units of that distance."""
    records = LedgerKey("wards", Unit.RECORD, Adjacency.ZERO_OUT, Server.CURIOUS, 1)
    key = records._replace(adjacency=Adjacency.REPLACE_ONE)
    ledger.declare(records, Budget(50.0, DELTA))
    if after_a_draw:
        drawn = gaussian(Facts(1.0, adjacency="zero-out"), 60.0).with_sampling(Poisson(0.01))
        ledger.begin(
            request(key=records, training="d", parts={"update": ChannelRequest(drawn, 1, 1)})
        )
    closer = gaussian(Facts(1.0, replace_bound=1.0), 0.5)  # mu = 2 in both adjacencies
    ledger.begin(
        request(key=key, training="g", parts={"update": ChannelRequest(closer, 1, 1)}, covered=True)
    )
    assert ledger.spent(records).epsilon(DELTA, records.adjacency) >= gdp.epsilon_for(DELTA, 2.0)


def test_correlated_noise_does_not_begin_anew_in_a_reserved_run(ledger: Ledger) -> None:
    drawn = gaussian(Facts(1.0, adjacency="zero-out"), 60.0).with_sampling(Poisson(0.01))
    key = LedgerKey("wards", adjacency=Adjacency.ZERO_OUT)
    ledger.begin(request(key=key, training="d", parts={"update": ChannelRequest(drawn, 1, 1)}))
    kept = tree(Facts(adjacency="zero-out"), std=9.0, horizon=8)
    parts = {"update": ChannelRequest(kept, 1, 8)}
    ledger.begin(request(0, key=key, training="g", parts=parts))
    ledger.begin(request(1, key=key, training="g", parts=parts, fresh=False))
    with pytest.raises(UnsoundPlan, match="must continue from its stored state"):
        ledger.begin(request(2, key=key, training="g", parts=parts))


def test_secure_sums_take_a_hundredth_of_delta_at_most(ledger: Ledger) -> None:
    key = LedgerKey("wards")
    ledger.declare(key, Budget(50.0, DELTA))
    ledger.begin(request(key=key, training="a", delta_reserved=0.006 * DELTA))
    with pytest.raises(BudgetSpent):
        ledger.begin(request(key=key, training="b", delta_reserved=0.006 * DELTA))


# --------------------------------------------------------- draws where one comes for another


RECORDS = LedgerKey("wards", Unit.RECORD, Adjacency.REPLACE_ONE, Server.CURIOUS, 1)


def drawn_part(adjacency: str, std: float = 6.0, releases: int = 10) -> ChannelRequest:
    mechanism = gaussian(Facts(1.0, adjacency=adjacency), std).with_sampling(Poisson(0.1))
    return ChannelRequest(mechanism, 1, releases)


@pytest.mark.parametrize("unit", ["record", "client"])
def test_a_drawn_training_under_replace_one_costs_what_its_guarantee_says(
    ledger: Ledger, unit: str
) -> None:
    """Rows, reservation and guarantee have the mark: ``verify`` compares them with each other."""
    if unit == "client":
        plan = plan_of(std=2.0, adjacency="replace-one", adaptive={"share": 0.5})
    else:
        privacy = {"std_over_clip": 6.0, "record_rate": 0.1, "delta": DELTA}
        plan = make_plan([500] * 3, rounds=ROUNDS, method="dp-fedgd", privacy=privacy)
    account = Account(ledger, "wards", divided=False)
    for at in range(ROUNDS):
        enter(account, plan, "t", at)
    key = account.key(plan, 0)
    assert key.adjacency is Adjacency.REPLACE_ONE
    assert ledger.spent(key).epsilon(DELTA, key.adjacency) == plan.guarantee().epsilon
    assert ledger.verify() == []
    reserve, *entries = (row.body for row in ledger.rows() if row.body["kind"] != "confirm")
    kinds = {row["event"]["kind"] for row in (reserve, *entries)} - {"NoOp"}
    assert kinds == {"ThroughZero"}
    with pytest.raises(BudgetSpent, match="left of what was reserved"):
        enter(account, plan, "t", 0, attempt=1)


def test_drawn_runs_under_replace_one_add_up_by_basic_composition(ledger: Ledger) -> None:
    for training in "abc":
        parts = {"update": drawn_part("replace-one")}
        ledger.begin(request(key=RECORDS, training=training, parts=parts))
    one = events.through_zero(
        events.composed(
            [
                {
                    "kind": "PoissonSampled",
                    "rate": 0.1,
                    "event": {"kind": "Gaussian", "noise_multiplier": 6.0},
                }
            ]
            * 10
        )
    )
    parts_of_delta = [DELTA / 2, DELTA / 6, DELTA / 12]
    apart = sum(epsilon_of(one, each, Adjacency.REPLACE_ONE)[0] for each in parts_of_delta)
    assert ledger.spent(RECORDS).epsilon(DELTA, Adjacency.REPLACE_ONE) == pytest.approx(apart)


@pytest.mark.parametrize("adjacency", ["zero-out", "add-remove"])
def test_a_drawn_run_for_a_unit_that_goes_counts_as_one_for_another(
    ledger: Ledger, adjacency: str
) -> None:
    own = RECORDS._replace(adjacency=Adjacency(adjacency))
    ledger.begin(request(key=own, training="d", parts={"update": drawn_part(adjacency)}))
    counted = ledger.spent(RECORDS).epsilon(DELTA, Adjacency.REPLACE_ONE)
    tree = events.composed([events.to_json(drawn_part(adjacency).mechanism.event(10))])
    true, _ = epsilon_of(events.through_zero(tree), DELTA, Adjacency.REPLACE_ONE)
    assert counted == pytest.approx(true)
    assert counted > 1.9 * epsilon_of(tree, DELTA, own.adjacency)[0]
    ledger.declare(RECORDS, Budget(1.2 * counted, DELTA))
    with pytest.raises(BudgetSpent):
        ledger.begin(request(key=own, training="e", parts={"update": drawn_part(adjacency)}))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ({"adjacency": "replace-one"}, {"adjacency": "zero-out"}),
        ({"adjacency": "replace-one"}, {"adjacency": "add-remove"}),
        ({"unit": "group", "adjacency": "replace-one"}, {"unit": "record"}),
        ({"unit": "group", "adjacency": "zero-out"}, {"unit": "record"}),
        ({"adjacency": "zero-out"}, {"adjacency": "add-remove"}),
    ],
)
def test_no_other_conversion_applies_to_a_drawn_run(
    ledger: Ledger, source: dict[str, str], target: dict[str, str]
) -> None:
    def key(unit: str = "record", adjacency: str = "replace-one") -> LedgerKey:
        return RECORDS._replace(unit=Unit(unit), adjacency=Adjacency(adjacency))

    ledger.declare(key(**target), Budget(50.0, DELTA, keeps_person=True))
    own = key(**source)
    part = drawn_part(own.adjacency)
    mechanism = part.mechanism.with_facts(unit=own.unit)
    with pytest.raises(UnsoundPlan, match="bounds no releases for"):
        ledger.begin(
            request(
                key=own,
                training="d",
                parts={"update": ChannelRequest(mechanism, 1, 10)},
                covered=True,
            )
        )
