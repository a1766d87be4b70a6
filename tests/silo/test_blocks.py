# SPDX-License-Identifier: Apache-2.0
"""Data that arrives, behind a gate: blocks, their accounts, and what the owner is told."""

from __future__ import annotations

import datetime as dt
import math
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dpfed.accounting import gdp
from dpfed.accounting.ledger.conversions import LedgerKey
from dpfed.cli.silo_text import proposal, state_of, verdict
from dpfed.core.errors import DataError, RecipeError, UnsoundPlan
from dpfed.recipes.schema import to_toml
from dpfed.recipes.terms import Terms, read_terms, write_terms
from dpfed.silo.approvals import Approvals
from dpfed.silo.blocks import FILE
from dpfed.silo.handler import RequestHandler
from dpfed.silo.policy import load_policy
from tests.helpers.handlers import enrolment, order, said
from tests.silo.gates import CLASSES, FEATURES, RECIPE, Silo

BLOCKS = {"column": "admitted", "every": "month"}
HEADER = ",".join(["patient", "admitted", *(f"x{i}" for i in range(FEATURES)), "y"])


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DPFED_STATE", "DPFED_LEDGER", "DPFED_IDENTITY"):
        monkeypatch.setenv(name, "")  # the handler sets them, and they are put back


class Ward:
    """A silo with a table, to which patients come."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.silo, self.lines = Silo(folder, 0), list[str]()
        self.monkeypatch, self.rng = monkeypatch, random.Random(1)
        self.today("2026-02-28")

    def today(self, day: str) -> None:
        now = dt.datetime.fromisoformat(f"{day}T12:00:00+00:00")
        self.monkeypatch.setattr(Approvals, "now", lambda _: now)

    def admit(self, patient: str, day: str) -> None:
        values = [f"{self.rng.gauss(0, 1):.3f}" for _ in range(FEATURES)]
        self.lines.append(",".join([patient, day, *values, str(self.rng.randrange(CLASSES))]))

    def write(self, **data: Any) -> None:
        path = self.silo.folder / "ward.csv"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text("\n".join([HEADER, *self.lines]) + "\n")
        options = {"y": "y", "groups": "patient"}
        if "blocks" not in data:
            options |= {"x": [f"x{i}" for i in range(FEATURES)]}  # type: ignore[dict-item]
        load = {"source": str(path), "options": options}
        self.silo.write(load=load, **{"epsilon": 2.0, **data})

    def gate(self, **data: Any) -> RequestHandler:
        self.write(**{"blocks": BLOCKS, **data})
        made = RequestHandler(load_policy(self.silo.policy))
        made.open()
        return made

    def terms(self, name: str, *blocks: str, **changes: Any) -> Terms:
        self.silo.folder.mkdir(exist_ok=True)
        recipe = self.silo.folder / "recipe.toml"
        privacy = {"epsilon": 1.0, "noise": "keyed", **changes.pop("privacy", {})}
        recipe.write_text(to_toml({**RECIPE, "name": name, "privacy": privacy, **changes}))
        sizes: dict[str, Any] = {"blocks": {block: [30.0, 30.0] for block in blocks}}
        return read_terms(
            write_terms(
                recipe,
                dataset="sepsis",
                shape=[FEATURES],
                classes=CLASSES,
                **(sizes if blocks else {"sizes": [60.0, 60.0]}),
            )
        )

    def train(self, gate: RequestHandler, terms: Terms) -> list[str]:
        """Enrol and answer all rounds; the errors that left."""
        gate.approvals.approve(terms, terms.text, days=1, by="root")
        orders = [enrolment(terms.name), *(order(terms, at) for at in range(terms.plan.rounds))]
        return [str(said(gate.reply(each)).get("error", "")) for each in orders]


@pytest.fixture
def ward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ward:
    made = Ward(tmp_path / "silo", monkeypatch)
    for number in range(40):
        made.admit(f"p{number}", f"2026-0{1 + number % 2}-1{number % 10}")
    return made


def spent(gate: RequestHandler) -> dict[str, float]:
    """Epsilon by account, rounded."""
    ledger = gate.ledger()
    costs = {key.dataset: cost for key, cost in ledger.balance().costs.items()}
    assert ledger.verify() == []
    ledger.close()
    return {
        name: round(cost.epsilon(1e-5, LedgerKey("").adjacency), 3) for name, cost in costs.items()
    }


def block_of(gate: RequestHandler, patient: str) -> set[str]:
    from dpfed.data.readers import person_tensors

    (number,) = person_tensors([[patient]])[0].tolist()  # type: ignore[union-attr]
    held = gate.blocks["sepsis"]
    persons = held.records.persons
    assert persons is not None
    return {name for name, p in zip(held.names, persons.tolist(), strict=True) if p == number}


def test_three_months_of_a_ward(ward: Ward) -> None:
    ward.admit("returns", "2026-01-05")
    ward.admit("moves", "2026-02-20")
    gate = ward.gate()
    first = ward.terms("first", "2026-01", "2026-02")
    assert ward.train(gate, first) == [""] * 4
    assert spent(gate) == {"sepsis/2026-01": 1.0, "sepsis/2026-02": 1.0}

    # new data: a month more; who returns keeps the first month, though that record is gone
    ward.today("2026-03-31")
    ward.lines = [line for line in ward.lines if not line.startswith(("returns", "moves"))]
    ward.admit("returns", "2026-03-03")
    ward.admit("moves", "2026-01-20")  # corrected to an earlier day
    for number in range(40, 60):
        ward.admit(f"p{number}", "2026-03-15")
    gate = ward.gate()
    assert block_of(gate, "returns") == {"2026-01"}
    assert block_of(gate, "moves") == {"2026-02"}
    assert block_of(gate, "p41") == {"2026-03"}
    assert ward.train(gate, ward.terms("second", "2026-02", "2026-03")) == [""] * 4

    # February is spent for a third one: nothing is entered anywhere; left out, it goes on
    before = spent(gate)
    third = ward.terms("third", "2026-02", "2026-03", privacy={"epsilon": 1.5})
    assert ward.train(gate, third)[0] == "BudgetSpent"
    found = verdict(gate, ward.terms("asks", "2026-02", "2026-03", privacy={"epsilon": 1.5}))
    assert "ask for terms without 2026-02, 2026-03" in found.refused
    assert spent(gate)["sepsis/2026-01"] == before["sepsis/2026-01"]
    assert ward.train(gate, ward.terms("fourth", "2026-01", "2026-03")) == [""] * 4
    costs = spent(gate)
    assert set(costs) == {"sepsis/2026-01", "sepsis/2026-02", "sepsis/2026-03"}
    assert all(cost <= 2.0 for cost in costs.values())


def test_a_round_is_charged_to_all_of_its_blocks_or_to_none(ward: Ward) -> None:
    gate = ward.gate()
    for at in range(2):  # February has little left, January all
        ward.train(gate, ward.terms(f"one-{at}", "2026-02", privacy={"epsilon": 1.2}))
    before = spent(gate)
    both = ward.terms("both", "2026-01", "2026-02")
    gate.approvals.approve(both, both.text, days=1, by="root")
    orders = [order(both, at) for at in range(3)]  # without an enrolment
    replies = [said(gate.reply(each)).get("error", "") for each in orders]
    assert replies[-1] == "BudgetSpent"
    after, entered = spent(gate), replies.count("")
    ledger = gate.ledger()
    rows = [row.body for row in ledger.rows() if row.body.get("training") == "both"]
    ledger.close()
    names = [body["dataset"] for body in rows if body["kind"] == "entry"]
    assert names.count("sepsis/2026-01") == names.count("sepsis/2026-02") == entered
    assert after["sepsis/2026-02"] <= 2.0
    assert before["sepsis/2026-02"] <= after["sepsis/2026-02"]


def test_who_has_no_date_yet_is_left_out_in_silence(ward: Ward) -> None:
    for number, day in enumerate(("", "soon", "2026-02-30", "2026-03-01", "01.02.2026")):
        ward.admit(f"odd{number}", day)
    ward.admit("", "2026-01-01")
    ward.admit("odd0", "2026-02-03 14:30")
    gate = ward.gate()
    assert [block_of(gate, f"odd{n}") for n in range(5)] == [{"2026-02"}, {""}, {""}, {""}, {""}]
    assert block_of(gate, "") == {""}
    ward.today("2026-03-02")
    ward.admit("odd1", "2026-01-09")
    gate = ward.gate()
    assert [block_of(gate, f"odd{n}") for n in (1, 3)] == [{"2026-01"}, {"2026-03"}]


def test_what_was_used_before_blocks_goes_on_as_one_block(ward: Ward) -> None:
    ward.admit("undated", "")
    ward.write()
    gate = RequestHandler(load_policy(ward.silo.policy))
    gate.open()
    assert ward.train(gate, ward.terms("old")) == [""] * 4
    assert spent(gate) == {"sepsis": 1.0}
    ward.today("2026-03-05")
    ward.admit("new", "2026-03-05")
    gate = ward.gate()
    assert block_of(gate, "p1") == block_of(gate, "undated") == {"before"}
    assert block_of(gate, "new") == {"before"}  # in the table when blocks began
    ward.admit("newer", "2026-03-05")
    ward.admit("late", "2026-01-05")
    gate = ward.gate()
    assert block_of(gate, "newer") == {"2026-03"}
    assert block_of(gate, "late") == {"before"}
    assert ward.train(gate, ward.terms("both", "before", "2026-03")) == [""] * 4
    twice = round(gdp.epsilon_for(1e-5, math.sqrt(2) * gdp.mu_for(1.0, 1e-5)), 3)
    assert spent(gate) == {"sepsis": twice, "sepsis/2026-03": 1.0}
    assert ward.train(gate, ward.terms("more", "before", privacy={"epsilon": 1.9}))[0]


def test_blocks_are_bound(ward: Ward) -> None:
    gate = ward.gate()
    ward.train(gate, ward.terms("first", "2026-01"))
    with pytest.raises(DataError, match="must stay column 'admitted', every 'month'"):
        ward.gate(blocks={"column": "admitted", "every": "year"})
    ward.write()
    gate = RequestHandler(load_policy(ward.silo.policy))
    with pytest.raises(DataError, match="must have blocks"):
        gate.open()
    copy = (ward.silo.folder / "state" / FILE).read_bytes()
    (ward.silo.folder / "state" / FILE).unlink()
    with pytest.raises(DataError, match="which id was charged in which block"):
        ward.gate()
    (ward.silo.folder / "state" / FILE).write_bytes(copy)
    ward.gate()
    with closing(sqlite3.connect(ward.silo.folder / "state" / FILE)) as file:
        assert file.execute("SELECT count(*) FROM ids").fetchone() == (40,)


@pytest.mark.parametrize(
    ("blocks", "changes", "said"),
    [
        ((), {}, "blocks for this data"),
        (("2026-13",), {}, "names of a month"),
        (("2026",), {}, "names of a month"),
        (("2026-03",), {}, "none after '2026-02'"),
    ],
)
def test_terms_name_blocks_that_there_can_be(
    ward: Ward, blocks: tuple[str, ...], changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UnsoundPlan, match=said):
        ward.gate().permitted(ward.terms("odd", *blocks, **changes))


@pytest.mark.parametrize(
    "privacy",
    [
        {"record_rate": 0.5, "adjacency": "zero-out"},
        {"unit": "client"},
        {"adjacency": "zero-out"},
    ],
)
def test_draws_clients_and_other_neighbours_are_refused(
    ward: Ward, privacy: dict[str, Any]
) -> None:
    with pytest.raises(UnsoundPlan, match=r"blocks (need every unit|protect a record)"):
        _ = ward.terms("odd", "2026-01", privacy=privacy).plan


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"unit": "client"}, "beside unit record or group"),
        ({"adjacency": "zero-out"}, "replace-one"),
        ({"size": 60.0}, "without load.holdout"),
        ({"blocks": {**BLOCKS, "sizes": {"March": 3.0}}}, "names such as '2026-03'"),
    ],
)
def test_policies_without_a_proof_are_refused(ward: Ward, data: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        ward.gate(**data)


def test_blocks_need_ids(ward: Ward) -> None:
    ward.write(blocks=BLOCKS)
    text = ward.silo.policy.read_text().replace('groups = "patient"', "")
    ward.silo.policy.write_text(text)
    with pytest.raises(RecipeError, match="ids keep their first block"):
        load_policy(ward.silo.policy)


def test_declared_sizes_are_held_against_terms(ward: Ward) -> None:
    sizes = {"2026-01": 30.0, "2026-02": 31.0}
    gate = ward.gate(blocks={**BLOCKS, "sizes": sizes})
    assert gate.permitted(ward.terms("fits", "2026-01"))
    with pytest.raises(UnsoundPlan, match=r"blocks.sizes: 31.0 for '2026-02'"):
        gate.permitted(ward.terms("odd", "2026-02"))


def test_a_training_reads_the_records_of_its_blocks_only(ward: Ward) -> None:
    gate = ward.gate()
    seen = {}
    for blocks in (("2026-01",), ("2026-01", "2026-02"), ("2025-12",)):
        terms = ward.terms("-".join(blocks), *blocks)
        gate.approvals.approve(terms, terms.text, days=1, by="root")
        problem: Any = gate.training(terms.name)[1]
        seen[len(blocks), blocks[0]] = len(problem.y)
    assert seen == {(1, "2026-01"): 20, (2, "2026-01"): 40, (1, "2025-12"): 0}


def test_a_block_without_records_is_answered_like_any_other(ward: Ward) -> None:
    gate = ward.gate()
    assert ward.train(gate, ward.terms("empty", "2025-01")) == [""] * 4
    assert spent(gate) == {"sepsis/2025-01": 1.0}


def test_the_owner_is_told_of_blocks(ward: Ward) -> None:
    gate = ward.gate(unit="group")
    terms = ward.terms("first", "2026-01", "2026-02", privacy={"unit": "group"})
    told = proposal(gate, terms)
    assert "blocks    2: 2026-01, 2026-02" in told
    assert "(replace-one inside its block)" in told
    assert "in which block a person is" in told
    found = verdict(gate, terms)
    assert not found.refused
    assert "40 are here (for you alone)" in found.lines[0]
    ward.train(gate, terms)
    assert "sepsis/2026-01: epsilon 1 is spent of (2, 1e-05)" in state_of(gate)


def test_an_officer_may_approve_before_the_gate_has_begun(ward: Ward) -> None:
    ward.write(blocks=BLOCKS)
    gate = RequestHandler(load_policy(ward.silo.policy))
    found = verdict(gate, ward.terms("first", "2026-01", "2026-02"))
    assert not found.refused
    assert "40 are here (for you alone)" in found.lines[0]
    assert not (ward.silo.folder / "state" / FILE).exists()


def test_two_names_of_one_account_have_the_same_blocks(ward: Ward) -> None:
    gate = ward.gate()
    ward.train(gate, ward.terms("first", "2026-01"))
    ledger = gate.ledger()
    ledger.rename("sepsis", "icu")
    ledger.close()
    text = ward.silo.policy.read_text()
    second = text[text.index("[data.sepsis]") :].replace("data.sepsis", "data.icu")
    ward.silo.policy.write_text(f"{text}\n{second}")
    gate = RequestHandler(load_policy(ward.silo.policy))
    gate.open()
    assert gate.blocks["icu"].names == gate.blocks["sepsis"].names
    ward.silo.policy.write_text(f"{text}\n{second}".replace('"month"', '"year"', 1))
    with pytest.raises(DataError, match="must have the same blocks"):
        RequestHandler(load_policy(ward.silo.policy)).open()
