# SPDX-License-Identifier: Apache-2.0
"""The relay: a whole ClientApp that passes bytes to the gate and back, and knows nothing else.

    app = dpfed.flower.silo_app()

It imports neither torch nor any code that reads data, so that it starts fast; anyone may ship it,
and nothing depends on its being honest. The frames, both ways: 8 bytes, the length of what follows,
big-endian; then a Flower RecordDict as Flower encodes it.
"""

from __future__ import annotations

import math
import socket
import struct
import time

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from dpfed.core.environment import GATE, variable
from dpfed.core.flower_private import from_bytes, to_bytes

SOCKET = "/run/dpfed/gate.sock"
LENGTH = struct.Struct(">Q")
REPLY_TIMEOUT_S = 3600.0
"""How long a relay waits for the gate's reply to one order."""


def silo_app(path: str | None = None) -> ClientApp:
    """A ClientApp that asks the silo's own gate.

    Args:
        path: the gate's socket; None is $DPFED_GATE, or ``gate`` of the run's configuration, or
            /run/dpfed/gate.sock. {partition-id} in it is the node's, for silos on one machine.

    Returns:
        an app that passes bytes on, and reads no data.

    >>> type(silo_app("/run/dpfed/gate.sock")).__name__
    'ClientApp'
    """
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        where = path or variable(GATE) or str(context.run_config.get("gate") or SOCKET)
        where = where.replace("{partition-id}", str(context.node_config.get("partition-id", "")))
        reply = from_bytes(ask(where, to_bytes(message.content)))
        return Message(reply, reply_to=message)

    return app


app = silo_app()
"""For apps without code: ``clientapp = "dpfed.silo.relay:app"``."""


def ask(path: str, order: bytes, timeout_s: float = REPLY_TIMEOUT_S) -> bytes:
    """The gate's reply to an order.

    Args:
        path: the gate's socket.
        order: the bytes of one order.
        timeout_s: how many seconds to wait for each part of the reply.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as gate:
        gate.settimeout(timeout_s)
        gate.connect(path)
        gate.sendall(LENGTH.pack(len(order)) + order)
        (size,) = LENGTH.unpack(receive(gate, LENGTH.size))
        return receive(gate, size)


def receive(source: socket.socket, size: int, deadline: float = math.inf) -> bytes:
    """Exactly ``size`` bytes; ConnectionError if the other side closes or exceeds the deadline.

    Args:
        source: the socket to read from.
        size: how many bytes.
        deadline: by time.monotonic(), for all of them: a sender of single bytes gains no time.
    """
    found = bytearray()
    while len(found) < size:
        if deadline < math.inf:
            source.settimeout(max(0.001, deadline - time.monotonic()))
        if time.monotonic() > deadline:
            raise ConnectionError("the other side takes too long")
        part = source.recv(min(size - len(found), 1 << 20))
        if not part:
            raise ConnectionError("the other side has closed the socket")
        found += part
    return bytes(found)
