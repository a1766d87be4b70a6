# SPDX-License-Identifier: Apache-2.0
"""A recipe as a Flower app: in this process over a LocalGrid, and for real through ``flwr run``."""

from __future__ import annotations

import csv
import math
import os
import subprocess
import time
import uuid
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, RecordDict, UserConfig

import dpfed
from dpfed.core.errors import DataError, DpfedError, MissingExtra, RecipeError, RoundAborted
from dpfed.core.processes import started
from dpfed.recipes import flower_app as app
from dpfed.recipes import result as result_files
from dpfed.recipes import simulation
from tests.helpers.simulations import SOFIM, context, untimed, write
from tests.training.flower.local_grid import LocalGrid

SGD = [{"name": "scale", "rate": 1.0}]


# --------------------------------------------------------------------------- the app, over a grid


@pytest.mark.parametrize("kind", ["test", "federated", "off"])
@pytest.mark.parametrize("every", [1, 3])
def test_the_app_leaves_what_the_in_process_engine_gives(
    kind: str, every: int, tmp_path: Path, play: Any
) -> None:
    recipe = write(tmp_path, evaluation={"kind": kind, "every": every})
    left, result = play(recipe), dpfed.run(recipe)
    assert torch.equal(result.model.layout.flatten(left.params), result.params)
    assert untimed(left.history) == untimed(result.history)
    assert list(left.history[0]) == list(result.history[0])
    assert left.guarantee == result.guarantee
    assert left.stopped is None


def test_the_server_sends_its_rows_to_the_sinks_that_it_is_told(tmp_path: Path, play: Any) -> None:
    left = play(write(tmp_path), sinks="csv tensorboard")
    with (tmp_path / "out/metrics.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["accuracy"]) for row in rows] == [row["accuracy"] for row in left.history]
    assert list(rows[0]) == list(left.history[0])
    assert list((tmp_path / "out/tensorboard").iterdir())


def test_an_unknown_sink_stops_the_server_before_a_client_is_asked(
    tmp_path: Path, play: Any
) -> None:
    with pytest.raises(RecipeError, match="sinks has no plug-in 'cvs'"):
        play(write(tmp_path), sinks="cvs")


def test_a_run_in_clear_comes_back_with_its_infinities(tmp_path: Path, play: Any) -> None:
    left = play(write(tmp_path, privacy={"mechanism": "clear"}))
    assert left.guarantee.sentence.startswith("No privacy")
    assert math.isinf(left.history[-1]["epsilon"])
    for name in (result_files.METRICS_FILE, result_files.GUARANTEE_FILE):  # valid JSON all the same
        assert "Infinity" not in (tmp_path / "out" / name).read_text()


def test_exact_evaluation_is_refused_before_anything_starts(tmp_path: Path) -> None:
    recipe = write(tmp_path, evaluation={"kind": "exact"})
    with pytest.raises(RecipeError, match=r"kind must be 'test', .* over Flower, got 'exact'"):
        simulation.run_simulation(recipe, tmp_path / "out", clients=3)
    assert not (tmp_path / "out").exists()


def test_what_stops_the_server_app_is_raised_where_the_run_was_asked_for(tmp_path: Path) -> None:
    recipe = write(tmp_path, data={"source": "nowhere.npz"})
    out = tmp_path / "out"
    with pytest.raises(DataError):
        app.run_server(LocalGrid(app.client_app, {}), context(recipe, out))
    with pytest.raises(DataError, match=r"nowhere.npz"):
        result_files.read_result(out)
    log = tmp_path / "flower.log"
    with pytest.raises(DataError, match=rf"nowhere.npz.*\(log: {log}\)"):
        simulation._collect(out, log)


def test_an_error_that_is_not_ours_is_named(tmp_path: Path) -> None:
    result_files.write_error(tmp_path, ZeroDivisionError("division by zero"))
    with pytest.raises(DpfedError, match="ServerApp failed with ZeroDivisionError: division"):
        result_files.read_result(tmp_path)


def test_a_run_config_without_a_recipe_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"\(or terms\) and out"):
        app.session_for(Context(1, 1, {}, RecordDict(), {}))
    missing: UserConfig = {"terms": "/nowhere/terms.toml", "out": "x"}
    with pytest.raises(RecipeError, match=r"got '/nowhere/terms.toml' \(No such"):
        app.session_for(Context(1, 1, {}, RecordDict(), missing))


def test_half_a_result_is_none(tmp_path: Path, play: Any) -> None:
    play(write(tmp_path))
    out = tmp_path / "out"
    with (out / result_files.METRICS_FILE).open("a") as file:
        file.write('{"round": 5, "acc')  # a row that is being written
    assert [row["round"] for row in result_files.read_history(out)] == [1, 2, 3, 4]
    (out / result_files.GUARANTEE_FILE).unlink()
    assert result_files.read_result(out) is None
    with pytest.raises(DpfedError, match="ended without a result"):
        simulation._collect(out, Path("here"))


def test_what_an_earlier_run_left_is_not_taken_for_this_ones(tmp_path: Path, play: Any) -> None:
    play(write(tmp_path))
    out = tmp_path / "out"
    result_files.write_error(out, ValueError("old"))
    left = play(write(tmp_path, "other.toml", rounds=2))
    assert [row["round"] for row in left.history] == [1, 2]
    assert (tmp_path / "out-2" / "guarantee.json").is_file()
    assert "old" in (out / "error.json").read_text()
    assert not list(tmp_path.glob("out*/*.draft"))


def test_a_recipe_that_was_changed_is_read_again(tmp_path: Path) -> None:
    one = app.plan_for_context(context(write(tmp_path), tmp_path))
    assert app.plan_for_context(context(write(tmp_path), tmp_path)) is one
    assert app.plan_for_context(context(write(tmp_path, rounds=2), tmp_path)).rounds == 2


def test_a_run_without_a_round_is_no_result(
    tmp_path: Path, play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "ENROL_TIMEOUT_S", 0.1)
    grid, asked = LocalGrid(app.client_app, {}), context(write(tmp_path), tmp_path / "out")
    with pytest.raises(RoundAborted, match="no round was completed"):
        app.run_server(grid, asked)
    with pytest.raises(RoundAborted, match=r"client.*\(log: here\)"):
        simulation._collect(tmp_path / "out", Path("here"))


# ------------------------------------------------------------------------------------- processes

MARK = "DPFED_TEST_SIMULATION"


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Whatever a test starts inherits this from it, and must be gone afterwards."""
    value = uuid.uuid4().hex
    monkeypatch.setenv(MARK, value)
    return f"{MARK}={value}".encode()


def gone(mark: bytes) -> bool:
    """A process that was killed takes a moment to go."""
    deadline = time.monotonic() + 5
    while marked(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not marked(mark)


def marked(mark: bytes) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if mark in environment and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


def follow(tmp_path: Path, timeout: float = 30) -> simulation._Follow:
    return simulation._Follow(tmp_path, tmp_path / "log", None, time.monotonic() + timeout, timeout)


def test_a_run_whose_superlink_is_gone_is_not_waited_for(tmp_path: Path) -> None:
    superlink = subprocess.Popen(["true"])
    superlink.wait()
    with (
        started(["sleep", "60"], os.environ, tmp_path / "log") as flwr,
        pytest.raises(DpfedError, match=r"Flower process.*run;.*/log"),
    ):
        follow(tmp_path)(flwr, [superlink])


def test_a_result_is_not_lost_to_a_slow_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulation, "_SHUTDOWN_TIMEOUT_S", 0.1)
    (tmp_path / result_files.GUARANTEE_FILE).touch()
    with started(["sleep", "60"], os.environ, tmp_path / "log") as flwr:
        follow(tmp_path)(flwr)


def test_a_superlink_that_does_not_start_is_said_so(tmp_path: Path) -> None:
    ports = []

    def launch(name: str, *arguments: str) -> Any:
        ports.append(arguments[-1])
        process = subprocess.Popen(["false"])
        process.wait()
        return process

    with pytest.raises(DpfedError, match="SuperLink started in 3 tries"):
        simulation._superlink(launch, Path("here"))
    assert len(ports) == 3


def test_nothing_is_shared_with_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    one, other = (simulation._environment(tmp_path / name) for name in ("one", "other"))
    assert "RAY_ADDRESS" not in one
    for name in ("FLWR_HOME", "RAY_TMPDIR", "RAY_AUTH_TOKEN", "DPFED_STATE"):
        assert one[name] != other[name]


@pytest.mark.long
@pytest.mark.xdist_group("simulation")
def test_a_simulation_that_takes_too_long_is_ended(tmp_path: Path, mark: bytes) -> None:
    with pytest.raises(DpfedError, match=r"timeout = 6 s.*: /.*log"):
        simulation.run_simulation(write(tmp_path), tmp_path / "out", clients=3, timeout=6)
    assert gone(mark)


# ------------------------------------------------------------------------------------- for real


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.xdist_group("simulation")
@pytest.mark.parametrize(
    "server",
    [
        pytest.param(SGD, marks=pytest.mark.long, id="DP-FedGD"),
        pytest.param(SOFIM, id="DP-FedSOFIM"),
    ],
)
def test_flwr_run_gives_the_same_bits_as_the_in_process_engine(
    server: list[dict[str, Any]], tmp_path: Path, mark: bytes
) -> None:
    data = {
        "source": "synthetic",
        "options": {"records": 800, "features": 20, "classes": 5},
        "partition": {"name": "dirichlet", "clients": 6},
    }
    recipe = write(tmp_path, rounds=4, data=data, server=server)
    seen: list[dict[str, Any]] = []
    out = simulation.run_simulation(
        recipe, tmp_path / "out", clients=6, timeout=300, watch=seen.append, root=tmp_path
    )
    result = dpfed.run(recipe)
    assert torch.equal(result.model.layout.flatten(out.params), result.params)
    assert untimed(out.history) == untimed(result.history) == untimed(seen)
    assert out.guarantee == result.guarantee
    assert out.stopped is None
    assert "epsilon spent" in out.log.read_text()
    assert gone(mark)


def test_without_the_flwr_command_nothing_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulation, "find_command", lambda command: None)
    said = r"the command 'flwr' is not installed\); pip install 'dpfed\[simulation\]'"
    with pytest.raises(MissingExtra, match=said):
        simulation.run_simulation(write(tmp_path), tmp_path / "out", clients=3)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("left", [True, False])
def test_apps_of_ones_own_must_leave_a_result(
    left: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Any] = []
    monkeypatch.setattr(simulation, "_with_flwr", lambda job, follow: ran.append((job, follow)))
    with nullcontext() if left else pytest.raises(DpfedError, match="without a result"):
        simulation.run_apps(
            "mine:server", "mine:nodes", tmp_path, clients=2, finished=lambda out: left
        )
    ((job, follow),) = ran
    assert job.parts == {"serverapp": "mine:server", "clientapp": "mine:nodes"}
    assert (job.config, job.clients) == ({"out": str(tmp_path)}, 2)
    assert follow.finished(tmp_path) is left
