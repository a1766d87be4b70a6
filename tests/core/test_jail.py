# SPDX-License-Identifier: Apache-2.0
"""A child with limits: its whole reply or none, no process left, and no memory but its own.

What a request leaves behind, and who waits for it: tests/attacks/test_gate_children.py.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dpfed.core import jail
from dpfed.core.jail import (
    ChildEnded,
    StayingChild,
    harden,
    harden_again,
    machine_memory,
    run_in_child,
)

REPLY = b"a reply"
NOBODY = 65534


def die() -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


def late() -> bytes:
    time.sleep(20)
    return REPLY


@pytest.mark.parametrize("size", [0, 1, 3_000_000])
def test_a_childs_whole_reply_is_passed_on(size: int) -> None:
    assert run_in_child(lambda: bytes(size), 10.0) == bytes(size)


def test_a_reply_that_is_cut_off_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that dies while it writes: what is there already is not an answer."""

    def write_half(work: Callable[[], bytes], writing: int, *limits: object) -> None:
        reply = work()
        os.write(writing, struct.pack(">Q", len(reply)) + reply[:-1])
        os._exit(0)

    monkeypatch.setattr(jail, "_child_main", write_half)
    with pytest.raises(ChildEnded, match="exit code 0"):
        run_in_child(lambda: REPLY, 10.0)


def test_no_child_is_left_behind_and_each_end_is_told() -> None:
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    before = children.read_text()
    assert run_in_child(lambda: REPLY, 10.0) == REPLY
    for work, reason in (
        (die, "signal 9 "),
        (late, "signal 14 .*out of time"),
        (lambda: bytes(1 // 0), "exit code 1"),
    ):
        with pytest.raises(ChildEnded, match=reason):
            run_in_child(work, 0.2)
    assert children.read_text() == before  # other tests of this process may have theirs


def test_memory_is_a_limit_of_the_child_alone() -> None:
    def take() -> bytes:
        try:
            return str(len(bytes(300 << 20))).encode()
        except MemoryError:
            return b"refused"

    assert run_in_child(take, 30.0, memory=100 << 20) == b"refused"
    assert run_in_child(take, 30.0, memory=1 << 30) == str(300 << 20).encode()
    assert run_in_child(take, 30.0) == str(300 << 20).encode()
    assert take() != b"refused"


def test_a_child_gains_no_rights() -> None:
    read = ctypes.CDLL(None).prctl
    assert run_in_child(lambda: bytes([read(39, 0, 0, 0, 0)]), 10.0) == b"\1"
    assert read(39, 0, 0, 0, 0) == 0


def test_a_child_waits_for_no_thread_of_its_parent() -> None:
    """Its own are not forked: torch would wait for them for ever."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert run_in_child(lambda: bytes([torch.get_num_threads()]), 10.0) == b"\1"
    finally:
        torch.set_num_threads(before)


# ------------------------------------------------------------------------------ a hardened process


def test_nobody_else_reads_a_hardened_process() -> None:
    """In a child: the test's own process stays as it is."""

    def facts() -> bytes:
        resource.setrlimit(resource.RLIMIT_CORE, (1, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        os.umask(0o022)
        harden()
        dumpable = ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)
        return json.dumps(
            [os.umask(0), resource.getrlimit(resource.RLIMIT_CORE), dumpable]
        ).encode()

    assert json.loads(run_in_child(facts, 60.0)) == [0o077, [0, 0], 0]


def score() -> int:
    return int(Path("/proc/self/oom_score_adj").read_text(encoding="ascii"))


def test_out_of_memory_the_child_ends_first() -> None:
    before = score()
    of_a_child = int(run_in_child(lambda: str(score()).encode(), 10.0))
    assert before < of_a_child
    assert score() == before


def test_a_hardened_process_of_no_special_rights_outlives_its_child() -> None:
    """A process that may not be dumped may not open its own score, nor may its child.

    Before: the gate's user is not root, so that no child's score was ever written.
    """

    def scores() -> list[int]:
        first = int(run_in_child(lambda: str(score()).encode(), 10.0))
        return [score(), first]

    def of_a_child_that_stays() -> list[int]:
        def work(other: socket.socket) -> None:
            harden_again()
            other.sendall(json.dumps(scores()).encode())

        child = StayingChild(work)
        found: list[int] = json.loads(child.connection.recv(100))
        child.end()
        return found

    process = os.fork()  # run_in_child would give it a score already
    if process == 0:
        code = 1
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
                ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # as a process that a service manager starts
            harden()
            found = [scores(), of_a_child_that_stays()]
            code = 0 if all(own < child == 500 for own, child in found) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0


# -------------------------------------------------------------------------- a child that stays


def test_a_child_that_stays_has_its_own_connection_and_no_other_socket() -> None:
    inherited, other = socket.socketpair()

    def work(connection: socket.socket) -> None:
        assert connection.recv(1) == b"x"
        connection.sendall(b"y")
        connection.recv(1)

    with inherited, other:
        child = StayingChild(work)
        inherited.close()
        other.settimeout(5.0)
        assert other.recv(1) == b""  # nobody else has it open
        child.connection.sendall(b"x")
        assert child.connection.recv(1) == b"y"
        assert child.end() == "signal 9 (Killed)"


def test_it_and_its_own_children_have_a_limit_of_memory() -> None:
    def take() -> bytes:
        try:
            return str(len(bytes(300 << 20))).encode()
        except MemoryError:
            return b"too much"

    def work(connection: socket.socket) -> None:
        connection.sendall(take().ljust(10) + run_in_child(take, 10.0).ljust(10))

    for memory, expected in ((200 << 20, b"too much"), (None, str(300 << 20).encode())):
        child = StayingChild(work, memory)
        assert child.connection.recv(20) == 2 * expected.ljust(10)
        child.end()


def test_nothing_is_left_of_it_and_what_it_has_started() -> None:
    def work(connection: socket.socket) -> None:
        started = os.fork()
        if started:
            connection.sendall(str(started).encode())
        else:
            os.setsid()
        time.sleep(60)

    child = StayingChild(work)
    started = int(child.connection.recv(10))
    child.end()
    for pid in (child.pid, started):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_machine_has_memory_and_a_container_what_it_may_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = machine_memory()
    assert 1 << 28 < whole < 1 << 50
    for said, expected in (("max", whole), (str(1 << 28), 1 << 28)):
        monkeypatch.setattr(Path, "read_text", lambda *_, said=said, **__: said)
        assert machine_memory() >= expected if said == "max" else machine_memory() == expected
