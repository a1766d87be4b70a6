# SPDX-License-Identifier: Apache-2.0
"""A planted bug: a clean process that waits for its children, and so knows how the last one ended.

The next child finds that in the frames above its own.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable

from dpfed.data import shard_child


def serve(control: socket.socket, folder: str, child: Callable[..., None]) -> None:
    del folder
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    status = None
    base = shard_child._settled()
    control.send(shard_child.READY)
    while True:
        message, pipes, _, _ = socket.recv_fds(control, 1 << 16, 2)
        if not message:
            return
        if message[:1] == shard_child.IMPORT:
            control.send(shard_child.READY)
            continue
        pid = os.fork()
        if pid == 0:
            child(pipes, shard_child.HEAD.unpack(message[1:]), base)
        for pipe in pipes:
            os.close(pipe)
        status = os.waitpid(pid, 0)[1]  # noqa: F841 (the next child sees it in this frame)


if __name__ == "__main__":
    shard_child.serve = serve  # type: ignore[assignment]
    shard_child.main(*sys.argv[1:])
