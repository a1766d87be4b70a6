# SPDX-License-Identifier: Apache-2.0
"""``dpfed silo check``: can only the gate's user read the data on this machine?

Guarantee: nothing is written or changed, and no record is read, but by ``--modules``, which is
silo/modules.py, and where a policy has a contract: its files are compared with it. It checks
owners, modes and groups for the gate's user: as root that is the owner of the state folder,
otherwise whoever runs it.

| what is checked                             | refused                                        |
|---------------------------------------------|------------------------------------------------|
| the gate's user                             | root                                           |
| users that may connect                      | unknown, root, the gate's user, in a group that|
|                                             | gives rights, or in another of the gate's      |
| data, policy, state, ledger, identity       | another owner; a link in the path; a folder in |
|                                             | it that others may write to; readable by others|
| the socket's folder                         | as the gate itself does; open to everybody; no |
|                                             | way in for a user that may connect             |
| the installation                            | writable by a user that may connect            |
| roster and identity, under distributed trust| missing, unsound, or another silo's            |
| accounts                                    | two budgets of one; one file in two            |
| pretrained models                           | missing; writable by others than their owner   |
| clock                                       | before the installation, an approval, or what  |
|                                             | the gate has seen                              |
| files beside the contract, if there is one  | nothing: warnings, for this screen alone       |
| network of a gate that runs                 | nothing: a warning                             |
| NVFlare sites that run here, or are named   | nothing: warnings (nvflare_site.py)            |
"""

from __future__ import annotations

import datetime as dt
import grp
import os
import pwd
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import dpfed
from dpfed.accounting.ledger.balance import Balance
from dpfed.accounting.ledger.ledger import Ledger
from dpfed.cli.data import contract_findings
from dpfed.cli.nvflare_site import check_site, running_sites
from dpfed.core.errors import DataError
from dpfed.core.types import Trust
from dpfed.data.contract import Contract
from dpfed.data.places import find_files
from dpfed.silo import gate_command
from dpfed.silo.approvals import LEDGER_FILE, Approvals
from dpfed.silo.gate import refuse_open_folder
from dpfed.silo.policy import Policy, load_policy
from dpfed.silo.sources import check_accounts
from dpfed.sums.secagg import identity as identities

PRIVILEGED_GROUPS = (
    "root",
    "sudo",
    "wheel",
    "admin",
    "adm",
    "docker",
    "lxd",
    "lxc",
    "incus",
    "libvirt",
    "disk",
    "kmem",
    "mem",
    "shadow",
    "staff",
    "backup",
    "systemd-journal",
)
"""Groups whose members can read the disk, or become root."""
_HARMLESS_INTERFACES = {
    "lo",
    "sit0",
    "tunl0",
    "gre0",
    "gretap0",
    "erspan0",
    "ip_vti0",
    "ip6_vti0",
    "ip6tnl0",
    "ip6gre0",
}
"""Interfaces that a container or unit without network may have: none leads to another host."""


class _Site(NamedTuple):
    """What is checked: the policy, the gate's user, and the users that may connect."""

    path: Path
    policy: Policy
    gate: pwd.struct_passwd
    relays: list[pwd.struct_passwd]
    nvflare: tuple[Path, ...] = ()
    """Startup kits of NVFlare sites, besides those of clients that run."""

    @property
    def socket(self) -> Path:
        return Path(self.policy.gate.socket)

    @property
    def state(self) -> Path:
        return Path(self.policy.gate.state)


def check_silo(
    policy: Path, relay_users: Sequence[str] = (), nvflare: Sequence[Path] = ()
) -> Iterator[str]:
    """Say what was verified, line by line; lines that start with "warning:" need a decision.

    Args:
        policy: the owner's file.
        relay_users: users that the SuperNode runs under, besides those of the policy.
        nvflare: startup kits of NVFlare sites; those of clients that run are found.
    """
    path = policy.absolute()
    found = load_policy(path)
    yield f"{path}: can be read, data: {', '.join(found.data)}"
    gate = _gate_user(Path(found.gate.state))
    names = dict.fromkeys((*relay_users, *found.gate.relay_users))
    site = _Site(
        path=path,
        policy=found,
        gate=gate,
        relays=[_relay_user(found, name) for name in names],
        nvflare=tuple(nvflare),
    )
    for part in _PARTS:
        yield from part(site)


# ---------------------------------------------------------------------------------------- users


def _gate_user(state: Path) -> pwd.struct_passwd:
    try:
        owner = state.lstat().st_uid
    except OSError as error:
        raise DataError(
            f"the state folder {state} must be there, got {error.strerror!r}; make it with "
            f"'install -d -m 700 -o GATE_USER {state}'"
        ) from error
    if os.geteuid() not in (0, owner):
        raise DataError(
            f"the state folder {state} must be yours, got user {owner}; run this as root, or as "
            f"the gate's user"
        )
    if owner == 0:
        raise DataError(
            f"the gate's user must not be root, got root as owner of {state}; chown it to the "
            f"user that the gate runs under"
        )
    return _user(str(owner), lambda: pwd.getpwuid(owner))


def _relay_user(policy: Policy, name: str) -> pwd.struct_passwd:
    if name not in policy.gate.relay_users:
        raise DataError(
            f"relay user {name!r} must be in gate.relay_users, got {policy.gate.relay_users}; the "
            f"gate would close its connections, so add it there"
        )
    return _user(name, lambda: pwd.getpwnam(name))


def _user(name: str, look: Callable[[], pwd.struct_passwd]) -> pwd.struct_passwd:
    try:
        return look()
    except KeyError as error:
        raise DataError(
            f"user {name!r} is not on this machine; make it with 'useradd --system'"
        ) from error


def _groups(user: pwd.struct_passwd) -> set[int]:
    return set(os.getgrouplist(user.pw_name, user.pw_gid))


def _group_name(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def _check_users(site: _Site) -> Iterator[str]:
    folder = site.socket.parent
    allowed = {folder.stat().st_gid} if folder.is_dir() else set()
    yield f"the gate's user is {site.gate.pw_name}"
    for relay in site.relays:
        _refuse_user(relay, site.gate)
        _refuse_groups(relay, _groups(site.gate) - allowed)
        yield f"relay user {relay.pw_name}: another user, in no privileged group"


def _refuse_user(relay: pwd.struct_passwd, gate: pwd.struct_passwd) -> None:
    if relay.pw_uid == 0:
        raise DataError(
            f"relay user {relay.pw_name!r} must not be root, got user 0, who reads everything; run "
            f"the SuperNode under a user of its own"
        )
    if relay.pw_uid == gate.pw_uid:
        raise DataError(
            f"relay user {relay.pw_name!r} must be another user than the gate's, got the same; run "
            f"the SuperNode, which runs the server's code, under a user of its own"
        )


def _refuse_groups(relay: pwd.struct_passwd, gates: set[int]) -> None:
    for number in sorted(_groups(relay)):
        name = _group_name(number)
        why = (
            "can read the data, or become root" if name in PRIVILEGED_GROUPS or number == 0 else ""
        )
        why = "is one of the gate's" if number in gates else why
        if why:
            raise DataError(
                f"relay user {relay.pw_name!r} must be in the socket's group only, got {name!r}, "
                f"which {why}; 'gpasswd -d {relay.pw_name} {name}', or give it another first group"
            )


# ---------------------------------------------------------------------------------------- files


def _check_files(site: _Site) -> Iterator[str]:
    yield _private("the policy", site.path, site)
    yield _private("the state folder", site.state, site)
    for each in sorted(site.state.rglob("*")):
        if each.lstat().st_uid != site.gate.pw_uid:
            raise DataError(
                f"{each} must be {site.gate.pw_name}'s, got user {each.lstat().st_uid}; chown it, "
                f"and run the owner's commands as {site.gate.pw_name}"
            )
    for name, data in site.policy.data.items():
        named = data.load.source
        for source in [named] if isinstance(named, str) else named:
            yield from _check_source(name, source, site)


def _check_source(name: str, source: str, site: _Site) -> Iterator[str]:
    if source == "synthetic" or source.startswith("hf:"):
        yield f"data {name}: {source}, not a file on this machine"
        return
    if not Path(source).is_absolute():
        raise DataError(
            f"data.{name}.load.source must be an absolute path, got {source!r}; the gate runs "
            f"in another folder"
        )
    pattern = not Path(source).exists() and any(sign in source for sign in "*?[")
    for path in find_files(source) if pattern else [Path(source)]:
        yield _private(f"data {name}", path, site)


def _check_models(site: _Site) -> Iterator[str]:
    """Folders of pretrained models are public, and only their owner may change them."""
    for name, data in site.policy.data.items():
        for source, model in data.pretrained.items():
            if not model.folder:
                continue
            if not Path(model.folder).is_dir():
                raise DataError(
                    f"data.{name}.pretrained.{source}.folder must be a folder, got "
                    f"{model.folder!r}; put the model there, or correct the policy"
                )
            for each in (Path(model.folder), *sorted(Path(model.folder).rglob("*"))):
                _refuse_relays(f"model {source}", each, site)
            yield f"model {source}: relay users cannot change {model.folder}"


def _refuse_relays(
    what: str, path: Path, site: _Site, way_out: str = "'chmod go-w' it, or chown it"
) -> None:
    """Refuse a public file that a user who may connect could change, or put another in place of."""
    for each in (path, *path.parents):
        facts = each.stat()
        owned = facts.st_uid in {relay.pw_uid for relay in site.relays}
        shared = any(facts.st_gid in _groups(relay) for relay in site.relays)
        writable = facts.st_mode & (0o022 if shared else 0o002)
        if owned or (writable and not facts.st_mode & 0o1000):
            raise DataError(
                f"{what} must not be writable by a relay user, got {each} of user {facts.st_uid} "
                f"with mode {facts.st_mode & 0o7777:o}; {way_out}"
            )


def _check_contracts(site: _Site) -> Iterator[str]:
    """What differs between a file and its contract; shown here, and sent to nobody."""
    for name, data in site.policy.data.items():
        if not isinstance(data.load.contract, Contract):
            continue
        found = contract_findings(data.load)
        yield from (f"warning: data {name}: {each.said}" for each in found)
        held = f"contract {data.load.contract.digest[:16]}"
        yield f"data {name}: compared with {held}, {len(found) or 'no'} findings"


def _check_accounts(site: _Site) -> Iterator[str]:
    """Each file has one account with one budget; nothing is written."""
    ledger = site.state / LEDGER_FILE
    names = Ledger(ledger, create=False).balance() if ledger.exists() else Balance()
    counted = Approvals(site.state).sources()
    check_accounts(site.policy, names.base_of, counted)
    for name, data in site.policy.data.items():
        names.allowed(data.key(name), data.budget)
    yield "accounts: no file is in two of them, and each has one budget"


def _private(what: str, path: Path, site: _Site) -> str:
    """Refuse a file or folder that anybody but the gate's user can read or reach."""
    _refuse_path(what, path, site.gate)
    if not any(_closed(each) for each in (path, *path.parents)):
        raise _open_to_others(what, path, site.relays)
    _refuse_unreadable(what, path, site.gate)
    return f"{what}: {path} is for {site.gate.pw_name} alone"


def _refuse_path(what: str, path: Path, gate: pwd.struct_passwd) -> None:
    for each in (path, *path.parents):
        try:
            facts = each.lstat()
        except OSError as error:
            raise DataError(
                f"{what} must be at {path}, got {error.strerror!r} at {each}; correct the policy, "
                f"or put it there"
            ) from error
        if each.is_symlink():
            raise DataError(
                f"{what} must be at a path without links, got the link {each}; use the path that "
                f"it leads to"
            )
        if facts.st_uid not in ((gate.pw_uid,) if each == path else (0, gate.pw_uid)):
            raise DataError(
                f"{each} must be {gate.pw_name}'s, got user {facts.st_uid}; 'chown {gate.pw_name}: "
                f"{each}'"
            )
        if facts.st_mode & 0o022 and not (each != path and facts.st_mode & 0o1000):
            raise DataError(
                f"{each} must be writable by its owner alone, got mode {facts.st_mode & 0o7777:o}; "
                f"'chmod go-w {each}'"
            )


def _closed(path: Path) -> bool:
    """Whether owner and mode keep all others out; an access list counts as the group's mode."""
    return not path.lstat().st_mode & 0o077


def _open_to_others(what: str, path: Path, relays: list[pwd.struct_passwd]) -> DataError:
    facts = path.lstat()
    members = [each.pw_name for each in relays if facts.st_gid in _groups(each)]
    whom = "everybody" if facts.st_mode & 0o007 else f"group {_group_name(facts.st_gid)!r}"
    if members and facts.st_mode & 0o070:
        whom = f"group {_group_name(facts.st_gid)!r}, which relay user {members[0]!r} is in"
    return DataError(
        f"{what} must be readable by the gate's user alone, got mode {facts.st_mode & 0o7777:o} of "
        f"{path}, open to {whom}; 'chmod go= {path}'"
    )


def _refuse_unreadable(what: str, path: Path, gate: pwd.struct_passwd) -> None:
    """Refuse a file that the gate itself could not read."""
    for each in (path, *path.parents):
        facts, groups = each.stat(), _groups(gate)
        shift = 6 if facts.st_uid == gate.pw_uid else 3 if facts.st_gid in groups else 0
        needed = 0o5 if each == path and each.is_dir() else 0o4 if each == path else 0o1
        if (facts.st_mode >> shift) & needed != needed:
            raise DataError(
                f"{what} must be readable by the gate's user {gate.pw_name!r}, got mode "
                f"{facts.st_mode & 0o7777:o} of {each}; let its owner read it, or others "
                f"enter the folder"
            )


def _check_socket(site: _Site) -> Iterator[str]:
    folder = site.socket.parent
    if not folder.exists():
        above = next(each for each in folder.parents if each.exists())
        refuse_open_folder(above, 0 if above.stat().st_uid == 0 else site.gate.pw_uid)
        yield f"warning: {folder} does not exist; the gate's unit makes it: check again then"
        return
    refuse_open_folder(folder, site.gate.pw_uid)
    facts = folder.stat()
    if facts.st_mode & 0o007:
        raise DataError(
            f"{folder} must be closed to all but the socket's group, got mode "
            f"{facts.st_mode & 0o7777:o}; 'chmod 750 {folder}'"
        )
    for relay in site.relays:
        if facts.st_gid not in _groups(relay) or not facts.st_mode & 0o010:
            raise DataError(
                f"relay user {relay.pw_name!r} must be able to reach {folder}, got mode "
                f"{facts.st_mode & 0o7777:o} and group {_group_name(facts.st_gid)!r}; 'chmod 750' "
                f"it, and 'usermod -aG {_group_name(facts.st_gid)} {relay.pw_name}'"
            )
    yield f"{folder}: owned by the gate's user; group {_group_name(facts.st_gid)!r} may connect"


def _check_installation(site: _Site) -> Iterator[str]:
    package = Path(dpfed.__file__).resolve().parent
    for start in (package, Path(sys.executable).resolve()):
        _refuse_relays("the installation", start, site, "install dpfed as root")
    yield f"the installation {package}: relay users cannot change it"


# ------------------------------------------------------------------- identity, clock, network


def _check_identity(site: _Site) -> Iterator[str]:
    needed = {n: d for n, d in site.policy.data.items() if Trust.DISTRIBUTED in d.trust}
    folder = site.policy.gate.identity
    if not folder:
        if needed:
            raise DataError(
                f"gate.identity must be a folder, as data {sorted(needed)} accepts distributed "
                f"trust, got none; name the folder of identity.key and roster.json"
            )
        yield f"identity: none, and no data accepts distributed trust; {_key_said(site)}"
        return
    yield _private("the identity key", Path(folder) / identities.KEY, site)
    found = identities.load_identity(Path(folder))
    for name, data in needed.items():
        if data.client != found.client:
            raise DataError(
                f"data.{name}.client must be {found.client}, this key's place in the roster, got "
                f"{data.client}; correct the policy, or take this silo's own key"
            )
    yield f"identity: client {found.client} of a signed roster of {len(found.roster.keys)} silos"


def _key_said(site: _Site) -> str:
    """Which key a gate without a roster signs with."""
    path = Path(site.policy.gate.state) / identities.KEY
    if not path.exists():
        return "the gate makes a key when it starts"
    _private("the identity key", path, site)
    return f"the gate signs with {identities.own_key(path.parent).public.hex()}"


def _check_clock(site: _Site) -> Iterator[str]:
    now = dt.datetime.now(dt.UTC)
    made = dt.datetime.fromtimestamp(Path(dpfed.__file__).stat().st_mtime, dt.UTC)
    _refuse_past(now, made, "dpfed was installed")
    largest = Approvals(site.state).largest()
    if largest is not None:
        _refuse_past(now, largest, "the gate answered, or its owner decided")
    yield f"the clock says {now:%Y-%m-%d %H:%M} UTC: after the installation and all approvals"


def _refuse_past(now: dt.datetime, event: dt.datetime, what: str) -> None:
    if now < event - dt.timedelta(minutes=5):
        raise DataError(
            f"the clock must be after {event:%Y-%m-%d %H:%M} UTC, when {what}, got "
            f"{now:%Y-%m-%d %H:%M}; set it, as approvals end by it, or, if it was ahead once, "
            f"'dpfed silo clock --reset'"
        )


def _check_network(site: _Site) -> Iterator[str]:
    running = [each for each in Path("/proc").iterdir() if _is_gate(each, site.gate.pw_uid)]
    if not running:
        yield "the gate is not running, or not visible to you: its network was not checked"
    for each in running:
        try:
            lines = (each / "net" / "dev").read_text().splitlines()[2:]
        except OSError:
            continue
        names = sorted({line.split(":")[0].strip() for line in lines} - _HARMLESS_INTERFACES)
        if names:
            yield (
                f"warning: the gate (process {each.name}) has a network ({', '.join(names)}); "
                f"start it with its systemd unit, which has PrivateNetwork=yes"
            )
        else:
            yield f"the gate (process {each.name}) has no network"


def _is_gate(process: Path, user: int) -> bool:
    if not process.name.isdigit():
        return False
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
        status = (process / "status").read_text()
    except OSError:
        return False
    mine = f"\nUid:\t{user}\t" in status
    start = [word.encode() for word in gate_command()[-2:]]  # whatever flags it was started with
    return mine and any(words[i : i + len(start)] == start for i in range(len(words)))


def _check_nvflare(site: _Site) -> Iterator[str]:
    running, warned = running_sites({relay.pw_uid for relay in site.relays})
    yield from warned
    for folder in dict.fromkeys((*site.nvflare, *running)):
        yield from check_site(folder)


_PARTS: tuple[Callable[[_Site], Iterator[str]], ...] = (
    _check_users,
    _check_files,
    _check_models,
    _check_contracts,
    _check_accounts,
    _check_socket,
    _check_installation,
    _check_identity,
    _check_clock,
    _check_network,
    _check_nvflare,
)
