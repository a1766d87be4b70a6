# SPDX-License-Identifier: Apache-2.0
"""Identities: one test per line of the edge-case table, and one per sentence of a refusal."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpfed.cli.deploy import certificates, deploy
from dpfed.core.errors import DataError, wire_name
from dpfed.core.processes import search_path
from dpfed.sums.secagg import identity
from dpfed.sums.secagg.identity import Roster

NODES = ["north", "south", "east"]
# python -c "from hashlib import *; from dpfed.sums.secagg.identity import *;
#   print(sha256(b''.join(simulated(3)[0].roster.keys)).hexdigest())"
GOLDEN = "9e04b7636d083646354a663f21edbe56d5dafbbd39237fbb0c047ac812ecdb13"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("identity") / "fed"
    deploy.init(folder, server_names=["127.0.0.1"], nodes=NODES)
    return folder


@pytest.fixture
def fed(pristine: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(pristine, tmp_path / "fed"))


@pytest.fixture
def south(fed: Path) -> Path:
    return fed / "nodes/south"


def resign(fed: Path, home: Path, roster: bytes) -> None:
    """What only a holder of ca.key can do."""
    key = serialization.load_pem_private_key((fed / "ca/ca.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    (home / "roster.json").write_bytes(roster)
    (home / "roster.sig").write_bytes(certificates.sign(key, roster))


# -------------------------------------------------------------------------------- the round trip


def test_each_silo_loads_its_own_place_and_one_roster(pristine):
    found = [identity.load_identity(pristine / "nodes" / name) for name in NODES]
    assert [each.client for each in found] == [0, 1, 2]
    assert {each.roster for each in found} == {found[0].roster}
    assert found[0].roster.names == tuple(NODES)
    assert {len(key) for key in found[0].roster.keys} == {32}


def test_what_one_silo_signs_the_others_verify(pristine):
    north, south, _ = (identity.load_identity(pristine / "nodes" / name) for name in NODES)
    signature = north.sign(b"my key of round 3")
    assert len(signature) == 64
    assert south.roster.verify(0, signature, b"my key of round 3")
    assert not south.roster.verify(0, signature, b"my key of round 4")
    assert not south.roster.verify(1, signature, b"my key of round 3")


def test_the_roster_is_signed_as_openssl_does(pristine, tmp_path):
    """Independent of the library that signed; docs/deployment.md renews the signature so."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl")
    home, public = pristine / "nodes/north", tmp_path / "ca.pub"
    command = [openssl, "x509", "-in", str(home / "ca.crt"), "-pubkey", "-noout"]
    public.write_bytes(subprocess.run(command, check=True, capture_output=True).stdout)
    files = ["-signature", str(home / "roster.sig"), str(home / "roster.json")]
    command = [openssl, "dgst", "-sha384", "-verify", str(public), *files]
    subprocess.run(command, check=True, capture_output=True)


@pytest.mark.slow
def test_a_silo_makes_its_own_key_as_the_page_says(south, repository, tmp_path):
    """The two blocks of docs/deployment.md, run: the silo's on its host, then the operator's."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl")
    page = (repository / "docs/deployment.md").read_text()
    blocks = [part.split("```")[0] for part in page.split("```bash\n")[1:]]
    silos, operators = (
        next(block for block in blocks if words in block)
        for words in ("openssl genpkey", "echo LINE")
    )
    host, operator = tmp_path / "host", tmp_path / "operator"
    host.mkdir()
    operator.mkdir()
    public = shell(host, silos).split()[-1]
    shutil.copy(south / "node.pub", operator)
    shell(operator, operators.replace("LINE", public))
    fed = operator / "fed"
    assert not list((fed / "nodes/north").glob("*.key")), "the operator has none of it"
    for name in ("ca.crt", "roster.json", "roster.sig"):
        shutil.copy(fed / "nodes/north" / name, host)

    found = identity.load_identity(host)
    assert (found.client, found.roster.keys[0].hex()) == (0, public)
    for name in ("south", "east"):
        assert identity.load_identity(fed / "nodes" / name).roster.verify(0, found.sign(b"m"), b"m")
    assert deploy.check(fed)


def shell(folder: Path, commands: str) -> str:
    env = {**os.environ, "PATH": search_path()}
    return subprocess.run(
        ["sh", "-euc", commands],
        cwd=folder,
        env=env,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout


def test_the_roster_file_is_as_the_docstring_says(pristine):
    content = json.loads((pristine / "nodes/north/roster.json").read_bytes())
    found = identity.load_identity(pristine / "nodes/north").roster
    assert content == {
        "version": 1,
        "clients": [
            {"name": name, "key": key.hex()}
            for name, key in zip(found.names, found.keys, strict=True)
        ],
    }


@pytest.mark.parametrize("show", [repr, str])
def test_a_printed_identity_shows_no_private_key(pristine, show):
    found = identity.load_identity(pristine / "nodes/north")
    text = (pristine / "nodes/north/identity.key").read_bytes()
    private = serialization.load_pem_private_key(text, None)
    assert isinstance(private, Ed25519PrivateKey)
    assert private.private_bytes_raw().hex() not in show(found)
    assert "Private" not in show(found)


def test_an_identity_cannot_be_pickled(pristine):
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(identity.load_identity(pristine / "nodes/north"))


def test_identities_are_equal_by_place_and_roster(pristine):
    home = pristine / "nodes/north"
    assert identity.load_identity(home) == identity.load_identity(home)
    assert identity.load_identity(home) != identity.load_identity(pristine / "nodes/south")


# ---------------------------------------------------------------------------------------- verify


@pytest.mark.parametrize("client", [-1, -3, 3, 10**20, "0", None])
def test_verify_is_false_for_an_unknown_client(client):
    everyone = identity.simulated(3)
    signature = everyone[2].sign(b"m")
    assert everyone[0].roster.verify(2, signature, b"m")
    assert not everyone[0].roster.verify(client, signature, b"m")


@pytest.mark.parametrize("signature", [b"", bytes(63), bytes(64), bytes(65), "text", None])
def test_verify_is_false_for_what_is_no_signature(signature):
    assert not identity.simulated(2)[0].roster.verify(0, signature, b"m")


def test_verify_is_false_for_each_flipped_bit():
    one = identity.simulated(2)[1]
    signature = one.sign(b"m")
    for bit in range(512):
        flipped = (int.from_bytes(signature, "big") ^ (1 << bit)).to_bytes(64, "big")
        assert not one.roster.verify(1, flipped, b"m")


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(33)])
def test_verify_is_false_for_a_key_of_the_wrong_length(key):
    signature = identity.simulated(1)[0].sign(b"m")
    assert not Roster(("a",), (key,)).verify(0, signature, b"m")


# ------------------------------------------------------------------------------------- simulated


def test_simulated_identities_are_the_same_everywhere():
    """Golden: sha256 over the three public keys, so that no release changes them unnoticed."""
    keys = identity.simulated(3)[0].roster.keys
    assert hashlib.sha256(b"".join(keys)).hexdigest() == GOLDEN
    assert identity.simulated(3) is identity.simulated(3)
    assert identity.simulated(5)[0].roster.keys[:3] == keys


def test_simulated_identities_differ_and_sign():
    everyone = identity.simulated(4)
    assert [each.client for each in everyone] == [0, 1, 2, 3]
    assert len(set(everyone[0].roster.keys)) == len(set(everyone[0].roster.names)) == 4
    for each in everyone:
        others = [other.client for other in everyone if other is not each]
        assert each.roster.verify(each.client, each.sign(b"m"), b"m")
        assert not any(each.roster.verify(other, each.sign(b"m"), b"m") for other in others)


# ---------------------------------------------------------------------------------- load refuses


@pytest.mark.parametrize("name", ["identity.key", "roster.json", "roster.sig", "ca.crt"])
def test_load_refuses_when_a_file_is_not_there(south, name):
    (south / name).unlink()
    with pytest.raises(
        DataError, match=rf"{name} cannot be read \(No such file.*restore this silo"
    ):
        identity.load_identity(south)


def test_load_refuses_a_roster_that_was_touched(south):
    path = south / "roster.json"
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(DataError, match=r"roster\.sig is not a signature of .*roster\.json"):
        identity.load_identity(south)


def test_load_refuses_a_roster_with_a_key_of_the_servers(south):
    """The attack: north's key becomes one that the server holds."""
    path, found = south / "roster.json", identity.load_identity(south).roster
    theirs = Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex()
    path.write_text(path.read_text().replace(found.keys[0].hex(), theirs))
    with pytest.raises(DataError, match="anyone may have written"):
        identity.load_identity(south)


@pytest.mark.parametrize("signature", [b"", b"nonsense", bytes(104)])
def test_load_refuses_what_is_no_signature(south, signature):
    (south / "roster.sig").write_bytes(signature)
    with pytest.raises(DataError, match="is not a signature of"):
        identity.load_identity(south)


def test_load_refuses_another_ca(south, tmp_path):
    other = tmp_path / "other"
    deploy.init(other, server_names=["127.0.0.1"], nodes=NODES)
    shutil.copy(other / "ca/ca.crt", south)
    with pytest.raises(DataError, match=r"by the CA of .*south/ca\.crt"):
        identity.load_identity(south)


def test_load_refuses_a_roster_that_the_server_signed(fed, south):
    """Its certificate is the CA's work, its key is not the CA's."""
    text = (fed / "server/server.key").read_bytes()
    key = serialization.load_pem_private_key(text, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    roster = (south / "roster.json").read_bytes()
    (south / "roster.sig").write_bytes(certificates.sign(key, roster))
    with pytest.raises(DataError, match="is not a signature of"):
        identity.load_identity(south)


@pytest.mark.parametrize("bits", [0o640, 0o604, 0o620, 0o644])
def test_load_refuses_a_key_that_others_may_read(south, bits):
    (south / "identity.key").chmod(bits)
    with pytest.raises(DataError, match=f"got mode 0{bits:o}; .*chmod 600.*make a new key"):
        identity.load_identity(south)


def test_load_refuses_a_key_that_is_not_in_the_roster(south):
    (south / "identity.key").write_bytes(certificates.pem(certificates.new_identity()))
    with pytest.raises(DataError, match=r"has the public key [0-9a-f]{64}, which is not in"):
        identity.load_identity(south)


@pytest.mark.parametrize("kind", ["ecdsa", "encrypted", "nonsense", "public"])
def test_load_refuses_what_is_no_plain_ed25519_key(south, kind):
    key = certificates.new_identity()
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    content = {
        "ecdsa": certificates.pem(certificates.new_tls_key()),
        "encrypted": key.private_bytes(*form, serialization.BestAvailableEncryption(b"secret")),
        "nonsense": b"nonsense",
        "public": key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        ),
    }
    (south / "identity.key").write_bytes(content[kind])
    with pytest.raises(DataError, match="unencrypted Ed25519 key in PEM form"):
        identity.load_identity(south)


def test_load_refuses_what_is_no_certificate(south):
    (south / "ca.crt").write_text("nonsense")
    with pytest.raises(DataError, match=r"ca\.crt is not a certificate with an ECDSA key"):
        identity.load_identity(south)


def spoiled(found: Roster) -> dict[str, bytes]:
    """Rosters that a CA should not have signed, each with one thing wrong."""
    keys = [key.hex() for key in found.keys]
    good = [{"name": name, "key": key} for name, key in zip(found.names, keys, strict=True)]

    def roster(clients: object, version: object = 1) -> bytes:
        return json.dumps({"version": version, "clients": clients}).encode()

    return {
        "is not JSON": b"nonsense",
        "roster.json is not JSON": b"\xff\xfe",
        "got None; restore": b"[]",
        "must have version 1, got 2": roster(good, 2),
        "must have version 1, got True": roster(good, True),
        "lists no clients": roster([]),
        "json lists no clients": roster({}),
        "name of client 0 must be 1 to 63 .*, got None": roster(["north"]),
        "name of client 0 must be 1 to 63 .*, got ''": roster([good[0] | {"name": ""}]),
        "name of client 0 must be 1 to 63 .*, got 'a b'": roster([good[0] | {"name": "a b"}]),
        "name of client 0 must be 1 to 63 .*, got 'aaaa": roster([good[0] | {"name": 64 * "a"}]),
        "name of client 1 must be 1 to 63 .*, got 7": roster([good[0], good[1] | {"name": 7}]),
        "key of client 0 must be 64 digits .*, got None": roster([{"name": "north"}]),
        "key of client 0 must be 64 digits .*, got 7": roster([good[0] | {"key": 7}]),
        "key of client 0 must be 64 digits .*, got 'ab'": roster([good[0] | {"key": "ab"}]),
        "must be 64 digits of 0-9a-f, got 'AAAA": roster([good[0] | {"key": 64 * "A"}]),
        "key of client 2 must be 64": roster([*good[:2], good[2] | {"key": 32 * " a"}]),
        "two clients one name": roster([good[0], good[1] | {"name": "north"}]),
        "two clients one key": roster([*good[:2], good[2] | {"key": keys[1]}]),
    }


@pytest.mark.parametrize("sentence", sorted(spoiled(identity.simulated(3)[0].roster)))
def test_load_refuses_a_signed_roster_that_is_wrong(fed, south, sentence):
    resign(fed, south, spoiled(identity.load_identity(south).roster)[sentence])
    with pytest.raises(DataError, match=sentence):
        identity.load_identity(south)


def test_a_silo_can_make_its_own_key(fed, south):
    """The operator sees the public half only, and signs a roster with it."""
    found, mine = identity.load_identity(south).roster, certificates.new_identity()
    public = mine.public_key().public_bytes_raw()
    (south / "identity.key").write_bytes(certificates.pem(mine))
    for name in NODES:
        home = fed / "nodes" / name
        text = (home / "roster.json").read_text().replace(found.keys[1].hex(), public.hex())
        resign(fed, home, text.encode())
    signature = identity.load_identity(south).sign(b"m")
    assert identity.load_identity(fed / "nodes/north").roster.verify(1, signature, b"m")


# ------------------------------------------------------------------------------- the environment


def test_the_environment_names_a_folder(south, monkeypatch):
    monkeypatch.setenv("DPFED_IDENTITY", str(south))
    assert identity.from_environment(1, 3) == identity.load_identity(south)


def test_the_environment_says_simulated(monkeypatch):
    monkeypatch.setenv("DPFED_IDENTITY", "simulated")
    assert identity.from_environment(1, 3) is identity.simulated(3)[1]


@pytest.mark.parametrize("value", [None, ""])
def test_without_the_environment_there_is_no_identity(monkeypatch, value):
    monkeypatch.delenv("DPFED_IDENTITY", raising=False)
    if value is not None:
        monkeypatch.setenv("DPFED_IDENTITY", value)
    with pytest.raises(DataError, match=r"deploy init.*DPFED_IDENTITY=simulated") as refused:
        identity.from_environment(0, 2)
    assert wire_name(refused.value) == "DataError"


@pytest.mark.parametrize("client", [0, 2])
def test_the_folder_of_another_client_is_refused(south, monkeypatch, client):
    monkeypatch.setenv("DPFED_IDENTITY", str(south))
    sentence = rf"of client 1 \(south\), but this is client {client} \({NODES[client]}\)"
    with pytest.raises(DataError, match=sentence):
        identity.from_environment(client, 3)


@pytest.mark.parametrize("clients", [2, 4])
def test_a_roster_of_another_length_is_refused(south, monkeypatch, clients):
    monkeypatch.setenv("DPFED_IDENTITY", str(south))
    with pytest.raises(DataError, match=f"must list the plan's {clients} clients, got 3;"):
        identity.from_environment(1, clients)


@pytest.mark.parametrize("client", [-1, 3])
@pytest.mark.parametrize("simulation", [True, False])
def test_a_client_outside_the_plan_is_refused(south, monkeypatch, client, simulation):
    monkeypatch.setenv("DPFED_IDENTITY", "simulated" if simulation else str(south))
    with pytest.raises(DataError, match=f"client must be between 0 and 2, got {client};"):
        identity.from_environment(client, 3)


def test_a_folder_that_is_not_there_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFED_IDENTITY", str(tmp_path / "Simulated"))
    with pytest.raises(DataError, match=r"Simulated/roster\.json cannot be read"):
        identity.from_environment(0, 2)


# ------------------------------------------------------------------------------- a gate's own key


def test_a_gate_makes_its_key_once_for_its_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = identity.own_key(tmp_path / "state", make=True)
    finally:
        os.umask(before)
    path = tmp_path / "state/identity.key"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["identity.key"]
    again = identity.own_key(tmp_path / "state", make=True)
    assert again.public == made.public
    assert Roster(("one",), (made.public,)).verify(0, again.sign(b"hello"), b"hello")
    assert "Private" not in repr(made)
    with pytest.raises(TypeError):
        pickle.dumps(made)


def test_secrets_differ_by_purpose_and_key(tmp_path: Path) -> None:
    one, two = (identity.own_key(tmp_path / name, make=True) for name in "ab")
    assert len({one.secret("a"), one.secret("b"), two.secret("a"), two.secret("b")}) == 4
    assert one.secret("a") == identity.own_key(tmp_path / "a").secret("a")


def test_a_key_is_never_replaced_and_never_made_unasked(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        identity.own_key(tmp_path)
    (tmp_path / "identity.key").write_bytes(b"broken")
    (tmp_path / "identity.key").chmod(0o600)
    with pytest.raises(DataError, match="not an unencrypted Ed25519 key"):
        identity.own_key(tmp_path, make=True)
    assert (tmp_path / "identity.key").read_bytes() == b"broken"
    (tmp_path / "identity.key").chmod(0o644)
    with pytest.raises(DataError, match="owner only"):
        identity.own_key(tmp_path, make=True)


def test_the_first_of_two_makers_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = identity.own_key(tmp_path, make=True)
    monkeypatch.setattr(Path, "exists", lambda path: False)  # as the second one has seen it
    assert identity.own_key(tmp_path, make=True).public == first.public
