# SPDX-License-Identifier: Apache-2.0
"""What whoever reaches a gate's socket can do to it: nothing that lasts, and nothing unpriced."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from flwr.app import Array

from dpfed.accounting.ledger.ledger import Ledger
from dpfed.core.flower_private import from_bytes
from dpfed.silo.frames import LENGTH, ask, receive
from tests.helpers.handlers import enrolment, order, said, sent
from tests.silo.gates import Silo, gates, read, terms_for

pytestmark = pytest.mark.slow


@pytest.fixture
def silo(tmp_path: Path) -> Iterator[Silo]:
    path = terms_for(tmp_path, 3)
    with gates(tmp_path, 1) as (only,):
        only.write({"per_minute": 1_000_000, "most_bytes": 100_000})
        only.approve(path)
        only.start()
        yield only
        assert only.process is not None
        assert only.process.poll() is None  # whatever was sent, it goes on


def connect(silo: Silo) -> socket.socket:
    gate = socket.socket(socket.AF_UNIX)
    gate.settimeout(60)
    gate.connect(str(silo.socket))
    return gate


def booked(silo: Silo) -> int:
    rows = Ledger(silo.folder / "state" / "ledger.sqlite").rows()
    return sum(row.body["kind"] == "entry" for row in rows)


@pytest.mark.parametrize("count", [500, pytest.param(100_000, marks=pytest.mark.long)])
def test_frames_of_any_bytes_are_refused_alike_and_cost_nothing(silo: Silo, count: int) -> None:
    draw = random.Random(0)
    good = order(read(silo.folder.parent / "terms.toml"))
    replies = set()
    for _ in range(count):
        raw = bytearray(good[: draw.randrange(len(good))] if draw.random() < 0.5 else b"")
        raw += draw.randbytes(draw.randrange(60))
        replies.add(ask(str(silo.socket), bytes(raw), timeout_s=60))
    assert {said(each).get("error") for each in replies} <= {"UnsoundPlan", "ClientError"}
    assert booked(silo) == 0


@pytest.mark.long
def test_an_order_asked_for_ten_thousand_times_is_one_release(silo: Silo) -> None:
    """Fewer here: 10^4 repeats of the same bytes are test_asking_again's."""
    terms = read(silo.folder.parent / "terms.toml")
    first = ask(str(silo.socket), order(terms))
    assert {ask(str(silo.socket), order(terms)) for _ in range(30)} == {first}
    for attempt in range(1, 30):
        ask(str(silo.socket), order(terms, attempt=attempt))
    assert booked(silo) == terms.plan.attempts


def test_cut_off_endless_and_silent_requests_do_not_stop_the_next(silo: Silo) -> None:
    terms = read(silo.folder.parent / "terms.toml")
    for raw in (b"", b"\x00", LENGTH.pack(50) + b"x", LENGTH.pack(1 << 63), LENGTH.pack(100_001)):
        with connect(silo) as gate:
            gate.sendall(raw)
    held = [connect(silo) for _ in range(2)]  # say nothing, and stay
    began = time.monotonic()
    assert said(ask(str(silo.socket), enrolment(terms.name), timeout_s=60))["client"] == 0
    assert time.monotonic() - began < 15  # five seconds for each that is silent
    for each in held:
        each.close()


def test_another_user_is_not_answered(silo: Silo) -> None:
    """The policy names no such user, even where the folder let one in."""
    silo.write({"relay_users": ["daemon"]})
    silo.kill()
    silo.start()
    with connect(silo) as gate, pytest.raises(ConnectionError):
        receive(gate, 1)


@pytest.mark.long
def test_answers_leave_at_a_fixed_time_where_the_policy_says_so(silo: Silo) -> None:
    silo.write({"answer_after": 1.0})
    silo.kill()
    silo.start()
    terms = read(silo.folder.parent / "terms.toml")
    for raw in (enrolment("unknown"), enrolment(terms.name), order(terms)):
        taken = []
        for _ in range(3):
            began = time.monotonic()
            ask(str(silo.socket), raw)
            taken.append(time.monotonic() - began)
        assert 1.0 <= min(taken) < 1.5  # a busy machine only adds to it


def test_a_gate_that_is_killed_goes_on_with_the_same_bytes(silo: Silo) -> None:
    terms = read(silo.folder.parent / "terms.toml")
    before = ask(str(silo.socket), order(terms))
    silo.kill()
    silo.start()
    assert ask(str(silo.socket), order(terms)) == before
    assert booked(silo) == 1


def test_an_orders_text_forges_no_line_of_the_gates_log_and_fills_no_disk(silo: Silo) -> None:
    """Flower's own errors quote an array's kind, Python's the names that are missing."""
    terms = read(silo.folder.parent / "terms.toml")
    forged = "\nINFO all is well\x1b[2J\u202e"
    content = from_bytes(order(terms))
    for name, array in content.array_records["arrays"].items():
        content.array_records["arrays"][name] = Array(array.dtype, array.shape, forged, array.data)
    assert said(ask(str(silo.socket), sent(content)))["error"] == "ClientError"
    content.config_records["dpfed"]["names"] = [forged + "x" * 90_000]
    assert said(ask(str(silo.socket), sent(content)))["error"] == "ClientError"
    log = (silo.folder / "gate.log").read_text()
    assert "Unsupported serialization type" in log
    assert "\nINFO" not in log
    assert not {"\x1b", "\u202e"} & set(log)
    assert len(log) < 20_000
