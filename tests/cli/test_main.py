# SPDX-License-Identifier: Apache-2.0
"""The command line as a person meets it; ``calibrate`` has a file of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import click
import pytest
import typer
from typer.testing import CliRunner

from dpfed.cli import main
from dpfed.core.errors import MissingExtra
from tests.training.flower.preloaded import commands

pytestmark = pytest.mark.slow  # each command is a process

RECIPE = """
method = "dp-fedgd"
rounds = 3
[data]
source = "synthetic"
options = { records = 300, features = 4, classes = 3 }
[data.partition]
clients = 3
[privacy]
epsilon = 2.0
"""


def dpfed(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A process of its own, forked from one that has imported what takes seconds."""
    return subprocess.run(
        ["dpfed", *arguments],
        env=os.environ | commands(),
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
    )


def cold(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """As a shell starts it: it imports what it needs."""
    command = [sys.executable, "-m", "dpfed.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(RECIPE)
    return path


def test_run_trains_reports_and_writes(recipe: Path, tmp_path: Path) -> None:
    done = cold("run", str(recipe), "--seed", "4", "--set", "privacy.epsilon=3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "(3, 1e-05)-DP for each record (replace-one)" in done.stdout
    assert "on test records that the server holds" in done.stdout
    assert "epsilon spent" in done.stderr
    folder = tmp_path / "runs" / "small"
    assert sorted(path.name for path in folder.iterdir()) == [
        "convergence.png",
        "guarantee.json",
        "metrics.csv",
        "metrics.jsonl",
        "model",
        "model.safetensors",
        "recipe.toml",
    ]
    assert "seed = 4" in (folder / "recipe.toml").read_text()


@pytest.mark.long
def test_a_delta_that_gives_a_unit_away_is_warned_about(recipe: Path, tmp_path: Path) -> None:
    done = dpfed("run", str(recipe), "--quiet", "--set", "privacy.delta=0.01", cwd=tmp_path)
    assert done.returncode == 0
    assert "warning: delta = 0.01 is at least 1 / 300" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "privacy.epsilonn=1"], "did you mean 'epsilon'"),
        (["--set", "privacy.epsilon=-1"], "epsilon must be a finite number above 0, got -1"),
        (["--set", "privacy.clip=0"], "clip must be a finite number above 0, got 0.0; "),
        (["--set", "data.source=absent.npz"], "absent.npz"),
        (["--set", "server=[{name='adamm'}]"], "no plug-in 'adamm'"),
        (["--set", "privacy.trust=distributed"], "must see only the sum"),
        (["--set", "data.partition.clients=5000"], "5000"),
    ],
)
def test_errors_are_one_sentence_and_exit_two(
    recipe: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = dpfed("run", str(recipe), "--quiet", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_run_takes_a_method_by_name(tmp_path: Path) -> None:
    small = "data.options={records=300,features=4,classes=3}"
    arguments = ["--epsilon", "2", "--clip", "3", "--quiet", "--set", small, "--set", "rounds=3"]
    done = dpfed("run", "--method", "dp-fedsofim", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "(2, 1e-05)-DP for each record" in done.stdout
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("steps: "))
    assert re.fullmatch(r"steps: eta 1\.099, rho [\d.]+, beta 0\.4226, eta / rho [\d.]+", line)
    text = (tmp_path / "runs/dp-fedsofim/recipe.toml").read_text()
    assert text.splitlines()[0] == f"# {line}"
    written = tomllib.loads(text)
    assert (written["method"], written["name"]) == ("dp-fedsofim", "dp-fedsofim")
    assert written["server"][0]["name"] == "sofim"
    assert written["privacy"]["clip"] == 3.0


@pytest.mark.long
def test_a_method_by_name_takes_the_place_of_the_recipes(recipe: Path, tmp_path: Path) -> None:
    arguments = ["--method", "ema-only", "--epsilon", "5", "--quiet"]
    done = dpfed("run", str(recipe), *arguments, cwd=tmp_path)
    assert "(5, 1e-05)-DP for each record" in done.stdout
    written = tomllib.loads((tmp_path / "runs/small/recipe.toml").read_text())
    assert [link["name"] for link in written["server"]] == ["ema", "scale"]
    assert written["rounds"] == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "there is nothing to run; give a recipe, or --method and --epsilon"),
        (["--method", "dp-fedsofin", "--epsilon", "1"], "did you mean 'dp-fedsofim'"),
        (["--method", "dp-fedsofim"], "exactly one of privacy.epsilon and"),
        (["--data", "absent.npz", "--epsilon", "1"], "absent.npz"),
        (["own.toml", "--method", "dp-fedgd"], "'own.toml' has its own server, which --method"),
    ],
)
def test_a_run_that_the_command_line_does_not_describe_is_refused(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "own.toml").write_text(f'server = [{{name = "adam"}}]\n{RECIPE}')
    done = dpfed("run", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_an_error_that_quotes_a_file_cannot_steer_the_screen(tmp_path: Path) -> None:
    """A server writes terms, and an officer's terminal shows what is wrong with them."""
    terms = tmp_path / "terms.toml"
    forged = r"\u001b[2J\nkeeps (0.1, 1e-05)-DP\u202e"
    terms.write_text(f'name = "x"\n[terms]\n"{forged}{"x" * 9000}" = 1\n')
    done = dpfed("silo", "approve", str(terms), cwd=tmp_path)
    assert done.returncode == 2
    assert "the table 'terms' cannot be read" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.strip().isprintable()
    assert len(done.stderr) < 3000


def test_methods_lists_every_plug_in() -> None:
    found = json.loads(dpfed("methods", "--plug-ins", "--json").stdout)
    assert {"sofim", "scale", "schedule", "ema", "gradient", "gaussian", "clear", "plain"} <= {
        each["name"] for each in found
    }
    assert dpfed("methods").stdout.startswith("dp-fedsofim ")  # what the package began with
    assert all(set(each["options"]) == set(each["about"]) for each in found)


def test_methods_tells_what_an_option_means() -> None:
    told = dpfed("methods", "--plug-ins", "sofim").stdout
    assert 'rho = "auto" ' in told
    assert "added to the proxy's diagonal, above 0" in told
    assert "made of               gradient + adam" in dpfed("methods", "dp-fedadam").stdout
    assert "default               untuned: rate, rho" in dpfed("methods", "dp-fedsofim").stdout
    assert "default" not in dpfed("methods", "dp-fedadam").stdout
    assert "did you mean 'dp-fedadam'" in dpfed("methods", "dp-fedadm").stderr
    assert "Only this method" in dpfed("methods", "--help").stdout


def test_help_teaches_by_example_and_version_prints() -> None:
    told = cold("run", "--help").stdout
    assert "dpfed run examples/recipes/quickstart.toml" in told
    assert "dpfed run --method dp-fedsofim --epsilon 1 --clip 5" in told
    assert cold("--version").stdout.strip() == "0.3.0"


# ------------------------------------------------------------------------- without dpfed-lab


LAB = ("sweep", "reproduce", "report", "leaderboard")


@pytest.fixture
def without_the_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes to come find neither the entry points of dpfed-lab nor its package."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.metadata, sys\n"
        "sys.modules['dpfed_lab'] = None\n"
        "found = importlib.metadata.entry_points\n"
        "def entry_points(**asked):\n"
        "    return () if asked.get('group') == 'dpfed.commands' else found(**asked)\n"
        "importlib.metadata.entry_points = entry_points\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path.rstrip(os.pathsep))


@pytest.mark.usefixtures("without_the_lab")
def test_without_the_lab_its_commands_say_how_to_install_it() -> None:
    told = cold("--help").stdout
    for name in LAB:
        assert f" {name} " in told
    for arguments in (("sweep", "x", "--out", "y"), ("reproduce",), ("leaderboard", "--help")):
        done = cold(*arguments)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
        assert "'pip install ./lab' in a clone" in done.stderr
        assert 'pip install "dpfed[lab]"' in done.stderr


def test_no_other_command_loads_a_packages_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    whole = entry_points  # all of them are read once in a process, and kept for later tests
    by_name = lambda **by: asked.append(by["name"]) or () if "name" in by else whole()  # noqa: E731
    monkeypatch.setattr("importlib.metadata.entry_points", by_name)
    runner = CliRunner()
    for arguments in (["--help"], ["methods"], ["silo", "--help"], ["silo", "gate", "--help"]):
        runner.invoke(main.app, arguments)
    assert asked == []
    assert isinstance(runner.invoke(main.app, ["report", "x"]).exception, MissingExtra)
    assert asked == ["report"]


def test_the_help_lists_and_describes_every_command() -> None:
    runner = CliRunner()
    told = " ".join(runner.invoke(main.app, ["--help"], terminal_width=200).stdout.split())
    group = typer.main.get_command(main.app)
    assert isinstance(group, click.Group)
    names = group.list_commands(click.Context(group))
    assert {"run", "silo", "verify", *LAB} <= set(names)
    for name in names:
        command = group.get_command(click.Context(group), name)
        assert command is not None
        assert command.name == name
        assert command.help
        assert f" {name} " in told
        assert command.help.split()[0] in told
    assert group.get_command(click.Context(group), "silp") is None
    wrong = runner.invoke(main.app, ["silp"])
    assert "silo" in wrong.output
