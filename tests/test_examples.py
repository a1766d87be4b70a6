# SPDX-License-Identifier: Apache-2.0
"""The examples' apps, both sides of each, over a Grid in this process."""

from __future__ import annotations

import ast
import difflib
import importlib
import json
import re
import shutil
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from dpfed.cli import new
from dpfed.recipes.run import run
from dpfed.recipes.schema import load_recipe
from tests.helpers.hub import build
from tests.training.flower.local_grid import LocalGrid, become_a_server
from tests.training.flower.network import Net

TASKS = ["visits", "doses", "findings", "text"]


def play(example: Path, package: str, clients: int, **config: Any) -> None:
    """Run the example with its own run_config, and ``config`` on top."""
    project = tomllib.loads((example / "pyproject.toml").read_text(encoding="utf-8"))
    merged = {**project["tool"]["flwr"]["app"]["config"], "num-clients": clients, **config}
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        del sys.modules[name]
    server = importlib.import_module(f"{package}.server_app")
    grid = LocalGrid(
        importlib.import_module(f"{package}.client_app").app, {100 + i: i for i in range(clients)}
    )
    for context in grid.contexts.values():
        context.run_config.update(merged)
    server.main(grid, Context(1, 1, {}, RecordDict(), merged))


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPFED_STATE", str(tmp_path / "state"))
    for example in ("flower_app", "flower_cnn", "flower_models"):
        monkeypatch.syspath_prepend(str(repository / "examples" / example))
    become_a_server(monkeypatch)


CLIPS = {"dp-fedsofim": 5.0, "dp-fedadam": 1.0, "ema-only": 1.0, "dp-fedgd": 1.0}


@pytest.mark.parametrize("method", CLIPS)
def test_the_flower_app_trains_by_every_method(
    method: str, tmp_path: Path, repository: Path
) -> None:
    example = repository / "examples" / "flower_app"
    more = {"method": method, "clip": CLIPS[method], "epsilon": 2.0}
    play(example, "private_app", 5, out=str(tmp_path), **more)
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
        example,
        "private_cnn",
        2,
        out=str(tmp_path),
        data=str(tmp_path / "images.npz"),
        epsilon=100.0,
        **{"num-server-rounds": 5},
    )
    report = json.loads((tmp_path / "result.json").read_text())
    assert report["accuracy"] > 0.8
    assert report["guarantee"].startswith("(100, 1e-05)-DP for each record")


@pytest.mark.sample(4)
@pytest.mark.parametrize("task", TASKS)
def test_models_of_ones_own_are_trained(task: str, tmp_path: Path, repository: Path) -> None:
    if task == "text":
        pytest.importorskip("transformers")
        pytest.importorskip("peft")
    example = repository / "examples" / "flower_models"
    # so little noise that a run from the system's own generator hardly ever ends above its start
    play(example, "own_models", 2, out=str(tmp_path), task=task, epsilon=1000.0)
    report = json.loads((tmp_path / "result.json").read_text())
    assert report["loss"] < report["before"]
    assert report["guarantee"].startswith("(1000, 1e-05)-DP for each record")
    assert (tmp_path / "adapter" / "adapter_config.json").exists() == (task == "text")


def test_the_plain_app_of_the_same_models_is_not_private(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(repository / "examples" / "flower_models" / "plain"))
    example = repository / "examples" / "flower_models"
    for task in TASKS:
        if task == "text" and not (find_spec("transformers") and find_spec("peft")):
            continue
        play(
            example,
            "own_models",
            2,
            out=str(tmp_path / task),
            task=task,
            **{"num-server-rounds": 2},
        )
        report = json.loads((tmp_path / task / "result.json").read_text())
        assert report["loss"] < report["before"] or task == "text"  # two passes are few for it
        assert "guarantee" not in report
    for name in [name for name in sys.modules if name.split(".")[0] == "own_models"]:
        del sys.modules[name]


HUB = ["private-tables", "private-images", "private-lora", "gated-consortium"]


@pytest.mark.sample(4)
@pytest.mark.slow
@pytest.mark.parametrize("name", HUB)
def test_the_apps_for_the_hub_build(
    name: str, tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the hub's format; what a template of `dpfed new` has is as it is there."""
    monkeypatch.chdir(tmp_path)
    app = shutil.copytree(repository / "examples" / "hub" / name, tmp_path / name)
    assert {"LICENSE", "README.md", "pyproject.toml"} <= build(app)
    kind = "gated" if name.startswith("gated") else "rows"
    own = {"README.md", "pyproject.toml", "picture.png"}
    own |= {"private_images/task.py", "private_lora/task.py", "private_lora/server_app.py"}
    monkeypatch.setattr(new, "package_name", lambda folder: folder.replace("-", "_"))
    (tmp_path / "made").mkdir()
    for path in new.write_app(tmp_path / "made" / name, kind):
        inside = path.relative_to(tmp_path / "made" / name)
        if inside.as_posix() not in own:
            assert (app / inside).read_bytes() == path.read_bytes(), inside


@pytest.mark.parametrize("name", HUB)
def test_the_apps_for_the_hub_show_a_run(name: str, repository: Path) -> None:
    app = repository / "examples" / "hub" / name
    assert "](picture.png)" in (app / "README.md").read_text(encoding="utf-8")
    assert (app / "picture.png").stat().st_size > 5000


@pytest.mark.long
@pytest.mark.parametrize("name", HUB[:3])
def test_the_apps_for_the_hub_train(
    name: str, tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(repository / "examples" / "hub" / name))
    app = repository / "examples" / "hub" / name
    play(app, name.replace("-", "_"), 2, out=str(tmp_path / "out"))
    report = json.loads((tmp_path / "out" / "guarantee.json").read_text())
    assert report["accuracy"] > 0.8
    assert (tmp_path / "out" / "model" / "model.json").is_file()
    assert (tmp_path / "out" / "adapter" / "adapter_config.json").exists() == ("lora" in name)


def code(path: Path) -> list[str]:
    """Lines of code: no docstrings, comments or empty lines."""
    text = path.read_text(encoding="utf-8")
    strings = [
        node.body[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node)
    ]
    said = {at for each in strings for at in range(each.lineno, (each.end_lineno or 0) + 1)}
    lines = enumerate(text.splitlines(), 1)
    return [
        line
        for at, line in lines
        if at not in said and line.strip() and not line.lstrip().startswith("#")
    ]


def written(before: list[str], after: list[str]) -> list[str]:
    """The lines that one writes: new ones, and those that take another's place."""
    return [line[2:] for line in difflib.ndiff(before, after) if line.startswith("+ ")]


def of_task(lines: list[str], task: str) -> list[str]:
    """Lines of ``tasks.py`` that are not another task's own."""
    model = {"text": "text_network"}.get(task, f"{task}_model")
    starts = {at: line for at, line in enumerate(lines) if re.match(r"def |class |[A-Z]", line)}
    kept, mine = [], True
    for at, line in enumerate(lines):
        if at in starts:
            named = re.match(r"(?:def|class) (\w+)", line)
            name = named.group(1).lower() if named else ""
            others = [t for t in TASKS if t != task]
            mine = name == model or not any(name.startswith(other) for other in others)
        kept += [line] if mine else []
    return kept


@pytest.mark.parametrize("task", TASKS)
def test_at_most_25_lines_make_the_plain_app_private(task: str, repository: Path) -> None:
    private = repository / "examples" / "flower_models" / "own_models"
    plain = private.parent / "plain" / "own_models"
    made = []
    for name in ("client_app.py", "server_app.py", "task.py"):
        made += written(code(plain / name), code(private / name))
    own = [of_task(code(folder / "tasks.py"), task) for folder in (plain, private)]
    made += written(*own)
    assert 15 <= len(made) <= 25, made
    assert sum("Network(" in line for line in made) == 1
    readme = (private.parent / "README.md").read_text(encoding="utf-8")
    assert f"| `{task}` |" in readme
    assert f"| {len(made)} |" in readme


@pytest.mark.long
@pytest.mark.parametrize("task", TASKS)
def test_flwr_run_trains_models_of_ones_own(task: str, tmp_path: Path, repository: Path) -> None:
    """A SuperLink and two SuperNodes, each a process; CI has one of the tasks."""
    if task == "text":
        pytest.importorskip("peft")
    app = shutil.copytree(repository / "examples" / "flower_models", tmp_path / "app")
    config = {"task": task, "epsilon": 100.0, "num-server-rounds": 3, "out": str(tmp_path / "out")}
    env = {
        "OMP_NUM_THREADS": "1",
        "DPFED_STATE": str(tmp_path / "state"),
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
    }
    with Net(tmp_path, ["north", "south"], env=env) as net:
        run = net.run(app, config, timeout=300)
        assert run.completed, (run, net.tail("superlink"))
    report = json.loads((tmp_path / "out" / "result.json").read_text())
    assert report["loss"] < report["before"]
    assert report["guarantee"].startswith("(100, 1e-05)-DP for each record")
    assert (tmp_path / "out" / "adapter").exists() == (task == "text")


def test_the_recipes_are_read_and_name_themselves(repository: Path) -> None:
    recipes = sorted((repository / "examples" / "recipes").glob("*.toml"))
    assert {path.stem: load_recipe(path).name for path in recipes} == {
        each: each for each in ("dp-fedsofim", "own-network", "quickstart", "secure")
    }
    sofim = load_recipe(repository / "examples/recipes/dp-fedsofim.toml")
    assert sofim.server == load_recipe({"method": "dp-fedsofim"}).server  # nothing is set in it
    assert 0.5 * sofim.data.radius < sofim.privacy.clip <= sofim.data.radius


@pytest.mark.long
@pytest.mark.slow
def test_the_recipe_of_an_own_network_runs_by_the_default(repository: Path) -> None:
    path = repository / "examples/recipes/own-network.toml"
    shorter = ("rounds=2", "data.options.records=300", "evaluation.every=2")
    result = run(path, overrides=shorter)
    assert "(zero-out)" in result.guarantee.sentence
    assert "drawn for a release with probability 0.1" in result.guarantee.sentence
    assert len(result.history) == 2


NOTEBOOKS = {
    "first": "runs/notebook/guarantee.json",
    "dp-fedsofim": "runs/dp-fedsofim/guarantee.json",
}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", ["first", pytest.param("dp-fedsofim", marks=pytest.mark.long)])
def test_the_notebook_runs_and_shows_its_picture(
    name: str, repository: Path, tmp_path: Path
) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(repository / f"examples/notebook/{name}.ipynb", as_version=4)
    kept = [shown(cell) for cell in notebook.cells]
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=120, resources=where).execute()
    again = [shown(cell) for cell in notebook.cells]
    assert again == kept  # what is stored in it is what it gives, figures aside
    assert sum("image/png" in kinds for kinds in again) == 1
    assert (tmp_path / NOTEBOOKS[name]).exists()


def shown(cell: Any) -> list[str]:
    """The kinds of things that a cell shows."""
    kinds: set[str] = set()
    for output in cell.get("outputs", []):
        kinds |= set(output["data"]) if "data" in output else {output["output_type"]}
    return sorted(kinds)
