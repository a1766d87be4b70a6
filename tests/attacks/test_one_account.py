# SPDX-License-Identifier: Apache-2.0
"""Attacks on a gate's budget by names: one account with two budgets, one file with two accounts.

Before: after ``ledger rename a b`` the last table's budget stood for both (epsilon 5 was spent of
1), and a file named by two tables of a policy, or by a new table in place of the old one, had two
whole budgets.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from dpfed.accounting.ledger.ledger import Ledger
from dpfed.cli.silo_text import state_of
from dpfed.core.errors import DataError
from dpfed.recipes.terms import read_terms
from dpfed.silo.handler import RequestHandler
from dpfed.silo.policy import load_policy
from tests.helpers.handlers import _own_environment, handler, order, said  # noqa: F401
from tests.silo.gates import Silo, terms_for, write_data


def with_tables(folder: Path, **tables: dict[str, Any]) -> RequestHandler:
    """The policy of ``handler`` with more tables, each like the first but for what is given."""
    silo = Silo(folder / "silo", 0)
    tree = tomllib.loads(silo.policy.read_text())
    first = tree["data"]["sepsis"]
    tree["data"] |= {name: {**first, **change} for name, change in tables.items()}
    silo.policy.write_text(tomli_w.dumps(tree))
    return RequestHandler(load_policy(silo.policy))


def test_one_account_with_two_budgets_does_not_start(tmp_path: Path) -> None:
    held = handler(tmp_path, epsilon=1.0)
    held.ledger().rename("sepsis", "sepsis2")
    for change in ({"epsilon": 9.0}, {"delta": 1e-6}, {"adjacency": "zero-out"}, {"colluders": 2}):
        with pytest.raises(DataError, match="names of one account"):
            with_tables(tmp_path, sepsis2=change).open()
    declared = held.ledger().budget_of("sepsis")
    assert declared is not None
    assert declared.budget.epsilon == 1.0
    shared = with_tables(tmp_path, sepsis2={})
    shared.open()
    shared.open()
    rows = [r for r in held.ledger().rows() if r.body["kind"] == "budget"]
    assert len(rows) == 1  # equal ones are declared once


def test_two_names_of_one_account_spend_one_budget(tmp_path: Path) -> None:
    handler(tmp_path, epsilon=2.0).ledger().rename("sepsis", "other")
    held = with_tables(tmp_path, other={})
    held.open()
    errors = []
    for name in ("sepsis", "other"):
        text = terms_for(tmp_path, 3, name=f"run-{name}").read_text()
        text = text.replace('dataset = "sepsis"', f'dataset = "{name}"')
        terms = read_terms(text)
        held.approvals.approve(terms, text, days=1, by="root")
        errors += [said(held.reply(order(terms, round=at))).get("error") for at in range(3)]
    assert errors == [None] * 3 + ["BudgetSpent"] * 3


def names(folder: Path) -> dict[str, Any]:
    """Other ways to name the first table's file."""
    data = folder / "silo/data.npz"
    (folder / "link.npz").symlink_to(data)
    os.link(data, folder / "hard.npz")
    return {
        "the same": str(data),
        "a link": str(folder / "link.npz"),
        "a hard link": str(folder / "hard.npz"),
        "dots": f"{folder}/silo/../silo/data.npz",
        "a pattern": f"{folder}/silo/d*.npz",
        "a list": [str(data)],
        "above": str(folder / "silo"),
    }


def test_one_file_under_two_accounts_does_not_start(tmp_path: Path) -> None:
    handler(tmp_path)
    for what, source in names(tmp_path).items():
        held = with_tables(tmp_path, again={"load": {"source": source}})
        with pytest.raises(DataError, match=r"data\.sepsis and data\.again must have one account"):
            held.open()
        assert held.ledger().budget_of("again") is None, what
        assert "the gate does not start with this policy" in state_of(held)


def test_other_columns_of_one_file_are_the_same_persons(tmp_path: Path) -> None:
    handler(tmp_path)
    load = {"source": str(tmp_path / "silo/data.npz"), "options": {"x": "x", "y": "y"}}
    with pytest.raises(DataError, match="must have one account"):
        with_tables(tmp_path, again={"load": load, "shape": [6]}).open()


def test_a_new_name_for_a_file_that_was_counted_does_not_start(tmp_path: Path) -> None:
    """The table is renamed in the policy: a new account, and a whole new budget."""
    held = handler(tmp_path)
    silo = Silo(tmp_path / "silo", 0)
    tree = tomllib.loads(silo.policy.read_text())
    tree["data"] = {"fresh": tree["data"]["sepsis"]}
    silo.policy.write_text(tomli_w.dumps(tree))
    fresh = RequestHandler(load_policy(silo.policy))
    with pytest.raises(DataError, match="counted as 'sepsis'"):
        fresh.open()
    held.ledger().rename("sepsis", "fresh")
    fresh.open()
    assert fresh.ledger().budget_of("fresh") == held.ledger().budget_of("sepsis")


@pytest.mark.parametrize("how", ["moved", "hard link", "approvals lost"])
def test_a_file_that_was_counted_is_known_again_by_its_inode(tmp_path: Path, how: str) -> None:
    """Before: ``mv``, ``ln`` or a lost approvals.sqlite, and a new name, gave it a whole budget."""
    held, silo = handler(tmp_path), Silo(tmp_path / "silo", 0)
    tree = tomllib.loads(silo.policy.read_text())
    table = tree["data"].pop("sepsis")
    old, new = Path(table["load"]["source"]), tmp_path / "elsewhere.npz"
    if how == "approvals lost":
        (held.state / "approvals.sqlite").unlink(missing_ok=True)
        new = old
    elif how == "moved":
        old.rename(new)
    else:
        new.hardlink_to(old)
    tree["data"]["fresh"] = {**table, "load": {"source": str(new)}}
    silo.policy.write_text(tomli_w.dumps(tree))
    fresh = RequestHandler(load_policy(silo.policy))
    with pytest.raises(DataError, match="counted as 'sepsis'"):
        fresh.open()
    held.ledger().rename("sepsis", "fresh")
    fresh.open()


@pytest.mark.parametrize("key", ["center", "backbone_weights", "backbone_cache"])
def test_what_is_called_public_is_nobodys_records(tmp_path: Path, key: str) -> None:
    """The mean of another table's records would enter each release, and cost nothing."""
    handler(tmp_path)
    write_data(tmp_path / "other.npz", 1)
    load = {"source": str(tmp_path / "other.npz"), key: str(tmp_path / "silo/data.npz")}
    with pytest.raises(DataError, match=rf"load\.{key} must hold no records of data\.sepsis"):
        with_tables(tmp_path, other={"load": load}).open()


def test_files_apart_have_accounts_apart(tmp_path: Path) -> None:
    handler(tmp_path)
    write_data(tmp_path / "other.npz", 1)
    held = with_tables(tmp_path, other={"load": {"source": str(tmp_path / "other.npz")}})
    held.open()
    assert len(Ledger(held.state / "ledger.sqlite").balance().budgets) == 2


def test_status_says_overspent(tmp_path: Path) -> None:
    """An owner may lower a budget below what is spent."""
    held = handler(tmp_path)
    text = terms_for(tmp_path, 3).read_text()
    terms = read_terms(text)
    held.approvals.approve(terms, text, days=1, by="root")
    for at in range(3):
        assert "error" not in said(held.reply(order(terms, round=at)))
    assert "OVERSPENT" not in state_of(held)
    Silo(tmp_path / "silo", 0).write(epsilon=1.0)
    lower = RequestHandler(load_policy(tmp_path / "silo/silo.toml"))
    assert "sepsis: epsilon 2 is spent of (1, 1e-05): OVERSPENT" in state_of(lower)
