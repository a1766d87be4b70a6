# SPDX-License-Identifier: Apache-2.0
"""The keeper: the process behind a gate that has the data. It loads them once, with limits.

    gate      the socket, its users, rate and time; it has no record (gate.py)
    keeper    data, models and approved trainings; started by the gate (core/jail.py)
    child     forked by the keeper for each order: it inherits them, and makes the reply

Gate and keeper speak over a pair of sockets that nobody else has. Whatever a child does, or dies
of, the keeper continues; whatever the keeper does, the gate decides what is sent, and when.

Guarantee: ``ask`` returns by ``last``. A gate whose keeper cannot load the data is told so in one
sentence, for its owner alone. No process of these is left once the gate has ended.

| edge case                                        | what happens                               |
|--------------------------------------------------|--------------------------------------------|
| data that take too much memory or time to load,  | ``look`` refuses to go on                  |
| or end the keeper                                |                                            |
| the keeper ends, or says nothing, while a reply  | ``ask`` has none, and another keeper       |
| is made                                          | begins: the gate asks it for zero rows,    |
|                                                  | since releases may have been entered       |
| it has not loaded the data in time for that      | no reply, at the time when one would leave |
| the keeper ends while no order is there          | another one begins, and makes the reply    |
| a training that was approved later, and cannot   | the others continue; a child refuses it    |
| be built                                         |                                            |
| the gate is killed                               | the keeper and its children end, too       |
"""

from __future__ import annotations

import datetime as dt
import math
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import msgspec

from dpfed.core.errors import DataError, DpfedError, as_sentence
from dpfed.core.jail import ChildEnded, StayingChild, harden_again, machine_memory, run_in_child
from dpfed.core.log import log
from dpfed.silo.frames import LENGTH, receive
from dpfed.silo.handler import RequestHandler


class Asked(msgspec.Struct, array_like=True, kw_only=True):
    """What the keeper is asked."""

    order: bytes
    training: str
    """The approved training that the order names; "" if that is not known."""
    came: dt.datetime | None
    """When the order came in; None means now."""
    deadline: float
    """When a child must have made the reply, by time.monotonic(), one clock for all processes."""
    zero_rows: bool
    """Do not use the data."""


class Keeper:
    """The process that has the data, as its gate sees it. If it ends, another one begins.

    Args:
        handler: a request handler that has loaded nothing: the process's own copy of it does.
    """

    def __init__(self, handler: RequestHandler) -> None:
        self.handler, self._failed = handler, ""
        self._begin()

    def __enter__(self) -> Keeper:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.end()

    def _begin(self) -> None:
        self._last, self._ready = time.monotonic() + self.handler.policy.gate.longest, False
        self._child = StayingChild(partial(_keep, self.handler), machine_memory())

    def look(self, deadline: float = 0.0) -> None:
        """Begin another one if it has ended; DataError if the data cannot be loaded.

        Args:
            deadline: by time.monotonic(), until when to wait for data that are being loaded.
        """
        if self._ready and self._says_something(0.0):  # unasked: it has ended
            self._begin_again("it ended by itself")
        self._loaded(deadline)
        if self._failed:
            raise DataError(self._failed)

    def ask(self, asked: Asked, last: float) -> bytes | None:
        """The reply to an order; None if there is none.

        Args:
            asked: the order, and by when a child must have its reply.
            last: by time.monotonic(): a keeper that says nothing until then is ended.
        """
        if not self._loaded(asked.deadline):
            return None
        connection = self._child.connection
        try:
            connection.settimeout(max(0.001, last - time.monotonic()))
            _send(connection, msgspec.msgpack.encode(asked))
            return msgspec.msgpack.decode(_receive(connection, last), type=bytes | None)
        except OSError as error:
            self._begin_again(str(error))
            return None

    def _loaded(self, deadline: float) -> bool:
        """Whether the data are loaded by then; that they cannot be is remembered."""
        if self._ready or self._failed:
            return self._ready
        until, most = min(deadline, self._last), self.handler.policy.gate.longest
        if self._says_something(max(0.0, until - time.monotonic())):
            self._failed = self._word()
            self._ready = not self._failed
        elif time.monotonic() >= self._last:
            self._failed = (
                f"the data must be loaded within gate.longest, {most:g} s, and were not; raise it, "
                f"or look for a record or a model that takes all time"
            )
        return self._ready

    def _word(self) -> str:
        """What it says of the data: "" if they are loaded."""
        try:
            return _receive(self._child.connection, time.monotonic() + 1.0).decode()
        except OSError:
            return (
                f"the process that loads the data must stay, and ended with {self._child.end()}; "
                f"look for a record or a model that ends it, or takes more than the "
                f"{machine_memory() / 2**30:.1f} GiB that this machine or container has"
            )

    def _says_something(self, seconds: float) -> bool:
        return bool(select.select([self._child.connection], [], [], seconds)[0])

    def _begin_again(self, why: str) -> None:
        log.error("the process with the data is replaced: %s (%s)", why, self._child.end())
        self._begin()


def _keep(handler: RequestHandler, gate: socket.socket) -> None:
    """In the process: load the data, say so, and let a child make the reply to each order."""
    harden_again()
    try:
        handler.open()
    except (DpfedError, OSError) as error:
        _send(gate, as_sentence(error).encode())
        return
    _send(gate, b"")
    with suppress(ConnectionError):  # the gate has ended
        while True:
            asked = msgspec.msgpack.decode(_receive(gate, math.inf), type=Asked)
            handler.came = asked.came
            if asked.training:
                handler.prepare(asked.training)
            work = partial(handler.reply, asked.order, asked.zero_rows)
            reply = reply_in_child(work, max(0.0, asked.deadline - time.monotonic()))
            _send(gate, msgspec.msgpack.encode(reply))


def reply_in_child(work: Callable[[], bytes], seconds: float) -> bytes | None:
    """What ``work`` returns in a child; None if the child dies, or takes too long.

    Args:
        work: makes the reply.
        seconds: until the child is ended.
    """
    try:
        return run_in_child(work, seconds)
    except ChildEnded as error:
        log.warning("a request's child ended with %s", error)
        return None


def _send(connection: socket.socket, frame: bytes) -> None:
    connection.sendall(LENGTH.pack(len(frame)))
    connection.sendall(frame)


def _receive(connection: socket.socket, deadline: float) -> bytes:
    (size,) = LENGTH.unpack(receive(connection, LENGTH.size, deadline))
    return receive(connection, size, deadline)
