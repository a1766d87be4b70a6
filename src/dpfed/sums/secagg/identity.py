# SPDX-License-Identifier: Apache-2.0
"""Who is who among the clients of a secure sum: an Ed25519 key each, and the roster of all.

In a secure sum each client makes X25519 keys, and the server passes them on to the others. A server
that replaced them with its own could read every release; so they are signed, and a signature counts
only under a key of the roster (RFC 8032). Flower's own node keys stay in the SuperNode, where a
ClientApp cannot use them, so dpfed has its own.

Guarantee: roster and private key come from the client's own disk, and neither from a message.
Without the CA's key nobody can add a client to the roster, or replace one. ``dpfed deploy init``
writes, into each silo's folder::

    identity.key    the private key, PKCS8 in PEM form, for its owner only
    roster.json     public: {"version": 1, "clients": [{"name": ..., "key": 64 hex digits}, ...]},
                    in the order of the clients' indices (partition-ids)
    roster.sig      the CA's signature of roster.json's bytes: ECDSA with SHA-384, in DER form
    ca.crt          the CA's certificate

This does not protect from whoever holds the CA's key, who can sign another roster, or from whoever
made the keys and kept them. docs/deployment.md says how a silo makes its own, and compares rosters.

| edge case                                     | what happens                                   |
|-----------------------------------------------|------------------------------------------------|
| a client outside the roster, also -1          | verify is False                                |
| a signature, or a key, of the wrong length    | verify is False                                |
| roster.json differs by one byte               | load refuses: the signature covers bytes       |
| the roster is signed by another CA            | load refuses                                   |
| the key is not in the roster, or is in twice  | load refuses                                   |
| others may read the key                       | load refuses                                   |
| the key is another client's                   | from_environment refuses: the index differs    |
| the roster counts other clients than the plan | from_environment refuses                       |
| $DPFED_IDENTITY is unset or empty             | from_environment refuses; never simulated keys |
| an identity is printed or pickled             | no private key in it; pickle refuses           |
| a gate without a folder of identity           | a key of its own, made once (``own_key``)      |
| two processes make it at once                 | the first one's is used by both                |
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from dpfed.core.environment import IDENTITY, variable
from dpfed.core.errors import DataError
from dpfed.core.files import sync_folder

SIMULATED = "simulated"
KEY, ROSTER, SIGNATURE, CA = "identity.key", "roster.json", "roster.sig", "ca.crt"
VERSION = 1
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")

_HEX_KEY = re.compile(r"[0-9a-f]{64}")
_LABEL = b"dpfed simulated identity: no secret\x00"
_RESTORE = "restore this silo's folder as `dpfed deploy init` made it"


@dataclass(frozen=True)
class Roster:
    """Who takes part: names and raw Ed25519 public keys of 32 bytes, by client index."""

    names: tuple[str, ...]
    keys: tuple[bytes, ...]

    def verify(self, client: int, signature: bytes, message: bytes) -> bool:
        """Whether that client signed it; False for an unknown client, and never an error."""
        try:
            if not 0 <= client < len(self.keys):
                return False
            Ed25519PublicKey.from_public_bytes(self.keys[client]).verify(signature, message)
        except (InvalidSignature, ValueError, TypeError):
            return False
        return True


@dataclass(frozen=True)
class Identity:
    """One client: its index, the roster that it trusts, and its signing key."""

    client: int
    roster: Roster
    _key: Ed25519PrivateKey = field(repr=False, compare=False)

    def sign(self, message: bytes) -> bytes:
        """64 bytes that ``roster.verify(client, ..., message)`` accepts."""
        return self._key.sign(message)

    def verify(self, client: int, signature: bytes, message: bytes) -> bool:
        """Whether another client of the roster signed it."""
        return self.roster.verify(client, signature, message)


@dataclass(frozen=True)
class SigningKey:
    """A gate's own key, in a roster or not: what its statements and heads are signed with."""

    public: bytes
    """The raw public key, 32 bytes."""
    _key: Ed25519PrivateKey = field(repr=False, compare=False)

    def sign(self, message: bytes) -> bytes:
        """64 bytes, the same each time for the same message."""
        return self._key.sign(message)

    def within(self, roster: Roster, client: int) -> Identity:
        """The same key as that of one client of a roster.

        Args:
            roster: the public keys of all.
            client: whose this one is.
        """
        return Identity(client, roster, self._key)

    def secret(self, purpose: str) -> bytes:
        """32 bytes that nobody else can compute, the same each time for the same purpose.

        Args:
            purpose: a fixed word of the code; each use has its own.
        """
        own = hashlib.sha256(b"dpfed secret\x00" + self._key.private_bytes_raw()).digest()
        return hmac.digest(own, purpose.encode(), "sha256")


def own_key(folder: Path, *, make: bool = False) -> SigningKey:
    """The signing key in a gate's folder.

    Args:
        folder: where ``identity.key`` is.
        make: whether to make one, for its owner only, if there is none.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     made = own_key(Path(folder), make=True)
    ...     made == own_key(Path(folder)), len(made.sign(b"a message"))
    (True, 64)
    """
    path = folder / KEY
    if make and not path.exists():
        _make_key(path)
    key = _load_key(path)
    return SigningKey(key.public_key().public_bytes_raw(), key)


def _make_key(path: Path) -> None:
    """Make a key, on the disk as a whole or not at all; another process's own is kept."""
    content = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, 0o600)  # whatever the umask is
            file.write(content)
            file.flush()
            os.fsync(handle)
        with suppress(FileExistsError):
            os.link(draft, path)  # never over a key that is there
    finally:
        draft.unlink()
    sync_folder(path.parent)


# ---------------------------------------------------------------------------- for one machine


@functools.cache
def simulated(clients: int) -> tuple[Identity, ...]:
    """Identities from SHA-256 of a fixed label and the index: anyone can make them.

    For simulations, where all clients are on one machine: signatures are checked, none is secret.
    """
    seeds = [hashlib.sha256(_LABEL + index.to_bytes(8, "big")).digest() for index in range(clients)]
    keys = [Ed25519PrivateKey.from_private_bytes(seed) for seed in seeds]
    names = tuple(f"client-{index}" for index in range(clients))
    roster = Roster(names, tuple(key.public_key().public_bytes_raw() for key in keys))
    return tuple(Identity(index, roster, key) for index, key in enumerate(keys))


# ----------------------------------------------------------------------------- across machines


def from_environment(client: int, clients: int) -> Identity:
    """The identity that this client's own environment names in $DPFED_IDENTITY.

    The value never comes from the server: one that could choose the folder, or the word
    ``simulated``, could pose as every other client.

    Args:
        client: this client's index, its partition-id.
        clients: how many clients the plan has.
    """
    value = variable(IDENTITY) or ""
    if not value:
        raise DataError(
            f"{IDENTITY} is not set, so client {client} has no key to sign with; name the "
            "folder that `dpfed deploy init` made for it (its start-supernode.sh does), or for "
            f"simulations on one machine set {IDENTITY}={SIMULATED}"
        )
    if not 0 <= client < clients:
        raise DataError(
            f"client must be between 0 and {clients - 1}, got {client}; correct its partition-id"
        )
    if value == SIMULATED:
        return simulated(clients)[client]
    found = load_identity(Path(value))
    _check_count(value, found.roster, clients)
    if found.client != client:
        raise DataError(
            f"{value} is the folder of client {found.client} "
            f"({found.roster.names[found.client]}), but this is client {client} "
            f"({found.roster.names[client]}); give it the folder of its own name"
        )
    return found


def load_identity(folder: Path) -> Identity:
    """The identity in a silo's folder, once the CA's signature and the key are verified."""
    roster = load_roster(folder)
    path = folder / KEY
    key = _load_key(path)
    public = key.public_key().public_bytes_raw()
    if public not in roster.keys:
        raise DataError(
            f"{path} has the public key {public.hex()}, which is not in {folder / ROSTER}; "
            f"{_RESTORE}"
        )
    return Identity(roster.keys.index(public), roster, key)


def roster_from_environment(clients: int) -> Roster | None:
    """What the server knows of the clients, if $DPFED_IDENTITY says; it only names wrong keys.

    Clients trust their own rosters: without one on the server, a wrong key makes a round fail.
    """
    value = variable(IDENTITY) or ""
    if not value:
        return None
    found = simulated(clients)[0].roster if value == SIMULATED else load_roster(Path(value))
    _check_count(value, found, clients)
    return found


def _check_count(folder: str, roster: Roster, clients: int) -> None:
    if len(roster.keys) != clients:
        raise DataError(
            f"{folder}/{ROSTER} must list the plan's {clients} clients, got {len(roster.keys)}; "
            "run `dpfed deploy init` with one --node per client of the plan"
        )


def load_roster(folder: Path) -> Roster:
    """The roster in a silo's folder, signed by the CA whose certificate lies beside it."""
    content = _read(folder / ROSTER)
    _check_signature(folder, content)
    return _parse(folder / ROSTER, content)


def dump_roster(names: Sequence[str], keys: Sequence[bytes]) -> bytes:
    """A roster as roster.json has it: one line per client, so that two can be compared."""
    clients = [
        json.dumps({"name": name, "key": key.hex()}) for name, key in zip(names, keys, strict=True)
    ]
    lines = ",\n  ".join(clients)
    return f'{{"version": {VERSION}, "clients": [\n  {lines}\n]}}\n'.encode()


def parse_roster(content: bytes) -> Roster:
    """A roster's names and keys, by the bytes of its file; whoever calls knows why to trust them.

    Args:
        content: as roster.json has it.

    >>> parse_roster(dump_roster(["north"], [bytes(range(32))])).names
    ('north',)
    """
    return _parse(Path(ROSTER), content)


# -------------------------------------------------------------------------------------- files


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); {_RESTORE}") from None


def _load_key(path: Path) -> Ed25519PrivateKey:
    content = _read(path)
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise DataError(
            f"{path} must be readable by its owner only, got mode {mode:04o}; run "
            f"`chmod 600 {path}`, and make a new key if others may have read it"
        )
    try:
        key = serialization.load_pem_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise DataError(f"{path} is not an unencrypted Ed25519 key in PEM form; {_RESTORE}")
    return key


def _check_signature(folder: Path, content: bytes) -> None:
    try:
        _ca_key(folder / CA).verify(_read(folder / SIGNATURE), content, ec.ECDSA(hashes.SHA384()))
    except InvalidSignature:
        raise DataError(
            f"{folder / SIGNATURE} is not a signature of {folder / ROSTER} by the CA of "
            f"{folder / CA}, so anyone may have written that roster; {_RESTORE}"
        ) from None


def _ca_key(path: Path) -> ec.EllipticCurvePublicKey:
    from cryptography import x509  # slow to import, and simulations need none of it

    content = _read(path)
    try:
        key = x509.load_pem_x509_certificate(content).public_key()
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise DataError(f"{path} is not a certificate with an ECDSA key; {_RESTORE}")
    return key


def _parse(path: Path, content: bytes) -> Roster:
    try:
        found = json.loads(content)
    except ValueError:  # also where the bytes are not UTF-8
        raise DataError(f"{path} is not JSON; {_RESTORE}") from None
    version = found.get("version") if isinstance(found, dict) else None
    if version != VERSION or isinstance(version, bool):
        raise DataError(f"{path} must have version {VERSION}, got {version!r}; {_RESTORE}")
    clients = found.get("clients")
    if not isinstance(clients, list) or not clients:
        raise DataError(f"{path} lists no clients; {_RESTORE}")
    pairs = [_parse_client(path, index, each) for index, each in enumerate(clients)]
    names, keys = (tuple(column) for column in zip(*pairs, strict=True))
    for what, column in (("name", names), ("key", keys)):
        if len(set(column)) < len(column):
            raise DataError(f"{path} gives two clients one {what}; give each client its own")
    return Roster(names, tuple(bytes.fromhex(key) for key in keys))


def _parse_client(path: Path, index: int, client: Any) -> tuple[str, str]:
    fields = client if isinstance(client, dict) else {}
    name, key = fields.get("name"), fields.get("key")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise DataError(
            f"{path}: the name of client {index} must be 1 to 63 of A-Z, a-z, 0-9, - and _, got "
            f"{name!r}; {_RESTORE}"
        )
    if not isinstance(key, str) or not _HEX_KEY.fullmatch(key):
        raise DataError(
            f"{path}: the key of client {index} must be 64 digits of 0-9a-f, got {key!r}; "
            f"{_RESTORE}"
        )
    return name, key
