# SPDX-License-Identifier: Apache-2.0
"""Which noise is least for devices that take turns: the figures, and one test per line."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dpfed.accounting import gdp
from dpfed.core.errors import RecipeError
from dpfed.recipes import compare_mechanisms as module
from dpfed.recipes.compare_mechanisms import compare_mechanisms, limits_for
from tests.mechanisms.patterns import lower, node_matrix

SMALL: dict[str, Any] = {
    "epsilon": 2.0,
    "delta": 1e-5,
    "rounds": 24,
    "population": 400,
    "cohort": 50,
    "adjacency": "replace-one",
}


def by_name(**changes: Any) -> dict[str, Any]:
    return {row["noise"]: row for row in compare_mechanisms(**{**SMALL, **changes})["rows"]}


def test_rows_have_the_errors_of_their_matrices_at_one_price() -> None:
    found, n, mu = by_name(), SMALL["rounds"], gdp.mu_for(2.0, 1e-5)
    assert found["independent"]["std_over_clip"] == pytest.approx(2 * math.sqrt(3) / mu)
    matrices = {
        "independent": np.eye(n),
        "tree": node_matrix(n),
        "banded": lower(found["banded"]["options"]["coefficients"], n),
    }
    for name, C in matrices.items():
        errors = np.square(np.tri(n) @ np.linalg.inv(C)).sum(axis=1)
        level = found[name]["std_over_clip"]
        assert found[name]["rmse"] == pytest.approx(level * math.sqrt(errors.mean()), rel=1e-9)
        assert found[name]["last"] == pytest.approx(level * math.sqrt(errors[-1]), rel=1e-9)
    assert found["banded"]["vectors"] == 7
    assert found["tree"]["vectors"] == 5


def test_it_says_which_is_least_and_what_it_guarantees() -> None:
    answer = compare_mechanisms(**SMALL)
    least = min(answer["rows"], key=lambda row: row["rmse"])
    assert answer["least"] == least["noise"] == "amplified"  # if who takes part is a secret
    turns = min(
        (row for row in answer["rows"] if not row["drawn"]), key=lambda row: float(row["rmse"])
    )
    assert turns["noise"] == "banded"
    assert "takes part at most 3 times, at least 8 rounds apart" in answer["guarantee"]
    assert answer["participation"] == {"min_separation": 8, "at_most": 3}


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_a_draw_is_one_of_the_rows(monkeypatch: pytest.MonkeyPatch, adjacency: str) -> None:
    asked = []
    monkeypatch.setattr(module, "calibrate", lambda made, **_: asked.append(made) or made)
    found = by_name(adjacency=adjacency)
    assert found["amplified"]["drawn"]
    assert asked[1].sampling.rate == 50 / 400
    assert asked[1].participation is None  # a draw, and no bound: one or the other


def test_a_tree_that_takes_too_long_is_left_out_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dpfed.mechanisms._dyadic._MAX_STEPS", 10)
    answer = compare_mechanisms(**{**SMALL, "rounds": 25, "cohort": 200})
    assert "tree" not in {row["noise"] for row in answer["rows"]}
    assert answer["left_out"][0].startswith("tree: a tree of 25 releases")


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ((None, None), (8, 3)),
        ((4, None), (4, 6)),
        ((None, 2), None),
        ((4, 3), (4, 3)),
        ((9, None), None),
        ((4, 50), (4, 6)),
    ],
)
def test_what_cohorts_leave_room_for(given: Any, found: Any) -> None:
    if found is None:
        with pytest.raises(RecipeError, match="a population must have"):
            limits_for(24, 400, 50, *given)
        return
    limits = limits_for(24, 400, 50, *given)
    assert (limits.min_separation, limits.at_most) == found


def test_a_cohort_is_a_part_of_the_population() -> None:
    with pytest.raises(RecipeError, match=r"cohort.*from 1 to the population of 400, got 0"):
        limits_for(24, 400, 0, None, None)
