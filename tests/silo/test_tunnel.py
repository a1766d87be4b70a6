# SPDX-License-Identifier: Apache-2.0
"""The tunnel: a relay elsewhere reaches the gate; nobody with another key does, by any means."""

from __future__ import annotations

import select
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpfed.core.environment import GATE_KEY
from dpfed.core.errors import DataError
from dpfed.silo import tunnel
from dpfed.silo.frames import LENGTH, ask, receive

ORDER = b"an order" * 1000


class Keys(NamedTuple):
    file: Path
    public: str


class Tunnel(NamedTuple):
    """A tunnel before a gate that replies with what it got, backwards."""

    port: int
    gate: Keys
    relay: Keys
    stranger: Keys
    orders: list[bytes]

    @property
    def address(self) -> str:
        return f"tls://127.0.0.1:{self.port}#{self.gate.public}"


@pytest.fixture
def found(tmp_path: Path, short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tunnel]:
    made = {}
    for name in ("gate", "relay", "stranger"):
        made[name] = Keys(tmp_path / name, tunnel.make_key(tmp_path / name))
    monkeypatch.setenv(GATE_KEY, str(made["relay"].file))
    monkeypatch.setattr(tunnel, "_TIMEOUT_S", 0.5)
    orders: list[bytes] = []
    path = short_folder / "gate.sock"
    gate = socket.socket(socket.AF_UNIX)
    gate.bind(str(path))
    gate.listen()
    listening = socket.create_server(("127.0.0.1", 0))
    secured = tunnel.context(server=True, key=made["gate"].file, others=[made["relay"].public])
    going = [True]
    threads = [
        threading.Thread(target=_gate, args=(gate, orders), daemon=True),
        threading.Thread(
            target=tunnel.pass_frames,
            args=(listening, secured, {made["relay"].public}, str(path), lambda: going[0]),
            daemon=True,
        ),
    ]
    for each in threads:
        each.start()
    yield Tunnel(listening.getsockname()[1], made["gate"], made["relay"], made["stranger"], orders)
    going[0] = False
    socket.create_connection(("127.0.0.1", listening.getsockname()[1])).close()
    threads[1].join(10)
    listening.close()
    gate.shutdown(socket.SHUT_RDWR)
    threads[0].join(10)
    gate.close()


def _gate(gate: socket.socket, orders: list[bytes]) -> None:
    while True:
        try:
            relay, _ = gate.accept()
        except OSError:
            return
        with relay:
            (size,) = LENGTH.unpack(receive(relay, LENGTH.size))
            orders.append(receive(relay, size))
            relay.sendall(LENGTH.pack(size) + orders[-1][::-1])


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A socket's path must be short."""
    with tempfile.TemporaryDirectory(prefix="dpfed-") as made:
        yield Path(made)


def test_an_order_and_its_reply(found: Tunnel) -> None:
    for _ in range(2):
        assert ask(found.address, ORDER) == ORDER[::-1]
    assert found.orders == [ORDER, ORDER]


def refused(found: Tunnel, secured: ssl.SSLContext) -> None:
    """Whoever connects so gets no reply, and nothing of it reaches the gate."""
    secured.check_hostname = False
    secured.verify_mode = ssl.CERT_NONE
    with pytest.raises(OSError):  # noqa: PT011 (of TLS, or closed)
        _try(found, secured)
    assert found.orders == []
    assert ask(found.address, b"honest") == b"tsenoh"


def _try(found: Tunnel, secured: ssl.SSLContext) -> None:
    with (
        socket.create_connection(("127.0.0.1", found.port), 5) as plain,
        secured.wrap_socket(plain) as wrapped,
    ):
        wrapped.sendall(LENGTH.pack(len(ORDER)) + ORDER)
        receive(wrapped, 1)


def test_a_key_that_is_not_named(found: Tunnel) -> None:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.load_cert_chain(found.stranger.file)
    refused(found, made)


def test_no_certificate(found: Tunnel) -> None:
    refused(found, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))


def test_the_named_key_and_an_older_tls(found: Tunnel) -> None:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.load_cert_chain(found.relay.file)
    made.maximum_version = ssl.TLSVersion.TLSv1_2
    refused(found, made)


def test_another_key_that_a_named_one_has_signed(found: Tunnel, tmp_path: Path) -> None:
    """A relay can not give its right to others: not who signed a key counts, but the key."""
    named = serialization.load_pem_private_key(found.relay.file.read_bytes(), None)
    other = Ed25519PrivateKey.generate()
    assert isinstance(named, Ed25519PrivateKey)
    signed = tunnel._certificate(
        other.public_key(), "dpfed", found.relay.public, named, authority=False
    )
    path = tmp_path / "signed"
    pem = serialization.Encoding.PEM
    key = other.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(key + signed.public_bytes(pem))
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.load_cert_chain(path)
    refused(found, made)


def test_a_certificate_of_the_named_key_without_it(found: Tunnel, tmp_path: Path) -> None:
    """The certificate is public: whoever has seen it can not use it."""
    path = tmp_path / "stolen"
    key, _, rest = found.stranger.file.read_text().partition("-----BEGIN CERTIFICATE")
    _, _, stolen = found.relay.file.read_text().partition("-----BEGIN CERTIFICATE")
    path.write_text(key + "-----BEGIN CERTIFICATE" + stolen)
    with pytest.raises(ssl.SSLError):
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(path)
    assert rest != stolen


@pytest.mark.parametrize("garbage", [b"", bytes(100), b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03" * 999])
def test_garbage(found: Tunnel, garbage: bytes) -> None:
    with socket.create_connection(("127.0.0.1", found.port), 5) as plain, suppress(OSError):
        plain.sendall(garbage)
        plain.shutdown(socket.SHUT_WR)
        while plain.recv(1000):
            pass
    assert found.orders == []
    assert ask(found.address, b"honest") == b"tsenoh"


def test_a_recording_of_another_connection(found: Tunnel) -> None:
    recorded = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as between:
        port = between.getsockname()[1]
        thread = threading.Thread(target=_record, args=(between, found.port, recorded))
        thread.start()
        assert ask(found.address.replace(str(found.port), str(port), 1), ORDER) == ORDER[::-1]
        thread.join(10)
    assert len(recorded) > len(ORDER)
    found.orders.clear()
    with socket.create_connection(("127.0.0.1", found.port), 5) as plain, suppress(OSError):
        plain.sendall(recorded)
        while plain.recv(1000):
            pass
    assert found.orders == []


def _record(between: socket.socket, port: int, recorded: bytearray) -> None:
    """Pass bytes both ways, and keep those of the relay."""
    relay, _ = between.accept()
    with relay, socket.create_connection(("127.0.0.1", port)) as onward:
        while True:
            for each in select.select([relay, onward], [], [], 5)[0]:
                part = each.recv(1 << 16)
                if not part:
                    return
                if each is relay:
                    recorded += part
                (onward if each is relay else relay).sendall(part)


@pytest.mark.parametrize("first", [b"", b"\x16\x03\x01\x02\x00"])
def test_whoever_is_slow_is_cut_off(found: Tunnel, first: bytes) -> None:
    with socket.create_connection(("127.0.0.1", found.port), 5) as plain:
        plain.sendall(first)
        began = time.monotonic()
        assert ask(found.address, b"honest") == b"tsenoh"
        assert time.monotonic() - began < 6
    assert found.orders == [b"honest"]


def test_a_frame_that_is_too_long(found: Tunnel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel, "MOST_BYTES", 10)
    with pytest.raises(OSError):  # noqa: PT011 (closed, or reset, by how far it has come)
        ask(found.address, ORDER)
    assert found.orders == []


def test_a_relay_does_not_talk_to_another_gate(found: Tunnel) -> None:
    wrong = found.address.replace(found.gate.public, found.stranger.public)
    with pytest.raises(OSError):  # noqa: PT011
        ask(wrong, ORDER)
    assert found.orders == []


def test_what_a_key_and_an_address_must_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "key"
    public = tunnel.make_key(path)
    assert tunnel.public_name(tunnel.public_key(public)) == public
    assert path.stat().st_mode & 0o777 == 0o600
    certificate = x509.load_pem_x509_certificate(
        b"-----BEGIN CERTIFICATE" + path.read_bytes().partition(b"-----BEGIN CERTIFICATE")[2]
    )
    assert isinstance(certificate, x509.Certificate)
    with pytest.raises(FileExistsError):
        tunnel.make_key(path)
    path.chmod(0o640)
    with pytest.raises(DataError, match="owner alone"):
        tunnel.context(server=True, key=path, others=[public])
    for wrong in ("", public[:-1], "ed25519:" + "!" * 43, public.replace("ed25519:", "")):
        with pytest.raises(DataError, match="public key must be"):
            tunnel.public_key(wrong)
    with pytest.raises(DataError, match="host:port"):
        tunnel.host_and_port("here")
    with pytest.raises(DataError, match="relay"):
        tunnel.main("127.0.0.1:0", str(path), "/x")
    monkeypatch.delenv(GATE_KEY, raising=False)
    with pytest.raises(DataError, match=GATE_KEY):
        ask(f"tls://127.0.0.1:1#{public}", ORDER)
