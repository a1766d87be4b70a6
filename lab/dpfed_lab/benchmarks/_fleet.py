# SPDX-License-Identifier: Apache-2.0
"""Many Fleet connections held by one process, by Flower's own connection code: stand-in devices.

    python -m dpfed_lab.benchmarks._fleet 127.0.0.1:9092 1000 LOOKS     writes how often they looked

Each has a key, a node id, a heartbeat and a connection of its own, and looks for messages every
three seconds, as a SuperNode does. It answers at once, with the right bytes and no work: what is
measured is the server's side. The case is in ``DPFED_LOAD``, as for benchmarks._load_app.
"""

from __future__ import annotations

import heapq
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import Message, RecordDict

from dpfed.core.flower_private import (
    ObjectUnavailableError,
    get_all_nested_objects,
    get_object_tree,
    http_request_response,
    inflate_object_from_contents,
    iterate_object_tree,
    no_object_id_recompute,
)
from dpfed.core.types import UPDATE
from dpfed.training.wire.codec import CONTROL, Envelope, write_reply
from dpfed.training.wire.responder import ENROL, LAST, READY
from dpfed_lab.benchmarks._load_app import case

PAUSE = 3.0  # seconds between two looks of a SuperNode that has nothing to do
WORKERS = 8


@dataclass(order=True)
class Device:
    """A connection, and when it looks for messages next."""

    due: float
    calls: Any = field(compare=False)

    def look(self, answer: Callable[[RecordDict], RecordDict]) -> None:
        """Pull one message, if there is one, and push the answer."""
        _, receive, send, _, _, pull, push, confirm = self.calls
        found = receive()
        self.due = time.monotonic() + (PAUSE if found is None else 0.0)
        if found is None:
            return
        message, tree = found
        run, order = message.metadata.run_id, message.metadata.message_id
        contents = {t.object_id: _pulled(pull, run, t.object_id) for t in iterate_object_tree(tree)}
        confirm(run, order)
        whole: Any = inflate_object_from_contents(order, contents)
        whole.metadata.__dict__["_message_id"] = order
        reply = Message(answer(whole.content), reply_to=whole)
        with no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            made = {name: each.deflate() for name, each in get_all_nested_objects(reply).items()}
            wanted, session = send(reply, get_object_tree(reply), 0.0)
        for name in wanted:
            push(run, session, name, made[name])


def _pulled(pull: Callable[[int, str], bytes], run: int, name: str) -> bytes:
    """An object, once the server has pushed it: its message may be there before."""
    while True:
        try:
            return pull(run, name)
        except ObjectUnavailableError:
            time.sleep(0.2)


def answers() -> Callable[[RecordDict], RecordDict]:
    """What every stand-in says: it has agreed to the plan, may take part, and its row is zero."""
    plan, size = case()
    said: dict[str, Any] = {"fingerprint": plan.fingerprint(), "gate": False, LAST: -1, READY: True}

    def answer(content: RecordDict) -> RecordDict:
        control: Any = content.config_records[CONTROL]
        if control["stage"] == ENROL:
            record = write_reply(Envelope(0, 0, ENROL, 0), {})
            record.config_records[CONTROL].update(said)
            return record
        at = Envelope(int(control["round"]), int(control["attempt"]), str(control["stage"]), 0)
        return write_reply(at, {UPDATE: bytes(4 * size)})

    return answer


class Holder:
    """All connections, and who of them is next."""

    def __init__(self, calls: list[Any]) -> None:
        now, self.lock, self.answer = time.monotonic(), threading.Lock(), answers()
        self.looks = 0
        self.queue = [Device(now + PAUSE * at / len(calls), c) for at, c in enumerate(calls)]

    def work(self) -> None:
        """One thread: the next device that is due, again and again."""
        try:
            while True:
                with self.lock:
                    device = heapq.heappop(self.queue) if self.queue else None
                if device is None:
                    time.sleep(0.01)
                    continue
                time.sleep(max(0.0, device.due - time.monotonic()))
                device.look(self.answer)
                with self.lock:
                    self.looks += 1
                    heapq.heappush(self.queue, device)
        except BaseException:
            traceback.print_exc()
            os._exit(1)


def hold(address: str, count: int, looks: Path) -> None:
    """Connect them all, say so, and serve until this process is ended.

    Args:
        address: of the SuperLink.
        count: how many there are.
        looks: the file that has how often they have looked for messages.
    """
    with ExitStack() as stack, ThreadPoolExecutor(WORKERS) as pool:

        def connect(_: int) -> Any:
            return stack.enter_context(http_request_response(address, insecure=True))

        holder = Holder(list(pool.map(connect, range(count))))
        print("ready", flush=True)
        for _ in range(WORKERS - 1):
            pool.submit(holder.work)
        while True:
            looks.write_text(str(holder.looks))
            time.sleep(0.2)


if __name__ == "__main__":
    hold(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
