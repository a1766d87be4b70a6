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
| a child that dies, or takes too long             | asked once more for zero rows: if data did |
|                                                  | it, nobody can tell                        |
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

from dpfed.core.errors import DataError
from dpfed.core.log import OneLine, log
from dpfed.silo.keeper import Keeper
from dpfed.silo.policy import GatePolicy, Policy
from dpfed.silo.relay import LENGTH, receive

_CREDENTIALS = struct.Struct("3i")
_PATIENCE = 5.0  # seconds for a whole request to come in
_DUMPABLE, _LOCK_ALL = 4, 3


def run_gate(policy: Policy, ready: Callable[[], None] = lambda: None) -> None:
    """Answer until the process is told to end.

    Args:
        policy: the owner's.
        ready: called when requests are taken.
    """
    harden()
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
    policy, began = keeper.policy.gate, time.monotonic()
    order = _received(relay, policy.most_bytes, began + _PATIENCE)
    reply, longest = keeper.turned_away(order), policy.longest
    if policy.answer_after:  # half of it for each, so that no record can make an answer late
        longest = min(longest, policy.answer_after / 2)
    if reply is None:
        reply = _in_a_child(lambda: keeper.answer(order), longest)
    if reply is None:
        reply = _in_a_child(lambda: keeper.answer(order, nothing=True), longest)
    if reply is not None:
        time.sleep(max(0.0, began + policy.answer_after - time.monotonic()))
        relay.settimeout(_PATIENCE)
        relay.sendall(LENGTH.pack(len(reply)) + reply)


def _received(relay: socket.socket, most: int, deadline: float) -> bytes:
    """A frame that comes in time, and is not longer than allowed."""
    (size,) = LENGTH.unpack(receive(relay, LENGTH.size, deadline))
    if size > most:
        raise DataError(f"a request must be at most {most} bytes, got {size}; see gate.most_bytes")
    return receive(relay, size, deadline)


def _in_a_child(work: Callable[[], bytes], longest: float) -> bytes | None:
    """What a child of this process makes of it; None if it dies, or takes too long."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _and_end(work, writing)
    os.close(writing)
    try:
        return _read_all(reading, time.monotonic() + longest)
    finally:
        os.close(reading)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _and_end(work: Callable[[], bytes], writing: int) -> None:
    """In the child: the whole reply, or nothing; and no code of the parent's after it."""
    code = 1
    try:
        with os.fdopen(writing, "wb") as pipe:
            reply = work()
            pipe.write(LENGTH.pack(len(reply)) + reply)
        code = 0
    except BaseException:
        log.exception("a request could not be answered")
    finally:
        os._exit(code)


def _read_all(reading: int, deadline: float) -> bytes | None:
    found = bytearray()
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, deadline - time.monotonic()))
        part = os.read(reading, 1 << 20) if ready else b""
        if not part:
            break
        found += part
    whole = (
        len(found) >= LENGTH.size
        and LENGTH.unpack(found[: LENGTH.size])[0] == len(found) - LENGTH.size
    )
    return bytes(found[LENGTH.size :]) if whole else None
