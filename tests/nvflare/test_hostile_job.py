# SPDX-License-Identifier: Apache-2.0
"""A hostile job with code of its own at sites whose gates run under users of their own."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from dpfed.accounting.ledger.ledger import Ledger
from dpfed.cli.doctor import simulations_only
from tests.helpers.gate_training import in_one_process
from tests.nvflare.jobs import CLASSES, params_in, write_job
from tests.silo.gates import read, terms_for
from tests.silo.owners import PYTHON, OwnedSilo, as_user, installation, possible, users

pytest.importorskip("nvflare")
from tests.nvflare.network import Net, set_resources

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("users")]
SITES = ("site-1", "site-2", "site-3")

SERVER = """
import json
from pathlib import Path
from nvflare.apis.controller_spec import Task
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable

class Asker(Controller):
    def __init__(self, folders, out):
        super().__init__()
        self.folders, self.out = folders, out

    def start_controller(self, fl_ctx): pass
    def stop_controller(self, fl_ctx): pass
    def process_result_of_unknown_task(self, *a): pass

    def control_flow(self, abort_signal, fl_ctx):
        found = []
        def received(client_task, fl_ctx):
            found.append(dict(client_task.result))
        data = Shareable({"folders": self.folders})
        task = Task("steal", data, timeout=60, result_received_cb=received)
        self.broadcast_and_wait(task, fl_ctx, min_responses=3, abort_signal=abort_signal)
        words = [{k: v for k, v in each.items() if k == "found"} for each in found]
        Path(self.out).write_text(json.dumps(words))
"""

CLIENT = """
import ctypes, json, os, socket, struct
from pathlib import Path
from nvflare.apis.executor import Executor
from nvflare.apis.shareable import Shareable

def attempt(found, name, act):
    try:
        found[name] = repr(act())[:80]
    except BaseException as error:
        found[name] = "no: " + type(error).__name__

def frame(path, raw):
    with socket.socket(socket.AF_UNIX) as gate:
        gate.settimeout(30)
        gate.connect(path)
        gate.sendall(raw)
        return gate.recv(8)

def is_silo(process):
    try:
        return process.name.isdigit() and b"silo" in (process / "cmdline").read_bytes()
    except OSError:
        return False

class Thief(Executor):
    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        found = {"user": os.getuid()}
        for at, folder in enumerate(map(Path, shareable["folders"])):
            files = ("data.npz", "silo.toml", "gate.log", "state/ledger.sqlite")
            for name in (*files, "state/approvals.sqlite"):
                attempt(found, f"read {at} {name}", (folder / name).read_bytes)
            attempt(found, f"list {at}", lambda: os.listdir(folder))
            attempt(found, f"list state {at}", lambda: os.listdir(folder / "state"))
            attempt(found, f"unlink {at}", lambda: os.unlink(folder / "run" / "gate.sock"))
            other = socket.socket(socket.AF_UNIX)
            attempt(found, f"bind {at}", lambda: other.bind(str(folder / "run" / "g2")))
            path = str(folder / "run" / "gate.sock")
            attempt(found, f"garbage {at}", lambda: frame(path, struct.pack(">Q", 5) + b"hello"))
        for process in Path("/proc").iterdir():
            if is_silo(process):
                number = process.name
                for name in ("environ", "mem", "maps"):
                    attempt(found, f"proc {number} {name}", (process / name).read_bytes)
                attempt(found, f"proc {number} root", lambda: os.readlink(process / "root"))
                trace = ctypes.CDLL(None, use_errno=True).ptrace
                attempt(found, f"trace {number}", lambda: 1 / (1 + trace(16, int(number), 0, 0)))
                attempt(found, f"kill {number}", lambda: os.kill(int(number), 9))
        return Shareable({"found": found})
"""


def write_hostile_job(folder: Path, silos: list[OwnedSilo], out: Path) -> Path:
    """A job that brings its own Python: NVFlare asks no allow list for it."""
    app = folder / "app"
    (app / "custom").mkdir(parents=True)
    (app / "config").mkdir()
    (app / "custom" / "theft_server.py").write_text(SERVER)
    (app / "custom" / "theft_client.py").write_text(CLIENT)
    folders = [str(silo.folder) for silo in silos]
    asker = {"path": "theft_server.Asker", "args": {"folders": folders, "out": str(out)}}
    server = {"format_version": 2, "workflows": [{"id": "ask", **asker}], "components": []}
    thief = {"tasks": ["steal"], "executor": {"path": "theft_client.Thief", "args": {}}}
    client = {"format_version": 2, "executors": [thief], "components": []}
    meta = {"name": "theft", "min_clients": 3, "deploy_map": {"app": ["@ALL"]}}
    (app / "config" / "config_fed_server.json").write_text(json.dumps(server))
    (app / "config" / "config_fed_client.json").write_text(json.dumps(client))
    (folder / "meta.json").write_text(json.dumps({**meta, "resource_spec": {}}))
    return folder


class OwnedNet(Net):
    """Sites that run as a user of their own, who sees no data, with NVFlare's default rights."""

    installed: Path
    user: str

    def command(self, name: str, words: list[str]) -> list[str]:
        if name == "localhost":
            return words
        subprocess.run(["chown", "-R", self.user, self.kits / name], check=True)
        env = {
            "PYTHONPATH": str(self.installed / "site"),
            "HOME": str(self.kits / name),
            "PATH": "/usr/bin:/bin",
            "OMP_NUM_THREADS": "1",
            "DPFED_GATE": str(self.gates[name]),
        }
        said = [f"{key}={value}" for key, value in env.items()]
        return ["env", "-i", *said, *as_user(self.user), str(PYTHON), *words[1:]]


def test_a_job_with_code_of_its_own_gets_nothing_and_an_honest_one_the_bits() -> None:
    if not possible():
        pytest.skip("needs root, users, a network namespace and Debian's python3 of our version")
    if said := simulations_only():
        pytest.skip(said)
    with installation() as installed, users("gate", "nvflare") as (gate, relay):
        work = installed / "work"
        work.mkdir(mode=0o755)
        silos = [OwnedSilo(work / name, at) for at, name in enumerate(SITES)]
        path = terms_for(work, 3)
        try:
            for silo in silos:
                silo.own(installed, gate, relay)
                assert "approved for 30 days" in silo.command("approve", str(path), "--yes")
                silo.start()
                (silo.folder / "gate.log").chmod(0o600)  # as the system's journal keeps it
            attack(work, path, silos, installed, relay)
        finally:
            for silo in silos:
                silo.kill()


def attack(work: Path, path: Path, silos: list[OwnedSilo], installed: Path, relay: str) -> None:
    gates = {name: silo.socket for name, silo in zip(SITES, silos, strict=True)}
    net = OwnedNet(work / "net", gates)
    net.installed, net.user = installed, relay
    for name in SITES:
        set_resources(net.kits / name, lambda found: found["class_allow_list"].append(CLASSES[1]))
    for folder in (work / "net", net.kits.parent.parent, net.kits.parent, net.kits):
        folder.chmod(0o755)
    with net:
        theft = net.submit(write_hostile_job(work / "theft", silos, work / "found.json"))
        assert net.ended(theft) == "FINISHED:COMPLETED", net.tail("site-1")
        check_nothing_was_found(work / "found.json")
        honest = write_job(work / "honest", [path], 3)
        done = net.submit(honest)
        assert net.ended(done) == "FINISHED:COMPLETED"
        out = net.result(done, work / "got")
        check_streams(net, silos)
    found = params_in(out, read(path))
    assert torch.equal(found, in_one_process(path, 3))
    for silo in silos:
        rows = Ledger(silo.folder / "state" / "ledger.sqlite").rows()
        assert [row.body["kind"] for row in rows].count("entry") == read(path).plan.rounds
        assert "under names that are not approved: 3 refused" in silo.command("status")


def check_nothing_was_found(path: Path) -> None:
    replies = [each["found"] for each in json.loads(path.read_text())]
    assert len(replies) == 3
    for found in replies:
        assert found.pop("user") != 0
        assert len(found) > 40
        garbage = {name: got for name, got in found.items() if name.startswith("garbage")}
        assert all(got.startswith("b'") for got in garbage.values()), garbage  # a refusal, 8 bytes
        stolen = {n: g for n, g in found.items() if n not in garbage and not g.startswith("no:")}
        assert stolen == {}


def check_streams(net: Net, silos: list[OwnedSilo]) -> None:
    """Log streaming is on, as by default: of a gate's own log nothing is in NVFlare's folders."""
    folder = net.folder / "read"
    shutil.copytree(net.kits, folder, ignore_dangling_symlinks=True)
    held = b"".join(each.read_bytes() for each in folder.rglob("*log*") if each.is_file())
    assert b"GateRelay" in held or b"dpfed" in held  # what is looked for can be found
    for silo in silos:
        for line in (silo.folder / "gate.log").read_bytes().splitlines():
            assert line not in held
