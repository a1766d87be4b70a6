# SPDX-License-Identifier: Apache-2.0
"""Where rows go while a run goes on, and that nothing else goes there."""

from __future__ import annotations

import csv
import logging
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import dpfed
from dpfed.audit.client_laws import MODEL
from dpfed.core.errors import MissingExtra, RecipeError
from dpfed.recipes.sinks import _open as watching
from dpfed.recipes.sinks._open import About, Add
from dpfed.training.history import COLUMNS, Row, make_row, numbers, only_columns
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


@pytest.mark.slow
def test_a_run_that_fails_is_a_failed_run_in_mlflow(tmp_path: Path) -> None:
    def stop(row: Row, rounds: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dpfed.run(TINY, out=tmp_path, sinks=["mlflow"], watch=stop)
    assert mlflow_run(tmp_path).info.status == "FAILED"
    assert "guarantee" not in mlflow_run(tmp_path).data.tags


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
    ("sink", "module"), [("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow.tracking")]
)
def test_a_missing_package_is_named_with_the_way_out(
    sink: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"sink '{sink}' needs .*pip install 'dpfed\[{sink}\]'"):
        dpfed.run(TINY, out=tmp_path, sinks=[sink])


def test_a_sink_that_cannot_be_opened_refuses_the_run(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").mkdir()
    with pytest.raises(RecipeError, match=r"sink 'csv' cannot be opened.*without --sink"):
        dpfed.run(TINY, out=tmp_path, sinks=["csv"])


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


# ------------------------------------------------------------------------------- what gets through


def test_only_the_columns_get_through(tmp_path: Path) -> None:
    seen: list[Row] = []

    @contextmanager
    def spy(about: About) -> Iterator[Add]:
        yield seen.append

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watching, "find", lambda kind, name: spy)
        with watching.open_sinks(["spy"], About("x", tmp_path)) as add:
            add({"round": 1, "missing": 2, "absent": "2 5", "client_loss": 0.3, "accuracy": 0.5})
    (row,) = seen
    assert tuple(row) == COLUMNS
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
