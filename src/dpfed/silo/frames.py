# SPDX-License-Identifier: Apache-2.0
"""The frames between a relay and the gate: 8 bytes, big-endian, are the length of what follows.

What follows is a Flower RecordDict as Flower encodes it, both ways. Nothing here looks into it, so
that a relay of whichever engine passes it on without Flower, torch or any code that reads data.
"""

from __future__ import annotations

import math
import socket
import struct
import time

SOCKET = "/run/dpfed/gate.sock"
LENGTH = struct.Struct(">Q")
REPLY_TIMEOUT_S = 3600.0
"""How long a relay waits for the gate's reply to one order."""


def ask(path: str, order: bytes, timeout_s: float = REPLY_TIMEOUT_S) -> bytes:
    """The gate's reply to an order.

    Args:
        path: the gate's socket.
        order: the bytes of one order.
        timeout_s: how many seconds to wait for each part of the reply.
    """
    with _connected(path, timeout_s) as gate:
        gate.sendall(LENGTH.pack(len(order)) + order)
        (size,) = LENGTH.unpack(receive(gate, LENGTH.size))
        return receive(gate, size)


def _connected(path: str, timeout_s: float) -> socket.socket:
    gate = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    gate.settimeout(timeout_s)
    try:
        gate.connect(path)
    except OSError:
        gate.close()
        raise
    return gate


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
