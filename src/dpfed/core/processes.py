# SPDX-License-Identifier: Apache-2.0
"""Processes that a command starts and ends: each in a group of its own, and none is left behind.

    with tidy(), started(["flower-superlink", ...], env, log) as superlink:
        comes_up("127.0.0.1:8000", superlink, seconds=60.0)

| edge case                            | what happens                                      |
|--------------------------------------|---------------------------------------------------|
| SIGTERM or SIGHUP to the command     | an exception, by which its children end, too      |
| a process that does not end by itself| its group is ended after ``GRACE`` seconds        |
| a daemon that has left its group     | is found by a variable of its environment         |
| a proxy in the environment           | is for others than loopback                       |
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

GRACE = 3.0
"""Seconds between asking a process group to end and ending it."""


@contextmanager
def tidy() -> Iterator[None]:
    """Turn a signal that would end this process into an exception, so that its children end, too.

    Only in the main thread, where Python handles signals, and only signals without a handler.
    """
    ours = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if threading.current_thread() is threading.main_thread()
        and signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in ours:
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def started(
    command: Sequence[str], env: Mapping[str, str], log: Path, grace: float = GRACE
) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, which is ended, children and all, on the way out.

    Args:
        command: its words.
        env: its whole environment.
        log: the file that what it says is added to.
        grace: seconds that it has to end by itself.
    """
    with log.open("ab") as sink:
        process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        end(process, grace)


def end(process: subprocess.Popen[bytes], grace: float = GRACE) -> None:
    """Ask the group to end, then end it; the leader's id is the group's."""
    deadline = time.monotonic() + grace
    alive = _signal(process.pid, signal.SIGTERM)
    while alive and time.monotonic() < deadline:
        process.poll()
        time.sleep(0.05)
        alive = _signal(process.pid, 0)
    _signal(process.pid, signal.SIGKILL)
    process.wait()


def ask_to_end(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """Ask several processes to end at the same time, then wait for each with ``end``."""
    for process in processes:
        _signal(process.pid, signal.SIGTERM)


def end_marked(name: str, value: str, patience: float = 10.0) -> None:
    """End whoever has this variable in its environment: daemons that left their group (on Linux).

    Args:
        name: the variable's.
        value: what it says, in these processes and in no others.
        patience: seconds after which those who are still there are left.
    """
    deadline = time.monotonic() + patience
    while (pids := _marked(f"{name}={value}".encode())) and time.monotonic() < deadline:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _marked(mark: bytes) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


def _signal(group: int, number: int) -> bool:
    """Whether there was someone in the group to signal."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def comes_up(
    address: str, server: subprocess.Popen[bytes], seconds: float, ca: Path | None = None
) -> bool:
    """Whether a SuperLink comes up in time; False if it ends, or another process is in its place.

    Args:
        address: HOST:PORT.
        server: its process.
        seconds: how long it may take.
        ca: the certificate that its own must be signed by; None asks without TLS.
    """
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if ca is not None:
        context = ssl.create_default_context(cafile=str(ca))
        handlers.append(urllib.request.HTTPSHandler(context=context))
    opener = urllib.request.build_opener(*handlers)
    url = f"{'http' if ca is None else 'https'}://{address}/health"
    deadline = time.monotonic() + seconds
    while server.poll() is None and time.monotonic() < deadline:
        try:
            opener.open(url, timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return True
    return False


def search_path() -> str:
    """PATH, with this Python's folder first unless PATH finds it (an activated environment)."""
    path, own = os.environ.get("PATH", ""), Path(sys.executable)
    found = shutil.which(own.name, path=path)
    activated = found is not None and Path(found).parent.samefile(own.parent)
    return path if activated else f"{own.parent}{os.pathsep}{path}"


def flower_environment(home: Path, without: Iterable[str] = ()) -> dict[str, str]:
    """This process's environment for a command of Flower's that has nothing to do with others.

    Args:
        home: the folder in the place of ~/.flwr.
        without: variables that are left out.
    """
    env = {name: value for name, value in os.environ.items() if name not in set(without)}
    return {
        **env,
        "PATH": search_path(),
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }


def find_command(name: str) -> str | None:
    """The path of a command, or None."""
    return shutil.which(name, path=search_path())


def free_port() -> int:
    """A free TCP port on the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
