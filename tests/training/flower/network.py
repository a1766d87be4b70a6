# SPDX-License-Identifier: Apache-2.0
"""A real Flower federation on loopback, for tests: one SuperLink, n SuperNodes, own processes.

    deploy.init(folder, server_names=["127.0.0.1"], nodes=["north", "south"])
    with Net(tmp_path, ["north", "south"], folder=folder) as net:
        net.start_node("stranger", key=some_key, wait=False)
        run = net.run(app_dir, {"out": str(tmp_path / "out.json")})
        net.kill("north")

With a folder it runs that folder's own scripts: TLS and node authentication. Without one, it is
insecure. Every process has a mark in its environment, by which it is found and ended, also if
it left its process group (the SuperLink's SuperExec does) or has no parent any more. Commands are
forks of a process that has imported them (preloaded.py): else most of a test is spent on importing.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import ssl
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import tomli_w

from dpfed.core.processes import free_port
from tests.training.flower.preloaded import commands

MARK = "DPFED_TEST_NET"
CONNECTION = "net"
TRIES = 3  # another process may take a free port before ours binds it
TAKEN = ("address already in use", "Errno 98")


@dataclass(frozen=True)
class Run:
    """How a run ended: ``flwr run`` itself exits 0 also when the ServerApp raised."""

    id: str
    status: str
    details: str
    log: str

    @property
    def completed(self) -> bool:
        return self.status == "finished:completed"


class NetError(AssertionError):
    """A process ended early or took too long; the message ends with its log."""


class Net:
    """A context manager; ``patience`` bounds each wait, in seconds."""

    def __init__(
        self,
        work: Path,
        nodes: Sequence[str],
        *,
        folder: Path | None = None,
        patience: float = 90.0,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.work, self.nodes, self.folder, self.patience = work, tuple(nodes), folder, patience
        self.id = uuid.uuid4().hex
        self.port = 0
        self.env = commands() | dict(env or {})
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, list[str]] = {}
        self.phases: dict[str, float] = {}

    # ------------------------------------------------------------------------------ life cycle

    def __enter__(self) -> Self:
        try:
            with self._phase("superlink"):
                self.start_superlink()
            with self._phase("register"):
                self.register()
            with self._phase("nodes"):
                for name in self.nodes:
                    self.start_node(name, wait=False)
                for name in self.nodes:
                    self.wait_online(name)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with self._phase("close"):
            self.close()
        (self.work / "phases.json").write_text(json.dumps(self.phases))

    def close(self) -> None:
        """Ask every process of this net to end, then make it."""
        _end(lambda: _marked(self.id), list(self.processes.values()), grace=5.0)

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        yield
        self.phases[name] = round(time.monotonic() - start, 1)

    # -------------------------------------------------------------------------------- superlink

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def ca(self) -> Path | None:
        return self.folder / "ca/ca.crt" if self.folder else None

    def start_superlink(self, port: int | None = None) -> None:
        """Start it on a free port; give the old port to start it again after a ``kill``."""
        for _ in range(TRIES):
            self.port = port or free_port()
            self._spawn("superlink", self._superlink_command())
            if self._ready_or_port_taken("superlink", self._healthy):
                break
        else:
            raise NetError(f"no free port for the SuperLink:\n{self.tail('superlink')}")
        self._write_connection()

    def _superlink_command(self) -> list[str]:
        place = ["--host", "127.0.0.1", "--port", str(self.port)]
        if self.folder:
            state = ["--database", str(self.work / "superlink.db")]
            return [str(self.folder / "server/start-superlink.sh"), *place, *state]
        return [
            "flower-superlink",
            "--insecure",
            *place,
            "--disable-runtime-dependency-installation",
        ]

    def _healthy(self) -> bool:
        context = ssl.create_default_context(cafile=str(self.ca)) if self.ca else None
        handlers: list[Any] = [urllib.request.ProxyHandler({})]
        if context:
            handlers.append(urllib.request.HTTPSHandler(context=context))
        url = f"{'https' if context else 'http'}://{self.address}/health"
        try:
            with urllib.request.build_opener(*handlers).open(url, timeout=5) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    def _write_connection(self) -> None:
        trust = {"root-certificates": str(self.ca)} if self.ca else {"insecure": True}
        config = {"superlink": {CONNECTION: {"address": self.address, **trust}}}
        home = self._home("cli")
        (home / "config.toml").write_text(tomli_w.dumps(config))

    def register(self) -> None:
        """Run the folder's register-nodes.sh; an insecure SuperLink takes every node."""
        if self.folder is None:
            return
        done = subprocess.run(
            [str(self.folder / "server/register-nodes.sh")],
            env=self._environment("cli") | {"SUPERLINK": self.address},
            capture_output=True,
            text=True,
            timeout=self.patience,
            check=False,
        )
        if done.returncode:
            raise NetError(f"register-nodes.sh failed:\n{done.stdout}{done.stderr}")

    # ------------------------------------------------------------------------------------ nodes

    def start_node(
        self,
        name: str,
        *,
        key: Path | None = None,
        ca: Path | None = None,
        partition: int | None = None,
        wait: bool = True,
        more: Sequence[str] = (),
    ) -> None:
        """Start a SuperNode, by default with its own key and the CA of the folder.

        A name that the folder does not know needs a ``key``. With ``wait=False`` follow up by
        ``wait_online`` or ``wait_exit``.
        """
        place = self.nodes.index(name) if name in self.nodes else len(self.nodes)
        place = place if partition is None else partition
        config = f"partition-id={place} num-partitions={len(self.nodes)}"
        command = self._node_command(name, key, ca)
        place_of = ["--superlink", self.address, "--node-config", config]
        self._commands[name] = [*command, *place_of, *more]
        self._spawn_node(name)
        if wait:
            self.wait_online(name)

    def _spawn_node(self, name: str) -> None:
        self._spawn(name, [*self._commands[name], "--port", str(free_port())])

    def _node_command(self, name: str, key: Path | None, ca: Path | None) -> list[str]:
        if self.folder is None:
            return ["flower-supernode", "--insecure"]
        home = self.folder / "nodes" / name
        script = home / "start-supernode.sh"
        overrides = ["--auth-supernode-private-key", str(key)] if key else []
        overrides += ["--root-certificates", str(ca)] if ca else []
        if script.is_file():
            return [str(script), *overrides]
        default = [] if ca else ["--root-certificates", str(self.ca)]
        return ["flower-supernode", *overrides, *default]

    def wait_online(self, name: str) -> None:
        """Until the SuperLink gave the node its id; starts it anew if its port was taken."""
        for _ in range(TRIES):
            if self._ready_or_port_taken(name, lambda: "SuperNode ID:" in self.log(name)):
                return
            self._spawn_node(name)
        raise NetError(f"no free port for {name}:\n{self.tail(name)}")

    def wait_exit(self, name: str, timeout: float | None = None) -> int:
        """Until a process ended by itself; its exit code."""
        try:
            return self.processes[name].wait(timeout or self.patience)
        except subprocess.TimeoutExpired:
            raise NetError(f"{name} is still running:\n{self.tail(name)}") from None

    def kill(self, name: str) -> None:
        """End a node or the SuperLink, with all its children, at once, as a power cut would."""
        _end(lambda: _marked(f"{self.id}/{name}"), [self.processes[name]], grace=0.0)

    def online(self) -> set[str]:
        """The ids of the nodes that the SuperLink lists as online."""
        found = self.flwr_json("supernode", "list", CONNECTION)["nodes"]
        return {node["node-id"] for node in found if node["status"] == "online"}

    # ------------------------------------------------------------------------------------- runs

    def run(
        self, app: Path, config: Mapping[str, Any] | None = None, *, timeout: float = 180.0
    ) -> Run:
        """Run an app to its end: ``flwr run APP net --stream``, then ask how it ended."""
        overrides = self.work / f"run-config-{uuid.uuid4().hex[:8]}.toml"
        overrides.write_text(tomli_w.dumps(dict(config or {})))
        extra = ["--run-config", str(overrides)] if config else []
        with self._phase("run"):
            log = self.flwr("run", str(app), CONNECTION, "--stream", *extra, timeout=timeout)
        return self._how_it_ended(log)

    def _how_it_ended(self, log: str) -> Run:
        end = time.monotonic() + self.patience
        while True:
            latest = self.flwr_json("list", CONNECTION)["runs"][0]
            if latest["status"].startswith("finished") or time.monotonic() > end:
                return Run(latest["run-id"], latest["status"], latest["status-details"], log)

    def flwr(self, *words: str, timeout: float | None = None) -> str:
        """The output of a ``flwr`` command, or a NetError with it."""
        try:
            done = subprocess.run(
                ["flwr", *words],
                env=self._environment("cli"),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=timeout or self.patience,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            said = (late.stdout or b"").decode(errors="replace")
            raise NetError(f"flwr {words} took over {late.timeout} s:\n{said}") from None
        if done.returncode:
            raise NetError(f"flwr {words} exited {done.returncode}:\n{done.stdout}")
        return done.stdout

    def flwr_json(self, *words: str) -> dict[str, Any]:
        said = self.flwr(*words, "--format", "json")
        answer: dict[str, Any] = json.JSONDecoder().raw_decode(said[said.index("{") :])[0]
        return answer

    # -------------------------------------------------------------------------------- processes

    def log_file(self, name: str) -> Path:
        return self.work / f"{name}.log"

    def log(self, name: str) -> str:
        path = self.log_file(name)
        return path.read_text(errors="replace") if path.is_file() else ""

    def tail(self, name: str, lines: int = 40) -> str:
        return "\n".join(self.log(name).splitlines()[-lines:])

    def _home(self, name: str) -> Path:
        home = self.work / "flwr" / name
        home.mkdir(parents=True, exist_ok=True)
        return home

    def _environment(self, name: str) -> dict[str, str]:
        """Own FLWR_HOME and ports; flwr finds its helpers by PATH."""
        return os.environ | {
            "FLWR_HOME": str(self._home(name)),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
            "FLWR_LOCAL_CONTROL_API_PORT": str(free_port()),
            "NO_PROXY": "127.0.0.1,localhost",
            "PYTHONUNBUFFERED": "1",
            MARK: f"{self.id}/{name}",
            **self.env,
        }

    def _spawn(self, name: str, command: list[str]) -> None:
        """The log of an earlier process of that name is kept as NAME.log.old."""
        old = self.processes.get(name)
        if old is not None and old.poll() is None:
            raise NetError(f"{name} is running already; kill it first")
        path = self.log_file(name)
        if path.is_file():
            path.replace(path.with_suffix(".log.old"))
        with path.open("wb") as log:
            self.processes[name] = subprocess.Popen(
                command,
                env=self._environment(name),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _ready_or_port_taken(self, name: str, ready: Callable[[], bool]) -> bool:
        """True once ready, False if the port was taken; any other end is an error."""
        end = time.monotonic() + self.patience
        while time.monotonic() < end:
            if self.processes[name].poll() is not None:
                if any(word in self.log(name) for word in TAKEN):
                    return False
                raise NetError(f"{name} ended early:\n{self.tail(name)}")
            if ready():
                return True
            time.sleep(0.1)
        raise NetError(f"{name} was not ready within {self.patience} s:\n{self.tail(name)}")


def miss_heartbeats(net: Net, name: str) -> None:
    """Spare us the minute after which the SuperLink gives up a node that is silent."""
    with sqlite3.connect(net.work / "superlink.db", timeout=30) as database:
        done = database.execute("UPDATE node SET online_until = 0 WHERE name = ?", (name,))
        assert done.rowcount == 1
    database.close()


def _marked(mark: str) -> set[int]:
    """The pids of living processes whose environment has the mark, or starts with it."""
    wanted = f"{MARK}={mark}".encode()
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "environ").read_bytes().split(b"\0")
            if any(word == wanted or word.startswith(wanted + b"/") for word in words):
                found.add(int(entry.name))
    return found - {os.getpid()}


def _end(pids: Callable[[], set[int]], ours: list[subprocess.Popen[bytes]], grace: float) -> None:
    """TERM, wait for at most ``grace``, then KILL until none is left; ``ours`` are reaped."""
    if grace:
        _signal([process.pid for process in ours if process.poll() is None], signal.SIGTERM)
        _wait(lambda: not _alive(ours) and not pids(), grace)
    _wait(lambda: not _signal([*_alive(ours), *pids()], signal.SIGKILL), 10.0)
    for process in ours:
        process.wait(10)


def _alive(processes: list[subprocess.Popen[bytes]]) -> list[int]:
    return [process.pid for process in processes if process.poll() is None]


def _signal(pids: list[int], which: signal.Signals) -> list[int]:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, which)
    return pids


def _wait(condition: Callable[[], bool], timeout: float) -> None:
    end = time.monotonic() + timeout
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
