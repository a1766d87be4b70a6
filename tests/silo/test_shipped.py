# SPDX-License-Identifier: Apache-2.0
"""Code that comes with terms: who may allow it, what an officer reads, and a training with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfed.cli.silo_text import proposal
from dpfed.core.errors import ClientRefused, DpfedError, RecipeError, UnsoundPlan
from dpfed.core.flower_private import from_bytes
from dpfed.data import seal, shard_process
from dpfed.data.shards import ShardedProblem
from dpfed.recipes.shard_rule import MOST_CODE
from dpfed.recipes.terms import Terms, read_terms, write_terms
from dpfed.silo.modules import _approve_in_copy
from dpfed.silo.policy import load_policy
from dpfed.training.wire.codec import Envelope, read_reply
from tests.data.test_sealed_process import PLAIN
from tests.helpers.handlers import (
    _own_environment,  # noqa: F401
    enrolment,
    handler,
    order,
    said,
)
from tests.silo.gates import FEATURES, Silo, terms_for

GATE = {"alone": True, "answer_after": 400.0}
TRAIN = {"code": PLAIN, "shards": 3, "seconds": 5.0}
LEAKS = "import os\ndef train(p, d): os._exit(3)\n"


@pytest.fixture(autouse=True)
def _right_machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    try:
        seal.refuse_other_machines()
    except DpfedError as error:
        pytest.skip(f"THE SEAL IS NOT TESTED HERE: {error}")
    monkeypatch.delenv("DPFED_ONE_MACHINE", raising=False)
    yield
    for each in shard_process._RUNNING.values():
        each.close()


def shipping(folder: Path, **train: Any) -> str:
    privacy = {"epsilon": 1e5, "noise": "keyed"}
    terms_for(folder, 3, privacy=privacy, train={**TRAIN, **train})
    return write_terms(
        folder / "recipe.toml", dataset="sepsis", shape=[FEATURES], sizes=[90.0] * 3, classes=3
    )


def asked(folder: Path, **train: Any) -> Terms:
    return read_terms(shipping(folder, **train))


@pytest.mark.parametrize(
    ("gate", "data", "words"),
    [
        ({}, {"shipped": True}, "gate.alone"),
        ({"alone": True}, {"shipped": True}, "gate.answer_after"),
        ({"answer_after": 400.0}, {"shipped": True}, "gate.alone"),
    ],
)
def test_a_policy_that_may_not_allow_shipped_code(
    tmp_path: Path, gate: dict[str, Any], data: dict[str, Any], words: str
) -> None:
    silo = Silo(tmp_path, 0)
    silo.write(gate, **data)
    with pytest.raises(RecipeError, match=words):
        load_policy(silo.policy)


def test_the_unit_of_a_silo_on_one_machine_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silo = Silo(tmp_path, 0)
    silo.write(GATE, shipped=True)
    assert load_policy(silo.policy).data["sepsis"].shipped
    monkeypatch.setenv("DPFED_ONE_MACHINE", "1")
    with pytest.raises(RecipeError, match="no SuperNode runs on the gate's machine"):
        load_policy(silo.policy)
    silo.write(GATE)
    assert not load_policy(silo.policy).data["sepsis"].shipped


@pytest.mark.parametrize("name", ["dpfed-gate.service", "compose.yaml"])
def test_what_init_writes_is_for_one_machine(name: str) -> None:
    from importlib import resources

    text = resources.files("dpfed.cli") / "templates" / "silo" / f"{name}.template"
    assert "DPFED_ONE_MACHINE" in text.read_text(encoding="utf-8")


def test_code_is_in_the_fingerprint_and_in_the_sentence(tmp_path: Path) -> None:
    terms, other = asked(tmp_path), asked(tmp_path, code=PLAIN + "# more\n")
    assert terms.fingerprint != other.fingerprint
    assert terms.ships_code
    assert terms.plan.sealed
    found = str(terms.plan.guarantee())
    assert "nothing that works for the server runs on the gate's machine" in found
    assert "that nobody reviewed" in found
    named = terms_for(tmp_path, 3, train={"function": "ward:train", "shards": 3})
    reviewed = read_terms(named.read_bytes())
    assert not reviewed.ships_code
    assert reviewed.plan.fingerprint() != terms.plan.fingerprint()


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ({"code": "#" * (MOST_CODE + 1)}, "train.code|terms"),
        ({"code": ""}, "train.code"),
        ({"function": "ward:train"}, "beside train.code"),
    ],
)
def test_code_that_terms_cannot_have(tmp_path: Path, train: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        asked(tmp_path, **train)


@pytest.mark.parametrize(
    ("gate", "data", "train", "words"),
    [
        (GATE, {}, {}, "shipped"),
        (GATE, {"shipped": True}, {"seconds": 200.0}, "longest and answer_after"),
        (GATE, {"shipped": True}, {"shards": 90}, "longest and answer_after"),
    ],
)
def test_terms_that_ship_code_and_are_not_permitted(
    tmp_path: Path, gate: Any, data: dict[str, Any], train: dict[str, Any], words: str
) -> None:
    held = handler(tmp_path, gate, epsilon=1e6, **data)
    with pytest.raises(UnsoundPlan, match=words):
        held.permitted(asked(tmp_path, **train))


def test_the_officer_reads_that_nobody_has_reviewed_it(tmp_path: Path) -> None:
    held = handler(tmp_path, GATE, epsilon=1e6, shipped=True)
    shown = proposal(held, asked(tmp_path))
    assert "REVIEWED BY NOBODY" in shown
    assert f"{len(PLAIN):,} bytes" in shown
    assert "nothing that works for the server runs on the gate's machine" in shown


def test_it_is_approved_by_hand_and_never_by_a_rule(tmp_path: Path) -> None:
    rules = {"approve": "within-policy", "most_epsilon": 1e6, "week_epsilon": 1e6}
    held = handler(tmp_path, GATE, epsilon=1e6, shipped=True, **rules)
    text = shipping(tmp_path)
    terms = read_terms(text)
    assert said(held.reply(enrolment(terms.name, text)))["error"] == "UnsoundPlan"
    assert not held.approvals.known(terms.name)
    assert not [each for each in shard_process._RUNNING.values() if each.running]
    plain = terms_for(tmp_path, 3, name="other", privacy={"epsilon": 1.0, "noise": "keyed"})
    assert "error" not in said(held.reply(enrolment("other", plain.read_text())))


def test_a_list_of_modules_does_not_run_it_before_it_is_approved(tmp_path: Path) -> None:
    held = handler(tmp_path, GATE, epsilon=1e6, shipped=True)
    with pytest.raises(UnsoundPlan, match="ships is run once"):
        _approve_in_copy(held, shipping(tmp_path))


@pytest.mark.slow
def test_an_approved_training_trains(tmp_path: Path) -> None:
    held = handler(tmp_path, GATE, epsilon=1e6, shipped=True)
    text = shipping(tmp_path)
    terms = read_terms(text)
    held.approvals.approve(terms, text, days=1, by="root")
    problem = held.training(terms.name)[1]
    assert isinstance(problem, ShardedProblem)
    assert problem.process.running
    reply = from_bytes(held.reply(order(terms)))
    read = read_reply(reply, Envelope(0, 0, terms.plan.sum.release_stage, 0))
    assert not isinstance(read, ClientRefused)
    whole = np.frombuffer(read["update"], f"<i{len(read['update']) // terms.initial.numel()}")
    rows = problem.rows(terms.initial, terms.plan.update.unit)
    total = rows.clipped_sum(terms.plan.update.clip).vector.numpy()
    assert total.any()
    assert np.abs(whole * terms.plan.update.step - total).max() < 0.1  # noise of epsilon 1e5


@pytest.mark.long
@pytest.mark.slow
def test_code_that_makes_no_row_is_refused_in_its_rehearsal(tmp_path: Path) -> None:
    """On made-up records, before a budget is touched; on true ones it is zeros, in silence."""
    held = handler(tmp_path, GATE, epsilon=1e6, shipped=True)
    text = shipping(tmp_path, code=LEAKS)
    terms = read_terms(text)
    held.approvals.approve(terms, text, days=1, by="root")
    problem = held.training(terms.name)[1]
    assert isinstance(problem, ShardedProblem)
    with pytest.raises(DpfedError, match="must return 21 finite numbers"):
        problem.made_up().rows(terms.initial, terms.plan.update.unit)
    rows = problem.rows(terms.initial, terms.plan.update.unit)
    assert not rows.clipped_sum(1.0).vector.any()
