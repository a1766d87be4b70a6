# SPDX-License-Identifier: Apache-2.0
"""A provisioned NVFlare network of real processes: server, sites, and a lead, with TLS and keys.

Every process is started here, and ended by its number: also what NVFlare starts for a job.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psutil
import yaml

from tests.nvflare.jobs import CLASSES

LEAD = "lead@lab.org"
PERIOD_S, JOB_TIMEOUT_S = 0.5, 240.0
ADMIN = """
import json, sys
from nvflare.fuel.flare_api.flare_api import new_secure_session
kit, name, act, *words = sys.argv[1:]
session = new_secure_session(name, kit, timeout=60)
try:
    print("SAID " + json.dumps(getattr(session, act)(*words)))
finally:
    session.close()
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def provision(folder: Path, sites: Sequence[str]) -> Path:
    """Startup kits of a server, sites and a lead."""
    people = [{"name": LEAD, "type": "admin", "org": "lab", "role": "lead"}]
    server = {"name": "localhost", "type": "server", "org": "lab", "fed_learn_port": free_port()}
    clients = [{"name": name, "type": "client", "org": "lab"} for name in sites]
    home = "nvflare.lighter.impl"
    project = {
        "api_version": 3,
        "name": "lab",
        "description": "a test",
        "participants": [server, *clients, *people],
        "builders": [
            {
                "path": f"{home}.workspace.WorkspaceBuilder",
                "args": {"template_file": ["master_template.yml"]},
            },
            {
                "path": f"{home}.static_file.StaticFileBuilder",
                "args": {"config_folder": "config"},
            },
            {"path": f"{home}.cert.CertBuilder"},
            {"path": f"{home}.signature.SignatureBuilder"},
        ],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "project.yml").write_text(yaml.safe_dump(project))
    command = [sys.executable, "-m", "nvflare.cli", "provision", "-p", "project.yml", "-w", "kits"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / "kits" / "lab" / "prod_00"


def set_resources(kit: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Write local/resources.json, as an admin does, from NVFlare's default."""
    resources = json.loads((kit / "local" / "resources.json.default").read_text())
    change(resources)
    (kit / "local" / "resources.json").write_text(json.dumps(resources, indent=2))


def harden(kit: Path) -> None:
    """What the page for a site's admin says: the allow-list line, no streaming, no foreign code."""

    def change(resources: dict[str, Any]) -> None:
        resources["class_allow_list"].append(CLASSES[1])
        resources["allow_log_streaming"] = False

    set_resources(kit, change)
    rights = json.loads((kit / "local" / "authorization.json.default").read_text())
    rights["permissions"]["lead"].update({"byoc": "none", "shell_commands": "none"})
    rights["permissions"].pop("project_admin")
    (kit / "local" / "authorization.json").write_text(json.dumps(rights, indent=2))


class Net:
    """The processes of a federation; use it as a context manager."""

    def __init__(self, folder: Path, gates: dict[str, Path]) -> None:
        self.folder, self.gates = folder, gates
        self.kits = provision(folder, list(gates))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        store = folder / "store"

        def change(resources: dict[str, Any]) -> None:
            resources["class_allow_list"].append(CLASSES[0])
            text = json.dumps(resources).replace("/tmp/nvflare", str(store))
            resources.clear()
            resources.update(json.loads(text))

        set_resources(self.kits / "localhost", change)

    def __enter__(self) -> Self:
        self.start("localhost")
        for name in self.gates:
            self.start(name)
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.processes):
            self.kill(name)

    def start(self, name: str) -> None:
        kit = self.kits / name
        (kit / "transfer").mkdir(exist_ok=True)
        is_server = name == "localhost"
        module = "server.server_train" if is_server else "client.client_train"
        config = "fed_server.json" if is_server else "fed_client.json"
        words = ["secure_train=true", "org=lab", "config_folder=config"]
        words += [] if is_server else [f"uid={name}"]
        command = [sys.executable, "-u", "-m", f"nvflare.private.fed.app.{module}"]
        command += ["-m", str(kit), "-s", config, "--set", *words]
        env = os.environ | ({} if is_server else {"DPFED_GATE": str(self.gates[name])})
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                self.command(name, command), env=env, cwd=kit, stdout=log, stderr=log
            )

    def command(self, name: str, words: list[str]) -> list[str]:
        """How a party's process is started; another user's, if a test says so."""
        del name
        return words

    def kill(self, name: str) -> None:
        """End a party's process and all that it has started, by their numbers, at once."""
        process = self.processes.pop(name)
        for each in self.family(process.pid):
            with suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait()

    @staticmethod
    def family(number: int) -> list[psutil.Process]:
        """A process and its children."""
        with suppress(psutil.NoSuchProcess):
            found = psutil.Process(number)
            return [found, *found.children(recursive=True)]
        return []

    def admin(self, act: str, *words: str) -> Any:
        """What the lead's command says."""
        command = [sys.executable, "-c", ADMIN, str(self.kits / LEAD), LEAD, act, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said = [line for line in done.stdout.splitlines() if line.startswith("SAID ")]
        assert said, (act, words, done.stdout[-2000:], done.stderr[-2000:])
        return json.loads(said[-1].removeprefix("SAID "))

    def submit(self, job: Path) -> str:
        return str(self.admin("submit_job", str(job)))

    def ended(self, job: str, timeout: float = JOB_TIMEOUT_S) -> str:
        """The status with which a job has ended."""
        deadline = time.monotonic() + timeout
        status = ""
        while time.monotonic() < deadline:
            status = str(self.admin("get_job_meta", job)["status"])
            if status.startswith("FINISHED"):
                return status
            time.sleep(PERIOD_S)
        raise AssertionError(f"the job is {status} after {timeout} s: {self.tail('localhost')}")

    def run_folder(self, job: str, party: str = "localhost") -> Path:
        return self.kits / party / job

    def result(self, job: str, to: Path) -> Path:
        """What a job has left on the server, as its lead downloads it."""
        (found,) = Path(self.admin("download_job_result", job, str(to))).rglob("result-0")
        return found

    def tail(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]
