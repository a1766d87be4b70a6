# SPDX-License-Identifier: Apache-2.0
"""The controller: what a job may give it, and where its files are."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare")

from nvflare.apis.signal import Signal

from dpfed.core.errors import RecipeError
from dpfed.nvflare.controller import TermsController
from dpfed.nvflare.grid import JobAborted


def context(root: Path) -> Any:
    workspace = SimpleNamespace(
        get_app_config_dir=lambda job: str(root / job / "app" / "config"),
        get_run_dir=lambda job: str(root / job),
        get_root_dir=lambda: str(root),
    )
    engine = SimpleNamespace(get_workspace=lambda: workspace)
    return SimpleNamespace(get_engine=lambda: engine, get_job_id=lambda: "job")


@pytest.mark.parametrize("wrong", [{"terms": ""}, {"out": ""}, {"terms": 3}, {"checkpoint": None}])
def test_arguments_are_paths(wrong: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=next(iter(wrong))):
        TermsController(**{"terms": "terms.toml", **wrong})


def ran(monkeypatch: pytest.MonkeyPatch, root: Path, controller: TermsController) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    monkeypatch.setattr("dpfed.core.flower_private.become_node", lambda: None)
    monkeypatch.setattr(
        "dpfed.recipes.flower_app.run_server",
        lambda _, context: seen.update(context.run_config),
    )
    controller.control_flow(Signal(), context(root))
    return seen


def test_a_job_carries_its_terms_and_its_checkpoint_outlives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = ran(monkeypatch, tmp_path, TermsController("terms.toml", checkpoint="kept/x"))
    assert seen == {
        "terms": str(tmp_path / "job/app/config/terms.toml"),
        "out": str(tmp_path / "job/result"),
        "checkpoint": str(tmp_path / "dpfed-checkpoints/kept/x"),
        "timeout": 3600.0,
        "sinks": "",
    }


@pytest.mark.parametrize("name", ["terms", "out", "checkpoint"])
@pytest.mark.parametrize(
    "path", ["/srv/other", "../other", "a/../../other", "a/../b", ".", "link/x", "\x00"]
)
def test_no_argument_of_a_job_leads_out_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, path: str
) -> None:
    """The lead of a job is not the server's admin: keys and other jobs' results are there."""
    (tmp_path / "elsewhere").mkdir()
    for home in ("job/app/config", "job", "dpfed-checkpoints"):
        (tmp_path / home).mkdir(parents=True, exist_ok=True)
        (tmp_path / home / "link").symlink_to(tmp_path / "elsewhere")
    controller = TermsController(**{"terms": "terms.toml", name: path})
    with pytest.raises((RecipeError, ValueError)):
        ran(monkeypatch, tmp_path, controller)


def test_no_checkpoint_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ran(monkeypatch, tmp_path, TermsController("terms.toml"))["checkpoint"] == ""


def test_an_abort_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def aborted(*_: object) -> None:
        raise JobAborted("the job was aborted")

    monkeypatch.setattr("dpfed.core.flower_private.become_node", lambda: None)
    monkeypatch.setattr("dpfed.recipes.flower_app.run_server", aborted)
    said: list[str] = []
    controller = TermsController("terms.toml")
    monkeypatch.setattr(controller, "log_info", lambda _, text: said.append(text))
    controller.control_flow(Signal(), context(tmp_path))
    assert said == ["the job was aborted"]
