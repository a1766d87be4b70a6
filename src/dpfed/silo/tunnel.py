# SPDX-License-Identifier: Apache-2.0
"""The tunnel: a relay on another machine reaches the gate's socket over TLS 1.3, by pinned keys.

    dpfed silo key gate.pem           # prints its public key, ed25519:...
    dpfed silo tunnel --listen 10.0.0.5:7443 --key gate.pem --relay ed25519:...
    DPFED_GATE=tls://10.0.0.5:7443#ed25519:... DPFED_GATE_KEY=relay.pem     # for the relay

It is a process of its own, of a user that may connect to the gate: it holds no data, and the gate
has no network. Both sides have an Ed25519 key and know the other's public key: no names, no
authority, no expiry. It passes one frame at a time (frames.py), and looks into none.

| edge case                                            | what happens                             |
|------------------------------------------------------|------------------------------------------|
| no certificate, a key that is not named, one that a  | closed; nothing reaches the gate         |
| named key has signed                                 |                                          |
| TLS 1.2 or older, garbage, a recording of another    | closed; nothing reaches the gate         |
| connection                                           |                                          |
| a handshake or a frame that is slow or cut off       | closed after 5 seconds; whoever else     |
|                                                      | comes waits so long                      |
| a frame that is longer than a gate takes             | closed before it is read                 |
| an order while another has no reply yet              | it waits: while a shard computes, this   |
|                                                      | machine answers nobody                   |
| the gate is not there                                | closed; the relay's order has no reply   |
| a key's file that others may read                    | DataError                                |
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import os
import select
import socket
import ssl
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from dpfed.core.environment import GATE_KEY, variable
from dpfed.core.errors import DataError, DpfedError, as_sentence
from dpfed.core.log import log, shown
from dpfed.silo.frames import LENGTH, SOCKET, TLS, ask, receive

KIND = "ed25519:"
MOST_BYTES = 1 << 26
_TIMEOUT_S = 5.0
_EPOCH, _NEVER = dt.datetime(2020, 1, 1), dt.datetime(9999, 12, 31)


def make_key(path: Path) -> str:
    """Write a new key, with its certificate, to a file that must not exist.

    Args:
        path: of the file; nobody else may read it.

    Returns:
        the public key, which the other side is told.
    """
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    named = public_name(key.public_key())
    certificate = _certificate(key.public_key(), "dpfed", named, key, authority=False)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(private + certificate.public_bytes(serialization.Encoding.PEM))
    return named


def public_name(key: Ed25519PublicKey) -> str:
    """A public key as one word.

    Args:
        key: whose.
    """
    return KIND + base64.urlsafe_b64encode(key.public_bytes_raw()).decode().rstrip("=")


def public_key(word: str) -> Ed25519PublicKey:
    """The key of ``public_name``.

    Args:
        word: as that returns it.
    """
    try:
        raw = base64.urlsafe_b64decode(word.removeprefix(KIND) + "=")
        key = Ed25519PublicKey.from_public_bytes(raw)
    except (binascii.Error, ValueError):
        key = None
    if key is None or public_name(key) != word:
        raise DataError(
            f"a public key must be as 'dpfed silo key' prints it ({KIND}...), got "
            f"{shown(word, 100)!r}; copy it once more"
        )
    return key


def _certificate(
    key: Ed25519PublicKey, subject: str, issuer: str, by: Ed25519PrivateKey, *, authority: bool
) -> x509.Certificate:
    named = [
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, each)])
        for each in (subject, issuer)
    ]
    made = x509.CertificateBuilder().subject_name(named[0]).issuer_name(named[1]).public_key(key)
    made = made.serial_number(1).not_valid_before(_EPOCH).not_valid_after(_NEVER)
    limit = x509.BasicConstraints(ca=authority, path_length=0 if authority else None)
    return made.add_extension(limit, critical=True).sign(by, None)


def context(*, server: bool, key: Path, others: Collection[str]) -> ssl.SSLContext:
    """TLS 1.3 only, with this key, for those who have one of the others.

    Args:
        server: whether this side accepts connections.
        key: a file of ``make_key``.
        others: public keys.
    """
    if key.stat().st_mode & 0o077:
        raise DataError(f"{key} must be readable by its owner alone; chmod 600 it")
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = made.maximum_version = ssl.TLSVersion.TLSv1_3
    made.check_hostname = False  # the key says who it is
    made.verify_mode = ssl.CERT_REQUIRED
    made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if server:
        made.num_tickets = 0  # no session is taken up again
    made.load_cert_chain(key)
    anybody = Ed25519PrivateKey.generate()  # what is trusted is the key in it, not who signed
    trusted = [
        _certificate(public_key(each), each, "nobody", anybody, authority=True) for each in others
    ]
    pems = [each.public_bytes(serialization.Encoding.PEM).decode() for each in trusted]
    made.load_verify_locations(cadata="".join(pems))
    return made


def refuse_others(found: ssl.SSLSocket, others: Collection[str]) -> None:
    """Refuse a peer whose own key is not one of these: OpenSSL has looked at who signed it.

    Args:
        found: after the handshake.
        others: public keys.
    """
    given = found.getpeercert(binary_form=True)
    key = None if given is None else x509.load_der_x509_certificate(given).public_key()
    if not isinstance(key, Ed25519PublicKey) or public_name(key) not in others:
        raise ConnectionError("the other side has a key that is not named here")


def _handshake(found: ssl.SSLSocket, deadline: float) -> None:
    found.setblocking(False)  # noqa: FBT003 (socket's own)
    while True:
        reading, writing = [found], []
        try:
            found.do_handshake()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLWantWriteError:
            reading, writing = [], [found]
        else:
            return
        left = max(0.0, deadline - time.monotonic())
        if not any(select.select(reading, writing, [], left)):
            raise ConnectionError("the other side takes too long")


def pass_frames(
    listening: socket.socket,
    secured: ssl.SSLContext,
    relays: Collection[str],
    gate: str = SOCKET,
    again: Callable[[], bool] = lambda: True,
) -> None:
    """Pass on one frame of each connection, one after the other.

    Args:
        listening: a TCP socket.
        secured: of ``context``.
        relays: public keys of those whose frames are passed on.
        gate: the gate's socket.
        again: whether to go on.
    """
    while again():
        relay, _ = listening.accept()
        with relay:
            try:
                _pass_frame(relay, secured, relays, gate)
            except (OSError, DpfedError) as error:  # of TLS, too
                log.warning("a connection was closed: %s", shown(as_sentence(error), 200))


def _pass_frame(
    relay: socket.socket, secured: ssl.SSLContext, relays: Collection[str], gate: str
) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    wrapped = secured.wrap_socket(relay, server_side=True, do_handshake_on_connect=False)
    with wrapped as found:
        _handshake(found, deadline)
        refuse_others(found, relays)
        (size,) = LENGTH.unpack(receive(found, LENGTH.size, deadline))
        if size > MOST_BYTES:
            raise DataError(f"a request must be at most {MOST_BYTES} bytes, got {size}")
        reply = ask(gate, receive(found, size, deadline))
        found.settimeout(_TIMEOUT_S)
        found.sendall(LENGTH.pack(len(reply)) + reply)


def connected(where: str, timeout_s: float) -> ssl.SSLSocket:
    """In a relay: a connection to a gate's tunnel.

    Args:
        where: tls://host:port#ed25519:...
        timeout_s: how many seconds to wait for the tunnel, and for each part of the reply.
    """
    address, _, pinned = where.removeprefix(TLS).partition("#")
    key = variable(GATE_KEY)
    if key is None:
        raise DataError(f"{GATE_KEY} must name the relay's key, got none; make one: dpfed silo key")
    secured = context(server=False, key=Path(key), others=[pinned])
    plain = socket.create_connection(host_and_port(address), _TIMEOUT_S)
    plain.settimeout(timeout_s)  # others may be before it
    try:
        found = secured.wrap_socket(plain)
        refuse_others(found, [pinned])
    except BaseException:
        plain.close()
        raise
    return found


def host_and_port(address: str) -> tuple[str, int]:
    """An address in its two parts.

    Args:
        address: host:port.

    >>> host_and_port("10.0.0.5:7443")
    ('10.0.0.5', 7443)
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise DataError(f"an address must be host:port, got {shown(address, 100)!r}; change it")
    return host.strip("[]"), int(port)


def main(listen: str, key: str, gate: str, *relays: str) -> None:
    """Pass frames on until this process is ended.

    Args:
        listen: host:port.
        key: this side's file.
        gate: the gate's socket.
        *relays: public keys.
    """
    if not relays:
        raise DataError("a tunnel must have the public key of a relay, got none; add --relay")
    secured = context(server=True, key=Path(key), others=relays)
    host, port = host_and_port(listen)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as listening:
        print(f"the tunnel listens on {listen}", flush=True)
        pass_frames(listening, secured, set(relays), gate)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (DpfedError, OSError) as error:
        print(f"error: {shown(as_sentence(error), 2000)}", file=sys.stderr)
        sys.exit(2)
