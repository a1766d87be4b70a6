# SPDX-License-Identifier: Apache-2.0
"""The messages between server and clients, as Flower records.

    to a client    arrays   the public parameters, by name: what any Flower app sends; integers and
                            what nodes keep among them, as the server's model has them
                   shared   what the optimizer publishes, if anything
                   config   the user's train_config
                   dpfed    round, attempt, stage, training, fingerprint, since; channels and
                            requests: what the sum asks, by name; names: the arrays that are
                            trained, in the order of the flat parameters; in an open
                            population slot; cohort: the digest of who is asked, if no draw
                            of clients is secret
    to the server  reply    channel -> integers on the public grid
                   dpfed    round, attempt, stage, client; of a client with a key receipt and salt
                            (evidence.py); in place of a reply the name of an error

Enrolment, and its opposite, have one record each way, without arrays (responder._enrol):

    to a client    dpfed    stage "enrol", training; terms, for owners who approve by rule; heads,
                            of ledgers, that the server keeps (heads.py); in an open
                            population round; at the end of a training leave
    to the server  reply    empty
                   dpfed    round 0, attempt 0, stage "enrol", client, fingerprint, gate; of a
                            gate key, its public one, head, that of its ledger, and heads
                            of others that it keeps; if participation is limited
                            last: the last round that it has entered, -1 if none; in an
                            open population ready: whether it may take part
    if it refuses  dpfed    round 0, attempt 0, stage "enrol", client -1; the name of an error

At the end of a training clients are asked for a statement (evidence.py), without arrays, too:

    to a client    dpfed    stage "statement", training, model: the model's digest; close: no
                            order of the training will come after this one
    to the server  reply    empty
                   dpfed    round 0, attempt 0, stage "statement", client, statement; of a
                            gate head

A reply that does not fit is a BadReply, with a reason that quotes no value of it.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from dpfed.core.errors import WIRE_NAMES, BadReply, ClientRefused
from dpfed.core.sum_protocol import Messages, StageReply
from dpfed.core.types import Broadcast, Vector
from dpfed.core.vector import Layout

ARRAYS, SHARED, CONFIG, CONTROL, REPLY = "arrays", "shared", "config", "dpfed", "reply"
At = tuple[int, int]
_GRID = "dpfed.grid"  # the serialisation of a release: little-endian integers, no header
_SAME = "use the server's version of dpfed on that client"


@dataclass(frozen=True, eq=False)
class Order:
    """What a client is asked to do in one stage of a round."""

    broadcast: Broadcast
    stage: str
    requests: Messages
    fingerprint: str
    since: At | None
    """The round and attempt whose total has this client's last reply, if any has."""
    names: tuple[str, ...] = ()
    """The arrays that are trained, in their order."""
    shapes: tuple[tuple[int, ...], ...] = ()
    cohort: str = ""
    """The digest of who is asked, by the server's word; "" if that is secret."""


@dataclass(frozen=True)
class Envelope:
    """What a reply must say about itself, so that a late or forged one is recognized."""

    round: int
    attempt: int
    stage: str
    client: int | None
    """None if a server of an open population reads it, as its clients have no index there."""


@dataclass(frozen=True, eq=False)
class Sender:
    """Makes a broadcast's messages; its arrays are encoded once, whatever the number of clients."""

    layout: Layout
    fingerprint: str
    config: ConfigRecord
    broadcast: Broadcast
    around: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """The model's other arrays: see ``named_arrays``."""

    def order(
        self,
        stage: str,
        requests: Messages,
        bare: bool = False,
        since: At | None = None,
        slot: int | None = None,
        cohort: str = "",
    ) -> RecordDict:
        """The content of one client's message.

        Args:
            stage: the stage of the plan's sum.
            requests: what the sum asks of the client, by name.
            bare: without arrays, if no release is asked for.
            since: the last total that the client is in; None if there is none.
            slot: of an open population, the slot that the device takes: no two orders of a round
                are alike then, and one device answers one of them.
            cohort: the digest of who is asked; "" if that is secret.
        """
        names = list(requests)
        arrays = {ARRAYS: ArrayRecord()} if bare else self._arrays
        control = ConfigRecord(
            {
                "round": self.broadcast.round,
                "attempt": self.broadcast.attempt,
                "stage": stage,
                "training": self.broadcast.training,
                "fingerprint": self.fingerprint,
                "names": [] if bare else list(self.layout.shapes),
                "channels": names,
                "requests": [requests[name] for name in names],
                "since": list(since or ()),
                **({} if slot is None else {"slot": slot}),
                **({"cohort": cohort} if cohort else {}),
            }
        )
        return RecordDict({**arrays, CONFIG: self.config, CONTROL: control})

    def forget(self) -> None:
        """Drop the arrays: records are cyclic, so only the garbage collector would free them."""
        for arrays in self.__dict__.get("_arrays", {}).values():  # made only if they were sent
            arrays.clear()

    @cached_property
    def _arrays(self) -> dict[str, ArrayRecord]:
        arrays = {ARRAYS: named_arrays(self.layout, self.broadcast.params, self.around)}
        if self.broadcast.shared:
            arrays[SHARED] = ArrayRecord(OrderedDict(self.broadcast.shared))
        return arrays


def named_arrays(
    layout: Layout, params: Vector, around: Mapping[str, torch.Tensor] | None = None
) -> ArrayRecord:
    """Flat parameters as Flower's named arrays.

    Args:
        layout: the names and shapes of what is trained.
        params: the flat parameters.
        around: all names of the model in their order, with the values of those that are not
            trained; None if there are no others.
    """
    return ArrayRecord(OrderedDict({**(around or {}), **layout.unflatten(params)}))


def read_order(content: RecordDict) -> Order:
    """A message to a client, read. Raises BadReply if anything is missing or wrong."""
    try:
        control = content.config_records[CONTROL]
        arrays = content.array_records[ARRAYS]
        names = tuple(_texts(control["names"]))
        flat = [arrays[name].numpy().reshape(-1) for name in names]
        params = np.concatenate(flat) if flat else np.empty(0, np.float32)
        shared = content.array_records.get(SHARED, ArrayRecord())
        broadcast = Broadcast(
            round=_number(control["round"]),
            params=torch.from_numpy(params),
            shared={name: torch.from_numpy(array.numpy().copy()) for name, array in shared.items()},
            attempt=_number(control["attempt"]),
            training=text_of(control, "training"),
        )
        channels, requests = _texts(control["channels"]), control["requests"]
        return Order(
            broadcast=broadcast,
            stage=text_of(control, "stage"),
            requests=dict(zip(channels, requests, strict=True)),  # type: ignore[arg-type]
            fingerprint=text_of(control, "fingerprint"),
            since=_since(control["since"]),
            names=names,
            shapes=tuple(tuple(arrays[name].shape) for name in names),
            cohort=_digest(control.get("cohort", "")),
        )
    except Exception as error:  # numpy's reader of arrays raises many kinds
        raise BadReply(
            f"the server's message has no valid {error}; run a DPStrategy on the server"
        ) from error


def write_reply(
    envelope: Envelope, reply: StageReply, said: Mapping[str, bytes] | None = None
) -> RecordDict:
    """A client's reply as records; an error as a name from the fixed list.

    Args:
        envelope: what it is a reply to.
        reply: by channel, or the refusal.
        said: what goes with a reply that is no refusal, such as its receipt.
    """
    control = ConfigRecord(
        {
            "round": envelope.round,
            "attempt": envelope.attempt,
            "stage": envelope.stage,
            "client": -1 if envelope.client is None else envelope.client,
        }
    )
    if isinstance(reply, ClientRefused):
        name = str(reply)
        control["error"] = name if name in WIRE_NAMES else "ClientError"
        return RecordDict({CONTROL: control})
    control.update(said or {})
    arrays = ArrayRecord(OrderedDict((name, _grid(message)) for name, message in reply.items()))
    return RecordDict({REPLY: arrays, CONTROL: control})


def _grid(message: bytes) -> Array:
    """A message of the sum as a Flower array; its content follows from its length."""
    return Array("uint8", (len(message),), _GRID, message)


def read_reply(content: RecordDict, due: Envelope) -> StageReply:
    """A reply, checked against what is due; its integers are not looked at here."""
    control = content.config_records.get(CONTROL)
    if control is None:
        raise BadReply(
            f"a reply must have a record {CONTROL!r}, got none; make the ClientApp with "
            f"dpfed.flower.client_app, or give it the mod dpfed.flower.private"
        )
    for name in ("round", "attempt", "stage", "client"):
        wanted, value = getattr(due, name), control.get(name)
        if wanted is not None and (isinstance(value, bool) or value != wanted):
            raise BadReply(f"a reply must be for {name} {wanted!r}, got another; {_SAME}")
    if "error" in control:
        word = str(control["error"])
        return ClientRefused(word if word in WIRE_NAMES else "ClientError")
    if set(content.array_records) != {REPLY}:
        raise BadReply(f"a reply must have the arrays {REPLY!r}, got others; {_SAME}")
    arrays = content.array_records[REPLY]
    taken = {str(name): _bytes(str(name), array) for name, array in arrays.items()}
    arrays.clear()  # records are cyclic: their arrays would stay until the next garbage collection
    return taken


def _bytes(channel: str, array: Array) -> bytes:
    fits = array.stype == _GRID and array.dtype == "uint8" and array.shape == (len(array.data),)
    if not fits:
        raise BadReply(
            f"a reply on {channel!r} must be a vector of integers on the grid, got another array; "
            f"{_SAME}"
        )
    return array.data


def text_of(control: ConfigRecord, name: str) -> str:
    """A field of a message that must be text; "" if it is not there.

    Args:
        control: the message's.
        name: of the field.
    """
    value = control.get(name, "")
    if not isinstance(value, str):
        raise BadReply(f"the field {name!r} of a message must be text; {_SAME}")
    return value


def _texts(value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise TypeError("list")
    return [str(each) for each in value]


def _since(value: object) -> At | None:
    if not isinstance(value, list) or len(value) not in (0, 2):
        raise TypeError("since")
    return (_number(value[0]), _number(value[1])) if value else None


def _digest(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"([0-9a-f]{64})?", value):
        raise TypeError("cohort")
    return value


def _number(value: object) -> int:
    if type(value) is not int:  # True is an int, and equals 1
        raise TypeError("number")
    return value
