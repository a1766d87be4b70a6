# SPDX-License-Identifier: Apache-2.0
"""Attacks on the gate by somebody who knew how the first ones were stopped.

Before: a record on which code raised ``KeyboardInterrupt`` emptied its whole silo; a train function
hung in the child of a gate that had computed with several threads; rounds lost to time left no
trace in the owner's log; terms chose a server's optimizer, or a sum, of any installed package, and
its code ran before anybody had approved.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import os
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tomli_w
import torch
from torch import nn

from dpfed.cli.silo_text import days_of, proposal, state_of, verdict
from dpfed.core import registry
from dpfed.core.errors import RecipeError, UnsoundPlan, failures
from dpfed.core.log import log
from dpfed.core.types import Unit
from dpfed.data.datasets import Records
from dpfed.data.modules import Network, seeded
from dpfed.recipes.terms import read_terms
from dpfed.silo import approvals, gate
from dpfed.silo.approvals import Approvals
from dpfed.silo.handler import RequestHandler
from dpfed.silo.keeper import reply_in_child
from dpfed.silo.policy import DataPolicy, load_policy
from tests.helpers.gate_parts import kept
from tests.helpers.handlers import approved, enrolment, handler, looked_at, order, said
from tests.silo.gates import CLASSES, FEATURES, RECORDS, Silo, records, terms_for

RAISES = 3e6


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DPFED_STATE", "DPFED_LEDGER", "DPFED_IDENTITY"):
        monkeypatch.setenv(name, "")


# ------------------------------------------------------------- what is not an Exception


class OfItsOwn(BaseException):
    """Such as a library's own signal to itself."""


class Raising(nn.Module):
    """A linear layer that raises on some records."""

    kind: type[BaseException] = ValueError

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x == RAISES).any()):
            raise self.kind
        out: torch.Tensor = self.head(x)
        return out


def summed(kind: type[BaseException]) -> bytes:
    x, y = records(0)
    x[0] = RAISES
    model = Network(seeded(Raising, 0))
    problem = model.problem(Records(x, y))
    Raising.kind = kind
    vector = problem.rows(model.initial(0), Unit.RECORD).clipped_sum(1.0).vector
    return vector.numpy().tobytes()


@pytest.mark.parametrize(
    "kind", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, OfItsOwn]
)
def test_in_a_gates_child_whatever_is_raised_on_a_record_is_its_own_row(
    kind: type[BaseException],
) -> None:
    assert reply_in_child(lambda: summed(kind), 60.0) == summed(ValueError)


def test_in_a_users_own_process_an_interrupt_still_stops_the_run() -> None:
    reply_in_child(lambda: b"", 60.0)
    assert not issubclass(KeyboardInterrupt, failures())
    with pytest.raises(KeyboardInterrupt):
        summed(KeyboardInterrupt)


# ----------------------------------------------------------------- threads and a fork

_GATE = """
import math, time, torch
from dpfed.silo.keeper import Asked, Keeper
class Held:
    class policy:
        class gate: longest = 60.0
    def open(self): torch.ones(3_000_000).exp().sum()  # as data is loaded
    def reply(self, order, zero_rows): return str(float(torch.ones(3_000_000).sum())).encode()
torch.set_num_threads(4)  # as on a machine with four cores
torch.ones(3_000_000).exp().sum()
with Keeper(Held()) as keeper:
    keeper.look(math.inf)
    last = time.monotonic() + 20.0
    asked = Asked(order=b"", training="", came=None, deadline=last, zero_rows=False)
    print(keeper.ask(asked, last + 5))
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_child_computes_after_its_gate_has_whatever_the_number_of_threads() -> None:
    free = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", _GATE],
        env=free | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout == "b'3000000.0'\n", done.stderr


# ------------------------------------------------------------------- what the owner reads


@pytest.mark.slow
def test_a_round_that_was_lost_to_time_is_in_the_log_and_in_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, terms = approved(tmp_path)
    held.policy = msgspec.structs.replace(
        held.policy, gate=msgspec.structs.replace(held.policy.gate, longest=1.0)
    )
    kind, parent = type(held.training(terms.name)[1]), os.getpid()
    real = kind.rows

    def slow(self: Any, params: torch.Tensor, unit: Unit) -> Any:
        if len(self.y) == RECORDS:  # not made-up ones
            time.sleep(30)
        return real(self, params, unit)

    monkeypatch.setattr(kind, "rows", slow)
    written = logging.FileHandler(tmp_path / "log")  # the keeper is another process
    log.addHandler(written)
    try:
        with kept(held) as keeper:
            reply = gate._reply_in_time(keeper, order(terms), time.monotonic())
    finally:
        log.removeHandler(written)
        written.close()
    assert os.getpid() == parent
    assert reply is not None
    assert "error" not in said(reply)
    assert "signal 14" in (tmp_path / "log").read_text()
    assert "all-zero update" in (tmp_path / "log").read_text()
    assert "1 answered, 1 with zero rows (see the log), 0 refused" in state_of(held)
    assert "zero rows" in days_of(held)


# ------------------------------------------------------------- plug-ins of other packages


@pytest.mark.parametrize(
    ("kind", "table"),
    [("server", {"server": [{"name": "idle"}]}), ("sums", {"sum": {"name": "idle"}})],
)
@pytest.mark.parametrize("by_hand", [False, True])
def test_terms_choose_no_optimizer_or_sum_of_another_package(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    table: dict[str, Any],
    by_hand: bool,
) -> None:
    class Point:
        def load(self) -> Any:
            raise AssertionError("code of another package is imported")

    real = registry._foreign
    monkeypatch.setattr(
        registry, "_foreign", lambda each: {"idle": Point()} if each == kind else real(each)
    )
    held = handler(tmp_path, approve="within-policy", most_epsilon=3.0, week_epsilon=3.0)
    tree = tomllib.loads(terms_for(tmp_path, 3).read_text())
    text = tomli_w.dumps({**tree, **table})
    if by_hand:
        with pytest.raises(UnsoundPlan, match=f"has {kind}: some of"):
            proposal(held, read_terms(text))
    else:
        assert said(held.reply(enrolment("gated", text)))["error"] == "UnsoundPlan"
        assert not held.approvals.known("gated")


# --------------------------------------------------------------------- terms that take long


DEEP = {
    "dotted": "x." + ".".join("a" * 10_000) + " = 1",
    "spaced": "x" + " . a" * 10_000 + " = 1",
    "quoted": "x" + ".'a'" * 10_000 + " = 1",
    "header": "[x" + ".a" * 10_000 + "]",
    "lists": "x = " + "[" * 10_000 + "1" + "]" * 10_000,
    "tables": "x = " + "{a = " * 10_000 + "1" + "}" * 10_000,
    "behind a comment": "# it's\nx." + ".".join("a" * 10_000) + " = 1 # it's",
    "behind a string": "y = 'a\"' # '\nx." + ".".join("a" * 10_000) + ' = "\'"',
    "behind quotes": "x" + ".a" * 17 + ' = "' + '\\"' * 30_000,
    "behind lines": "y = '''\n'''\nx." + ".".join("a" * 10_000) + " = 1",
}


@pytest.mark.parametrize("how", DEEP)
def test_terms_with_deep_keys_are_refused_before_they_are_parsed(how: str) -> None:
    began = time.process_time()
    with pytest.raises(RecipeError, match=r"in each other|of one line"):
        read_terms(DEEP[how])
    assert time.process_time() - began < 0.5


def test_terms_with_many_numbers_and_parameters_are_read(tmp_path: Path) -> None:
    text = terms_for(tmp_path, 3, sizes=[90.5] * 5000).read_text()
    assert len(read_terms(text).pins.sizes) == 5000


@pytest.mark.parametrize("by_rule", [False, True])
def test_no_text_is_parsed_where_no_training_is_approved_by_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_rule: bool
) -> None:
    rule = {"approve": "within-policy", "most_epsilon": 3.0, "week_epsilon": 9.0}
    held, text = handler(tmp_path, **(rule if by_rule else {})), terms_for(tmp_path, 3).read_text()
    looked: list[str] = []
    monkeypatch.setattr(
        "dpfed.silo.handler.read_terms", lambda each: looked.append(each) or read_terms(each)
    )
    assert (looked_at(held, enrolment("gated", text)) is None) == by_rule
    assert ("error" in said(held.reply(enrolment("gated", text)))) != by_rule
    assert bool(looked) == by_rule


def test_a_training_by_rule_is_priced_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = handler(tmp_path, approve="within-policy", most_epsilon=1.0, week_epsilon=1.0)
    asked: list[str] = []
    real = DataPolicy.cost
    monkeypatch.setattr(
        DataPolicy, "cost", lambda data, terms: asked.append(terms.name) or real(data, terms)
    )
    heard = []
    for name in ("a", "b", "c", "d", "e"):
        text = terms_for(tmp_path, 3, name=name, privacy={"epsilon": 0.25, "noise": "keyed"})
        heard.append(said(held.reply(enrolment(name, text.read_text()))).get("error"))
        asked = [each for each in asked if each != name]
        assert not asked, (name, asked)
    assert heard == [None] * 4 + ["UnsoundPlan"]


# --------------------------------------------------------------- what the gate really goes by


def test_status_and_verdict_tell_of_a_policy_that_the_running_gate_has_not_read(
    tmp_path: Path,
) -> None:
    held, terms = approved(tmp_path)
    silo = Silo(tmp_path / "silo", 0)
    assert "running gate" not in state_of(held)
    silo.write(epsilon=50.0)
    officer = RequestHandler(load_policy(silo.policy))
    words = "the running gate enforces (4, 1e-05) for each record"
    assert words in state_of(officer)
    assert any(words in line for line in verdict(officer, terms).lines)
    officer.open()  # a restart
    assert "running gate" not in state_of(officer)


def test_a_lost_clock_goes_by_the_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, terms = approved(tmp_path)
    real = held.approvals.now()
    for days in (2, 3):
        monkeypatch.setattr(
            approvals, "clock_time", lambda days=days: real + dt.timedelta(days=days)
        )
        if days == 2:
            held.approvals.approve(terms, terms.text, days=1, by="root")
        else:
            held.approvals.revoke(terms.name)
        monkeypatch.setattr(approvals, "clock_time", lambda: real - dt.timedelta(days=30))
        (held.state / approvals.CLOCK).unlink(missing_ok=True)
        assert Approvals(held.state).now() == real + dt.timedelta(days=days)
    for name in (approvals.CLOCK, approvals.FILE, approvals.REVOCATIONS):
        (held.state / name).unlink(missing_ok=True)
    assert Approvals(held.state).now() == real + dt.timedelta(days=3)  # the chain's last row


# ----------------------------------------------------------------------------------- memory


def test_the_gate_keeps_a_few_trainings_and_none_that_was_revoked(tmp_path: Path) -> None:
    held = handler(tmp_path, epsilon=100.0)
    made = {}
    for at in range(12):
        text = terms_for(tmp_path, 3, name=f"run-{at}").read_text()
        made[at] = read_terms(text)
        held.approvals.approve(made[at], text, days=1, by="root")
        assert looked_at(held, order(made[at])) is None
        looked_at(held, order(made[0]))  # the one that is always used
    assert len(held._trainings) == 8
    assert {"run-0", "run-11"} <= set(held._trainings)
    assert "error" not in said(held.reply(order(made[1])))  # built again
    held.approvals.revoke("run-11")
    looked_at(held, order(made[2]))
    assert "run-11" not in held._trainings
    assert len(held._trainings) <= 8
    again = RequestHandler(held.policy)
    again.open()
    assert len(again._trainings) == 8
