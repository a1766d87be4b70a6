# SPDX-License-Identifier: Apache-2.0
"""A probe: healthy while the gate takes connections, whatever it is busy with, and cheap."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpfed.cli.main import app
from dpfed.core.errors import RecipeError
from dpfed.core.log import log
from dpfed.silo import gate
from tests.helpers.gate_parts import REPLY, RequestHandler, kept


def policy_at(folder: Path) -> str:
    path = folder / "silo.toml"
    path.write_text(f'[gate]\nsocket = "{folder}/gate.sock"\n')
    return str(path)


def health(folder: Path) -> tuple[int, str]:
    run = CliRunner().invoke(app, ["silo", "health", "--policy", policy_at(folder)])
    return run.exit_code, run.output


def test_a_gate_that_listens_is_healthy_even_if_it_is_busy(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "gate.sock"))
        listening.listen(16)  # and accepts none
        assert health(tmp_path)[0] == 0
    code, said = health(tmp_path)  # the file is left, and nobody listens
    assert code == 1
    assert "unhealthy: no gate takes connections" in said


def test_no_gate_is_unhealthy_and_no_policy_is_a_mistake(tmp_path: Path) -> None:
    assert health(tmp_path)[0] == 1
    (tmp_path / "silo.toml").unlink()
    run = CliRunner().invoke(app, ["silo", "health", "--policy", str(tmp_path / "silo.toml")])
    assert isinstance(run.exception, RecipeError)


@pytest.mark.parametrize("users", [{os.geteuid()}, set[int]()], ids=["relay", "owner"])
def test_the_gate_takes_a_probe_for_no_order_and_logs_nothing(
    tmp_path: Path,
    users: set[int],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log, "propagate", True)
    handler = RequestHandler(tmp_path, lambda: REPLY)
    relay, other = socket.socketpair(socket.AF_UNIX)
    other.close()
    with relay, kept(handler) as keeper:
        gate._serve_request(relay, keeper, users)
    assert handler.asked() == []
    assert caplog.text == ""


@pytest.mark.slow
def test_a_probe_loads_neither_torch_nor_flower(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom dpfed.cli.main import app\n"
        f"try: app(['silo', 'health', '--policy', {policy_at(tmp_path)!r}])\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'flwr', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "[]", done.stdout
