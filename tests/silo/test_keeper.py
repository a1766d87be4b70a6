# SPDX-License-Identifier: Apache-2.0
"""The keeper: limits while data are loaded, and what is sent if it ends. Records stay with it."""

from __future__ import annotations

import math
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpfed.core.errors import DataError
from dpfed.core.types import Unit
from dpfed.data.models import LinearProblem
from dpfed.silo import gate, keeper
from dpfed.silo.frames import ask
from dpfed.silo.handler import Peek
from dpfed.silo.keeper import Keeper
from dpfed.silo.publish import running as running_gate
from tests.helpers.gate_parts import ME, ORDER, REPLY, RequestHandler, framed, kept
from tests.helpers.handlers import _own_environment, approved, order, said  # noqa: F401
from tests.silo.gates import CLASSES, FEATURES, RECORDS, Silo, read, terms_for


def killed(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def gone(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return "(zombie)" in Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return True


def comes(what: Callable[[], bool], seconds: float = 10.0) -> bool:
    last = time.monotonic() + seconds
    while not what() and time.monotonic() < last:
        time.sleep(0.01)
    return what()


def request(one: Keeper, sent: bytes = ORDER) -> tuple[bytes, float]:
    """What the other side of a gate's socket gets until it is closed, and after how long."""
    relay, other = socket.socketpair(socket.AF_UNIX)
    other.settimeout(30.0)
    with other:
        other.sendall(framed(sent))
        began = time.monotonic()
        with relay:
            gate._serve_request(relay, one, {ME})
        found = b"".join(iter(lambda: other.recv(1 << 16), b""))
        return found, time.monotonic() - began


# ------------------------------------------------------------------------------------- loading


class Loads(RequestHandler):
    """One whose data do this while they are loaded."""

    def __init__(self, folder: Path, loads: Callable[[], object], **changes: Any) -> None:
        super().__init__(folder, lambda: REPLY, **changes)
        self.open = loads  # type: ignore[method-assign]


def refused() -> None:
    raise DataError("data.sepsis must have rows, got none; give some")


def breaks() -> None:
    raise ValueError("patient 4711")


def takes_all() -> None:
    bytes(1 << 30)


@pytest.mark.parametrize(
    ("loads", "sentence"),
    [
        (refused, "^data.sepsis must have rows, got none; give some$"),
        (lambda: killed(os.getpid()), "must stay, and ended with signal 9 "),
        (breaks, "must stay, and ended with exit code 1"),
        (takes_all, "exit code 1; .* takes more than the 0.1 GiB that this machine"),
        (lambda: time.sleep(60), "within gate.longest, 1 s, and were not"),
    ],
    ids=["refused", "killed", "breaks", "memory", "time"],
)
def test_data_that_cannot_be_loaded_end_the_gate_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loads: Callable[[], object], sentence: str
) -> None:
    monkeypatch.setattr(keeper, "machine_memory", lambda: 100 << 20)
    began = time.monotonic()
    with pytest.raises(DataError, match=sentence), kept(Loads(tmp_path, loads, longest=1.0)):
        pytest.fail("it goes on")
    assert time.monotonic() - began < 10.0


@pytest.mark.slow
def test_a_gate_opens_no_socket_before_the_data_are_loaded(tmp_path: Path) -> None:
    silo = Silo(tmp_path / "silo", 0)
    silo.write(shape=[FEATURES + 1])
    assert "data.sepsis.shape must be" in silo.command("serve")
    assert not silo.socket.exists()


# ---------------------------------------------------------------------------------- it ends


def test_another_one_replies_if_it_ended_while_no_order_was_there(tmp_path: Path) -> None:
    handler = RequestHandler(tmp_path, lambda: REPLY)
    with kept(handler) as one:
        first = one._child.pid
        killed(first)
        assert comes(lambda: gone(first))
        one.look(time.monotonic() + 20)
        assert one._child.pid != first
        assert request(one)[0] == framed(REPLY)
    assert handler.asked() == ["asked-False"]
    assert gone(one._child.pid)


@pytest.mark.parametrize("answer_after", [0.0, 3.0])
def test_zero_rows_are_sent_if_it_ends_while_a_reply_is_made(
    tmp_path: Path, answer_after: float
) -> None:
    def kills() -> bytes:
        killed(os.getppid())
        time.sleep(60)
        return REPLY

    with kept(RequestHandler(tmp_path, kills, answer_after=answer_after)) as one:
        reply, taken = request(one)
        assert reply == framed(b"zero rows")
        assert answer_after <= taken < answer_after + 5


def test_if_the_data_are_not_there_in_time_nothing_is_sent_and_not_later(tmp_path: Path) -> None:
    times = tmp_path / "times"

    def loads() -> None:
        if times.exists():
            time.sleep(20)
        times.touch()

    handler = Loads(tmp_path, loads, answer_after=1.0)
    handler.first = lambda: killed(os.getppid())  # type: ignore[assignment,return-value]
    with kept(handler) as one:
        reply, taken = request(one)
    assert reply == b""
    assert 1.0 <= taken < 3.0


@pytest.mark.parametrize("answer_after", [0.0, 1.5])
def test_one_that_says_nothing_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer_after: float
) -> None:
    """A training that takes all time while it is built."""
    monkeypatch.setattr(gate, "_PATIENCE_S", 0.5)
    handler = RequestHandler(tmp_path, lambda: REPLY, longest=1.0, answer_after=answer_after)
    handler.peek = lambda order: Peek(None, "built for ever")  # type: ignore[method-assign]
    handler.prepare = lambda name: time.sleep(60)  # type: ignore[attr-defined]
    with kept(handler) as one:
        first = one._child.pid
        reply, taken = request(one)
        assert gone(first)
    assert reply == b""
    assert (answer_after or 3.0) <= taken < (answer_after or 3.0) + 4.0


def test_nobody_waits_for_a_socket_that_another_one_has_inherited(tmp_path: Path) -> None:
    """It begins in the midst of a request: it would hold the relay's connection open."""
    relay, other = socket.socketpair(socket.AF_UNIX)
    other.settimeout(10.0)
    with other, kept(RequestHandler(tmp_path, lambda: REPLY)) as one:
        with relay:
            one._begin_again("a test")
        assert other.recv(1) == b""
        assert not gone(one._child.pid)


def test_if_the_gate_is_killed_nobody_is_left_at_the_data(tmp_path: Path) -> None:
    def works() -> bytes:
        (tmp_path / "child").write_text(f"{os.getpid()} {os.getppid()}")
        time.sleep(60)
        return REPLY

    parent = os.fork()
    if parent == 0:
        with suppress(BaseException), kept(RequestHandler(tmp_path, works)) as one:
            request(one)
        os._exit(0)
    written = tmp_path / "child"
    assert comes(lambda: written.exists() and " " in written.read_text())
    pids = [int(each) for each in written.read_text().split()]
    killed(parent)
    os.waitpid(parent, 0)
    assert comes(lambda: all(gone(each) for each in pids))


@pytest.mark.parametrize("value", [0.5, 1e30, math.nan])
def test_a_reply_is_of_one_form_whatever_record_has_ended_the_keeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    held, terms = approved(tmp_path)
    expected = said(held.reply(order(terms)))
    real = LinearProblem.rows

    def ends(self: LinearProblem, params: torch.Tensor, unit: Unit) -> Any:
        if os.getpid() != parent and len(self.y) == RECORDS and not_yet.exists():
            not_yet.unlink()
            killed(os.getppid())
            time.sleep(60)
        return real(self, params, unit)

    parent, not_yet = os.getpid(), tmp_path / "not yet"
    not_yet.touch()
    monkeypatch.setattr(LinearProblem, "rows", ends)
    x, y = np.full((RECORDS, FEATURES), value, np.float32), np.zeros(RECORDS, np.int64)
    np.savez(tmp_path / "silo" / "data.npz", x=x, y=y % CLASSES)
    with kept(held) as one:
        found = said(request(one, order(terms, round=1))[0][8:])
    assert not not_yet.exists()
    assert found.keys() == expected.keys()
    assert "error" not in found
    entries = [row for row in held.ledger().rows() if row.body["kind"] == "entry"]
    assert [row.body["round"] for row in entries] == [0, 1]


# --------------------------------------------------------------------------- who has the records


def children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(each) for path in listed for each in path.read_text(encoding="ascii").split()]


def holds(pid: int, mark: bytes) -> bool:
    """Whether these bytes are in a process's own memory."""
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text(encoding="ascii").splitlines():
            bounds, rights, *_ = line.split()
            if rights.startswith("rw") and "[vvar]" not in line:
                start, end = (int(each, 16) for each in bounds.split("-"))
                with suppress(OSError):
                    memory.seek(start)
                    if mark in memory.read(end - start):
                        return True
    return False


@contextmanager
def running(folder: Path) -> Iterator[tuple[Silo, Path]]:
    silo, path = Silo(folder / "silo", 0), terms_for(folder, 3)
    silo.write()
    silo.approve(path)
    try:
        yield silo, path
    finally:
        silo.kill()


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads another process's memory")
def test_the_gates_own_process_has_no_record_and_goes_on_without_its_keeper(
    tmp_path: Path,
) -> None:
    with running(tmp_path) as (silo, path):
        x = np.random.default_rng(7).standard_normal((RECORDS, FEATURES)).astype(np.float32)
        np.savez(silo.folder / "data.npz", x=x, y=np.arange(RECORDS) % CLASSES)
        mark = x[RECORDS // 2].tobytes()
        silo.start()
        gates = running_gate(silo.folder / "state")["pid"]  # not its launcher
        for at in range(3):
            assert "error" not in said(ask(str(silo.socket), order(read(path), at), 60))
            (child,) = children(gates)
            assert holds(child, mark)
            assert not holds(gates, mark)
            killed(child)
            assert comes(lambda child=child: gone(child))  # type: ignore[misc]
