# SPDX-License-Identifier: Apache-2.0
"""The text of a deployment's start scripts and of ``config.toml``; deploy.py writes them.

    start_server(...)    server/start-superlink.sh
    register(...)        server/register-nodes.sh
    start_node(...)      nodes/NAME/start-supernode.sh
    connection(...)      config.toml

``flaws`` reads them back: do they still ask for TLS, for node authentication, and for the silo's
own identity? ``partition`` says as which client a silo's script starts.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from dpfed.sums.secagg.identity import ENVIRONMENT, SIMULATED

_SERVER_FLAGS = ("--ssl-ca-certfile", "--ssl-certfile", "--ssl-keyfile", "--enable-supernode-auth")
_NODE_FLAGS = ("--root-certificates", "--auth-supernode-private-key", ENVIRONMENT)
_UNSAFE = ("--insecure", f"{ENVIRONMENT}={SIMULATED}")
_PARTITION = re.compile(r"partition-id=(\d+) num-partitions=(\d+)")


# ------------------------------------------------------------------------------------- writing


def start_server(bind: str, port: int) -> bytes:
    """Starts the SuperLink, which listens at ``bind``."""
    return _START_SERVER.format(host=bind, port=port).encode()


def register(name: str, port: int) -> bytes:
    """Registers the silos' public keys; ``name`` is the SuperLink's in a passing config.toml."""
    return _REGISTER.format(connection=name, port=port).encode()


def start_node(name: str, server: str, partition: int, count: int) -> bytes:
    """Starts the SuperNode of one silo, which is client ``partition`` of ``count``."""
    config = f"partition-id={partition} num-partitions={count}"
    return _START_NODE.format(
        name=name, address=shlex.quote(server), config=config, identity=ENVIRONMENT
    ).encode()


def connection(name: str, server: str, ca: Path) -> bytes:
    """Where the SuperLink is and whom to trust, for ``flwr run``."""
    return _CONFIG.format(connection=name, address=server, ca=json.dumps(str(ca))).encode()


def address(host: str, port: int) -> str:
    """The two in one, as Flower takes them."""
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


def partition(script: Path) -> tuple[int, int] | None:
    """A silo's client index and the number of clients, if its script says them as we write it."""
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


# ----------------------------------------------------------------------------------- templates

_PREAMBLE = """\
set -eu
umask 077
here=$(cd "$(dirname "$0")" && pwd)
export FLWR_TELEMETRY_ENABLED="${{FLWR_TELEMETRY_ENABLED:-0}}"
export FLWR_DISABLE_UPDATE_CHECK="${{FLWR_DISABLE_UPDATE_CHECK:-1}}"
"""

# Flower would say so after its log of a start; options that follow may name another port.
_PORT_IS_FREE = """\
if command -v python3 >/dev/null; then
  python3 -c '
import argparse, errno, socket, sys
options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
options.add_argument("--host")
options.add_argument("--port", type=int)
at, _ = options.parse_known_args()
with socket.socket() as probe:
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind((at.host, at.port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            sys.exit(f"error: port {{at.port}} is taken (address already in use); end what holds "
                     "it, or give another one: --port N here, --superlink HOST:N at each silo")
' --host {host} --port {port} "$@"
fi
"""

_START_SERVER = (
    """\
#!/bin/sh
# Starts the SuperLink. This folder, server/, goes to the server's host and to no other:
# server.key proves to the silos who the server is.
#
# The port serves three APIs. Silos need /v1/fleet/ only. The Control API, /v1/control/, asks for
# no credentials: whoever reaches it can register a node or start code on the silos. Let only
# /v1/fleet/ through from other hosts (a proxy that ends TLS with server.crt and forwards), and
# run register-nodes.sh and `flwr run` on this host.
#
# Registered nodes are kept in superlink.db. More options may follow: the last one wins.
"""
    + _PREAMBLE
    + """\
export FLWR_HOME="${{FLWR_HOME:-$here/flwr}}"
export DPFED_IDENTITY="$here"
"""
    + _PORT_IS_FREE
    + """\
exec flower-superlink \\
  --host {host} --port {port} \\
  --ssl-ca-certfile "$here/ca.crt" \\
  --ssl-certfile "$here/server.crt" \\
  --ssl-keyfile "$here/server.key" \\
  --enable-supernode-auth \\
  --database "$here/superlink.db" \\
  --disable-runtime-dependency-installation \\
  "$@"
"""
)

_REGISTER = (
    """\
#!/bin/sh
# Tells the running SuperLink which silos may join: one public key per file in nodes/.
# Run it on the server's host after start-superlink.sh is up; it needs no private key.
# To add a silo later, put its key here as nodes/NAME.pub and run this again.
# SUPERLINK=host:port in the environment names another address.
"""
    + _PREAMBLE
    + """\
FLWR_HOME=$(mktemp -d)
export FLWR_HOME
trap 'rm -rf "$FLWR_HOME"' EXIT
cat > "$FLWR_HOME/config.toml" <<TOML
[superlink.{connection}]
address = "${{SUPERLINK:-127.0.0.1:{port}}}"
root-certificates = "$here/ca.crt"
TOML
for key in "$here"/nodes/*.pub; do
  name=$(basename "$key" .pub)
  if said=$(flwr supernode register "$key" {connection} --name "$name" 2>&1); then
    echo "$name: registered"
  elif echo "$said" | grep -q "already in use"; then
    echo "$name: was registered before"
  else
    echo "$said" >&2
    exit 1
  fi
done
"""
)

_START_NODE = (
    """\
#!/bin/sh
# Starts the SuperNode of silo {name}. This folder, nodes/{name}/, goes to that silo's host and to
# no other: node.key proves to the server who the silo is, and identity.key proves it to the other
# silos in a secure sum. Once they are there, delete both from the machine that made them.
#
# A silo that wants a key which never left its host makes its own,
#   ssh-keygen -t ecdsa -b 384 -N "" -C {name} -f node.key && mv node.key.pub node.pub
# and sends only node.pub, which replaces server/nodes/{name}.pub before register-nodes.sh runs.
# For identity.key, which the signed roster.json of every silo lists, see docs/deployment.md.
#
# More options may follow: the last one wins.
"""
    + _PREAMBLE
    + """\
export FLWR_HOME="${{FLWR_HOME:-$here/flwr}}"
export {identity}="$here"  # whatever the environment says: never keys that others can make
export DPFED_STATE="${{DPFED_STATE:-$here/state}}"
export DPFED_DATASET="${{DPFED_DATASET:-{name}}}"  # the name of the silo's data in its ledger
exec flower-supernode \\
  --superlink {address} \\
  --root-certificates "$here/ca.crt" \\
  --auth-supernode-private-key "$here/node.key" \\
  --node-config "{config}" \\
  "$@"
"""
)

_CONFIG = """\
# For the one who starts runs. Append this to $FLWR_HOME/config.toml (~/.flwr/config.toml) there,
# with the path at which ca.crt (public) lies on that machine, then:
#   flwr run APP {connection} --stream
[superlink.{connection}]
address = "{address}"
root-certificates = {ca}
"""
