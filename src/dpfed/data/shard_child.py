# SPDX-License-Identifier: Apache-2.0
"""The clean process, and the processes that it forks: a train function runs in one for each shard.

    python -m dpfed.data.shard_child FD FOLDER CALL FUNCTION      (shard_process.py starts it)

Guarantee: this process holds no data and learns nothing of its children. It imports the function,
then waits for orders. Each order comes with two pipes; it forks a child, which reads one shard from
the first and writes its row to the second, and closes both. It keeps no child's number, reads no
exit code, and says nothing of them. So what a child finds here is what the first one found.

| edge case                                        | what happens                                 |
|--------------------------------------------------|----------------------------------------------|
| the function cannot be imported                  | the traceback goes to the node, before data  |
| a child uses too much processor time or memory   | the system ends it, or refuses it memory:    |
|                                                  | no row, whatever the others do               |
| a child leaves a process behind                  | it becomes a child of this one, where the    |
|                                                  | node's process finds and ends it             |
| the node's process ends, in whatever way         | this one and its children end, too           |
| a module global, a cache, a random state         | each child has those of this process         |
| files in the work folder, the home, a temporary  | the folder is the child's own, new and empty |
| folder                                           |                                              |
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import os
import pickle
import random
import shutil
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from io import FileIO
from pathlib import Path
from typing import Any

with contextlib.suppress(ImportError):  # on other systems this is read, and never run
    import fcntl
    import resource

HEAD = struct.Struct("<dQ")
"""Of an order: a shard's seconds of processor time, and the bytes of memory that it may add."""
FRAME = struct.Struct("<cQ")
"""Of an answer: its kind, and how many bytes follow."""
ROW, ERROR = b"V", b"E"
MOST_TEXT = 1 << 17
"""Bytes of a traceback, or of a list of modules, at most."""
READY, IMPORT, SHARD = b"+", b"I", b"S"
JOB, ANSWER, _SPARE = 3, 4, 64
"""Descriptors in a child."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_MADV_COLLAPSE, _HUGE = 25, 1 << 21  # Linux 6.1 and newer; elsewhere forks take twice as long
_FOLDERS = ("HOME", "TMPDIR", "XDG_CACHE_HOME", "TORCH_HOME", "HF_HOME", "MPLCONFIGDIR")


def main(descriptor: str, folder: str, call: str, function: str) -> None:
    """Import the function, then fork one child for each order until the socket closes.

    Args:
        descriptor: of the socket that orders come from.
        folder: the only one that children may write to; it is removed at the end.
        call: module:name of what is called in a child.
        function: module:name of the train function.
    """
    control = socket.socket(fileno=int(descriptor))
    try:
        caller, wanted = _named(call), _named(function)
        warm()
    except BaseException:
        control.send(traceback.format_exc()[-MOST_TEXT // 2 :].encode())
        os._exit(1)
    serve(control, folder, lambda pipes, limits, base: _child(pipes, limits, base, caller, wanted))


def serve(
    control: socket.socket,
    folder: str,
    child: Callable[[list[int], tuple[float, int], int], None],
    fork: Callable[[], bool] = lambda: os.fork() == 0,
) -> None:
    """Fork one child for each order, until the socket closes.

    Args:
        control: where orders come from.
        folder: it is removed at the end.
        child: what a child does with its pipes, its limits and this process's address space; it
            does not return.
        fork: forks, and says whether this is the child.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system forgets how a child ended
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _fork_for_each(control, child, fork)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _fork_for_each(
    control: socket.socket, child: Callable[..., None], fork: Callable[[], bool]
) -> None:
    base = _settled()
    control.send(READY)
    while True:
        message, pipes, _, _ = socket.recv_fds(control, 1 << 16, 2)
        if not message:
            return
        if message[:1] == IMPORT:
            _preload(message[1:].decode().split())
            base = _settled()
            control.send(READY)
            continue
        if fork():  # the child's number is not kept: the next one could read it here
            child(pipes, HEAD.unpack(message[1:]), base)
        for pipe in pipes:
            os.close(pipe)


def _child(
    pipes: list[int],
    limits: tuple[float, int],
    base: int,
    caller: Callable[..., Any],
    function: Any,
) -> None:
    """One shard: confine this process, then read, train, answer and end."""
    try:
        keep_only(pipes)
        confine(*limits, base)
        job = pickle.loads(read_frame())  # noqa: S301 (the node's own process wrote it)
        _settle(job["folder"], job["seed"])
        kind, answer = ROW, caller(function, job)
    except BaseException:
        kind, answer = ERROR, traceback.format_exc()[-MOST_TEXT:].encode()
    with contextlib.suppress(BaseException):
        write_answer(FRAME.pack(kind, len(answer)) + answer)
    os._exit(0)


def keep_only(pipes: list[int]) -> None:
    """The two pipes as descriptors 3 and 4, the first three lead nowhere, all others are closed.

    Args:
        pipes: where the job comes from, and where the answer goes to.
    """
    spare = [fcntl.fcntl(pipe, fcntl.F_DUPFD, _SPARE) for pipe in pipes]
    nowhere = os.open(os.devnull, os.O_RDWR)
    for at in range(3):
        os.dup2(nowhere, at)
    os.dup2(spare[0], JOB)
    os.dup2(spare[1], ANSWER)
    os.closerange(ANSWER + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def confine(seconds: float, memory: int, base: int) -> None:
    """A session of its own, an end with its parent, and limits of time and memory.

    Args:
        seconds: of processor time.
        memory: bytes that it may add.
        base: the address space that it begins with.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    with contextlib.suppress(OSError):  # out of memory, the system ends this process first
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (base + memory, base + memory))
    whole = math.ceil(seconds) + 1  # behind the timer, which a function could turn off
    resource.setrlimit(resource.RLIMIT_CPU, (whole, whole))
    signal.setitimer(signal.ITIMER_PROF, seconds)


def _settle(folder: str, seed: int) -> None:
    """An empty folder as work folder, home and temporary folder; random states of this shard."""
    os.chdir(folder)
    for name in _FOLDERS:
        os.environ[name] = folder
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile.tempdir = None  # type: ignore[attr-defined]
    seed_all(seed)


def seed_all(seed: int) -> None:
    """Random states of this shard.

    Args:
        seed: the shard's.
    """
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % (1 << 32))
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(seed)


def _named(where: str) -> Any:
    """What is called module:name; a name may have dots."""
    module, _, name = where.partition(":")
    found: Any = import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _preload(names: list[str]) -> None:
    """Import what a function imports while it runs: once here, and not in each child."""
    for name in names:
        with contextlib.suppress(BaseException):
            import_module(name)
    warm()


def warm() -> None:
    """Do once what torch does at its first step: a child would do it for every shard."""
    if "torch" not in sys.modules:
        return
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    for make in (torch.optim.SGD, torch.optim.Adam):
        net = torch.nn.Linear(4, 2)
        optimizer = make(net.parameters(), lr=0.1)
        loss = torch.nn.functional.cross_entropy(net(torch.zeros(3, 4)), torch.zeros(3).long())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()


def _settled() -> int:
    """Before the first child: what is there stays, in few pages; returns the address space."""
    gc.collect()
    gc.freeze()
    _collapse()
    return _address_space()


def _collapse() -> None:
    """Put this process's memory into huge pages, as far as the system can: a fork copies few."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        extent, rights, _, _, _, *name = line.split()
        if not rights.startswith("rw") or (name and name[0] != "[heap]"):
            continue
        start, end = (int(each, 16) for each in extent.split("-"))
        for at in range(-(-start // _HUGE) * _HUGE, end - _HUGE + 1, _HUGE):
            _LIBRARY.madvise(at, _HUGE, _MADV_COLLAPSE)


def _address_space() -> int:
    """Bytes of address space that this process has."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * resource.getpagesize()


_LIBRARY = ctypes.CDLL(None)
_LIBRARY.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_LIBRARY.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]


def _prctl(option: int, value: int) -> None:
    _LIBRARY.prctl(option, value, 0, 0, 0)


def read_frame(source: FileIO | None = None) -> bytearray:
    """In a child: the whole job.

    Args:
        source: where it comes from; None opens it.
    """
    source = job_source() if source is None else source
    _, size = FRAME.unpack(_read(source, FRAME.size))
    return _read(source, size)


def job_source() -> FileIO:
    """In a child: where the job comes from, without a buffer."""
    return FileIO(JOB, closefd=False)


def _read(source: FileIO, size: int) -> bytearray:
    """So many bytes, read in place: of how they came in pieces, memory keeps no trace."""
    found = bytearray(size)
    left = memoryview(found)
    while left:
        read = source.readinto(left)
        if not read:
            raise EOFError("the node's process has ended")
        left = left[read:]
    return found


def write_answer(data: bytes) -> None:
    """In a child: the whole answer.

    Args:
        data: what is written.
    """
    left = memoryview(data)
    while left:
        left = left[os.write(ANSWER, left) :]


if __name__ == "__main__":
    main(*sys.argv[1:])
