# SPDX-License-Identifier: Apache-2.0
"""Commands of Flower and dpfed that start at once: forks of one process that has imported them.

    with preloaded(folder) as environment:        # launchers stand first in its PATH
        subprocess.run(["dpfed", ...], env=os.environ | environment)

A federation is dozens of processes, and each takes seconds to import torch or Flower. Here a
command is a launcher: it hands its arguments, environment, folder, umask and files to a process
that has imported all, and a fork of that one runs the command's own entry point. The launcher has
the command's place among its caller's processes: it passes signals on, ends as the command ends,
and if it is killed the command is, too.

| edge case                             | what happens                                            |
|---------------------------------------|---------------------------------------------------------|
| a launcher is killed                  | the command's process group is, in a few milliseconds   |
| the command dies by a signal          | so does its launcher                                    |
| a module that reads its variables when| it has those of the preloading process: FLWR_* of tests |
| it is imported                        | are the same for all                                    |
| a command that becomes another Python | goes on in its own fork                                 |
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import json
import os
import runpy
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NoReturn

COMMANDS = (
    "dpfed",
    "flwr",
    "flower-superlink",
    "flower-supernode",
    "flower-superexec",
    "flwr-serverapp",
    "flwr-clientapp",
)
MODULES = (
    "cloudpickle",
    "httpcore",
    "h11",
    "polars",
    "safetensors.torch",
    "dpfed.flower",
    "dpfed.recipes.flower_app",
    "dpfed.sums.secure",
    "dpfed.sums.secagg.client",
    "dpfed.sums.secagg.server",
    "dpfed.cli.data",
    "dpfed.cli.deploy.rehearsal",
    "dpfed.cli.silo",
    "dpfed.silo.gate",
    "dpfed.silo.handler",
    "flwr.supernode.runtime.run_clientapp",
    "flwr.superlink.runtime.run_serverapp",
    "flwr.server.app",
)
"""What the commands import once they run; one that is not there is left to them."""

LAUNCHER = """#!{python} -IS
import json, os, signal, socket, sys
with socket.socket(socket.AF_UNIX) as there:
    there.connect({address!r})
    umask = os.umask(0)
    order = json.dumps([{name!r}, sys.argv[1:], dict(os.environ), os.getcwd(), umask]).encode()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda n, _: there.sendall(bytes([n])))
    socket.send_fds(there, [len(order).to_bytes(8, "big")], [0, 1, 2])
    there.sendall(order)
    said = there.recv(2)
if len(said) == 2 and not said[0]:
    os._exit(said[1])
number = said[1] if said else signal.SIGKILL
signal.signal(number, signal.SIG_DFL) if number != signal.SIGKILL else None
os.kill(os.getpid(), number)
"""


@contextlib.contextmanager
def preloaded(
    folder: Path, start: Sequence[str] = (sys.executable, __file__), **more: str
) -> Iterator[dict[str, str]]:
    """The variables with which the commands are launchers, as long as the context lasts.

    Args:
        folder: where the launchers are written; it must be new.
        start: how the preloading process is started: as another user, say, by another Python.
        more: variables of that process.
    """
    home, address = folder / "launchers", f"\0preloaded-{secrets.token_hex(8)}"
    home.mkdir(parents=True)
    for name in COMMANDS:
        text = LAUNCHER.format(python=start[-2], address=address, name=name)
        (home / name).write_text(text)
        (home / name).chmod(0o755)
    places = (home, Path(sys.executable).parent, os.environ.get("PATH", ""))
    env = {
        **os.environ,
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        "MPLBACKEND": "agg",
        **more,
    }
    with subprocess.Popen([*start, address[1:]], env=env, stdout=subprocess.PIPE) as process:
        try:
            if process.stdout is None or process.stdout.readline() != b"ready\n":
                raise RuntimeError("the commands could not be imported; see above")
            yield {"PATH": os.pathsep.join(map(str, places))}
        finally:
            process.kill()


@functools.cache
def commands() -> dict[str, str]:
    """The same for all tests of this process, until it ends."""
    folder = _OPEN.enter_context(tempfile.TemporaryDirectory(prefix="preloaded-"))
    return _OPEN.enter_context(preloaded(Path(folder)))


_OPEN = contextlib.ExitStack()


@atexit.register
def close_commands() -> None:
    """End the process behind ``commands``: xdist's workers end without what atexit has."""
    _OPEN.close()


# ------------------------------------------------------------------------ the preloading process


def serve(address: str) -> None:
    """Import all, then fork for each launcher that connects."""
    found = {each.name: each for each in entry_points(group="console_scripts")}
    entries = {name: found[name].load() for name in COMMANDS}
    for name in MODULES:
        with contextlib.suppress(ImportError):
            import_module(name)
    _look_up_plug_ins()
    gc.freeze()  # forks share what is here
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a supervisor
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{address}")
        listener.listen(128)
        print("ready", flush=True)
        while True:
            there = listener.accept()[0]
            if not os.fork():
                listener.close()
                _supervise(there, entries)
            there.close()


def _look_up_plug_ins() -> None:
    """Who offers plug-ins is looked up once per process, in every package that is installed."""
    registry = import_module("dpfed.core.registry")
    for kind in ("client", "server", "mechanisms", "sums", "metrics"):
        for name in registry.own_names(kind):
            with contextlib.suppress(ImportError):
                import_module(f"dpfed.{kind}.{name}")


def _supervise(there: socket.socket, entries: Mapping[str, Any]) -> NoReturn:
    """Run one command in a process of its own, and tell its launcher how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    first, files, _, _ = socket.recv_fds(there, 8, 3)
    order = there.recv(int.from_bytes(first, "big"), socket.MSG_WAITALL)
    name, arguments, environment, folder, umask = json.loads(order)
    child = os.fork()
    if not child:
        there.close()
        os.setsid()
        for number, own in enumerate(files):
            os.dup2(own, number)
            os.close(own)
        os.chdir(folder)
        os.umask(umask)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = [name, *arguments]
        os.execv = _execv  # type: ignore[assignment]
        _run(entries[name])
    for own in files:
        os.close(own)
    _pass_on(there, child)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(OSError):
        there.sendall(bytes([0, code]) if code >= 0 else bytes([1, -code]))
    os._exit(0)


def _execv(path: str, arguments: Sequence[str]) -> NoReturn:
    """A command that becomes ``python -P -m MODULE ...`` goes on in this fork, which has it all."""
    python, _, _, module, *more = arguments
    assert [path, python, "-P", "-m"] == [sys.executable, path, *arguments[1:3]]
    sys.argv = [module, *more]

    def go_on() -> None:
        runpy.run_module(module, run_name="__main__", alter_sys=True)

    _run(go_on)


def _run(entry: Callable[[], Any]) -> NoReturn:
    """A console script to its end; modules are left to the system, as freeing them takes long."""
    code: object = 1
    try:
        code = entry()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]  # as the interpreter does
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr, flush=True)
        code = 1
    os._exit((code or 0) & 0xFF)


def _pass_on(there: socket.socket, child: int) -> None:
    """Signals of the launcher, until the command ends; its own end is the command's."""
    ended = os.pidfd_open(child)
    watched: list[Any] = [there, ended]
    while True:
        ready = select.select(watched, [], [])[0]
        if ended in ready:
            return
        numbers = there.recv(16)
        with contextlib.suppress(ProcessLookupError):
            if not numbers:
                os.killpg(child, signal.SIGKILL)
                return
            for number in numbers:
                os.kill(child, number)


if __name__ == "__main__":
    sys.path.pop(0)  # this folder is no part of a command
    serve(sys.argv[1])
