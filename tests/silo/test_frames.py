# SPDX-License-Identifier: Apache-2.0
"""The frames between a relay and its gate."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from dpfed.silo.frames import LENGTH, ask, receive


def test_it_passes_bytes_on(tmp_path: Path) -> None:
    path = str(tmp_path / "gate.sock")
    with socket.socket(socket.AF_UNIX) as gate:
        gate.bind(path)
        gate.listen()

        def answer() -> None:
            relay, _ = gate.accept()
            with relay:
                (size,) = LENGTH.unpack(receive(relay, LENGTH.size))
                order = receive(relay, size)
                relay.sendall(LENGTH.pack(len(order)) + order[::-1])

        thread = threading.Thread(target=answer)
        thread.start()
        assert ask(path, b"order" * 100_000, timeout_s=10) == b"redro" * 100_000
        thread.join()


def test_a_gate_that_closes_is_an_error(tmp_path: Path) -> None:
    path = str(tmp_path / "gate.sock")
    with socket.socket(socket.AF_UNIX) as gate:
        gate.bind(path)
        gate.listen()
        thread = threading.Thread(target=lambda: gate.accept()[0].close())
        thread.start()
        with pytest.raises(ConnectionError):
            ask(path, b"order", timeout_s=10)
        thread.join()
