# SPDX-License-Identifier: Apache-2.0
"""A gated federation whose gates, relays, SuperNodes and SuperLink are killed and started again.

Real processes, TLS and node keys. Gates hold each answer back for a moment, so that all are killed
while the answers are on the silos' disks: a gate, another silo's relay and SuperNode, the SuperLink
with its ServerApp. A further ``flwr run`` goes on from the server's checkpoint, and asks again. Now
and then a gate and a relay alone are killed: then the round goes on without the two.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from safetensors.torch import load_file

from dpfed.accounting.ledger.ledger import Ledger
from dpfed.cli.deploy import deploy
from dpfed.data.datasets import Records
from dpfed.training.checkpoint import Checkpoint
from dpfed.training.inprocess import replay
from dpfed.training.round import start
from tests.helpers.deployments import environment
from tests.silo.gates import Silo, gates, read, records, terms_for
from tests.training.flower.network import Net, _marked, miss_heartbeats
from tests.training.flower.restart import At, Training

pytestmark = [pytest.mark.slow]
NODES = ("north", "south", "east")
HELD = 2.0  # seconds between an answer's being on the disk and its leaving

SERVER = """
from pathlib import Path
from dpfed.flower import DPStrategy, read_terms
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from safetensors.torch import save_file

app = ServerApp()

@app.main()
def main(grid, context):
    config = context.run_config
    terms = read_terms(Path(config["terms"]).read_bytes())
    strategy = DPStrategy(
        terms.plan, training=terms.name, wait=60, checkpoint=config["checkpoint"])
    initial = ArrayRecord(terms.model.layout.unflatten(terms.initial))
    result = strategy.start(grid, initial, num_rounds=config["wanted"], timeout=config["timeout"])
    out = Path(config["out"])
    save_file(result.arrays.to_torch_state_dict(), out / "model.safetensors")
    (out / "guarantee.json").write_text(str(result.stopped))
"""
CLIENT = "from dpfed.flower import silo_app\napp = silo_app()\n"


class GatedNet(Net):
    """Each node's relay has its own gate's socket."""

    silos: list[Silo]

    def _environment(self, name: str) -> dict[str, str]:
        found = super()._environment(name)
        gate = str(self.silos[NODES.index(name)].socket) if name in self.nodes else ""
        return {**found, "DPFED_GATE": gate}


class Gated(Training):
    """A training behind gates; what is killed is chosen by what lies on the silos' disks."""

    def __init__(self, net: GatedNet, folder: Path, terms: Path, wanted: int) -> None:
        self.net, self.silos, self.terms, self.wanted = net, net.silos, read(terms), wanted
        self.out, self.checkpoint, self.app = folder / "out", folder / "checkpoint", folder / "app"
        (self.app / "gated").mkdir(parents=True)
        self.out.mkdir()
        for name, text in (("__init__", ""), ("server", SERVER), ("client", CLIENT)):
            (self.app / "gated" / f"{name}.py").write_text(text)
        parts = {"serverapp": "gated.server:app", "clientapp": "gated.client:app"}
        self.config = {
            "terms": str(terms),
            "out": str(self.out),
            "checkpoint": str(self.checkpoint),
            "wanted": wanted,
            "timeout": 20.0,
        }
        flwr = {"publisher": "x", "components": parts, "config": self.config}
        about = {
            "project": {"name": "gated", "version": "1.0.0", "dependencies": []},
            "tool": {"flwr": {"app": flwr}},
        }
        (self.app / "pyproject.toml").write_text(tomli_w.dumps(about))
        self.runs = 0

    def stored(self, silo: Silo, at: At) -> bool:
        """Whether a silo has its answer of an attempt on its disk."""
        state = silo.folder / "state"
        answer = state / "trainings" / self.terms.name / f"client-{silo.number}/answers/0"
        written = [path.stat().st_mtime_ns for path in state.glob("ledger.sqlite*")]
        ledger = Ledger(state / "ledger.sqlite")
        rows = [row.body for row in ledger.rows() if row.body["kind"] == "entry"]
        ledger.close()
        entered = bool(rows) and (rows[-1]["round"], rows[-1]["attempt"]) == at
        return entered and answer.exists() and answer.stat().st_mtime_ns > max(written)

    def kill_relay(self, node: str) -> int:
        """SIGKILL to the ClientApps of one node, and to nothing else; how many there were."""
        killed = 0
        for pid in _marked(f"{self.net.id}/{node}"):
            with contextlib.suppress(OSError):
                if b"flwr-clientapp" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
        return killed

    # -------------------------------------------------------------------------------- cycles

    def cycle(self, number: int) -> At | None:
        """Kill and start again; the attempt that is asked for again, if one is."""
        until(lambda: all(self.stored(silo, self.asked()) for silo in self.silos))
        at, count = self.asked(), len(self.silos)
        gate, node = self.silos[number % count], NODES[(number + 1) % count]
        gate.kill()
        assert self.kill_relay(node)
        gate.spawn()
        if number % 4 == 3:
            gate.wait()
            self.wait_asked(at)
            self.restart_node(node)  # Flower's own takes a minute to notice
            return None
        self.net.kill("superlink")
        self.net.kill(node)
        self.net.start_superlink(self.net.port)
        miss_heartbeats(self.net, node)
        self.net.start_node(node, wait=False)
        self.start()
        self.net.wait_online(node)
        gate.wait()
        return at

    # --------------------------------------------------------------------------------- laws

    def committed(self) -> dict[At, tuple[int, ...]]:
        """The attempts of all rounds, and who is in each; the model has the bits of a replay."""
        terms = self.terms
        begun = start(terms.plan, terms.initial, terms.name)
        saved = Checkpoint(self.checkpoint).load(terms.plan, begun)
        assert saved is not None
        assert [each.round for each in saved.committed] == list(range(self.wanted))
        problems = [terms.model.problem(Records(*records(i))) for i in range(len(self.silos))]
        again = replay(terms.plan, problems, terms.initial, saved.committed)
        model = load_file(self.out / "model.safetensors")
        assert torch.equal(terms.model.layout.flatten(model), again.params)
        return {(each.round, each.attempt): each.clients for each in saved.committed}

    def check_ledger(self, silo: Silo, committed: dict[At, tuple[int, ...]]) -> None:
        """Each attempt was entered once, those that count and no others than were asked for."""
        ledger = Ledger(silo.folder / "state/ledger.sqlite")
        assert ledger.verify() == []
        rows = [row.body for row in ledger.rows() if row.body["kind"] == "entry"]
        ledger.close()
        booked = Counter((row["round"], row["attempt"]) for row in rows)
        asked = {(at, n) for at, attempt in committed for n in range(attempt + 1)}
        assert set(booked.values()) == {1}
        assert {at for at, clients in committed.items() if silo.number in clients} <= set(booked)
        assert set(booked) <= asked
        assert len(rows) <= self.terms.plan.attempts
        noise = self.terms.plan.update
        spent = sum(row["mu_squared"] for row in rows)
        assert spent == pytest.approx(len(booked) * (2 * noise.clip / noise.std) ** 2)


def until(true: Callable[[], bool], patience: float = 120.0) -> None:
    end = time.monotonic() + patience
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def gated(folder: Path, silos: list[Silo], path: Path) -> GatedNet:
    deploy.init(folder / "fed", server_names=["127.0.0.1"], nodes=list(NODES[: len(silos)]))
    for each in silos:
        each.write({"answer_after": HELD}, epsilon=200.0)
        each.approve(path)
        each.spawn()
    net = GatedNet(folder, NODES[: len(silos)], folder=folder / "fed", env=environment(folder))
    net.silos = silos
    return net


@pytest.mark.long
@pytest.mark.parametrize(("cycles", "count"), [(2, 2), (20, 3)])
def test_killed_and_started_again_nothing_is_spent_twice(
    tmp_path: Path, cycles: int, count: int
) -> None:
    wanted = cycles + 3 * (cycles // 4)  # a relay that is killed may miss a few rounds
    privacy: dict[str, Any] = {"std_over_clip": 20.0, "noise": "keyed", "spare_attempts": cycles}
    path = terms_for(tmp_path, count, rounds=wanted, privacy=privacy)
    with gates(tmp_path, count) as silos, gated(tmp_path, silos, path) as net:
        for each in silos:
            each.wait()
        training = Gated(net, tmp_path / "run", path, wanted)
        training.start()
        again: list[At] = []
        for number in range(cycles):
            training.wait_asked(again[-1] if again else (-1, -1))
            again += [at for at in [training.cycle(number)] if at]
        until(lambda: training.ended, 600.0)
        committed = training.committed()
        for each in silos:
            training.check_ledger(each, committed)
    # what was on the disks when all died was sent again: entered once, and it is in the model
    assert len(again) == cycles - cycles // 4
    assert [committed.get(at) for at in again] == [tuple(range(count))] * len(again)
