# SPDX-License-Identifier: Apache-2.0
"""A silo's machine is put back from a copy, again and again: recounted, its budget holds.

In each history trainings enrol, ask, end and are left; the gate's whole folder (ledger, its head,
approvals, stored replies) is copied and put back at random moments. Of those who keep heads one is
honest; the others bring old true heads, foreign ones and random bytes. Whenever the gate refuses,
its owner declares what was lost. What was spent is recounted from the bytes that were sent, and
from nothing that the ledger says: each new reply to a round is one more release, whose cost follows
from the training's terms alone.

The control is the same histories without an honest keeper, where the budget is exceeded.
"""

from __future__ import annotations

import math
import random
import secrets
import shutil
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import ConfigRecord, RecordDict
from scipy.optimize import brentq
from scipy.stats import norm

from dpfed.accounting.ledger.heads import Conflict, begin_epoch, declare_lost, take_head
from dpfed.accounting.ledger.ledger import Ledger
from dpfed.core.flower_private import from_bytes, to_bytes
from dpfed.recipes.terms import Terms, read_terms
from dpfed.silo.handler import RequestHandler
from dpfed.sums.secagg.identity import SigningKey
from dpfed.training.wire.codec import CONTROL, REPLY
from dpfed.training.wire.enrolment import enrolment
from dpfed.training.wire.heads import MOST_BROUGHT, SIZE, Kept, sign_head
from tests.helpers.handlers import _own_environment, handler, looked_at, order, said  # noqa: F401
from tests.silo.gates import terms_for

EPSILON, DELTA = 4.0, 1e-5  # the owner's budget: three trainings of 2.0 and a little
ROUNDS, TRAININGS, STEPS = 3, 6, 100


def mu_for(epsilon: float) -> float:
    """The mu of a Gaussian release that costs epsilon at DELTA: from its two densities."""

    def delta(mu: float) -> float:
        far = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        return float(far) - DELTA

    return float(brentq(delta, 1e-3, 10.0, xtol=1e-14))


ONE = mu_for(2.0) ** 2 / ROUNDS
"""The squared mu of one release under terms of epsilon 2 for three rounds."""
MOST = mu_for(EPSILON) ** 2


@dataclass
class History:
    """A gate, those who keep its heads, and all bytes that it has sent."""

    held: RequestHandler
    terms: dict[str, Terms]
    folder: Path
    honest: Kept | None
    draw: random.Random
    old: list[bytes] = field(default_factory=list)
    """All heads that were ever handed out: what dishonest keepers choose from."""
    sent: dict[tuple[str, int, int], set[bytes]] = field(default_factory=lambda: defaultdict(set))
    connected: set[str] = field(default_factory=set)
    """Trainings that have enrolled since the machine was put back."""
    at: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    copies: list[Path] = field(default_factory=list)
    declared: int = 0

    @property
    def spent(self) -> float:
        """The squared mu of all that was sent."""
        return ONE * sum(len(each) for each in self.sent.values())

    def reply(self, order: bytes) -> bytes:
        """As the gate answers: the order is counted before a child is made."""
        return looked_at(self.held, order) or self.held.reply(order)

    def brought(self) -> list[bytes]:
        honest = self.honest.newest() if self.honest else []
        key = SigningKey(b"", Ed25519PrivateKey.generate())
        lies = self.draw.sample(self.old, min(4, len(self.old)))
        lies += [secrets.token_bytes(SIZE), self.held.key.public + secrets.token_bytes(SIZE - 32)]
        if self.draw.random() < 0.2:
            other = take_head(Ledger(self.folder / "elsewhere.sqlite"), 2**62)
            foreign = SigningKey(key._key.public_key().public_bytes_raw(), key._key)
            lies.append(sign_head(other, foreign))
        if self.honest is None:
            lies = [head for head in lies if head not in self.old]  # nobody brings a true one
        found = [*honest, *lies][:MOST_BROUGHT]
        self.draw.shuffle(found)
        return found

    def take(self, reply: bytes) -> str:
        """Keep the head in a reply; returns its error."""
        control = said(reply)
        if "head" in control:
            self.old.append(control["head"])
            if self.honest:
                self.honest.keep([control["head"]])
        return str(control.get("error", ""))

    def enrol(self, name: str, **told: bool) -> None:
        content = enrolment({"training": name, **told}, heads=self.brought())
        error = self.take(self.reply(to_bytes(content)))
        if error == "LedgerRolledBack":
            self.connected.clear()
            if self.draw.random() < 0.7:
                self.declare()
        elif not error and not told:
            self.connected.add(name)

    def declare(self) -> None:
        """As the owner does: the loss, then the approvals."""
        ledger = self.held.ledger()
        conflict = Conflict(ledger.path)
        declare_lost(ledger, conflict.heads(), by="owner")
        assert ledger.verify() == []
        conflict.end()
        ledger.close()
        self.declared += 1
        for each in self.terms.values():
            self.held.approvals.approve(each, each.text, days=1, by="owner")

    def ask(self, name: str) -> None:
        if name not in self.connected:
            return
        round = self.at[name] if self.draw.random() < 0.8 else self.draw.randrange(ROUNDS)
        reply = self.reply(order(self.terms[name], round=min(round, ROUNDS - 1)))
        content = from_bytes(reply)
        if not self.take(reply):
            values = b"".join(each.data for each in content.array_records[REPLY].values())
            self.sent[name, min(round, ROUNDS - 1), 0].add(values)
            self.at[name] = max(self.at[name], round + 1)

    def state(self, name: str) -> None:
        told = {"stage": "statement", "training": name, "model": "0" * 64}
        self.take(self.reply(to_bytes(RecordDict({CONTROL: ConfigRecord(told)}))))

    def copy(self) -> None:
        to = self.folder / f"copy-{len(self.copies)}"
        shutil.copytree(self.held.state, to)
        self.copies.append(to)

    def put_back(self) -> None:
        shutil.rmtree(self.held.state)
        shutil.copytree(self.draw.choice(self.copies), self.held.state)
        begin_epoch(self.held.ledger())  # the gate is started
        self.connected.clear()
        self.at.clear()

    def step(self) -> None:
        name = self.draw.choice(list(self.terms))
        acts = [self.enrol, self.ask, self.ask, self.ask, self.state]
        chance = self.draw.random()
        if chance < 0.06:
            self.copy()
        elif chance < 0.14:
            self.put_back()
        elif chance < 0.18:
            self.enrol(name, leave=True)
        elif self.connected and self.draw.random() < 0.7:
            self.ask(self.draw.choice(sorted(self.connected)))
        else:
            self.draw.choice(acts)(name)


def histories(folder: Path, seeds: range, *, honest: bool) -> list[History]:
    text = terms_for(folder, 3, privacy={"epsilon": 2.0}).read_text()
    names = [f"run-{at}" for at in range(TRAININGS)]
    terms = {name: read_terms(text.replace('"gated"', f'"{name}"')) for name in names}
    held = handler(folder)
    for each in terms.values():
        held.approvals.approve(each, each.text, days=1, by="owner")
    new = folder / "new"
    shutil.copytree(held.state, new)
    found = []
    for seed in seeds:
        shutil.rmtree(held.state)
        shutil.copytree(new, held.state)
        place = folder / f"history-{seed}"
        place.mkdir()
        keeper = Kept(place / "kept") if honest else None
        made = History(held, terms, place, keeper, random.Random(seed))
        made.copy()
        for _ in range(STEPS):
            made.step()
        assert made.held.ledger().verify() == []
        found.append(made)
        shutil.rmtree(place)
    return found


def checked(found: list[History]) -> None:
    """No budget is exceeded, and the histories are worth something."""
    assert all(each.spent <= MOST * (1 + 1e-6) for each in found)
    assert sum(each.declared for each in found) > len(found)
    assert sum(each.spent for each in found) > 0.3 * len(found) * MOST


@pytest.mark.slow
def test_with_one_honest_keeper_no_budget_is_exceeded(tmp_path: Path) -> None:
    checked(histories(tmp_path, range(2), honest=True))


@pytest.mark.long
@pytest.mark.slow
def test_without_one_it_is(tmp_path: Path) -> None:
    found = histories(tmp_path, range(3), honest=False)
    assert all(each.spent > MOST for each in found)
    assert all(each.declared == 0 for each in found)


@pytest.mark.long
def test_in_two_hundred_histories_no_budget_is_exceeded(tmp_path: Path) -> None:
    checked(histories(tmp_path, range(200), honest=True))
