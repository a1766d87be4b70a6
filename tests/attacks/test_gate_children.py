# SPDX-License-Identifier: Apache-2.0
"""A gate's clock starts with the last byte, and nothing that a request has started outlives it.

Before: a relay that held the last byte of its order back for 4.8 s got the answer when the work was
done, ``answer_after`` or not. A train function that had forked held the pipe open: the answer came
at the time limit, and the fork went on after it, with the data in its memory.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dpfed.silo import gate
from dpfed.silo.keeper import reply_in_child
from tests.helpers.gate_parts import ME, ORDER, REPLY, RequestHandler, framed, kept

pytestmark = pytest.mark.slow  # each waits for a clock


def asked(handler: RequestHandler, hold: float) -> tuple[bytes, float]:
    """The reply to an order whose last byte comes late, and the seconds from that byte on."""
    relay, other = socket.socketpair(socket.AF_UNIX)
    other.settimeout(20.0)

    def serve() -> None:
        with relay:
            gate._serve_request(relay, keeper, {ME})

    with other, kept(handler) as keeper:
        serving = threading.Thread(target=serve)
        serving.start()
        other.sendall(framed(ORDER)[:-1])
        time.sleep(hold)
        began = time.monotonic()
        other.sendall(framed(ORDER)[-1:])
        reply = other.recv(1 << 16)
        taken = time.monotonic() - began
        serving.join()
    return reply, taken


@pytest.mark.parametrize(
    ("work", "hold"),
    [
        (0.0, 0.0),
        pytest.param(9.0, 3.2, marks=pytest.mark.long),
        pytest.param(0.4, 3.2, marks=pytest.mark.long),
        pytest.param(9.0, 0.0, marks=pytest.mark.long),
    ],
)
def test_a_slow_last_byte_gains_nothing(tmp_path: Path, work: float, hold: float) -> None:
    handler = RequestHandler(tmp_path, lambda: time.sleep(work) or REPLY, answer_after=3.0)
    reply, taken = asked(handler, hold)
    assert reply == framed(b"zero rows" if work > 1 else REPLY)
    assert 3.0 <= taken < 4.5  # a loaded machine takes its time; the fault left at once


def test_no_answer_at_all_comes_at_the_same_time(tmp_path: Path) -> None:
    """Even zero rows may fail, of a full disk: then the connection is closed, and no sooner."""
    handler = RequestHandler(tmp_path, die, answer_after=0.8)
    handler.reply = lambda order, zero_rows=False: die()  # type: ignore[method-assign]
    reply, taken = asked(handler, 0.0)
    assert reply == b""
    assert 0.8 <= taken < 1.5


# ------------------------------------------------------------------------- processes of a request


def die() -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


def leave(behind: Path, *, session: bool = False, twice: bool = False) -> None:
    """Start a process that goes on; it has the reply's pipe, and the data, in its hands."""
    if os.fork() == 0:
        if session:
            os.setsid()
        if twice and os.fork():
            os._exit(0)  # a daemon: its parent is gone
        behind.write_text(str(os.getpid()))
        time.sleep(60)
        os._exit(0)
    while not behind.exists() or not behind.read_text():
        time.sleep(0.005)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("end", [lambda: REPLY, die], ids=["answers", "dies"])
@pytest.mark.parametrize("twice", [False, True], ids=["child", "daemon"])
@pytest.mark.parametrize("session", [False, True], ids=["same session", "own session"])
def test_what_a_train_function_has_started_ends_with_it_and_holds_no_answer(
    tmp_path: Path, session: bool, twice: bool, end: Callable[[], bytes]
) -> None:
    behind = tmp_path / "pid"

    def work() -> bytes:
        leave(behind, session=session, twice=twice)
        return end()

    began = time.monotonic()
    assert reply_in_child(work, 30.0) == (None if end is die else REPLY)
    assert time.monotonic() - began < 10.0
    assert gone(int(behind.read_text()))


def test_so_it_is_where_the_time_is_up(tmp_path: Path) -> None:
    behind = tmp_path / "pid"

    def work() -> bytes:
        leave(behind, session=True, twice=True)
        time.sleep(60)
        return REPLY

    assert reply_in_child(work, 1.0) is None
    assert gone(int(behind.read_text()))


def test_processes_that_were_there_before_go_on() -> None:
    other = os.fork()
    if other == 0:
        time.sleep(60)
        os._exit(0)
    try:
        assert reply_in_child(lambda: REPLY, 10.0) == REPLY
        assert not gone(other)
    finally:
        os.kill(other, signal.SIGKILL)
        os.waitpid(other, 0)


def test_a_gate_that_is_killed_leaves_nobody_at_the_data(tmp_path: Path) -> None:
    written = tmp_path / "pid"

    def work() -> bytes:
        written.write_text(str(os.getpid()))
        time.sleep(60)
        return REPLY

    killed = os.fork()
    if killed == 0:
        reply_in_child(work, 60.0)
        os._exit(0)
    while not written.exists() or not written.read_text():
        time.sleep(0.01)
    os.kill(killed, signal.SIGKILL)
    os.waitpid(killed, 0)
    child = int(written.read_text())
    for _ in range(500):
        if gone(child) or "(zombie)" in Path(f"/proc/{child}/status").read_text():
            return
        time.sleep(0.01)
    pytest.fail("the child goes on")


def test_a_child_that_ignores_its_alarm_is_ended() -> None:
    def work() -> bytes:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        time.sleep(30)
        return REPLY

    began = time.monotonic()
    assert reply_in_child(work, 1.0) is None
    assert 1.4 <= time.monotonic() - began < 10.0


def test_an_older_system_is_answered_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(child: int) -> int:
        raise OSError(38, "not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert reply_in_child(lambda: REPLY, 10.0) == REPLY
    assert reply_in_child(die, 10.0) is None


def test_a_reply_that_is_being_stored_is_not_stopped() -> None:
    """Between the ledger's confirmation and the disk: it would be spent, and refused from then."""

    def work() -> bytes:
        signal.setitimer(signal.ITIMER_REAL, 0.0)  # as the handler's account does it
        time.sleep(1.3)
        return REPLY

    assert reply_in_child(work, 1.0) == REPLY
    assert reply_in_child(lambda: time.sleep(1.3) or REPLY, 1.0) is None
