# SPDX-License-Identifier: Apache-2.0
"""``dpfed deploy try``: the whole federation of a folder on this machine, before it is handed over.

The folder's own scripts are run, with TLS, node keys and identities, at free ports of loopback; all
that they write is in ``try/`` of the folder, and all processes end with the command::

    try/superlink.log, try/NAME.log    what each process said
    try/NAME/state                     a silo's ledger and state of the rehearsal

Guarantee: a rehearsal writes to no silo's own ledger, and its SuperLink listens on loopback. What
it releases is not counted anywhere else: give it made-up records.

| edge case                               | what happens                                          |
|-----------------------------------------|-------------------------------------------------------|
| the folder is not in order              | RecipeError of ``check``; nothing is started          |
| a silo's keys have been handed over     | RecipeError that names it                             |
| an earlier rehearsal left ``try/``      | it is replaced                                        |
| a process does not start                | DpfedError with the path of its log                   |
| the run fails                           | said, with the way to its log; the command ends with 1|
| no app is given                         | it says how to start one, and waits for Ctrl-C        |
"""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dpfed.cli.deploy import deploy, scripts
from dpfed.cli.doctor import simulations_only
from dpfed.core.environment import DATA, DATASET, IDENTITY, LEDGER, STATE
from dpfed.core.errors import DpfedError, RecipeError
from dpfed.core.processes import (
    ask_to_end,
    comes_up,
    end_marked,
    flower_environment,
    free_port,
    started,
    tidy,
)
from dpfed.sums.secagg import identity

PLACE = "try"
"""The part of a deployment's folder that a rehearsal writes to."""
START_TIMEOUT_S = 180.0
"""How long a SuperLink or SuperNode may take to start."""
MARK = "REHEARSAL_OF_DPFED"
"""The variable by which the processes of a rehearsal are found."""
_STOP_TIMEOUT_S = 8.0  # enough for a SuperLink to end its own workers first
_ONLINE_WORDS = "SuperNode ID:"  # in a SuperNode's log, once the SuperLink has accepted it

Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """A federation that runs on this machine."""

    folder: Path
    work: Path
    port: int
    mark: str
    """All of its processes have it in their environment."""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """Where its SuperLink is."""
        return f"127.0.0.1:{self.port}"

    @property
    def home(self) -> Path:
        """The FLWR_HOME in which ``flwr run APP dpfed`` means this federation."""
        return self.work / "flwr"

    def run(self, app: Path, run_config: str = "") -> bool:
        """``flwr run`` to its end, on this screen; whether the ServerApp completed.

        Args:
            app: the Flower app's folder.
            run_config: as ``flwr run --run-config`` takes it.
        """
        more = ["--run-config", run_config] if run_config else []
        words = ["run", str(app), deploy.CONNECTION, "--stream", *more]
        env = _environment(self, self.home)
        subprocess.run(["flwr", *words], env=env, check=False)
        asked = ["flwr", "list", deploy.CONNECTION, "--format", "json"]
        said = subprocess.run(asked, env=env, check=False, capture_output=True, text=True).stdout
        runs = json.loads(said[said.find("{") :] or "{}").get("runs", []) if "{" in said else []
        return bool(runs) and runs[0]["status"] == "finished:completed"

    def wait(self) -> None:
        """Until a process ends by itself, or the operator ends this one."""
        while all(process.poll() is None for process in self.processes.values()):
            time.sleep(0.5)
        ended = [name for name, process in self.processes.items() if process.poll() is not None]
        raise DpfedError(f"{ended[0]} ended by itself; see its log: {_log(self.work, ended[0])}")


@contextmanager
def rehearse(
    folder: Path, *, port: int | None = None, data: Path | None = None
) -> Iterator[Rehearsal]:
    """Start a SuperLink and every silo's SuperNode, and end them on the way out.

    Args:
        folder: a folder that ``init`` made, with all keys.
        port: the SuperLink's; None is a free one.
        data: a folder with one folder of files per silo, by its name, in the place of DPFED_DATA.
    """
    folder = folder.resolve()
    names = _silos(folder)
    work = folder / PLACE
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(mode=0o700)
    there = Rehearsal(folder, work, port or free_port(), secrets.token_hex(8))
    with tidy(), ExitStack() as stack:
        stack.callback(end_marked, MARK, there.mark)  # the SuperLink's SuperExec leaves its group
        _start_server(there, stack)
        for name in names:
            _start_silo(there, stack, name, data)
        try:
            for name in names:
                _await_silo(there, name)
            yield there
        finally:
            ask_to_end(there.processes[name] for name in names)


def _silos(folder: Path) -> tuple[str, ...]:
    """The names of the roster, by partition-id, if the folder is in order and all keys are here."""
    deploy.check(folder)
    if said := simulations_only():
        raise RecipeError(said)
    names = identity.load_roster(folder / "server").names
    for name in names:
        for key in ("node.key", identity.KEY):
            if not (folder / "nodes" / name / key).is_file():
                raise RecipeError(
                    f"{folder / 'nodes' / name / key} must be here, since one machine is every "
                    f"silo in a rehearsal, and is not; rehearse before the keys are handed over"
                )
    return names


def _start_server(there: Rehearsal, stack: ExitStack) -> None:
    script, log = there.folder / "server/start-superlink.sh", _log(there.work, "superlink")
    place = ["--host", "127.0.0.1", "--port", str(there.port)]
    state = ["--database", str(there.work / "superlink.db")]
    env = _environment(there, there.work / "superlink")
    process = stack.enter_context(started([str(script), *place, *state], env, log, _STOP_TIMEOUT_S))
    there.processes["superlink"] = process
    ca = there.folder / "ca/ca.crt"
    if not comes_up(there.address, process, START_TIMEOUT_S, ca):
        raise DpfedError(f"the SuperLink did not start; see its log: {log}")
    there.home.mkdir()
    text = scripts.connection(deploy.CONNECTION, there.address, ca)
    (there.home / "config.toml").write_bytes(text)
    _register(there)


def _register(there: Rehearsal) -> None:
    done = subprocess.run(
        [str(there.folder / "server/register-nodes.sh")],
        env={**_environment(there, there.home), "SUPERLINK": there.address},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise DpfedError(f"register-nodes.sh failed: {done.stderr.strip() or done.stdout.strip()}")


def _start_silo(there: Rehearsal, stack: ExitStack, name: str, data: Path | None) -> None:
    own = {STATE: str(there.work / name / "state")}
    if data is not None:
        own[DATA] = str((data / name).resolve())
    env = {**_environment(there, there.work / name / "flwr"), **own}
    command = [str(there.folder / "nodes" / name / "start-supernode.sh")]
    options = ["--superlink", there.address]
    log = _log(there.work, name)
    there.processes[name] = stack.enter_context(
        started([*command, *options], env, log, _STOP_TIMEOUT_S)
    )


def _await_silo(there: Rehearsal, name: str) -> None:
    deadline, log = time.monotonic() + START_TIMEOUT_S, _log(there.work, name)
    while _ONLINE_WORDS not in log.read_text(errors="replace"):
        if there.processes[name].poll() is not None or time.monotonic() > deadline:
            raise DpfedError(f"the SuperNode of {name} did not come online; see its log: {log}")
        time.sleep(0.1)


def _log(work: Path, name: str) -> Path:
    return work / f"{name}.log"


def _environment(there: Rehearsal, home: Path) -> Mapping[str, str]:
    """This process's variables without those of one silo, which all silos would share here."""
    return {
        **flower_environment(home, without={STATE, LEDGER, DATASET, IDENTITY}),
        MARK: there.mark,
        "PYTHONUNBUFFERED": "1",  # a silo is known to be online by what its log says
    }
