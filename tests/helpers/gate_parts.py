# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the gate's request handler, and frames to send to it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dpfed.silo.frames import LENGTH
from dpfed.silo.handler import Peek
from dpfed.silo.keeper import Keeper
from dpfed.silo.policy import GatePolicy

ME = os.geteuid()


ORDER, REPLY = b"an order", b"a reply"


def policy(folder: Path, **changes: Any) -> GatePolicy:
    socket_path, state = str(folder / "gate.sock"), str(folder / "state")
    return GatePolicy(socket=socket_path, state=state, relay_users=["flower"], **changes)


class RequestHandler:
    """Answers in the gate's place; what it was asked is in files, as it is asked in children."""

    def __init__(self, folder: Path, first: Callable[[], bytes], **changes: Any) -> None:
        self.policy = SimpleNamespace(gate=policy(folder, **changes))
        self.folder, self.first = folder, first

    came = None

    def open(self) -> None:
        """Nothing: there are no data."""

    def peek(self, order: bytes) -> Peek:
        return Peek(None, "")

    def reply(self, order: bytes, zero_rows: bool = False) -> bytes:
        (self.folder / f"asked-{zero_rows}").write_bytes(order)
        return b"zero rows" if zero_rows else self.first()

    def asked(self) -> list[str]:
        return sorted(each.name for each in self.folder.glob("asked-*"))


@contextmanager
def kept(handler: Any) -> Iterator[Keeper]:
    """A keeper of what this handler loads; it locks none of the tests' memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpfed.silo.keeper.harden_again", lambda: None)
        with Keeper(handler) as keeper:
            keeper.look(math.inf)
            yield keeper


def framed(reply: bytes) -> bytes:
    return LENGTH.pack(len(reply)) + reply
