# SPDX-License-Identifier: Apache-2.0
"""The examples' apps, both sides of each, over a Grid in this process."""

from __future__ import annotations

import importlib
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from tests.training.flower.local_grid import LocalGrid, become_a_server


def play(example: Path, package: str, clients: int, **config: Any) -> None:
    """Run the example with its own run_config, and ``config`` on top."""
    project = tomllib.loads((example / "pyproject.toml").read_text(encoding="utf-8"))
    merged = {**project["tool"]["flwr"]["app"]["config"], "num-clients": clients, **config}
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        del sys.modules[name]
    server = importlib.import_module(f"{package}.server_app")
    grid = LocalGrid(importlib.import_module(f"{package}.client_app").app,
                     {100 + i: i for i in range(clients)})  # fmt: skip
    for context in grid.contexts.values():
        context.run_config.update(merged)
    server.main(grid, Context(1, 1, {}, RecordDict(), merged))


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPFED_STATE", str(tmp_path / "state"))
    for example in ("flower_app", "flower_cnn", "flower_models"):
        monkeypatch.syspath_prepend(str(repository / "examples" / example))
    become_a_server(monkeypatch)


@pytest.mark.parametrize("method", ["dp-fedadam", "ema-only", "dp-fedgd"])
def test_the_flower_app_trains_by_every_method(
    method: str, tmp_path: Path, repository: Path
) -> None:
    example = repository / "examples" / "flower_app"
    play(example, "private_app", 5, out=str(tmp_path), method=method, epsilon=2.0)
    report = json.loads((tmp_path / "result.json").read_text())
    assert report["accuracy"] > 0.5
    assert report["guarantee"].startswith("(2, 1e-05)-DP for each record")


def test_the_cnn_trains_on_images(tmp_path: Path, repository: Path) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 300)
    x = rng.integers(0, 60, (300, 28, 28)) + (y * 120)[:, None, None]
    split = {"x_train": x[:200], "y_train": y[:200], "x_test": x[200:], "y_test": y[200:]}
    np.savez(tmp_path / "images.npz", **{k: v.astype(np.uint8) for k, v in split.items()})
    example = repository / "examples" / "flower_cnn"
    play(
        example, "private_cnn", 2, out=str(tmp_path), data=str(tmp_path / "images.npz"),
        epsilon=100.0, **{"num-server-rounds": 5},
    )  # fmt: skip
    report = json.loads((tmp_path / "result.json").read_text())
    assert report["accuracy"] > 0.8
    assert report["guarantee"].startswith("(100, 1e-05)-DP for each record")


@pytest.mark.parametrize("task", ["visits", "doses", "findings", "text"])
def test_models_of_ones_own_are_trained(task: str, tmp_path: Path, repository: Path) -> None:
    if task == "text":
        pytest.importorskip("transformers")
        pytest.importorskip("peft")
    example = repository / "examples" / "flower_models"
    play(example, "own_models", 2, out=str(tmp_path), task=task, epsilon=100.0)
    report = json.loads((tmp_path / "result.json").read_text())
    assert report["loss"] < report["before"]
    assert report["guarantee"].startswith("(100, 1e-05)-DP for each record")
    assert (tmp_path / "adapter" / "adapter_config.json").exists() == (task == "text")


@pytest.mark.slow
def test_the_notebook_runs_and_shows_its_picture(repository: Path, tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(repository / "examples/notebook/first.ipynb", as_version=4)
    kept = [shown(cell) for cell in notebook.cells]
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=120, resources=where).execute()
    again = [shown(cell) for cell in notebook.cells]
    assert again == kept  # what is stored in it is what it gives, figures aside
    assert sum("image/png" in kinds for kinds in again) == 1
    assert (tmp_path / "runs/notebook/guarantee.json").exists()


def shown(cell: Any) -> list[str]:
    """The kinds of things that a cell shows."""
    kinds: set[str] = set()
    for output in cell.get("outputs", []):
        kinds |= set(output["data"]) if "data" in output else {output["output_type"]}
    return sorted(kinds)
