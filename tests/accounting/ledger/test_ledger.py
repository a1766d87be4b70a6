# SPDX-License-Identifier: Apache-2.0
"""Nothing is overspent: what the ledger records, refuses, survives and finds out."""

from __future__ import annotations

import json
import math
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import dp_accounting as dp
import pytest
import torch

from dpfed.accounting import events, gdp
from dpfed.accounting.events import from_json, to_json
from dpfed.accounting.guarantee import epsilon_of_event
from dpfed.accounting.ledger.balance import Budget
from dpfed.accounting.ledger.conversions import LedgerKey
from dpfed.accounting.ledger.journal import Journal
from dpfed.accounting.ledger.ledger import Ledger
from dpfed.accounting.ledger.request import ChannelRequest, Request, cost_of
from dpfed.audit.client_laws import MODEL
from dpfed.core.environment import ledger_path
from dpfed.core.errors import (
    BudgetSpent,
    ClientRefused,
    DataError,
    RecipeError,
    Unpriceable,
    UnsoundPlan,
)
from dpfed.core.registry import build
from dpfed.core.sampling import Poisson
from dpfed.core.types import METRICS, UPDATE, Adjacency, Broadcast, Channel, Facts, Trust, Unit
from dpfed.mechanisms.clear import clear
from dpfed.mechanisms.gaussian import gaussian
from dpfed.training.account import Account, open_account
from dpfed.training.inprocess import rounds
from dpfed.training.reply import client_reply
from dpfed.training.round import publish, start
from tests.helpers.ledgers import B2, BUDGET, DRAWN, KEY, TENTH, ZERO, request
from tests.helpers.rounds import SIZES, client_states, make_plan


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite")


def drawn(round: int = 0, planned: int = 10, **changes: Any) -> Request:
    changes = {"key": ZERO, "parts": {UPDATE: ChannelRequest(DRAWN, 1, planned)}, **changes}
    return request(round, **changes)


def epsilon_of(planned: int) -> float:
    return epsilon_of_event(DRAWN.event(planned), BUDGET.delta, Adjacency.ZERO_OUT)[0]


# ------------------------------------------------------------------------------- events as JSON


@pytest.mark.parametrize(
    "event",
    [
        dp.GaussianDpEvent(1 / 3),
        dp.LaplaceDpEvent(0.7),
        dp.NoOpDpEvent(),
        dp.NonPrivateDpEvent(),
        dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.1)), 70),
        dp.ComposedDpEvent([dp.GaussianDpEvent(2.0), dp.SelfComposedDpEvent(dp.NoOpDpEvent(), 3)]),
    ],
)
def test_an_event_is_read_back_as_it_was(event: Any) -> None:
    assert from_json(json.loads(json.dumps(to_json(event)))) == event


def test_an_unknown_event_is_refused_both_ways() -> None:
    with pytest.raises(Unpriceable, match="SampledWithoutReplacement"):
        to_json(dp.SampledWithoutReplacementDpEvent(10, 3, dp.GaussianDpEvent(1.0)))
    with pytest.raises(Unpriceable, match=r"has no event.*Oracle"):
        from_json({"kind": "Oracle"})


def test_a_gaussian_row_is_the_mechanisms_own_event() -> None:
    assert from_json(cost_of(ChannelRequest(TENTH, 3, 10), 3)["event"]) == TENTH.event(3)


@pytest.mark.parametrize(("name", "options"), [("tree", {"horizon": 70}), ("banded", {})])
def test_correlated_noise_adds_up_to_what_the_mechanism_says(name: str, options: Any) -> None:
    mechanism = build("mechanisms", name, {"std": 2.0, **options}, rounds=70, horizon=70)
    part = ChannelRequest(mechanism, 1, 70)
    total = math.fsum(cost_of(part, 1, place)["mu_squared"] for place in range(70))
    assert total == pytest.approx(cost_of(part, 70)["mu_squared"], rel=1e-9)


def test_the_cost_of_noise_that_begins_anew_begins_anew(ledger: Ledger) -> None:
    tree = build("mechanisms", "tree", {"std": 2.0, "horizon": 8}, rounds=8)
    parts = {UPDATE: ChannelRequest(tree, 1, 8)}
    for at, fresh in enumerate((True, False, True, False)):
        ledger.begin(request(at, parts=parts, fresh=fresh))
    one = cost_of(parts[UPDATE], 2)["mu_squared"]
    assert ledger.spent(KEY).mu_squared == pytest.approx(2 * one)


# ----------------------------------------------------------------------------------- the filter


def test_the_budget_takes_what_it_was_calibrated_for_and_no_more(ledger: Ledger) -> None:
    ledger.declare(KEY, BUDGET)
    for at in range(10):
        ledger.begin(request(at))
    assert ledger.spent(KEY).epsilon(BUDGET.delta, KEY.adjacency) == pytest.approx(1.0, rel=1e-6)
    with pytest.raises(BudgetSpent, match=r"epsilon 1 of its budget \(1, 1e-05\)"):
        ledger.begin(request(0, training="u"))
    assert ledger.spent(KEY).mu_squared <= B2 * (1 + gdp.CAUTION)


def test_a_second_run_starts_from_what_the_first_spent(tmp_path: Path) -> None:
    first = Ledger(tmp_path / "ledger.sqlite")
    first.declare(KEY, BUDGET)
    for at in range(6):
        first.begin(request(at))
    first.close()
    second = Ledger(tmp_path / "ledger.sqlite")
    for at in range(4):
        second.begin(request(at, training="second"))
    with pytest.raises(BudgetSpent):
        second.begin(request(4, training="second"))


def test_adding_a_record_refills_nothing(tmp_path: Path) -> None:
    """The key is the owner's name: no content is looked at, so none can be a new key."""
    made = Account(Ledger(tmp_path / "ledger.sqlite"), "adult", budget=Budget(0.5, 1e-5))
    plan = make_plan(rounds=2, channels={UPDATE: gaussian(Facts(1.0), 2.0 * math.sqrt(2) / 0.142)})
    for records in (SIZES, [size + 1 for size in SIZES]):
        problems = [client.problem for client in client_states(records).values()]
        run = list(rounds(plan, problems, MODEL.initial(0), made, f"run-{records[0]}"))
        refused = [result.exhausted for _, result in run]
        assert refused == ([False, False] if records == SIZES else [])


def test_unconfirmed_counts_as_spent(ledger: Ledger) -> None:
    rows = ledger.begin(request())
    before = ledger.spent(KEY).mu_squared
    assert before > 0
    assert ledger.balance().entries[KEY, "t", 0, UPDATE].open == 1
    ledger.confirm(rows)
    assert ledger.spent(KEY).mu_squared == before
    assert ledger.balance().entries[KEY, "t", 0, UPDATE].open == 0


def test_a_repeated_round_is_refused(ledger: Ledger) -> None:
    ledger.begin(request(3))
    said = "round 3, attempt 0 of training 't' is in the ledger already"
    with pytest.raises(UnsoundPlan, match=said):
        ledger.begin(request(3))
    ledger.begin(request(3, attempt=1))  # at full cost
    assert ledger.spent(KEY).mu_squared == pytest.approx(2 * B2 / 10)
    ledger.begin(request(3, client=1))  # another client


def test_attempts_are_bounded_by_the_plan_even_without_a_budget(ledger: Ledger) -> None:
    for attempt in range(10):
        ledger.begin(request(0, attempt=attempt))
    with pytest.raises(BudgetSpent, match="of its plan"):
        ledger.begin(request(0, attempt=10))


def test_without_a_budget_it_only_records(ledger: Ledger) -> None:
    for training in range(5):
        for at in range(10):
            ledger.begin(request(at, training=f"t{training}"))
    assert ledger.budget_of("adult") is None
    assert ledger.spent(KEY).mu_squared == pytest.approx(5 * B2)


def test_one_of_many_who_cannot_pay_is_refused_alone(ledger: Ledger) -> None:
    ledger.declare(LedgerKey("adult"), BUDGET)
    for at in range(10):
        ledger.begin(request(at, key=LedgerKey("adult/1"), client=1))
    asked = [request(20, key=LedgerKey(f"adult/{i}"), client=i, training="u") for i in range(3)]
    found = ledger.begin_all(asked)
    assert [isinstance(each, tuple) for each in found] == [True, False, True]
    writes = {row.body["write"] for row in ledger.rows()[-2:]}
    assert len(writes) == 1  # one commit for all


def test_a_round_with_several_channels_is_entered_whole_or_not(ledger: Ledger) -> None:
    ledger.declare(KEY, BUDGET)
    half = ChannelRequest(gaussian(Facts(1.0), 2.0 / math.sqrt(B2 / 2)), 1, 1)
    both = {UPDATE: half, METRICS: half}
    assert len(ledger.begin(request(parts=both))) == 2
    with pytest.raises(BudgetSpent):
        ledger.begin(request(training="u", parts=both))
    assert len([row for row in ledger.rows() if row.body["kind"] == "entry"]) == 2


# ---------------------------------------------------------------------------- keys and budgets


def test_what_the_server_saw_counts_for_outsiders_but_not_the_other_way(ledger: Ledger) -> None:
    outside = KEY._replace(adversary="outsiders")
    ledger.begin(request())
    ledger.begin(request(key=outside, training="central"))
    assert ledger.spent(outside).mu_squared == pytest.approx(2 * B2 / 10)
    assert ledger.spent(KEY).unbounded == "'adult' (record, replace-one, against outsiders)"
    assert ledger.spent(KEY).epsilon(1e-5, KEY.adjacency) == math.inf
    ledger.declare(outside, Budget(0.3, 1e-5))
    with pytest.raises(BudgetSpent, match=r"against outsiders.*--adversary outsiders"):
        ledger.begin(request(1))


def test_a_budget_for_another_guarantee_is_no_way_round(ledger: Ledger) -> None:
    ledger.declare(KEY, BUDGET)
    same = gaussian(Facts(1.0, adjacency=Adjacency.ZERO_OUT), TENTH.std)
    for at in range(10):  # half the sensitivity, counted twice
        ledger.begin(request(at, key=ZERO, parts={UPDATE: ChannelRequest(same, 1, 10)}))
    with pytest.raises(BudgetSpent, match=r"'adult' \(record"):
        ledger.begin(request(training="u"))
    groups = LedgerKey("adult", Unit.GROUP)
    with pytest.raises(UnsoundPlan, match=r"releases for 'adult' \(group"):
        ledger.begin(request(key=groups, training="g"))


def test_a_recipe_declares_once_and_never_raises(ledger: Ledger) -> None:
    ledger.agree(KEY, BUDGET)
    ledger.agree(KEY, BUDGET)
    with pytest.raises(RecipeError, match=r"is \(1, 1e-05\) for .*states \(9, 1e-05\)"):
        ledger.agree(KEY, Budget(9.0, 1e-5))
    ledger.declare(KEY, Budget(9.0, 1e-5))  # the explicit command
    assert ledger.budget_of("adult") == (KEY, Budget(9.0, 1e-5))
    kinds = [(row.body["kind"], row.body["by"]) for row in ledger.rows()]
    assert kinds == [("budget", "recipe"), ("budget", "command")]


@pytest.mark.parametrize("wrong", [Budget(0.0, 1e-5), Budget(math.nan, 1e-5), Budget(1.0, 0.0)])
def test_a_budget_is_checked_like_any_target(ledger: Ledger, wrong: Budget) -> None:
    with pytest.raises(RecipeError):
        ledger.declare(KEY, wrong)


def test_another_name_shares_the_budget(ledger: Ledger) -> None:
    ledger.declare(KEY, BUDGET)
    for at in range(10):
        ledger.begin(request(at, key=LedgerKey("adult/0")))
    ledger.rename("adult", "census")
    ledger.rename("census", "census-2")
    with pytest.raises(BudgetSpent, match="'adult/0'"):
        ledger.begin(request(key=LedgerKey("census-2/0"), training="u"))
    with pytest.raises(DataError, match=r"name.*got 'census'"):
        ledger.rename("adult", "census")
    with pytest.raises(DataError, match=r"set 'adlt'; use one of \['adult'\]"):
        ledger.rename("adlt", "x")


def test_a_secure_sums_chance_is_taken_out_of_delta_once_a_run(ledger: Ledger) -> None:
    ledger.declare(KEY, Budget(1.0, 1e-5))
    whole = {UPDATE: ChannelRequest(gaussian(Facts(1.0), 2.0 / math.sqrt(B2)), 1, 1)}
    with pytest.raises(BudgetSpent):
        ledger.begin(request(parts=whole, delta_reserved=4e-8))
    ledger.begin(request(0, delta_reserved=4e-8))
    ledger.begin(request(1, delta_reserved=4e-8))
    ledger.begin(request(0, training="u", delta_reserved=4e-8))
    assert math.fsum(ledger.spent(KEY).delta_reserved.values()) == pytest.approx(8e-8)
    with pytest.raises(BudgetSpent):
        ledger.begin(request(0, training="v", delta_reserved=1e-5))


# ----------------------------------------------------------------------- events that are drawn


def test_a_drawn_run_is_reserved_whole_before_its_first_release(ledger: Ledger) -> None:
    ledger.declare(ZERO, Budget(epsilon_of(10), 1e-5))
    ledger.begin(drawn(0))
    assert ledger.spent(ZERO).epsilon(1e-5, Adjacency.ZERO_OUT) == pytest.approx(epsilon_of(10))
    for at in range(1, 10):
        ledger.begin(drawn(at))  # against the reservation: costs nothing more
    with pytest.raises(BudgetSpent, match="0 releases on 'update' left"):
        ledger.begin(drawn(9, attempt=1))
    with pytest.raises(BudgetSpent, match="has spent epsilon"):
        ledger.begin(drawn(0, training="u", planned=1))
    assert not ledger.verify()


def test_a_drawn_run_that_does_not_fit_is_refused_before_its_first_release(ledger: Ledger) -> None:
    ledger.declare(ZERO, Budget(epsilon_of(5), 1e-5))
    with pytest.raises(BudgetSpent):
        ledger.begin(drawn(0, planned=10))
    assert ledger.spent(ZERO).epsilon(1e-5, Adjacency.ZERO_OUT) == 0.0


def test_a_drawn_run_for_persons_counts_for_no_record(ledger: Ledger) -> None:
    """A record counts twice there, and a factor on mu says nothing of what a draw costs."""
    ledger.declare(ZERO, Budget(8.0, 1e-5))
    persons = ZERO._replace(unit=Unit.GROUP)
    with pytest.raises(UnsoundPlan, match=r"releases for 'adult' \(group"):
        ledger.begin(drawn(key=persons))


def test_a_gaussian_run_beside_a_drawn_one_is_reserved_too(ledger: Ledger) -> None:
    ledger.begin(drawn(0))
    plain = gaussian(Facts(1.0, adjacency=Adjacency.ZERO_OUT), 20.0)
    ledger.begin(request(key=ZERO, training="u", parts={UPDATE: ChannelRequest(plain, 1, 4)}))
    kinds = [row.body["kind"] for row in ledger.rows()]
    assert kinds == ["reserve", "entry", "reserve", "entry"]
    first = epsilon_of_event(DRAWN.event(10), 1e-5 / 2, Adjacency.ZERO_OUT)[0]
    second = epsilon_of_event(plain.event(4), 1e-5 / 6, Adjacency.ZERO_OUT)[0]
    found = ledger.spent(ZERO).epsilon(1e-5, Adjacency.ZERO_OUT)
    assert found == pytest.approx(first + second, rel=1e-9)  # basic composition
    together = epsilon_of_event(
        dp.ComposedDpEvent([DRAWN.event(10), plain.event(4)]), 1e-5, ZERO.adjacency
    )
    assert found >= together[0]  # which no theorem covers if one is chosen after the other


def test_a_run_in_clear_is_recorded_and_refused_where_there_is_a_budget(ledger: Ledger) -> None:
    parts = {UPDATE: ChannelRequest(clear(Facts(1.0)), 1, 3)}
    ledger.begin(request(parts=parts))
    assert ledger.spent(KEY).epsilon(1e-5, KEY.adjacency) == math.inf
    ledger.declare(LedgerKey("iris"), BUDGET)
    with pytest.raises(BudgetSpent, match="needs inf"):
        ledger.begin(request(key=LedgerKey("iris"), parts=parts))


# --------------------------------------------------------------------------- the file: tampering


def tamper(path: Path, *statements: str) -> None:
    db = sqlite3.connect(path)
    for trigger in ("no_update", "no_delete"):
        db.execute(f"DROP TRIGGER {trigger}")
    for statement in statements:
        db.execute(statement)
    db.commit()
    db.close()


@pytest.mark.parametrize(
    ("statements", "said"),
    [
        (
            ["UPDATE rows SET body = replace(body, '\"round\":2', '\"round\":9')"],
            "row 3 .* changed",
        ),
        (["DELETE FROM rows WHERE number = 2"], "row 2 .* is missing"),
        (["DELETE FROM rows WHERE number > 3"], "rows were taken away"),
        (["DELETE FROM rows"], "rows were taken away"),
        (
            [
                "UPDATE rows SET number = 100 WHERE number = 2",
                "UPDATE rows SET number = 2 WHERE number = 3",
                "UPDATE rows SET number = 3 WHERE number = 100",
            ],
            "row 2 .* changed or moved",
        ),
        (["INSERT INTO rows VALUES (6, '{}', 'x')"], "row 6 .* changed"),
    ],
)
def test_a_row_that_is_edited_deleted_moved_or_cut_off_is_found(
    tmp_path: Path, statements: list[str], said: str
) -> None:
    path = tmp_path / "ledger.sqlite"
    made = Ledger(path)
    for at in range(5):
        made.begin(request(at))
    assert made.verify() == []
    made.close()
    tamper(path, *statements)
    (complaint,) = Ledger(path).verify()
    assert re.search(said, complaint), complaint
    with pytest.raises(DataError):
        Ledger(path).begin(request(7))


def test_rows_cannot_be_changed_without_taking_the_guards_away(ledger: Ledger) -> None:
    ledger.begin(request())
    db = sqlite3.connect(ledger.path)
    for statement in ("UPDATE rows SET body = '{}'", "DELETE FROM rows"):
        with pytest.raises(sqlite3.IntegrityError, match="only ever added"):
            db.execute(statement)
    db.close()


def test_the_head_may_be_one_write_behind_and_is_fixed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    head = tmp_path / "ledger.sqlite.head"
    made = Ledger(path)
    heads = []
    for at in range(3):
        made.begin(request(at))
        heads.append(head.read_bytes())
    made.close()
    head.write_bytes(heads[1])
    opened = Ledger(path)
    assert opened.verify() == []
    opened.begin(request(5))
    assert json.loads(head.read_bytes())["rows"] == 4
    opened.close()
    for stale in (heads[0], heads[1], b"{}", b"nonsense"):
        head.write_bytes(stale)
        assert len(Ledger(path).verify()) == 1
    head.unlink()
    assert "its head says 0" in Ledger(path).verify()[0]


def test_a_missing_head_is_a_crash_only_after_the_first_write(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    made = Ledger(path)
    made.begin(request())
    made.close()
    path.with_name("ledger.sqlite.head").unlink()
    assert Ledger(path).verify() == []
    Ledger(path).begin(request(1))


def test_a_file_that_gets_shorter_while_it_is_open_is_found(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    made = Ledger(path)
    for at in range(3):
        made.begin(request(at))
    tamper(path, "DELETE FROM rows WHERE number > 1")
    with pytest.raises(DataError, match=r"row 3 .* is gone"):
        made.begin(request(4))


def test_an_old_backup_with_its_head_is_not_found_and_the_docs_say_so(tmp_path: Path) -> None:
    """What no file on the same disk can show: docs/ledger.md, and verify --expect."""
    path, old = tmp_path / "ledger.sqlite", tmp_path / "old"
    made = Ledger(path)
    made.begin(request(0))
    made.close()
    shutil.copytree(tmp_path, old)
    again = Ledger(path)
    again.begin(request(1))
    again.close()
    assert Ledger(old / "ledger.sqlite").verify() == []
    docs = (Path(__file__).parents[3] / "docs" / "ledger.md").read_text(encoding="utf-8")
    assert "older copy" in docs


def test_a_cost_that_is_not_its_events_is_found(ledger: Ledger) -> None:
    cost = cost_of(ChannelRequest(TENTH, 1, 1), 1)
    with ledger._turn():
        ledger._append(
            kind="entry",
            **KEY.row(),
            training="t",
            client=0,
            round=0,
            attempt=0,
            lost=0.0,
            channel=UPDATE,
            releases=1,
            place=0,
            reserve=None,
            plan="",
            covered=True,
            mu_squared=cost["mu_squared"] / 2,
            event=cost["event"],
        )
        ledger._append(kind="confirm", rows=[77])
    wrong_cost, never_entered = ledger.verify()
    assert "row 1 states mu^2" in wrong_cost
    assert "row 2 confirms rows that were never entered" in never_entered


def test_only_the_owner_may_read_it(ledger: Ledger) -> None:
    ledger.begin(request())
    for name in ("ledger.sqlite", "ledger.sqlite.head"):
        assert ledger.path.with_name(name).stat().st_mode & 0o077 == 0


def test_a_file_that_is_no_ledger_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to be read as one" * 50)
    with pytest.raises(DataError, match="cannot be opened"):
        Ledger(path)
    with pytest.raises(DataError, match="there is no ledger"):
        Ledger(tmp_path / "none.sqlite", create=False)


def test_a_file_whose_schema_is_not_text_is_refused(tmp_path: Path) -> None:
    """SQLite's error quotes the file, which Python cannot decode."""
    path = tmp_path / "ledger.sqlite"
    Ledger(path).begin(request())
    whole = path.read_bytes()
    assert b"CREATE TABLE rows" in whole
    path.write_bytes(whole.replace(b"CREATE TABLE rows", b"CREATE TABL\xc5 rows"))
    with pytest.raises(DataError, match=r"cannot be (opened|read|used) .*decode"):
        Ledger(path).rows()


def test_processes_and_threads_take_turns(tmp_path: Path) -> None:
    """Two objects on one file stand for two processes: locks are SQLite's own."""
    made = [Ledger(tmp_path / "ledger.sqlite") for _ in range(2)]

    def enter(of: Ledger, client: int) -> None:
        for at in range(10):
            of.confirm(of.begin(request(at, client=client)))

    threads = [threading.Thread(target=enter, args=(made[i % 2], i)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made[0].verify() == []
    assert made[1].spent(KEY).mu_squared == pytest.approx(4 * B2)


def test_what_goes_wrong_inside_a_turn_takes_it_back(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.begin(request(0))

    def full(_: Journal) -> None:
        raise sqlite3.OperationalError("disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "_commit", full)
        with pytest.raises(DataError, match=r"\(disk is full\), and"):
            ledger.begin(request(1))
    assert ledger.spent(KEY).mu_squared == pytest.approx(B2 / 10)
    ledger.begin(request(1))
    assert ledger.verify() == []


def test_export_is_read_back_as_events(ledger: Ledger) -> None:
    ledger.begin(request(0))
    ledger.begin(drawn(0, training="u"))
    exported = json.loads(json.dumps(ledger.export()))
    entered = [from_json(row["event"]) for row in exported["rows"] if row["kind"] == "entry"]
    assert entered == [TENTH.event(1), DRAWN.event(1)]


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DPFED_LEDGER", raising=False)
    monkeypatch.setenv("DPFED_STATE", str(tmp_path))
    assert ledger_path() == tmp_path / "ledger.sqlite"
    monkeypatch.setenv("DPFED_LEDGER", str(tmp_path / "own.sqlite"))
    assert ledger_path() == tmp_path / "own.sqlite"
    monkeypatch.delenv("DPFED_LEDGER")
    monkeypatch.delenv("DPFED_STATE")
    assert ledger_path() == Path.home() / ".dpfed" / "ledger.sqlite"


# --------------------------------------------------------------------------------- in the round


def problems() -> list[Any]:
    return [client.problem for client in client_states().values()]


def test_a_client_enters_a_release_before_it_draws_and_confirms_after(tmp_path: Path) -> None:
    made = Account(Ledger(tmp_path / "ledger.sqlite"), "adult")
    plan, client = make_plan(), replace(client_states()[1], ledger=made)
    broadcast = publish(plan, start(plan, MODEL.initial(0)))
    reply, _ = client_reply(plan, broadcast, plan.sum.release_stage, {UPDATE: b""}, client)
    assert not isinstance(reply, ClientRefused)
    entry, confirm = (row.body for row in made.ledger.rows())
    assert (entry["dataset"], entry["client"], entry["channel"]) == ("adult/1", 1, UPDATE)
    assert confirm["rows"] == [1]
    again, _ = client_reply(plan, broadcast, plan.sum.release_stage, {UPDATE: b""}, client)
    assert str(again) == "UnsoundPlan"


def test_correlated_noise_is_entered_as_it_goes_on(tmp_path: Path) -> None:
    """The second release of a tree tells four times as much as its first."""
    made = Account(Ledger(tmp_path / "ledger.sqlite"), "adult")
    noise = build("mechanisms", "tree", {"std": 2.0, "horizon": 4}, rounds=4)
    plan = make_plan(channels={UPDATE: noise})
    client = replace(client_states()[1], ledger=made)
    for at in range(4):
        order = Broadcast(at, MODEL.initial(0))
        _, client = client_reply(plan, order, plan.sum.release_stage, {UPDATE: b""}, client)
    costs = [row.body["mu_squared"] for row in made.ledger.rows() if row.body["kind"] == "entry"]
    assert costs == pytest.approx([1.0, 4.0, 1.0, 16.0])


@pytest.mark.parametrize(("bound", "covered"), [(None, True), (1.0, True), (0.9, False)])
def test_rows_longer_than_their_distance_are_entered_as_such(
    tmp_path: Path, bound: float | None, covered: bool
) -> None:
    """Two of them lie closer to each other than one to nothing: zero-out would cost more."""
    noise = gaussian(Facts(1.0, replace_bound=bound or math.nan), 2.0)
    algorithm = make_plan().client._replace(channels={UPDATE: Channel(replace_bound=bound)})
    plan = make_plan(client=algorithm, channels={UPDATE: noise})
    made = Account(Ledger(tmp_path / "ledger.sqlite"), "adult")
    made.begin(plan, publish(plan, start(plan, MODEL.initial(0))), client_states()[0])
    found = made.ledger.spent(made.key(plan, 0)._replace(adjacency=Adjacency.ZERO_OUT))
    assert (not found.unbounded) is covered


def test_a_client_whose_code_fails_has_spent_all_the_same(tmp_path: Path) -> None:
    """It sends zeros with full noise; one without data refuses before anything is entered."""
    made = Account(Ledger(tmp_path / "ledger.sqlite"), "adult")

    class Broken:
        dimension = MODEL.layout.size

        def rows(self, *_: object) -> None:
            raise ZeroDivisionError

    plan, client = make_plan(), replace(client_states()[1], ledger=made)
    broadcast = publish(plan, start(plan, MODEL.initial(0)))
    for problem, kinds in ((None, []), (Broken(), ["entry", "confirm"])):
        reply, _ = client_reply(
            plan, broadcast, "reply", {UPDATE: b""}, replace(client, problem=problem)
        )
        assert isinstance(reply, ClientRefused) == (not kinds)
        assert [row.body["kind"] for row in made.ledger.rows()] == kinds


def test_nothing_is_drawn_where_nothing_could_be_entered(tmp_path: Path) -> None:
    made = Account(Ledger(tmp_path / "ledger.sqlite"), "adult", budget=Budget(0.01, 1e-5))

    class Watched:
        dimension = MODEL.layout.size

        def rows(self, *_: object) -> None:
            pytest.fail("data was touched")

    client = replace(client_states()[1], problem=Watched(), ledger=made)
    plan = make_plan()
    broadcast = publish(plan, start(plan, MODEL.initial(0)))
    reply, _ = client_reply(plan, broadcast, plan.sum.release_stage, {UPDATE: b""}, client)
    assert str(reply) == "BudgetSpent"


def test_budget_exhausted_and_the_model_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PRIVACY section 6, 'budget exhausted, and the model is lost'."""
    monkeypatch.setattr(Ledger, "refusals", lambda *_: {})  # others have spent since it began
    plan = make_plan(rounds=10)
    one = gdp.mu_squared(2.0, 1, Adjacency.REPLACE_ONE)
    budget = Budget(gdp.epsilon_for(1e-5, math.sqrt(6.5 * one)), 1e-5)
    made = Account(Ledger(tmp_path / "ledger.sqlite"), "adult", budget=budget)
    *_, (last, _) = rounds(plan, problems(), MODEL.initial(0), made, "t")
    assert last.round == 6
    without = [state.params for state, _ in rounds(plan, problems(), MODEL.initial(0))]
    assert torch.equal(last.params, without[5])
    assert made.ledger.verify() == []


def test_a_simulated_round_is_one_commit_and_one_confirmation(tmp_path: Path) -> None:
    made = Account(Ledger(tmp_path / "ledger.sqlite"), "adult")
    list(rounds(make_plan(rounds=3), problems(), MODEL.initial(0), made, "t"))
    rows = [row.body for row in made.ledger.rows()]
    assert len({row["write"] for row in rows}) == 6
    assert [row["kind"] for row in rows[:4]] == ["entry", "entry", "entry", "confirm"]
    plan = make_plan(rounds=3)
    for client in range(3):
        spent = made.ledger.spent(made.key(plan, client))
        guaranteed = plan.guarantee().claims[0].epsilon
        assert spent.epsilon(plan.delta, plan.update.adjacency) == pytest.approx(guaranteed)


def test_without_a_ledger_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPFED_LEDGER", str(tmp_path / "ledger.sqlite"))
    list(rounds(make_plan(), problems(), MODEL.initial(0)))
    assert list(tmp_path.iterdir()) == []


def test_drawn_and_central_runs_cost_in_the_ledger_what_they_guarantee(tmp_path: Path) -> None:
    made = Account(Ledger(tmp_path / "ledger.sqlite"), "adult")
    central = gaussian(
        Facts(1.0, unit=Unit.CLIENT, adjacency=Adjacency.ADD_REMOVE, trust=Trust.CENTRAL), 3.0
    )
    plan = make_plan(channels={UPDATE: central}, nominal=[1.0] * 3, client_sampling=Poisson(0.7))
    list(rounds(plan, problems(), MODEL.initial(0), made, "t"))
    key = made.key(plan, 0)
    assert key.adversary == "outsiders"
    spent = made.ledger.spent(key).epsilon(plan.delta, plan.update.adjacency)
    assert spent == pytest.approx(plan.guarantee().epsilon, rel=1e-6)


@pytest.mark.parametrize("name", ["", "a/b"])
def test_a_name_is_one_word(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"must be .*'/', got {name!r}; use one"):
        open_account(name, path=tmp_path / "ledger.sqlite")


def test_the_owners_name_stands_before_the_recipes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.sqlite"
    monkeypatch.setenv("DPFED_DATASET", "ward-7")
    made = open_account("shared", path=path, environment=True)
    assert made is not None
    assert made.key(make_plan(), 2).dataset == "ward-7"
    elsewhere = open_account("shared", path=path)
    assert elsewhere is not None
    assert elsewhere.key(make_plan(), 2).dataset == "shared/2"
    monkeypatch.delenv("DPFED_DATASET")
    monkeypatch.setenv("DPFED_LEDGER", str(path))
    with pytest.raises(DataError, match="the data has no name"):
        open_account(None, environment=True)
    monkeypatch.delenv("DPFED_LEDGER")
    assert open_account(None, environment=True) is None


# ---------------------------------------------------------------------------------------- kills


@pytest.mark.slow
def test_fifty_kills_between_all_steps_overspend_nothing() -> None:
    script = Path(__file__).parents[2] / "soak" / "ledger.py"
    done = subprocess.run(
        [sys.executable, str(script), "--kills", "50"], capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr + done.stdout
    figures = json.loads(done.stdout)
    for name in (
        "overspent",
        "releases_without_an_entry",
        "releases_made_twice",
        "chains_broken",
        "owner_rows_lost",
        "owner_refused",
    ):
        assert figures[name] == 0
    assert figures["owner_rows"] > 0
    assert figures["releases"] > 0
    assert figures["entries_wasted"] > 0  # some were killed between the row and the wire


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "seen"), [("send-first", "releases_without_an_entry"), ("no-check", "overspent")]
)
def test_the_kills_find_a_planted_bug(plant: str, seen: str) -> None:
    script = Path(__file__).parents[2] / "soak" / "ledger.py"
    command = [sys.executable, str(script), "--kills", "20", "--plant", plant]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)[seen] > 0


def test_an_event_of_nothing_costs_nothing() -> None:
    assert events.gaussian_with_mu_squared(0.0, Adjacency.REPLACE_ONE) == {"kind": "NoOp"}
    assert events.gaussian_with_mu_squared(math.inf, Adjacency.REPLACE_ONE) == {
        "kind": "NonPrivate"
    }
