# SPDX-License-Identifier: Apache-2.0
"""Run a Flower app, as its files are, in this process: server and clients by turns, no Ray."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from flwr.app import Context, Message, Metadata, RecordDict
from flwr.serverapp import Grid


class InProcess(Grid):
    """A grid whose node i + 100 is the client with partition-id i."""

    def __init__(self, app: Any, nodes: int, config: dict[str, Any]) -> None:
        self.app, self.sent = app, dict[str, Message]()
        self.contexts = {
            100 + i: Context(
                1, 100 + i, {"partition-id": i, "num-partitions": nodes}, RecordDict(), config
            )
            for i in range(nodes)
        }

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any: ...

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid4())
            self.sent[message.metadata.message_id] = message
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        here = [self.sent.pop(each) for each in message_ids if each in self.sent]
        return [self.app(each, self.contexts[each.metadata.dst_node_id]) for each in here]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        del timeout
        return self.pull_messages(self.push_messages(messages))


@contextmanager
def _as_server() -> Iterator[None]:
    """Flower gives a message the identity of the ServerApp's process, which is not there."""
    usual = Message.__init__

    def made(self: Message, *args: Any, **kwargs: Any) -> None:
        if "reply_to" in kwargs or "metadata" in kwargs:
            usual(self, *args, **kwargs)
        else:
            usual(self, **_sent(*args, **kwargs))

    Message.__init__ = made  # type: ignore[method-assign]
    try:
        yield
    finally:
        Message.__init__ = usual  # type: ignore[method-assign]


def _sent(
    content: RecordDict,
    dst_node_id: int,
    message_type: str,
    *,
    ttl: float | None = None,
    group_id: str | None = None,
) -> dict[str, Any]:
    metadata = Metadata(
        run_id=1,
        message_id="",
        src_node_id=1,
        dst_node_id=dst_node_id,
        reply_to_message_id="",
        group_id=group_id or "",
        created_at=time.time(),
        ttl=ttl or 3600.0,
        message_type=message_type,
    )
    return {"content": content, "metadata": metadata}


@contextmanager
def app_of(folder: Path, package: str) -> Iterator[tuple[Any, Any, Any]]:
    """The modules task, client_app and server_app of an app in a folder."""
    sys.path.insert(0, str(folder))
    try:
        names = ("task", "client_app", "server_app")
        task, client, server = (importlib.import_module(f"{package}.{name}") for name in names)
        yield task, client, server
    finally:
        sys.path.remove(str(folder))
        for name in [each for each in sys.modules if each.split(".")[0] == package]:
            del sys.modules[name]


def run_app(client: Any, server: Any, nodes: int, config: dict[str, Any]) -> None:
    """Call the server's main function, with nodes that answer in this process."""
    context = Context(1, 1, {}, RecordDict(), config)
    with _as_server():
        server.app(grid=InProcess(client.app, nodes, config), context=context)
