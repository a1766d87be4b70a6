# SPDX-License-Identifier: Apache-2.0
"""The gate's parts, without a process of its own: who may connect, where, and what a child may do.

The whole of it, with real processes: tests/silo/test_gate.py.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from dpfed.core.errors import DataError
from dpfed.silo import gate
from dpfed.silo.frames import LENGTH
from dpfed.silo.gate import listen, refuse_open_folder
from tests.helpers.gate_parts import ME, ORDER, REPLY, RequestHandler, framed, kept, policy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of the gate's user; above it are pytest's own, and a sticky /tmp."""
    made = tmp_path / "above" / "run"
    made.mkdir(parents=True, mode=0o750)
    for each in (made, made.parent):
        each.chmod(0o750)
    return made


# ------------------------------------------------------------------------------------ the folder


def test_a_folder_of_the_owners_alone_is_taken(folder: Path) -> None:
    refuse_open_folder(folder)


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
@pytest.mark.parametrize("above", [False, True])
def test_a_folder_that_others_write_to_is_refused(folder: Path, above: bool, mode: int) -> None:
    (folder.parent if above else folder).chmod(mode)
    with pytest.raises(DataError, match=f"must be writable by its owner alone, got mode {mode:o}"):
        refuse_open_folder(folder)
    (folder.parent if above else folder).chmod(mode | 0o1000)  # sticky, as /tmp: others add only
    refuse_open_folder(folder)


def test_a_link_in_the_path_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder.parent)
    for path in (tmp_path / "link" / "run", tmp_path / "link"):
        with pytest.raises(DataError, match="link must be a folder, got a link"):
            refuse_open_folder(path)


def test_another_users_folder_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: ME + 4711)
    with pytest.raises(DataError, match=f"of user {ME}; chmod go-w"):
        refuse_open_folder(folder)
    with pytest.raises(DataError, match="/ must be writable"):
        refuse_open_folder(Path("/"))  # root's may be above, and not the folder itself


# ------------------------------------------------------------------------------------ the socket


def test_the_socket_is_open_to_owner_and_group_alone(folder: Path) -> None:
    before = os.umask(0o022)
    try:
        with listen(policy(folder)):
            assert (folder / "gate.sock").stat().st_mode & 0o777 == 0o660
        assert os.umask(0o022) == 0o022  # as it was
        with listen(policy(folder)):  # of a gate that was killed
            assert (folder / "gate.sock").is_socket()
    finally:
        os.umask(before)


def test_it_listens_in_no_folder_of_others(folder: Path) -> None:
    folder.chmod(0o777)
    with pytest.raises(DataError, match="writable by its owner"):
        listen(policy(folder))
    assert not (folder / "gate.sock").exists()


@pytest.mark.parametrize("kind", ["file", "link"])
def test_another_file_in_its_place_is_refused(folder: Path, kind: str) -> None:
    path = folder / "gate.sock"
    path.write_text("") if kind == "file" else path.symlink_to(folder / "nowhere")
    with pytest.raises(DataError, match="socket, got another file"):
        listen(policy(folder))


# ----------------------------------------------------------------------------------- one request


def request(handler: RequestHandler, order: bytes = ORDER, users: tuple[int, ...] = (ME,)) -> bytes:
    """What the other side of the socket gets; nothing, if it is closed."""
    relay, other = socket.socketpair(socket.AF_UNIX)
    with other:
        other.sendall(framed(order))
        with relay, kept(handler) as keeper:
            gate._serve_request(relay, keeper, set(users))
        with suppress(ConnectionResetError):  # closed before the order was read
            return b"".join(iter(lambda: other.recv(1 << 16), b""))
        return b""


def test_a_user_of_the_policys_is_answered(folder: Path) -> None:
    handler = RequestHandler(folder, lambda: REPLY)
    assert request(handler) == framed(REPLY)
    assert (folder / "asked-False").read_bytes() == ORDER


def test_nobody_else_is_answered_or_heard(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = RequestHandler(folder, lambda: REPLY)
    assert request(handler, users=(ME + 1,)) == b""
    monkeypatch.setattr(gate, "_CREDENTIALS", Credentials(user=1001, group=2002))
    assert request(handler, users=(os.getpid(), 2002)) == b""
    assert handler.asked() == []
    assert request(handler, users=(1001,)) == framed(REPLY)


class Credentials:
    """A peer that is somebody else: process, user and group, as the system packs them."""

    size = 12

    def __init__(self, user: int, group: int) -> None:
        self.facts = os.getpid(), user, group

    def unpack(self, packed: bytes) -> tuple[int, int, int]:
        assert len(packed) == self.size
        return self.facts


def die() -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


def late() -> bytes:
    time.sleep(5)
    return REPLY


def fail() -> bytes:
    raise ValueError("record 4711")


@pytest.mark.parametrize("first", [die, late, fail], ids=lambda each: each.__name__)
def test_what_cannot_be_answered_is_asked_for_zero_rows(
    folder: Path, first: Callable[[], bytes]
) -> None:
    handler, began = RequestHandler(folder, first, longest=1.0), time.monotonic()
    assert request(handler) == framed(b"zero rows")
    assert handler.asked() == ["asked-False", "asked-True"]
    assert time.monotonic() - began < 4.5


def test_every_answer_leaves_at_the_same_time_after_its_order(folder: Path) -> None:
    for first in (lambda: REPLY, fail):
        handler, began = RequestHandler(folder, first, answer_after=0.3), time.monotonic()
        request(handler)
        assert 0.3 <= time.monotonic() - began < 4.5


def test_an_answer_that_is_not_done_in_time_is_zero_rows_in_time(folder: Path) -> None:
    """Before, it left when it was done: a record that takes long could be told by the clock."""
    handler, began = RequestHandler(folder, late, answer_after=1.0), time.monotonic()
    assert request(handler) == framed(b"zero rows")
    assert 1.0 <= time.monotonic() - began < 4.5


def test_a_request_longer_than_allowed_is_not_read(folder: Path) -> None:
    handler = RequestHandler(folder, lambda: REPLY, most_bytes=1024)
    with pytest.raises(DataError, match=r"request.*most 1024 bytes, got 1025"):
        request(handler, order=bytes(1025))
    assert handler.asked() == []
    assert request(handler, order=bytes(1024)) == framed(REPLY)


@pytest.mark.parametrize("sent", [b"", LENGTH.pack(1000), LENGTH.pack(1000) + b"half"])
def test_a_request_that_stops_coming_in_is_given_up(sent: bytes) -> None:
    relay, other = socket.socketpair(socket.AF_UNIX)
    with relay, other:
        other.sendall(sent)
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            gate._receive_frame(relay, 1000, began + 0.2)
        assert time.monotonic() - began < 4.5


def test_a_request_that_is_cut_off_is_not_answered() -> None:
    relay, other = socket.socketpair(socket.AF_UNIX)
    with relay:
        with other:
            other.sendall(framed(ORDER)[:-1])
        with pytest.raises(ConnectionError, match="closed"):
            gate._receive_frame(relay, 1000, time.monotonic() + 5)


def test_a_sender_that_drips_does_not_move_the_deadline() -> None:
    ours, theirs = socket.socketpair()

    def drip() -> None:
        with suppress(OSError):
            for each in LENGTH.pack(100) + b"x" * 100:
                theirs.send(bytes([each]))
                time.sleep(0.02)

    thread = threading.Thread(target=drip)
    with theirs:
        with ours:
            thread.start()
            began = time.monotonic()
            with pytest.raises((ConnectionError, TimeoutError)):
                gate._receive_frame(ours, 1000, began + 0.3)
            assert time.monotonic() - began < 2.0
        thread.join()
