# SPDX-License-Identifier: Apache-2.0
"""docs/flower-accountant.md: its app trains as written, and ends with both figures."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict

from tests.helpers.pages import DOCS, pages
from tests.training.flower.local_grid import LocalGrid, become_a_server, nodes

PAGE = DOCS / "flower-accountant.md"
ENDING = (
    "(3.959, 1e-05)-DP for each client (zero-out), and (8.984, 1e-05)-DP (replace-one), against "
    "whoever sees only the models, over 21 releases"
)


@pytest.fixture
def app(tmp_path: Path) -> Path:
    for block in pages.blocks(PAGE):
        if block.title:
            pages.do(block, tmp_path)
    return tmp_path / "mean"


def test_the_app_trains_and_states_both_figures(
    app: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    become_a_server(monkeypatch)
    monkeypatch.syspath_prepend(str(app))
    for name in ("mean", "mean.client_app", "mean.server_app"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    client = importlib.import_module("mean.client_app").app
    server = importlib.import_module("mean.server_app")
    context = Context(1, 1, {}, RecordDict(), {"max-epsilon": 4.0})
    server.main(LocalGrid(client, nodes(20)), context)
    assert ENDING in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.xdist_group("flower")
def test_it_does_so_by_flwr_run(app: Path) -> None:
    (block,) = [each for each in pages.blocks(PAGE) if "flwr run" in each.text]
    with pages.own_flower():
        for _ in range(3):  # Flower gives its link 15 s, which a busy machine does not keep
            done = pages.do(block._replace(why=None), app.parent)
            assert done is not None
            if "Failed to start local SuperLink" not in done.stderr:
                break
    assert done.returncode == 0, done.stderr
    assert ENDING in re.sub(r"\s+", " ", done.stdout), done.stdout
