# SPDX-License-Identifier: Apache-2.0
"""An owner lowers a budget by the command; a gate that is started again raised it to its policy's.

The gate's own row said "by: command", so that nobody could tell whose word it was.
"""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpfed.accounting.ledger.balance import Budget
from dpfed.cli.main import app
from dpfed.cli.silo_text import proposal, state_of, verdict
from dpfed.core.errors import DataError
from dpfed.recipes.terms import read_terms
from dpfed.silo.figures import gate_figures
from dpfed.silo.handler import RequestHandler
from tests.helpers.handlers import _own_environment, enrolment, handler, said  # noqa: F401
from tests.silo.gates import terms_for

DELTA = 1e-5


def command(held: RequestHandler, epsilon: float, *more: str) -> None:
    """The owner's own."""
    path = held.state / "ledger.sqlite"
    asked = ["ledger", "budget", "sepsis", "--epsilon", f"{epsilon}", "--ledger", f"{path}", *more]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output


def stands(held: RequestHandler) -> Budget:
    declared = held.ledger().budget_of("sepsis")
    assert declared is not None
    return declared.budget


def test_a_lowered_budget_outlives_a_restart_and_everything_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    held = handler(tmp_path, epsilon=4.0)
    command(held, 1.5)
    with caplog.at_level(logging.WARNING, "dpfed"):
        held = handler(tmp_path, epsilon=4.0)
    assert "(1.5, 1e-05), by the owner's last command, and not the (4, 1e-05)" in caplog.text
    assert stands(held) == Budget(1.5, DELTA)
    assert [row.body["by"] for row in held.ledger().rows() if row.body["kind"] == "budget"] == [
        "policy",
        "command",
    ]
    assert "by the owner's last command" in state_of(held)
    assert [each.epsilon for each in gate_figures(held).data] == [1.5]
    terms = read_terms(terms_for(tmp_path, 3, privacy={"epsilon": 2.0}).read_bytes())
    assert "(1.5, 1e-05) for all trainings" in proposal(held, terms)
    assert "NOT FIT the budget" in "\n".join(verdict(held, terms).lines)
    held.approvals.approve(terms, terms.text, days=1, by="root")
    assert said(held.reply(enrolment(terms.name)))["error"] == "BudgetSpent"
    command(held, 4.0)
    assert "error" not in said(held.reply(enrolment(terms.name)))
    assert stands(handler(tmp_path, epsilon=4.0)) == Budget(4.0, DELTA)


@pytest.mark.parametrize("more", [("--delta", "1e-4"), ("--unit", "group")])
def test_a_budget_that_is_neither_above_nor_below_the_commanded_one_starts_no_gate(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    held = handler(tmp_path, epsilon=4.0)
    command(held, 1.5, *more)
    before = stands(held)
    with pytest.raises(DataError, match="does neither"):
        handler(tmp_path, epsilon=4.0)
    assert "the gate does not start with this policy" in state_of(held)
    assert gate_figures(held).data[0].epsilon == 4.0
    assert stands(held) == before


@pytest.mark.parametrize("seed", range(4))
def test_the_budget_is_never_above_what_the_owner_last_said(tmp_path: Path, seed: int) -> None:
    """Law: over policy edits, commands and starts; an edit is read at the next start."""
    draw = random.Random(seed)
    policy, commands = 4.0, list[float]()
    held, last = handler(tmp_path, epsilon=policy), policy
    for _ in range(12):
        act = draw.choice(["edit", "command", "start"])
        if act == "edit":
            policy = draw.choice([1.0, 2.0, 4.0, 8.0])
        elif act == "command":
            commands.append(draw.choice([0.5, 1.5, 3.0, 6.0]))
            command(held, commands[-1])
            last = commands[-1]
        else:
            held, last = handler(tmp_path, epsilon=policy), min([policy, *commands[-1:]])
        assert stands(held).epsilon <= last
    assert commands
    assert stands(handler(tmp_path, epsilon=policy)).epsilon == min(policy, commands[-1])
    assert held.ledger().verify() == []
