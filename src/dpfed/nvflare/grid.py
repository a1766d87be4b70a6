# SPDX-License-Identifier: Apache-2.0
"""NVFlare's tasks as a Grid: what DPStrategy asks of one, and no more.

A message becomes a task for one site; what the site submits becomes the reply. The bytes are those
that pass between a Flower relay and its gate, so sites need neither Flower nor another codec.

| edge case                                        | what happens                                  |
|--------------------------------------------------|-----------------------------------------------|
| the job is aborted                               | JobAborted, wherever the server waits         |
| a site's process is lost                         | it is no node any more; the round goes on     |
| it comes back                                    | it is the same node                           |
| a return code, or bytes that are no records      | an error of that site alone                   |
| a reply to another site's task                   | NVFlare drops it: a task has one site         |
| a reply that comes late, or twice                | dropped                                       |
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable
from typing import Any, NoReturn
from uuid import uuid4

from flwr.app import Error, Message, Metadata, RecordDict
from flwr.serverapp import Grid
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from dpfed.core.flower_private import from_bytes, to_bytes
from dpfed.nvflare.relay import ORDER, REPLY, TASK
from dpfed.training.flower.replies import RELAY_FAILED

_ID = "message_id"


class JobAborted(RuntimeError):
    """The job was aborted while the server waited; its checkpoint says where it stands."""


class TaskGrid(Grid):
    """The sites of a job as nodes.

    Args:
        controller: whose tasks they get.
        fl_ctx: the context of its control flow.
        abort: triggered when the job is aborted.
    """

    def __init__(self, controller: Controller, fl_ctx: FLContext, abort: Signal) -> None:
        self._controller, self._fl_ctx, self._abort = controller, fl_ctx, abort
        self._sites: list[str] = []  # node n is the n-th site that was seen, from 1 on
        self._asked: dict[str, Message] = {}  # by message: its metadata, without the content
        self._came: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def get_node_ids(self) -> Iterable[int]:
        """The sites whose process of this job runs, as far as NVFlare knows."""
        self._raise_if_aborted()
        named = [client.name for client in self._fl_ctx.get_engine().get_clients()]
        here = {name for name in named if not self._controller.get_client_disconnect_time(name)}
        self._sites += sorted(here - set(self._sites))
        return [number for number, name in enumerate(self._sites, 1) if name in here]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Schedule a task for each message; those of one content share its bytes."""
        self._raise_if_aborted()
        encoded: dict[int, bytes] = {}
        ids = []
        for message in messages:
            told, content = message.metadata, message.content
            self._forget_rounds_but(told.group_id)
            if id(content) not in encoded:
                encoded[id(content)] = to_bytes(content)
            asked = _asked(told)
            task = Task(
                TASK,
                Shareable({ORDER: encoded[id(content)]}),
                timeout=math.ceil(told.ttl),
                props={_ID: asked.metadata.message_id},
                result_received_cb=self._received,
            )
            with self._lock:
                self._asked[asked.metadata.message_id] = asked
            site = self._sites[told.dst_node_id - 1]
            self._controller.broadcast(task, self._fl_ctx, targets=[site])
            ids.append(asked.metadata.message_id)
        return ids

    def _forget_rounds_but(self, group: str) -> None:
        """Drop orders of other rounds, and replies to them: nobody will pull those."""
        with self._lock:
            for each, asked in list(self._asked.items()):
                if group and asked.metadata.group_id not in ("", group):
                    del self._asked[each]
                    self._came.pop(each, None)

    def _received(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        """Keep what a site has submitted; NVFlare calls this in a thread of its own."""
        del fl_ctx
        result, client_task.result = client_task.result, None  # NVFlare would keep it
        good = result is not None and result.get_return_code() == ReturnCode.OK
        reply = result.get(REPLY) if good else None
        with self._lock:
            if client_task.task.props[_ID] in self._asked:
                self._came[client_task.task.props[_ID]] = reply if isinstance(reply, bytes) else b""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies that have come to these messages, each of them once."""
        self._raise_if_aborted()
        found = []
        for each in message_ids:
            with self._lock:
                reply = self._came.pop(each, None)
                asked = None if reply is None else self._asked.pop(each, None)
            if reply is not None and asked is not None:
                found.append(Message(_content(reply), reply_to=asked))
        return found

    def _raise_if_aborted(self) -> None:
        if self._abort.triggered:
            raise JobAborted(
                "the job was aborted; submit it again, and it resumes from its checkpoint"
            )

    # -------------------------------------------------------- of a Grid, but not of DPStrategy's

    @property
    def run(self) -> Any:
        """Not offered."""
        _refuse()

    def set_run(self, *args: Any, **kwargs: Any) -> None:
        """Not offered."""
        _refuse(args, kwargs)

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Not offered."""
        _refuse(args, kwargs)

    def send_and_receive(self, *args: Any, **kwargs: Any) -> Iterable[Message]:
        """Not offered: DPStrategy pulls replies as they come."""
        _refuse(args, kwargs)


def _refuse(*asked: Any) -> NoReturn:
    del asked
    raise NotImplementedError("a TaskGrid does what DPStrategy.start needs; give it to that alone")


def _asked(told: Metadata) -> Message:
    """A message with this metadata and a new id, but without the content, which may be large."""
    metadata = Metadata(
        run_id=told.run_id,
        message_id=uuid4().hex,
        src_node_id=told.src_node_id,
        dst_node_id=told.dst_node_id,
        reply_to_message_id="",
        group_id=told.group_id,
        created_at=time.time(),
        ttl=told.ttl,
        message_type=told.message_type,
    )
    return Message(RecordDict(), metadata=metadata)  # type: ignore[call-overload, no-any-return]


def _content(reply: bytes) -> Any:
    """The records of a reply; an error if there are none, or if the bytes are garbage."""
    try:
        return from_bytes(reply) if reply else Error(RELAY_FAILED)
    except Exception:  # whatever kind protobuf or Flower raises on a site's bytes
        return Error(RELAY_FAILED)
