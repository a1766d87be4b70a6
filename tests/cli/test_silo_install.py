# SPDX-License-Identifier: Apache-2.0
"""A silo's installation: what ``silo init`` writes, and one planted fault per line of ``check``."""

from __future__ import annotations

import grp
import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import threading
import time
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import yaml
from typer.testing import CliRunner

from dpfed.accounting.ledger.ledger import Ledger
from dpfed.cli import doctor, silo_check
from dpfed.cli import silo as commands
from dpfed.cli.deploy import deploy
from dpfed.cli.main import app
from dpfed.cli.silo_check import check_silo
from dpfed.cli.silo_install import GROUP, Silo, next_steps, write_silo
from dpfed.core.errors import DataError, RecipeError
from dpfed.core.processes import find_command, free_port
from dpfed.silo import gate_command
from dpfed.silo.approvals import CLOCK, Approvals
from dpfed.silo.policy import DataPolicy, GatePolicy, load_policy
from dpfed.silo.relay import SOCKET as GATE_SOCKET
from dpfed.sums.secagg import identity
from tests.silo.gates import write_data

pytestmark = pytest.mark.xdist_group("users")  # useradd locks the machine's list of them

FILES = {
    "silo.toml",
    "dpfed-gate.service",
    "dpfed-supernode.service",
    "compose.yaml",
    "proxy.conf",
    "kubernetes.yaml",
    "Containerfile",
}


def tool(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed; it is in Debian's package {package}")
    return found


@pytest.fixture
def silo(tmp_path: Path) -> Path:
    write_silo(tmp_path / "etc", Silo())
    return tmp_path / "etc"


# ----------------------------------------------------------------------------------------- init


def test_init_writes_what_can_be_loaded_and_says_what_is_next(tmp_path: Path) -> None:
    arguments = [
        "silo",
        "init",
        str(tmp_path / "etc"),
        "--data",
        "/srv/sepsis.csv",
        "--name",
        "sepsis.a",
        "--relay-user",
        "node",
        "--gate-user",
        "keeper",
    ]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert {path.name for path in (tmp_path / "etc").iterdir()} == FILES
    policy = load_policy(tmp_path / "etc/silo.toml")
    assert policy.gate.relay_users == ["node"]
    assert policy.data["sepsis.a"].load.source == "/srv/sepsis.csv"
    assert stat.S_IMODE((tmp_path / "etc/silo.toml").stat().st_mode) == 0o600
    steps = done.output.split("next, as root:\n")[1].splitlines()
    assert len(steps) <= 6
    for word in ("useradd", "chown", "systemctl", "silo approve"):
        assert any(word in step for step in steps), word
    assert not any("{{" in path.read_text() for path in (tmp_path / "etc").iterdir())


def test_every_key_of_the_policy_has_its_line_and_its_default(silo: Path) -> None:
    text = (silo / "silo.toml").read_text()
    tables = {"gate": GatePolicy, "data": DataPolicy}
    whole = tomllib.loads(re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE))
    loaded = load_policy(silo / "silo.toml")
    for name, table in tables.items():
        said = whole[name] if name == "gate" else whole[name]["records"]
        used = loaded.gate if name == "gate" else loaded.data["records"]
        assert set(said) == set(table.__struct_fields__)
        for key in table.__struct_fields__:
            lines = re.findall(rf"^(?:# )?{key} = .*#.*$", text, re.MULTILINE)
            assert lines or key == "load", key
            default = getattr(used, key)
            if default not in (None, {}) and key != "load":
                given = said[key]
                assert (list(default) if isinstance(default, tuple) else default) == given, key
    del whole["data"]["records"]["blocks"]  # which excludes size, and needs ids
    silo.joinpath("all.toml").write_text(tomli_w.dumps(whole))
    load_policy(silo / "all.toml")


def test_nothing_is_overwritten(silo: Path) -> None:
    (silo / "silo.toml").write_text("mine")
    (silo / "compose.yaml").unlink()
    with pytest.raises(RecipeError, match="already exists, so nothing"):
        write_silo(silo, Silo())
    assert (silo / "silo.toml").read_text() == "mine"
    assert not (silo / "compose.yaml").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"relay": "dpfed-gate"}, "another user than the gate's"),
        ({"relay": "root"}, "and not root"),
        ({"gate": "a b"}, "a user's name"),
        ({"gate": "x\nExecStart=/bin/sh"}, "a user's name"),
        ({"data": Path("/srv/a b")}, "a path of plain characters"),
        ({"data": Path("/srv/%h/x")}, "a path of plain characters"),
        ({"data": Path("/srv/../x")}, "a path of plain characters"),
        ({"name": "a/b"}, "1 to 64 of"),
        ({"server": "fl.example.org"}, "HOST:PORT"),
        ({"server": "a;b:80"}, "HOST:PORT"),
        ({"server": "a:70000"}, "HOST:PORT"),
    ],
)
def test_words_that_could_be_read_in_another_way(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=words):
        write_silo(tmp_path / "etc", Silo()._replace(**changes))
    assert not (tmp_path / "etc").exists()


# ---------------------------------------------------------------------------- units, containers


def settings(unit: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    text = unit.read_text().replace("\\\n", " ")
    for name, value in re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


def test_the_gate_has_no_network_and_the_supernode_no_data(silo: Path) -> None:
    gate, node = (settings(silo / f"dpfed-{name}.service") for name in ("gate", "supernode"))
    assert gate["PrivateNetwork"] == ["yes"]
    assert gate["RestrictAddressFamilies"] == ["AF_UNIX"]
    assert (gate["User"], gate["Group"]) == (["dpfed-gate"], [GROUP])
    assert "MemoryDenyWriteExecute" not in gate
    assert gate["ReadOnlyPaths"] == [f"/srv/dpfed/data.csv {silo}/silo.toml"]
    assert (node["User"], node["SupplementaryGroups"]) == (["flower"], [GROUP])
    hidden = node["InaccessiblePaths"][0].split()
    for path in ("/srv/dpfed/data.csv", "/var/lib/dpfed", f"{silo}/silo.toml"):
        assert f"-{path}" in hidden
    assert "--insecure" not in node["ExecStart"][0]


def test_data_under_home_is_all_that_the_gate_sees_there(tmp_path: Path) -> None:
    write_silo(tmp_path, Silo(data=Path("/home/owner/records")))
    gate = settings(tmp_path / "dpfed-gate.service")
    assert gate["ProtectHome"] == ["tmpfs"]
    assert gate["BindReadOnlyPaths"] == ["/home/owner/records"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "most"), [("gate", 1.0), ("supernode", 2.0)])
def test_systemd_takes_the_units_and_rates_them(silo: Path, name: str, most: float) -> None:
    analyze, unit = tool("systemd-analyze", "systemd"), silo / f"dpfed-{name}.service"
    done = subprocess.run([analyze, "verify", unit], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not [line for line in done.stderr.splitlines() if unit.name in line], done.stderr
    limit = f"--threshold={most * 10:.0f}"  # in tenths
    rated = subprocess.run(
        [analyze, "security", "--no-pager", "--offline=yes", limit, unit],
        capture_output=True,
        text=True,
        check=False,
    )
    assert rated.returncode == 0, rated.stdout + rated.stderr
    level = re.search(rf"exposure level for {unit.name}: ([\d.]+)", rated.stdout)
    assert level
    assert float(level[1]) <= most


def test_units_and_containers_limit_memory(silo: Path) -> None:
    """An order that takes all memory ends its child; the gate goes on, and so does the machine."""
    unit = (silo / "dpfed-gate.service").read_text()
    for line in ("MemoryMax=80%", "MemoryHigh=70%", "MemorySwapMax=0", "OOMPolicy=continue"):
        assert f"\n{line}\n" in unit
    assert "\nMemoryMax=40%\n" in (silo / "dpfed-supernode.service").read_text()
    services = yaml.safe_load((silo / "compose.yaml").read_text())["services"]
    for name, variable in (("gate", "GATE_MEMORY:-8g"), ("supernode", "RELAY_MEMORY:-4g")):
        service = services[name]
        assert service["mem_limit"] == service["memswap_limit"] == f"${{{variable}}}"
        assert service["pids_limit"] == 512


def test_the_containers_share_the_socket_alone(silo: Path) -> None:
    whole = yaml.safe_load((silo / "compose.yaml").read_text())
    gate, node, proxy = (whole["services"][name] for name in ("gate", "supernode", "proxy"))
    volumes = [{text.split(":")[0] for text in each["volumes"]} for each in (gate, node)]
    assert volumes[0] & volumes[1] == {"socket"}
    assert gate["network_mode"] == "none"
    assert "/srv/dpfed/data.csv:/srv/dpfed/data.csv:ro" in gate["volumes"]
    assert node["networks"] == ["inside"]
    assert whole["networks"]["inside"] == {"internal": True}
    assert not any("/srv" in text or "/var/lib" in text for text in node["volumes"])
    for each in (gate, node, proxy):
        assert each["read_only"] is True
        assert each["cap_drop"] == ["ALL"]
        assert each["security_opt"] == ["no-new-privileges:true"]
        assert not {"privileged", "pid", "ipc", "ports", "devices"} & set(each)


@pytest.mark.slow
def test_docker_compose_takes_the_file(silo: Path) -> None:
    compose = tool("docker-compose", "docker-compose")
    numbers = {"GATE_UID": "990", "SOCKET_GID": "991", "RELAY_UID": "992"}
    command = [compose, "-f", silo / "compose.yaml", "config"]
    done = subprocess.run(
        command,
        env={"PATH": os.environ["PATH"], **numbers},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout)["services"]["gate"]["user"] == "990:991"
    unset = subprocess.run(
        command, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=False
    )
    assert unset.returncode != 0  # rather than to run as root


def pods(silo: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What runs: the gate's pod and the SuperNode's."""
    found = {
        (each["kind"], each["metadata"]["name"]): each
        for each in yaml.safe_load_all((silo / "kubernetes.yaml").read_text())
    }
    gate, node = (
        found["Deployment", name]["spec"]["template"]["spec"] for name in ("gate", "supernode")
    )
    closed = found["NetworkPolicy", "gate-has-no-network"]["spec"]
    assert closed == {
        "podSelector": {"matchLabels": {"app": "gate"}},
        "policyTypes": ["Ingress", "Egress"],  # and no rule that lets something through
    }
    return gate, node


def test_the_pods_share_the_socket_alone(silo: Path) -> None:
    """Containers of one pod would share a network: so they are two, each with its own user."""
    gate, node = pods(silo)
    shared = [
        {
            str(volume)
            for volume in each["volumes"]
            if "hostPath" in volume or "Claim" in str(volume)
        }
        for each in (gate, node)
    ]
    assert [str(Path(GATE_SOCKET).parent) in each for each in shared[0] & shared[1]] == [True]
    users = [each["securityContext"]["runAsUser"] for each in (gate, node)]
    assert len(set(users)) == 2
    for pod in (gate, node):
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"]
    mounts = {each["name"]: each for each in gate["containers"][0]["volumeMounts"]}
    assert mounts["data"]["readOnly"]
    assert mounts["data"]["mountPath"] == "/srv/dpfed/data.csv"
    assert "data" not in {each["name"] for each in node["containers"][0]["volumeMounts"]}


def installed(command: str) -> str:
    """Where this environment has it, whether or not it is active."""
    found = find_command(command)
    assert found, f"{command} comes with the extra dev"
    return found


@pytest.mark.slow
def test_kubernetes_takes_the_manifests_and_hadolint_the_containerfile(silo: Path) -> None:
    validate = [installed("kubernetes-validate"), "--strict", str(silo / "kubernetes.yaml")]
    done = subprocess.run(validate, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    said = (done.stdout + done.stderr).splitlines()
    assert len(said) == 5  # kinds that it does not know are a warning only
    assert all(" passed for resource " in line for line in said), said
    linted = subprocess.run(
        [installed("hadolint"), str(silo / "Containerfile")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert linted.returncode == 0, linted.stdout


# ----------------------------------------------------------------------------------- the proxy


class Upstream(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.path)))
        self.end_headers()
        self.wfile.write(self.path.encode())

    do_GET = do_POST

    def log_message(self, *_: Any) -> None:
        pass


def status(port: int, path: str, method: str = "POST") -> tuple[int, str]:
    """What the proxy says to a request whose path is sent as it stands."""
    trust = ssl.create_default_context()
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    with trust.wrap_socket(socket.create_connection(("127.0.0.1", port))) as wire:
        wire.sendall(
            f"{method} {path} HTTP/1.1\r\nHost: proxy\r\nContent-Length: 0\r\n"
            f"Connection: close\r\n\r\n".encode()
        )
        said = b"".join(iter(lambda: wire.recv(4096), b"")).decode()
    return int(said.split()[1]), said.partition("\r\n\r\n")[2]


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[int]:
    """A real nginx with the written file, before a server whose certificate a CA signed."""
    nginx = tool("nginx", "nginx")
    port, behind = free_port(), free_port()
    deploy.init(tmp_path / "fed", server_names=["127.0.0.1"], nodes=["north"])
    write_silo(tmp_path / "etc", Silo(server=f"127.0.0.1:{behind}"))
    keys = tmp_path / "fed/server"
    text = (tmp_path / "etc/proxy.conf").read_text()
    for old, new in (
        ("/tmp/", f"{keys}/"),
        ("/etc/dpfed-proxy/proxy.", f"{keys}/server."),
        ("/etc/dpfed-proxy/", f"{keys}/"),
        ("listen 8443", f"listen 127.0.0.1:{port}"),
    ):
        text = text.replace(old, new)
    (keys / "proxy.conf").write_text(text)
    server = HTTPServer(("127.0.0.1", behind), Upstream)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(keys / "server.crt", keys / "server.key")
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    command = [nginx, "-e", "stderr", "-c", keys / "proxy.conf", "-g", "daemon off;"]
    with (keys / "said").open("w") as said, subprocess.Popen(command, stderr=said) as running:
        try:
            time.sleep(1)
            assert running.poll() is None, (keys / "said").read_text()
            yield port
        finally:
            running.terminate()
            server.shutdown()
            server.server_close()


@pytest.mark.slow
def test_the_proxy_lets_the_fleet_api_through_and_nothing_else(proxy: int) -> None:
    assert status(proxy, "/v1/fleet/pull-messages") == (200, "/v1/fleet/pull-messages")
    assert status(proxy, "/v1/fleet/pull-messages", "GET")[0] == 403
    for path in (
        "/v1/control/list-nodes",
        "/v1/control/start-run",
        "/v1/runtime/acquire-task",
        "/health",
        "/",
        "/v1/fleet/",
        "/v1/fleet/../control/start-run",
        "/v1/fleet/..%2fcontrol/start-run",
        "/v1/fleet/%2e%2e/control/start-run",
        "//v1/control/start-run",
        "/v1/fleet/a?b",
        "/v1/control/../fleet/pull-messages",
        "/V1/fleet/pull-messages",
        "/v1/fleet/a/b",
    ):
        assert status(proxy, path)[0] == 403, path


def test_the_paths_of_the_proxy_are_flowers(silo: Path) -> None:
    """Every path that a SuperNode of the installed Flower asks for passes, and no other one."""
    text = (silo / "proxy.conf").read_text()
    found = re.search(r'\$request_uri !~ "(.+)"', text)
    assert found
    modules = [each for each in metadata.files("flwr") or () if each.suffix == ".py"]
    said = (each.locate().read_text(encoding="utf-8") for each in modules)  # type: ignore[attr-defined]
    paths = {path for text in said for path in re.findall(r'"POST", "(/v1/[^"]+)"', text)}
    assert {p for p in paths if re.search(found[1], p)} == {p for p in paths if "/fleet/" in p}
    assert any("/control/" in path for path in paths)


# ------------------------------------------------------------------------- check, with real users


class Site:
    """A silo on this machine, with users of its own; all is as it should be."""

    def __init__(self, folder: Path) -> None:
        tag = secrets.token_hex(4)
        self.gate, self.relay, self.group = f"dpg{tag}", f"dpr{tag}", f"dps{tag}"
        self.home = folder
        self.users: list[str] = []
        self.groups: list[str] = []

    def make(self) -> None:
        run("groupadd", self.group)
        self.groups.append(self.group)
        for user, more in ((self.gate, []), (self.relay, ["--groups", self.group])):
            run("useradd", "--user-group", "--no-create-home", *more, user)
            self.users.append(user)
        for name, mode in (("state", 0o700), ("data", 0o700), ("run", 0o750)):
            (self.home / name).mkdir()
            (self.home / name).chmod(mode)
        write_data(self.home / "data/records.npz", 0)
        write_silo(self.home / "etc", Silo(gate=self.gate, relay=self.relay, data=self.data))
        Approvals(self.home / "state")
        self.change()
        for path in (self.home, *self.home.rglob("*")):
            shutil.chown(path, self.gate, self.gate)
        self.data.chmod(0o600)
        shutil.chown(self.home / "run", self.gate, self.group)

    @property
    def data(self) -> Path:
        return self.home / "data/records.npz"

    @property
    def user(self) -> int:
        return pwd.getpwnam(self.gate).pw_uid

    @property
    def policy(self) -> Path:
        return self.home / "etc/silo.toml"

    def change(self, gate: dict[str, Any] | None = None, **data: Any) -> None:
        tree = tomllib.loads(self.policy.read_text())
        tree["gate"] |= {
            "socket": str(self.home / "run/gate.sock"),
            "state": str(self.home / "state"),
            **(gate or {}),
        }
        tree["data"]["records"] |= data
        self.policy.write_text(tomli_w.dumps(tree))

    def check(self, *users: str) -> list[str]:
        return list(check_silo(self.policy, users))

    def end(self) -> None:
        for user in self.users:
            run("userdel", user)
        for group in self.groups:
            run("groupdel", group)


def run(*command: str) -> None:
    """A change of users: it waits for another program's lock, and for a user's last process."""
    for _ in range(30):
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode == 0 or not any(w in done.stderr for w in ("lock", "currently used")):
            break
        time.sleep(0.5)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def site() -> Iterator[Site]:
    if os.geteuid() != 0 or shutil.which("useradd") is None:
        pytest.skip("makes users, which root alone can")
    home = Path("/var/tmp", f"dpfed-{secrets.token_hex(4)}")  # pytest's own is root's alone
    home.mkdir(mode=0o755)
    made = Site(home)
    try:
        made.make()
        yield made
    finally:
        made.end()
        shutil.rmtree(home)


def fault(site: Site, *words: str) -> None:
    """The check stops with one sentence that has the words and a way out."""
    with pytest.raises(DataError) as caught:
        site.check()
    for word in (*words, "; "):
        assert word in str(caught.value), str(caught.value)


@pytest.mark.slow
def test_a_silo_as_it_should_be_passes(site: Site) -> None:
    said = site.check(site.relay)
    for words in (
        "the policy:",
        "the state folder:",
        "data records:",
        "may connect",
        "the clock",
        "identity: none",
        f"relay user {site.relay}: another user",
    ):
        assert any(words in line for line in said), words
    assert not [line for line in said if line.startswith("warning:")]
    done = CliRunner().invoke(app, ["silo", "check", "--policy", str(site.policy)])
    assert done.exit_code == 0, done.output
    assert list((site.home / "state").iterdir()) == []  # a check makes no file


@pytest.mark.slow
def test_data_readable_by_others(site: Site) -> None:
    site.data.parent.chmod(0o755)
    site.check()  # the file itself is still closed
    site.data.chmod(0o644)
    fault(site, "data records must be readable by the gate's user alone, got mode 644", "everybody")
    site.data.parent.chmod(0o700)
    site.check()


@pytest.mark.slow
def test_data_readable_by_the_relays_group(site: Site) -> None:
    site.data.parent.chmod(0o755)
    site.data.chmod(0o640)
    fault(site, f"open to group {site.gate!r}", "chmod go=")
    shutil.chown(site.data, group=site.group)
    fault(site, f"open to group {site.group!r}, which relay user {site.relay!r} is in")


@pytest.mark.slow
def test_a_folder_of_data_is_closed_itself(site: Site) -> None:
    site.change(load={"source": str(site.data.parent)})
    site.data.chmod(0o644)
    site.check()  # the folder is closed
    site.data.parent.chmod(0o711)
    fault(site, "data records must be readable", f"got mode 711 of {site.data.parent}")
    site.data.parent.chmod(0o700)
    (site.data.parent / "more").mkdir(mode=0o777)
    site.check()


@pytest.mark.slow
def test_an_installation_that_a_relay_may_change(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = site.home / "lib/dpfed"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.setattr("dpfed.__file__", str(package / "__init__.py"))
    site.check()
    shutil.chown(package, site.relay)
    fault(site, "the installation must not be writable by a relay user", "install dpfed as root")
    shutil.chown(package, "root", site.group)
    package.chmod(0o775)
    fault(site, "the installation must not be writable by a relay user", "mode 775")
    future = time.time() + 86_400
    package.chmod(0o755)
    os.utime(package / "__init__.py", (future, future))
    fault(site, "the clock must be after", "dpfed was installed")


@pytest.mark.slow
def test_data_of_another_user_a_link_or_none(site: Site) -> None:
    shutil.chown(site.data, site.relay)
    fault(site, f"must be {site.gate}'s")
    site.data.rename(site.home / "data/moved.npz")
    fault(site, "got 'No such file or directory'")
    site.data.symlink_to(site.home / "data/moved.npz")
    fault(site, "without links")
    site.change(load={"source": "data/records.npz"})
    fault(site, "must be an absolute path")


@pytest.mark.sample(3)
@pytest.mark.slow
@pytest.mark.parametrize("group", ["docker", "sudo", "adm", "disk"])
def test_a_relay_in_a_group_that_gives_rights(site: Site, group: str) -> None:
    try:
        grp.getgrnam(group)
    except KeyError:
        run("groupadd", group)
        site.groups.append(group)
    run("usermod", "-aG", group, site.relay)
    fault(site, f"relay user {site.relay!r}", f"got {group!r}", f"gpasswd -d {site.relay} {group}")


@pytest.mark.slow
def test_a_relay_in_the_gates_own_group(site: Site) -> None:
    run("usermod", "-aG", site.gate, site.relay)
    fault(site, f"got {site.gate!r}, which is one of the gate's")


@pytest.mark.slow
def test_a_relay_that_is_the_gate_or_root_or_nobody(site: Site) -> None:
    site.change({"relay_users": [site.gate]})
    fault(site, "must be another user than the gate's, got the same")
    site.change({"relay_users": ["root"]})
    fault(site, "must not be root, got user 0")
    site.change({"relay_users": ["dpfed-no-such-user"]})
    fault(site, "is not on this machine")
    site.change({"relay_users": [site.relay]})
    with pytest.raises(DataError, match=r"must be in gate\.relay_users"):
        site.check("nobody")


@pytest.mark.slow
def test_a_parent_that_others_may_write_to(site: Site) -> None:
    site.data.parent.chmod(0o777)
    fault(site, f"{site.data.parent} must be writable by its owner alone, got mode 777")
    site.data.parent.chmod(0o700)
    site.home.chmod(0o777)
    fault(site, f"{site.home} must be writable by its owner alone, got mode 777")


@pytest.mark.slow
def test_the_sockets_folder(site: Site) -> None:
    (site.home / "link").symlink_to(site.home / "run")
    site.change({"socket": str(site.home / "link/gate.sock")})
    fault(site, "must be a folder, got a link")
    site.change()
    for mode, words in (
        (0o770, "writable by its owner alone"),
        (0o751, "closed to all but"),
        (0o700, "must be able to reach"),
    ):
        (site.home / "run").chmod(mode)
        fault(site, str(site.home / "run"), words)
    (site.home / "run").chmod(0o750)
    shutil.chown(site.home / "run", group=site.gate)
    fault(site, f"usermod -aG {site.gate} {site.relay}")
    (site.home / "run").rmdir()
    assert any(line.startswith("warning:") and "does not exist" in line for line in site.check())


@pytest.mark.slow
def test_the_state_and_the_policy(site: Site) -> None:
    (site.home / "state/ledger.sqlite").touch()
    fault(site, "ledger.sqlite must be", "run the owner's commands as")
    (site.home / "state/ledger.sqlite").unlink()
    (site.home / "state").chmod(0o750)
    fault(site, "the state folder must be readable by the gate's user alone")
    (site.home / "state").chmod(0o700)
    site.policy.chmod(0o644)
    fault(site, "the policy must be readable by the gate's user alone")
    site.policy.chmod(0o000)
    fault(site, "the policy must be readable by the gate's user")
    site.policy.chmod(0o600)
    shutil.chown(site.home / "state", "root")
    fault(site, "the gate's user must not be root")
    site.change({"state": str(site.home / "none")})
    fault(site, "must be there")


@pytest.mark.slow
def test_distributed_trust_needs_an_identity(site: Site) -> None:
    site.change(trust=["local", "distributed"])
    fault(site, "gate.identity must be a folder")
    deploy.init(site.home / "fed", server_names=["127.0.0.1"], nodes=["north", "south"])
    folder = site.home / "fed/nodes/south"
    for path in (site.home / "fed", *(site.home / "fed").rglob("*")):
        shutil.chown(path, site.gate)
    site.change({"identity": str(folder)}, trust=["distributed"])
    fault(site, "data.records.client must be 1")
    site.change({"identity": str(folder)}, client=1)
    assert any("client 1 of a signed roster of 2" in line for line in site.check())
    (folder / identity.KEY).unlink()
    fault(site, "the identity key must be at")


@pytest.mark.slow
def test_a_clock_that_is_behind_what_the_gate_has_seen(site: Site) -> None:
    with Approvals(site.home / "state")._files[CLOCK].change() as file:
        file.execute("INSERT INTO clock VALUES (1, '2999-01-01T00:00:00+00:00')")
    shutil.chown(site.home / "state" / CLOCK, site.gate)
    fault(site, "when the gate answered, or", "dpfed silo clock --reset")


@pytest.mark.slow
def test_one_file_in_two_accounts(site: Site) -> None:
    """Root looks into the ledger, and leaves no file of root's beside it."""
    ledger = site.home / "state/ledger.sqlite"
    opened = Ledger(ledger)
    first = load_policy(site.policy).data["records"]
    opened.declare(first.key("records"), first.budget)
    opened.close()
    for path in (site.home / "state").iterdir():
        shutil.chown(path, site.gate, site.gate)
    assert any("accounts: no file is in two" in line for line in site.check())
    assert {p.stat().st_uid for p in (site.home / "state").iterdir()} == {site.user}
    tree = tomllib.loads(site.policy.read_text())
    tree["data"]["again"] = tree["data"]["records"]
    site.policy.write_text(tomli_w.dumps(tree))
    fault(site, "data.records and data.again must have one account")


@pytest.mark.slow
def test_a_models_folder_that_others_may_change(site: Site) -> None:
    folder = site.home / "model"
    site.change(pretrained={"encoder": {"folder": str(folder)}})
    fault(site, "pretrained.encoder.folder must be a folder")
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert any("model encoder:" in line for line in site.check())
    (folder / "config.json").chmod(0o666)
    fault(site, "model encoder must not be writable by a relay user")


@pytest.mark.slow
def test_a_gate_that_runs_with_a_network_is_warned_of(site: Site) -> None:
    code = ["sh", "-c", "echo up; sleep 60; :", *gate_command()]
    for prefix, words in ((), "has a network"), (("unshare", "--net"), "has no network"):
        with subprocess.Popen(
            [*prefix, "runuser", "-u", site.gate, "--", *code],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as gate:
            try:
                up = gate.stdout.readline() if gate.stdout else ""
                if prefix and not up:
                    pytest.skip("this machine gives no network namespaces")
                assert any(words in line for line in site.check()), words
            finally:
                os.killpg(gate.pid, signal.SIGKILL)


@pytest.mark.slow
def test_doctor_and_deploy_check_say_it_too(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "DEFAULT", site.policy)
    assert [line.verdict for line in doctor.silo()] == [doctor.OK]
    deploy.init(site.home / "fed", server_names=["127.0.0.1"], nodes=["north"])
    shutil.copy2(site.policy, site.home / "fed/silo.toml")
    shutil.chown(site.home / "fed/silo.toml", site.gate)
    site.home.joinpath("fed").chmod(0o755)
    assert any("silo: data records" in line for line in deploy.check(site.home / "fed"))
    site.data.parent.chmod(0o777)
    assert [line.verdict for line in doctor.silo()] == [doctor.PROBLEM]
    with pytest.raises(DataError, match="writable by its owner alone"):
        deploy.check(site.home / "fed")


def test_doctor_without_a_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "DEFAULT", tmp_path / "silo.toml")
    assert [tuple(line) for line in doctor.silo()] == [(doctor.OK, "silo", "no policy")]


def test_the_gates_user_is_not_root(tmp_path: Path) -> None:
    """Whoever runs the tests: as root they own the folder, and others cannot judge root's."""
    write_silo(tmp_path / "etc", Silo())
    text = (tmp_path / "etc/silo.toml").read_text().replace("/var/lib/dpfed", "/")
    (tmp_path / "etc/silo.toml").write_text(text)
    with pytest.raises(DataError, match=r"must not be root|must be yours"):
        list(check_silo(tmp_path / "etc/silo.toml"))
    assert "docker" in silo_check.PRIVILEGED_GROUPS


def test_the_steps_name_the_users() -> None:
    said = " ".join(next_steps(Path("/etc/dpfed"), Silo(gate="keeper", relay="node")))
    assert "keeper" in said
    assert f"--groups {GROUP} node" in said
    assert pwd.getpwuid(0).pw_name not in ("keeper", "node")
