# SPDX-License-Identifier: Apache-2.0
"""docs/from-flower.md: the diff has at most 15 lines, applies, and makes the app private."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord, Context, Message, MessageType, RecordDict

from tests.training.flower.local_grid import LocalGrid, become_a_server

pytestmark = pytest.mark.skipif(shutil.which("patch") is None, reason="needs patch")


@pytest.fixture
def app(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(repository / "examples" / "flower_quickstart", tmp_path / "app")
    monkeypatch.setenv("DPFED_STATE", str(tmp_path / "state"))
    monkeypatch.syspath_prepend(str(tmp_path / "app"))
    become_a_server(monkeypatch)
    return tmp_path / "app"


def the_diff(repository: Path) -> str:
    text = (repository / "docs" / "from-flower.md").read_text(encoding="utf-8")
    found = re.search(r"^```diff\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    assert found
    return found.group(1)


def run_app(capsys: pytest.CaptureFixture[str]) -> str:
    """Both sides of the app over a Grid in this process, ten nodes."""
    for name in [name for name in sys.modules if name.split(".")[0] == "quickstart"]:
        del sys.modules[name]
    client = importlib.import_module("quickstart.client_app").app
    server = importlib.import_module("quickstart.server_app")
    config = {"num-server-rounds": 3, "lr": 0.1}
    grid = LocalGrid(client, {100 + i: i for i in range(10)})
    for context in grid.contexts.values():
        context.run_config.update(config)
    context = Context(1, 1, {}, RecordDict(), config)
    server.main(grid, context)
    return capsys.readouterr().out


def evaluated() -> RecordDict:
    """What the app's node 0 answers to whoever sends it an evaluate message."""
    client = importlib.import_module("quickstart.client_app").app
    model = importlib.import_module("quickstart.task").make_model()
    content = RecordDict({"arrays": ArrayRecord(model.state_dict())})
    message = Message(content, dst_node_id=100, message_type=MessageType.EVALUATE)
    config = {"num-server-rounds": 3, "lr": 0.1}
    found: RecordDict = client(
        message, Context(1, 100, {"partition-id": 0}, RecordDict(), config)
    ).content
    return found


def test_the_diff_has_at_most_fifteen_lines(repository: Path) -> None:
    changed = [line for line in the_diff(repository).splitlines() if re.match(r"[+-][^+-]", line)]
    assert 10 <= len(changed) <= 15


def test_the_diff_makes_the_quickstart_private(
    app: Path, repository: Path, capsys: pytest.CaptureFixture[str], caplog: Any
) -> None:
    assert "train_loss" in run_app(capsys)  # before: a loss leaves the client
    assert evaluated()["metrics"]["num-examples"] == 200  # exact, as often as somebody asks
    subprocess.run(
        ["patch", "-p1", "-s"], cwd=app, input=the_diff(repository), text=True, check=True
    )
    with caplog.at_level("INFO", logger="dpfed"):
        after = run_app(capsys)
    assert "train_loss" not in after
    assert len(evaluated()) == 0
    assert "(8, 0.001)-DP for each client (replace-one), against the server" in caplog.text
    assert "round 3/3: 10 clients" in caplog.text
