# SPDX-License-Identifier: Apache-2.0
"""A SuperLink that plays the secure sum's stages against real gates, and says what it likes.

All that leaves a gate is written down and held to two laws: an answer is byte-equal to one that was
on the silo's disk before it left, and a refusal has a word from the fixed list and nothing else but
what the order itself had said.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from flwr.app import ConfigRecord

from dpfed.accounting.ledger.ledger import Ledger
from dpfed.cli.deploy import deploy
from dpfed.core.errors import WIRE_NAMES, ClientRefused
from dpfed.core.flower_private import from_bytes
from dpfed.core.sum_protocol import StageReply
from dpfed.core.types import Broadcast
from dpfed.data.datasets import Records
from dpfed.silo.frames import ask
from dpfed.sums.secagg.messages import Alive, Cohort, Dropped, Key, pack_message, unpack
from dpfed.sums.secagg.messages import unpack_masked as read_masked
from dpfed.training.checkpoint import CommittedRound
from dpfed.training.inprocess import replay
from dpfed.training.round import RoundResult, run_round, start
from dpfed.training.wire.codec import Envelope, Sender, read_reply, write_reply
from tests.helpers.handlers import said, sent
from tests.silo.gates import Silo, read, records, terms_for

At = tuple[int, int]
SILOS = 5
EVERYONE = list(range(SILOS))
FEWER = EVERYONE[:-1]
FIRST: At = (0, 0)


def _checksum(answer: bytes) -> int:
    """Of a stored answer: it stands behind the order's digest."""
    return int.from_bytes(answer[64:68], "big")


@dataclass(frozen=True)
class Federation:
    """Five gates with a roster, and one more whose data has another first record than gate 0's."""

    folder: Path
    silos: list[Silo]
    twin: Silo

    @property
    def neighbour(self) -> list[Silo]:
        return [self.twin, *self.silos[1:]]

    @property
    def all(self) -> list[Silo]:
        return [*self.silos, self.twin]

    def terms(self, name: str, **options: Any) -> Path:
        """Terms with a sum that withstands a server which may do anything."""
        folder = self.folder / f"terms-{name}"
        folder.mkdir(exist_ok=True)
        roster = self.folder / "fed/nodes/silo-0/roster.json"
        privacy = {"epsilon": 2.0, "noise": "keyed", "trust": "distributed", "spare_attempts": 3}
        table = {"name": "secure", "against": "malicious", "survivors": 0.8, **options}
        return terms_for(folder, SILOS, roster, name=name, sum=table, privacy=privacy)

    def agreed(self, name: str) -> Path:
        path = self.terms(name)
        for each in self.all:
            each.approve(path)
        return path

    def restart(self, silo: Silo, **gate: Any) -> None:
        silo.kill()
        self.write(silo, **gate)
        silo.start()

    def write(self, silo: Silo, **gate: Any) -> None:
        identity = str(self.folder / f"fed/nodes/silo-{silo.number}")
        silo.write(
            {"identity": identity, "per_minute": 1_000_000, **gate},
            trust=["distributed"],
            against="malicious",
            epsilon=500.0,
        )


@contextmanager
def federation(folder: Path) -> Iterator[Federation]:
    names = [f"silo-{i}" for i in EVERYONE]
    deploy.init(folder / "fed", server_names=["127.0.0.1"], nodes=names)
    made = Federation(
        folder, [Silo(folder / n, i) for i, n in enumerate(names)], Silo(folder / "twin", 0)
    )
    made.twin.folder.mkdir()
    x, y = neighbouring()
    np.savez(made.twin.folder / "data.npz", x=x.numpy(), y=y.numpy())
    try:
        for each in made.all:
            made.write(each)
            each.spawn()
        for each in made.all:
            each.wait()
        yield made
    finally:
        for each in made.all:
            each.kill()


def neighbouring() -> tuple[torch.Tensor, torch.Tensor]:
    """The records of silo 0, but for one."""
    x, y = records(0)
    x[0], y[0] = 1e6, (y[0] + 1) % 3
    return x, y


class Left(NamedTuple):
    """What an order got out of a gate."""

    client: int
    stage: str
    at: At
    order: bytes
    reply: bytes
    word: str
    """Of a refusal; empty if it is none."""


class Link:
    """The server of one training."""

    def __init__(self, silos: list[Silo], path: Path) -> None:
        self.silos, self.terms = silos, read(path)
        self.plan = self.terms.plan
        self.left: list[Left] = []
        self.keys: dict[int, Key] = {}
        self.masked: dict[int, bytes] = {}

    # ------------------------------------------------------------------------------- orders

    def order(self, stage: str, request: bytes, at: At = FIRST, **changes: Any) -> bytes:
        """The bytes of an order."""
        names = {"fingerprint": self.plan.fingerprint(), "params": self.terms.initial, **changes}
        broadcast = Broadcast(at[0], names["params"], attempt=at[1], training=self.terms.name)
        sender = Sender(self.terms.model.layout, names["fingerprint"], ConfigRecord(), broadcast)
        return sent(sender.order(stage, {"sum": request}, stage != "input"))

    def ask(
        self, client: int, stage: str, request: bytes, at: At = FIRST, **changes: Any
    ) -> bytes | str:
        """What one order gets out of a gate: a message of the sum, or the word of a refusal."""
        order = self.order(stage, request, at, **changes)
        return self.take(client, stage, at, order, ask(str(self.silos[client].socket), order, 60))

    def take(self, client: int, stage: str, at: At, order: bytes, reply: bytes) -> bytes | str:
        """Write down what left, and hold it to both laws."""
        word = str(said(reply).get("error", ""))
        self.left.append(Left(client, stage, at, order, reply, word))
        envelope = Envelope(*at, stage, client)
        if word:
            assert word in WIRE_NAMES
            assert reply == sent(write_reply(envelope, ClientRefused(word)))
            return word
        answer = read_reply(from_bytes(reply), envelope)
        assert isinstance(answer, dict)
        assert dict(answer) in self.stored(client)
        message: bytes = answer["sum"]
        return message

    def stored(self, client: int) -> list[dict[str, bytes]]:
        """The messages of all answers that a silo keeps: of each stage, the latest."""
        silo = self.silos[client]
        folder = silo.folder / "state/trainings" / self.terms.name / f"client-{client}/answers"
        found = [path.read_bytes() for path in folder.iterdir()] if folder.exists() else []
        whole = [each for each in found if zlib.crc32(each[:64] + each[68:]) == _checksum(each)]
        return [msgspec.msgpack.decode(each[68:]) for each in whole]  # others are being written

    # ------------------------------------------------------------------- what an honest one says

    def learn_keys(self) -> None:
        for client in EVERYONE:
            said = self.ask(client, "keys", b"")
            assert isinstance(said, bytes)
            self.keys[client] = unpack(said, Key)

    def cohort(self, client: int, clients: list[int], **forged: Key) -> bytes:
        """A request for a masked vector; ``forged`` takes the place of keys: k1, k2 and so on."""
        offers = {i: key for i, key in self.keys.items() if i != client}
        offers |= {int(name[1:]): key for name, key in forged.items()}
        return pack_message(Cohort(clients, offers))

    def inputs(self, at: At = FIRST, clients: list[int] = EVERYONE) -> None:
        """Keys and masked vectors of all of a cohort, kept."""
        self.learn_keys()
        for client in clients:
            found = self.ask(client, "input", self.cohort(client, clients), at)
            assert isinstance(found, bytes), found
            self.masked[client] = found

    def alive(self, client: int, clients: list[int], also: tuple[int, ...] = ()) -> bytes:
        """A request to unmask; ``also`` are neighbours whose shares are asked for beside."""
        near = {i: read_masked(self.masked[i])[0] for i in (*clients, *also) if i != client}
        return pack_message(
            Alive(
                clients,
                {i: m.sealed[client] for i, m in near.items()},
                {i: m.shares[client] for i, m in near.items()},
            )
        )

    def dropped(self, *clients: int) -> bytes:
        return pack_message(Dropped(list(clients)))

    def round(self, at: At = FIRST, clients: list[int] = EVERYONE, before: str = "") -> RoundResult:
        """An honest round, until the stage that the server dies before."""
        state = replace(
            start(self.plan, self.terms.initial, self.terms.name),
            round=at[0],
            attempt=at[1],
            cohort=tuple(clients),
        )

        def exchange(
            order: Broadcast, stage: str, requests: Mapping[str, Mapping[int, bytes]]
        ) -> Iterator[tuple[int, StageReply]]:
            del order
            for client, request in requests["sum"].items() if stage != before else ():
                found = self.ask(client, stage, request, at)
                if stage == "input" and isinstance(found, bytes):
                    self.masked[client] = found
                answer = ClientRefused(found) if isinstance(found, str) else {"sum": found}
                yield client, answer

        after, result = run_round(self.plan, state, exchange)
        self.params = after.params
        return result

    # ---------------------------------------------------------------------------------- laws

    def check(self, at: At) -> None:
        """An honest round completes with the bits of one process, and the ledgers are exact."""
        result = self.round(at)
        assert result.clients == tuple(EVERYONE), (result.aborted, result.refused)
        problems = [self.terms.model.problem(Records(*records(i))) for i in EVERYONE]
        done = [CommittedRound(*at, tuple(EVERYONE))]
        again = replay(self.plan, problems, self.terms.initial, done)
        assert torch.equal(self.params, again.params)
        for client in EVERYONE:
            self._check_spent(client)

    def _check_spent(self, client: int) -> None:
        """What a silo has spent, from the masked vectors that left it, by the closed form."""
        vectors: dict[At, set[bytes]] = {}
        for each in self.left:
            if (each.client, each.stage, each.word) == (client, "input", ""):
                vectors.setdefault(each.at, set()).add(each.reply)
        assert all(len(found) == 1 for found in vectors.values())  # one release per attempt, ever
        noise = self.plan.update
        shares = 2 * math.ceil(0.8 * SILOS) - SILOS - 1  # honest ones in whatever can be opened
        each_costs = (2 * noise.clip / noise.std) ** 2 / shares
        ledger = Ledger(self.silos[client].folder / "state/ledger.sqlite")
        assert ledger.verify() == []
        named = [row.body for row in ledger.rows() if row.body.get("training") == self.terms.name]
        booked = [row for row in named if row["kind"] == "entry"]  # others are approvals
        ledger.close()
        assert {(row["round"], row["attempt"]) for row in booked} == set(vectors)
        spent = math.fsum(row["mu_squared"] for row in booked)
        assert math.isclose(spent, len(vectors) * each_costs, rel_tol=1e-6)
