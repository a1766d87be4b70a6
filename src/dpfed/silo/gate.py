# SPDX-License-Identifier: Apache-2.0
"""The gate: the data owner's process behind a Unix socket, through which all replies leave.

    dpfed silo serve silo.toml

One request at a time: a frame comes in, a child makes the reply, a frame goes out. The child is
forked by another process, which has loaded the data (keeper.py). This one has no record: it decides
who is heard, how often, and when a reply leaves. Whatever a child does, or dies of, it continues.

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
| data that cannot be loaded, or end the process   | the gate ends with a sentence in its       |
| that loads them                                  | owner's log, and opens no socket           |
| this process is killed                           | the keeper and its children end, too       |
| the socket's folder is not the owner's alone, or | refused: ``dpfed silo check`` says why     |
| a link is in its path                            |                                            |
| another gate serves from the same state          | this one ends with a sentence, before it   |
|                                                  | touches a socket or a file                 |
| a copy is put in the place of the state's folder | ends with a sentence within seconds, and   |
|                                                  | answers no order before                    |
"""

from __future__ import annotations

import logging
import math
import os
import pwd
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import scipy.special  # noqa: F401  a child would load it anew for each order's cost
import torch  # noqa: F401  likewise

from dpfed.core.errors import DataError
from dpfed.core.files import locked_file
from dpfed.core.jail import harden
from dpfed.core.log import OneLine, log
from dpfed.silo.frames import LENGTH, receive
from dpfed.silo.handler import RequestHandler
from dpfed.silo.keeper import Asked, Keeper
from dpfed.silo.owner import refuse_shared_state
from dpfed.silo.policy import GatePolicy, Policy
from dpfed.silo.publish import Publisher

_LOCK, _LOCK_TIMEOUT_S = "gate.lock", 5.0
_CREDENTIALS = struct.Struct("3i")
_PATIENCE_S = 10.0  # for the keeper to end a child that takes too long, and to say so
_LOOK_S = 5.0  # between two looks at the folder of the state
_FRAME_TIMEOUT_S = 5.0  # for a whole request to come in, or a whole reply to be taken


def run_gate(policy: Policy, ready: Callable[[], None] = lambda: None, digest: str = "") -> None:
    """Reply to requests until the process is told to end.

    Args:
        policy: the owner's.
        ready: called once the socket is open.
        digest: of the bytes that the policy was parsed from.
    """
    harden()
    written = logging.StreamHandler()
    written.setFormatter(OneLine())  # an error may quote an order's text
    log.addHandler(written)
    with only_gate(Path(policy.gate.state)) as in_place:
        _run(policy, ready, digest, in_place)


@contextmanager
def only_gate(state: Path) -> Iterator[Callable[[], None]]:
    """Hold the lock of a state folder; DataError if another gate holds it.

    Args:
        state: the folder; it is made if missing.

    Returns:
        a context with a function that refuses to go on where another folder, such as a copy, was
        put in its place: another gate could lock that one.
    """
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    refuse_shared_state(state)
    last = time.monotonic() + _LOCK_TIMEOUT_S  # a killed gate's child has the lock until it ends
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(locked_file(state / _LOCK, wait=False))
                break
            except BlockingIOError as error:
                if time.monotonic() > last:
                    raise DataError(
                        f"gate.state must be one gate's alone, got {str(state)!r}, from which "
                        f"another one serves; stop that one first, or give this one a state of "
                        f"its own"
                    ) from error
            time.sleep(0.05)
        mine = _identity(state / _LOCK)

        def check() -> None:
            if _identity(state / _LOCK) != mine:
                raise DataError(
                    f"gate.state must stay in its place while a gate runs, and another folder was "
                    f"put at {str(state)!r}; stop the gate before files are put back, and start it "
                    f"again"
                )

        yield check


def _identity(path: Path) -> tuple[int, int] | None:
    with suppress(FileNotFoundError):
        facts = path.stat()
        return facts.st_dev, facts.st_ino
    return None


def _run(
    policy: Policy, ready: Callable[[], None], digest: str, in_place: Callable[[], None]
) -> None:
    handler = RequestHandler(policy)
    users = {pwd.getpwnam(name).pw_uid for name in policy.gate.relay_users}
    with Keeper(handler) as keeper:
        keeper.look(math.inf)
        with listen(policy.gate) as gate:
            log.info("the gate listens on %s", policy.gate.socket)
            publisher = Publisher(handler)
            publisher.begin(digest)
            ready()
            _serve(gate, keeper, users, publisher, in_place)


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
    gate: socket.socket,
    keeper: Keeper,
    users: set[int],
    publisher: Publisher,
    in_place: Callable[[], None],
) -> None:
    recent: deque[float] = deque(maxlen=keeper.handler.policy.gate.per_minute)
    gate.settimeout(_LOOK_S)
    while True:
        in_place()
        keeper.look()
        try:
            relay, _ = gate.accept()
        except TimeoutError:
            continue
        with relay:
            in_place()
            if len(recent) == recent.maxlen:
                time.sleep(max(0.0, recent[0] + 60 - time.monotonic()))
            recent.append(time.monotonic())
            try:
                _serve_request(relay, keeper, users)
            except Exception:
                log.exception("a request failed; the gate continues")
        publisher.publish()  # once the reply has left


def _serve_request(relay: socket.socket, keeper: Keeper, users: set[int]) -> None:
    """Read one request of a connection, and send its reply."""
    packed = relay.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(packed)
    if user not in users:
        if user not in (0, os.geteuid()):  # whose health checks connect and close
            log.warning("refused user %d, whom gate.relay_users does not name", user)
        return
    policy = keeper.handler.policy.gate
    deadline = time.monotonic() + _FRAME_TIMEOUT_S
    relay.settimeout(_FRAME_TIMEOUT_S)
    if not relay.recv(1, socket.MSG_PEEK):
        return  # a health check
    order = _receive_frame(relay, policy.most_bytes, deadline)
    began = time.monotonic()  # at the last byte: a sender who holds it back gains nothing
    reply = _reply_in_time(keeper, order, began)
    time.sleep(max(0.0, began + policy.answer_after - time.monotonic()))
    if reply is not None:
        relay.settimeout(_FRAME_TIMEOUT_S)
        relay.sendall(LENGTH.pack(len(reply)) + reply)


def _reply_in_time(keeper: Keeper, order: bytes, began: float) -> bytes | None:
    """The reply to an order; None if even zero rows were not made in time."""
    peek, policy = keeper.handler.peek(order), keeper.handler.policy.gate
    if peek.refusal is not None:
        return peek.refusal

    def ask(fraction: float, *, zero_rows: bool) -> bytes | None:
        """What a child makes that must end within this fraction of ``answer_after``."""
        now = time.monotonic()
        deadline, last = now + policy.longest, now + policy.longest + _PATIENCE_S
        if policy.answer_after:
            deadline = min(deadline, max(now, began + fraction * policy.answer_after))
            last = began + policy.answer_after
        asked = Asked(
            order=order,
            training=peek.training,
            came=keeper.handler.came,
            deadline=deadline,
            zero_rows=zero_rows,
        )
        return keeper.ask(asked, last)

    reply = ask(0.5, zero_rows=False)
    if reply is None:
        log.warning(
            "the child of a request ended without a reply; a second one sends an all-zero update"
        )
        reply = ask(1.0, zero_rows=True)
    if reply is None:
        log.error("no reply is sent: zero rows were not made in time, either")
    return reply


def _receive_frame(relay: socket.socket, most: int, deadline: float) -> bytes:
    """Read one frame, if it comes in time and is not longer than allowed."""
    (size,) = LENGTH.unpack(receive(relay, LENGTH.size, deadline))
    if size > most:
        raise DataError(f"a request must be at most {most} bytes, got {size}; see gate.most_bytes")
    return receive(relay, size, deadline)
