# SPDX-License-Identifier: Apache-2.0
"""No process outlives the tests that started it, also if they are killed.

Whatever tests start inherits a mark in its environment. A watcher, which has no mark, waits for the
end of the process that runs the tests, in whichever way it ends: the watcher reads a pipe that only
that process can write to. Then it ends all that carry the mark. At the regular end of the tests
there is nobody left to end, or they fail, with the names of those who are left.

It looks into /proc, so it is for Linux; elsewhere it does nothing.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

MARK = "DPFED_TESTS"
PROCESSES = Path("/proc")
GRACE_S = 10.0
"""Until when a process that was told to end must have ended."""
RETRY_S = 0.1
ENDS_BY_ITSELF = "multiprocessing.resource_tracker"
"""Python's own helper of a process that has used a pool: it ends with that process."""


class Process(NamedTuple):
    """A process that a test has started."""

    pid: int
    command: str
    test: str
    """The test that ran when it was started."""


def marked(mark: str) -> list[Process]:
    """The living processes that carry a mark, this one left out."""
    found = []
    for entry in PROCESSES.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "environ").read_bytes().split(b"\0")
            if f"{MARK}={mark}".encode() in words and int(entry.name) != os.getpid():
                variables = dict(word.partition(b"=")[::2] for word in words)
                test = variables.get(b"PYTEST_CURRENT_TEST", b"").decode(errors="replace")
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                if command and ENDS_BY_ITSELF not in command:  # no command: it has ended already
                    found.append(Process(int(entry.name), command, test))
    return found


def end(mark: str) -> None:
    """Kill those who carry a mark until there are none: they may start others meanwhile."""
    deadline = time.monotonic() + GRACE_S
    while (found := marked(mark)) and time.monotonic() < deadline:
        for each in found:
            with contextlib.suppress(OSError):
                os.kill(each.pid, signal.SIGKILL)
        time.sleep(RETRY_S)


class Watch:
    """The mark of this process's children, and the watcher that ends them after it."""

    def __init__(self) -> None:
        self.mark = secrets.token_hex(8)
        without = {name: value for name, value in os.environ.items() if name != MARK}
        self._watcher = subprocess.Popen(
            [sys.executable, "-IS", __file__, self.mark],
            stdin=subprocess.PIPE,
            env=without,
            start_new_session=True,  # a signal to the tests' own group is not for it
        )
        os.environ[MARK] = self.mark

    def close(self) -> list[Process]:
        """Those who are still there some seconds after the last test; they are ended now."""
        deadline = time.monotonic() + GRACE_S
        while (left := marked(self.mark)) and time.monotonic() < deadline:
            time.sleep(RETRY_S)
        assert self._watcher.stdin
        self._watcher.stdin.close()
        self._watcher.wait()
        return left


def watch() -> Watch | None:
    """A watch, where there is a /proc to look into."""
    return Watch() if (PROCESSES / "self" / "environ").exists() else None


if __name__ == "__main__":
    sys.stdin.buffer.read()  # until nobody can write to it any more
    end(sys.argv[1])
