# SPDX-License-Identifier: Apache-2.0
"""The node's half of a train function in shards: it starts the clean process, and asks for rows.

    clean = clean_process("dpfed.data.train_functions:call", "task:train")
    answer = clean.run(job, size, limits)       # the row of one shard, or why there is none

The node's process holds the data, and never runs the function. The clean process (shard_child.py)
is a new Python without data; it forks one child for each shard, one at a time.

Guarantee: a shard's answer depends on its own job. Before a shard begins, no process of an earlier
one is left. A child's end, its time and what it says are seen here, and reach no other child.

| edge case                                            | what happens                            |
|------------------------------------------------------|-----------------------------------------|
| more than ``seconds`` of processor time, or more     | no row                                  |
| than ``memory``                                      |                                         |
| more than ``seconds`` times ``PATIENCE`` by the clock| no row: it is ended                     |
| anything but ``size`` finite numbers                 | no row                                  |
| processes that a child starts, in any session        | are ended before the next shard begins  |
| the clean process is ended by a child                | no row; a new one for the next shard    |
| this process was forked, as a gate's child is        | it uses the same clean process, in turn |
| the process before it was killed in a shard          | what it left is ended first             |
| a system without fork, /proc or pidfd                | DataError, before data is touched       |
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfed.core.errors import DataError
from dpfed.data.shard_child import ERROR, FRAME, HEAD, IMPORT, MOST_TEXT, READY, ROW, SHARD

with contextlib.suppress(ImportError):  # other systems are refused, by _refuse_other_systems
    import fcntl

PATIENCE = 4.0
"""By the clock a shard may take so many times its seconds of processor time: machines are busy."""
_BESIDE_S = 0.1  # a fork, the shard's records through a pipe, and the end of what it has left
_RESTART_S = 10.0  # a clean process that a shard has ended is started anew
_START_TIMEOUT_S = 120.0
_KILL_TIMEOUT_S = 5.0
_TRIAL_S = 60.0  # of processor time: the first step of a library may import a lot


class Limits(NamedTuple):
    """What one shard may use: its own, whatever the others take.

    Args:
        seconds: of processor time; by the clock ``PATIENCE`` times as many.
        memory: bytes that the function may add.

    >>> Limits().longest
    2.0
    """

    seconds: float = 0.5
    memory: int = 1 << 30

    @property
    def longest(self) -> float:
        """Seconds by the clock."""
        return self.seconds * PATIENCE

    def longest_of(self, shards: int) -> float:
        """Seconds by the clock of so many shards, with all that is done around each.

        Who chooses many shards of short time could else have one record decide whether all of them
        end in time.

        Args:
            shards: how many run, one after the other.

        >>> Limits(seconds=0.5).longest_of(200)
        430.0
        """
        return shards * (self.longest + _BESIDE_S) + _RESTART_S


DEFAULT_LIMITS = Limits()


class Answer(NamedTuple):
    """A shard's row, or why there is none: that is for the local log only."""

    row: NDArray[np.float64] | None
    said: str = ""


class CleanProcess:
    """A process that has imported a train function, and holds no data.

    Args:
        call: module:name of what is called in a child, with the function and the job.
        function: module:name of the train function.
    """

    module = "dpfed.data.shard_child"
    """What the new Python runs."""

    def __init__(self, call: str, function: str) -> None:
        self.call, self.function = call, function
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._preload: list[str] = []

    def start(self) -> None:
        """Start it, unless it runs; what is wrong with the function's module raises here."""
        if self.running:
            return
        self.close()
        _refuse_other_systems()
        self._folder = Path(tempfile.mkdtemp(prefix="dpfed-shards-"))
        self._file = os.memfd_create("dpfed-shards")
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        names = (str(theirs.fileno()), str(self._folder), self.call, self.function)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", self.module, *names],
                pass_fds=[theirs.fileno()],
                env=self.environment(self._folder),
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the node's process
            )
        self._ended = os.pidfd_open(self._process.pid)
        said = self._ready()
        if said != READY:
            self.close()
            raise DataError(
                f"the train function {self.function!r} must be importable by a new Python process, "
                f"and is not; name it as 'package.module:function'. Its traceback:\n"
                f"{said.decode(errors='replace')}"
            )
        self._import(self._preload)

    def _import(self, names: list[str]) -> None:
        for start in range(0, len(names), 500):
            self._control.send(IMPORT + " ".join(names[start : start + 500]).encode())
            self._ready()

    def _ready(self) -> bytes:
        """What the clean process says once it is ready for orders: that, or a traceback."""
        self._control.settimeout(_START_TIMEOUT_S)
        try:
            return self._control.recv(1 << 18)
        except TimeoutError:
            return b"it was not ready in time"
        finally:
            self._control.settimeout(None)

    @property
    def running(self) -> bool:
        """Whether it is there to be asked."""
        return self._process is not None and not select.select([self._ended], [], [], 0)[0]

    def try_out(self, job: Mapping[str, Any], size: int, limits: Limits) -> Answer:
        """A job on made-up records; what the function imports meanwhile is imported here, too.

        Args:
            job: as for ``run``; nothing of it is anybody's.
            size: how many numbers a row has.
            limits: what the shard may use; the time that imports take is not counted.
        """
        generous = limits._replace(seconds=max(limits.seconds, _TRIAL_S))
        with self._alone():
            answer = self._run({**job, "modules": True}, size, generous)
        if answer.row is None:
            return answer
        self._preload = [*self._preload, *(set(answer.said.split()) - set(self._preload))]
        self._import(self._preload)
        return self.run(job, size, limits)

    def run(self, job: Mapping[str, Any], size: int, limits: Limits) -> Answer:
        """One shard in a new process; whatever becomes of it, this returns.

        Args:
            job: what the call gets, beside an empty folder; it must have ``seed``.
            size: how many numbers a row has.
            limits: what the shard may use.
        """
        with self._alone():
            return self._run(job, size, limits)

    def _run(self, job: Mapping[str, Any], size: int, limits: Limits) -> Answer:
        self.start()
        self._sweep()
        folder = tempfile.mkdtemp(dir=self._folder)
        try:
            packed = self.packed({**job, "folder": folder})
            read = partial(self.answered, size=size, tried="modules" in job)
            return self._ask(packed, limits, read)
        finally:
            self._sweep()
            shutil.rmtree(folder, ignore_errors=True)

    def environment(self, folder: Path) -> dict[str, str]:
        """What the clean process knows of this one's.

        Args:
            folder: its own.
        """
        return _environment(folder)

    def packed(self, job: Mapping[str, Any]) -> bytes:
        """A job as its child reads it.

        Args:
            job: of one shard.
        """
        return pickle.dumps(job, pickle.HIGHEST_PROTOCOL)

    def answered(
        self, found: bytearray, size: int, *, ended: bool, tried: bool = False
    ) -> Answer | None:
        """A child's answer, by what was read of it; None while more is to come.

        Args:
            found: all that was read.
            size: how many numbers a row has.
            ended: whether the child has closed its end.
            tried: whether names of modules may follow the row.
        """
        framed = _frame(found, 8 * size + MOST_TEXT, ended=ended)
        return None if framed is None else _checked(*framed, size, tried)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One shard at a time, of all threads and forked processes that share a clean process."""
        with self._turn:
            held = self._file if self.running else None
            if held is not None:
                fcntl.lockf(held, fcntl.LOCK_EX)
            try:
                yield
            finally:
                if held is not None:
                    with contextlib.suppress(OSError):  # closed, since a new process was started
                        fcntl.lockf(held, fcntl.LOCK_UN)

    def _ask(self, packed: bytes, limits: Limits, read: Callable[..., Answer | None]) -> Answer:
        ours: list[int] = []
        theirs: list[int] = []
        try:
            reading, writing = os.pipe()
            theirs, ours = [reading], [writing]
            reading, writing = os.pipe()
            theirs, ours = [*theirs, writing], [*ours, reading]
            head = SHARD + HEAD.pack(limits.seconds, limits.memory)
            try:
                socket.send_fds(self._control, [head], theirs)
            except OSError:
                return Answer(None, "the clean process had ended; a new one is started")
            while theirs:
                os.close(theirs.pop())
            job = FRAME.pack(SHARD, len(packed)) + packed
            return _exchange(ours[0], ours[1], job, read, limits.longest)
        finally:
            for each in (*ours, *theirs):
                os.close(each)

    def _sweep(self) -> None:
        """End all processes of earlier shards, in whatever session, and empty the folder.

        Those that lose their parent become children of the clean process: each pass finds more.
        """
        if self._process is None:
            return
        deadline = time.monotonic() + _KILL_TIMEOUT_S
        while found := _children(self._process.pid):
            for each in found:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(each, signal.SIGKILL)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(each, signal.SIGKILL)
            if time.monotonic() > deadline:
                self.close()
                raise DataError(
                    f"{len(found)} processes of a shard could not be ended in "
                    f"{_KILL_TIMEOUT_S:g} s; the clean process is ended, too"
                )
            time.sleep(0.0002)

    def close(self) -> None:
        """End it, with all of its children."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._ended, signal.SIGKILL)  # its children end with it
        self._control.close()
        process.wait()
        os.close(self._ended)
        os.close(self._file)
        shutil.rmtree(self._folder, ignore_errors=True)


def _exchange(
    writing: int, reading: int, job: bytes, read: Callable[..., Answer | None], seconds: float
) -> Answer:
    """Write the job while its answer is read, until that is one or the seconds are over."""
    os.set_blocking(writing, False)
    poller, left = select.poll(), memoryview(job)
    poller.register(reading, select.POLLIN)
    poller.register(writing, select.POLLOUT)
    found, deadline = bytearray(), time.monotonic() + seconds
    while True:
        ready = dict(poller.poll(max(0.0, 1000 * (deadline - time.monotonic()))))
        if not ready:
            return Answer(None, f"it was not done after {seconds:g} s by the clock")
        if writing in ready:
            left = _written(writing, left)
            if not left:
                poller.unregister(writing)
        if reading in ready:
            part = os.read(reading, 1 << 16)
            found += part
            answer = read(found, ended=not part)
            if answer is not None:
                return answer


def _written(writing: int, left: memoryview) -> memoryview:
    """What is left of a job after a part of it was written; nothing if nobody reads any more."""
    try:
        return left[os.write(writing, left[: 1 << 16]) :]
    except OSError:
        return left[:0]


def _frame(found: bytearray, most: int, *, ended: bool) -> tuple[bytes | None, str] | None:
    """The answer, or why there will be none; None while more is to come."""
    if len(found) >= FRAME.size:
        kind, size = FRAME.unpack(found[: FRAME.size])
        if size > most:
            return None, f"it answered with {size} bytes, more than {most}"
        if len(found) >= FRAME.size + size:
            return bytes(kind + found[FRAME.size : FRAME.size + size]), ""
    if ended:
        return None, "it ended without an answer: a crash, or its limit of time or memory"
    return None


def _checked(answer: bytes | None, said: str, size: int, tried: bool) -> Answer:
    """The row, if it is ``size`` finite numbers; behind that of a trial, names of modules."""
    if answer is None:
        return Answer(None, said)
    if answer[:1] == ERROR:
        return Answer(None, answer[1:].decode(errors="replace"))
    end = 1 + 8 * size
    if answer[:1] != ROW or len(answer) < end or (len(answer) > end and not tried):
        return Answer(None, f"it answered with something else than {size} numbers")
    return finite_row(answer[1:end], size, answer[end:].decode())


def finite_row(answer: bytes, size: int, said: str = "") -> Answer:
    """The row in an answer, if all of its numbers are finite.

    Args:
        answer: bytes of double precision.
        size: how many numbers.
        said: what came with it.
    """
    row = np.frombuffer(answer, np.float64, size)
    if not np.isfinite(row).all():
        return Answer(None, "some of its numbers are not finite")
    return Answer(row, said)


def _children(process: int) -> set[int]:
    """The processes whose parent this one is, but those that have ended."""
    found: set[int] = set()
    for listed in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found.update(map(int, listed.read_text(encoding="ascii").split()))
    return found


def _environment(folder: Path) -> dict[str, str]:
    """What the clean process knows of this one's: where code is, and nothing of the owner's."""
    path = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path)
    kept = {name: os.environ[name] for name in ("LANG", "LD_LIBRARY_PATH") if name in os.environ}
    one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return {
        **kept,
        **one,
        "PATH": os.defpath,
        "PYTHONPATH": path,
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "FLWR_TELEMETRY_ENABLED": "0",
        "CUDA_VISIBLE_DEVICES": "",  # a forked process cannot use it
    }


def _refuse_other_systems() -> None:
    if not sys.platform.startswith("linux") or not Path("/proc/self/task").is_dir():
        raise DataError(
            f"a train function in shards needs Linux with /proc, got {sys.platform!r}; run it "
            f"there, or give the library the model and its data (client_app)"
        )


_RUNNING: dict[tuple[str, str], CleanProcess] = {}


def clean_process(call: str, function: str) -> CleanProcess:
    """The clean process of a function: one for all problems of this process.

    Args:
        call: module:name of what is called in a child, with the function and the job.
        function: module:name of the train function.
    """
    return one_for_each((call, function), lambda: CleanProcess(call, function))


def one_for_each(what: tuple[str, str], make: Callable[[], CleanProcess]) -> CleanProcess:
    """The clean process of something, which is made once in this process.

    Args:
        what: what it is for.
        make: makes it.
    """
    if what not in _RUNNING:
        _RUNNING[what] = make()
    return _RUNNING[what]


def _close_all(owner: int) -> None:
    if os.getpid() == owner:  # a forked child leaves it to its parent
        for each in _RUNNING.values():
            each.close()


atexit.register(_close_all, os.getpid())
