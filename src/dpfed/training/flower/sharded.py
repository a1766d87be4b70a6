# SPDX-License-Identifier: Apache-2.0
"""A Flower app's own train function in shards: each record is protected, whatever it does.

    app = ClientApp(mods=[private(plan, shards=load)])     # load(context): all data of this node

    @app.train()
    def fit(message, context):
        ...
        train(net, shard(), epochs=1)                      # the data of one shard, of load's kind
        return Message(...)                                # as before

``fit`` runs once for each shard, in a process of its own (data/shard_child.py) that has imported
the app's module, and has the message, the node's configuration and one shard. The data is loaded
in the node's process, which never runs ``fit``.

| edge case                                             | what happens                            |
|-------------------------------------------------------|-----------------------------------------|
| ``shard()`` outside of a train function in shards     | DataError                               |
| a plan without shards                                 | UnsoundPlan, before data is loaded      |
| arrays that a strategy keeps on nodes (``keep=``)     | UnsoundPlan: they would join rounds     |
| ``Context.state`` that a function fills               | an error in the rehearsal, then no row: |
|                                                       | it would join shards and rounds         |
| a function that no other process can import by name   | DataError, before data is loaded        |
| a nested one, another mod behind this one             | likewise                                |
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, Metadata, RecordDict

from dpfed.core import flower_private
from dpfed.core.errors import DataError, UnsoundPlan
from dpfed.core.types import Vector
from dpfed.data.readers import person_tensors
from dpfed.data.shard_process import Limits, clean_process
from dpfed.data.shards import Cut, ShardedProblem
from dpfed.data.train_functions import imported_modules, row_of
from dpfed.training.plan import Plan
from dpfed.training.wire.codec import ARRAYS, CONTROL

CALL = "dpfed.training.flower.sharded:call"
"""What runs in a shard's process."""
_DATA: list[Any] = []
"""In a shard's process: its data. In any other it is empty."""


@dataclass(frozen=True)
class Shards:
    """A node's data for a train function in shards, and what one shard may use.

    Args:
        load: from the Context to all data of the node: arrays, a table, a data set with a length,
            or a DataLoader of one. It must leave out no record because of what is in it.
        persons: from the Context to the person of each record, a number or a word; needed where
            the unit is a person.
        made_up: a function that returns a few records that are nobody's; None makes some of the
            shape of the first.
        seconds: the maximum processor time of a shard; by the clock four times as much.
        memory: the maximum memory in MiB that a shard's process may add.

    >>> Shards(load=lambda context: [(1.0, 0), (2.0, 1)]).seconds
    0.5
    """

    load: Callable[[Context], Any]
    persons: Callable[[Context], Any] | None = None
    made_up: Callable[[], Any] | None = None
    seconds: float = 0.5
    memory: int = 1024


def shard() -> Any:
    """The data of one shard: in a train function behind ``private(plan, shards=...)`` only.

    Returns:
        some of the records that ``load`` returned, of the same kind.

    >>> shard()
    Traceback (most recent call last):
    dpfed.core.errors.DataError: shard() must be called by a train function in shards, got another \
caller; give the app ClientApp(mods=[private(plan, shards=load)])
    """
    if not _DATA:
        raise DataError(
            "shard() must be called by a train function in shards, got another caller; give the "
            "app ClientApp(mods=[private(plan, shards=load)])"
        )
    return _DATA[0]


def sharded_app(
    options: Shards, plan: Plan, data: Any, persons: Any, message: Message, context: Context
) -> Callable[[Callable[..., Any]], ShardedProblem]:
    """A node's problem, once the app's train function is known.

    Args:
        options: what the app says.
        plan: what the node's owner has agreed to.
        data: all of the node's.
        persons: whose each record is; None where records are protected.
        message: the server's order.
        context: the node's.
    """
    names = _names(message)
    arrays = message.content.array_records[ARRAYS]
    client = int(context.node_config["partition-id"])
    ids = None if persons is None else person_tensors([np.asarray(persons)])[0]

    def pack(params: Vector) -> dict[str, Any]:
        del params  # the message has them
        return {
            "message": flower_private.to_bytes(message.content),
            "names": names,
            "node_config": dict(context.node_config),
            "run_config": dict(context.run_config),
            "run_id": context.run_id,
        }

    def made(function: Callable[..., Any]) -> ShardedProblem:
        return ShardedProblem(
            data=data,
            cut=Cut(plan.shards[client]),
            dimension=sum(math.prod(arrays[name].shape) for name in names),
            pack=pack,
            process=clean_process(CALL, name_of(function)),
            limits=Limits(options.seconds, options.memory << 20),
            persons=None if ids is None else ids.numpy(),
            stand_in=None if options.made_up is None else options.made_up(),
            declared=plan.nominal[client],
        )

    return made


def refuse_unfit(plan: Plan, message: Message, function: Callable[..., Any]) -> None:
    """Refuse, before data is loaded, what shards cannot have.

    Args:
        plan: what the node's owner has agreed to.
        message: the server's order.
        function: the app's train function.
    """
    name_of(function)
    if not plan.shards:
        raise UnsoundPlan(
            "a plan for private(plan, shards=...) must have shards, got none; give make_plan "
            "train={'shards': 200}, or train={} for the default"
        )
    names, arrays = _names(message), message.content.array_records[ARRAYS]
    kept = [name for name in arrays if name not in names and _floats(arrays[name])]
    if kept:
        raise UnsoundPlan(
            f"all arrays of floating point must be trained in shards, got {kept[0]!r}, which a "
            f"node keeps: that would join shards and rounds; leave out DPStrategy(keep=...)"
        )


def name_of(function: Callable[..., Any]) -> str:
    """A train function as module:name, by which a new process imports it.

    Args:
        function: the app's.
    """
    module = getattr(function, "__module__", "")
    name = getattr(function, "__qualname__", "<unnamed>")
    if not module or module == "__main__" or "<" in name:
        raise DataError(
            f"a train function in shards must be a function of a module, which another process can "
            f"import, got {module}.{name}; move it to the top of the app's module, and let "
            f"private be the last of the mods"
        )
    return f"{module}:{name}"


def _names(message: Message) -> list[str]:
    """The arrays that are trained, in the order of a row."""
    return [str(n) for n in message.content.config_records[CONTROL]["names"]]  # type: ignore[union-attr]


def _floats(array: Array) -> bool:
    return np.issubdtype(np.dtype(array.dtype), np.floating)


# ------------------------------------------------------------------------- in a shard's process


def call(function: Callable[[Message, Context], Message], job: Mapping[str, Any]) -> bytes:
    """The app's train function on one shard: its row, as bytes of double precision.

    Args:
        function: the app's.
        job: the order, the node's configuration and one shard.
    """
    content = flower_private.from_bytes(job["message"])
    before = _named(content.array_records[ARRAYS], job["names"])
    context = Context(
        job["run_id"], 0, job["node_config"], RecordDict(), job["run_config"]
    )  # no state: it would join rounds
    _DATA.append(job["data"])
    reply = function(_message(content, job["run_id"]), context)
    if len(context.state):
        raise ValueError(
            "a train function in shards must leave Context.state empty: it would join shards and "
            "rounds"
        )
    records = list(reply.content.array_records.values())
    if len(records) != 1:
        raise ValueError(f"the train function must return one ArrayRecord, got {len(records)}")
    return row_of(before, _named(records[0], job["names"])).tobytes() + imported_modules(job)


def _named(arrays: ArrayRecord, names: list[str]) -> dict[str, Any]:
    return {name: arrays[name].numpy() for name in names}


def _message(content: RecordDict, run: int) -> Message:
    told = Metadata(
        run_id=run,
        message_id="",
        src_node_id=0,
        dst_node_id=0,
        reply_to_message_id="",
        group_id="",
        created_at=time.time(),
        ttl=3600.0,
        message_type="train",
    )
    made: Message = Message(content, metadata=told)  # type: ignore[call-overload]
    return made
