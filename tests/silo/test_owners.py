# SPDX-License-Identifier: Apache-2.0
"""A hostile app, end to end: real flwr run, TLS, node keys, users, gates without a network."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w
import torch
import yaml

from dpfed.accounting.guarantee import GATED, UNDISTURBED
from dpfed.accounting.ledger.ledger import Ledger
from dpfed.cli import silo_install
from dpfed.cli.deploy import deploy
from dpfed.cli.doctor import simulations_only
from tests.helpers.gate_training import in_one_process
from tests.silo.gates import CLASSES, FEATURES, read, terms_for, write_data
from tests.silo.owners import (
    OwnedNet,
    OwnedSilo,
    as_user,
    installation,
    possible,
    users,
    warm_nodes,
)

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("users")]
SILOS = ("north", "south", "east")

SERVER = """
import json
from pathlib import Path
from dpfed.flower import DPStrategy, read_terms
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp
from safetensors.torch import save_file

app = ServerApp()

@app.main()
def main(grid, context):
    out = Path(context.run_config["out"])
    terms = read_terms(Path(context.run_config["terms"]).read_bytes())
    if context.run_config["hostile"]:
        nodes = list(grid.get_node_ids())
        ask = RecordDict({"where": ConfigRecord({"folders": str(context.run_config["folders"])})})
        asked = [Message(ask, node, "train") for node in nodes]
        found = []
        for reply in grid.send_and_receive(asked, timeout=120):
            found.append(json.loads(reply.content["found"]["found"]))
        (out / "found.json").write_text(json.dumps(found))
        return
    strategy = DPStrategy(terms.plan, training=terms.name, wait=30)
    layout = terms.model.layout
    result = strategy.start(grid, ArrayRecord(layout.unflatten(terms.initial)))
    save_file(result.arrays.to_torch_state_dict(), out / "model.safetensors")
    (out / "guarantee.txt").write_text(str(result.guarantee))
"""

HONEST = """
from dpfed.flower import silo_app

app = silo_app()
"""

HOSTILE = """
import ctypes, json, os, socket, struct
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

def attempt(found, name, act):
    try:
        found[name] = repr(act())[:80]
    except BaseException as error:
        found[name] = "no: " + type(error).__name__

def frame(path, raw, answer=True):
    with socket.socket(socket.AF_UNIX) as gate:
        gate.settimeout(30)
        gate.connect(path)
        gate.sendall(raw)
        return gate.recv(8) if answer else b""

def is_silo(process):
    try:
        return process.name.isdigit() and b"silo" in (process / "cmdline").read_bytes()
    except OSError:  # it has just ended
        return False

@app.train()
def train(message, context):
    found = {"user": os.getuid()}
    folders = [Path(each) for each in message.content["where"]["folders"].split(":")]
    for at, folder in enumerate(folders):
        for name in ("data.npz", "silo.toml", "state/ledger.sqlite", "state/approvals.sqlite"):
            attempt(found, f"read {at} {name}", (folder / name).read_bytes)
        attempt(found, f"list {at}", lambda: os.listdir(folder))
        attempt(found, f"list state {at}", lambda: os.listdir(folder / "state"))
        attempt(found, f"plant link {at}", lambda: os.symlink("/etc/passwd", folder / "run" / "x"))
        attempt(found, f"unlink {at}", lambda: os.unlink(folder / "run" / "gate.sock"))
        other = socket.socket(socket.AF_UNIX)
        attempt(found, f"bind {at}", lambda: other.bind(str(folder / "run" / "g2")))
        path = str(folder / "run" / "gate.sock")
        attempt(found, f"garbage {at}", lambda: frame(path, struct.pack(">Q", 5) + b"hello"))
        attempt(found, f"too long {at}", lambda: 1 / len(frame(path, struct.pack(">Q", 1 << 60))))
    for process in Path("/proc").iterdir():
        if is_silo(process):
            number = process.name
            for name in ("environ", "mem", "maps"):
                attempt(found, f"proc {number} {name}", (process / name).read_bytes)
            for name in ("fd/0", "root", "cwd"):
                attempt(found, f"proc {number} {name}", lambda: os.readlink(process / name))
            trace = ctypes.CDLL(None, use_errno=True).ptrace
            attempt(found, f"trace {number}", lambda: 1 / (1 + trace(16, int(number), 0, 0)))
            attempt(found, f"kill {number}", lambda: os.kill(int(number), 9))
    said = RecordDict({"found": ConfigRecord({"found": json.dumps(found)})})
    return Message(said, reply_to=message)
"""


def write_app(folder: Path, client: str) -> Path:
    folder.mkdir()
    (folder / "gated").mkdir()
    (folder / "gated" / "__init__.py").touch()
    (folder / "gated" / "server_app.py").write_text(SERVER)
    (folder / "gated" / "client_app.py").write_text(client)
    parts = {"serverapp": "gated.server_app:app", "clientapp": "gated.client_app:app"}
    config = {"out": "", "terms": "", "folders": "", "hostile": False}
    about = {
        "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
        "project": {"name": folder.name, "version": "1.0.0", "dependencies": []},
        "tool": {
            "flwr": {"app": {"publisher": "x", "components": parts, "config": config}},
            "hatch": {"build": {"targets": {"wheel": {"packages": ["gated"]}}}},
        },
    }
    (folder / "pyproject.toml").write_text(tomli_w.dumps(about))
    return folder


@pytest.mark.long
def test_a_hostile_app_gets_nothing_and_an_honest_one_the_bits() -> None:
    if not possible():
        pytest.skip("needs root, users, a network namespace and Debian's python3 of our version")
    if said := simulations_only():
        pytest.skip(said)
    with installation() as installed, users("gate", "relay") as (gate, relay):
        work = installed / "work"  # pytest's own folders are closed to other users
        silos = [OwnedSilo(work / name, at) for at, name in enumerate(SILOS)]
        work.mkdir(mode=0o755)
        path, fed = terms_for(work, 3), work / "fed"
        (work / "out").mkdir()
        deploy.init(fed, server_names=["127.0.0.1"], nodes=list(SILOS))
        for each in (fed, fed / "nodes", fed / "ca"):
            each.chmod(0o755)
        try:
            for silo in silos:
                silo.own(installed, gate, relay)
                assert "approved for 30 days" in silo.command("approve", str(path), "--yes")
                silo.start()
            sockets = [silo.socket for silo in silos]
            with (
                warm_nodes(installed, relay) as launchers,
                OwnedNet(
                    work,
                    SILOS,
                    folder=fed,
                    installed=installed,
                    launchers=launchers,
                    user=relay,
                    sockets=sockets,
                ) as net,
            ):
                attack(net, work, path, silos)
            check_the_result(work, path, silos)
        finally:
            for silo in silos:
                silo.kill()


def attack(net: OwnedNet, work: Path, path: Path, silos: list[OwnedSilo]) -> None:
    """First a hostile app, then, on the same gates, an honest one."""
    folders = ":".join(str(silo.folder) for silo in silos)
    config = {"out": str(work / "out"), "terms": str(path), "folders": folders}
    for name, client in (("hostile", HOSTILE), ("honest", HONEST)):
        app = write_app(work / name, client)
        run = net.run(app, {**config, "hostile": name == "hostile"}, timeout=240)
        assert run.completed, (run, net.tail("superlink"))
        check_nothing_was_found(work / "out")


def check_nothing_was_found(out: Path) -> None:
    answers = json.loads((out / "found.json").read_text())
    assert len(answers) == 3
    for found in answers:
        assert found.pop("user") != 0
        assert len(found) > 40
        garbage = {name: got for name, got in found.items() if name.startswith("garbage")}
        assert all(got.startswith("b'") for got in garbage.values()), garbage  # a refusal, 8 bytes
        stolen = {
            n: got for n, got in found.items() if n not in garbage and not got.startswith("no:")
        }
        assert stolen == {}


def check_the_result(folder: Path, path: Path, silos: list[OwnedSilo]) -> None:
    from safetensors.torch import load_file

    terms = read(path)
    model = load_file(folder / "out" / "model.safetensors")
    assert torch.equal(terms.model.layout.flatten(model), in_one_process(path, 3))
    said = (folder / "out" / "guarantee.txt").read_text()
    assert f"{GATED}, {UNDISTURBED};" in said
    for silo in silos:
        rows = Ledger(silo.folder / "state" / "ledger.sqlite").rows()
        assert [row.body["kind"] for row in rows].count("entry") == terms.plan.rounds
        assert "under names that are not approved: 3 refused" in silo.command("status")


def line_of(unit: Path, name: str) -> str:
    """The value of a unit's line, with its continuations."""
    text = unit.read_text().replace("\\\n", "")
    return next(line.partition("=")[2] for line in text.splitlines() if line.startswith(f"{name}="))


def probes(folder: Path) -> list[list[str]]:
    """The commands by which Kubernetes and Docker ask whether the gate is healthy."""
    parts = yaml.safe_load_all((folder / "kubernetes.yaml").read_text())
    specs = [part["spec"]["template"]["spec"] for part in parts if part["kind"] == "Deployment"]
    found = [
        part[name]["exec"]["command"]
        for spec in specs
        for part in spec["containers"]
        for name in ("startupProbe", "livenessProbe")
        if name in part and "exec" in part[name]
    ]
    gate = yaml.safe_load((folder / "compose.yaml").read_text())["services"]["gate"]
    return [*found, gate["healthcheck"]["test"][1:]]


@pytest.mark.long
def test_gate_and_probes_run_by_the_words_of_unit_manifest_and_compose_file() -> None:
    """No engine of containers is here: users and a namespace without a network are."""
    if not possible():
        pytest.skip("needs root, users, a network namespace and Debian's python3 of our version")
    with (
        installation() as installed,
        users("gate", "relay") as (gate, relay),
        pytest.MonkeyPatch.context() as patch,
    ):
        home = installed / "silo"
        home.mkdir(mode=0o755)
        for name, group, mode in (("state", gate, 0o700), ("run", relay, 0o2750)):
            (home / name).mkdir()
            subprocess.run(["chown", f"{gate}:{group}", home / name], check=True)
            (home / name).chmod(mode)
        write_data(home / "data.npz", 0)
        patch.setattr(silo_install, "STATE", str(home / "state"))
        patch.setattr(silo_install, "SOCKET", str(home / "run" / "gate.sock"))
        patch.setattr(sys, "executable", str(installed / "bin" / "python"))
        silo = silo_install.Silo(gate, relay, home / "data.npz", "sepsis")
        silo_install.write_silo(home / "etc", silo)
        patch.undo()
        policy, unit = home / "etc" / "silo.toml", home / "etc" / "dpfed-gate.service"
        text = policy.read_text()  # the officer's part of it
        text = text.replace("shape = [24] ", f"shape = [{FEATURES}] ").replace(
            "classes = 2 ", f"classes = {CLASSES} "
        )
        policy.write_text(text)
        subprocess.run(["chown", f"{gate}:", policy, home / "data.npz"], check=True)
        bins = f"{installed / 'bin'}:/usr/bin:/bin"
        own = {"PATH": bins, "PYTHONPATH": str(installed / "site"), "HOME": "/nonexistent"}
        told = dict(word.split("=", 1) for word in shlex.split(line_of(unit, "Environment")))
        assert line_of(unit, "User") == gate
        begun = subprocess.Popen(
            ["unshare", "--net", *as_user(gate, relay), *shlex.split(line_of(unit, "ExecStart"))],
            env={**told, **own},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert begun.stdout is not None
            assert "answers on" in begun.stdout.readline()
            asked = probes(home / "etc")
            assert len(asked) == 3
            for command in asked:
                done = subprocess.run([*as_user(gate), *command], env=own, check=False)
                assert done.returncode == 0, command
        finally:
            begun.kill()
            begun.communicate()
        done = subprocess.run([*as_user(gate), *asked[0]], env=own, check=False)
        assert done.returncode == 1, "no gate, so unhealthy"
