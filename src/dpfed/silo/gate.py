# SPDX-License-Identifier: Apache-2.0
"""The gate: the data owner's process, the only one that reads the data, behind a Unix socket.

    dpfed silo serve silo.toml

One request at a time: a frame comes in, a forked child makes the reply, a frame goes out. The data,
torch and the models are loaded once, in this process, and each child inherits them. Whatever a
child does, or dies of, this process continues.

| edge case                                        | what happens                               |
|--------------------------------------------------|--------------------------------------------|
| a user that the policy does not name             | the connection is closed                   |
| a frame that is too long, cut off, or slow       | closed; nothing is read into memory beyond |
|                                                  | what the policy allows                     |
| more requests in a minute than allowed           | they wait                                  |
| a child that dies, or takes too long             | a second child replies with zero rows: the |
|                                                  | form of a reply is always the same, and    |
|                                                  | with ``answer_after`` its time is, too     |
| a sender that holds its last byte back           | ``answer_after`` counts from that byte     |
| a child that starts processes of its own         | they end with it, in whatever session they |
|                                                  | are, and no reply waits for them           |
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

import scipy.special  # noqa: F401  a child would load it anew for each order's cost
import torch

from dpfed.core.errors import DataError, contain_all
from dpfed.core.log import OneLine, log
from dpfed.silo.frames import LENGTH, receive
from dpfed.silo.handler import RequestHandler
from dpfed.silo.policy import GatePolicy, Policy
from dpfed.silo.publish import Publisher

_CREDENTIALS = struct.Struct("3i")
_FRAME_TIMEOUT_S = 5.0  # for a whole request to come in, or a whole reply to be taken
_KILL_TIMEOUT_S = 5.0  # for all processes of a request to end
_STORE_TIMEOUT_S = 2.0  # for a reply that is made to be entered in the ledger and stored
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36  # of prctl, on Linux
_MCL_CURRENT_AND_FUTURE = 3  # of mlockall: all pages that are there, and those to come
_OOM_SCORE = "500"  # a shard's process has 1000: one record that takes all memory empties one shard


def run_gate(policy: Policy, ready: Callable[[], None] = lambda: None, digest: str = "") -> None:
    """Reply to requests until the process is told to end.

    Args:
        policy: the owner's.
        ready: called once the socket is open.
        digest: of the bytes that the policy was parsed from.
    """
    harden()
    torch.set_num_threads(1)  # before threads start: a forked child would wait for them for ever
    written = logging.StreamHandler()
    written.setFormatter(OneLine())  # an error may quote an order's text
    log.addHandler(written)
    handler = RequestHandler(policy)
    handler.open()
    users = {pwd.getpwnam(name).pw_uid for name in policy.gate.relay_users}
    with listen(policy.gate) as gate:
        log.info("the gate listens on %s", policy.gate.socket)
        publisher = Publisher(handler)
        publisher.begin(digest)
        ready()
        _serve(gate, handler, users, publisher)


def harden() -> None:
    """Keep others from reading this process's memory: no dump, no core file, no swap if allowed."""
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        log.warning("this system lets other processes of the gate's user read its memory")
    if library.mlockall(_MCL_CURRENT_AND_FUTURE):
        log.warning("memory may be swapped to disk: raise the limit 'memlock', or encrypt the swap")


def listen(gate: GatePolicy) -> socket.socket:
    """The socket, in a folder that only the owner can write, open to the relay's group."""
    path = Path(gate.socket)
    refuse_open_folder(path.parent)
    if path.is_socket():
        path.unlink()  # left by a gate that was killed
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
    """Refuse a folder in which somebody else could put a socket of their own.

    Args:
        folder: the socket's.
        user: whose folder it must be; None means the user of this process.
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


def _serve(
    gate: socket.socket, handler: RequestHandler, users: set[int], publisher: Publisher
) -> None:
    recent: deque[float] = deque(maxlen=handler.policy.gate.per_minute)
    while True:
        relay, _ = gate.accept()
        with relay:
            if len(recent) == recent.maxlen:
                time.sleep(max(0.0, recent[0] + 60 - time.monotonic()))
            recent.append(time.monotonic())
            try:
                _serve_request(relay, handler, users)
            except Exception:
                log.exception("a request failed; the gate continues")
        publisher.publish()  # once the reply has left


def _serve_request(relay: socket.socket, handler: RequestHandler, users: set[int]) -> None:
    """Read one request of a connection, and send its reply."""
    packed = relay.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(packed)
    if user not in users:
        if user not in (0, os.geteuid()):  # whose health checks connect and close
            log.warning("refused user %d, whom gate.relay_users does not name", user)
        return
    policy = handler.policy.gate
    deadline = time.monotonic() + _FRAME_TIMEOUT_S
    relay.settimeout(_FRAME_TIMEOUT_S)
    if not relay.recv(1, socket.MSG_PEEK):
        return  # a health check
    order = _receive_frame(relay, policy.most_bytes, deadline)
    began = time.monotonic()  # at the last byte: a sender who holds it back gains nothing
    reply = _reply_in_time(handler, order, began)
    time.sleep(max(0.0, began + policy.answer_after - time.monotonic()))
    if reply is not None:
        relay.settimeout(_FRAME_TIMEOUT_S)
        relay.sendall(LENGTH.pack(len(reply)) + reply)


def _reply_in_time(handler: RequestHandler, order: bytes, began: float) -> bytes | None:
    """The reply to an order; None if even zero rows were not made in time."""
    policy = handler.policy.gate

    def seconds(fraction: float) -> float:
        """How long a child may take that must end within this fraction of ``answer_after``."""
        if not policy.answer_after:
            return policy.longest
        last = began + fraction * policy.answer_after
        return min(policy.longest, max(0.0, last - time.monotonic()))

    reply = handler.refuse_early(order)
    if reply is None:
        reply = _run_in_child(lambda: handler.reply(order), seconds(0.5))
    if reply is None:
        log.warning(
            "the child of a request ended without a reply; a second one sends an all-zero update"
        )
        reply = _run_in_child(lambda: handler.reply(order, zero_rows=True), seconds(1.0))
    if reply is None:
        log.error("no reply is sent: zero rows were not made in time, either")
    return reply


def _receive_frame(relay: socket.socket, most: int, deadline: float) -> bytes:
    """Read one frame, if it comes in time and is not longer than allowed."""
    (size,) = LENGTH.unpack(receive(relay, LENGTH.size, deadline))
    if size > most:
        raise DataError(f"a request must be at most {most} bytes, got {size}; see gate.most_bytes")
    return receive(relay, size, deadline)


def _run_in_child(work: Callable[[], bytes], longest: float) -> bytes | None:
    """What ``work`` returns in a forked child; None if the child dies, or takes too long.

    Whatever the child has started is killed before this returns.

    Args:
        work: what the child does. It may disarm its alarm (``ITIMER_REAL``) once its reply only has
            to be stored: killed there, the reply would be lost although its budget is spent.
        longest: seconds until the alarm ends the child. If it is still there after half as many
            more, at most ``_STORE_TIMEOUT_S``, this process kills it.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    others = _children()  # a gate has none; a test may have some
    began, reply = time.monotonic(), None
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _child_main(work, writing, longest)
    os.close(writing)
    try:
        last = time.monotonic() + longest + min(_STORE_TIMEOUT_S, longest / 2)
        reply = _read_reply(reading, child, last)
    finally:
        os.close(reading)
        after, status = time.monotonic() - began, _kill_all(child, others)
        if reply is None:
            log.warning("a request's child ended with %s after %.1f s", _exit_reason(status), after)
    return reply


def _exit_reason(status: int) -> str:
    """How a process ended, for the owner's log."""
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if not number:
        return f"exit code {os.waitstatus_to_exitcode(status)}"
    late = ": out of time" if number == signal.SIGALRM else ""
    return f"signal {number} ({signal.strsignal(number)}{late})"


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed: use Linux 3.4 or newer")


def _kill_all(child: int, others: set[int]) -> int:
    """Kill a child and all that it has started, in whatever session; returns the child's status.

    A process that loses its parent becomes a child of this one, so each pass finds the next ones.
    """
    ended = 0
    deadline, found = time.monotonic() + _KILL_TIMEOUT_S, {child}
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
            raise SystemExit(f"{len(found)} processes of a request cannot be killed: the gate ends")
    return ended


def _children() -> set[int]:
    """The processes whose parent this one is."""
    found: set[int] = set()
    for listed in Path("/proc/self/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            found.update(map(int, listed.read_text().split()))
    return found


def _child_main(work: Callable[[], bytes], writing: int, longest: float) -> None:
    """In the child: write the whole reply or nothing, then exit without the parent's clean-up."""
    code = 1
    try:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()
        with suppress(OSError):  # out of memory, the system ends this process and not the gate
            Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE, encoding="ascii")
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # then only a record raises KeyboardInterrupt
        contain_all()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, max(longest, 1e-6))
        with os.fdopen(writing, "wb") as pipe:
            reply = work()
            pipe.write(LENGTH.pack(len(reply)) + reply)
        code = 0
    except BaseException:
        log.exception("a request could not be answered")  # docs/silo.md names these words
    finally:
        os._exit(code)


def _read_reply(reading: int, child: int, deadline: float) -> bytes | None:
    """The reply as soon as all of it is there; None if the child ends or its time is over.

    It does not wait for the pipe to close: what the child has started may hold it open.
    """
    found, watched = bytearray(), [reading]
    with suppress(OSError):  # before Linux 5.3 an open pipe hides a child's end until the deadline
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
