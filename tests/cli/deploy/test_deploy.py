# SPDX-License-Identifier: Apache-2.0
"""Deployment: one test per line of deploy.py's edge-case table, and one real federation."""

from __future__ import annotations

import datetime as dt
import json
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from typer.testing import CliRunner

from dpfed.cli.deploy import certificates, deploy
from dpfed.cli.deploy.command import deploy_app
from dpfed.core.errors import DataError, RecipeError
from dpfed.core.processes import free_port
from dpfed.sums.secagg import identity
from tests.training.flower.network import Net

NODES = ["north", "south"]


def make(folder: Path, **options) -> Path:
    deploy.init(folder, **{"server_names": ["127.0.0.1"], "nodes": NODES, **options})
    return folder


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("deploy") / "fed")


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(pristine, tmp_path / "fed"))


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


# ----------------------------------------------------------------------------------------- init


def test_init_returns_every_file_that_it_wrote(tmp_path):
    written = deploy.init(tmp_path / "fed", server_names=["fl.example.org"], nodes=NODES)
    assert sorted(written) == sorted(p for p in (tmp_path / "fed").rglob("*") if p.is_file())


def test_private_keys_and_folders_are_for_their_owner_only(pristine):
    keys = sorted(pristine.rglob("*.key"))
    assert [key.relative_to(pristine).as_posix() for key in keys] == [
        "ca/ca.key",
        "nodes/north/identity.key",
        "nodes/north/node.key",
        "nodes/south/identity.key",
        "nodes/south/node.key",
        "server/server.key",
    ]
    assert {mode(key) for key in keys} == {0o600}
    assert {mode(p) for p in (pristine, *pristine.rglob("*")) if p.is_dir()} == {0o700}
    assert all(mode(script) == 0o700 for script in pristine.rglob("*.sh"))


def test_no_party_gets_a_private_key_of_another(pristine):
    assert {p.name for p in (pristine / "server").rglob("*.key")} == {"server.key"}
    for name in NODES:
        own = {p.name for p in (pristine / "nodes" / name).rglob("*.key")}
        assert own == {"node.key", "identity.key"}
    private = [key.read_bytes() for key in pristine.rglob("*.key")]
    assert len(set(private)) == len(private)


def test_the_certificate_names_the_server_and_loopback(tmp_path):
    folder = make(tmp_path / "fed", server_names=["fl.example.org", "10.1.2.3"])
    server = x509.load_pem_x509_certificate((folder / "server/server.crt").read_bytes())
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {str(name.value) for name in names} == {
        "fl.example.org",
        "10.1.2.3",
        "127.0.0.1",
        "::1",
        "localhost",
    }


@pytest.mark.parametrize("days", [1, 90, 365])
def test_the_certificates_last_as_long_as_asked(tmp_path, days):
    folder = make(tmp_path / "fed", days=days)
    for name in ("ca/ca.crt", "server/server.crt"):
        end = x509.load_pem_x509_certificate((folder / name).read_bytes()).not_valid_after_utc
        left = end - dt.datetime.now(dt.UTC)
        assert abs(left - dt.timedelta(days=days)) < dt.timedelta(minutes=5)


def test_the_server_shakes_hands_only_with_those_who_trust_its_ca(pristine, tmp_path):
    """Over memory buffers, with OpenSSL: independent of the verifier that check uses."""
    other = make(tmp_path / "other")
    assert handshake(pristine / "server", pristine / "ca/ca.crt", "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"issuer|signature"):
        handshake(pristine / "server", other / "ca/ca.crt", "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
        handshake(pristine / "server", pristine / "ca/ca.crt", "elsewhere.example.org")


def handshake(server: Path, ca: Path, host: str) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server / "server.crt", server / "server.key")
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    theirs = context.wrap_bio(to_server, to_client, server_side=True)
    trusting = ssl.create_default_context(cafile=ca)
    ours = trusting.wrap_bio(to_client, to_server, server_hostname=host)
    done = set()
    for _ in range(10):
        for end in (ours, theirs):
            try:
                end.do_handshake()
                done.add(end.server_side)
            except ssl.SSLWantReadError:
                pass
    return len(done) == 2


def test_node_keys_are_what_flower_reads(pristine):
    """flower-supernode: load_ssh_private_key, EC; flwr supernode register: a NIST curve."""
    for name in NODES:
        home = pristine / "nodes" / name
        private = serialization.load_ssh_private_key((home / "node.key").read_bytes(), None)
        public = serialization.load_ssh_public_key((home / "node.pub").read_bytes())
        assert isinstance(private, ec.EllipticCurvePrivateKey)
        assert isinstance(private.curve, ec.SECP384R1)
        assert private.public_key() == public
        registered = pristine / "server/nodes" / f"{name}.pub"
        assert registered.read_bytes() == (home / "node.pub").read_bytes()


def test_each_silo_gets_its_identity_by_partition_id(tmp_path):
    folder = make(tmp_path / "fed", nodes=["z", "a", "m"])
    found = [identity.load_identity(folder / "nodes" / name) for name in ("z", "a", "m")]
    assert [each.client for each in found] == [0, 1, 2]
    assert {each.roster.names for each in found} == {("z", "a", "m")}
    for place, name in enumerate(("z", "a", "m")):
        script = (folder / "nodes" / name / "start-supernode.sh").read_text()
        assert f'"partition-id={place} num-partitions=3"' in script
    # the server can name a wrong key, and has no private one
    assert identity.load_roster(folder / "server") == found[0].roster
    assert not list((folder / "server").rglob("identity*"))


def test_the_start_script_names_its_own_folder_whatever_the_environment_says(folder, tmp_path):
    """Run for real, with a flower-supernode that prints what it was given, from elsewhere."""
    fake = tmp_path / "bin/flower-supernode"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\necho "$DPFED_IDENTITY"\n')
    fake.chmod(0o700)
    for name in NODES:
        said = subprocess.run(
            [f"./{name}/start-supernode.sh"],
            cwd=folder / "nodes",
            env={"PATH": f"{fake.parent}:/usr/bin:/bin", "DPFED_IDENTITY": "simulated"},
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        ).stdout.strip()
        assert Path(said).is_absolute()
        assert Path(said).samefile(folder / "nodes" / name)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port of loopback that someone listens at."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield int(holder.getsockname()[1])


def start_server(folder: Path, bin: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run start-superlink.sh with a flower-superlink that only says that it was started."""
    fake = bin / "flower-superlink"
    bin.mkdir(exist_ok=True)
    fake.write_text("#!/bin/sh\necho started\n")
    fake.chmod(0o700)
    return subprocess.run(
        [folder / "server/start-superlink.sh", *options],
        env={"PATH": f"{bin}:{Path(sys.executable).parent}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=10,
    )


@pytest.mark.parametrize("form", ["made so", "--port {}", "--port={}"])
def test_a_port_that_is_taken_is_named_before_flower_starts(tmp_path, taken, form):
    folder = make(tmp_path / "fed", **({"port": taken} if form == "made so" else {}))
    options = () if form == "made so" else form.format(taken).split()
    done = start_server(folder, tmp_path / "bin", *options)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        f"error: port {taken} is taken (address already in use); end what holds it, or give "
        "another one: --port N here, --superlink HOST:N at each silo"
    ]


def test_a_port_that_is_free_or_another_one_starts(tmp_path, taken):
    folder = make(tmp_path / "fed", port=taken)
    other = str(free_port())
    assert start_server(folder, tmp_path / "bin", "--port", other).stdout == "started\n"
    # where it cannot tell, Flower itself speaks
    assert start_server(folder, tmp_path / "bin", "--host", "::1").stdout == "started\n"


def test_config_toml_says_where_and_whom_to_trust(tmp_path):
    folder = make(tmp_path / 'the fed\'s "own"', server_names=["::1"], port=1234)
    config = tomllib.loads((folder / "config.toml").read_text())["superlink"]["dpfed"]
    assert config["address"] == "[::1]:1234"
    assert Path(config["root-certificates"]).samefile(folder / "ca/ca.crt")


@pytest.mark.parametrize(
    ("names", "host"), [(["127.0.0.1"], "127.0.0.1"), (["fl.example.org"], "0.0.0.0")]
)
def test_a_loopback_server_listens_on_loopback_only(tmp_path, names, host):
    folder = make(tmp_path / "fed", server_names=names, port=4321)
    assert f"--host {host} --port 4321" in (folder / "server/start-superlink.sh").read_text()


def test_the_scripts_are_valid_shell(pristine):
    scripts = sorted(pristine.rglob("*.sh"))
    assert len(scripts) == 4
    for script in scripts:
        subprocess.run(["sh", "-n", str(script)], check=True, timeout=10)


def test_init_refuses_to_overwrite(folder):
    before = {path: path.read_bytes() for path in folder.rglob("*.key")}
    with pytest.raises(RecipeError, match=r"already exists.*choose another folder"):
        make(folder)
    assert before == {path: path.read_bytes() for path in folder.rglob("*.key")}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"server_names": []}, "--server is missing; give the DNS name"),
        ({"server_names": ["https://fl.example.org"]}, "--server must be a DNS name or an IP"),
        ({"server_names": ["fl.example.org:8000"]}, "without a port"),
        ({"server_names": ["$(reboot)"]}, r"must be a DNS name or .*, got '\$\(reboot\)'"),
        ({"server_names": ["10.1.2.300"]}, "must be a DNS name or an IP address, got '10"),
        ({"server_names": ["*.example.org"]}, r"must be a DNS name or an IP address, got '\*"),
        ({"nodes": []}, "--node is missing; give one name per silo"),
        ({"nodes": ["a", "a"]}, r"a different name for each silo .*, got \['a', 'a'\]"),
        ({"nodes": ["../a"]}, r"--node must be a plain word .*, got '\.\./a'; use A-Z"),
        ({"nodes": ["a b"]}, "must be a plain word .*, got 'a b'"),
        ({"nodes": ["-a"]}, "must be a plain word .*, got '-a'.* nor _ first"),
        ({"port": 0}, "--port must be between 1 and 65535, got 0"),
        ({"port": 65536}, "between 1 and 65535, got 65536"),
        ({"days": 0}, "--days must be between 1 and 3650, got 0"),
    ],
)
def test_init_refuses_before_it_writes(tmp_path, options, sentence):
    with pytest.raises(RecipeError, match=sentence):
        make(tmp_path / "fed", **options)
    assert not (tmp_path / "fed").exists()


# -------------------------------------------------------------------- keys that silos have already


def test_new_certificates_and_a_silo_that_joins_leave_the_others_their_keys(folder, tmp_path):
    """A new folder with the public keys of the old one; also where all certificates have ended."""
    again = make(tmp_path / "again", nodes=[*NODES, "west"], keys=folder / "server/nodes", days=200)
    deploy.check(again)
    made = {path.relative_to(again).as_posix() for path in again.rglob("*.key")}
    own = {"nodes/west/node.key", "nodes/west/identity.key"}
    assert made == {"ca/ca.key", "server/server.key", *own}, "no private key in their place"
    assert (again / "ca/ca.crt").read_bytes() != (folder / "ca/ca.crt").read_bytes()
    for place, name in enumerate(NODES):  # each takes the public files to its own folder
        home = folder / "nodes" / name
        for file in ("ca.crt", "roster.json", "roster.sig", "start-supernode.sh"):
            shutil.copy(again / "nodes" / name / file, home / file)
        assert identity.load_identity(home).client == place
        assert (home / "node.pub").read_bytes() == (again / f"nodes/{name}/node.pub").read_bytes()
    assert identity.load_identity(again / "nodes/west").client == 2


def test_a_silo_that_leaves_is_left_out_and_those_behind_it_move_up(folder, tmp_path):
    again = make(tmp_path / "again", nodes=["south"], keys=folder / "server/nodes")
    for file in ("ca.crt", "roster.json", "roster.sig"):
        for name in NODES:
            shutil.copy(again / "nodes/south" / file, folder / "nodes" / name / file)
    assert identity.load_identity(folder / "nodes/south").client == 0
    with pytest.raises(DataError, match="is not in"):
        identity.load_identity(folder / "nodes/north")


def test_a_silos_own_public_keys_are_enough(tmp_path):
    """It made both on its own host: no private key is here, and ``check`` accepts the folder."""
    node, own = certificates.new_tls_key(), certificates.new_identity()
    theirs, keys = tmp_path / "theirs", tmp_path / "keys"
    theirs.mkdir()
    keys.mkdir()
    (theirs / "identity.key").write_bytes(certificates.pem(own))
    (theirs / "identity.key").chmod(0o600)
    (keys / "south.pub").write_bytes(certificates.openssh_public(node.public_key(), "south"))
    (keys / "south.identity").write_text(f"{own.public_key().public_bytes_raw().hex()}\n")
    folder = make(tmp_path / "fed", keys=keys)
    deploy.check(folder)
    assert not list((folder / "nodes/south").glob("*.key"))
    assert len(list((folder / "nodes/north").glob("*.key"))) == 2
    for file in ("ca.crt", "roster.json", "roster.sig"):
        shutil.copy(folder / "nodes/south" / file, theirs / file)
    assert identity.load_identity(theirs).client == 1, "with the key that never left its host"
    assert certificates.load_public(folder / "server/nodes/south.pub") == node.public_key()


def test_of_two_keys_one_may_be_the_silos_own(folder, tmp_path):
    (folder / "server/nodes/south.pub").unlink()
    again = make(tmp_path / "again", keys=folder / "server/nodes")
    deploy.check(again)
    assert [path.name for path in (again / "nodes/south").glob("*.key")] == ["node.key"]


@pytest.mark.parametrize("wrong", ["", "12", "g" * 64, "0" * 63])
def test_a_public_key_that_is_none_changes_nothing(tmp_path, wrong):
    (tmp_path / "south.identity").write_text(wrong)
    with pytest.raises(RecipeError, match="must be 64 hexadecimal"):
        make(tmp_path / "fed", keys=tmp_path)
    (tmp_path / "south.identity").unlink()
    (tmp_path / "south.pub").write_text("no key")
    with pytest.raises(RecipeError, match="is not an ECDSA public key"):
        make(tmp_path / "fed", keys=tmp_path)
    assert not (tmp_path / "fed").exists()


@pytest.mark.parametrize("home", ["server", "nodes/north"])
def test_check_names_the_roster_that_is_another_by_its_own_path(folder, home):
    """The server's, too: one that the same CA has signed."""
    key = serialization.load_pem_private_key((folder / "ca/ca.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    roster = identity.load_roster(folder / "server")
    other = identity.dump_roster(roster.names, roster.keys[::-1])
    (folder / home / "roster.json").write_bytes(other)
    (folder / home / "roster.sig").write_bytes(certificates.sign(key, other))
    with pytest.raises(RecipeError, match=rf"{home}/roster\.json is not .*nodes/"):
        deploy.check(folder)


# ---------------------------------------------------------------------------------------- check


def test_check_says_what_it_verified(pristine):
    lines = "\n".join(deploy.check(pristine))
    for part in (
        "6 private keys: readable by their owner only",
        "ca.crt is valid until",
        "server.crt is valid until",
        "vouches for server/server.crt as 127.0.0.1",
        "server/server.key fits server/server.crt",
        "node north: node.key fits",
        "node south: node.key fits",
        "every copy of ca/ca.crt is the same",
        "roster of 2 silos: signed by the CA, the same for each",
        "node north: identity.key fits client 0 of the roster",
        "node south: identity.key fits client 1 of the roster",
        "start-superlink.sh uses TLS and node authentication",
        "nodes/north/start-supernode.sh uses TLS and node authentication",
    ):
        assert part in lines


def test_check_warns_that_the_control_api_is_open(pristine):
    assert [x for x in deploy.check(pristine) if x.startswith("warning:")] == [
        deploy.CONTROL_WARNING
    ]


def test_check_warns_before_a_certificate_ends(tmp_path):
    lines = deploy.check(make(tmp_path / "fed", days=10))
    assert sum("expires on" in x and x.startswith("warning:") for x in lines) == 2


def test_check_refuses_an_expired_certificate(tmp_path, monkeypatch):
    with monkeypatch.context() as past:
        past.setattr(certificates, "now", lambda: dt.datetime.now(dt.UTC) - dt.timedelta(days=366))
        folder = make(tmp_path / "fed")
    with pytest.raises(RecipeError, match=r"ca\.crt expired on"):
        deploy.check(folder, insecure=True)


@pytest.mark.parametrize(
    "name", ["ca/ca.key", "server/server.key", "nodes/north/node.key", "nodes/north/identity.key"]
)
@pytest.mark.parametrize("bits", [0o640, 0o604])
def test_check_refuses_a_key_that_others_can_read(folder, name, bits):
    (folder / name).chmod(bits)
    with pytest.raises(RecipeError, match=f"{name} must be .*, got mode 0{bits:o}; run `chmod 600"):
        deploy.check(folder)


@pytest.mark.parametrize("name", ["ca/ca.key", "nodes/north/node.key", "nodes/north/identity.key"])
def test_check_accepts_a_key_that_was_handed_over(folder, name):
    (folder / name).unlink()
    assert deploy.check(folder)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("server/server.crt", "does not vouch"),
        ("ca/ca.crt", "does not vouch"),
        ("server/server.key", "does not fit"),
        ("ca/ca.key", "does not fit"),
        ("nodes/north/node.key", "does not fit"),
        ("server/nodes/north.pub", "does not fit"),
        ("nodes/north/ca.crt", "its host cannot join"),
        ("server/ca.crt", "its host cannot join"),
    ],
)
def test_check_refuses_a_file_of_another_federation(folder, tmp_path, name, sentence):
    shutil.copy(make(tmp_path / "other") / name, folder / name)
    with pytest.raises(RecipeError, match=sentence):
        deploy.check(folder)


@pytest.mark.parametrize(
    "name",
    [
        "ca/ca.crt",
        "ca/ca.key",
        "server/server.crt",
        "server/server.key",
        "nodes/north/node.key",
        "server/nodes/north.pub",
    ],
)
def test_check_refuses_what_does_not_parse(folder, name):
    (folder / name).write_text("nonsense")
    with pytest.raises(RecipeError, match=f"{name} is not an? "):
        deploy.check(folder, insecure=True)


def test_check_says_which_identity_was_handed_over(folder):
    (folder / "nodes/south/identity.key").unlink()
    lines = deploy.check(folder)
    assert "node south: client 1; its identity.key is not here, as it should be" in lines
    assert "node north: identity.key fits client 0 of the roster" in lines


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("roster.json", r"roster\.sig is not a signature of .*roster\.json by the CA"),
        ("roster.sig", r"roster\.sig is not a signature of .*roster\.json by the CA"),
        ("identity.key", r"has the public key [0-9a-f]{64}, which is not in"),
    ],
)
def test_check_refuses_an_identity_of_another_federation(folder, tmp_path, name, sentence):
    shutil.copy(make(tmp_path / "other") / "nodes/north" / name, folder / "nodes/north" / name)
    with pytest.raises(DataError, match=sentence):
        deploy.check(folder, insecure=True)


def test_check_judges_rosters_by_this_ca_also_without_tls(folder, tmp_path):
    """A silo's folder that fits itself, and another federation."""
    shutil.rmtree(folder / "nodes/north")
    shutil.copytree(make(tmp_path / "other") / "nodes/north", folder / "nodes/north")
    (folder / "server/server.crt").unlink()
    with pytest.raises(RecipeError, match=r"north/ca\.crt is not ca/ca\.crt"):
        deploy.check(folder, insecure=True)


def test_check_refuses_a_swapped_identity(folder):
    north, south = (folder / "nodes" / name / "identity.key" for name in NODES)
    shutil.copy(south, north)
    with pytest.raises(RecipeError, match="south in the roster"):
        deploy.check(folder, insecure=True)


def resign(folder: Path, name: str, roster: bytes) -> None:
    text = (folder / "ca/ca.key").read_bytes()
    key = serialization.load_pem_private_key(text, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    (folder / "nodes" / name / "roster.json").write_bytes(roster)
    (folder / "nodes" / name / "roster.sig").write_bytes(certificates.sign(key, roster))


def test_check_refuses_unlike_rosters(folder):
    found = identity.load_roster(folder / "nodes/south")
    resign(folder, "south", identity.dump_roster(found.names[::-1], found.keys[::-1]))
    with pytest.raises(RecipeError, match=r"south/roster\.json is not .*north/roster\.json"):
        deploy.check(folder, insecure=True)


def test_check_refuses_a_script_that_starts_another_client(folder):
    edit(folder / "nodes/south/start-supernode.sh", "partition-id=1", "partition-id=0")
    with pytest.raises(RecipeError, match=r"says partition-id=0 of 2, but.*south as 1 of 2"):
        deploy.check(folder, insecure=True)


@pytest.mark.parametrize("stray", ["registered only", "folder only", "roster only"])
def test_check_refuses_a_silo_that_is_not_everywhere(folder, stray):
    name = "east"
    if stray == "registered only":
        made = certificates.openssh_public(certificates.new_tls_key().public_key(), name)
        (folder / "server/nodes/east.pub").write_bytes(made)
    elif stray == "folder only":
        shutil.copytree(folder / "nodes/north", folder / "nodes/east")
    else:
        (folder / "server/nodes/south.pub").unlink()
        name = "south"
    with pytest.raises(RecipeError, match=rf"\['{name}'\] is not in all of nodes, server/nodes"):
        deploy.check(folder, insecure=True)


def test_check_accepts_a_silos_folder_that_is_gone(folder):
    shutil.rmtree(folder / "nodes/south")
    assert "roster of 2 silos: signed by the CA, the same for each" in deploy.check(folder)


def test_check_refuses_two_nodes_with_one_key(folder):
    for name in ("nodes/{}/node.key", "server/nodes/{}.pub"):
        shutil.copy(folder / name.format("north"), folder / name.format("south"))
    with pytest.raises(RecipeError, match="share one key"):
        deploy.check(folder)


@pytest.mark.parametrize(
    ("script", "old", "new"),
    [
        ("server/start-superlink.sh", "--enable-supernode-auth", ""),
        ("server/start-superlink.sh", "\n  --enable-supernode-auth", "\n# --enable-supernode-auth"),
        ("server/start-superlink.sh", "--ssl-keyfile", "--log-file"),
        ("server/start-superlink.sh", "exec flower-superlink", "exec flower-superlink --insecure"),
        ("nodes/south/start-supernode.sh", "--auth-supernode-private-key", ""),
        ("nodes/south/start-supernode.sh", "--root-certificates", "--insecure"),
        ("nodes/south/start-supernode.sh", "export DPFED_IDENTITY", "# DPFED_IDENTITY"),
        ("nodes/south/start-supernode.sh", 'IDENTITY="$here"', 'IDENTITY="simulated"'),
    ],
)
def test_check_refuses_a_script_without_tls_or_authentication(folder, script, old, new):
    edit(folder / script, old, new)
    with pytest.raises(RecipeError, match=f"missing.*{script}.*--insecure"):
        deploy.check(folder)
    warnings = [x for x in deploy.check(folder, insecure=True) if x.startswith("warning:")]
    assert any(script in warning for warning in warnings)


@pytest.mark.parametrize(
    ("gone", "what"),
    [
        ("server/server.crt", "TLS is missing"),
        ("ca/ca.crt", "TLS is missing"),
        ("server/nodes", "node authentication is missing"),
        ("server/start-superlink.sh", "missing"),
        (
            "nodes/north/roster.json",
            "identity keys are missing: there is no roster.json in .*north",
        ),
        ("nodes", "identity keys are missing"),
    ],
)
def test_check_refuses_when_tls_or_authentication_is_gone(folder, gone, what):
    path = folder / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(RecipeError, match=what):
        deploy.check(folder)
    lines = deploy.check(folder, insecure=True)
    assert any(re.search(what, x) for x in lines if x.startswith("warning:"))


def test_check_refuses_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(RecipeError, match="dpfed deploy init"):
        deploy.check(tmp_path / "nowhere", insecure=True)


# --------------------------------------------------------------------------------- command line


def test_the_commands_make_and_check(tmp_path):
    where = str(tmp_path / "fed")
    made = CliRunner().invoke(
        deploy_app, ["init", where, "--server", "fl.example.org", "--node", "a", "--node", "b"]
    )
    assert made.exit_code == 0, made.output
    assert "start-superlink.sh" in made.output
    checked = CliRunner().invoke(deploy_app, ["check", where])
    assert checked.exit_code == 0, checked.output
    assert "vouches for server/server.crt as fl.example.org" in checked.output
    assert isinstance(
        CliRunner().invoke(deploy_app, ["check", str(tmp_path / "no")]).exception, RecipeError
    )


@pytest.mark.parametrize("command", ["init", "check"])
def test_help_teaches_by_an_example(command):
    said = CliRunner().invoke(deploy_app, [command, "--help"]).output
    assert f"dpfed deploy {command}" in " ".join(said.split())


@pytest.mark.slow
def test_the_command_line_imports_nothing_heavy():
    code = (
        "import sys, dpfed.cli.deploy.command\n"
        "print([m for m in ('torch', 'flwr', 'cryptography.x509') if m in sys.modules])"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert said.stdout.strip() == "[]"


# ------------------------------------------------------------------------------ a real federation

PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "echo"
version = "1.0.0"
description = "Each silo answers with its partition-id."
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "dpfed"
[tool.flwr.app.components]
serverapp = "echo.server:app"
clientapp = "echo.client:app"
[tool.flwr.app.config]
out = ""
silos = 2
"""

SERVER = """
import json
import time
from pathlib import Path
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    end = time.monotonic() + 30
    while len(list(grid.get_node_ids())) < context.run_config["silos"] and time.monotonic() < end:
        time.sleep(0.2)
    silos = list(grid.get_node_ids())
    record = RecordDict({"ask": ConfigRecord({"word": "hello"})})
    asked = [Message(record, dst_node_id=silo, message_type=MessageType.QUERY) for silo in silos]
    replies = grid.send_and_receive(asked, timeout=60)
    said = [dict(reply.content["answer"]) for reply in replies if not reply.has_error()]
    answer = {"silos": [str(silo) for silo in silos], "said": said}
    Path(context.run_config["out"]).write_text(json.dumps(answer))
"""

CLIENT = """
from dpfed.sums.secagg import identity
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.query()
def echo(message, context):
    word = message.content["ask"]["word"]
    place, count = (context.node_config[name] for name in ("partition-id", "num-partitions"))
    signed = identity.from_environment(place, count).sign(word.encode()).hex()
    answer = ConfigRecord({"partition": place, "word": word, "signed": signed})
    return Message(RecordDict({"answer": answer}), reply_to=message)
"""


def write_app(folder: Path) -> Path:
    (folder / "echo").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "echo/__init__.py").touch()
    (folder / "echo/server.py").write_text(SERVER)
    (folder / "echo/client.py").write_text(CLIENT)
    return folder


@pytest.mark.slow
def test_a_real_federation_admits_its_silos_and_no_one_else(folder, tmp_path):
    """TLS and node authentication by the folder's own scripts, with Flower's own processes."""
    other = make(tmp_path / "other")
    out = tmp_path / "out.json"
    refused = ("stranger", "misled", "keyless")
    with Net(tmp_path, NODES, folder=folder) as net:
        admitted = net.online()
        net.start_node("stranger", key=other / "nodes/north/node.key", wait=False)
        net.start_node(
            "misled", key=folder / "nodes/north/node.key", ca=other / "ca/ca.crt", wait=False
        )
        net.start_node("keyless", wait=False)
        run = net.run(write_app(tmp_path / "app"), {"out": str(out)})
        assert run.completed, run
        assert [net.wait_exit(name) for name in refused] == [1, 1, 1]

    assert len(admitted) == 2
    answer = json.loads(out.read_text())
    assert set(answer["silos"]) == admitted
    assert sorted(said["partition"] for said in answer["said"]) == [0, 1]
    assert {said["word"] for said in answer["said"]} == {"hello"}
    roster = identity.load_roster(folder / "nodes/north")
    for said in answer["said"]:  # start-supernode.sh's environment reached the ClientApp
        assert roster.verify(said["partition"], bytes.fromhex(said["signed"]), b"hello")

    assert "Failed to activate SuperNode" in net.log("stranger")
    assert "No SuperNode found with the given public key" in net.log("superlink")
    assert "CERTIFICATE_VERIFY_FAILED" in net.log("misled")
    assert "All SuperNodes must be registered" in net.log("keyless")
    assert not any("SuperNode ID:" in net.log(name) for name in refused)
    assert net.log("superlink").count("Activated node_id") == 2
    assert all(process.poll() is not None for process in net.processes.values())
