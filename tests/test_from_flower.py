# SPDX-License-Identifier: Apache-2.0
"""docs/from-flower.md: its diffs have as many lines as it says, apply, and make the app private."""

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
    monkeypatch.setattr("dpfed.training.flower.client._CACHES", {})  # the plan of another diff
    become_a_server(monkeypatch)
    return tmp_path / "app"


WAYS = {
    "rows": "(8, 1e-05)-DP for each record (replace-one), against the server",
    "clients": "(8, 0.001)-DP for each client (replace-one), against the server",
}
"""The diffs in the page's order, and what the log then guarantees."""


def page_of(repository: Path) -> str:
    return (repository / "docs" / "from-flower.md").read_text(encoding="utf-8")


def diff_of(way: str, repository: Path) -> str:
    found = re.findall(r"^```diff\n(.*?)^```", page_of(repository), flags=re.DOTALL | re.MULTILINE)
    return dict(zip(WAYS, found, strict=True))[way]


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


def test_the_diffs_have_as_many_lines_as_the_page_says(repository: Path) -> None:
    for way, made_for in zip(WAYS, ("any torch module", "many devices"), strict=True):
        lines = diff_of(way, repository).splitlines()
        changed = [line for line in lines if re.match(r"[+-][^+-]", line)]
        assert f"{made_for} | {len(changed)} |" in page_of(repository)


@pytest.mark.parametrize("way", WAYS)
def test_a_diff_makes_the_quickstart_private(
    way: str, app: Path, repository: Path, capsys: pytest.CaptureFixture[str], caplog: Any
) -> None:
    assert "train_loss" in run_app(capsys)  # before: a loss leaves the client
    assert evaluated()["metrics"]["num-examples"] == 200  # exact, as often as somebody asks
    subprocess.run(
        ["patch", "-p1", "-s"], cwd=app, input=diff_of(way, repository), text=True, check=True
    )
    with caplog.at_level("INFO", logger="dpfed"):
        after = run_app(capsys)
    assert "train_loss" not in after
    assert way == "rows" or len(evaluated()) == 0  # with our rows, the app has no such function
    assert WAYS[way] in caplog.text
    assert "round 3/3: 10 clients" in caplog.text
    assert "zero row" not in caplog.text
