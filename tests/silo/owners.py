# SPDX-License-Identifier: Apache-2.0
"""Silos whose gate and SuperNode have users of their own, and an installation that both can run.

Root's home is closed to other users, and so is a Python in it. Debian's own runs the packages of
the environment that the tests run in, through hard links outside of it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from tests.silo.gates import Silo
from tests.training.flower import preloaded
from tests.training.flower.network import Net

PYTHON = Path("/usr/bin/python3")
SOURCE = Path(__file__).parents[2] / "src" / "dpfed"
LAUNCHER = "#!{python}\nimport sys\nfrom {module} import {name}\nsys.exit({name}())\n"


def as_user(name: str, group: str | None = None) -> list[str]:
    """Words before a command, so that it runs as that user and with no rights of ours."""
    return [
        "setpriv",
        "--reuid",
        name,
        "--regid",
        group or name,
        "--clear-groups",
        "--no-new-privs",
        "--bounding-set=-all",
        "--inh-caps=-all",
        "--",
    ]


def possible() -> bool:
    """Whether this machine lets us make users, and has Debian's Python of our version."""
    tools = ("useradd", "setpriv", "unshare", "pkill")
    if os.geteuid() or not PYTHON.exists() or not all(shutil.which(tool) for tool in tools):
        return False
    rehearse = ["unshare", "--net", *as_user("nobody", "nogroup"), str(PYTHON), "--version"]
    tried = subprocess.run(rehearse, capture_output=True, text=True, check=False)
    ours = f"Python {sys.version_info.major}.{sys.version_info.minor}."
    return tried.returncode == 0 and tried.stdout.startswith(ours)


@contextmanager
def installation() -> Iterator[Path]:
    """An installation of dpfed and Flower that any user can run."""
    folder = Path("/var/tmp") / f"dpfed-test-{uuid.uuid4().hex[:8]}"
    (folder / "bin").mkdir(parents=True, mode=0o755)
    folder.chmod(0o755)
    try:
        packages = sysconfig.get_paths()["purelib"]
        linked = subprocess.run(["cp", "-al", packages, folder / "site"], check=False)
        if linked.returncode:  # on another disk
            subprocess.run(["cp", "-a", packages, folder / "site"], check=True)
        shutil.copytree(SOURCE, folder / "site" / "dpfed", dirs_exist_ok=True)
        for script in [*distribution("flwr").entry_points, *distribution("dpfed").entry_points]:
            if script.group == "console_scripts":
                path = folder / "bin" / script.name
                module, _, name = script.value.partition(":")
                path.write_text(LAUNCHER.format(python=PYTHON, module=module, name=name))
                path.chmod(0o755)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def warm_nodes(installed: Path, user: str) -> Iterator[Path]:
    """Launchers of Flower's commands for that user: forks of a process of theirs, in no time.

    The gates' own commands are not among those that use them: each is a process by itself.
    """
    script = shutil.copy(preloaded.__file__, installed / "preloaded.py")
    start = [*as_user(user), str(PYTHON), str(script)]
    variables = {"PYTHONPATH": str(installed / "site"), "HOME": "/nonexistent"}
    with preloaded.preloaded(installed / "warm", start, **variables):
        yield installed / "warm" / "launchers"


@contextmanager
def users(*roles: str) -> Iterator[list[str]]:
    """New users of this machine, for as long as it takes."""
    names = [f"dpt-{role}-{uuid.uuid4().hex[:6]}" for role in roles]
    try:
        for name in names:
            subprocess.run(["useradd", "--system", "--user-group", "-M", name], check=True)
        yield names
    finally:
        for name in names:
            subprocess.run(["pkill", "-KILL", "-u", name], check=False)
            subprocess.run(["userdel", name], check=False, capture_output=True)


class OwnedSilo(Silo):
    """A silo whose gate runs as a user of its own, without any network."""

    def own(self, installed: Path, gate: str, relay: str, **data: Any) -> None:
        self.installed, self.user = installed, gate
        self.write({"relay_users": [relay]}, **data)
        (self.folder / "state").mkdir(exist_ok=True)
        subprocess.run(["chown", "-R", f"{gate}:{gate}", self.folder], check=True)
        subprocess.run(["chgrp", relay, self.folder / "run", self.folder], check=True)
        for path, mode in (
            (self.folder, 0o710),
            (self.folder / "run", 0o2750),
            (self.folder / "state", 0o700),
            (self.policy, 0o600),
            (self.folder / "data.npz", 0o600),
        ):
            path.chmod(mode)

    def _run(self, *arguments: str) -> list[str]:
        words = [self.installed / "bin" / "dpfed", "silo", *arguments, "--policy", self.policy]
        return [*as_user(self.user), *map(str, words)]

    @property
    def _env(self) -> dict[str, str]:
        return {
            "PYTHONPATH": str(self.installed / "site"),
            "HOME": "/nonexistent",
            "PATH": "/usr/bin:/bin",
            "OMP_NUM_THREADS": "1",
        }

    def command(self, *arguments: str) -> str:
        done = subprocess.run(
            self._run(*arguments), env=self._env, capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr

    def start(self) -> None:
        with (self.folder / "gate.log").open("a") as log:
            self.process = subprocess.Popen(
                ["unshare", "--net", *self._run("serve")],
                env=self._env,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        assert "answers on" in self.process.stdout.readline(), self._log()

    def _log(self) -> str:
        return (self.folder / "gate.log").read_text()


class OwnedNet(Net):
    """A Net whose SuperNodes run as a user of their own, who sees no data."""

    def __init__(
        self,
        *args: Any,
        installed: Path,
        launchers: Path,
        user: str,
        sockets: list[Path],
        **more: Any,
    ):
        super().__init__(*args, **more)
        self.installed, self.launchers = installed, launchers
        self.user, self.sockets = user, sockets

    def _environment(self, name: str) -> dict[str, str]:
        found = super()._environment(name)
        if name not in self.nodes:
            return found
        return {
            **found,
            "PATH": f"{self.launchers}:/usr/bin:/bin",
            "HOME": found["FLWR_HOME"],
            "PYTHONPATH": str(self.installed / "site"),
            "DPFED_GATE": str(self.sockets[self.nodes.index(name)]),
        }

    def _spawn(self, name: str, command: list[str]) -> None:
        if name in self.nodes:
            command = [*as_user(self.user), *command]
            subprocess.run(["chown", "-R", self.user, self._home(name)], check=True)
            if self.folder is not None:
                keys = self.folder / "nodes" / name
                subprocess.run(["chown", "-R", self.user, keys], check=True)
        super()._spawn(name, command)
