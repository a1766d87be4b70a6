# SPDX-License-Identifier: Apache-2.0
"""Norms of rows in a simulation: right, without effect on releases, and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import dpfed
from dpfed.core.errors import RecipeError
from dpfed.core.rows import Outer
from dpfed.core.types import Unit
from dpfed.recipes import row_norms
from dpfed.recipes.federation import federation
from dpfed.recipes.schema import load_recipe
from dpfed.recipes.terms import read_terms

RECIPE: dict[str, Any] = {
    "rounds": 2,
    "seed": 1,
    "method": "dp-fedgd",
    "data": {
        "options": {"records": 90, "features": 4, "classes": 3},
        "partition": {"clients": 3},
    },
    "privacy": {"epsilon": 4.0, "noise": "keyed", "clip": 0.5},
}
AVERAGE = {"method": "dp-fedavg", "privacy": {**RECIPE["privacy"], "unit": "client"}}


@pytest.mark.parametrize("changes", [{}, AVERAGE])
def test_releases_are_the_same_bits_and_norms_those_of_the_rows(changes: dict[str, Any]) -> None:
    plain = dpfed.run({**RECIPE, **changes})
    watched = dpfed.run({**RECIPE, **changes}, row_norms=True)
    assert torch.equal(plain.params, watched.params)
    assert plain.guarantee == watched.guarantee
    assert plain.row_norms == ()
    found = watched.row_norms
    assert [(each.round, each.client) for each in found] == [
        (r, c) for r in (1, 2) for c in range(3)
    ]
    for each in found:
        assert torch.allclose(each.after, each.before.clamp(max=0.5), rtol=1e-5)
        assert each.clipped == float((each.before > 0.5).double().mean())


def test_they_are_those_of_gradients_one_by_one() -> None:
    found = dpfed.run(RECIPE, row_norms=True).row_norms[0]
    recipe = load_recipe(RECIPE)
    rows = federation(recipe).problems[0].rows(torch.zeros(15), Unit.RECORD)
    assert isinstance(rows, Outer)
    by_hand = [
        float(torch.outer(r.double(), f.double()).norm())
        for r, f in zip(rows.residual, rows.feature, strict=True)
    ]
    assert found.before.tolist() == pytest.approx(by_hand, rel=1e-5)


def test_nothing_of_them_is_saved_or_printed(tmp_path: Path) -> None:
    watched = dpfed.run(RECIPE, row_norms=True, out=tmp_path, sinks=["csv"])
    plain = {path.name for path in dpfed.run(RECIPE).save(tmp_path / "plain").rglob("*")}
    assert {path.name for path in tmp_path.rglob("*")} - {"plain"} == plain
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or b"norm" not in path.read_bytes().replace(b"set-norm", b"")
    assert "not private" in watched._repr_html_()
    assert repr(watched.row_norms[0]) == "<norms of 30 rows, not private>"
    assert "RowNorms" not in repr(watched)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"engine": "flower-simulation"}, "exact norms are data, and no message has them"),
        ({"ledger": {"dataset": "ward"}}, "outside of an owner's budget"),
    ],
)
def test_they_are_refused_in_one_sentence(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said) as caught:
        dpfed.run(RECIPE, row_norms=True, **changes)
    assert str(caught.value).count(";") == 1


def test_nothing_that_travels_can_ask_for_them() -> None:
    """Neither a recipe nor a training's terms has such a field, on any level."""
    for key in ("row_norms", "evaluation.row_norms", "privacy.row_norms", "client.row_norms"):
        with pytest.raises(RecipeError, match="row_norms"):
            dpfed.run(RECIPE, overrides=(f"{key}=true",))
    with pytest.raises(RecipeError, match="row_norms"):
        read_terms('row_norms = true\nmethod = "dp-fedgd"\n')


def test_a_failure_here_does_not_change_a_release(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = dpfed.run(RECIPE)

    def fail(rows: Any) -> Any:
        raise MemoryError("too many rows")

    monkeypatch.setattr(row_norms, "unit_norms", fail)
    watched = dpfed.run(RECIPE, row_norms=True)
    assert watched.row_norms == ()
    assert torch.equal(plain.params, watched.params)
    assert "has no norms: too many rows" in caplog.text
