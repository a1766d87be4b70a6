# SPDX-License-Identifier: Apache-2.0
"""A silo that reaches the SuperLink through a web proxy only (docs/operations.md)."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpfed.cli.deploy import deploy
from tests.training.flower.network import Net


class WebProxy:
    """Passes bytes after a CONNECT, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self.server.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                caller, _ = self.server.accept()
                threading.Thread(target=self._answer, args=(caller,), daemon=True).start()

    def _answer(self, caller: socket.socket) -> None:
        head = b""
        with contextlib.suppress(OSError), caller:
            while b"\r\n\r\n" not in head:
                head += caller.recv(4096)
            method, where, _ = head.decode().split(" ", 2)
            self.asked.append(f"{method} {where}")
            host, _, port = where.rpartition(":")
            with socket.create_connection((host, int(port))) as there:
                caller.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                threading.Thread(target=_pass, args=(caller, there), daemon=True).start()
                _pass(there, caller)


def _pass(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while part := source.recv(1 << 16):
            target.sendall(part)
        target.shutdown(socket.SHUT_WR)


class _Net(Net):
    """The node knows the SuperLink by a name, and its own processes by their number."""

    proxy = ""
    host = "127.0.0.1"

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @contextlib.contextmanager
    def by_name(self) -> Iterator[None]:
        self.host = "localhost"
        yield
        self.host = "127.0.0.1"

    def _environment(self, name: str) -> dict[str, str]:
        usual = {**super()._environment(name), "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        return usual | ({"HTTPS_PROXY": self.proxy} if name == "north" else {})


@pytest.mark.long  # nothing of dpfed's is in the way: Flower's client and its variables
def test_a_supernode_registers_through_a_web_proxy_by_connect(tmp_path: Path) -> None:
    folder, proxy = tmp_path / "fed", WebProxy()
    deploy.init(folder, server_names=["127.0.0.1", "localhost"], nodes=["north"])
    net = _Net(tmp_path, [], folder=folder)
    net.nodes, net.proxy = (), proxy.address
    with net:
        with net.by_name():
            net.start_node("north", partition=0)
        assert len(net.online()) == 1
        assert set(proxy.asked) == {f"CONNECT localhost:{net.port}"}
    proxy.server.close()
