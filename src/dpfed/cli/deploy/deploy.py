# SPDX-License-Identifier: Apache-2.0
"""Keys, certificates and start scripts for a Flower federation across hosts.

``init`` writes one folder; each part of it belongs to one party, and to no other::

    config.toml                   who runs ``flwr run``: where the SuperLink is, whom to trust
    ca/ca.key                     the operator, offline: whoever holds it can pose as the server,
                                  and can sign a roster
    ca/ca.crt                     public
    server/ca.crt                 public
    server/server.crt             public; names the hosts under which the server is reached
    server/server.key             the server's host only: proves to the silos who the server is
    server/roster.json, .sig      public; the same roster as the silos have, to name a wrong key
    server/nodes/NAME.pub         public keys of the silos that may join
    server/nodes/NAME.identity    public identity keys: with these two files another ``init`` knows
                                  the silo, and makes no keys for it
    server/start-superlink.sh     the server's host
    server/register-nodes.sh      the server's host: tells the SuperLink who may join
    nodes/NAME/ca.crt             public; the silo refuses a server that this did not sign
    nodes/NAME/node.key           that silo's host only: proves to the server who the silo is
    nodes/NAME/node.pub           public; the same key as server/nodes/NAME.pub
    nodes/NAME/identity.key       that silo's host only: proves to the other silos who it is
    nodes/NAME/roster.json        public; names and identity keys of all silos, by partition-id
    nodes/NAME/roster.sig         public; the CA's signature of roster.json
    nodes/NAME/start-supernode.sh that silo's host

TLS encrypts and authenticates the connection to the server. Node authentication keeps strangers out
of the sum, whose accounting assumes that each silo adds its share of the noise. Flower wants both
or neither: node keys are ECDSA on a NIST curve, in OpenSSH form (``--auth-supernode-private-key``).
Identity keys are for a secure sum, in which silos agree on masks by messages that the server
transports and must not be able to forge (sums/secagg/identity.py).

What this does not do: the open-source SuperLink serves its Control API (submit a run, register a
node) on the same port and authenticates nobody there. Whoever reaches that path of the port can
start code on the silos. Let only ``/v1/fleet/`` through from outside; ``check`` says so too.

Edge cases:

    a key already exists               init refuses: new keys would lock out hosts with the old
    a silo made its own keys           ``keys`` has their public halves; none is made here
    a certificate has ended, a silo    ``init`` in a new folder, with the old one's server/nodes as
    joins or leaves                    ``keys``: the silos keep theirs
    a node's private key is not here   check accepts it: after the hand-over it should be gone
    a silo's identity.key is not here  check accepts it, for the same reason
    the CA's private key is not here   check accepts it: it belongs offline
    a certificate ends within 30 days  check warns; after its end, check refuses
    a key can be read by others        check refuses
    a roster is not signed by this CA  check refuses
    two silos have unlike rosters      check refuses: each would refuse the other's signatures;
                                       the server's roster is one of them
    identity.key is another silo's     check refuses; so does the silo itself when it starts
    a script starts another client     check refuses: the roster counts by partition-id
    DPFED_IDENTITY=simulated           the start script overrides it; in a script, check refuses
    no TLS, node keys or rosters       check refuses, or with insecure=True warns
    the folder has a silo.toml         check continues with what ``dpfed silo check`` verifies
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from dpfed.cli.deploy import certificates as certs
from dpfed.cli.deploy import scripts
from dpfed.core.checks import refuse
from dpfed.core.errors import RecipeError
from dpfed.sums.secagg import identity

PORT = 8000
"""Flower's own default for the SuperLink."""

CONNECTION = "dpfed"
"""The SuperLink's name in ``config.toml``: ``flwr run APP dpfed``."""

WARN_DAYS = 30
# The SuperLink's own workers reach it over loopback, with the same certificate.
LOOPBACK = ("127.0.0.1", "::1", "localhost")
ANY_HOST = "0.0.0.0"  # noqa: S104  the silos are on other hosts
CONTROL_WARNING = (
    "warning: the SuperLink's Control API shares the port and asks for no credentials; let only "
    "/v1/fleet/ through from other hosts"
)


# ----------------------------------------------------------------------------------------- init


def init(
    folder: Path,
    *,
    server_names: list[str],
    nodes: list[str],
    port: int = PORT,
    days: int = 365,
    keys: Path | None = None,
) -> list[Path]:
    """Write keys, certificates and start scripts, and return what was written.

    Args:
        folder: where to write; made if missing.
        server_names: DNS names and IP addresses under which silos reach the server. The first is
            the one that the scripts use; loopback is always added to the certificate.
        nodes: one name per silo; its place in the list is its partition-id.
        port: the SuperLink's port, from 1 to 65535.
        days: for how many days the certificates are valid, from 1 to 3650.
        keys: a folder with public keys that silos have already: NAME.pub for the server, and
            NAME.identity for the other silos.
    """
    _check_names(server_names, nodes)
    check_range("--port", port, 1, 65535)
    check_range("--days", days, 1, 3650)
    _refuse_existing(folder)
    node_keys, identities = _keys_in(keys, nodes)
    address = scripts.address(server_names[0], port)
    ca_key = certs.new_tls_key()
    certificates = _write_certificates(folder, server_names, ca_key, days)
    server = _write_server_scripts(folder, server_names[0], port)
    silos = [
        path
        for i, name in enumerate(nodes)
        for path in _write_node(
            folder, name, scripts.start_node(name, address, i, len(nodes)), node_keys.get(name)
        )
    ]
    rosters = _write_identities(folder, nodes, ca_key, identities)
    return [*certificates, *server, *silos, *rosters, _write_config(folder, address)]


def _keys_in(
    folder: Path | None, nodes: list[str]
) -> tuple[dict[str, ec.EllipticCurvePublicKey], dict[str, bytes]]:
    """The public keys that silos have already, by name: for the server, and for other silos."""
    if folder is None:
        return {}, {}
    files = {name: (folder / f"{name}.pub", folder / f"{name}.identity") for name in nodes}
    return (
        {name: certs.load_public(pub) for name, (pub, _) in files.items() if pub.exists()},
        {name: certs.load_identity(own) for name, (_, own) in files.items() if own.exists()},
    )


def _check_names(server_names: list[str], nodes: list[str]) -> None:
    if not server_names:
        raise RecipeError("--server is missing; give the DNS name or IP address of the server")
    if not nodes:
        raise RecipeError("--node is missing; give one name per silo, e.g. hospital-a")
    _check_silos(nodes)
    for name in server_names:
        certs.general_name(name)


def _check_silos(nodes: list[str]) -> None:
    """Refuse names that two silos share, or that are no plain words."""
    if len({name.lower() for name in nodes}) < len(nodes):
        raise refuse("--node", "a different name for each silo (case aside)", nodes, "rename one")
    for name in nodes:
        if not identity.NAME.fullmatch(name):
            way_out = "use A-Z, a-z, 0-9, - and _ only, and neither - nor _ first"
            raise refuse("--node", "a plain word of 63 characters or fewer", name, way_out)


def check_range(what: str, value: int, low: int, high: int) -> None:
    """Refuse a number outside of its range.

    Args:
        what: the option.
        value: what was given.
        low: the least.
        high: the most.
    """
    if not low <= value <= high:
        raise refuse(what, f"between {low} and {high}", value)


def _refuse_existing(folder: Path) -> None:
    for part in ("ca", "server", "nodes"):
        if (folder / part).exists():
            raise RecipeError(
                f"{folder / part} already exists, and new keys would lock out every host that "
                "holds the old ones; choose another folder, or move this one away first"
            )


# --------------------------------------------------------------------------- what init writes


def _write_certificates(
    folder: Path, server_names: list[str], ca_key: ec.EllipticCurvePrivateKey, days: int
) -> list[Path]:
    server_key = certs.new_tls_key()
    ca = certs.ca_certificate(ca_key, days)
    hosts = list(dict.fromkeys((*server_names, *LOOPBACK)))
    server = certs.server_certificate(server_key, hosts, ca, ca_key, days)
    return [
        _write(folder / "ca/ca.key", certs.pem(ca_key), mode=0o600),
        _write(folder / "ca/ca.crt", certs.crt(ca)),
        _write(folder / "server/server.key", certs.pem(server_key), mode=0o600),
        _write(folder / "server/server.crt", certs.crt(server)),
        _write(folder / "server/ca.crt", certs.crt(ca)),
    ]


def _write_server_scripts(folder: Path, host: str, port: int) -> list[Path]:
    bind = "127.0.0.1" if host in LOOPBACK else ANY_HOST
    start, register = scripts.start_server(bind, port), scripts.register(CONNECTION, port)
    return [
        _write(folder / "server/start-superlink.sh", start, mode=0o700),
        _write(folder / "server/register-nodes.sh", register, mode=0o700),
    ]


def _write_node(
    folder: Path, name: str, script: bytes, own: ec.EllipticCurvePublicKey | None
) -> list[Path]:
    """A silo's key for the server, unless it has its own, the CA's certificate and its script."""
    home, written = folder / "nodes" / name, []
    if own is None:
        key = certs.new_tls_key()
        own = key.public_key()
        written = [_write(home / "node.key", certs.openssh(key), mode=0o600)]
    public = certs.openssh_public(own, name)
    return [
        *written,
        _write(home / "node.pub", public),
        _write(home / "ca.crt", (folder / "ca/ca.crt").read_bytes()),
        _write(home / "start-supernode.sh", script, mode=0o700),
        _write(folder / "server/nodes" / f"{name}.pub", public),
    ]


def _write_identities(
    folder: Path, nodes: list[str], ca_key: ec.EllipticCurvePrivateKey, own: Mapping[str, bytes]
) -> list[Path]:
    made = {name: certs.new_identity() for name in nodes if name not in own}
    public = {**own, **{name: key.public_key().public_bytes_raw() for name, key in made.items()}}
    roster = identity.dump_roster(nodes, [public[name] for name in nodes])
    signature = certs.sign(ca_key, roster)
    keys = [(folder / "nodes" / name, certs.pem(key)) for name, key in made.items()]
    homes = [folder / "server", *(folder / "nodes" / name for name in nodes)]
    return [
        *(_write(home / identity.KEY, key, mode=0o600) for home, key in keys),
        *(_write(home / identity.ROSTER, roster) for home in homes),
        *(_write(home / identity.SIGNATURE, signature) for home in homes),
        *(
            _write(folder / "server/nodes" / f"{name}.identity", f"{public[name].hex()}\n".encode())
            for name in nodes
        ),
    ]


def _write_config(folder: Path, address: str) -> Path:
    ca = (folder / "ca/ca.crt").resolve()
    return _write(folder / "config.toml", scripts.connection(CONNECTION, address, ca))


def _write(path: Path, content: bytes, mode: int = 0o644) -> Path:
    for parent in reversed(path.parents):
        parent.mkdir(mode=0o700, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "wb") as file:
        os.fchmod(handle, mode)  # whatever the umask is
        file.write(content)
    return path


# ---------------------------------------------------------------------------------------- check


def check(folder: Path, *, insecure: bool = False) -> list[str]:
    """Say what was verified; lines that start with "warning:" need a decision.

    Args:
        folder: a folder that ``init`` made.
        insecure: warn, rather than refuse, where TLS, node authentication or a roster is missing.
            Anything else that is wrong (expired, unsigned, mismatched, readable by others) still
            raises.
    """
    if not folder.is_dir():
        raise RecipeError(f"{folder} is not a folder; make it with `dpfed deploy init {folder}`")
    return [
        *_check_permissions(folder),
        *_check_tls(folder, insecure),
        *_check_copies(folder),
        *_check_nodes(folder, insecure),
        *_check_rosters(folder, insecure),
        *_check_scripts(folder, insecure),
        *_check_gate(folder),
        *_check_flower(),
        CONTROL_WARNING,
    ]


def _check_permissions(folder: Path) -> list[str]:
    keys = sorted(folder.rglob("*.key"))
    for key in keys:
        mode = key.stat().st_mode & 0o777
        if mode & 0o077:
            raise RecipeError(
                f"{key} must be readable by its owner only, got mode {mode:04o}; run "
                f"`chmod 600 {key}`, and make new keys if others may have read it"
            )
    return [f"{len(keys)} private keys: readable by their owner only"]


def _missing(message: str, *, insecure: bool) -> list[str]:
    if not insecure:
        raise RecipeError(
            f"{message}; make a new folder with `dpfed deploy init`, or say --insecure if every "
            "process runs on one machine"
        )
    return [f"warning: {message}"]


def _check_tls(folder: Path, insecure: bool) -> list[str]:
    needed = [folder / name for name in ("ca/ca.crt", "server/server.crt", "server/server.key")]
    absent = [str(path) for path in needed if not path.is_file()]
    if absent:
        return _missing(f"TLS is missing: there is no {' and no '.join(absent)}", insecure=insecure)
    ca, server = (certs.load_certificate(path) for path in needed[:2])
    found = ((needed[0], ca), (needed[1], server))
    lines = [certs.check_dates(path, each, WARN_DAYS) for path, each in found]
    lines += [certs.check_signature(ca, server, host) for host in certs.hosts_of(server)]
    certs.same_key(needed[2], needed[1], server)
    if (folder / "ca/ca.key").is_file():
        certs.same_key(folder / "ca/ca.key", needed[0], ca)
    return [*lines, "server/server.key fits server/server.crt"]


def _check_copies(folder: Path) -> list[str]:
    if not (folder / "ca/ca.crt").is_file():
        return []
    copies = [folder / "server/ca.crt", *sorted((folder / "nodes").glob("*/ca.crt"))]
    certs.check_copies(copies, certs.load_certificate(folder / "ca/ca.crt"))
    return ["every copy of ca/ca.crt is the same"]


def _check_nodes(folder: Path, insecure: bool) -> list[str]:
    public = sorted((folder / "server/nodes").glob("*.pub"))
    if not public:
        message = "node authentication is missing: no public key in server/nodes"
        return _missing(message, insecure=insecure)
    keys = {path.stem: certs.load_public(path) for path in public}
    if len({certs.openssh_public(key, "") for key in keys.values()}) < len(keys):
        raise RecipeError(f"two of the nodes {sorted(keys)} share one key; give each its own")
    return [_check_node(folder, name, key) for name, key in keys.items()]


def _check_node(folder: Path, name: str, public: ec.EllipticCurvePublicKey) -> str:
    home = folder / "nodes" / name
    if not (home / "node.key").is_file():
        return f"node {name}: public key is fine; its private key is not here, as it should be"
    if certs.load_private(home / "node.key").public_key() != public:
        raise RecipeError(
            f"{home / 'node.key'} does not fit server/nodes/{name}.pub, so the SuperLink would "
            "refuse the silo; copy the silo's node.pub there"
        )
    return f"node {name}: node.key fits server/nodes/{name}.pub"


def _check_rosters(folder: Path, insecure: bool) -> list[str]:
    homes = sorted(path for path in (folder / "nodes").glob("*") if path.is_dir())
    absent = [str(home) for home in homes if not (home / identity.ROSTER).is_file()]
    if absent or not homes:
        where = " and ".join(absent) or str(folder / "nodes")
        message = f"identity keys are missing: there is no {identity.ROSTER} in {where}"
        return _missing(message, insecure=insecure)
    server = [folder / "server"] if (folder / "server" / identity.ROSTER).is_file() else []
    roster = _common_roster([*homes, *server])
    registered = {path.stem for path in folder.glob("server/nodes/*.pub")}
    known = registered or set(roster.names)  # that there is none at all, _check_nodes has said
    strays = (known ^ set(roster.names)) | ({home.name for home in homes} - known)
    if strays:
        raise RecipeError(
            f"{sorted(strays)} is not in all of nodes, server/nodes and {identity.ROSTER}, so it "
            "could not take part; `dpfed deploy add-silo` or `remove-silo` changes all of them"
        )
    lines = [_check_identity(home, roster) for home in homes]
    return [f"roster of {len(roster.names)} silos: signed by the CA, the same for each", *lines]


def _common_roster(homes: list[Path]) -> identity.Roster:
    """Each roster is verified with the ca.crt beside it, as its silo does; see _check_copies."""
    rosters = [identity.load_roster(home) for home in homes]
    usual = max(rosters, key=rosters.count)
    good = homes[rosters.index(usual)] / identity.ROSTER
    for home, roster in zip(homes, rosters, strict=True):
        if roster != usual:
            raise RecipeError(
                f"{home / identity.ROSTER} is not {good}, so those who have it would refuse the "
                f"others' signatures; copy {good.name}, with its roster.sig, from {good.parent}"
            )
    return usual


def _check_identity(home: Path, roster: identity.Roster) -> str:
    place, count = roster.names.index(home.name), len(roster.names)
    starts = scripts.partition_of(home / "start-supernode.sh")
    if starts not in (None, (place, count)):
        raise RecipeError(
            f"{home / 'start-supernode.sh'} says partition-id={starts[0]} of {starts[1]}, but "
            f"{home / identity.ROSTER} has {home.name} as {place} of {count}; make both the same"
        )
    if not (home / identity.KEY).is_file():
        return f"node {home.name}: client {place}; its identity.key is not here, as it should be"
    found = identity.load_identity(home).client
    if found != place:
        raise RecipeError(
            f"{home / identity.KEY} is the key of {roster.names[found]} in the roster and not of "
            f"{home.name}; give each silo its own"
        )
    return f"node {home.name}: identity.key fits client {place} of the roster"


def _check_scripts(folder: Path, insecure: bool) -> list[str]:
    lines: list[str] = []
    for script, flaw in scripts.flaws(folder).items():
        if flaw:
            message = f"TLS, node authentication or identity is missing: {script} {flaw}"
            lines += _missing(message, insecure=insecure)
        else:
            lines.append(f"{script} uses TLS and node authentication")
    return lines


def _check_gate(folder: Path) -> list[str]:
    if not (folder / "silo.toml").is_file():
        return []
    from dpfed.cli.silo_check import check_silo

    lines = check_silo(folder / "silo.toml")
    return [x if x.startswith("warning:") else f"silo: {x}" for x in lines]


def _check_flower() -> list[str]:
    from dpfed.cli.doctor import simulations_only

    said = simulations_only()
    return [f"warning: {said}"] if said else []
