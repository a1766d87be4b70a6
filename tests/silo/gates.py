# SPDX-License-Identifier: Apache-2.0
"""Real gates, each a process of its own, and a Grid whose nodes are their relays."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
import torch
from flwr.app import Context, Message

from dpfed.recipes.schema import to_toml
from dpfed.recipes.terms import Terms, read_terms, write_terms
from dpfed.silo.approvals import Approvals
from dpfed.silo.policy import load_policy
from dpfed.silo.relay import silo_app
from tests.training.flower.local_grid import LocalGrid
from tests.training.flower.preloaded import commands

ME = pwd.getpwuid(os.geteuid()).pw_name
FEATURES, CLASSES, RECORDS = 6, 3, 90
RECIPE: dict[str, Any] = {
    "name": "gated",
    "method": "dp-fedgd",
    "rounds": 3,
    "seed": 7,
    "privacy": {"epsilon": 2.0, "noise": "keyed"},
    "evaluation": {"kind": "off"},
}


def records(silo: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(silo)
    x = torch.randn(RECORDS, FEATURES, generator=generator)
    return x, (x[:, :CLASSES].argmax(1) + silo) % CLASSES


def write_data(path: Path, silo: int) -> None:
    import numpy as np

    x, y = records(silo)
    np.savez(path, x=x.numpy(), y=y.numpy())


@dataclass
class Silo:
    """One owner's folder, and the process that holds its door."""

    folder: Path
    number: int
    process: subprocess.Popen[str] | None = None

    @property
    def socket(self) -> Path:
        return self.folder / "run" / "gate.sock"

    @property
    def policy(self) -> Path:
        return self.folder / "silo.toml"

    def write(self, gate: dict[str, Any] | None = None, **data: Any) -> None:
        (self.folder / "run").mkdir(parents=True, exist_ok=True, mode=0o700)
        if not (self.folder / "data.npz").exists():
            write_data(self.folder / "data.npz", self.number)
        table = {
            "client": self.number,
            "load": {"source": str(self.folder / "data.npz")},
            "shape": [FEATURES],
            "classes": CLASSES,
            "epsilon": 4.0,
            "methods": ["dp-fedgd"],
            "keyed_noise": True,
            **data,
        }
        main = {
            "socket": str(self.socket),
            "state": str(self.folder / "state"),
            "relay_users": [ME],
            **(gate or {}),
        }
        self.policy.write_text(tomli_w.dumps({"gate": main, "data": {"sepsis": table}}))

    def command(self, *arguments: str) -> str:
        """What a command of the owner's prints."""
        done = subprocess.run(
            ["dpfed", "silo", *arguments, "--policy", self.policy],
            env=os.environ | commands(),
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout + done.stderr

    def approve(self, terms: Path) -> None:
        """As the owner's command does, without a process for it."""
        self.accept()
        Approvals(self.folder / "state").approve(read(terms), terms.read_text(), days=1, by=ME)

    def accept(self) -> None:
        """Accept how each file is read, whatever is in it."""
        (self.folder / "state").mkdir(exist_ok=True, mode=0o700)
        for name, data in load_policy(self.policy).data.items():
            if data.reading:
                Approvals(self.folder / "state").accept(name, data.reading, by=ME)

    def start(self) -> None:
        self.spawn()
        self.wait()

    def spawn(self) -> None:
        with (self.folder / "gate.log").open("a") as log:
            self.process = subprocess.Popen(
                ["dpfed", "silo", "serve", "--policy", self.policy],
                env=os.environ | commands(),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def wait(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        assert "answers on" in said, (self.folder / "gate.log").read_text()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


def terms_for(
    folder: Path,
    silos: int,
    roster: Path | None = None,
    sizes: list[float] | None = None,
    **changes: Any,
) -> Path:
    """The terms of RECIPE with changes, as a file."""
    recipe, path = folder / "recipe.toml", folder / "terms.toml"
    recipe.write_text(to_toml({**RECIPE, **changes}))
    path.write_text(
        write_terms(
            recipe,
            dataset="sepsis",
            shape=[FEATURES],
            sizes=sizes or [float(RECORDS)] * silos,
            classes=CLASSES,
            roster=roster,
        )
    )
    return path


def read(path: Path) -> Terms:
    return read_terms(path.read_bytes())


@contextmanager
def gates(folder: Path, silos: int, **data: Any) -> Iterator[list[Silo]]:
    """So many silos with a policy each; processes are started by the test."""
    made = [Silo(folder / f"silo-{i}", i) for i in range(silos)]
    for each in made:
        each.write(**data)
    try:
        yield made
    finally:
        for each in made:
            each.kill()


def grid_of(silos: list[Silo]) -> LocalGrid:
    """Nodes whose whole app is the relay to their own gate."""
    apps = {silo.number: silo_app(str(silo.socket)) for silo in silos}

    def relay(message: Message, context: Context) -> Message:
        return apps[int(context.node_config["partition-id"])](message, context)

    return LocalGrid(relay, {100 + silo.number: silo.number for silo in silos})  # type: ignore[arg-type]
