# SPDX-License-Identifier: Apache-2.0
"""A server on loopback that sends a file whole, in ranges, cut off, or as a test says."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CONTENT = bytes(range(256)) * 4096  # 1 MiB


class Server(ThreadingHTTPServer):
    """Serves CONTENT under any path; ``before`` may answer instead. Requests are kept."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = CONTENT
        self.ranges = True
        self.cut: list[int] = []
        """How many bytes of each request's answer are sent; all, once the list is empty."""
        self.seen: list[dict[str, str]] = []
        self.before: Callable[[Handler], bool] = lambda _: False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/set.bin"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        server = self.server
        server.seen.append(dict(self.headers))
        if server.before(self):
            return None
        start, said = 0, self.headers.get("Range", "")
        if server.ranges and said:
            start = int(said.removeprefix("bytes=").removesuffix("-"))
            if start >= len(server.content):
                return self.send_error(416)
        body = server.content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha256(server.content).hexdigest()[:8]}"')
        if start:
            end = len(server.content)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{end}")
        self.end_headers()
        self.wfile.write(body[: server.cut.pop(0)] if server.cut else body)
        return None


@contextmanager
def serving() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
