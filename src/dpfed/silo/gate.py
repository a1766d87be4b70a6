# SPDX-License-Identifier: Apache-2.0
"""The gate: a process of the data owner's that alone reads the data, behind a Unix socket.

    dpfed silo serve silo.toml

One request at a time: a frame comes in, a child of this process answers it, a frame goes out. The
data, torch and the models are loaded once, and a child has them at once. Whatever a child does, or
dies of, this process goes on.

| edge case                                        | what happens                               |
|--------------------------------------------------|--------------------------------------------|
| a user that the policy does not name             | the connection is closed                   |
| a frame that is too long, cut off, or slow       | closed; nothing is read into memory beyond |
|                                                  | what the policy allows                     |
| more requests in a minute than allowed           | they wait                                  |
| a child that dies, or takes too long             | asked once more for zero rows: no reply is |
|                                                  | of another form, and with ``answer_after`` |
|                                                  | none leaves at another time                |
| a sender that holds its last byte back           | ``answer_after`` counts from that byte     |
| a child that starts processes of its own         | they end with it, in whatever session they |
|                                                  | are, and no answer waits for them          |
| this process is killed                           | its children end, too                      |
| the socket's folder is not the owner's alone, or | refused: ``dpfed silo check`` says why     |
| a link is in its path                            |                                            |
"""

from __future__ import annotations

import ctypes
import logging
import os
import pwd
import resource
import select
import signal
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from dpfed.core.errors import DataError, contain_all
from dpfed.core.log import OneLine, log
from dpfed.silo.keeper import Keeper
from dpfed.silo.policy import GatePolicy, Policy
from dpfed.silo.relay import LENGTH, receive

_CREDENTIALS = struct.Struct("3i")
_PATIENCE = 5.0  # seconds for a whole request to come in, and for processes to end
_STORING = 2.0  # seconds for a reply that is made: ledger and disk
_DUMPABLE, _LOCK_ALL = 4, 3
_END_WITH_PARENT, _ADOPT_ORPHANS = 1, 36  # PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER


def run_gate(policy: Policy, ready: Callable[[], None] = lambda: None) -> None:
    """Answer until the process is told to end.

    Args:
        policy: the owner's.
        ready: called when requests are taken.
    """
    harden()
    torch.set_num_threads(1)  # before any are started: a child would wait for them for ever
    written = logging.StreamHandler()
    written.setFormatter(OneLine())  # an order's text may be in an error's
    log.addHandler(written)
    keeper = Keeper(policy)
    keeper.open()
    users = {pwd.getpwnam(name).pw_uid for name in policy.gate.relay_users}
    with listen(policy.gate) as gate:
        log.info("the gate answers on %s", policy.gate.socket)
        ready()
        _serve(gate, keeper, users)


def harden() -> None:
    """Nobody but this user and root reads the process: no dump, no core, no swap if allowed."""
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_DUMPABLE, 0, 0, 0, 0):
        log.warning("this system cannot hide a process from others of its user")
    if library.mlockall(_LOCK_ALL):
        log.warning("memory may be swapped out: raise the limit 'memlock', or encrypt the swap")


def listen(gate: GatePolicy) -> socket.socket:
    """The socket, in a folder that is the owner's alone, open to the relay's group."""
    path = Path(gate.socket)
    refuse_open_folder(path.parent)
    if path.is_socket():
        path.unlink()  # of a gate that was killed
    elif path.is_symlink() or path.exists():
        raise DataError(f"{path} must be a socket, got another file; remove it")
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o117)
    try:
        found.bind(gate.socket)
    finally:
        os.umask(before)
    group = path.parent.stat().st_gid
    if path.stat().st_gid != group:  # a folder with the set-group-id bit gives it by itself
        os.chown(gate.socket, -1, group)
    found.listen(16)
    return found


def refuse_open_folder(folder: Path, user: int | None = None) -> None:
    """Refuse a folder that others than a user could have put another socket into, or under.

    Without ``user`` it is this process's.
    """
    user = os.geteuid() if user is None else user
    for each in (folder, *folder.parents):
        facts = each.lstat()
        if each.is_symlink():
            raise DataError(f"{each} must be a folder, got a link; use the path that it leads to")
        mine = facts.st_uid == user if each == folder else facts.st_uid in (0, user)
        sticky = bool(facts.st_mode & 0o1000)
        if not mine or (facts.st_mode & 0o022 and not sticky):
            raise DataError(
                f"{each} must be writable by its owner alone, got mode {facts.st_mode & 0o7777:o} "
                f"of user {facts.st_uid}; chmod go-w, and chown it to the gate's user"
            )


def _serve(gate: socket.socket, keeper: Keeper, users: set[int]) -> None:
    recent: deque[float] = deque(maxlen=keeper.policy.gate.per_minute)
    while True:
        relay, _ = gate.accept()
        with relay:
            if len(recent) == recent.maxlen:
                time.sleep(max(0.0, recent[0] + 60 - time.monotonic()))
            recent.append(time.monotonic())
            try:
                _one(relay, keeper, users)
            except Exception:
                log.exception("a request was not answered")


def _one(relay: socket.socket, keeper: Keeper, users: set[int]) -> None:
    """One request of one connection."""
    packed = relay.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(packed)
    if user not in users:
        log.warning("user %d may not connect to the gate", user)
        return
    policy = keeper.policy.gate
    order = _received(relay, policy.most_bytes, time.monotonic() + _PATIENCE)
    began = time.monotonic()  # with the last byte: who sends it late gains nothing
    reply = _reply(keeper, order, began)
    time.sleep(max(0.0, began + policy.answer_after - time.monotonic()))
    if reply is not None:
        relay.settimeout(_PATIENCE)
        relay.sendall(LENGTH.pack(len(reply)) + reply)


def _reply(keeper: Keeper, order: bytes, began: float) -> bytes | None:
    """What is sent for an order; None if even zero rows were not made in time."""
    policy = keeper.policy.gate

    def seconds(part: float) -> float:
        """For a child that must end within this part of ``answer_after``."""
        if not policy.answer_after:
            return policy.longest
        last = began + part * policy.answer_after
        return min(policy.longest, max(0.0, last - time.monotonic()))

    reply = keeper.turned_away(order)
    if reply is None:
        reply = _in_a_child(lambda: keeper.answer(order), seconds(0.5))
    if reply is None:
        log.warning("an order is asked once more, for zero rows: its child ended without a reply")
        reply = _in_a_child(lambda: keeper.answer(order, nothing=True), seconds(1.0))
    if reply is None:
        log.error("an order is not answered: zero rows were not made in time, either")
    return reply


def _received(relay: socket.socket, most: int, deadline: float) -> bytes:
    """A frame that comes in time, and is not longer than allowed."""
    (size,) = LENGTH.unpack(receive(relay, LENGTH.size, deadline))
    if size > most:
        raise DataError(f"a request must be at most {most} bytes, got {size}; see gate.most_bytes")
    return receive(relay, size, deadline)


def _in_a_child(work: Callable[[], bytes], longest: float) -> bytes | None:
    """What a child of this process makes of it; None if it dies, or takes too long.

    Whatever the child has started is ended before this returns, and none of it is waited for.

    Args:
        work: what the child does. It may disarm the alarm (``ITIMER_REAL``) once, when all that is
            left is to store its reply: ended there, the reply would be lost, and yet be spent.
        longest: seconds until the alarm ends it; this process does half as many later, at most
            ``_STORING``, if it is still there.
    """
    _process_control(_ADOPT_ORPHANS, 1)
    others = _children()  # a gate has none
    began, reply = time.monotonic(), None
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _and_end(work, writing, longest)
    os.close(writing)
    try:
        last = time.monotonic() + longest + min(_STORING, longest / 2)
        reply = _read_reply(reading, child, last)
    finally:
        os.close(reading)
        after, status = time.monotonic() - began, _end_all(child, others)
        if reply is None:
            log.warning("a child ended by %s after %.1f s", _ended(status), after)
    return reply


def _ended(status: int) -> str:
    """How a process ended, for the owner's log."""
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if not number:
        return f"exit code {os.waitstatus_to_exitcode(status)}"
    late = ": its time was up" if number == signal.SIGALRM else ""
    return f"signal {number} ({signal.strsignal(number)}{late})"


def _process_control(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}) is refused: use Linux 3.4 or newer")


def _end_all(child: int, others: set[int]) -> int:
    """End a child and all that it has started, in whatever session; how the child has ended.

    What loses its parent becomes a child of this process, so that each pass finds the next.
    """
    ended = 0
    deadline, found = time.monotonic() + _PATIENCE, {child}
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    while found:
        for each in found:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        for each in found:
            with suppress(ChildProcessError):
                number, status = os.waitpid(each, 0)
                ended = status if number == child else ended
        found = _children() - others
        if found and time.monotonic() > deadline:
            raise SystemExit(f"{len(found)} processes of a request cannot be ended: the gate ends")
    return ended


def _children() -> set[int]:
    """The processes whose parent this one is."""
    found: set[int] = set()
    for listed in Path("/proc/self/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            found.update(map(int, listed.read_text().split()))
    return found


def _and_end(work: Callable[[], bytes], writing: int, longest: float) -> None:
    """In the child: the whole reply, or nothing; and no code of the parent's after it."""
    code = 1
    try:
        _process_control(_END_WITH_PARENT, signal.SIGKILL)
        os.setsid()
        with suppress(OSError):  # where memory runs out, this process ends, and not the gate
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # so that an interrupt is a record's
        contain_all()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, max(longest, 1e-6))
        with os.fdopen(writing, "wb") as pipe:
            reply = work()
            pipe.write(LENGTH.pack(len(reply)) + reply)
        code = 0
    except BaseException:
        log.exception("a request could not be answered")
    finally:
        os._exit(code)


def _read_reply(reading: int, child: int, deadline: float) -> bytes | None:
    """A whole reply as soon as it is there; None if the child ends without one, or is late.

    The pipe's end is not waited for: what the child has started may hold it open.
    """
    found, watched = bytearray(), [reading]
    with suppress(OSError):  # Linux before 5.3: what the child has started can hold None back
        watched.append(os.pidfd_open(child))
    try:
        while True:
            if len(found) >= LENGTH.size:
                (size,) = LENGTH.unpack(found[: LENGTH.size])
                if len(found) - LENGTH.size >= size:
                    return bytes(found[LENGTH.size : LENGTH.size + size])
            left = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select(watched, [], [], left)
            if (
                watched[-1] in ready
            ):  # what it wrote last may have come after the pipe was looked at
                ready, _, _ = select.select([reading], [], [], 0.0)
            part = os.read(reading, 1 << 20) if reading in ready else b""
            if not part:
                return None
            found += part
    finally:
        for ended in watched[1:]:
            os.close(ended)
