# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the Hugging Face hub on loopback: makes repositories, takes commits, keeps files.

It speaks what huggingface_hub speaks for create_repo and create_commit: small files inside of the
commit (NDJSON), large ones through git-lfs, by their digests.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Kept:
    """What the hub has been sent."""

    repos: dict[str, bool] = field(default_factory=dict)
    """Name -> whether it is private."""
    files: dict[str, bytes] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)
    commits: int = 0
    refuse: int = 0
    """A status that every request gets; 0 refuses nothing."""


class Hub(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.kept = Kept()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        kept, raw = self.server.kept, self._body()
        kept.asked.append(self.path)
        kept.tokens.add(self.headers.get("Authorization"))
        if kept.refuse:
            return self._say({"error": "no"}, kept.refuse)
        path = self.path.partition("?")[0]
        if path == "/api/repos/create":
            told = json.loads(raw)
            name = f"{told['organization']}/{told['name']}" if told.get("organization") else "me/"
            private = told.get("private", told.get("visibility") == "private")
            kept.repos.setdefault(name, bool(private))
            return self._say({"url": f"{self.server.url}/{name}"})
        if path == "/api/validate-yaml":
            return self._say({"errors": [], "warnings": []})
        if "/preupload/" in path:
            files = json.loads(raw)["files"]
            return self._say(
                {
                    "files": [
                        {
                            "path": each["path"],
                            "uploadMode": _mode(each["path"]),
                            "shouldIgnore": False,
                            "oid": None,
                        }
                        for each in files
                    ]
                }
            )
        if path.endswith("/info/lfs/objects/batch"):
            asked = json.loads(raw)["objects"]
            found = [
                {**each, "actions": {"upload": {"href": f"{self.server.url}/lfs/{each['oid']}"}}}
                for each in asked
            ]
            return self._say({"transfer": "basic", "objects": found})
        if "/commit/" in path:
            self._commit([json.loads(line) for line in raw.splitlines() if line.strip()])
            repo = path.split("/commit/")[0].partition("/models/")[2]
            address = f"{self.server.url}/{repo}/commit/{kept.commits:040x}"
            return self._say({"commitOid": f"{kept.commits:040x}", "commitUrl": address})
        return self._say({"error": path}, 404)

    def do_PUT(self) -> None:
        digest = self.path.rpartition("/")[2]
        self.server.kept.objects[digest] = self._body()
        self._say({})

    def do_GET(self) -> None:
        self.server.kept.asked.append(self.path)
        self._say({"error": self.path}, 404)

    def _commit(self, lines: list[dict[str, Any]]) -> None:
        kept = self.server.kept
        kept.commits += 1
        for line in lines:
            told = line["value"]
            if line["key"] == "file":
                kept.files[told["path"]] = base64.b64decode(told["content"])
            elif line["key"] == "lfsFile":
                content = kept.objects[told["oid"]]
                assert hashlib.sha256(content).hexdigest() == told["oid"]
                kept.files[told["path"]] = content

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _say(self, tree: dict[str, Any], status: int = 200) -> None:
        content = json.dumps(tree).encode()
        self.send_response(status)
        kind = "application/vnd.git-lfs+json" if "transfer" in tree else "application/json"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _mode(path: str) -> str:
    return "lfs" if path.endswith(".safetensors") else "regular"


@contextmanager
def hub() -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
