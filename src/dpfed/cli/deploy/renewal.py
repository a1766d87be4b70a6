# SPDX-License-Identifier: Apache-2.0
"""A deployment's later life: new certificates, a silo that joins or leaves, new keys of a silo.

Each of these leaves a folder that ``check`` accepts: every roster, the server's too, is written and
signed anew, and every start script has the new number of silos. It needs ca/ca.key, and happens
between two trainings: a training's plan fixes who is in it.

| edge case                                   | what happens                                       |
|---------------------------------------------|----------------------------------------------------|
| ca/ca.key is not here                       | RecipeError; nothing is written                    |
| the folder is not in order before           | RecipeError of ``check``; nothing is written       |
| a silo's folder is gone, as handed over     | its new files are in server/, and said             |
| options that were added to a start script   | stay: only its partition-id and number are changed |
| a silo in the middle leaves                 | those behind it move up: their scripts say so      |
| the files of a silo that leaves             | are moved to removed/, not deleted                 |
| a silo made its new keys itself             | their public halves are enough; none is made here  |
"""

from __future__ import annotations

import datetime as dt
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dpfed.cli.deploy import certificates as certs
from dpfed.cli.deploy import deploy, scripts
from dpfed.core.checks import refuse
from dpfed.core.errors import RecipeError
from dpfed.core.files import replace_file
from dpfed.sums.secagg import identity

Roster = tuple[list[str], list[bytes]]
"""Names and public identity keys, by partition-id."""


def renew(folder: Path, *, days: int = 365, new_ca: bool = False) -> list[str]:
    """New certificates of the CA and the server, for the same hosts; returns what to do next.

    Args:
        folder: the deployment's folder.
        days: for how many days they are valid, from 1 to 3650.
        new_ca: make a new key of the CA, too, and sign every roster with it: where it was stolen.
    """
    deploy.check_range("--days", days, 1, 3650)
    ca_key, roster = _opened(folder, expired=True), _roster(folder)
    server = certs.load_certificate(folder / "server/server.crt")
    hosts = [str(host.value) for host in certs.hosts_of(server)]
    if new_ca:
        ca_key = certs.new_tls_key()
    ca, server_key = certs.ca_certificate(ca_key, days), certs.new_tls_key()
    made = certs.server_certificate(server_key, hosts, ca, ca_key, days)
    _put(folder / "ca/ca.key", certs.pem(ca_key), 0o600)
    _put(folder / "server/server.key", certs.pem(server_key), 0o600)
    _put(folder / "server/server.crt", certs.crt(made))
    for home in (folder / "ca", folder / "server", *_homes(folder)):
        _put(home / "ca.crt", certs.crt(ca))
    _write_rosters(folder, roster, ca_key)
    return [
        "hand over, and start again, the server first (and the proxy, which has the certificate):",
        "  server/: ca.crt, server.crt, server.key, roster.sig; whoever starts runs: ca/ca.crt",
        *(f"  nodes/{name}/: ca.crt, roster.sig" for name in roster[0]),
    ]


def add_silo(folder: Path, name: str) -> list[str]:
    """Keys, roster and start script of one more silo, the last one; returns what to do next."""
    ca_key, (names, keys) = _opened(folder), _roster(folder)
    deploy.check_silos([*names, name])
    own, count = certs.new_identity(), len(names) + 1
    script = scripts.start_node(name, _address(folder), count - 1, count)
    deploy.write_node(folder, name, script)
    _put(folder / "nodes" / name / identity.KEY, certs.pem(own), 0o600)
    roster = [*names, name], [*keys, own.public_key().public_bytes_raw()]
    _write_rosters(folder, roster, ca_key)
    return [
        f"{name} is client {count - 1} of {count}: hand it nodes/{name}/, and nobody else",
        "on the server's host: copy server/nodes/ there, then server/register-nodes.sh",
        *_to_all(names),
    ]


def remove_silo(folder: Path, name: str) -> list[str]:
    """A roster without the silo, whose files are moved to removed/; returns what to do next."""
    ca_key, (names, keys) = _opened(folder), _roster(folder)
    place = _place(names, name)
    if len(names) < 3:
        raise RecipeError(f"a federation must keep 2 silos or more, got {names}; add one first")
    away = folder / "removed" / f"{name}-{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%S}"
    away.mkdir(parents=True, mode=0o700)
    for path in (folder / "nodes" / name, folder / f"server/nodes/{name}.pub"):
        if path.exists():
            path.rename(away / path.name)
    left = names[:place] + names[place + 1 :]
    _write_rosters(folder, (left, keys[:place] + keys[place + 1 :]), ca_key)
    moved = [
        f"{each} is client {left.index(each)} now, was {names.index(each)}"
        for each in left
        if left.index(each) != names.index(each)
    ]
    return [
        f"the files of {name} are in {away}",
        f"on the server's host: delete nodes/{name}.pub, and flwr supernode unregister NODE_ID",
        *moved,
        *_to_all(left),
    ]


def rotate_key(
    folder: Path, name: str, *, node_pub: Path | None = None, identity_pub: str | None = None
) -> list[str]:
    """New keys of one silo, for the server and for the other silos; returns what to do next.

    Public keys that the silo made itself take the place of the old ones, and only they: then no
    private key is made here, and one of before is deleted.

    Args:
        folder: the deployment's folder.
        name: the silo's.
        node_pub: the file of its own new node.pub; None, with no identity_pub, makes both keys.
        identity_pub: its own new identity's public key, as 64 hexadecimal digits.
    """
    ca_key, (names, keys) = _opened(folder), _roster(folder)
    place, home = _place(names, name), folder / "nodes" / name
    given = node_pub is not None or identity_pub is not None
    own_node = None if node_pub is None else certs.load_public(node_pub)
    own_key = None if identity_pub is None else _raw_key(identity_pub)
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    if own_node is not None or not given:
        public = _new_node_key(home, name, own_node)
        for path in (home / "node.pub", folder / f"server/nodes/{name}.pub"):
            _put(path, public)
    identity_key = keys[place]
    if own_key is not None or not given:
        identity_key = _new_identity_key(home, own_key)
    if not (home / "start-supernode.sh").exists():  # all of its folder had been handed over
        _put(home / "ca.crt", (folder / "ca/ca.crt").read_bytes())
        script = scripts.start_node(name, _address(folder), place, len(names))
        _put(home / "start-supernode.sh", script, 0o700)
    _write_rosters(folder, (names, [*keys[:place], identity_key, *keys[place + 1 :]]), ca_key)
    what = "roster.json and roster.sig of " if given else ""
    return [
        f"hand {what}nodes/{name}/ to {name}, and nobody else",
        "on the server's host: flwr supernode unregister NODE_ID of the old key; copy "
        "server/nodes/ there; server/register-nodes.sh",
        *_to_all([each for each in names if each != name]),
    ]


def _new_node_key(home: Path, name: str, own: ec.EllipticCurvePublicKey | None) -> bytes:
    """The line of a silo's public node key: its own, or of one that is made here."""
    (home / "node.key").unlink(missing_ok=True)
    if own is not None:
        return certs.openssh_public(own, name)
    made = certs.new_tls_key()
    _put(home / "node.key", certs.openssh(made), 0o600)
    return certs.openssh_public(made.public_key(), name)


def _new_identity_key(home: Path, own: bytes | None) -> bytes:
    """A silo's public identity key: its own, or of one that is made here."""
    (home / identity.KEY).unlink(missing_ok=True)
    if own is not None:
        return own
    made = certs.new_identity()
    _put(home / identity.KEY, certs.pem(made), 0o600)
    return made.public_key().public_bytes_raw()


def _raw_key(text: str) -> bytes:
    """An Ed25519 public key from what `openssl pkey -pubout | ... | od` prints."""
    found = text.strip().lower()
    if not re.fullmatch(r"[0-9a-f]{64}", found):
        way_out = "give the line that docs/deployment.md's openssl command prints"
        raise refuse("--identity-pub", "64 hexadecimal digits", text, way_out)
    return bytes.fromhex(found)


# ------------------------------------------------------------------------------- what they share


def _opened(folder: Path, expired: bool = False) -> ec.EllipticCurvePrivateKey:
    """The CA's key, if it is here and the folder is in order; certificates may have ended."""
    path = folder / "ca/ca.key"
    if not path.is_file():
        raise RecipeError(
            f"{path} must be here, since every roster is signed anew, and is not; bring it from "
            f"where it is kept offline"
        )
    if not expired:
        deploy.check(folder)
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise RecipeError(f"{path} is not an ECDSA key; restore the one that `init` made")
    certs.same_key(path, folder / "ca/ca.crt", certs.load_certificate(folder / "ca/ca.crt"))
    return key


def _roster(folder: Path) -> Roster:
    found = identity.load_roster(folder / "server")
    return list(found.names), list(found.keys)


def _homes(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "nodes").glob("*") if path.is_dir())


def _place(names: Sequence[str], name: str) -> int:
    if name not in names:
        raise refuse("the silo's name", f"one of {', '.join(names)}", name)
    return list(names).index(name)


def _address(folder: Path) -> str:
    tables = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
    return str(tables["superlink"][deploy.CONNECTION]["address"])


def _write_rosters(folder: Path, roster: Roster, ca_key: ec.EllipticCurvePrivateKey) -> None:
    """The same roster and signature for the server and all silos, and their places in scripts."""
    names, keys = roster
    text = identity.dump_roster(names, keys)
    signature = certs.sign(ca_key, text)
    for home in (folder / "server", *_homes(folder)):
        _put(home / identity.ROSTER, text)
        _put(home / identity.SIGNATURE, signature)
        script = home / "start-supernode.sh"
        if script.is_file():
            place = names.index(home.name)
            _put(script, scripts.with_partition(script, place, len(names)), 0o700)


def _put(path: Path, content: bytes, mode: int = 0o644) -> None:
    replace_file(path, content, mode)
    path.chmod(mode)  # whatever the umask is


def _to_all(names: Sequence[str]) -> list[str]:
    return [
        f"hand roster.json, roster.sig and start-supernode.sh to {', '.join(names)} and the server",
        "then `dpfed deploy check`, and a new training under a new name, with the new sizes",
    ]
