# SPDX-License-Identifier: Apache-2.0
"""Signed heads: what a gate hands out, what it keeps of others, and what it does with its own."""

from __future__ import annotations

import datetime as dt
import secrets
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import ConfigRecord, RecordDict
from typer.testing import CliRunner

from dpfed.accounting.ledger.heads import begin_epoch, declare_lost, take_head
from dpfed.accounting.ledger.ledger import Ledger
from dpfed.cli.main import app
from dpfed.cli.silo_text import days_of, state_of
from dpfed.core.errors import RoundAborted
from dpfed.flower import DPStrategy
from dpfed.recipes.terms import read_terms
from dpfed.silo.figures import gate_figures, metrics_text
from dpfed.silo.handler import RequestHandler
from dpfed.silo.page import page_html
from dpfed.silo.policy import load_policy
from dpfed.sums.secagg.identity import SigningKey, own_key
from dpfed.training.wire.codec import CONTROL, named_arrays
from dpfed.training.wire.enrolment import enrolment as enrolment_of
from dpfed.training.wire.heads import (
    HEADS_OF_A_KEY,
    MOST_BROUGHT,
    MOST_KEYS,
    SIZE,
    Kept,
    brought,
    is_head,
    open_head,
    sign_head,
)
from tests.helpers.handlers import (
    _own_environment,  # noqa: F401
    approved,
    looked_at,
    order,
    said,
    sent,
)
from tests.silo.gates import FEATURES, RECORDS, gates, grid_of, terms_for
from tests.training.flower.local_grid import become_a_server


def enrolment(name: str, heads: list[bytes] | None = None) -> bytes:
    return sent(enrolment_of({"training": name}, heads=heads or []))


def statement(name: str) -> bytes:
    asked = {"stage": "statement", "training": name, "model": "0" * 64}
    return sent(RecordDict({CONTROL: ConfigRecord(asked)}))


def some_key() -> SigningKey:
    made = Ed25519PrivateKey.generate()
    return SigningKey(made.public_key().public_bytes_raw(), made)


def head_of(folder: Path, key: SigningKey, at: int = 0) -> bytes:
    return sign_head(take_head(Ledger(folder / "ledger.sqlite"), at), key)


def put_back(held: RequestHandler, copy: Path) -> None:
    """The whole folder of the gate's state, as it was: ledger, head, approvals, keys, replies."""
    shutil.rmtree(held.state)
    shutil.copytree(copy, held.state)
    begin_epoch(held.ledger())  # as a gate that is started


def test_a_head_goes_out_with_enrolment_and_statement_after_the_reservation(tmp_path: Path) -> None:
    held, terms = approved(tmp_path)
    found = open_head(said(held.reply(enrolment(terms.name)))["head"], held.key)
    assert found is not None
    (cost,) = found.costs
    planned = terms.plan.guarantee().claims[0].event
    assert cost.mu_squared > 0, planned  # nothing is released yet: it is the reservation
    assert "error" not in said(held.reply(order(terms)))
    after = open_head(said(held.reply(statement(terms.name)))["head"], held.key)
    assert after is not None
    assert after.row > found.row
    assert after.costs[0].mu_squared == pytest.approx(cost.mu_squared)


def test_heads_are_of_one_size_and_say_nothing_to_others(tmp_path: Path) -> None:
    held, terms = approved(tmp_path)
    before = said(held.reply(enrolment(terms.name)))["head"]
    again = said(held.reply(enrolment(terms.name)))["head"]
    held.reply(order(terms))
    after = said(held.reply(statement(terms.name)))["head"]
    assert {len(each) for each in (before, again, after)} == {SIZE}
    start, first, second = 32 + 64 + 8, before, again
    alike = sum(a == b for a, b in zip(first[start:], second[start:], strict=True))
    assert alike < 40  # of 2,076 random bytes about 8: nobody sees whether anything has happened


def test_heads_are_equal_for_neighbouring_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 1_800_000_000.0)  # a row has its time
    monkeypatch.setattr("dpfed.training.wire.heads.os.urandom", bytes)
    monkeypatch.setattr("dpfed.silo.approvals.clock_time", lambda: _NOON)
    monkeypatch.setattr("dpfed.silo.handler.clock_time", lambda: _NOON)
    found = []
    for change in (0.0, 1e30, float("nan")):
        folder = tmp_path / f"{change}"
        (folder / "silo" / "state").mkdir(parents=True)
        x, y = np.ones((RECORDS, FEATURES), np.float32), np.zeros(RECORDS, np.int64)
        x[0], y[0] = change, 0 if change == 0 else 2
        np.savez(folder / "silo" / "data.npz", x=x, y=y)
        if found:  # the same owner's
            shutil.copy(tmp_path / "0.0/silo/state/identity.key", folder / "silo" / "state")
        held, terms = approved(folder)
        heads = [said(held.reply(enrolment(terms.name)))["head"]]
        for at in range(2):
            held.reply(order(terms, round=at))
        heads.append(said(held.reply(statement(terms.name)))["head"])
        found.append(heads)
    assert found[0] == found[1] == found[2]


_NOON = dt.datetime(2027, 1, 15, 12, tzinfo=dt.UTC)


def test_a_restored_gate_refuses_everything_until_its_owner_has_declared(tmp_path: Path) -> None:
    held, terms = approved(tmp_path)
    shutil.copytree(held.state, tmp_path / "copy")
    held.reply(enrolment(terms.name))
    for at in range(3):
        assert "error" not in said(held.reply(order(terms, round=at)))
    head = said(held.reply(statement(terms.name)))["head"]
    spent = held.ledger().spent(held.policy.data["sepsis"].key("sepsis")).mu_squared
    put_back(held, tmp_path / "copy")
    assert "error" not in said(held.reply(enrolment(terms.name)))  # nobody has brought a head yet
    asked = [enrolment(terms.name, [head]), enrolment(terms.name), statement(terms.name)]
    for each in (*asked, order(terms), order(terms, round=2)):
        assert said(held.reply(each))["error"] == "LedgerRolledBack"
    assert "NOTHING IS ANSWERED" in state_of(held)
    assert "rolled back" in days_of(held)
    assert "dpfed_ledger_rolled_back 1" in metrics_text(gate_figures(held))
    assert "declare-lost" in page_html(held)
    ledger = held.ledger()
    declare_lost(ledger, held.conflict.heads(), by="root")
    held.conflict.end()
    key = held.policy.data["sepsis"].key("sepsis")
    assert ledger.spent(key).mu_squared == pytest.approx(spent)
    assert ledger.spent(key).mu_squared >= spent
    assert said(held.reply(enrolment(terms.name, [head])))["error"] == "UnsoundPlan"  # not approved
    held.approvals.approve(terms, terms.text, days=1, by="root")
    assert "NOTHING IS ANSWERED" not in state_of(held)
    other = read_terms(terms_for(tmp_path, 3, name="other", privacy={"epsilon": 3.9}).read_bytes())
    held.approvals.approve(other, other.text, days=1, by="root")
    assert said(held.reply(enrolment("other", [head])))["error"] == "BudgetSpent"


def test_a_revocation_that_was_rolled_back_does_not_come_to_life(tmp_path: Path) -> None:
    held, terms = approved(tmp_path)
    shutil.copytree(held.state, tmp_path / "copy")
    held.approvals.revoke(terms.name)
    for name in ("approvals.sqlite", "revocations.sqlite"):  # without the ledger
        shutil.copy(tmp_path / "copy" / name, held.state)
    assert said(held.reply(order(terms)))["error"] == "UnsoundPlan"
    text = terms_for(tmp_path, 3, name="other").read_text()
    held.approvals.approve(read_terms(text), text, days=1, by="root")
    head = said(held.reply(enrolment("other")))["head"]  # of the chain with the revocation
    put_back(held, tmp_path / "copy")
    assert said(held.reply(enrolment(terms.name, [head])))["error"] == "LedgerRolledBack"
    declare_lost(held.ledger(), held.conflict.heads(), by="root")
    held.conflict.end()
    assert [each.state(held.approvals.now()) for each in held.approvals.all()] == ["revoked"]
    assert said(held.reply(order(terms)))["error"] == "UnsoundPlan"


def test_a_decision_that_was_written_half_is_the_stricter_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, terms = approved(tmp_path)
    held.approvals.revoke(terms.name)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as within:
        within.setattr(Ledger, "change", killed)
        with pytest.raises(KeyboardInterrupt):
            held.approvals.approve(terms, terms.text, days=1, by="root")
    assert said(held.reply(order(terms)))["error"] == "UnsoundPlan"
    held.approvals.approve(terms, terms.text, days=1, by="root")
    assert "error" not in said(held.reply(order(terms)))


def test_heads_that_are_none_are_left_out(tmp_path: Path) -> None:
    held, terms = approved(tmp_path)
    head = said(held.reply(enrolment(terms.name)))["head"]
    flipped = [head[:at] + bytes([head[at] ^ 1]) + head[at + 1 :] for at in (0, 40, 100, 150)]
    wrong = [*flipped, head[:-1], head + b"\0", b"", secrets.token_bytes(SIZE)]
    assert not any(map(is_head, wrong))
    own = held.key.public  # another's signature under this gate's name
    forged = own + head_of(tmp_path / "elsewhere", some_key())[32:]
    for heads in ([forged], wrong, [head] * MOST_BROUGHT):  # old true ones are in the chain
        assert "error" not in said(held.reply(enrolment(terms.name, heads)))
    for value in (b"heads", 7, ["text"], [1.5]):
        assert brought(value) == []
    assert len(brought([head] * 1000)) == MOST_BROUGHT
    assert not held.conflict


def test_a_gate_keeps_the_heads_of_others_and_hands_them_back(tmp_path: Path) -> None:
    held, terms = approved(tmp_path)
    key = some_key()
    foreign = head_of(tmp_path / "elsewhere", key, at=7)
    own = said(held.reply(enrolment(terms.name)))["head"]
    assert said(held.reply(enrolment(terms.name, [foreign, own])))["heads"] == [foreign]
    assert said(held.reply(enrolment(terms.name)))["heads"] == [foreign]  # also to a server without
    newer = [head_of(tmp_path / "elsewhere", key, at=8 + at) for at in range(HEADS_OF_A_KEY)]
    kept = said(held.reply(enrolment(terms.name, newer)))["heads"]
    assert kept == newer[::-1]
    assert said(held.reply(enrolment(terms.name, [foreign])))["heads"] == kept  # an old one again


def test_of_heads_of_one_second_the_last_are_kept(tmp_path: Path) -> None:
    held, terms = approved(tmp_path)
    kept, made = Kept(tmp_path / "kept"), []
    for _ in range(3 * HEADS_OF_A_KEY):
        asked = enrolment(terms.name)
        assert looked_at(held, asked) is None
        made.append(said(held.reply(asked))["head"])
        kept.keep(made[::-1])  # also where old ones are brought again
    assert kept.newest(HEADS_OF_A_KEY) == made[: -HEADS_OF_A_KEY - 1 : -1]


def test_what_is_kept_is_bounded_and_first_come(tmp_path: Path) -> None:
    kept, first = Kept(tmp_path / "kept"), some_key()
    kept.keep([head_of(tmp_path / "a", first, at=1)])
    kept.keep(head_of(tmp_path / "a", some_key(), at=100) for _ in range(MOST_KEYS + 10))
    assert kept.of(first.public)
    assert len((tmp_path / "kept" / "heads.bin").read_bytes()) == MOST_KEYS * SIZE
    assert len(kept.newest()) == MOST_BROUGHT
    with (tmp_path / "kept" / "heads.bin").open("ab") as file:
        file.write(b"half a head")
    assert len(kept.newest(1000)) == MOST_KEYS


def test_a_foreign_ledger_under_the_own_key_is_a_lost_one(tmp_path: Path) -> None:
    held, terms = approved(tmp_path)
    head = head_of(tmp_path / "elsewhere", own_key(held.state))
    assert said(held.reply(enrolment(terms.name, [head])))["error"] == "LedgerRolledBack"
    declare_lost(held.ledger(), held.conflict.heads(), by="root")
    held.conflict.end()
    held.approvals.approve(terms, terms.text, days=1, by="root")
    assert "error" not in said(held.reply(enrolment(terms.name, [head])))


@pytest.mark.long
def test_a_machine_that_is_put_back_is_refused_at_the_next_enrolment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    become_a_server(monkeypatch)
    with gates(tmp_path, 2, epsilon=40.0) as owners:

        def train(name: str) -> None:
            path = terms_for(tmp_path, 2, name=name, rounds=1)
            terms = read_terms(path.read_bytes())
            for each in owners:
                each.approve(path)
                if each.process is None:
                    each.start()
            made = DPStrategy(terms.plan, training=name, wait=20, heads=tmp_path / "heads")
            made.start(grid_of(owners), named_arrays(terms.model.layout, terms.initial))

        def spent() -> float:
            key = load_policy(owner.policy).data["sepsis"].key("sepsis")
            return Ledger(state / "ledger.sqlite").spent(key).mu_squared

        owner, state = owners[0], owners[0].folder / "state"
        train("one")
        owner.kill()
        shutil.copytree(state, tmp_path / "image")
        train("two")
        after_two = spent()
        owner.kill()
        shutil.rmtree(state)
        shutil.copytree(tmp_path / "image", state)
        assert spent() < after_two
        with pytest.raises(RoundAborted, match="LedgerRolledBack"):
            train("three")
        assert "NOTHING IS ANSWERED" in owner.command("status")
        command = ["ledger", "declare-lost", "--yes", "--ledger", str(state / "ledger.sqlite")]
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
        assert spent() == pytest.approx(after_two)
        assert spent() >= after_two
        assert "declared lost" in owner.command("log")
        train("four")
