# SPDX-License-Identifier: Apache-2.0
"""The first hour: demo, new, doctor, explain, completion, and how fast the command answers."""

from __future__ import annotations

import importlib
import json
import logging
import math
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import mpmath
import msgspec
import numpy as np
import pytest
import tomli_w
import torch
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from typer.testing import CliRunner

import dpfed
from dpfed.accounting import attack_odds as reading
from dpfed.accounting import gdp
from dpfed.accounting.guarantee import EXACT, GATED, PLD, UNDISTURBED, Claim, Guarantee
from dpfed.cli import doctor
from dpfed.cli import explain as page
from dpfed.cli import explain as statement
from dpfed.cli.explain import run_figures
from dpfed.cli.main import app
from dpfed.cli.new import PARTS, package_name, write_app
from dpfed.core.errors import DataError, RecipeError, UnsoundPlan
from dpfed.core.processes import find_command, started
from dpfed.core.types import Trust
from dpfed.recipes.terms import read_terms, write_terms
from dpfed.training.history import wasted_attempts
from tests.helpers.hub import build
from tests.training.flower.local_grid import LocalGrid, become_a_server

DATA = {
    "source": "synthetic",
    "options": {"records": 300, "features": 4, "classes": 3},
    "partition": {"clients": 5},
}


def call(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(arguments), prog_name="dpfed", catch_exceptions=False)
    assert done.exit_code == code, done.output
    return str(done.output)


# ------------------------------------------------------------------------------------- the reading

NO_OP = {"kind": "NoOp"}
"""What a reading does not look at."""


@given(st.floats(0.01, 20.0), st.floats(1e-9, 0.1))
def test_the_bound_of_epsilon_and_delta_is_the_best_test_there_is(
    epsilon: float, delta: float
) -> None:
    """Against the mechanism that has all of (epsilon, delta): four outcomes, best guess of each."""
    high = (1 - delta) / (1 + math.exp(-epsilon))
    here = (delta, high, 1 - delta - high, 0.0)
    there = tuple(reversed(here))
    best = sum(max(pair) for pair in zip(here, there, strict=True)) / 2
    assert reading.any_right(epsilon, delta) == pytest.approx(best, rel=1e-9)
    assert reading.read_odds(Claim("x", epsilon, delta, PLD, NO_OP)).right >= best * (1 - 1e-12)


@given(st.floats(0.01, 6.0), st.sampled_from([1e-9, 1e-5, 1e-3]), st.sampled_from(list(Trust)))
def test_a_gaussian_reading_is_never_below_phi_of_half_mu(
    mu: float, delta: float, trust: Trust
) -> None:
    claim = Claim("x", gdp.epsilon_for(delta, mu), delta, EXACT, NO_OP)
    found = reading.read_odds(claim, trust)
    with mpmath.workdps(40):
        right = mpmath.ncdf(mpmath.mpf(mu) / 2)
        threshold = -mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * mpmath.mpf(reading.FALSE_ALARM_RATE))
        power = mpmath.ncdf(threshold + mu)
    slack = 1e-2 * delta + 1e-6 if claim.epsilon else 1.0
    assert right <= found.right <= right + slack
    assert power <= found.found <= power + slack
    assert found.right <= reading.any_right(claim.epsilon, delta) * (1 + 1e-9)
    assert reading.of_100(found.right) >= 100 * right


@pytest.mark.parametrize(
    ("part", "shown"), [(0.5, 51), (0.611, 62), (0.62000001, 63), (1.0, 100), (0.9999, 100)]
)
def test_whole_guesses_are_rounded_up(part: float, shown: int) -> None:
    assert reading.of_100(part) == shown


def test_without_a_guarantee_every_guess_may_be_right() -> None:
    assert reading.read_odds(Claim("x", math.inf, 1e-5, EXACT, NO_OP)) == (1.0, 1.0)
    assert reading.read_odds(Claim("x", 0.0, 1e-5, EXACT, NO_OP)).right == pytest.approx(0.500005)
    assert reading.read_odds(Claim("x", 900.0, 1e-5, PLD, NO_OP)).right == 1.0


# ----------------------------------------------------------------------------------------- explain


def trained(out: Path, privacy: dict[str, Any], **sections: Any) -> Path:
    sections = {"method": "dp-fedgd", **sections}
    dpfed.run(out=out, name="trial", rounds=3, data=DATA, privacy=privacy, **sections)
    return out


def explained(out: Path, *more: str) -> tuple[str, str]:
    assert "statement.html" in call("explain", str(out), *more)
    return tuple((out / f"statement.{end}").read_text(encoding="utf-8") for end in ("md", "html"))  # type: ignore[return-value]


def test_a_local_run_is_explained_against_both_adversaries(tmp_path: Path) -> None:
    text, page = explained(trained(tmp_path, {"epsilon": 2.0}))
    for each in (text, page):
        for words in (
            "The presence and content of one record",
            "replace-one",
            "The server",
            "1 other client (the rest add their noise) and whoever gets the model",
            "where 50 is chance",
            "noise from the operating system",
            "Tuning: trying several settings",
            "must be public or the server",
            "the lowest bits of floating-point noise are not covered",
            "This run kept no ledger",
            "synthetic Gaussian clusters",
        ):
            assert words in each, words
    mu = gdp.mu_for(2.0, 1e-5)
    least = 100 * float(mpmath.ncdf(mu / 2))
    said = int(text.partition("On average at most ")[2].partition(" of 100")[0])
    assert least <= said < least + 2
    assert "<script" not in page
    assert "http" not in page


def test_a_secure_sum_is_explained_with_its_assumptions(tmp_path: Path) -> None:
    privacy = {"epsilon": 1.0, "trust": "distributed", "mechanism": "discrete_gaussian"}
    text, _ = explained(trained(tmp_path, privacy, sum={"name": "secure"}))
    assert "which keeps to the protocol and has up to 1 client on its side" in text
    assert "At most 1 participant may side with the server" in text
    assert "noise is made with, or the secure sum's cryptography" in text
    assert "sums and noise are exact integers" in text
    assert "lowest bits" not in text


@pytest.mark.long
@pytest.mark.slow
def test_central_keyed_and_drawn_runs_say_what_they_rest_on(tmp_path: Path) -> None:
    privacy = {
        "epsilon": 1.0,
        "trust": "central",
        "noise": "keyed",
        "record_rate": 0.5,
        "adjacency": "zero-out",
    }
    text, _ = explained(trained(tmp_path, privacy))
    for words in (
        "it must be honest",
        "for research only",
        "drawn for a release with probability",
        "PLD accounting",
        "or blanked out",
    ):
        assert words in text, words
    said = int(text.partition("On average at most ")[2].partition(" of 100")[0])
    assert said == 74  # e / (1 + e) is 0.7311


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("federated", "metrics channel, which has noise: it is inside the budget"),
        ("exact", "Evaluation, on records held out at the clients, in clear: not covered"),
        ("off", "Accuracy was not measured."),
    ],
)
def test_how_accuracy_is_known_is_said(kind: str, words: str, tmp_path: Path) -> None:
    text, _ = explained(trained(tmp_path, {"epsilon": 1.0}, evaluation={"kind": kind}))
    assert words in text


def test_a_run_in_clear_guarantees_nothing_and_says_so(tmp_path: Path) -> None:
    text, page = explained(trained(tmp_path, {"mechanism": "clear"}))
    assert "No privacy is guaranteed" in text
    assert "Nothing bounds what can be learned" in page
    assert "right guesses" not in text


@pytest.mark.long
def test_the_ledgers_total_of_all_runs_is_stated_and_rounded_up(tmp_path: Path) -> None:
    ledger = {"dataset": "adult", "epsilon": 8.0, "path": str(tmp_path / "ledger.sqlite")}
    for name in ("one", "two"):
        out = trained(tmp_path / name, {"epsilon": 2.0}, ledger=ledger)
    assert "Its recipe names a ledger, which is opened only if you name" in explained(out)[0]
    text, _ = explained(out, "--ledger", ledger["path"])
    both = gdp.epsilon_for(1e-5, math.sqrt(2) * gdp.mu_for(2.0, 1e-5))
    (line,) = [line for line in text.splitlines() if line.startswith("| adult |")]
    *_, runs, epsilon, delta, budget = line.strip("| ").split(" | ")
    assert (runs, delta, budget) == ("2", "1e-05", "8")
    assert both * (1 - 1e-8) <= float(epsilon) < both * 1.001


def test_a_ledger_that_is_elsewhere_or_tampered_with_gives_no_total(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    out = trained(
        tmp_path / "out", {"epsilon": 2.0}, ledger={"dataset": "adult", "path": str(path)}
    )
    with sqlite3.connect(path) as db:
        found = db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for (name,) in found:
            db.execute(f"DROP TRIGGER {name}")
        db.execute("DELETE FROM rows WHERE number = 2")
    db.close()
    with pytest.raises(DataError):
        page.write_statement(out, out, path)
    for file in tmp_path.glob("ledger.sqlite*"):
        file.unlink()
    with pytest.raises(DataError, match="there is no ledger at"):
        page.write_statement(out, out, path)


def test_a_ledger_that_does_not_have_the_run_gives_no_total(tmp_path: Path) -> None:
    small = {"dataset": "adult", "path": str(tmp_path / "small.sqlite")}
    trained(tmp_path / "one", {"epsilon": 0.5}, ledger=small)
    own = {"dataset": "adult", "path": str(tmp_path / "own.sqlite")}
    out = trained(tmp_path / "two", {"epsilon": 2.0}, ledger=own)
    text, _ = explained(out, "--ledger", small["path"])
    assert "small.sqlite does not have this run" in text
    assert "epsilon so far" not in text
    assert "epsilon so far" in explained(out, "--ledger", own["path"])[0]


def test_a_folder_without_a_recipe_does_not_deny_the_participants_ledgers(tmp_path: Path) -> None:
    out = trained(tmp_path / "out", {"epsilon": 1.0})
    assert "This run kept no ledger" in explained(out)[0]
    (out / "recipe.toml").unlink()
    text, _ = explained(out)
    assert "kept no ledger" not in text
    assert "each of them knows its own data's total" in text


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"read.*'dpfed run --out FOLDER' wrote"):
        statement.gather_statement(tmp_path)
    (tmp_path / "guarantee.json").write_text('{"claims": 3}')
    with pytest.raises(RecipeError, match="guarantee that dpfed wrote"):
        statement.gather_statement(tmp_path)


@pytest.mark.slow
def test_the_page_is_sound_in_a_browser(tmp_path: Path, repository: Path) -> None:
    if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        pytest.skip("no Chromium")
    ledger = {"dataset": "adult", "path": str(tmp_path / "ledger.sqlite")}
    out = trained(tmp_path / "out", {"epsilon": 2.0}, ledger=ledger)
    explained(out, "--ledger", ledger["path"])
    command = [
        sys.executable,
        str(repository / "scripts/check_page.py"),
        str(out / "statement.html"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# -------------------------------------------------------------------------------------------- demo


@pytest.mark.slow
def test_the_demo_ends_with_a_table_a_picture_and_what_next(tmp_path: Path) -> None:
    began = time.process_time()
    said = call("demo", "--quiet", "--out", str(tmp_path / "demo"))
    assert time.process_time() - began < 60
    for words in (
        "no privacy",
        "local noise",
        "secure sum",
        "synthetic Gaussian clusters",
        "at most 56 times of 100 (chance: 50)",
        "what next",
        "dpfed new my-app",
        "(1, 1e-05)-DP for each record",
    ):
        assert words in said, words
    picture = (tmp_path / "demo/demo.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    figures = {
        name: json.loads((tmp_path / f"demo/{name}/guarantee.json").read_text())
        for name in ("no-privacy", "local", "secure-sum")
    }
    assert figures["no-privacy"]["epsilon"] == "inf"
    assert figures["local"]["epsilon"] <= 1.0
    assert figures["secure-sum"]["epsilon"] <= 1.0
    assert not figures["secure-sum"]["idealized"]


# --------------------------------------------------------------------------------------------- new


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DPFED_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def config_of(folder: Path) -> dict[str, Any]:
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    return dict(project["tool"]["flwr"]["app"]["config"])


@pytest.mark.slow
def test_a_new_app_trains_over_a_grid(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "next: cd my-first-app" in call("new", "my-first-app")
    play = started_app(home / "my-first-app", monkeypatch, nodes=2)
    folder = home / "my-first-app"
    play(1)
    left = json.loads((folder / "out/guarantee.json").read_text())
    assert left["accuracy"] > 0.7
    text, _ = explained(folder / "out")
    assert "(1, 1e-05)-DP for each record" in text
    assert "recipe.toml" not in text
    assert text.startswith("# Privacy statement: my-first-app-1\n"), "the training's name"
    assert "Participants: 2, with 6,000 records in all (a public number)." in text
    assert "Rounds: 20 played of 20 asked for; none wasted." in text
    predicted(folder, left["accuracy"])
    before = (folder / "out/model.safetensors").read_bytes()
    play(2)
    assert (folder / "out/model.safetensors").read_bytes() == before, "no model is written over"
    assert (folder / "out-2/guarantee.json").exists()
    assert (folder / "out-2/model/model.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "nodes", "shorter", "stated"),
    [
        ("clients", 10, {"clients": 10}, "(8, 0.001)-DP for each client"),
    ],
)
def test_a_train_function_of_one_s_own_trains_and_is_used(
    kind: str,
    nodes: int,
    shorter: dict[str, Any],
    stated: str,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The app as it is written, but for its size: the long suite asks for its accuracy."""
    folder = home / f"own-{kind}"
    call("new", folder.name, f"--{kind}")
    started_app(folder, monkeypatch, nodes, **{**shorter, "num-server-rounds": 2})(1)
    left = json.loads((folder / "out/guarantee.json").read_text())
    assert left["sentence"].startswith(stated)
    predicted(folder, left["accuracy"])
    assert stated in explained(folder / "out")[0]


def started_app(
    folder: Path, monkeypatch: pytest.MonkeyPatch, nodes: int, **shorter: Any
) -> Callable[[int], None]:
    """Both sides of a new app over a Grid in this process; the run's number starts it."""
    monkeypatch.syspath_prepend(str(folder))
    become_a_server(monkeypatch)
    package = folder.name.replace("-", "_")
    server = importlib.import_module(f"{package}.server_app")
    clients = importlib.import_module(f"{package}.client_app")
    config = {**config_of(folder), **shorter}
    grid = LocalGrid(clients.app, {100 + i: i for i in range(nodes)})
    for context in grid.contexts.values():
        context.run_config.update(config)
    return lambda run: server.main(grid, Context(run, 1, {}, RecordDict(), config))


def predicted(folder: Path, accuracy: float) -> None:
    """The app's bundle predicts its test records, in words, as well as the run counted."""
    task = importlib.import_module(f"{folder.name.replace('-', '_')}.task")
    test, model = task.load_test(), dpfed.load(folder / "out/model")
    assert model.classes_.tolist() == ["north", "east", "south", "west"]
    right = model.predict(test.x.numpy()) == model.classes_[test.y.numpy()]
    assert right.mean() == pytest.approx(accuracy)
    assert model.description.metrics[0].records == len(test)
    np.savez(folder / "new.npz", x=test.x.numpy()[:5])
    out = folder / "scored.csv"
    said = call("predict", str(folder / "out/model"), str(folder / "new.npz"), "--out", str(out))
    assert "5 predictions" in said
    assert out.read_text().splitlines()[0].startswith("prediction,p_north,p_east")


@pytest.mark.parametrize(
    ("kind", "unit", "clients"),
    [("rows", "record", 2), ("clients", "client", 100)],
)
def test_each_of_the_two_has_a_plan_that_can_learn(
    kind: str,
    unit: str,
    clients: int,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The files are those of a Flower app, both sides import, and nothing warns of the noise."""
    folder = home / f"three-{kind}"
    written = {path.relative_to(folder).as_posix() for path in write_app(folder, kind)}
    package = f"three_{kind}"
    names = ("__init__", "client_app", "server_app", "task")
    expected = {
        "LICENSE",
        "README.md",
        "pyproject.toml",
        *(f"{package}/{name}.py" for name in names),
    }
    assert written == expected
    monkeypatch.syspath_prepend(str(folder))
    context = Context(1, 1, {"partition-id": 1}, RecordDict(), config_of(folder))
    made = importlib.import_module(f"{package}.task").plan(context)
    assert isinstance(importlib.import_module(f"{package}.client_app").app, ClientApp)
    assert made.guarantee().unit == unit
    assert made.guarantee().epsilon == pytest.approx(context.run_config["epsilon"], rel=1e-3)
    assert len(made.nominal) == clients
    assert "noise" not in caplog.text


def test_new_asks_which_of_the_two_at_a_terminal(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a script it asks nothing: the first kind, as a flag would say."""
    assert "Which app?" not in call("new", "in-a-script")
    monkeypatch.setattr("dpfed.cli.start._at_terminal", lambda: True)
    answers = {"": "Standardised(", "clients": 'config["clients"]'}
    for number, (answer, inside) in enumerate(answers.items()):
        runner = CliRunner().invoke(app, ["new", f"asked-{number}"], input=f"{answer}\n")
        assert runner.exit_code == 0, runner.output
        assert "[rows]" in runner.output
        text = (home / f"asked-{number}/asked_{number}/task.py").read_text()
        text += (home / f"asked-{number}/asked_{number}/client_app.py").read_text()
        assert inside in text
    again = CliRunner().invoke(app, ["new", "asked-9"], input="devices\nclients\n")
    assert again.exit_code == 0, "an answer that is none of them is asked for again"
    assert (home / "asked-9/asked_9/task.py").exists()
    assert "Which app?" not in call("new", "given", "--clients")


def test_what_a_new_app_refuses_is_one_sentence_in_its_log(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also before there is a strategy: most mistakes are in the plan."""
    call("new", "refused-app")
    monkeypatch.syspath_prepend(str(home / "refused-app"))
    flower = logging.getLogger("flwr")
    monkeypatch.setattr(flower, "filters", [])
    server = importlib.import_module("refused_app.server_app")
    config = {**config_of(home / "refused-app"), "num-server-rounds": 1}
    with pytest.raises(UnsoundPlan) as raised:
        server.main(LocalGrid(ClientApp(), {}), Context(1, 1, {}, RecordDict(), config))
    record = logging.LogRecord(
        "flwr",
        logging.ERROR,
        "",
        0,
        "ServerApp raised an exception",
        (),
        (UnsoundPlan, raised.value, raised.tb),
    )
    assert flower.filter(record)
    assert record.exc_info is None
    assert record.getMessage().startswith(
        "ServerApp raised an exception: UnsoundPlan: rounds must be at least 4"
    )


@pytest.mark.slow
def test_a_new_app_that_is_done_leaves_its_model_again(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same run once more, with nothing left to do, after its files were lost."""
    call("new", "done-before")
    folder = home / "done-before"
    monkeypatch.syspath_prepend(str(folder))
    become_a_server(monkeypatch)
    server = importlib.import_module("done_before.server_app")
    clients = importlib.import_module("done_before.client_app")
    config = {**config_of(folder), "num-server-rounds": 4, "checkpoint": str(home / "kept")}
    grid = LocalGrid(clients.app, {100: 0, 101: 1})
    for context in grid.contexts.values():
        context.run_config.update(config)
    server.main(grid, Context(1, 1, {}, RecordDict(), config))
    model, rows = (folder / "out/model.safetensors"), (folder / "out/metrics.csv")
    trained, written = model.read_bytes(), rows.read_text()
    (folder / "out/guarantee.json").unlink()
    model.unlink()
    grid.offline = {100, 101}  # nobody is asked
    server.main(grid, Context(2, 1, {}, RecordDict(), config))
    assert model.read_bytes() == trained
    assert rows.read_text() == written
    assert json.loads((folder / "out/guarantee.json").read_text())["accuracy"] is not None
    assert not (folder / "out-2").exists()
    said = call("checkpoint", "export", str(home / "kept"), "--out", str(home / "m.safetensors"))
    assert "after 4 rounds; epsilon 1 spent" in said
    assert load_file(home / "m.safetensors").keys() == load_file(model).keys()
    assert all(
        torch.equal(each, load_file(model)[name])
        for name, each in load_file(home / "m.safetensors").items()
    )


def test_a_new_app_reads_each_host_s_own_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call("new", "own-file")
    task = home / "own-file/own_file/task.py"
    changed = task.read_text().replace('FILE = ""', 'FILE = "visits.csv"')
    task.write_text(changed.replace("FEATURES, CLASSES = 20, 4", "FEATURES, CLASSES = 3, 2"))
    monkeypatch.syspath_prepend(str(home / "own-file"))
    own = importlib.import_module("own_file.task")
    loaded = own.load_data
    for host, age in (("north", 59), ("south", 18)):
        (home / host).mkdir()
        lines = ["age,sex,patient,ill", f"{age},f,7,no", ",m,8,yes"]
        (home / host / "visits.csv").write_text("\n".join(lines) + "\n")
        monkeypatch.setenv("DPFED_DATA", str(home / host))
        records = loaded(Context(1, 1, {"partition-id": 0}, RecordDict(), {}))
        assert records.x.tolist() == [[(age - 59) / 41, 1, 0], [0, 0, 1]]
        assert records.groups.tolist() == [0, 1], "two patients"
    assert own.ABOUT == {"contract": own.CONTRACT}


def test_a_statement_has_what_a_board_asks_first(tmp_path: Path) -> None:
    trained(tmp_path / "run", {"epsilon": 2.0})
    text, _ = explained(tmp_path / "run")
    assert re.search(r"Accuracy: \d+\.\d % at the end\.", text)
    assert "Participants: 5, with 300 records in all (a public number)." in text
    assert "Rounds: 3 played of 3 asked for; none wasted." in text
    assert re.search(r"Ended: 20\d\d-\d\d-\d\d \d\d:\d\d UTC\.", text)


def test_a_statement_says_that_it_repeats_and_refuses_what_was_edited(tmp_path: Path) -> None:
    path = trained(tmp_path, {"epsilon": 2.0}) / "guarantee.json"
    assert "beside it was computed again. What a participant itself" in explained(tmp_path)[0]
    written = path.read_text()
    path.write_text(written.replace('"(2, 1e-05)-DP', '"(0.2, 1e-05)-DP', 1))
    with pytest.raises(RecipeError, match="sentence must follow from its claims"):
        explained(tmp_path)
    contents = json.loads(written)
    contents["claims"][0]["epsilon"] = 0.5
    contents |= msgspec.convert(contents, Guarantee, strict=False).to_json()  # all of it alike
    path.write_text(json.dumps(contents))
    with pytest.raises(RecipeError, match=r"epsilon 0\.5.*cost 2"):
        explained(tmp_path)
    contents["claims"][0]["event"] = {"kind": "Gaussian", "noise_multiplier": "much"}
    path.write_text(json.dumps(contents))
    with pytest.raises(RecipeError, match="noise_multiplier of an event must be from"):
        explained(tmp_path)


def test_a_statement_says_when_the_training_began_and_ended(tmp_path: Path) -> None:
    guarantee = statement.gather_statement(trained(tmp_path, {"epsilon": 2.0})).guarantee
    dates = {"started": "2026-11-02T08:15:00+00:00", "finished": "2026-11-16T10:40:21+00:00"}
    said = list(run_figures(dates, guarantee))
    assert said == ["Began: 2026-11-02 08:15 UTC.", "Ended: 2026-11-16 10:40 UTC."]


def test_a_statement_has_no_figure_that_was_read_in_clear(tmp_path: Path) -> None:
    private = {"epsilon": 2.0, "adjacency": "add-remove", "nominal": 50}
    trained(tmp_path / "run", private, evaluation={"kind": "exact"})
    text, _ = explained(tmp_path / "run")
    assert "Accuracy:" not in text
    assert "with 250 records in all (a nominal number, since the true one is private)" in text


def test_a_run_of_an_earlier_version_has_no_figures_to_state(tmp_path: Path) -> None:
    guarantee = statement.gather_statement(trained(tmp_path, {"epsilon": 2.0})).guarantee
    assert list(run_figures({}, guarantee)) == []
    facts = {"rounds_asked": 9, "wasted_attempts": 2}
    (said,) = run_figures(facts, guarantee)
    assert said == "Rounds: 3 played of 9 asked for; 2 attempts brought no total and were paid for."


def test_attempts_are_wasted_if_they_were_paid_for() -> None:
    rows = [("", 1.0), ("lost", 1.5), ("lost", 1.5), ("", 1.5), ("too few keys", 1.5), ("", 2.0)]
    history = [{"aborted": why, "epsilon": spent} for why, spent in rows]
    assert wasted_attempts(history) == 1, "not those that were asked for again, or were free"


def test_a_new_recipe_is_an_app_and_a_recipe(home: Path) -> None:
    call("new", "plain-words", "--recipe")
    config = config_of(home / "plain-words")
    assert config["recipe"] == str(home / "plain-words/recipe.toml")
    from dpfed.recipes.flower_app import recipe_for_flower

    assert recipe_for_flower(config["recipe"]).name == "plain-words"
    result = dpfed.run(config["recipe"])
    assert result.accuracy > 0.7


def test_a_gated_training_is_terms_and_a_relay(home: Path) -> None:
    call("new", "consortium", "--gated")
    config = config_of(home / "consortium")
    assert config["terms"] == str(home / "consortium/terms.toml")
    recipe = home / "consortium/recipe.toml"
    text = write_terms(recipe, dataset="sepsis", shape=[24], sizes=[1200, 800], classes=2)
    assert read_terms(text).name == "consortium"
    assert read_terms(text).plan.guarantee().claims[0].epsilon == pytest.approx(1.0)
    asked = (
        "silo",
        "terms",
        str(recipe),
        "--dataset",
        "sepsis",
        "--shape",
        "24",
        "--classes",
        "2",
        "--sizes",
        "1200,800",
    )
    assert f"fingerprint {read_terms(text).fingerprint[:16]}: confirm it" in call(*asked)
    recipe.write_text(recipe.read_text().replace("rounds = 20", "rounds = 2"))
    with pytest.raises(UnsoundPlan, match=r"rounds.*least 4 for this method"):
        call(*asked)


@pytest.mark.long
@pytest.mark.xdist_group("flower")
def test_a_gated_training_is_rehearsed(home: Path) -> None:
    from dpfed.recipes import simulation

    call("new", "consortium", "--gated")
    recipe = home / "consortium/recipe.toml"
    recipe.write_text(recipe.read_text().replace("rounds = 20", "rounds = 4"))
    with simulation._scratch() as scratch, simulation_of(home, Path(scratch)) as env:
        env["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        command = [sys.executable, str(home / "consortium/rehearse.py")]
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=200, check=False
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("consortium: approved until") == 2
    assert done.stdout.count("6 answered, 0 refused") == 2  # enrolment, four rounds, statement
    contents = json.loads((home / "consortium/out/guarantee.json").read_text())
    assert f"{GATED}, {UNDISTURBED}; " in contents["sentence"]


@pytest.mark.long
def test_a_consortium_under_nvflare_is_rehearsed(home: Path) -> None:
    pytest.importorskip("nvflare")
    call("new", "consortium", "--gated", "--engine", "nvflare")
    recipe = home / "consortium/recipe.toml"
    recipe.write_text(recipe.read_text().replace("rounds = 20", "rounds = 4"))
    done = subprocess.run(
        [sys.executable, str(home / "consortium/rehearse.py")],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("6 answered, 0 refused") == 2  # enrolment, four rounds, statement
    contents = json.loads((home / "consortium/out/guarantee.json").read_text())
    assert f"{GATED}, {UNDISTURBED}; " in contents["sentence"]
    assert not (home / "consortium/job/app/config/terms.toml").exists()  # those are for real


def test_a_job_for_nvflare_names_two_classes_and_no_others(home: Path) -> None:
    written = write_app(home / "consortium", "gated", "nvflare")
    assert (home / "consortium/recipe.toml") in written
    assert not (home / "consortium/pyproject.toml").exists()
    configs = [json.loads(path.read_text()) for path in written if path.suffix == ".json"]
    named = {each.partition('"')[0] for each in json.dumps(configs).split('"path": "')[1:]}
    assert named == {
        "dpfed.nvflare.controller.TermsController",
        "dpfed.nvflare.relay.GateRelay",
    }
    page = (home / "consortium/site-admin.md").read_text()
    assert '"dpfed.nvflare.relay.GateRelay"\n' in page
    for word in ("byoc", "allow_log_streaming", "shell_commands", "relay_users"):
        assert f"{word}" in page
    for kind in ("rows", "recipe"):
        with pytest.raises(RecipeError, match="add --gated"):
            write_app(home / "other", kind, "nvflare")


@pytest.mark.parametrize(
    ("kind", "engine"),
    [*((kind, "flower") for kind in PARTS), ("gated", "nvflare")],
)
def test_all_words_of_a_template_are_filled_in(kind: str, engine: str, home: Path) -> None:
    for path in write_app(home / "filled", kind, engine):
        text = path.read_text(encoding="utf-8")
        assert "{{" not in text
        assert "}}" not in text
        if path.suffix == ".py":
            compile(text, str(path), "exec")
            assert max(map(len, text.splitlines())) <= 100
    commands = [
        line
        for line in (home / "filled/README.md").read_text().splitlines()
        if line.startswith("    ")
    ]
    gated = {"flower": 8, "nvflare": 7}[engine]
    assert len(commands) == (3 if kind != "gated" else gated)


@pytest.mark.sample(3)
@pytest.mark.slow
@pytest.mark.parametrize("kind", PARTS)
def test_a_new_app_can_be_published(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower's own build takes it in its hub's format; no path is that of its author's disk."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    write_app(tmp_path / "work" / f"publish-{kind}", kind)
    app = tmp_path / "work" / f"publish-{kind}"
    project = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["flwr"]["app"]["fab-format-version"] == 1
    config = project["tool"]["flwr"]["app"]["config"]
    assert config["out"] == f"~/work/publish-{kind}/out"
    assert str(tmp_path) not in (app / "pyproject.toml").read_text()
    inside = build(app)
    assert {"LICENSE", "README.md", "pyproject.toml"} <= inside


def test_new_refuses_what_exists_or_would_hide_a_module(home: Path) -> None:
    (home / "there").mkdir()
    with pytest.raises(RecipeError, match="'there' already"):
        write_app(Path("there"))
    with pytest.raises(RecipeError, match="'torch' would"):
        package_name("torch")
    for name in ("1st", "class", "...", "_"):
        with pytest.raises(RecipeError, match=f"package, got '{re.escape(name)}'; use a-z"):
            package_name(name)
    with pytest.raises(RecipeError, match="give only one of them"):
        call("new", "both", "--recipe", "--rows")
    with pytest.raises(RecipeError, match=r"kind.*got 'other'"):
        write_app(Path("x"), "other")
    assert list(home.iterdir()) == [home / "there"]


@pytest.mark.slow
def test_the_templates_are_in_the_wheel(tmp_path: Path, repository: Path) -> None:
    from zipfile import ZipFile

    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=repository, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    ours = {
        path.relative_to(repository / "src").as_posix()
        for ending in ("template", "css")
        for path in (repository / "src").rglob(f"*.{ending}")
    }
    assert len(ours) > 30  # apps, jobs, start scripts, silos, styles
    assert ours <= set(ZipFile(wheel).namelist())


@contextmanager
def simulation_of(home: Path, scratch: Path) -> Iterator[dict[str, str]]:
    """A SuperLink of the test's own: the one that Flower starts by itself would stay."""
    from dpfed.recipes import simulation

    log, env = home / "flower.log", simulation._environment(scratch)
    del env["DPFED_IDENTITY"]  # as in a user's own shell
    with ExitStack() as stack:

        def launch(name: str, *arguments: str) -> subprocess.Popen[bytes]:
            command = [find_command(name) or name, *arguments]
            return stack.enter_context(started(command, env, log))

        _, address = simulation._superlink(launch, log)
        connection = {"default": "own", "own": {"address": address, "insecure": True}}
        config = Path(env["FLWR_HOME"]) / "config.toml"
        config.parent.mkdir(exist_ok=True)
        config.write_text(tomli_w.dumps({"superlink": connection}))
        launch(
            "flower-superexec",
            "--insecure",
            "--runtime-api-address",
            address,
            "--parent-pid",
            str(os.getpid()),
        )
        yield env


@pytest.mark.long  # CI does it for the first kind, on the quickstart: tests/test_docs.py
@pytest.mark.xdist_group("flower")
@pytest.mark.parametrize(
    ("kind", "shorter", "nodes", "stated"),
    [
        ("rows", ("rounds = 20", "rounds = 4"), 2, "(1, 1e-05)-DP for each record (replace-one)"),
        ("recipe", ("rounds = 20", "rounds = 4"), 2, "(1, 1e-05)-DP for each record (replace-one)"),
        ("clients", ("", ""), 100, "(8, 0.001)-DP for each client (replace-one)"),
    ],
)
def test_flwr_run_trains_a_new_app(
    kind: str, shorter: tuple[str, str], nodes: int, stated: str, home: Path
) -> None:
    from dpfed.recipes import simulation

    for path in write_app(home / "fresh", kind):
        text = path.read_text(encoding="utf-8").replace(*shorter)
        path.write_text(text, encoding="utf-8")
    with simulation._scratch() as scratch, simulation_of(home, Path(scratch)) as env:
        command = [find_command("flwr") or "flwr", "run", str(home / "fresh"), "--stream"]
        command += ["--federation-config", f"num-supernodes={nodes}"]
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=500, check=False
        )
    assert done.returncode == 0, done.stdout
    contents = json.loads((home / "fresh/out/guarantee.json").read_text())
    assert contents["sentence"].startswith(stated)
    assert "rounds = 4" in shorter or contents["accuracy"] > 0.7
    assert (home / "fresh/out/model.safetensors").exists()
    assert len(dpfed.load(home / "fresh/out/model").classes_) == 4


# ------------------------------------------------------------------------------------------ doctor


@pytest.fixture
def healthy(home: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("DPFED_DATA", "DPFED_IDENTITY", "DPFED_LEDGER", *doctor.PORTS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.setattr(doctor, "is_free", lambda port: True)
    monkeypatch.setattr(doctor, "is_superlink", lambda port: False)
    monkeypatch.setattr("dpfed.cli.silo.DEFAULT", home / "no-silo.toml")
    return monkeypatch


def lines(check: Any) -> list[tuple[str, str]]:
    return [(verdict.value, said) for verdict, _, said in check()]


def test_a_healthy_machine_has_no_problem(healthy: pytest.MonkeyPatch) -> None:
    said = call("doctor")
    assert "problem" not in said
    for what in (
        "torch",
        "flwr",
        "dp-accounting",
        "opacus",
        "ray",
        "ports",
        "state",
        "folder",
        "data",
        "identity",
        "ledger",
        "silo",
        "telemetry",
    ):
        assert any(line.split()[1] == what for line in said.splitlines()), what


def test_a_package_that_is_missing_or_old(healthy: pytest.MonkeyPatch, repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))
    needed = project["project"]["dependencies"]
    healthy.setattr(doctor.metadata, "requires", lambda name: needed)
    assert set(doctor.REQUIRED_PACKAGES) <= set(doctor.requirements())
    versions = {"flwr": "1.20.0", "opacus": None, "torch": None}
    real = doctor._version
    healthy.setattr(doctor, "_version", lambda name: versions.get(name, real(name)))
    found = {what: (verdict.value, said) for verdict, what, said in doctor.packages()}
    assert found["flwr"] == (
        "problem",
        "must be <1.43,>=1.38, got 1.20.0; pip install 'flwr<1.43,>=1.38'",
    )
    assert found["torch"] == ("problem", "missing; pip install 'torch>=2.4'")
    assert found["opacus"][0] == "warning"
    assert "pip install 'dpfed[opacus]'" in found["opacus"][1]


@pytest.mark.parametrize(
    ("version", "verdict"),
    [("1.40.0", "ok"), ("1.42.3", "ok"), ("1.43.0", "problem"), ("2.0.0", "problem")],
)
def test_a_flower_that_was_not_tried_is_a_problem(
    version: str, verdict: str, healthy: pytest.MonkeyPatch
) -> None:
    healthy.setattr(doctor, "_version", lambda name: version)
    line = doctor.package("flwr", ">=1.38,<1.43")
    assert line.verdict == verdict
    if verdict == "problem":
        assert line.said.startswith(f"must be >=1.38,<1.43, got {version};")
        assert line.said.endswith("pip install 'flwr>=1.38,<1.43'")


@pytest.mark.parametrize(("version", "enough"), [("1.38.0", False), ("1.40.0", True)])
def test_a_flower_whose_nodes_speak_no_http_is_for_simulations(
    version: str, enough: bool, healthy: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from dpfed.cli.deploy import deploy
    from dpfed.cli.deploy.rehearsal import rehearse

    healthy.setattr(doctor, "_version", lambda name: version)
    deploy.init(tmp_path / "fed", server_names=["localhost"], nodes=["north"])
    warned = [line for line in deploy.check(tmp_path / "fed") if "simulations" in line]
    line = doctor.package("flwr", ">=1.38")
    assert (line.verdict == "ok", warned == []) == (enough, enough)
    if not enough:
        assert warned == [f"warning: {line.said}"]
        assert line.said.startswith("flwr must be >=1.40 to run across hosts, got 1.38.0")
        with pytest.raises(RecipeError, match="to run across hosts"), rehearse(tmp_path / "fed"):
            pass


def test_the_versions_of_flower_are_said_alike(repository: Path) -> None:
    """What is required, with and without simulations, and what docs/design.md says was tried."""
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (required,) = [each for each in project["dependencies"] if each.startswith("flwr")]
    assert required == "flwr>=1.38,<1.43"
    assert project["optional-dependencies"]["simulation"] == ["flwr[simulation]>=1.38,<1.43"]
    assert "flwr 1.38 to 1.42" in (repository / "docs/design.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("variable", "value", "check", "verdict", "words"),
    [
        ("DPFED_DATA", "/no/such", doctor.data, "problem", "must name folders, got '/no/such'"),
        ("DPFED_IDENTITY", "simulated", doctor.identity_key, "warning", "for one machine only"),
        (
            "DPFED_IDENTITY",
            "/no/such",
            doctor.identity_key,
            "problem",
            "restore this silo's folder",
        ),
        ("DPFED_STATE", "/proc/no/such", doctor.folders, "problem", "export DPFED_STATE=FOLDER"),
        ("FLWR_TELEMETRY_ENABLED", "1", doctor.telemetry, "warning", "FLWR_TELEMETRY_ENABLED=0"),
        ("FLWR_LOCAL_CONTROL_API_PORT", "99999", doctor.ports, "problem", "65535, got '99999'"),
    ],
)
def test_a_setting_is_judged_with_the_way_out(
    variable: str, value: str, check: Any, verdict: str, words: str, healthy: pytest.MonkeyPatch
) -> None:
    healthy.setenv(variable, value)
    assert any(each == verdict and words in said for each, said in lines(check))
    assert (verdict == "problem") == bool(CliRunner().invoke(app, ["doctor"]).exit_code)


def test_a_superlink_of_flowers_own_is_welcome(healthy: pytest.MonkeyPatch) -> None:
    healthy.setattr(doctor, "is_free", lambda port: False)
    assert [each for each, _ in lines(doctor.ports)] == ["problem", "problem"]
    healthy.setattr(doctor, "is_superlink", lambda port: True)
    assert lines(doctor.ports) == [("ok", "a local SuperLink is running: 'flwr run' will use it")]


def test_a_ledger_and_an_open_state_folder(home: Path, healthy: pytest.MonkeyPatch) -> None:
    ledger = {"dataset": "adult", "path": str(home / "state/ledger.sqlite")}
    (home / "state").mkdir(mode=0o755)
    trained(home / "out", {"epsilon": 2.0}, ledger=ledger)
    assert [each for each, _ in lines(doctor.ledger)] == ["ok"]
    assert lines(doctor.folders)[0][0] == "warning"
    (home / "state").chmod(0o700)
    assert lines(doctor.folders)[0][0] == "ok"
    (home / "other").write_bytes(b"no ledger at all")
    healthy.setenv("DPFED_LEDGER", str(home / "other"))
    ((verdict, said),) = lines(doctor.ledger)
    assert verdict == "problem"
    assert "restore it from a backup" in said


def test_a_check_that_breaks_is_a_problem_and_no_traceback(healthy: pytest.MonkeyPatch) -> None:
    def broken() -> Iterator[doctor.Line]:
        raise KeyError("x")
        yield

    healthy.setitem(doctor.CHECKS, "clock", broken)
    said = call("doctor", code=1)
    assert "could not be checked (KeyError: 'x'); please report this" in said
    assert said.splitlines()[-1] == "1 problem: see above for the way out"


# ---------------------------------------------------------------------- completion, and how fast


def test_shells_complete_commands() -> None:
    assert "--install-completion" in call("--help")
    asked = {"_DPFED_COMPLETE": "complete_bash", "COMP_WORDS": "dpfed ex", "COMP_CWORD": "1"}
    done = CliRunner().invoke(app, [], prog_name="dpfed", env=asked)
    assert done.output.split() == ["explain", "export"]


@pytest.mark.slow
def test_help_loads_nothing_heavy() -> None:
    heavy = "{'torch', 'numpy', 'scipy', 'dp_accounting', 'flwr', 'matplotlib', 'packaging'}"
    code = f"import dpfed.cli.main, sys; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
