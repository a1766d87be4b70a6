# SPDX-License-Identifier: Apache-2.0
"""A server keeps heads over trainings, brings them back, and passes on what silos keep."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message

from dpfed.core.flower_private import from_bytes, to_bytes
from dpfed.flower import DPStrategy
from dpfed.recipes.terms import Terms, read_terms
from dpfed.silo.handler import RequestHandler
from dpfed.silo.policy import load_policy
from dpfed.training.wire.codec import CONTROL, named_arrays
from dpfed.training.wire.heads import SIZE, Kept
from tests.helpers.handlers import _own_environment  # noqa: F401
from tests.silo.gates import Silo, terms_for
from tests.training.flower.local_grid import LocalGrid, become_a_server


@pytest.fixture(autouse=True)
def _server(monkeypatch: pytest.MonkeyPatch) -> None:
    become_a_server(monkeypatch)


SILOS = 3


class Federation:
    """Three gates without processes, and the messages that they got."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.held, self.lies = folder, [], False
        for number in range(SILOS):
            silo = Silo(folder / f"silo-{number}", number)
            silo.write(epsilon=40.0)
            made = RequestHandler(load_policy(silo.policy))
            made.open()
            self.held.append(made)
        self.asked: list[tuple[int, dict[str, Any]]] = []
        self.grid = LocalGrid(self._relay, {100 + i: i for i in range(SILOS)})  # type: ignore[arg-type]

    def _relay(self, message: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        self.asked.append((number, dict(message.content.config_records[CONTROL])))
        reply = from_bytes(self.held[number].reply(to_bytes(message.content)))
        control = reply.config_records[CONTROL]
        if self.lies and "head" in control:
            control["head"], control["heads"] = b"x" * SIZE, [b"", b"y" * SIZE]
            control["key"] = "no key"
        return Message(reply, reply_to=message)

    def approved(self, name: str) -> Terms:
        terms = read_terms(terms_for(self.folder, SILOS, name=name, rounds=1).read_bytes())
        for each in self.held:
            each.approvals.approve(terms, terms.text, days=1, by="owner")
        return terms

    def train(self, name: str, heads: Path) -> list[int]:
        """Train under this name; who was in its only round."""
        terms = self.approved(name)
        strategy = DPStrategy(terms.plan, training=name, wait=0.1, wait_lost=0, heads=heads)
        strategy.start(self.grid, named_arrays(terms.model.layout, terms.initial))
        assert strategy.step is not None
        return [client for each in strategy.step.committed for client in sorted(each.clients)]

    def enrolments(self, number: int) -> list[int]:
        """How many heads each enrolment of a gate brought."""
        return [
            len(control.get("heads", ()))
            for to, control in self.asked
            if to == number and control["stage"] == "enrol"
        ]


def test_a_server_brings_the_heads_that_it_keeps(tmp_path: Path) -> None:
    made = Federation(tmp_path)
    shutil.copytree(made.held[0].state, tmp_path / "copy")
    heads = tmp_path / "heads"
    assert made.train("one", heads) == [0, 1, 2]
    assert len(Kept(heads).newest()) == SILOS
    assert made.train("two", heads) == [0, 1, 2]  # nothing was put back
    shutil.rmtree(made.held[0].state)
    shutil.copytree(tmp_path / "copy", made.held[0].state)
    assert made.train("three", heads) == [1, 2]
    assert made.held[0].conflict
    assert not made.held[1].conflict
    assert made.enrolments(0) == made.enrolments(1) == [0, 3, 6]  # one message each


def test_a_server_that_has_lost_its_memory_gets_it_from_the_other_silos(tmp_path: Path) -> None:
    made = Federation(tmp_path)
    for name in ("one", "two"):  # at the second one, gate 1 gets the head of gate 0
        assert made.train(name, tmp_path / "heads") == [0, 1, 2]
    kept = Kept(made.held[1].state).newest()
    assert len(kept) == 2
    empty = tmp_path / "empty"
    new = Silo(empty, 0)
    new.write(epsilon=40.0)
    key = made.held[0].state / "identity.key"
    (empty / "state").mkdir(mode=0o700)
    shutil.copy(key, empty / "state")  # the key, and nothing else, has outlived the disk
    made.held[0] = RequestHandler(load_policy(new.policy))
    made.held[0].open()
    made.asked.clear()
    assert made.train("four", tmp_path / "another server") == [1, 2]
    assert made.enrolments(0) == [0, 1]  # a second message, with what the others keep
    assert made.held[0].conflict


def test_a_server_takes_no_heads_that_are_none(tmp_path: Path) -> None:
    made = Federation(tmp_path)
    made.lies = True
    assert made.train("one", tmp_path / "heads") == [0, 1, 2]
    assert Kept(tmp_path / "heads").newest() == []
