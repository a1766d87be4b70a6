# SPDX-License-Identifier: Apache-2.0
"""Warm ClientApps for real federations: a node's processes are forked, not started.

Flower starts ``flwr-clientapp`` anew for each message, and most of a stage is then spent on
importing torch. With ``warm(folder)`` in a Net's environment, a node's first such process stays,
and each later message is answered by a fork of it that runs Flower's own entry point. It has the
node's environment, and dies with the node.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import sys
from importlib.metadata import entry_points
from pathlib import Path

MARK = "DPFED_TEST_NET"  # one per node (network.py), or per host, whose nodes differ in their state

LAUNCHER = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as there:
    try:
        there.connect("\\0" + os.environ["{mark}"] + os.environ.get("DPFED_STATE", "")[-40:])
        there.sendall(json.dumps(sys.argv[1:]).encode())
    except ConnectionRefusedError:
        os.execv("{python}", ["{python}", "{script}", *sys.argv[1:]])
"""


def warm(folder: Path) -> dict[str, str]:
    """The environment in which ``flwr-clientapp`` is the launcher, written into the folder."""
    launcher = folder / "warm/flwr-clientapp"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(LAUNCHER.format(python=sys.executable, script=__file__, mark=MARK))
    launcher.chmod(0o755)
    places = (launcher.parent, Path(sys.executable).parent, os.environ.get("PATH", ""))
    return {"PATH": os.pathsep.join(map(str, places))}


def serve() -> None:
    """Return in a fork for each message, with its arguments; never in the first process."""
    parent, waiting = os.getppid(), [sys.argv[1:]]
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind("\0" + os.environ[MARK] + os.environ.get("DPFED_STATE", "")[-40:])
        except OSError:  # another one was faster: answer this message, and stay no longer
            sys.argv = ["flwr-clientapp", *waiting.pop()]
            return
        listener.listen(16)
        listener.settimeout(0.5)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while os.getppid() == parent:
            if waiting:
                sys.argv = ["flwr-clientapp", *waiting.pop()]
                if not os.fork():
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    return
            try:
                with listener.accept()[0] as there, there.makefile("rb") as file:
                    waiting = [json.load(file)]
            except TimeoutError:
                continue
    os._exit(0)


if __name__ == "__main__":
    sys.path.pop(0)  # this folder is no part of an app
    importlib.import_module("dpfed.recipes.flower_app")
    found = entry_points(group="console_scripts", name="flwr-clientapp")
    run = next(iter(found)).load()  # before the first fork
    serve()
    sys.exit(run())
