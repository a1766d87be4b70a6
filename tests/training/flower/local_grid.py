# SPDX-License-Identifier: Apache-2.0
"""A Grid in this process: it runs ClientApps when their replies are pulled, one at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any
from uuid import uuid4

import pytest
from flwr.app import ConfigRecord, Context, Message, Metadata, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

Tamper = Callable[[int, Message, Message], Message | None]


class LocalGrid(Grid):
    """Node i + 100 is the client with partition-id i, unless told otherwise."""

    def __init__(self, app: ClientApp, partitions: dict[int, int], tamper: Tamper | None = None):
        self.app, self.tamper = app, tamper
        self.contexts = {
            node: Context(1, node, {"partition-id": part}, RecordDict(), {})
            for node, part in partitions.items()
        }
        self.offline: set[int] = set()
        self.sent: dict[str, Message] = {}
        self.most_at_once = 0

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any: ...

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in self.contexts if node not in self.offline]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid4())
            self.sent[message.metadata.message_id] = message
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = []
        for each in list(message_ids):
            message = self.sent.get(each)
            if message is None or message.metadata.dst_node_id in self.offline:
                continue
            reply = self._handle(message)
            if reply is not None:
                del self.sent[each]
                replies.append(reply)
        self.most_at_once = max(self.most_at_once, len(replies))
        return replies

    def _handle(self, message: Message) -> Message | None:
        node = message.metadata.dst_node_id
        reply: Message | None = self.app(message, self.contexts[node])
        control = message.content.config_records.get("dpfed", ConfigRecord())
        enrolling = control.get("stage") == "enrol"
        if self.tamper and not enrolling:
            assert reply is not None
            reply = self.tamper(node, message, reply)
        return reply

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))


def become_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages have the identity of the ServerApp that makes them: here, node 1 in run 1."""
    usual = Message.__init__

    def made(self: Message, *args: Any, **kwargs: Any) -> None:
        if "reply_to" in kwargs or "metadata" in kwargs:
            return usual(self, *args, **kwargs)
        content, told = _sent_by_a_server(*args, **kwargs)
        return usual(self, content, metadata=told)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(Message, "__init__", made)


def _sent_by_a_server(
    content: RecordDict,
    dst_node_id: int,
    message_type: str,
    *,
    ttl: float | None = None,
    group_id: str | None = None,
) -> tuple[RecordDict, Metadata]:
    return content, Metadata(
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


def nodes(count: int) -> dict[int, int]:
    return {100 + i: i for i in range(count)}


def refused(row: dict[str, Any]) -> dict[int, str]:
    """Who is left out of a round, and why: the row's text, read."""
    pairs = (part.partition(": ") for part in row["refused"].split(" | ") if part)
    return {int(client): why for client, _, why in pairs}
