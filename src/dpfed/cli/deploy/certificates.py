# SPDX-License-Identifier: Apache-2.0
"""A deployment's certificates and keys: made, written as bytes, read back and compared.

Certificates: one CA, and the server's, which it signs. Keys: ECDSA on P-384; those of the CA and
the server in PKCS8 form, those of the nodes in OpenSSH form, which is what Flower reads. The
silos' identity keys are Ed25519, in PKCS8 form; sums/secagg/identity.py reads them back.

A file that is wrong when it is read back raises a RecipeError that names it. deploy.py says where
the files lie and who holds which.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import re
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509 import verification
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dpfed.core.checks import refuse
from dpfed.core.errors import RecipeError

_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST_NAME = re.compile(rf"({_LABEL}\.)*(?!\d+$){_LABEL}")  # 10.1.2.300 is no name
_ANEW = "make a new folder with `dpfed deploy init`"
_RENEW = "make new ones with `dpfed deploy init --keys`"


# -------------------------------------------------------------------------------------- making


def new_tls_key() -> ec.EllipticCurvePrivateKey:
    """An ECDSA key on P-384."""
    return ec.generate_private_key(ec.SECP384R1())


def new_identity() -> Ed25519PrivateKey:
    """A silo's key for the secure sum."""
    return Ed25519PrivateKey.generate()


def sign(ca_key: ec.EllipticCurvePrivateKey, content: bytes) -> bytes:
    """The CA's signature of a file, as `openssl dgst -sha384 -sign ca.key` makes it."""
    return ca_key.sign(content, ec.ECDSA(hashes.SHA384()))


def ca_certificate(key: ec.EllipticCurvePrivateKey, days: int) -> x509.Certificate:
    """The CA, signed by itself; it may sign certificates of servers and no further CA."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dpfed federation CA")])
    usage = _key_usage(certificates=True)
    return (
        _builder(name, name, key.public_key(), key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA384())
    )


def server_certificate(
    key: ec.EllipticCurvePrivateKey,
    hosts: list[str],
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
    days: int,
) -> x509.Certificate:
    """The server's certificate.

    Args:
        key: the server's private key.
        hosts: DNS names and IP addresses for which it is valid.
        ca: the certificate of the CA that signs it.
        ca_key: that CA's private key.
        days: for how many days it is valid.
    """
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dpfed SuperLink")])
    names = x509.SubjectAlternativeName([general_name(host) for host in hosts])
    purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    return (
        _builder(name, ca.subject, key.public_key(), ca_key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(certificates=False), critical=True)
        .add_extension(purpose, critical=False)
        .add_extension(names, critical=False)
        .sign(ca_key, hashes.SHA384())
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePublicKey,
    days: int,
) -> x509.CertificateBuilder:
    today = now()
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - dt.timedelta(hours=1))  # hosts' clocks differ
        .not_valid_after(today + dt.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(authority, critical=False)
    )


def now() -> dt.datetime:
    """The time, in UTC."""
    return dt.datetime.now(dt.UTC)


def _key_usage(*, certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not certificates,
        key_cert_sign=certificates,
        crl_sign=certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def general_name(name: str) -> x509.GeneralName:
    """A DNS name or an IP address, as a certificate names it."""
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        if not _HOST_NAME.fullmatch(name):
            way_out = "give it without https:// and without a port"
            raise refuse("--server", "a DNS name or an IP address", name, way_out) from None
        return x509.DNSName(name)


# ------------------------------------------------------------------------------------ as bytes


def pem(key: ec.EllipticCurvePrivateKey | Ed25519PrivateKey) -> bytes:
    """A private key in PKCS8 form: the CA's, the server's, a silo's identity."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def crt(certificate: x509.Certificate) -> bytes:
    """A certificate in PEM form."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def openssh(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A private key in OpenSSH form: a node's."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )


def openssh_public(key: ec.EllipticCurvePublicKey, comment: str) -> bytes:
    """A node's public key, as one line."""
    form = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return key.public_bytes(*form) + f" {comment}\n".encode()


# ------------------------------------------------------------------------- reading and comparing


def load_certificate(path: Path) -> x509.Certificate:
    """The certificate in a file."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError:
        raise RecipeError(
            f"{path} is not a certificate in PEM form; restore it, or {_ANEW}"
        ) from None


def load_public(path: Path) -> ec.EllipticCurvePublicKey:
    """A node's public key."""
    try:
        key = serialization.load_ssh_public_key(path.read_bytes())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise RecipeError(
            f"{path} is not an ECDSA public key in OpenSSH form; copy the silo's node.pub there"
        )
    return key


def load_identity(path: Path) -> bytes:
    """A silo's public identity key, as 64 hexadecimal digits."""
    text = path.read_text(encoding="utf-8", errors="replace").strip().lower()
    if not re.fullmatch(r"[0-9a-f]{64}", text):
        way_out = "write the line that docs/deployment.md's openssl command prints"
        raise refuse(str(path), "64 hexadecimal digits", text[:80], way_out)
    return bytes.fromhex(text)


def load_private(path: Path) -> ec.EllipticCurvePrivateKey:
    """A node's private key."""
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise RecipeError(
            f"{path} is not an unencrypted ECDSA private key in OpenSSH form, the only one that "
            "flower-supernode reads; make it with `ssh-keygen -t ecdsa -b 384`"
        )
    return key


def check_dates(path: Path, certificate: x509.Certificate, warn: int) -> str:
    """Refuse a certificate that has expired; warn if it expires soon.

    Args:
        path: the certificate's file, for the message.
        certificate: what is in it.
        warn: within how many days of its end to warn.
    """
    end = certificate.not_valid_after_utc
    left = (end - now()).days
    if left < 0:
        raise RecipeError(f"{path} expired on {end:%Y-%m-%d}; {_RENEW}")
    if left < warn:
        return f"warning: {path} expires on {end:%Y-%m-%d}, in {left} days; {_RENEW}"
    return f"{path} is valid until {end:%Y-%m-%d}"


def check_copies(paths: list[Path], ca: x509.Certificate) -> None:
    """Refuse a copy of the CA's certificate that is another CA's."""
    for path in paths:
        if path.is_file() and load_certificate(path) != ca:
            raise RecipeError(
                f"{path} is not ca/ca.crt, so its host cannot join; copy ca/ca.crt there"
            )


def hosts_of(server: x509.Certificate) -> list[x509.DNSName | x509.IPAddress]:
    """The names and addresses of the server; loopback must be one of them."""
    try:
        names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        names = x509.SubjectAlternativeName([])
    hosts = [name for name in names if isinstance(name, x509.DNSName | x509.IPAddress)]
    if "127.0.0.1" not in {str(host.value) for host in hosts}:
        raise RecipeError(
            f"server/server.crt names {[str(host.value) for host in hosts]} but not 127.0.0.1, at "
            f"which the SuperLink's own workers reach it; {_ANEW}"
        )
    return hosts


def check_signature(
    ca: x509.Certificate, server: x509.Certificate, host: x509.DNSName | x509.IPAddress
) -> str:
    """Verify the server's certificate as a TLS client does, for one of the server's names.

    Args:
        ca: the CA's certificate.
        server: the server's certificate.
        host: the name or address that must be valid.
    """
    verifier = verification.PolicyBuilder().store(verification.Store([ca]))
    try:
        verifier.build_server_verifier(host).verify(server, [])
    except verification.VerificationError as error:
        raise RecipeError(
            f"ca/ca.crt does not vouch for server/server.crt as {host.value} ({error}); {_ANEW}, "
            "so that both come from one CA"
        ) from None
    return f"ca/ca.crt vouches for server/server.crt as {host.value}"


def same_key(path: Path, other: Path, certificate: x509.Certificate) -> None:
    """Refuse a private key that is not the certificate's.

    Args:
        path: the private key's file.
        other: the certificate's file, for the message.
        certificate: what is in it.
    """
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise RecipeError(
            f"{path} is not an unencrypted private key; restore it, or {_ANEW}"
        ) from None
    if key.public_key() != certificate.public_key():
        raise RecipeError(f"{path} does not fit {other}; restore the pair that belongs together")
