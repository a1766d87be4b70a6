# SPDX-License-Identifier: Apache-2.0
"""A child process with limits: what it does, or dies of, the process that started it outlives.

    reply = run_in_child(work, seconds=30.0, memory=1 << 30)
    child = StayingChild(work, memory=1 << 30)     # it has a connection, until one of both ends

On Linux. The child is a fork: it inherits what is in memory, and only bytes come back.

| edge case                                     | what happens                                     |
|-----------------------------------------------|--------------------------------------------------|
| the child takes too long, or dies             | ``ChildEnded``, which says of what               |
| it asks for more memory than it may have      | a MemoryError in it; other processes have theirs |
| the machine has no memory left                | the system ends the child first                  |
| it starts processes of its own                | they end with it, in whatever session they are,  |
|                                               | and nobody waits for them                        |
| the process that started it is killed         | the child ends, too, and all children of its own |
| sockets of the process that started it, and a | it has none of them: no other side waits for it  |
| child that stays                              |                                                  |
| a program with rights of its own (set-uid)    | gains none                                       |
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dpfed.core.errors import DpfedError, contain_all
from dpfed.core.log import log

with contextlib.suppress(ImportError):  # on other systems this is read, and never run
    import resource

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38
_MCL_CURRENT_AND_FUTURE = 3  # of mlockall: all pages that are there, and those to come
_LENGTH = struct.Struct(">Q")  # of a reply, before it
_OOM_SCORE = 500  # in thousandths of all memory, which the kernel adds to what the child has
_STORE_TIMEOUT_S = 2.0  # for a reply that is made to be entered in the ledger and stored
_KILL_TIMEOUT_S = 5.0  # for a child and all that it has started to end


class ChildEnded(DpfedError, RuntimeError):
    """A child process ended without a reply; its text says of what."""


def harden() -> None:
    """Keep others from reading this process's memory: no dump, no core file, no swap if allowed."""
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):
        _score_file()  # once there is no dump, it is root's
    if _LIBRARY.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        log.warning("this system lets other processes of this user read this process's memory")
    if _LIBRARY.mlockall(_MCL_CURRENT_AND_FUTURE):
        log.warning("memory may be swapped to disk: raise the limit 'memlock', or encrypt the swap")


def harden_again() -> None:
    """The same for a child of a hardened process, which does not inherit all of it."""
    with suppress(OSError):  # its own score is open to it as long as it may be dumped
        _prctl(_PR_SET_DUMPABLE, 1)
        _score_file()
    _LIBRARY.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    _LIBRARY.mlockall(_MCL_CURRENT_AND_FUTURE)


def run_in_child(work: Callable[[], bytes], seconds: float, memory: int | None = None) -> bytes:
    """What ``work`` returns in a forked child; ``ChildEnded`` if it dies, or takes too long.

    Whatever the child has started is killed before this returns.

    Args:
        work: what the child does. It may disarm its alarm (``ITIMER_REAL``) once its reply only has
            to be stored: killed there, the reply would be lost although its budget is spent.
        seconds: until the alarm ends the child. If it is still there after half as many more, at
            most ``_STORE_TIMEOUT_S``, this process kills it.
        memory: bytes of address space that it may add; None means no limit.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    others = _children()
    began, reply = time.monotonic(), None
    reading, writing = os.pipe()
    parent = os.getpid()
    with _first_to_end():
        child = os.fork()
    if child == 0:
        os.close(reading)
        _child_main(work, writing, parent, seconds, memory)
    os.close(writing)
    try:
        reply = _read_reply(reading, child, began + seconds + min(_STORE_TIMEOUT_S, seconds / 2))
    finally:
        os.close(reading)
        after, status = time.monotonic() - began, _kill_all(child, others)
    if reply is None:
        raise ChildEnded(f"{_exit_reason(status)} after {after:.1f} s")
    return reply


class StayingChild:
    """A forked child that stays: it does ``work`` over a connection to this process, and then ends.

    Args:
        work: what the child does, with its end of the connection.
        memory: bytes of address space that it may add, and so may each of its own children; None
            means no limit.
    """

    def __init__(self, work: Callable[[socket.socket], None], memory: int | None = None) -> None:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._others, parent = _children(), os.getpid()
        self.connection, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                _close_sockets(theirs.fileno())
                _confine(parent, memory)
                work(theirs)
                code = 0
            except BaseException:
                log.exception("a process of the gate ended")
            finally:
                os._exit(code)
        theirs.close()

    def end(self) -> str:
        """Kill it, and all that it has started; what it had ended with, if it had, in words."""
        self.connection.close()
        return _exit_reason(_kill_all(self.pid, self._others))


def _close_sockets(kept: int) -> None:
    """Close the sockets that a child has inherited, but for one: else others would wait for it."""
    for each in Path("/proc/self/fd").iterdir():
        number = int(each.name)
        with suppress(OSError):  # the folder's own descriptor
            if number > 2 and number != kept and stat.S_ISSOCK(os.fstat(number).st_mode):
                os.close(number)


def _confine(parent: int, memory: int | None) -> None:
    """In a child: end with its parent, gain no rights, and take so much memory at most."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it has ended already
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # then only a record raises KeyboardInterrupt
    if "torch" in sys.modules:  # a fork has none of its parent's threads, and waits for them
        sys.modules["torch"].set_num_threads(1)
    if memory is not None:
        most = _address_space() + memory
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _child_main(
    work: Callable[[], bytes], writing: int, parent: int, seconds: float, memory: int | None
) -> None:
    """In the child: write the whole reply or nothing, then exit without the parent's clean-up."""
    code = 1
    try:
        _confine(parent, memory)
        contain_all()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))
        reply = work()
        pipe = os.fdopen(writing, "wb")  # it closes with the process, whose end then has a reason
        pipe.write(_LENGTH.pack(len(reply)) + reply)
        pipe.flush()
        code = 0
    except BaseException:
        log.exception("a request could not be answered")  # docs/silo.md names these words
    finally:
        os._exit(code)


def _read_reply(reading: int, child: int, deadline: float) -> bytes | None:
    """The reply as soon as all of it is there; None if the child ends or its time is over.

    It does not wait for the pipe to close: what the child has started may hold it open.
    """
    received, watched = bytearray(), [reading]
    with suppress(OSError):  # before Linux 5.3 an open pipe hides a child's end until the deadline
        watched.append(os.pidfd_open(child))
    try:
        while True:
            if len(received) >= _LENGTH.size:
                (size,) = _LENGTH.unpack(received[: _LENGTH.size])
                if len(received) - _LENGTH.size >= size:
                    return bytes(received[_LENGTH.size : _LENGTH.size + size])
            left = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select(watched, [], [], left)
            if watched[-1] in ready:  # its last bytes may have come after the pipe was looked at
                ready, _, _ = select.select([reading], [], [], 0.0)
            part = os.read(reading, 1 << 20) if reading in ready else b""
            if not part:
                return None
            received += part
    finally:
        for pidfd in watched[1:]:
            os.close(pidfd)


def _kill_all(child: int, others: set[int]) -> int:
    """Kill a child and all that it has started, in whatever session; returns the child's status.

    A process that loses its parent becomes a child of this one, so each pass finds the next ones.
    """
    ended = 0
    deadline, alive = time.monotonic() + _KILL_TIMEOUT_S, {child}
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    while alive:
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in alive:
            with suppress(ChildProcessError):
                number, status = os.waitpid(pid, 0)
                ended = status if number == child else ended
        alive = _children() - others
        if alive and time.monotonic() > deadline:
            raise SystemExit(f"{len(alive)} processes of a child cannot be killed: this one ends")
    return ended


def _exit_reason(status: int) -> str:
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if not number:
        return f"exit code {os.waitstatus_to_exitcode(status)}"
    late = ": out of time" if number == signal.SIGALRM else ""
    return f"signal {number} ({signal.strsignal(number)}{late})"


def _children() -> set[int]:
    """The processes whose parent this one is."""
    children: set[int] = set()
    for listed in Path("/proc/self/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            children.update(map(int, listed.read_text(encoding="ascii").split()))
    return children


def machine_memory() -> int:
    """Bytes of memory that this machine has, or that its container may use if that is less."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # no such file, or "max"
        found = min(found, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return found


def _address_space() -> int:
    """Bytes of address space that this process has."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * resource.getpagesize()


@contextmanager
def _first_to_end() -> Iterator[None]:
    """A process that is forked in here is ended before this one if the machine has no memory left.

    A hardened process may not open its own score, nor may its child: so this one raises its score,
    the child inherits it, and this one takes it back.
    """
    score = None
    with suppress(OSError):
        score = _score_file()
        before = os.pread(score, 16, 0)
        if int(before) < _OOM_SCORE:
            os.pwrite(score, str(_OOM_SCORE).encode(), 0)
        else:
            score = None
    parent = os.getpid()
    try:
        yield
    finally:
        if score is not None and os.getpid() == parent:
            os.pwrite(score, before, 0)


def _score_file() -> int:
    """This process's score, open; a child that inherits its parent's opens its own."""
    pid = os.getpid()
    if pid not in _SCORES:
        for inherited in _SCORES.values():
            os.close(inherited)
        _SCORES.clear()
        _SCORES[pid] = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
    return _SCORES[pid]


def _prctl(option: int, value: int) -> None:
    if _LIBRARY.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed: use Linux 3.5 or newer")


_SCORES: dict[int, int] = {}
_LIBRARY = ctypes.CDLL(None, use_errno=True)
_LIBRARY.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
