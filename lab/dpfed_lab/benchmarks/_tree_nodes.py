# SPDX-License-Identifier: Apache-2.0
"""The processes of lab/scripts/tree_load.py: an aggregator, and one that stands in for its devices.

    python -m dpfed_lab.benchmarks._tree_nodes aggregator SIZE PORT     the root's, on loopback
    python -m dpfed_lab.benchmarks._tree_nodes devices SIZE             orders on the standard input

Each device is a connection of its own: it sends its slot, a length and the bytes of its reply, and
waits for a byte that says whether it was added. One after the other, without TLS: devices that are
slow, or many at once, are not in the figures. Replies lie on the plan's grid and are as long as its
clip; there are 16 different ones, since the cost does not depend on their values.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import torch

from dpfed.core.errors import BadReply
from dpfed.core.grid import pack
from dpfed.core.randomness import Noise
from dpfed.core.types import UPDATE
from dpfed.sums.plain import Adder, plain
from dpfed.training.plan import Plan
from dpfed.training.round import SERVER, publish, start
from dpfed_lab.benchmarks._load_app import open_plan
from dpfed_lab.benchmarks._measure import RETURN_FREED, peak_above
from dpfed_lab.benchmarks._tree import begin, partial_total

if TYPE_CHECKING:
    from io import BufferedRWPair

    File: TypeAlias = BufferedRWPair[Any, Any]

HERE = "127.0.0.1"
PATIENCE, BETWEEN = (
    60.0,
    900.0,
)  # seconds for a device, and between two lines of root and aggregator
HEAD = struct.Struct("<IQ")  # slot, bytes
KINDS = 16


def plan_for(cohort: int) -> Plan:
    """An open population at client level and central trust, one round."""
    return replace(open_plan(cohort, 1), noise=Noise(0))


def replies(plan: Plan, size: int) -> list[bytes]:
    """Rows as long as the clip on the plan's grid, in clear: 8 bytes a number, or 4 if they fit."""
    made = []
    for kind in range(KINDS):
        row = torch.from_numpy(np.random.default_rng(kind).standard_normal(size))
        row *= plan.update.clip / row.norm()
        made.append(pack(row, plan.step(UPDATE)).numpy().tobytes())
    return made


# ----------------------------------------------------------------------------- the aggregator


def shard_session(cohort: int, size: int, slots: range) -> Adder:
    """An empty sum over some slots of the round's cohort."""
    plan = plan_for(cohort)
    context = plan.sum_context(publish(plan, start(plan, torch.zeros(size))), SERVER)
    return begin({UPDATE: plan.cohort(UPDATE, slots)}, {UPDATE: size}, context, cohort)


def aggregator(size: int, port: int) -> None:
    """For each order of the root: take the devices' replies, hand up one total."""
    buffer = memoryview(bytearray(8 * size))
    with socket.create_connection((HERE, port), PATIENCE) as root, root.makefile("rwb") as file:
        root.settimeout(BETWEEN)
        for line in file:
            order = json.loads(line)
            slots = range(order["first"], order["first"] + order["count"])
            session = shard_session(order["cohort"], size, slots)
            with socket.create_server((HERE, 0), backlog=128) as listening:
                listening.settimeout(PATIENCE)
                _tell(file, {"port": listening.getsockname()[1]})
                _hand_up(file, session, slots, listening, buffer)


def _hand_up(
    file: File, session: Adder, slots: range, listening: socket.socket, buffer: memoryview
) -> None:
    peak, taken = peak_above(lambda: _timed(session, len(slots), listening, buffer))
    before = sum(_cpu())
    partial = partial_total(session, slots)
    figures = {**cast("dict[str, float]", taken), "peak": peak, "packing": sum(_cpu()) - before}
    _tell(file, {"lengths": {name: len(each) for name, each in partial.items()}, **figures})
    for each in partial.values():
        file.write(each)
    file.flush()


def _timed(
    session: Adder, count: int, listening: socket.socket, buffer: memoryview
) -> dict[str, float]:
    began, before = time.perf_counter(), _cpu()
    refused = _take(session, count, listening, buffer)
    user, system = (after - start for after, start in zip(_cpu(), before, strict=True))
    seconds = time.perf_counter() - began
    return {"user": user, "system": system, "seconds": seconds, "refused": refused}


def _take(session: Adder, count: int, listening: socket.socket, buffer: memoryview) -> int:
    """One connection after the other; how many replies were refused."""
    refused = 0
    for _ in range(count):
        device, _ = listening.accept()
        with device:
            device.settimeout(PATIENCE)
            added = _add(session, device, buffer)
            refused += not added
            device.sendall(b"+" if added else b"-")
    return refused


def _add(session: Adder, device: socket.socket, buffer: memoryview) -> bool:
    slot, length = HEAD.unpack(_read(device, buffer[: HEAD.size]))
    if length > len(buffer):  # nobody makes an aggregator hold more than a reply
        return False
    message = cast("bytes", _read(device, buffer[:length]))  # a view: nothing is copied
    try:
        plain().add(session, slot, {UPDATE: message})
    except BadReply:
        return False
    return True


def _read(device: socket.socket, into: memoryview) -> memoryview:
    at = 0
    while at < len(into):
        got = device.recv_into(into[at:])
        if not got:
            raise ConnectionError("a device left before its reply was there")
        at += got
    return into


def _cpu() -> tuple[float, float]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime, used.ru_stime


def _tell(file: File, what: Mapping[str, Any]) -> None:
    file.write(json.dumps(what).encode() + b"\n")
    file.flush()


# -------------------------------------------------------------------------------- the devices


def devices(size: int) -> None:
    """For each order of the standard input: a connection and a reply for each slot."""
    made = replies(plan_for(1), size)
    for line in sys.stdin:
        order = json.loads(line)
        hostile = set(order["hostile"])
        for slot in range(order["first"], order["first"] + order["count"]):
            reply = made[slot % KINDS]
            _send(order["port"], slot, _doubled(reply, size) if slot in hostile else reply)
        sys.stdout.write("done\n")
        sys.stdout.flush()


def _send(port: int, slot: int, reply: bytes) -> None:
    with socket.create_connection((HERE, port), PATIENCE) as aggregator:
        aggregator.sendall(HEAD.pack(slot, len(reply)))
        aggregator.sendall(reply)
        aggregator.recv(1)


def _doubled(reply: bytes, size: int) -> bytes:
    """A row of twice the clip."""
    wide = len(reply) == 8 * size
    return (2 * np.frombuffer(reply, "<i8" if wide else "<i4")).tobytes()


# ---------------------------------------------------------------------- both, as the root has them


@dataclass
class Nodes:
    """A running aggregator and its devices, of models of one size."""

    file: File
    stand_ins: subprocess.Popen[str]

    def ask(
        self, cohort: int, first: int, count: int, hostile: tuple[int, ...] = ()
    ) -> tuple[dict[str, bytes], dict[str, Any]]:
        """One round of a shard: its partial total, and what the aggregator says it took.

        Args:
            cohort: how many devices the whole round has.
            first: the first slot of the shard.
            count: how many slots it has.
            hostile: slots whose devices send a row of twice the clip.
        """
        order = {"cohort": cohort, "first": first, "count": count, "hostile": hostile}
        _tell(self.file, order)
        port = json.loads(self.file.readline())["port"]
        assert self.stand_ins.stdin is not None
        self.stand_ins.stdin.write(json.dumps({**order, "port": port}) + "\n")
        self.stand_ins.stdin.flush()
        figures = json.loads(self.file.readline())
        cpu, began = time.process_time(), time.perf_counter()
        partial = {name: self.file.read(most) for name, most in figures.pop("lengths").items()}
        received = {"root_cpu": time.process_time() - cpu, "root_wall": time.perf_counter() - began}
        assert self.stand_ins.stdout is not None
        assert self.stand_ins.stdout.readline() == "done\n"
        return partial, {**figures, **received}


@contextmanager
def nodes(size: int) -> Iterator[Nodes]:
    """Both processes, ended with the block."""
    with socket.create_server((HERE, 0)) as listening, ExitStack() as stack:
        listening.settimeout(PATIENCE)
        _start(stack, "aggregator", size, listening.getsockname()[1])
        stand_ins = _start(stack, "devices", size)
        connection = stack.enter_context(listening.accept()[0])
        connection.settimeout(BETWEEN)
        yield Nodes(stack.enter_context(connection.makefile("rwb")), stand_ins)


def _start(stack: ExitStack, *words: object) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "dpfed_lab.benchmarks._tree_nodes", *map(str, words)],
        cwd=Path(__file__).parents[3],
        env=os.environ | RETURN_FREED | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    stack.enter_context(process)
    stack.callback(process.kill)
    return process


if __name__ == "__main__":
    if sys.argv[1] == "aggregator":
        aggregator(int(sys.argv[2]), int(sys.argv[3]))
    else:
        devices(int(sys.argv[2]))
