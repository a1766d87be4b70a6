# SPDX-License-Identifier: Apache-2.0
"""``dpfed silo init``: a policy, two systemd units, and the same as containers: templates/silo.

    silo.toml                 what the owner allows; every key, with a line about it
    dpfed-gate.service        the gate: data, no network, no rights
    dpfed-supernode.service   the SuperNode: network, no data
    compose.yaml, proxy.conf  the same as containers, and nginx that lets /v1/fleet/ through only
    kubernetes.yaml           the same as two pods; Containerfile: the image of all of them

Guarantee: no file is overwritten; a word that a unit, a compose file or nginx could read in another
way than it is meant (a blank, a quote, ``%``, ``$``) is refused.

| edge case                                 | what happens                                  |
|-------------------------------------------|-----------------------------------------------|
| one of the files exists                   | RecipeError; nothing is written               |
| both users are the same, or one is root   | RecipeError                                   |
| a path or name with other characters      | RecipeError                                   |
| data under /home                          | the gate sees it, and nothing else there      |
"""

from __future__ import annotations

import os
import re
import sys
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from dpfed._version import VERSION
from dpfed.cli.new import fill, templates
from dpfed.core.checks import refuse
from dpfed.core.errors import RecipeError
from dpfed.recipes.schema import NAME
from dpfed.silo.frames import SOCKET

GROUP = "dpfed-socket"
"""Its members may connect to the gate: the SuperNode's user, and nobody else."""
STATE = "/var/lib/dpfed"
_PATH = re.compile(r"/[A-Za-z0-9_./@+-]+")
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_SERVER = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9][A-Za-z0-9.-]*):([0-9]{1,5})")
_HOMES = ("/home/", "/root/", "/run/user/")


class Silo(NamedTuple):
    """Who and what is installed."""

    gate: str = "dpfed-gate"
    relay: str = "flower"
    data: Path = Path("/srv/dpfed/data.csv")
    name: str = "records"
    server: str = "fl.example.org:8000"


def write_silo(folder: Path, silo: Silo) -> list[Path]:
    """Write the files into a folder, and return them."""
    folder = folder.expanduser().absolute()
    words = _words(folder, silo)
    source = resources.files("dpfed.cli") / "templates" / "silo"
    made = {folder / name: text for name, text in templates(source)}
    for path in sorted(made):
        if path.exists() or path.is_symlink():
            raise RecipeError(f"{path} already exists, so nothing was written; move it away first")
    folder.mkdir(parents=True, exist_ok=True)
    in_toml = {name: f'"{words[name]}"' for name in ("socket", "state", "relay", "data")}
    for path, text in sorted(made.items()):
        own = {**words, **in_toml} if path.suffix == ".toml" else words
        _write(path, fill(text, own), 0o600 if path.suffix == ".toml" else 0o644)
    return sorted(made)


def _words(folder: Path, silo: Silo) -> dict[str, str]:
    data, home = silo.data.expanduser().absolute(), Path(sys.executable).parent
    for label, path in (("FOLDER", folder), ("--data", data), ("the installation", home)):
        if not _PATH.fullmatch(str(path)) or ".." in path.parts:
            way_out = "use A-Z a-z 0-9 _ . / @ + - only"
            raise refuse(label, "a path of plain characters", str(path), way_out)
    for label, user in (("--gate-user", silo.gate), ("--relay-user", silo.relay)):
        if not _USER.fullmatch(user) or user == "root":
            raise refuse(label, "a user's name, and not root", user, "choose another")
    if silo.gate == silo.relay:
        raise refuse("--relay-user", "another user than the gate's", silo.relay, "choose another")
    if not NAME.fullmatch(silo.name):
        raise refuse("--name", "1 to 64 of A-Z a-z 0-9 - _ .", silo.name, "choose another")
    server = _SERVER.fullmatch(silo.server)
    if not server or not 0 < int(server[2]) < 65536:
        raise refuse("--server", "HOST:PORT", silo.server, "such as fl.example.org:8000")
    return {
        "folder": str(folder),
        "bin": str(home),
        "gate": silo.gate,
        "relay": silo.relay,
        "group": GROUP,
        "data": str(data),
        "socket": SOCKET,
        "run": str(Path(SOCKET).parent),
        "state": STATE,
        "server": silo.server,
        "port": server[2],
        "file": data.name,
        "host": _certified(server[1]),
        "name": silo.name if "." not in silo.name else f'"{silo.name}"',
        "version": VERSION,
        "home": "tmpfs" if str(data).startswith(_HOMES) else "yes",
    }


def _certified(host: str) -> str:
    """A DNS name of the server's certificate: nginx knows no addresses there.

    ``dpfed deploy init`` writes localhost into each, whose CA signs for this one server alone.
    """
    return "localhost" if re.fullmatch(r"\[.*|[0-9.]+", host) else host


def _write(path: Path, text: str, mode: int) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        os.fchmod(handle, mode)  # whatever the umask is
        file.write(text)


def next_steps(folder: Path, silo: Silo) -> list[str]:
    """What the owner does next, as root."""
    here, system = folder.expanduser().absolute(), "--system --shell /usr/sbin/nologin"
    data, gate = silo.data.expanduser().absolute(), silo.gate
    return [
        f"groupadd --system {GROUP} && useradd {system} --user-group {gate} && "
        f"useradd {system} --user-group --groups {GROUP} {silo.relay}",
        f"chown -R {gate}: {here}/silo.toml {data} && chmod -R go= {here}/silo.toml {data}",
        f"install -d -o {gate} -g {gate} -m 700 {STATE}",
        f"edit {here}/silo.toml where it says CHANGE; dpfed silo check --policy {here}/silo.toml",
        f"cp {here}/*.service /etc/systemd/system/ && systemctl daemon-reload && "
        f"systemctl enable --now dpfed-gate dpfed-supernode",
        f"runuser -u {gate} -- dpfed silo approve terms.toml --policy {here}/silo.toml",
    ]
