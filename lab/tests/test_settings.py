# SPDX-License-Identifier: Apache-2.0
"""Settings that were searched before: where they come from, and that none may be missing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from lab.tests.studies import STUDY, write

from dpfed.core.errors import RecipeError
from dpfed_lab import paper_tables as runtime
from dpfed_lab import study as studies
from dpfed_lab.reproduce import reproduce
from dpfed_lab.sweep import check_settings, stored_settings


def test_lent_settings_come_from_the_nearest_cell(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(studies, "STUDIES", tmp_path)
    axis = {
        "label": "epsilon",
        "key": "privacy.epsilon",
        "values": [1.0, 2.0],
        "borrow": {"2": "1"},
    }
    (tmp_path / "lender").mkdir()
    written = write(tmp_path, axes=[{**axis, "borrow": {"2": "1"}}])
    written.rename(tmp_path / "lender" / studies.STUDY)
    label = STUDY["methods"][0]["label"]
    chosen = {f"epsilon 1 | {label}": {"set": {"server.0.rate": 0.5}, "tried": 3}}
    (tmp_path / "lender/settings.json").write_text(json.dumps(chosen))
    (tmp_path / "mine.toml").write_text(
        'like = "lender"\n'
        '[[axes]]\nlabel = "epsilon"\nkey = "privacy.epsilon"\nvalues = [1.0, 2.0]\n'
        '[[axes]]\nlabel = "length"\nkey = "rounds"\nvalues = [2, 3]\n'
    )
    lent = stored_settings("mine", studies.load_study(tmp_path / "mine.toml"))
    assert set(lent) == {f"epsilon {e} | length {r} | {label}" for e in (1, 2) for r in (2, 3)}
    assert all(each == {"set": {"server.0.rate": 0.5}, "lent": "lender"} for each in lent.values())


def test_a_study_is_not_run_at_settings_that_nobody_chose(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"known for 'epsilon 1.*dpfed"):
        reproduce(write(tmp_path), tmp_path / "out", workers=1)


def test_a_folders_own_settings_come_before_those_that_come_along(tmp_path: Path) -> None:
    study = studies.load_study("sofim-cifar10")
    assert stored_settings("sofim-cifar10", study) == stored_settings(
        "sofim-cifar10", study, tmp_path
    )
    (tmp_path / "settings.json").write_text('{"mine": {"set": {}}}')
    assert stored_settings("sofim-cifar10", study, tmp_path) == {"mine": {"set": {}}}


# ------------------------------------------------------------------------------- what a round costs


def test_what_a_round_costs_is_measured_at_settings_that_are_known() -> None:
    study = studies.load_study(runtime.STUDY)
    check_settings(study, stored_settings(runtime.STUDY, study), runtime.STUDY)


def test_what_a_round_costs_is_not_measured_at_settings_that_nobody_chose(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / runtime.STUDY).mkdir()
    shutil.copy(studies.path_of(runtime.STUDY), tmp_path / runtime.STUDY)
    monkeypatch.setattr(studies, "STUDIES", tmp_path)
    with pytest.raises(RecipeError, match=rf"no settings are known for .*sweep {runtime.STUDY}"):
        runtime.runtime_tables(quick=True)


def test_a_study_without_the_usual_baseline_compares_with_its_first_method(tmp_path: Path) -> None:
    one, two = ({**STUDY["methods"][0], "label": label} for label in ("peek", "look"))
    assert studies.load_study(write(tmp_path, methods=[one, two])).baseline == "peek"
    usual = {**one, "label": "DP-FedGD"}
    assert studies.load_study(write(tmp_path, methods=[one, usual])).baseline == "DP-FedGD"
    with pytest.raises(RecipeError, match=r"baseline.*got 'lok'"):
        studies.load_study(write(tmp_path, methods=[one, two], baseline="lok"))
