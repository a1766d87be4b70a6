# SPDX-License-Identifier: Apache-2.0
"""The one file that uses names of Flower outside of its ``__all__``, which may change at any time.

Flower has no public way from a RecordDict to bytes and back, which is what passes between a relay
and its gate; and none to be a node, or many of them, in a process of one's own, which is what
benchmarks do. ``tests/core/test_flower_private.py`` reads every import of the repository and
refuses a private one in any other file; the same tests run on each Flower that dpfed supports
(``scripts/test-flower VERSION --beside``). Nothing here imports torch: a relay starts without it.

| edge case                                      | what happens                                    |
|------------------------------------------------|-------------------------------------------------|
| bytes that are no RecordDict                   | an exception, of whatever kind Flower raises    |
| a Flower that has moved a name                 | ImportError for the codec, when it is imported; |
|                                                | for the others on first use, with the name      |
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from flwr.app import RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as _Encoded

_INFLATABLE = "flwr.supercore.inflatable"
HOMES = {
    "ObjectUnavailableError": f"{_INFLATABLE}.inflatable_utils",
    "get_all_nested_objects": f"{_INFLATABLE}.inflatable_object",
    "get_object_tree": f"{_INFLATABLE}.inflatable_object",
    "http_request_response": "flwr.supernode.fleet_http_connection",
    "inflate_object_from_contents": f"{_INFLATABLE}.inflatable_utils",
    "iterate_object_tree": f"{_INFLATABLE}.inflatable_object",
    "no_object_id_recompute": f"{_INFLATABLE}.inflatable_object",
}
"""What only the lab's ``benchmarks/_fleet.py`` uses, a SuperNode's connection: loaded on use."""


def to_bytes(content: RecordDict) -> bytes:
    """A RecordDict as Flower encodes it.

    Args:
        content: any records.
    """
    encoded: bytes = recorddict_to_proto(content).SerializeToString()
    return encoded


def from_bytes(encoded: bytes) -> RecordDict:
    """The RecordDict that ``to_bytes`` wrote; any exception if these bytes are none.

    Args:
        encoded: as they came, from whomever.
    """
    return recorddict_from_proto(_Encoded.FromString(encoded))


def become_node(number: int = 1) -> None:
    """Let this process make messages as Flower's own processes do: as this node, in this run.

    Args:
        number: of the node, its task and its run.
    """
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = number


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {set(HOMES)}")
    return getattr(import_module(HOMES[name]), name)
