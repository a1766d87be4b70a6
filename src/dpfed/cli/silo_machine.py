# SPDX-License-Identifier: Apache-2.0
"""``dpfed silo check`` for a policy with ``shipped``: the gate's machine, as far as it can be seen.

Code that nobody reviewed can hold much memory or little, and whoever runs on the same machine sees
how much: 16 bits in a second (tests/data/test_sealed_memory.py). So nothing that works for the
server may run there. That is the owner's to know; what can be looked at is looked at here.

| what is checked                                  | refused                                       |
|--------------------------------------------------|-----------------------------------------------|
| the seal, by making one in a new process         | a machine on which it cannot be made          |
| processes of users that may connect to the gate  | any but sshd's and the tunnel's, which pass   |
|                                                  | bytes on                                      |
| processes of Flower's, of whatever user          | any: SuperNode, SuperLink, an app             |
| processes of others; swap                        | nothing: warnings                             |
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from dpfed.core.errors import DataError
from dpfed.core.log import shown
from dpfed.data import seal

_FLOWER = ("flower-", "flwr")
_PASSES_BYTES = ("sshd", "sshd-session", "sshd-auth")
_TUNNEL = ("-m", "dpfed.silo.tunnel")  # behind Python and -P
_FIRST_PERSON = 1000
"""Numbers of users below it belong to the system."""


class Process(NamedTuple):
    """One that runs on this machine."""

    number: int
    user: int
    name: str
    words: tuple[str, ...]

    @property
    def is_flower(self) -> bool:
        """Whether it is a command of Flower's, or a Python that runs one."""
        names = (Path(word).name for word in self.words[:3])
        return any(name.startswith(_FLOWER) for name in (self.name, *names))


def check_machine(gate: pwd.struct_passwd, relays: Collection[pwd.struct_passwd]) -> Iterator[str]:
    """Say what was verified of a machine that is to run shipped code.

    Args:
        gate: the gate's user.
        relays: users that may connect to it.
    """
    try_seal(gate.pw_uid if os.geteuid() == 0 else None)
    yield "shipped code: a process can be sealed here"
    found = list(processes())
    refuse_servers(found, {each.pw_uid for each in relays})
    known = {0, gate.pw_uid, *(each.pw_uid for each in relays)}
    for user in sorted({each.user for each in found if each.user >= _FIRST_PERSON} - known):
        yield f"warning: user {user} runs processes here; none of them may work for the server"
    if os.geteuid() != 0:
        yield "warning: run this as root, which sees all processes of this machine"
    if len(_lines("/proc/swaps")) > 1:
        yield "warning: this machine swaps memory to disk, which takes time that code can see"
    yield (
        "shipped code: no process of Flower or of a relay user is on this machine now; that none "
        "ever is, and none in another container of it, is for you to know"
    )


def refuse_servers(found: Collection[Process], relays: Collection[int]) -> None:
    """Refuse processes that work for the server.

    Args:
        found: what runs here.
        relays: the numbers of users that may connect to the gate.
    """
    for each in found:
        passes = each.name in _PASSES_BYTES or each.words[2:4] == _TUNNEL
        if each.is_flower or (each.user in relays and each.user != 0 and not passes):
            raise DataError(
                f"nothing that works for the server may run on the machine of a gate with "
                f"'shipped', got process {each.number} ({shown(each.name)}) of user {each.user}; "
                f"move it to another machine, or leave out shipped"
            )


def processes() -> Iterator[Process]:
    """All that this user can see."""
    for path in Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        try:
            words = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")
            name = (path / "comm").read_text(errors="replace").strip()
            user = path.stat().st_uid
        except OSError:  # it has just ended
            continue
        yield Process(int(path.name), user, name, tuple(words))


def try_seal(user: int | None) -> None:
    """Make a seal in a new process, as a gate will; refuses a machine where that fails.

    Args:
        user: whose process it is; None is this one's.
    """
    done = subprocess.run(
        [sys.executable, "-P", "-m", "dpfed.data.seal"],
        env={**os.environ, **seal.NO_RSEQ},
        capture_output=True,
        text=True,
        check=False,
        user=user,
        group=None if user is None else pwd.getpwuid(user).pw_gid,
        extra_groups=None if user is None else [],
    )
    if done.stdout != seal.SEALED:
        said = (done.stderr.strip() or f"it ended with code {done.returncode}").splitlines()[-1]
        raise DataError(
            f"a process must be sealed for shipped code, and cannot be on this machine "
            f"({shown(said, 400)}); use another one, or leave out shipped"
        )


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="ascii").splitlines() if Path(path).exists() else []
