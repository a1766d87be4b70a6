# SPDX-License-Identifier: Apache-2.0
"""``dpfed checkpoint export``: the model of a run that died, of one that is done, of none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from typer.testing import CliRunner

import dpfed
from dpfed.cli.main import app
from dpfed.core.errors import DataError, RecipeError
from dpfed.training.history import Row
from tests.helpers.recipe_runs import TINY


def export(folder: Path, out: Path) -> str:
    words = ["checkpoint", "export", str(folder), "--out", str(out)]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_the_model_of_a_run_that_died(tmp_path: Path) -> None:
    def die(row: Row, rounds: int) -> None:
        if row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dpfed.run(TINY, resume=tmp_path / "kept", watch=die)
    said = export(tmp_path / "kept", tmp_path / "m.safetensors")
    assert "after 2 rounds; epsilon " in said
    whole = dpfed.run({**TINY, "rounds": 6})
    named = load_file(tmp_path / "m.safetensors")
    assert {n: tuple(t.shape) for n, t in named.items()} == dict(whole.model.layout.shapes)
    with safe_open(tmp_path / "m.safetensors", "pt") as file:
        assert file.metadata()["rounds"] == "2"
        assert 0 < float(file.metadata()["epsilon"]) < 5


def test_the_model_of_a_run_that_is_done_and_its_names_where_nobody_kept_them(
    tmp_path: Path,
) -> None:
    result = dpfed.run(TINY, resume=tmp_path / "kept")
    export(tmp_path / "kept", tmp_path / "m.safetensors")
    named = load_file(tmp_path / "m.safetensors")
    assert torch.equal(result.model.layout.flatten(named), result.params)
    (tmp_path / "kept/layout.json").unlink()  # as earlier versions left it
    export(tmp_path / "kept", tmp_path / "flat.safetensors")
    assert torch.equal(load_file(tmp_path / "flat.safetensors")["params"], result.params)


def test_what_cannot_be_exported_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no committed round"):
        export(tmp_path, tmp_path / "m.safetensors")
    dpfed.run(TINY, resume=tmp_path / "kept")
    export(tmp_path / "kept", tmp_path / "m.safetensors")
    with pytest.raises(RecipeError, match="already exists and was"):
        export(tmp_path / "kept", tmp_path / "m.safetensors")
    (tmp_path / "kept/layout.json").write_text("[1]")
    with pytest.raises(DataError, match=r"layout\.json cannot be read"):
        export(tmp_path / "kept", tmp_path / "other.safetensors")


def test_a_run_that_died_leaves_a_bundle_with_its_plans_guarantee(tmp_path: Path) -> None:
    def die(row: Row, rounds: int) -> None:
        if row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dpfed.run(TINY, resume=tmp_path / "kept", watch=die)
    export(tmp_path / "kept", tmp_path / "ward")
    model = dpfed.load(tmp_path / "ward")
    export(tmp_path / "kept", tmp_path / "m.safetensors")
    named = load_file(tmp_path / "m.safetensors")
    assert torch.equal(model.module.state_dict()["weight"], named["weight"])
    assert model.predict(torch.zeros(2, 5)).shape == (2,)
    assert model.guarantee.epsilon == pytest.approx(5.0)
    assert (model.description.training.rounds, model.description.training.planned) == (2, 6)
    (tmp_path / "kept/model.json").unlink()  # as earlier versions left it
    with pytest.raises(DataError, match=r"ends in \.safetensors"):
        export(tmp_path / "kept", tmp_path / "other")


def test_a_finished_run_and_its_checkpoint_are_one_model(tmp_path: Path) -> None:
    dpfed.run(TINY, resume=tmp_path / "kept", out=tmp_path / "out")
    export(tmp_path / "kept", tmp_path / "ward")
    one, other = dpfed.load(tmp_path / "out/model"), dpfed.load(tmp_path / "ward")
    x = torch.randn(9, 5)
    assert (one.predict_proba(x) == other.predict_proba(x)).all()
    assert one.guarantee.epsilon == other.guarantee.epsilon
    for field in ("input", "steps", "architecture", "classes", "output", "parameters"):
        assert getattr(one.description, field) == getattr(other.description, field)
