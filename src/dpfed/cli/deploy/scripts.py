# SPDX-License-Identifier: Apache-2.0
"""A deployment's start scripts and ``config.toml``, from templates/deploy; deploy.py writes them.

    start_server(...)    server/start-superlink.sh
    register(...)        server/register-nodes.sh
    start_node(...)      nodes/NAME/start-supernode.sh
    connection(...)      config.toml

``flaws`` reads them back, and says whether they still ask for TLS, for node authentication and for
the silo's own identity. ``partition_of`` says as which client a silo's script starts.
"""

from __future__ import annotations

import json
import re
import shlex
from importlib import resources
from pathlib import Path

from dpfed.cli.new import ENDING, fill
from dpfed.core.environment import IDENTITY
from dpfed.sums.secagg.identity import SIMULATED

_SERVER_FLAGS = ("--ssl-ca-certfile", "--ssl-certfile", "--ssl-keyfile", "--enable-supernode-auth")
_NODE_FLAGS = ("--root-certificates", "--auth-supernode-private-key", IDENTITY)
_UNSAFE = ("--insecure", f"{IDENTITY}={SIMULATED}")
_PARTITION = re.compile(r"partition-id=(\d+) num-partitions=(\d+)")


# ------------------------------------------------------------------------------------- writing


def start_server(bind: str, port: int) -> bytes:
    """The script that starts the SuperLink, which listens at ``bind``."""
    return _filled("start-superlink.sh", host=bind, port=str(port))


def register(name: str, port: int) -> bytes:
    """The script that registers silos; ``name`` is the SuperLink's in a temporary config.toml."""
    return _filled("register-nodes.sh", connection=name, port=str(port))


def start_node(name: str, server: str, partition: int, count: int) -> bytes:
    """The script that starts the SuperNode of one silo.

    Args:
        name: the silo's; also the default name of its data in its ledger.
        server: the SuperLink's address, as HOST:PORT.
        partition: which client the silo is, from 0 on.
        count: how many clients there are.
    """
    config = f"partition-id={partition} num-partitions={count}"
    return _filled(
        "start-supernode.sh",
        name=name,
        address=shlex.quote(server),
        config=config,
        identity=IDENTITY,
    )


def connection(name: str, server: str, ca: Path) -> bytes:
    """The config.toml that tells ``flwr run`` where the SuperLink is and whom to trust.

    Args:
        name: the SuperLink's, as ``flwr run APP NAME`` calls it.
        server: the SuperLink's address, as HOST:PORT.
        ca: the file of the CA's certificate, on the machine that starts runs.
    """
    return _filled("config.toml", connection=name, address=server, ca=json.dumps(str(ca)))


def _filled(template: str, **words: str) -> bytes:
    source = resources.files("dpfed.cli") / "templates" / "deploy" / f"{template}{ENDING}"
    return fill(source.read_text(encoding="utf-8"), words).encode()


def address(host: str, port: int) -> str:
    """Host and port as one text, as Flower takes them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# ------------------------------------------------------------------------------------- reading


def flaws(folder: Path) -> dict[Path, str | None]:
    """For each start script of a deployment, what is wrong with it, e.g. "says --insecure"."""
    server = folder / "server/start-superlink.sh"
    nodes = sorted((folder / "nodes").glob("*/start-supernode.sh"))
    return {
        server: _flaw(server, _SERVER_FLAGS),
        **{node: _flaw(node, _NODE_FLAGS) for node in nodes},
    }


def partition_of(script: Path) -> tuple[int, int] | None:
    """A silo's client index and the number of clients; None if the script does not say them."""
    found = _PARTITION.findall("\n".join(_code(script)))
    return (int(found[-1][0]), int(found[-1][1])) if found else None


def _flaw(script: Path, flags: tuple[str, ...]) -> str | None:
    words = {word.replace('"', "").replace("'", "") for x in _code(script) for word in x.split()}
    names = {word.split("=")[0] for word in words}
    absent = [flag for flag in flags if flag not in names]
    if absent:
        return f"lacks {', '.join(absent)}"
    unsafe = [word for word in _UNSAFE if word in words]
    return f"says {unsafe[0]}" if unsafe else None


def _code(script: Path) -> list[str]:
    """The lines of a script, without its comments."""
    if not script.is_file():
        return []
    lines = script.read_text().splitlines()
    return [line for line in lines if not line.lstrip().startswith("#")]
