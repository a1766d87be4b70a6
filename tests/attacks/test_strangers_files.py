# SPDX-License-Identifier: Apache-2.0
"""Verify, explain and predict on a folder from anybody: a verdict or a sentence, never a traceback.

Before: they ran in the user's own process, as long and in as much memory as the folder asked for.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpfed.cli import limits
from dpfed.cli.limits import OverLimits, in_limits
from dpfed.cli.main import app
from dpfed.core.errors import DataError, RecipeError
from dpfed.recipes import verify


def test_work_in_limits_returns_what_it_returns() -> None:
    assert in_limits(lambda: ["a", {"b": 1.5}]) == ["a", {"b": 1.5}]


def test_an_error_of_ours_is_the_same_error_here() -> None:
    def refuse() -> None:
        raise RecipeError("epsilon must be above 0")

    with pytest.raises(RecipeError, match="epsilon must be above 0"):
        in_limits(refuse)


def test_any_other_error_is_one_sentence() -> None:
    with pytest.raises(DataError, match=r"cannot be read .*ZeroDivisionError"):
        in_limits(lambda: 1 // 0)


def test_too_much_memory_or_time_is_one_sentence() -> None:
    with pytest.raises(OverLimits, match="more memory"):
        in_limits(lambda: len(bytes(1 << 30)), memory=100 << 20)
    with pytest.raises(OverLimits, match="more than 0 s"):
        in_limits(lambda: time.sleep(30), seconds=0.2)
    with pytest.raises(OverLimits, match="signal 9"):
        in_limits(lambda: os.kill(os.getpid(), signal.SIGKILL))


def test_a_folder_that_ends_the_process_is_refused_and_so_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(verify, "verify_evidence", die)
    done = CliRunner().invoke(app, ["verify", str(tmp_path)])
    assert done.exit_code == 4
    assert done.output.splitlines()[-1] == "verdict   refused"
    done = CliRunner().invoke(app, ["verify", str(tmp_path), "--json"])
    assert (done.exit_code, json.loads(done.output)["verdict"]) == (4, "refused")


@pytest.mark.parametrize("command", ["explain", "predict"])
def test_explain_and_predict_run_in_limits(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def instead(work: object, *bounds: float) -> list[str]:
        seen.append(bounds)
        return []

    monkeypatch.setattr(limits, "in_limits", instead)
    words = [command, "folder", *(["records.csv"] if command == "predict" else [])]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert len(seen) == 1
