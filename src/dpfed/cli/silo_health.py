# SPDX-License-Identifier: Apache-2.0
"""``dpfed silo health``: does a gate take connections? For systemd, Docker and Kubernetes.

It connects to the gate's socket and closes again; it sends no order and reads no data, so that it
may run as often as a probe likes, and loads neither torch nor Flower.

| edge case                                  | what happens                                        |
|--------------------------------------------|-----------------------------------------------------|
| no socket, or nobody listens               | unhealthy: the gate does not run                    |
| a gate that is busy with an order          | healthy: the system takes the connection for it     |
| the socket may not be opened by this user  | unhealthy: run it as the gate's or the relay's user |
"""

from __future__ import annotations

import socket
import tomllib
from pathlib import Path

from dpfed.core.errors import DataError, RecipeError


def check_health(policy: Path, timeout_s: float = 5.0) -> str:
    """One sentence on a gate that takes connections; DataError for one that does not.

    Args:
        policy: the owner's, of which only gate.socket is read.
        timeout_s: how many seconds to wait.
    """
    try:
        where = str(tomllib.loads(policy.read_text(encoding="utf-8"))["gate"]["socket"])
    except OSError as error:
        raise RecipeError(
            f"the policy {str(policy)!r} cannot be read ({error.strerror}); name it with --policy"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise RecipeError(f"the policy {policy.name!r} has no gate.socket; correct it") from error
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as gate:
            gate.settimeout(timeout_s)
            gate.connect(where)
    except PermissionError as error:
        raise DataError(
            f"the gate's socket {where} is not open to this user; run this as the gate's user"
        ) from error
    except (OSError, ValueError) as error:
        raise DataError(
            f"no gate takes connections at {where} ({error}); start it: systemctl start dpfed-gate"
        ) from error
    return f"a gate takes connections at {where}"
