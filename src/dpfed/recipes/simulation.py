# SPDX-License-Identifier: Apache-2.0
"""A recipe through Flower's Simulation Runtime: a SuperLink of its own, then ``flwr run``.

    run -+- flower-superlink       state in memory, one loopback port
         +- flower-superexec       starts flwr-simulation, which runs the ServerApp and Ray
         |   +- flwr-simulation - Ray: one process per CPU, each runs clients one after the other
         +- flwr run --stream      hands the app over, ends when the run has ended

Each is started here, in a process group of its own, and ended here in the reverse order, so nothing
is left behind. (Flower would start the SuperLink and the SuperExec by itself, but as daemons that
outlive the command; and a SuperLink that is asked to stop waits for whoever still reads its log.)

| edge case                                | what happens                                          |
|------------------------------------------|-------------------------------------------------------|
| the ServerApp fails                      | its error is raised here, with the path of the log    |
| the run ends without a result            | DpfedError with the path of the log (``flwr run``     |
|                                          | returns 0 then, too)                                  |
| it takes longer than ``timeout``         | all processes are ended, DpfedError                   |
| a SuperLink or a Ray cluster runs here   | not touched: own port, own Ray folder, no RAY_ADDRESS |
| others on the machine or the network     | Ray asks for this run's token; the SuperLink listens  |
|                                          | on loopback only, but asks local users for nothing    |
| no network                               | none is used: no telemetry, update check or install   |
| Ray or the ``flwr`` command is missing   | MissingExtra with the way to install it               |
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfed.core.environment import DATASET, IDENTITY, LEDGER, STATE
from dpfed.core.errors import DpfedError
from dpfed.core.extras import require_extra
from dpfed.core.processes import (
    comes_up,
    find_command,
    flower_environment,
    free_port,
    started,
    tidy,
)
from dpfed.recipes.result import clear_result, is_finished, read_history, read_result
from dpfed.sums.secagg.identity import SIMULATED
from dpfed.training.history import Row

if TYPE_CHECKING:
    import torch

    from dpfed.accounting.guarantee import Guarantee

Watch = Callable[[Row], None]
"""Called with each round's row."""
Launch = Callable[..., "subprocess.Popen[bytes]"]
"""Starts a command of Flower's by its name and arguments; it is ended with the run."""

LOG_FILE = "flower.log"
OURS = {
    "serverapp": "dpfed.recipes.flower_app:server_app",
    "clientapp": "dpfed.recipes.flower_app:client_app",
}
"""The apps that train as a recipe says."""
_POLL_INTERVAL_S = 0.2  # between two looks at the history
_SUPERLINK_ATTEMPTS = 3  # one may find its port taken
_STARTUP_TIMEOUT_S = 60.0  # until a SuperLink answers
_SHUTDOWN_TIMEOUT_S = 30.0  # for Flower and Ray, after the result


@dataclass(frozen=True, eq=False)
class SimulationOutput:
    """What the run left, and where its log is."""

    params: Mapping[str, torch.Tensor]
    history: list[Row]
    guarantee: Guarantee
    stopped: str | None
    answered: Mapping[str, Any]
    log: Path


def run_simulation(
    recipe_path: Path,
    out: Path,
    *,
    clients: int,
    root: Path | None = None,
    cpus: int | None = None,
    timeout: float = 24 * 3600.0,
    watch: Watch | None = None,
) -> SimulationOutput:
    """Train as a recipe says, each client a simulated SuperNode.

    Args:
        recipe_path: the recipe, overrides and all: every process reads it.
        out: a folder for model, history, guarantee and log.
        clients: how many SuperNodes to simulate; one per client of the recipe.
        root: the folder that relative data paths of the recipe refer to.
        cpus: how many clients work at the same time, one CPU each; all CPUs by default.
        timeout: seconds until the run is ended.
        watch: called with each round's row as soon as it is known.
    """
    _check(recipe_path)
    out.mkdir(parents=True, exist_ok=True)
    clear_result(out)
    log = out.resolve() / LOG_FILE
    log.unlink(missing_ok=True)
    where = "" if root is None else str(root.resolve())
    config = {"recipe": str(recipe_path.resolve()), "root": where, "out": str(out.resolve())}
    follow = _Follow(
        out=out, log=log, watch=watch, deadline=time.monotonic() + timeout, timeout=timeout
    )
    with tidy(), _scratch() as folder:
        job = _Job(
            folder=Path(folder),
            log=log,
            config=config,
            clients=clients,
            cpus=cpus or os.cpu_count() or 1,
        )
        _with_flwr(job, follow)
    return _collect(out, log)


def run_apps(
    server: str,
    client: str,
    out: Path,
    *,
    clients: int,
    finished: Callable[[Path], bool],
    timeout: float = 3600.0,
) -> None:
    """Run a ServerApp and a ClientApp of one's own in the same way, as the benchmarks do.

    Args:
        server: MODULE:NAME of the ServerApp; its ``run_config`` has ``out``.
        client: MODULE:NAME of the ClientApp.
        out: a folder that is there, for the log and for whatever the ServerApp leaves.
        clients: how many SuperNodes to simulate.
        finished: whether the ServerApp has left all of it in ``out``.
        timeout: seconds until the run is ended.
    """
    log = out.resolve() / LOG_FILE
    follow = _Follow(
        out=out,
        log=log,
        watch=None,
        deadline=time.monotonic() + timeout,
        timeout=timeout,
        finished=finished,
    )
    with tidy(), _scratch() as folder:
        job = _Job(
            folder=Path(folder),
            log=log,
            config={"out": str(out.resolve())},
            clients=clients,
            cpus=os.cpu_count() or 1,
            parts={"serverapp": server, "clientapp": client},
        )
        _with_flwr(job, follow)
    if not finished(out):
        raise DpfedError(f"the simulation ended without a result; see its log: {log}")


def _scratch() -> tempfile.TemporaryDirectory[str]:
    """A private folder with a short name: Ray's sockets lie in it, with up to 103 bytes of path."""
    usual, short = tempfile.gettempdir(), "/tmp"  # noqa: S108 (the folder in it is made by mkdtemp)
    where = short if len(usual) > 20 and Path(short).is_dir() else usual
    return tempfile.TemporaryDirectory(prefix="dpfed-", dir=where, ignore_cleanup_errors=True)


def _check(recipe_path: Path) -> None:
    """Refuse a recipe that Flower cannot run, and a machine without Flower, before starting."""
    from dpfed.recipes.flower_app import recipe_for_flower

    with require_extra("simulation", "engine 'flower-simulation'", "Flower's simulation"):
        if find_spec("ray") is None:
            raise ModuleNotFoundError("ray is not installed")
        if not find_command("flwr"):
            raise ModuleNotFoundError("the command 'flwr' is not installed")
    recipe_for_flower(recipe_path)


def _collect(out: Path, log: Path) -> SimulationOutput:
    try:
        left = read_result(out)
    except DpfedError as error:
        raise type(error)(f"{error} (log: {log})") from error
    if left is None:
        raise DpfedError(f"the simulation ended without a result; see its log: {log}")
    return SimulationOutput(*left, log=log)


# ------------------------------------------------------------------------------------- flwr run


@dataclass(frozen=True, eq=False)
class _Job:
    """One run: where its files are, and what it may use."""

    folder: Path
    """A private one, for the app and for all that Flower and Ray keep."""
    log: Path
    config: Mapping[str, str]
    clients: int
    cpus: int
    parts: Mapping[str, str] = field(default_factory=lambda: OURS)


def _with_flwr(job: _Job, follow: _Follow) -> None:
    """A SuperLink, a SuperExec and ``flwr run``, until the run has ended."""
    env = _environment(job.folder)
    with ExitStack() as stack:

        def launch(name: str, *arguments: str) -> subprocess.Popen[bytes]:
            command = [find_command(name) or name, *arguments]
            return stack.enter_context(started(command, env, job.log))

        superlink, address = _superlink(launch, job.log)
        _write_app(job, address)
        # only now: while it cannot reach the SuperLink it backs off for seconds
        superexec = launch(
            "flower-superexec",
            "--insecure",
            "--runtime-api-address",
            address,
            "--parent-pid",
            str(os.getpid()),
        )
        federation = f"num-supernodes={job.clients} init-args-num-cpus={job.cpus}"
        flwr = launch(
            "flwr",
            "run",
            str(job.folder / "app"),
            "--stream",
            "--federation-config",
            f"{federation} client-resources-num-cpus=1",
        )
        follow(flwr, [superlink, superexec])


def _superlink(launch: Launch, log: Path) -> tuple[subprocess.Popen[bytes], str]:
    """A SuperLink that answers, and its address; a port that was free may be taken by now."""
    for _ in range(_SUPERLINK_ATTEMPTS):
        port = free_port()
        process = launch(
            "flower-superlink",
            "--insecure",
            "--simulation",
            "--isolation",
            "process",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        )
        if comes_up(f"127.0.0.1:{port}", process, _STARTUP_TIMEOUT_S):
            return process, f"127.0.0.1:{port}"
    raise DpfedError(f"no SuperLink started in {_SUPERLINK_ATTEMPTS} tries; see the log: {log}")


def _write_app(job: _Job, address: str) -> None:
    """The Flower app, which is all configuration, and the connection to the SuperLink."""
    import tomli_w

    project = {
        "name": "dpfed-simulation",
        "version": "1.0.0",
        "description": "A dpfed recipe",
        "license": "Apache-2.0",
    }
    app = {"publisher": "dpfed", "components": dict(job.parts), "config": dict(job.config)}
    connection = {"default": "own", "own": {"address": address, "insecure": True}}
    files: dict[Path, dict[str, Any]] = {
        job.folder / "app" / "pyproject.toml": {"project": project, "tool": {"flwr": {"app": app}}},
        job.folder / "flwr" / "config.toml": {"superlink": connection},
    }
    for path, tree in files.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(tomli_w.dumps(tree), encoding="utf-8")


def _environment(folder: Path) -> dict[str, str]:
    """This process's environment, but with Flower, Ray and dpfed apart from all other runs."""
    others = {"RAY_ADDRESS", LEDGER, DATASET}  # a simulated node has no owner
    return {
        **flower_environment(folder / "flwr", without=others),
        "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
        STATE: str(folder / "state"),
        IDENTITY: SIMULATED,  # one machine is every client
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_TMPDIR": str(folder),
        # Ray listens on all interfaces, and without a token it runs whatever it is sent
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
    }


@dataclass(frozen=True, eq=False)
class _Follow:
    """Waits for a process, shows new rows of the history, and gives up at the deadline."""

    out: Path
    log: Path
    watch: Watch | None
    deadline: float
    timeout: float
    finished: Callable[[Path], bool] = is_finished
    """Whether the ServerApp has left its result or its error: only the shutdown is left."""

    def __call__(
        self, process: subprocess.Popen[bytes], needed: Sequence[subprocess.Popen[bytes]] = ()
    ) -> None:
        shown, deadline = 0, self.deadline
        while process.poll() is None and time.monotonic() < deadline:
            shown = self._show(shown)
            if any(each.poll() is not None for each in needed):
                raise DpfedError(f"a Flower process ended before the run; see the log: {self.log}")
            if self.finished(self.out):
                deadline = min(deadline, time.monotonic() + _SHUTDOWN_TIMEOUT_S)
            time.sleep(_POLL_INTERVAL_S)
        self._show(shown)
        if process.poll() is None and not self.finished(self.out):
            raise DpfedError(
                f"the simulation took longer than timeout = {self.timeout:g} s and was ended; "
                f"raise it, or see the log: {self.log}"
            )

    def _show(self, shown: int) -> int:
        if self.watch is None:
            return 0
        rows = read_history(self.out)
        for row in rows[shown:]:
            self.watch(row)
        return max(shown, len(rows))
