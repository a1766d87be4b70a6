# SPDX-License-Identifier: Apache-2.0
"""New certificates, a silo that joins, one that leaves, new keys: ``check`` accepts each after."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path

import pytest
from cryptography import x509
from typer.testing import CliRunner

from dpfed.cli.deploy import certificates, deploy, renewal, scripts
from dpfed.cli.deploy.command import deploy_app
from dpfed.core.errors import DataError, RecipeError
from dpfed.sums.secagg import identity

NODES = ["north", "south", "west"]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deploy") / "fed"
    deploy.init(folder, server_names=["127.0.0.1"], nodes=NODES, days=10)
    return folder


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "fed"))


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def roster(home: Path) -> identity.Roster:
    return identity.load_roster(home)  # it verifies the signature


def in_order(folder: Path, names: list[str]) -> None:
    """As ``check`` says, and each silo and the server for itself."""
    deploy.check(folder)
    homes = [folder / "server", *(folder / "nodes" / name for name in names)]
    assert all(roster(home).names == tuple(names) for home in homes)
    assert len({roster(home) for home in homes}) == 1
    for i, name in enumerate(names):
        home = folder / "nodes" / name
        assert identity.load_identity(home).client == i
        assert scripts.partition_of(home / "start-supernode.sh") == (i, len(names))
    keys = [p for p in folder.rglob("*.key") if p.stat().st_mode & 0o077]
    assert keys == [], "private keys stay private"
    assert all(p.stat().st_mode & 0o777 == 0o700 for p in folder.glob("nodes/*/*.sh"))


@pytest.mark.parametrize("new_ca", [False, True])
def test_renewed_certificates_are_valid_for_the_same_hosts(folder: Path, new_ca: bool) -> None:
    before = content(folder)
    said = renewal.renew(folder, days=200, new_ca=new_ca)
    in_order(folder, NODES)
    after = content(folder)
    for name in ("ca/ca.crt", "server/server.crt"):
        end = x509.load_pem_x509_certificate(after[name]).not_valid_after_utc
        assert (end - dt.datetime.now(dt.UTC)).days in (199, 200)
    assert (before["ca/ca.key"] != after["ca/ca.key"]) is new_ca
    kept = [
        n for n in before if n.endswith(("node.key", "node.pub", "identity.key", "roster.json"))
    ]
    assert all(before[name] == after[name] for name in kept), "silos keep their keys"
    assert "  nodes/south/: ca.crt, roster.sig" in said


def test_certificates_that_have_ended_can_be_renewed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = certificates.now() + dt.timedelta(days=11)
    monkeypatch.setattr(certificates, "now", lambda: later)
    with pytest.raises(RecipeError, match="run `dpfed deploy renew`"):
        deploy.check(folder)
    with pytest.raises(RecipeError, match="expired on"):
        renewal.add_silo(folder, "east")
    renewal.renew(folder)
    lines = [
        certificates.check_dates(
            folder / "ca/ca.crt", certificates.load_certificate(folder / "ca/ca.crt"), 30
        )
    ]
    assert "is valid until" in lines[0]


def test_a_silo_joins_at_the_end(folder: Path) -> None:
    before = content(folder)
    said = renewal.add_silo(folder, "east")
    in_order(folder, [*NODES, "east"])
    assert said[0] == "east is client 3 of 4: hand it nodes/east/, and nobody else"
    after = content(folder)
    changed = {n for n in before if before[n] != after[n]}
    homes = ["server", *(f"nodes/{name}" for name in NODES)]
    wanted = {f"{home}/roster.{end}" for home in homes for end in ("json", "sig")}
    assert changed == wanted | {f"nodes/{name}/start-supernode.sh" for name in NODES}
    assert "127.0.0.1:8000" in (folder / "nodes/east/start-supernode.sh").read_text()


def test_a_silo_leaves_and_those_behind_it_move_up(folder: Path) -> None:
    said = renewal.remove_silo(folder, "north")
    in_order(folder, ["south", "west"])
    assert "south is client 0 now, was 1" in said
    assert not (folder / "server/nodes/north.pub").exists()
    (away,) = (folder / "removed").iterdir()
    assert (away / "north/identity.key").exists(), "moved, not deleted"
    with pytest.raises(RecipeError, match="must keep 2 silos or more"):
        renewal.remove_silo(folder, "south")


def test_a_silo_gets_new_keys_and_the_old_ones_count_no_more(folder: Path, tmp_path: Path) -> None:
    old = Path(shutil.copytree(folder / "nodes/south", tmp_path / "old"))
    renewal.rotate_key(folder, "south")
    in_order(folder, NODES)
    assert (old / "node.pub").read_bytes() != (folder / "server/nodes/south.pub").read_bytes()
    for name in ("roster.json", "roster.sig"):
        shutil.copy(folder / "nodes/north" / name, old / name)
    with pytest.raises(DataError, match="is not in"):
        identity.load_identity(old)


def test_a_silos_own_public_keys_are_enough(folder: Path, tmp_path: Path) -> None:
    """It made both on its own host: no private key is here, and `check` accepts the folder."""
    theirs = tmp_path / "theirs"
    shutil.copytree(folder / "nodes/south", theirs)
    node, own = certificates.new_tls_key(), certificates.new_identity()
    for path, content in (
        ("node.key", certificates.openssh(node)),
        ("identity.key", certificates.pem(own)),
    ):
        (theirs / path).write_bytes(content)
    (tmp_path / "node.pub").write_bytes(certificates.openssh_public(node.public_key(), "south"))
    digits = own.public_key().public_bytes_raw().hex()
    words = ["rotate-key", str(folder), "south", "--node-pub", str(tmp_path / "node.pub")]
    done = CliRunner().invoke(deploy_app, [*words, "--identity-pub", f"{digits}\n"])
    assert done.exit_code == 0, done.output
    assert "hand roster.json and roster.sig of nodes/south/ to south" in done.output
    assert not list((folder / "nodes/south").glob("*.key"))
    deploy.check(folder)
    for name in ("roster.json", "roster.sig"):
        shutil.copy(folder / "nodes/south" / name, theirs / name)
    assert identity.load_identity(theirs).client == 1, "with the key that never left its host"
    registered = certificates.load_public(folder / "server/nodes/south.pub")
    assert registered == node.public_key()


def test_one_own_key_leaves_the_other_as_it_is(folder: Path) -> None:
    before = content(folder)
    digits = certificates.new_identity().public_key().public_bytes_raw().hex()
    renewal.rotate_key(folder, "south", identity_pub=digits)
    deploy.check(folder)
    after = content(folder)
    assert after["server/nodes/south.pub"] == before["server/nodes/south.pub"]
    assert after["nodes/south/node.key"] == before["nodes/south/node.key"]
    assert "nodes/south/identity.key" not in after
    assert digits in after["nodes/north/roster.json"].decode()


@pytest.mark.parametrize("wrong", ["", "12", "g" * 64, "0" * 63])
def test_a_public_key_that_is_none_changes_nothing(folder: Path, wrong: str) -> None:
    before = content(folder)
    with pytest.raises(RecipeError, match="--identity-pub must be 64 hexadecimal"):
        renewal.rotate_key(folder, "south", identity_pub=wrong)
    with pytest.raises(RecipeError, match="is not an ECDSA public key"):
        renewal.rotate_key(folder, "south", node_pub=folder / "ca/ca.crt")
    assert content(folder) == before


def test_folders_that_were_handed_over_may_be_gone(folder: Path) -> None:
    shutil.rmtree(folder / "nodes/north")
    (folder / "nodes/west/node.key").unlink()
    (folder / "nodes/west/identity.key").unlink()
    said = renewal.add_silo(folder, "east")
    deploy.check(folder)
    assert any("north, south, west and the server" in line for line in said)
    assert not (folder / "nodes/north").exists()
    renewal.rotate_key(folder, "north")
    deploy.check(folder)
    assert identity.load_identity(folder / "nodes/north").client == 0


def test_options_that_were_added_to_a_script_stay(folder: Path) -> None:
    script = folder / "nodes/north/start-supernode.sh"
    script.write_text(script.read_text().replace('"$@"', '--clientappio-api-address :9099 "$@"'))
    renewal.add_silo(folder, "east")
    assert ":9099" in script.read_text()
    assert scripts.partition_of(script) == (0, 4)


def test_nothing_is_written_where_something_is_wrong(folder: Path) -> None:
    wrong = (
        (lambda: renewal.add_silo(folder, "north"), "a different name for each silo"),
        (lambda: renewal.add_silo(folder, "../x"), "a plain word"),
        (lambda: renewal.remove_silo(folder, "east"), "one of north, south, west, got 'east'"),
        (lambda: renewal.rotate_key(folder, "east"), "one of north, south, west, got 'east'"),
        (lambda: renewal.renew(folder, days=0), "--days must be between 1 and 3650"),
    )
    before = content(folder)
    for act, sentence in wrong:
        with pytest.raises(RecipeError, match=sentence):
            act()
        assert content(folder) == before
    (folder / "ca/ca.key").rename(folder.parent / "offline.key")
    with pytest.raises(RecipeError, match=r"ca\.key must be here"):
        renewal.add_silo(folder, "east")


def test_check_names_the_roster_that_is_stale_by_its_own_path(folder: Path) -> None:
    """The server's, too."""
    stale = [(folder / "server" / name).read_bytes() for name in ("roster.json", "roster.sig")]
    renewal.add_silo(folder, "east")
    for home in (folder / "server", folder / "nodes/north"):
        good = [(home / name).read_bytes() for name in ("roster.json", "roster.sig")]
        for name, old in zip(("roster.json", "roster.sig"), stale, strict=True):
            (home / name).write_bytes(old)
        with pytest.raises(RecipeError, match=rf"{home}/roster\.json is not .*nodes/"):
            deploy.check(folder)
        for name, new in zip(("roster.json", "roster.sig"), good, strict=True):
            (home / name).write_bytes(new)
    deploy.check(folder)


def test_the_commands_do_the_same(folder: Path) -> None:
    for words in (["add-silo", "east"], ["rotate-key", "south"], ["remove-silo", "west"]):
        done = CliRunner().invoke(deploy_app, [words[0], str(folder), words[1]])
        assert done.exit_code == 0, done.output
        assert "then `dpfed deploy check`" in done.output
    assert CliRunner().invoke(deploy_app, ["renew", str(folder), "--new-ca"]).exit_code == 0
    in_order(folder, ["north", "south", "east"])
