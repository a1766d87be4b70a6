# SPDX-License-Identifier: Apache-2.0
"""Questions that do not fit their columns are refused, in a sentence that names them."""

from __future__ import annotations

from typing import Any

import pytest

from dpfed.client.questions.columns import Column
from dpfed.client.questions.query import read_questions
from dpfed.core.errors import RecipeError

COLUMNS = {
    "age": Column(at=0, low=18.0, high=100.0),
    "sex": Column(at=1, words=("f", "m"), flag=True),
}


@pytest.mark.parametrize(
    "table",
    [
        {"kind": "count"},
        {"name": "q", "kind": "median", "column": "age"},
        {"name": "q", "kind": "mean", "column": "height"},
        {"name": "q", "kind": "mean", "column": "sex"},
        {"name": "q", "kind": "mean", "column": "age", "edges": [1, 2]},
        {"name": "q", "kind": "histogram", "column": "age"},
        {"name": "q", "kind": "histogram", "column": "age", "edges": [60, 40]},
        {"name": "q", "kind": "histogram", "column": "age", "edges": [40, float("nan")]},
        {"name": "q", "kind": "histogram", "column": "sex", "words": ["f", "x"]},
        {"name": "q", "kind": "histogram", "column": "age", "cells": 5000},
        {"name": "q", "kind": "histogram", "column": "age", "cells": 4.5},
        {"name": "q", "kind": "quantiles", "column": "age", "at": [0.0]},
        {"name": "q", "kind": "quantiles", "column": "sex"},
        {"name": "q", "kind": "table", "column": "age", "cells": 999, "by": "sex"},
        {"name": "q", "kind": "survival", "time": "age", "event": "age", "times": [40]},
        {"name": "q", "kind": "survival", "time": "age", "event": "sex", "times": []},
        {"name": "q", "kind": "survival", "time": "age", "event": "sex", "times": [0, 40]},
        {"name": "q", "kind": "count", "where": {"sex": "x"}},
        {"name": "q", "kind": "count", "where": {"sex": 1.0}},
        {"name": "q", "kind": "count", "where": {"age": "old"}},
        {"name": "q", "kind": "count", "where": {"age": [60, 40]}},
        {"name": "q", "kind": "count", "where": {"height": [60, 40]}},
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(table: dict[str, Any]) -> None:
    with pytest.raises(RecipeError):
        read_questions([table], COLUMNS)


def test_names_are_different_and_questions_few() -> None:
    one = {"name": "q", "kind": "count"}
    with pytest.raises(RecipeError, match="different names"):
        read_questions([one, one], COLUMNS)
    with pytest.raises(RecipeError, match="200"):
        read_questions([{**one, "name": str(k)} for k in range(201)], COLUMNS)


def test_words_and_a_grid_follow_from_the_column() -> None:
    words, grid = read_questions(
        [
            {"name": "w", "kind": "histogram", "column": "sex"},
            {"name": "g", "kind": "quantiles", "column": "age"},
        ],
        COLUMNS,
    )
    assert (words.size, grid.size) == (2, 64)
