# SPDX-License-Identifier: Apache-2.0
"""The memory of a DPStrategy over a Grid that makes its replies when they are pulled.

The limit is six float32 vectors above what was there before the round (parameters and momentum),
whatever the number of clients: the int64 total (two), the reply that is being added, the encoded
broadcast, and what the step makes. Measured as in server_memory, in a process of its own.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from flwr.app import Message
from flwr.serverapp import Grid

from dpfed.core.types import UPDATE
from dpfed.core.vector import layout_of
from dpfed.training.flower.transport import GridTransport
from dpfed.training.loop import Step, train
from dpfed.training.wire.codec import CONTROL, Envelope, write_reply
from dpfed_lab.benchmarks import round_time
from dpfed_lab.benchmarks._measure import RETURN_FREED, Result, peak_above

MEASURES = (
    "dpfed.training.flower.transport",
    "dpfed.training.wire.codec",
    "dpfed.training.loop",
    "dpfed.training.round",
)

SIZE = 10**6
VECTOR = 4 * SIZE
COUNTS = (10, 1_000)
LIMIT = 6.0


def run() -> list[Result]:
    """Peaks for few and many clients."""
    against = f"6 vectors of {SIZE:.0e} float32 above parameters and momentum"
    return [
        Result(f"DPStrategy memory, {n} clients", _in_child(n), LIMIT, "vectors", 1.0, against)
        for n in COUNTS
    ]


def _in_child(clients: int) -> float:
    command = [sys.executable, "-m", "dpfed_lab.benchmarks.flower_memory", str(clients)]
    done = subprocess.run(
        command,
        cwd=Path(__file__).parents[3],
        env=os.environ | RETURN_FREED,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(json.loads(done.stdout.splitlines()[-1])["vectors"])


class LazyGrid(Grid):
    """Every node answers at once, but its reply is made only when it is pulled."""

    def __init__(self, clients: int, fingerprint: str) -> None:
        self.clients, self.fingerprint = clients, fingerprint
        self.sent: dict[str, tuple[int, str, int, int]] = {}
        self.block = np.arange(-500, 500, dtype="<i4").tobytes()

    def get_node_ids(self) -> Iterable[int]:
        """Node i + 1 is client i."""
        return range(1, self.clients + 1)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Keep what a reply needs, not the message."""
        ids = [str(uuid4()) for _ in messages]
        for key, message in zip(ids, messages, strict=True):
            size = sum(
                int(np.prod(a.shape))
                for r in message.content.array_records.values()
                for a in r.values()
            )
            node = message.metadata.dst_node_id
            control = message.content.config_records[CONTROL]
            self.sent[key] = (
                node - 1,
                str(control["stage"]),
                size,
                int(str(control.get("round", 0))),
            )
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies of the messages that are asked for."""
        return [self._reply(key) for key in message_ids]

    def _reply(self, key: str) -> Message:
        client, stage, size, at = self.sent.pop(key)
        if stage == "reply":
            data = self.block * (size // 1_000)
            content = write_reply(Envelope(at, 0, "reply", client), {UPDATE: data})
        else:
            content = write_reply(Envelope(0, 0, "enrol", client), {})
            content.config_records[CONTROL]["fingerprint"] = self.fingerprint
        reply = Message(content, 1, "train")
        reply.metadata.__dict__["_reply_to_message_id"] = key
        return reply

    def set_run(self, run: Any) -> None:
        """Not used."""

    @property
    def run(self) -> Any:
        """Not used."""
        return None

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Not used."""
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], **kwargs: Any) -> list[Message]:
        """Not used: it would hold all replies at once."""
        raise NotImplementedError


def measure(clients: int) -> float:
    """The second round's peak, after a small run that loads all that is lazy."""
    from dpfed.core.flower_private import become_node

    become_node()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    _begun(2, 1_000)
    steps = _begun(clients, SIZE)
    counted: list[int] = []
    peak, _ = peak_above(lambda: counted.append(_next(steps)))
    assert counted == [clients]
    return peak / VECTOR


def _begun(clients: int, size: int) -> Iterator[Step]:
    """A training after its first round."""
    plan = round_time.plan_for(clients, size=1)
    grid = LazyGrid(clients, plan.fingerprint())
    layout = layout_of({"weight": torch.empty(size)})
    transport = GridTransport(plan, grid, layout, timeout=60.0)
    steps = train(plan, torch.zeros(size), transport)
    next(steps)
    _next(steps)
    return steps


def _next(steps: Iterator[Step]) -> int:
    """One more round: how many clients are in it. The step itself is not kept."""
    return int(next(steps).history[-1]["clients"])


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"vectors": measure(int(sys.argv[1]))}) + "\n")
