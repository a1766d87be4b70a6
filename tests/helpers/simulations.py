# SPDX-License-Identifier: Apache-2.0
"""Recipes that are played by a Flower app, and their histories without times."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from dpfed.recipes import flower_app as app
from dpfed.recipes import result as result_files
from dpfed.recipes import schema as recipes
from tests.training.flower.local_grid import LocalGrid, become_a_server, nodes

SOFIM = [{"name": "sofim"}, {"name": "scale", "rate": 0.5}]


TINY: dict[str, Any] = {
    "rounds": 4,
    "data": {
        "source": "synthetic",
        "options": {"records": 300, "features": 4, "classes": 3},
        "partition": {"clients": 3},
    },
    "privacy": {"epsilon": 5.0, "noise": "keyed"},
    "server": SOFIM,
}


def write(folder: Path, name: str = "recipe.toml", **changes: Any) -> Path:
    path = folder / name
    path.write_text(recipes.dump_recipe(recipes.load_recipe({**TINY, **changes})), encoding="utf-8")
    return path


RUNS = count(1)  # a process keeps a client's problem for as long as the run is the same


def context(recipe: Path, out: Path, **more: str) -> Context:
    config = {"recipe": str(recipe), "root": "", "out": str(out), **more}
    return Context(next(RUNS), 1, {}, RecordDict(), config)  # type: ignore[arg-type]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a recipe's apps in this process and returns what they left."""
    monkeypatch.setenv("DPFED_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("DPFED_IDENTITY", "simulated")
    become_a_server(monkeypatch)

    def run(recipe: Path, out: Path = tmp_path / "out", **more: str) -> result_files.ResultFiles:
        grid = LocalGrid(app.client_app, nodes(3))
        ours = context(recipe, out, **more)
        for each in grid.contexts.values():
            each.run_id, each.run_config = ours.run_id, ours.run_config
        app.run_server(grid, ours)
        made = max(out.parent.glob(f"{out.name}*"), key=lambda each: each.stat().st_mtime_ns)
        left = result_files.read_result(made)  # another training's folder is not written to
        assert left is not None
        return left

    return run


def untimed(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in history]
