# SPDX-License-Identifier: Apache-2.0
"""The ledger as a person meets it: commands, recipes with a [ledger], and Flower clients."""

from __future__ import annotations

import json
import math
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord
from typer.testing import CliRunner

import dpfed
from dpfed.accounting import gdp
from dpfed.accounting.events import from_json
from dpfed.accounting.guarantee import epsilon_of_event
from dpfed.accounting.ledger.balance import Budget
from dpfed.accounting.ledger.conversions import LedgerKey
from dpfed.accounting.ledger.ledger import Ledger
from dpfed.accounting.ledger.request import ChannelRequest, Request
from dpfed.audit.client_laws import MODEL
from dpfed.cli.main import app
from dpfed.core.errors import BudgetSpent, RecipeError, RoundAborted, UnsoundPlan
from dpfed.core.types import UPDATE, Adjacency, Facts, Unit
from dpfed.flower import DPStrategy, client_app
from dpfed.mechanisms.gaussian import gaussian
from dpfed.recipes.schema import dump_recipe, load_recipe, parse
from dpfed.training.account import Account
from dpfed.training.stopping import UNAFFORDABLE
from tests.helpers.ledgers import whole_of
from tests.helpers.rounds import SIZES, client_states, make_plan
from tests.training.flower.local_grid import LocalGrid, become_a_server, nodes, refused

RECIPE: dict[str, Any] = {
    "method": "dp-fedgd",
    "rounds": 4,
    "data": {
        "source": "synthetic",
        "options": {"records": 200, "features": 4, "classes": 3},
        "partition": {"clients": 2},
    },
    "privacy": {"epsilon": 2.0},
}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DPFED_LEDGER", str(tmp_path / "ledger.sqlite"))
    monkeypatch.setenv("DPFED_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("DPFED_DATASET", raising=False)
    return tmp_path / "ledger.sqlite"


def call(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["ledger", *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return 2, str(done.exception)
    return done.exit_code, done.output


def train(**ledger: Any) -> Any:
    return dpfed.run({**RECIPE, "ledger": {"dataset": "toy", **ledger}})


# ---------------------------------------------------------------------------------- commands


def test_a_run_is_shown_with_its_budget_and_what_is_left(path: Path) -> None:
    train(epsilon=3.0)
    code, text = call("show")
    assert code == 0
    for word in ("toy", "record, replace-one, the server, delta 1e-05", "update", "all"):
        assert word in text
    head, *_, last, why = text.splitlines()
    assert why.startswith("epsilon and what is left do not add up to the budget: squares of mu")
    assert head.split("  ")[-1].strip() == "left for one more run"
    assert last.split()[-3:] == ["2", "3", "2.0615"]  # mu^2 adds up; 2 and 2.0615 make 3
    code, text = call("show", "--json")
    run, total = json.loads(text)
    assert run["epsilon"] == pytest.approx(2.0, rel=1e-6)
    assert (run["clients"], run["releases"], run["unconfirmed"]) == (2, 4, 0)
    assert (total["budget"], total["epsilon"]) == (3.0, run["epsilon"])
    left = gdp.mu_for(3.0, 1e-5) ** 2 - gdp.mu_for(2.0, 1e-5) ** 2
    assert total["left"] == pytest.approx(gdp.epsilon_for(1e-5, math.sqrt(left)), rel=1e-6)
    code, text = call("show", "--json", "--all")
    assert {row["dataset"] for row in json.loads(text)} == {"toy/0", "toy/1", "toy"}


def test_a_second_run_on_the_same_data_starts_from_what_the_first_spent(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(epsilon=2.6)
    with pytest.raises(BudgetSpent, match=r"the whole training 'run-.*' needs 2\.954"):
        train(epsilon=2.6)
    with monkeypatch.context() as others:  # as if they had spent since the run began
        others.setattr(Ledger, "refusals", lambda *_: {})
        short = train(epsilon=2.6)  # 2.27 after one more round, 2.52 after two
    assert [row["clients"] for row in short.history] == [2, 2, 0]
    with pytest.raises(BudgetSpent, match="budget suffices"):
        train(epsilon=2.6)
    assert json.loads(call("show", "--json")[1])[-1]["epsilon"] <= 2.6


@pytest.mark.usefixtures("path")
def test_the_model_is_kept_when_the_budget_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "refusals", lambda *_: {})  # others have spent since it began
    half = gdp.epsilon_for(1e-5, gdp.mu_for(2.0, 1e-5) * math.sqrt(0.6))
    result = train(epsilon=half)
    assert [row["round"] for row in result.history] == [1, 2, 2]
    assert [bool(row["aborted"]) for row in result.history] == [False, False, True]
    why = "no client's budget suffices for a further round"
    assert result.stopped == why
    assert result.warnings[-1] == f"stopped after 2 of 4 rounds: {why}"
    assert result.params.abs().sum() > 0


def test_budget_declares_changes_and_logs(path: Path) -> None:
    assert call("budget", "toy", "--epsilon", "3")[1].strip().endswith("budget (3, 1e-05)")
    with pytest.raises(RecipeError, match="the recipe states"):
        train(epsilon=5.0)
    code, text = call("budget", "toy", "--epsilon", "5")
    assert "budget (5, 1e-05), before (3, 1e-05)" in text
    train(epsilon=5.0)
    code, text = call("budget", "toy", "--epsilon", "5", "--adversary", "nobody")
    assert (code, "one of outsiders, server, malicious, curious, got 'nobody'" in text) == (2, True)
    code, text = call("budget", "toy", "--epsilon", "-1")
    assert (code, "above 0, got -1.0" in text) == (2, True)


def test_a_budgets_server_has_the_name_that_recipes_use_too(path: Path) -> None:
    for word in ("server", "curious"):
        code, text = call("budget", word, "--epsilon", "3", "--adversary", word)
        assert (code, "(record, replace-one, against the server): budget" in text) == (0, True)


def test_rename_shares_what_was_spent(path: Path) -> None:
    train(epsilon=2.0)
    assert call("rename", "toy", "toys")[0] == 0
    with pytest.raises(BudgetSpent):
        train(dataset="toys")
    assert all(line.startswith("toy (also toys)  ") for line in call("show")[1].splitlines()[1:-1])
    assert [row["also"] for row in json.loads(call("show", "--json")[1])] == [["toys"]] * 2
    code, text = call("rename", "nothing", "x")
    assert (code, "no data set 'nothing'" in text) == (2, True)


def test_an_owner_frees_what_a_dead_training_has_claimed(path: Path) -> None:
    parts = {UPDATE: ChannelRequest(gaussian(Facts(1.0), 4.0), 0, 4)}
    asked = Request(
        key=LedgerKey("toy"),
        training="dead",
        client=0,
        round=0,
        attempt=0,
        parts=parts,
        plan="p",
        whole=whole_of(parts),
    )
    assert call("budget", "toy", "--epsilon", "8")[0] == 0
    Ledger(path).claim(asked)
    assert call("waive", "toy", "other")[1] == "training 'other' on 'toy': nothing was kept\n"
    assert Ledger(path).balance().claims
    assert "what it has not spent is free again" in call("waive", "toy", "dead")[1]
    assert not Ledger(path).balance().claims
    assert call("verify")[0] == 0


def test_export_can_be_priced_by_others(path: Path, tmp_path: Path) -> None:
    train()
    assert call("export", "--out", str(tmp_path / "out.json"))[0] == 0
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    from dp_accounting import ComposedDpEvent

    first = [r for r in rows if r["kind"] == "entry" and r["dataset"] == "toy/0"]
    event = ComposedDpEvent([from_json(row["event"]) for row in first])
    assert epsilon_of_event(event, 1e-5, Adjacency.REPLACE_ONE)[0] == pytest.approx(2.0, rel=1e-6)
    assert json.loads(call("export")[1])["rows"] == rows


def test_a_run_that_the_budget_cannot_bound_ends_with_the_ledgers_sentence(path: Path) -> None:
    call("budget", "toy", "--epsilon", "5")
    run = {**RECIPE, "privacy": {"epsilon": 2.0, "unit": "group"}, "ledger": {"dataset": "toy"}}
    with pytest.raises(RoundAborted, match=r"part.*\(UnsoundPlan\).*the ledger") as told:
        dpfed.run(run)
    assert "bounds no releases for 'toy/0' (group, replace-one" in str(told.value)
    assert "; train for what the budget is stated for, or let the owner" in str(told.value)


def test_verify_says_which_row_is_wrong_and_exits_with_1(path: Path) -> None:
    train()
    code, text = call("verify")
    assert code == 0
    assert "12 rows, all in order" in text
    noted = text.splitlines()[-1]
    assert call("verify", "--expect", noted[:10])[0] == 0
    code, text = call("verify", "--expect", "99:ab")
    assert (code, "the ledger is an older one" in text) == (1, True)
    assert call("verify", "--expect", "nonsense")[0] == 1
    db = sqlite3.connect(path)
    db.execute("DROP TRIGGER no_delete")
    db.execute("DELETE FROM rows WHERE number = 4")
    db.commit()
    db.close()
    code, text = call("verify")
    assert code == 1
    assert "row 4 of" in text
    assert "is missing" in text


@pytest.mark.parametrize("command", ["show", "export", "verify"])
def test_reading_makes_no_ledger(path: Path, command: str) -> None:
    code, text = call(command)
    assert code in {1, 2}
    assert "there is no ledger at" in text
    assert not path.exists()


# ------------------------------------------------------------------------------------- recipes


def test_a_recipe_without_a_ledger_writes_nothing_and_keeps_its_key(path: Path) -> None:
    dpfed.run(RECIPE)
    assert not path.exists()
    assert "ledger" not in dump_recipe(parse(RECIPE))


def test_a_recipe_with_one_is_written_back(path: Path) -> None:
    recipe = load_recipe(RECIPE, ["ledger.dataset=adult", "ledger.epsilon=8.0"])
    assert 'dataset = "adult"' in dump_recipe(recipe)
    with pytest.raises(RecipeError, match="did you mean 'epsilon'"):
        parse({**RECIPE, "ledger": {"dataset": "x", "epsilonn": 1.0}})


# ------------------------------------------------------------------------------ Flower clients


def grid(plan: Any, ledger: str | None) -> LocalGrid:
    people = client_states(SIZES)
    made = client_app(lambda c: people[c.node_config["partition-id"]].problem, plan, ledger)
    return LocalGrid(made, nodes(len(SIZES)))


INITIAL = ArrayRecord(MODEL.layout.unflatten(torch.zeros(MODEL.layout.size)))


def test_a_flower_client_books_under_its_name(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    become_a_server(monkeypatch)
    plan = make_plan()
    result = DPStrategy(plan, training="t").start(grid(plan, "ward"), INITIAL)
    assert result.stopped is None
    planned = plan.guarantee().claims[0].epsilon
    for client in range(3):
        spent = Ledger(path).spent(LedgerKey(f"ward/{client}"))
        assert spent.epsilon(plan.delta, plan.update.adjacency) == pytest.approx(planned)
    again = DPStrategy(plan, training="t").start(grid(plan, "ward"), INITIAL)
    assert all(row["clients"] == 0 for row in again.history)  # the same rounds again are refused
    assert set(refused(again.history[0]).values()) == {"UnsoundPlan"}


def test_training_stops_and_keeps_the_model_when_nobody_can_pay(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PRIVACY section 6, 'budget exhausted, and the model is lost'."""
    become_a_server(monkeypatch)
    monkeypatch.setattr(Ledger, "refusals", lambda *_: {})  # others have spent since it began
    plan = make_plan(rounds=6)
    one = gdp.mu_squared(2.0, 1, Adjacency.REPLACE_ONE)
    Ledger(path).declare(
        LedgerKey("ward"), Budget(gdp.epsilon_for(1e-5, math.sqrt(2.5 * one)), 1e-5)
    )
    result = DPStrategy(plan, training="t").start(grid(plan, "ward"), INITIAL)
    assert result.stopped == "no client's budget suffices for a further round"
    assert [row["clients"] for row in result.history] == [3, 3, 0]  # asked once, not again
    assert set(refused(result.history[-1]).values()) == {"BudgetSpent"}
    short = make_plan(rounds=2)
    expected = DPStrategy(short, training="u").start(grid(short, "other"), INITIAL)
    assert str(MODEL.layout.flatten(result.arrays.to_torch_state_dict())) == str(
        MODEL.layout.flatten(expected.arrays.to_torch_state_dict())
    )


def test_a_silo_that_cannot_pay_says_so_at_enrolment(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    become_a_server(monkeypatch)
    plan, ledger = make_plan(rounds=6), Ledger(path)
    one = gdp.mu_squared(2.0, 1, Adjacency.REPLACE_ONE)
    ledger.declare(LedgerKey("ward"), Budget(gdp.epsilon_for(1e-5, math.sqrt(5.5 * one)), 1e-5))
    began = time.monotonic()
    with pytest.raises(BudgetSpent, match=f"no round was completed: {UNAFFORDABLE}"):
        DPStrategy(plan, training="t", wait=60).start(grid(plan, "ward"), INITIAL)
    assert time.monotonic() - began < 30, "who has refused is not waited for"
    assert "node 100 is not enrolled: its budget does not suffice for the whole training" in (
        caplog.text
    )
    assert [row.body["kind"] for row in Ledger(path).rows()] == ["budget"], "nothing is spent"
    smaller = make_plan(rounds=5)
    done = DPStrategy(smaller, training="u").start(grid(smaller, "ward"), INITIAL)
    assert (done.stopped, len(done.history)) == (None, 5)
    own = Account(Ledger(path), "ward")
    assert own.refusals(smaller, "u", range(3)) == {}, "its own releases count once"
    again = own.refusals(make_plan(rounds=1), "v", range(3))
    assert [type(error) for error in again.values()] == [BudgetSpent] * 3


def test_a_node_that_comes_back_in_the_middle_is_enrolled_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    become_a_server(monkeypatch)
    plan = make_plan(rounds=6)
    one = gdp.mu_squared(2.0, 1, Adjacency.REPLACE_ONE)
    exact = Budget(gdp.epsilon_for(1e-5, math.sqrt(6 * one)), 1e-5)
    Ledger(path).declare(LedgerKey("ward"), exact)
    clients = grid(plan, "ward")
    first = DPStrategy(plan, training="t").start(clients, INITIAL, num_rounds=4)
    assert (first.stopped, len(first.history)) == (None, 4)
    own = Account(Ledger(path), "ward")
    assert own.refusals(plan, "t", range(3)) == {}, "two rounds are left, and paid for"
    assert len(own.refusals(plan, "other", range(3))) == 3


def test_a_budget_for_another_unit_is_said_at_enrolment(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    become_a_server(monkeypatch)
    Ledger(path).declare(LedgerKey("ward", unit=Unit.GROUP), Budget(50.0, 1e-5))
    plan = make_plan(rounds=2)
    why = r"no client takes part in this training \(UnsoundPlan\), and nothing was spent"
    with pytest.raises(RoundAborted, match=why):
        DPStrategy(plan, training="t").start(grid(plan, "ward"), INITIAL)


def test_a_server_cannot_bisect_what_is_left(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node answers a few plans that release nothing, and then no other on that day."""
    monkeypatch.setenv("DPFED_DATASET", "ward")
    ledger = Ledger(path)
    ledger.declare(LedgerKey("ward"), Budget(8.0, 1e-5))
    own = Account(ledger, "ward", divided=False)
    said = []
    for count in (400, 200, 100, 50, 25, 12, 6):
        try:
            own.admit(make_plan(rounds=count), f"t{count}", 0)
            said.append("yes")
        except (BudgetSpent, UnsoundPlan) as error:
            said.append(type(error).__name__)
    assert said[:5].count("UnsoundPlan") == 0
    assert said[5:] == ["UnsoundPlan"] * 2, "the sixth plan learns nothing"
    plan = make_plan(rounds=400)
    with pytest.raises(BudgetSpent):
        own.admit(plan, "t400", 0)  # the same answer as before


def test_correlated_noise_on_flower_is_booked_as_the_tree_prices_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dpfed.core.registry import build

    become_a_server(monkeypatch)
    tree = build("mechanisms", "tree", {"std": 2.0, "horizon": 9})
    plan = make_plan(channels={UPDATE: tree}, rounds=4)
    DPStrategy(plan, training="t").start(grid(plan, "ward"), INITIAL)
    spent = Ledger(path).spent(LedgerKey("ward/1")).epsilon(plan.delta, plan.update.adjacency)
    assert spent == pytest.approx(plan.guarantee().claims[0].epsilon)
