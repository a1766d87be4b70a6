# SPDX-License-Identifier: Apache-2.0
"""Where rows go while a run goes on, and that nothing else goes there."""

from __future__ import annotations

import csv
import json
import logging
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpfed
from dpfed.audit.client_laws import MODEL
from dpfed.core.errors import MissingExtra, RecipeError
from dpfed.flower import DPResult
from dpfed.recipes.sinks import _open as watching
from dpfed.recipes.sinks._open import About, Add
from dpfed.training.history import COLUMNS, Row, make_row, numbers, only_columns, to_frame
from dpfed.training.round import RoundResult, start
from tests.helpers.rounds import make_plan

TINY: dict[str, Any] = {
    "name": "tiny",
    "rounds": 4,
    "data": {
        "source": "synthetic",
        "options": {"records": 300, "features": 4, "classes": 3},
        "partition": {"clients": 3},
    },
    "privacy": {"epsilon": 5.0, "noise": "keyed"},
    "server": [{"name": "sofim"}, {"name": "scale", "rate": 0.5}],
}
CLEAR = {"mechanism": "clear"}


@pytest.fixture(autouse=True)
def _own_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)


def read_csv(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def read_tensorboard(folder: Path) -> dict[str, dict[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    tags = events.Tags()["scalars"]
    return {tag: {each.step: each.value for each in events.Scalars(tag)} for tag in tags}


def mlflow_client(folder: Path) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")


def mlflow_run(folder: Path) -> Any:
    client = mlflow_client(folder)
    (found,) = client.search_runs([client.get_experiment_by_name("dpfed").experiment_id])
    return found


# ------------------------------------------------------------------------------------- the sinks


def test_a_line_of_csv_is_there_after_each_round(tmp_path: Path) -> None:
    lines: list[int] = []
    result = dpfed.run(
        TINY, out=tmp_path, sinks=["csv"], watch=lambda *_: lines.append(len(read_csv(tmp_path)))
    )
    assert lines == [1, 2, 3, 4]
    assert [float(row["epsilon"]) for row in read_csv(tmp_path)] == [
        row["epsilon"] for row in result.history
    ]


def test_tensorboard_has_every_number_of_every_round(tmp_path: Path) -> None:
    result = dpfed.run(TINY, out=tmp_path, sinks=["tensorboard"])
    seen = read_tensorboard(tmp_path)
    wanted = {name for row in result.history for name in numbers(row)}
    assert set(seen) == wanted
    assert {"accuracy", "loss", "epsilon", "epsilon_others", "snr", "seconds"} <= wanted
    for row in result.history:
        for name, value in numbers(row).items():
            assert seen[name][row["round"]] == pytest.approx(value, rel=1e-6)


@pytest.mark.long
@pytest.mark.slow
def test_mlflow_has_metrics_settings_and_the_guarantee(tmp_path: Path) -> None:
    result = dpfed.run(TINY, out=tmp_path, sinks=["mlflow"])
    found = mlflow_run(tmp_path)
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "tiny"
    assert found.data.tags["guarantee"] == result.guarantee.sentence
    assert found.data.tags["planned_guarantee"].startswith("(5, 1e-05)-DP")
    assert found.data.params["privacy.epsilon"] == "5.0"
    assert found.data.params["server.1.name"] == "scale"
    seen = mlflow_client(tmp_path).get_metric_history(found.info.run_id, "accuracy")
    assert {each.step: each.value for each in seen} == {
        row["round"]: row["accuracy"] for row in result.history
    }


@pytest.mark.long
@pytest.mark.slow
def test_a_run_that_fails_is_a_failed_run_in_mlflow(tmp_path: Path) -> None:
    def stop(row: Row, rounds: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dpfed.run(TINY, out=tmp_path, sinks=["mlflow"], watch=stop)
    assert mlflow_run(tmp_path).info.status == "FAILED"
    assert "guarantee" not in mlflow_run(tmp_path).data.tags


class StandIn:
    """wandb's own names, as far as the sink uses them: it keeps what it is told."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        self.asked: dict[str, Any] = {}
        self.rows: dict[int, dict[str, float]] = {}
        self.summary: dict[str, str] = {}
        self.exit_code = -1

    def Settings(self, **settings: Any) -> str:
        self.settings = settings
        return "settings"

    def init(self, **asked: Any) -> StandIn:
        self.asked = asked
        return self

    def log(self, row: dict[str, float], step: int) -> None:
        self.rows[step] = row

    def finish(self, exit_code: int) -> None:
        self.exit_code = exit_code


def test_wandb_is_told_rows_settings_and_the_guarantee_and_stays_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WANDB_MODE", "WANDB_PROJECT", "WANDB_ERROR_REPORTING"):
        monkeypatch.setenv(name, "")
    client = StandIn()
    monkeypatch.setitem(sys.modules, "wandb", client)  # type: ignore[arg-type]
    result = dpfed.run(TINY, out=tmp_path, sinks=["wandb"])
    assert client.rows == {row["round"]: numbers(row) for row in result.history}
    assert client.asked["mode"] == "offline"
    assert client.asked["config"]["privacy.epsilon"] == 5.0
    assert (client.asked["project"], client.asked["name"]) == ("dpfed", "tiny")
    assert client.summary["guarantee"] == result.guarantee.sentence
    assert client.summary["planned_guarantee"].startswith("(5, 1e-05)-DP")
    assert client.settings["x_disable_machine_info"]
    assert client.settings["host"] == "a server"
    assert client.exit_code == 0

    def stop(row: Row, rounds: int) -> None:
        raise KeyboardInterrupt

    failed = StandIn()
    monkeypatch.setitem(sys.modules, "wandb", failed)  # type: ignore[arg-type]
    monkeypatch.setenv("WANDB_MODE", "online")
    with pytest.raises(KeyboardInterrupt):
        dpfed.run(TINY, out=tmp_path / "two", sinks=["wandb"], watch=stop)
    assert failed.exit_code == 1
    assert failed.asked["mode"] == "online"
    assert "guarantee" not in failed.summary


@pytest.mark.slow
def test_wandb_itself_writes_an_offline_run(tmp_path: Path) -> None:
    """In a process of its own, since wandb starts one and patches what it meets."""
    if find_spec("wandb") is None:
        pytest.skip("wandb is not installed")
    code = (
        "import dpfed, json, platform, socket, sys\n"
        "platform.node = socket.gethostname = lambda: 'this-machine'\n"
        "dpfed.run(json.loads(sys.argv[1]), out=sys.argv[2], sinks=['wandb'])"
    )
    command = [sys.executable, "-c", code, json.dumps(TINY), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "sink" not in done.stderr
    (written,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    content = written.read_bytes()
    for word in (
        b"privacy.epsilon",
        b"epsilon_others",
        b"planned_guarantee",
        b"-DP for each record",
    ):
        assert word in content, word
    assert b"this-machine" not in content
    assert not [path.name for path in tmp_path.rglob("requirements.txt")]


@pytest.mark.long
@pytest.mark.slow
def test_a_run_in_clear_has_an_infinite_epsilon_and_no_curve_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = dpfed.run(TINY, privacy=CLEAR, out=tmp_path, sinks=["csv", "mlflow", "tensorboard"])
    assert math.isinf(result.history[-1]["epsilon"])
    assert "epsilon" not in read_tensorboard(tmp_path)
    assert "accuracy" in read_tensorboard(tmp_path)
    assert "sink" not in caplog.text


def test_a_resumed_run_has_all_of_its_rounds_in_each_sink(tmp_path: Path) -> None:
    def die(row: Row, rounds: int) -> None:
        if row["round"] == 2:
            raise KeyboardInterrupt

    kept, sinks = tmp_path / "kept", ["csv", "tensorboard"]
    with pytest.raises(KeyboardInterrupt):
        dpfed.run(TINY, out=tmp_path, sinks=sinks, resume=kept, watch=die)
    rounds: list[int] = []
    seen = lambda row, _: rounds.append(row["round"])  # noqa: E731
    dpfed.run(TINY, out=tmp_path, sinks=sinks, resume=kept, watch=seen)
    assert rounds == [1, 2, 3, 4]  # the round that it died at the sight of is not lost
    assert [int(row["round"]) for row in read_csv(tmp_path)] == rounds
    assert sorted(read_tensorboard(tmp_path)["accuracy"]) == rounds


# ------------------------------------------------------------------------------------ what is wrong


def test_an_unknown_sink_is_refused_before_the_first_round(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"plug-in 'tensorbord'; did.*mean 'tens"):
        dpfed.run(TINY, out=tmp_path / "out", sinks=["tensorbord"])
    assert not (tmp_path / "out").exists()


def test_sinks_without_a_folder_are_refused() -> None:
    with pytest.raises(RecipeError, match="give out='runs/NAME', too"):
        dpfed.run(TINY, sinks=["csv"])


@pytest.mark.parametrize(
    ("sink", "module"),
    [("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow.tracking"), ("wandb", "wandb")],
)
def test_a_missing_package_is_named_with_the_way_out(
    sink: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with suppress(ImportError):  # whole, first: what fails halfway leaves parts that break the next
        import_module(module)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"sink '{sink}' needs .*pip install 'dpfed\[{sink}\]'"):
        dpfed.run(TINY, out=tmp_path, sinks=[sink])


def test_a_sink_that_cannot_be_opened_refuses_the_run(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").mkdir()
    with pytest.raises(RecipeError, match=r"sink 'csv' cannot be opened.*without --sink"):
        dpfed.run(TINY, out=tmp_path, sinks=["csv"])


@pytest.mark.long
@pytest.mark.slow
def test_a_server_of_mlflow_that_is_not_there_refuses_the_run_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")  # the discard port: nobody
    began = time.monotonic()
    with pytest.raises(RecipeError, match=r"sink 'mlflow' cannot be opened \(.*127\.0\.0\.1"):
        dpfed.run(TINY, out=tmp_path, sinks=["mlflow"])
    assert time.monotonic() - began < 60


@contextmanager
def frail(about: About) -> Iterator[Add]:
    """Takes one round, and fails at the next and at its close."""
    rows: list[Row] = []

    def add(row: Row) -> None:
        rows.append(row)
        if len(rows) > 1:
            raise OSError("the dashboard is down")

    yield add
    raise OSError("still down")


def test_a_sink_that_fails_does_not_stop_a_run_that_spends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watching, "find", lambda kind, name: frail)
    with caplog.at_level(logging.WARNING, "dpfed"):
        result = dpfed.run(TINY, out=tmp_path, sinks=["frail"])
    assert len(result.history) == 4
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "sink 'frail' gets no more rounds, since it failed: the dashboard is down",
        "sink 'frail' did not close: still down",
    ]


# --------------------------------------------------------------------------------------- as a table


def test_a_history_as_a_data_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    pandas = pytest.importorskip("pandas")
    result = dpfed.run(TINY)
    frame = result.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert tuple(frame.columns) == COLUMNS
    assert frame["epsilon"].tolist() == [row["epsilon"] for row in result.history]
    ragged = to_frame([{"round": 1}, {"round": 2, "f1": 0.5}])
    assert tuple(ragged.columns) == (*COLUMNS, "f1")
    assert ragged["f1"].isna().tolist() == [True, False]
    assert tuple(to_frame([]).columns) == COLUMNS


def test_a_data_frame_without_pandas_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"to_frame needs pandas.*pip install 'dpfed\[pandas\]'"):
        DPResult().to_frame()


# ------------------------------------------------------------------------------- what gets through


def test_only_the_columns_and_numbers_get_through(tmp_path: Path) -> None:
    """Numbers under other names are those of a server's own evaluate_fn; texts are nobody's."""
    seen: list[Row] = []

    @contextmanager
    def spy(about: About) -> Iterator[Add]:
        yield seen.append

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watching, "find", lambda kind, name: spy)
        with watching.open_sinks(["spy"], About("x", tmp_path)) as add:
            own = {"f1": 0.3, "nodes": "7 9", "each": [0.1], "tensor": np.zeros(2), "flag": True}
            add({"round": 1, "missing": 2, "absent": "2 5", "accuracy": 0.5, **own})
    (row,) = seen
    assert tuple(row) == (*COLUMNS, "f1")
    assert row["f1"] == 0.3
    assert (row["missing"], row["absent"], row["aborted"]) == (2, "2 5", None)
    assert row["accuracy"] == 0.5


def test_plain_twice_is_plain_once() -> None:
    row = only_columns({"round": 1, "missing": 1, "accuracy": 0.5, "loss": math.nan})
    assert only_columns(row) == row
    assert row["loss"] is None


def test_an_aborted_round_has_no_accuracy() -> None:
    aborted = RoundResult(round=0, clients=(), missing=(0, 2), refused={2: "why"}, aborted="few")
    plan = make_plan()
    row = make_row(plan, start(plan, MODEL.initial(0)), aborted, {}, 1.5)
    assert tuple(row) == COLUMNS
    assert (row["accuracy"], row["loss"], row["snr"]) == (None, None, None)
    assert (row["missing"], row["absent"], row["refused"]) == (2, "0 2", "2: why")
    assert (row["aborted"], row["seconds"]) == ("few", 1.5)


def test_numbers_leave_out_texts_and_what_is_not_finite() -> None:
    row = {
        "round": 3,
        "accuracy": 0.5,
        "loss": None,
        "snr": math.nan,
        "epsilon": math.inf,
        "absent": "",
        "clients": 4,
    }
    assert numbers(row) == {"accuracy": 0.5, "clients": 4.0}
