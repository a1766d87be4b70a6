# SPDX-License-Identifier: Apache-2.0
"""The settings of an NVFlare site that ``dpfed silo check`` looks at: warnings for its admin.

A gate's data is out of NVFlare's reach whatever these say: its user is another one. They are a
second lock, and keep what NVFlare's own user knows (its log) on the site.

| setting                                           | warned of                                  |
|---------------------------------------------------|--------------------------------------------|
| ``class_allow_list`` of resources.json            | the relay is not in it; "*", or more than  |
|                                                   | the relay by a prefix; not enforced        |
| ``allow_log_streaming`` there                     | anything but false                         |
| ``byoc`` in authorization.json, of any role       | anything but "none"                        |
| ``shell_commands`` there, of any role             | the same                                   |
| privacy.json                                      | it is there: filters would change replies  |
| the user of a client that runs                    | one that the policy does not name          |
| a file that is missing, or no JSON                | that it could not be read                  |
"""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

RELAY = "dpfed.nvflare.relay.GateRelay"
_CLIENT = "nvflare.private.fed.app.client.client_train"
_BYOC, _SHELL = ("byoc",), ("shell_commands", "cat", "grep", "head", "tail", "ls")
_NEVER = ("none", "no", "not any", "not all")


def check_site(folder: Path) -> Iterator[str]:
    """What is to be changed in a site's startup kit, and that it was looked at.

    Args:
        folder: the kit, with ``local`` in it.
    """
    yield from (f"warning: NVFlare site {folder}: {said}" for said in _findings(folder / "local"))
    yield f"NVFlare site {folder}: allow list, log streaming, rights and filters were looked at"


def _findings(local: Path) -> Iterator[str]:
    resources, rights = _read(local, "resources.json"), _read(local, "authorization.json")
    if resources is None:
        yield "local/resources.json cannot be read, so neither its allow list nor its streaming"
    else:
        yield from _resources(resources)
    if rights is None:
        yield "local/authorization.json cannot be read, so anybody's rights are unknown"
    else:
        yield from _rights(rights)
    if (local / "privacy.json").exists():
        yield "local/privacy.json has filters, which would change a gate's replies; take it away"


def _read(local: Path, name: str) -> dict[str, Any] | None:
    """The admin's file, or NVFlare's default; None if there is no such table."""
    for path in (local / name, local / f"{name}.default"):
        if path.exists():
            with suppress(OSError, ValueError):
                found = json.loads(path.read_text(encoding="utf-8"))
                return found if isinstance(found, dict) else None
            return None
    return None


def _resources(found: dict[str, Any]) -> Iterator[str]:
    listed = found.get("class_allow_list", [])
    allowed = [str(each) for each in listed] if isinstance(listed, list) else []
    wide = [each for each in allowed if each == "*" or _covers_more(each)]
    if wide:
        yield f"class_allow_list lets jobs load more than the relay by {wide}; name whole classes"
    if RELAY not in allowed:
        yield f'class_allow_list does not have "{RELAY}", without which jobs are refused; add it'
    if found.get("class_list_enforcement_mode", "enforce") != "enforce":
        yield 'class_list_enforcement_mode must be "enforce": else any class is loaded'
    if found.get("allow_log_streaming") is not False:
        yield "it sends its error log to the server; set allow_log_streaming to false"


def _covers_more(entry: str) -> bool:
    """Whether an entry lets a job load other classes of dpfed: NVFlare reads it as a prefix."""
    return entry.startswith("dpfed.") and entry != RELAY


def _rights(found: dict[str, Any]) -> Iterator[str]:
    roles = found.get("permissions", {})
    for role, given in roles.items() if isinstance(roles, dict) else ():
        if _allows(given, _BYOC):
            yield f'role {role!r} may send any Python here; set "byoc" to "none"'
        if _allows(given, _SHELL):
            yield f'role {role!r} may read logs here; set "shell_commands" to "none"'


def _allows(given: Any, rights: tuple[str, ...]) -> bool:
    """Whether any of the rights is given to anybody; a right that is not named is not given."""
    said = [given.get(right, "none") for right in rights] if isinstance(given, dict) else [given]
    return any(" ".join(str(each).lower().split()) not in _NEVER for each in said)


def running_sites(relays: Collection[int]) -> tuple[list[Path], list[str]]:
    """Kits of NVFlare clients that run on this machine, and warnings of their users.

    Args:
        relays: the users that the policy lets connect.
    """
    kits, warned = [], []
    for process in Path("/proc").iterdir():
        with suppress(OSError, ValueError):  # it has just ended, or is not visible to this user
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if not process.name.isdigit() or _CLIENT not in words:
                continue
            kits.append(Path(words[words.index("-m", words.index(_CLIENT)) + 1]))
            user = process.stat().st_uid
            if user not in relays:
                warned.append(
                    f"warning: NVFlare's client (process {process.name}) runs as {_name(user)}, "
                    f"whom gate.relay_users does not name; run it as one of them, never as root"
                )
    return sorted({Path(os.path.realpath(kit)) for kit in kits}), warned


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"
