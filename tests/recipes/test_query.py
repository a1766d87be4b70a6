# SPDX-License-Identifier: Apache-2.0
"""A query is a recipe: what a training has is refused, and the questions reach the plan."""

from __future__ import annotations

from typing import Any

import pytest

from dpfed.core.errors import RecipeError
from dpfed.recipes.query import with_questions
from dpfed.recipes.schema import load_recipe

COUNT: dict[str, Any] = {"ask": [{"name": "all", "kind": "count", "where": {"x0": [0, 1]}}]}


def test_a_query_is_the_recipe_of_one_round() -> None:
    recipe = load_recipe({**COUNT, "privacy": {"epsilon": 1.0}})
    assert (recipe.rounds, recipe.client["name"]) == (1, "statistics")
    assert recipe.client["questions"][0]["where"] == {"x0": [0.0, 1.0]}


def test_a_recipe_without_questions_is_left_as_it_is() -> None:
    assert with_questions({"rounds": 3}) == {"rounds": 3}


@pytest.mark.parametrize("key", ["method", "model", "client", "server", "rounds", "evaluation"])
def test_what_a_training_has_is_refused(key: str) -> None:
    with pytest.raises(RecipeError, match=key):
        with_questions({**COUNT, key: {}})


@pytest.mark.parametrize("key", ["record_rate", "client_rate", "cohort", "clip", "weights"])
def test_what_would_move_a_sum_otherwise_is_refused(key: str) -> None:
    with pytest.raises(RecipeError, match=key):
        with_questions({**COUNT, "privacy": {key: 0.5}})


def test_questions_are_tables() -> None:
    with pytest.raises(RecipeError, match="ask"):
        with_questions({"ask": ["all"]})
