# SPDX-License-Identifier: Apache-2.0
"""``dpfed deploy try``: a whole federation on this machine, and nothing of it left afterwards."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpfed.cli.deploy import deploy, rehearsal
from dpfed.cli.deploy.command import deploy_app
from dpfed.core.errors import DpfedError, RecipeError
from tests.helpers.deployments import write_app, write_recipe
from tests.training.flower.network import MARK, _marked
from tests.training.flower.preloaded import commands

NODES = ["north", "south"]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deploy") / "fed"
    deploy.init(folder, server_names=["127.0.0.1"], nodes=NODES)
    return folder


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "fed"))


@pytest.mark.parametrize("key", ["node.key", "identity.key"])
def test_keys_that_were_handed_over_cannot_be_rehearsed_with(folder: Path, key: str) -> None:
    (folder / "nodes/south" / key).unlink()
    with (
        pytest.raises(RecipeError, match=f"south/{key} must be here"),
        rehearsal.rehearse(folder),
    ):
        pass
    assert not (folder / "try").exists(), "nothing was started"


def test_a_folder_that_is_not_in_order_is_not_rehearsed(folder: Path) -> None:
    (folder / "nodes/south/roster.sig").write_bytes(b"forged")
    with pytest.raises(DpfedError), rehearsal.rehearse(folder):
        pass
    assert not (folder / "try").exists()


@pytest.mark.slow
def test_a_silo_that_does_not_start_is_named_with_its_log(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A SuperLink that answers nothing is worse: here it is not even there."""
    fake = tmp_path / "bin"
    fake.mkdir()
    for name in ("flower-superlink", "flower-supernode"):
        (fake / name).write_text("#!/bin/sh\necho no room for it\nexit 3\n")
        (fake / name).chmod(0o755)
    own = Path(sys.executable).parent
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, (fake, own, os.environ["PATH"]))))
    done = CliRunner().invoke(deploy_app, ["try", str(folder)])
    assert done.exit_code != 0
    assert "superlink.log" in str(done.exception)
    assert "no room for it" in (folder / "try/superlink.log").read_text()


def test_a_port_out_of_range_is_refused(folder: Path) -> None:
    done = CliRunner().invoke(deploy_app, ["try", str(folder), "--port", "70000"])
    assert "--port must be between 1 and 65535, got 70000" in str(done.exception)


@pytest.mark.long  # CI has a real federation by the same scripts: test_deploy.py
def test_an_app_is_run_with_the_folders_own_keys_and_nothing_is_left(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two silos on one host, each with a port, a state and a ledger of its own."""
    mark = uuid.uuid4().hex
    env = {
        MARK: mark,
        "DPFED_STATE": str(tmp_path / "real"),
        "DPFED_DATASET": "real",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        **commands(),
    }
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    recipe, app, out = write_recipe(tmp_path, 2, 2), write_app(tmp_path / "app"), tmp_path / "out"
    with rehearsal.rehearse(folder) as there:
        assert len(set(ports(there))) == 2
        assert there.run(app, f'recipe="{recipe}" out="{out}"')
        assert not there.run(app, f'recipe="/nowhere.toml" out="{tmp_path}/none"')
    assert json.loads((out / "guarantee.json").read_text())["rounds"] == 2
    for name in NODES:
        assert (folder / "try" / name / "state/ledger.sqlite").is_file()
        assert not (folder / "nodes" / name / "state").exists(), "a rehearsal is not booked"
    assert not (tmp_path / "real").exists()
    assert not (folder / "server/superlink.db").exists()
    deadline = time.monotonic() + 5
    while _marked(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _marked(mark)
    deploy.check(folder)


def ports(there: rehearsal.Rehearsal) -> list[str]:
    """The ports at which the SuperNodes serve their own ClientApps, by their command lines."""
    lines = [Path(f"/proc/{there.processes[name].pid}/cmdline").read_text() for name in NODES]
    return [re.findall(r"--port\0(\d+)", line)[-1] for line in lines]


@pytest.mark.long
def test_without_an_app_it_waits_and_a_signal_ends_all(folder: Path) -> None:
    mark = uuid.uuid4().hex
    command = subprocess.Popen(
        [sys.executable, "-m", "dpfed.cli.main", "deploy", "try", str(folder)],
        env={**os.environ, MARK: mark, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
        # a shell starts what is in its background deaf to Ctrl-C, and the tests may be
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert command.stdout is not None
    said = [command.stdout.readline() for _ in range(3)]
    assert "2 silos are online" in said[0]
    assert f"FLWR_HOME={folder}/try/flwr flwr run APP dpfed" in said[1]
    command.send_signal(signal.SIGINT)
    assert command.wait(60) == 0
    command.stdout.close()
    assert not _marked(mark)
