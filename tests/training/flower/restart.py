# SPDX-License-Identifier: Apache-2.0
"""A training on a Net that outlives its processes: kill, start again, and check what is left.

    with Net(work, SILOS, folder=fed, env=...) as net:
        training = Training(net, work / "run", recipe, wanted=5)
        training.start()
        training.wait_asked(after=(1, 0))
        training.kill_serverapp()
        training.start()                     # a new ``flwr run``: same folder, same training
        training.wait()
        training.check(recipe)

Silos keep states and ledgers in their own folders, as the start scripts say.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
import uuid
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w
import torch

from dpfed.accounting.guarantee import SHIPPED, certified
from dpfed.accounting.ledger.ledger import Ledger
from dpfed.core.randomness import public_seed
from dpfed.recipes import result as result_files
from dpfed.recipes import schema as recipes
from dpfed.recipes.run import prepare
from dpfed.training.checkpoint import Checkpoint, CommittedRound
from dpfed.training.inprocess import replay
from dpfed.training.round import start
from tests.helpers.deployments import write_app
from tests.training.flower.network import CONNECTION, Net, _marked, miss_heartbeats

NAME = "soak"

# dpfed's own server_app, which stops when so many rounds are committed: the plan has room for more.
SERVER = """
from dpfed.recipes import flower_app as ours
from dpfed.training.flower.strategy import DPStrategy


class Short(DPStrategy):
    def start(self, *values, **options):
        return super().start(*values, num_rounds={wanted}, **options)


ours.DPStrategy = Short
app = ours.server_app
"""

At = tuple[int, int]


@dataclass(frozen=True)
class Found:
    """What a training left."""

    committed: tuple[CommittedRound, ...]
    booked: dict[str, Counter[At]]
    """By silo: the attempts in its ledger."""
    history: list[dict[str, Any]]
    same_bits: bool
    problems: list[str]
    """What is wrong with ledgers or records; empty if nothing is."""

    @property
    def wasted(self) -> int:
        """Attempts that were asked for, by the server's own count, and not committed."""
        return sum(each.attempt for each in self.committed)


class Training:
    """One training: its app, its checkpoint on the server's disk, and its result."""

    def __init__(
        self, net: Net, folder: Path, recipe: Path, wanted: int, timeout: float = 20.0
    ) -> None:
        self.net, self.recipe, self.wanted = net, recipe, wanted
        self.out, self.checkpoint = folder / "out", folder / "checkpoint"
        folder.mkdir()
        keys = {"training": "", "checkpoint": ""}
        self.app = write_app(folder / "app", server="short.server:app", config=keys)
        text = (self.app / "pyproject.toml").read_text()
        text = text.replace('out = ""', 'out = ""\ntimeout = 0.0', 1)
        (self.app / "pyproject.toml").write_text(text)
        (self.app / "short").mkdir()
        (self.app / "short/__init__.py").touch()
        (self.app / "short/server.py").write_text(SERVER.format(wanted=wanted))
        self.config = {
            "recipe": str(recipe),
            "out": str(self.out),
            "checkpoint": str(self.checkpoint),
            "training": NAME,
            "timeout": timeout,
        }
        self.runs = 0

    # --------------------------------------------------------------------------------- life

    def start(self) -> None:
        """``flwr run``, again and again with the same words; it does not wait for the end."""
        path = self.net.work / f"run-config-{uuid.uuid4().hex[:8]}.toml"
        path.write_text(tomli_w.dumps(self.config))
        self.net.flwr("run", str(self.app), CONNECTION, "--run-config", str(path))
        self.runs += 1

    def kill_serverapp(self) -> int:
        """SIGKILL to the ServerApp's processes, and to nothing else; how many there were."""
        killed = 0
        for pid in _marked(f"{self.net.id}/superlink"):
            with contextlib.suppress(OSError):
                if b"flwr-serverapp" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
        return killed

    def restart_superlink(self) -> None:
        """SIGKILL to the SuperLink with all its children; then a new one, on the same port."""
        self.net.kill("superlink")
        self.net.start_superlink(self.net.port)

    def restart_node(self, name: str) -> None:
        """SIGKILL to a SuperNode with all its children; then a new one.

        The SuperLink refuses a node that it takes to be online: for a minute after its last sign.
        """
        self.net.kill(name)
        miss_heartbeats(self.net, name)
        self.net.start_node(name)

    # --------------------------------------------------------------------------------- sight

    def asked(self) -> At:
        """The attempt that clients were last asked for; (-1, -1) before the first."""
        path = self.checkpoint / "asked.json"
        if not path.exists():
            return -1, -1
        found = json.loads(path.read_text())
        return found["round"], found["attempt"]

    def wait_asked(self, after: At, patience: float = 120.0) -> bool:
        """Until an attempt after this one is asked for; false if the training has ended."""
        end = time.monotonic() + patience
        while self.asked() <= after:
            if self.ended:
                return False
            if time.monotonic() > end:
                raise AssertionError(f"nothing after {after}:\n{self.net.tail('superlink', 80)}")
            time.sleep(0.02)
        return True

    @property
    def ended(self) -> bool:
        return any(
            (self.out / name).exists()
            for name in (result_files.GUARANTEE_FILE, result_files.ERROR_FILE)
        )

    def wait(self, patience: float = 180.0) -> result_files.ResultFiles:
        end = time.monotonic() + patience
        while not self.ended:
            if time.monotonic() > end:
                raise AssertionError(f"no end:\n{self.net.tail('superlink', 80)}")
            time.sleep(0.1)
        left = result_files.read_result(self.out)
        assert left is not None
        return left

    # ------------------------------------------------------------------------------ the checks

    def look(self) -> Found:
        """Run the committed rounds once more in this process, and read all ledgers."""
        run = prepare(recipes.load_recipe(self.recipe))
        initial = run.federation.model.initial(public_seed(run.recipe.seed, "model"))
        saved = Checkpoint(self.checkpoint).load(run.plan, start(run.plan, initial, NAME))
        left = result_files.read_result(self.out)
        assert saved is not None
        assert left is not None
        again = replay(run.plan, run.federation.problems, initial, saved.committed)
        params = run.federation.model.layout.flatten(left.params)
        same = torch.equal(params, again.params) and torch.equal(params, saved.state.params)
        wrong: list[str] = []
        rounds = [each.round for each in saved.committed]
        if rounds != list(range(len(rounds))):
            wrong.append(f"rounds {rounds} were committed")
        spent = run.plan.guarantee(saved.state.release_counts, saved.state.round)
        stated = certified(run.plan.guarantee(), spent)
        if left.guarantee != replace(stated, enforced=SHIPPED):
            wrong.append("the guarantee is not that of the release counts")
        asked = {(each.round, n) for each in saved.committed for n in range(each.attempt + 1)}
        booked = {}
        for client, name in enumerate(self.net.nodes):
            booked[name] = self._ledger(name, wrong)
            counted = {(p.round, p.attempt) for p in saved.committed if client in p.clients}
            twice = [at for at, times in booked[name].items() if times > 1]
            wrong += [f"{name} entered {at} twice" for at in twice]
            entries = set(booked[name])
            wrong += [f"{name} did not enter {at}, and is in it" for at in counted - entries]
            wrong += [f"{name} entered {at}, not asked for" for at in entries - asked]
        return Found(saved.committed, booked, left.history, same, wrong)

    def _ledger(self, name: str, wrong: list[str]) -> Counter[At]:
        assert self.net.folder is not None
        ledger = Ledger(self.net.folder / "nodes" / name / "state/ledger.sqlite")
        wrong += [f"{name}: {sentence}" for sentence in ledger.verify()]
        rows = [row.body for row in ledger.rows() if row.body["kind"] == "entry"]
        ledger.close()
        wrong += [f"{name} entered for {r['training']}" for r in rows if r["training"] != NAME]
        return Counter((row["round"], row["attempt"]) for row in rows)
