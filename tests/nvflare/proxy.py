# SPDX-License-Identifier: Apache-2.0
"""A socket before a gate's: what passes can be changed, request by request."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from dpfed.silo.frames import LENGTH, ask, receive

Act = Callable[[bytes], bytes | None]
"""From an order to a reply; None closes the connection without one."""


class Proxy:
    """Passes requests on; those with these numbers, from 0, go to functions instead."""

    def __init__(self, path: Path, gate: Path, acts: Mapping[int, Act]) -> None:
        self.path, self.gate, self.acts, self.seen = path, gate, acts, 0

    def __enter__(self) -> Self:
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(self.path))
        self._listening.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                relay, _ = self._listening.accept()
            except OSError:
                return
            with relay, suppress(OSError):
                (size,) = LENGTH.unpack(receive(relay, LENGTH.size))
                reply = self._reply(receive(relay, size))
                if reply is not None:
                    relay.sendall(LENGTH.pack(len(reply)) + reply)

    def _reply(self, order: bytes) -> bytes | None:
        act = self.acts.get(self.seen, lambda given: ask(str(self.gate), given, 120))
        self.seen += 1
        return act(order)
