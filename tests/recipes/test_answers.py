# SPDX-License-Identifier: Apache-2.0
"""From a query's file to its answers: cost and widths first, then table, CSV and picture."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpfed.client.questions.forecast import forecast
from dpfed.core.errors import RecipeError
from dpfed.core.types import UPDATE
from dpfed.recipes.answers import answers_rows, answers_text, cost_text
from dpfed.recipes.result import Result
from dpfed.recipes.run import run
from dpfed.recipes.schema import load_recipe
from dpfed.recipes.session import prepare

CONTRACT = {
    "columns": [
        {"name": "age", "kind": "number", "range": [18, 98]},
        {"name": "days", "kind": "number", "range": [0, 1000]},
        {"name": "ward", "kind": "category", "words": ["a", "b", "c"]},
    ],
    "label": {"column": "outcome", "words": ["alive", "dead"]},
}
ASK: list[dict[str, Any]] = [
    {"name": "old", "kind": "count", "where": {"age": [58, 98]}},
    {"name": "age", "kind": "mean", "column": "age"},
    {"name": "wards", "kind": "histogram", "column": "ward"},
    {"name": "quartiles", "kind": "quantiles", "column": "age", "cells": 20},
    {"name": "curve", "kind": "survival", "time": "days", "event": "outcome", "times": [250, 500]},
]


def query(folder: Path, **changes: Any) -> dict[str, Any]:
    rng = np.random.default_rng(5)
    path = folder / "table.csv"
    lines = [
        f"{rng.integers(18, 99)},{rng.integers(1, 1000)},{'abc'[i % 3]},{['alive', 'dead'][i % 2]}"
        for i in range(600)
    ]
    path.write_text("\n".join(["age,days,ward,outcome", *lines]) + "\n")
    data = {"source": str(path), "contract": CONTRACT, "partition": {"clients": 3}}
    return {"data": data, "privacy": {"epsilon": 1.0, "noise": "keyed"}, "ask": ASK, **changes}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run(query(tmp_path_factory.mktemp("query")))


def test_the_cost_and_the_widths_are_said_before_anything_is_asked(
    tmp_path: Path, result: Result
) -> None:
    session = prepare(load_recipe(query(tmp_path)))
    said = cost_text(session.plan, session.federation.model)
    assert said.startswith("would cost: (1, 1e-05)-DP")
    assert [line.partition(":")[0] for line in said.splitlines()[1:]] == [
        f"- {each['name']}" for each in ASK
    ]
    (old,) = result.answers[0].values
    assert f"each count +- {(old.high - old.low) / 2:,.3g}" in said


def test_a_forecast_is_in_each_kind_s_own_words(tmp_path: Path) -> None:
    plan, model = (s := prepare(load_recipe(query(tmp_path)))).plan, s.federation.model
    units = plan.denominator(UPDATE)
    said = forecast(model.questions, model.columns, plan.noise_std(UPDATE) * units, units)
    starts = ("each count", "mean +- ", "each count", "+- ", "+- ")
    assert all(each.startswith(start) for each, start in zip(said, starts, strict=True))


def test_a_training_has_no_questions(tmp_path: Path) -> None:
    session = prepare(load_recipe({"privacy": {"epsilon": 1.0}, "method": "dp-fedgd"}))
    with pytest.raises(RecipeError, match="ask"):
        cost_text(session.plan, session.federation.model)


def test_every_number_is_in_text_and_csv(tmp_path: Path, result: Result) -> None:
    result.save(tmp_path)
    with (tmp_path / "answers.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(answers_rows(result.answers)) == 1 + 3 + 3 + 3 + 2
    assert {row["question"] for row in rows} == {each["name"] for each in ASK}
    text = answers_text(result.answers)
    assert all(row["label"] in text for row in rows)
    assert (tmp_path / "answers.png").stat().st_size > 10_000


def test_the_answers_are_near_the_truth(result: Result) -> None:
    low, high = result.answers[1].values[0][2:]
    assert low <= 58 <= high


def test_the_same_query_has_the_same_bits(tmp_path: Path, result: Result) -> None:
    assert torch.equal(run(query(tmp_path)).params, result.params)


def test_exact_integers_answer_too(tmp_path: Path) -> None:
    privacy = {"epsilon": 1.0, "noise": "keyed", "mechanism": "discrete_gaussian"}
    found = run(query(tmp_path, privacy=privacy))
    assert len(found.answers) == len(ASK)


def test_persons_count_once(tmp_path: Path) -> None:
    """A person with many records is one unit: the count is that of persons."""
    path = tmp_path / "visits.csv"
    lines = [
        f"{20 + p % 60},p{p},{'01'[p % 2]}" for p in range(200) for _ in range(1 + 9 * (p < 3))
    ]
    path.write_text("\n".join(["age,patient,ill", *lines]) + "\n")
    contract = {
        "columns": [{"name": "age", "kind": "number", "range": [18, 98]}],
        "label": {"column": "ill", "words": ["0", "1"]},
        "person": "patient",
    }
    data = {"source": str(path), "contract": contract, "partition": {"clients": 1}}
    privacy = {"epsilon": 50.0, "unit": "group", "noise": "keyed"}
    ask = [{"name": "all", "kind": "count"}]
    ((count,),) = (a.values for a in run({"data": data, "privacy": privacy, "ask": ask}).answers)
    assert count.low <= 200 <= count.high
    assert count.high < 210


@pytest.mark.long
def test_flower_gives_the_bits_of_one_process(tmp_path: Path, result: Result) -> None:
    found = run(query(tmp_path), engine="flower-simulation")
    assert torch.equal(found.params, result.params)
    assert found.answers == result.answers
