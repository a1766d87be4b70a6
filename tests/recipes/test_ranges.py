# SPDX-License-Identifier: Apache-2.0
"""Ranges by private quantiles hold nearly all values, and say so where noise leaves nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfed.core.errors import DataError, RecipeError
from dpfed.data.contract import Contract, contract_of
from dpfed.recipes.ranges import (
    ProposedRange,
    answers_in,
    proposed,
    ranges_query,
    ranges_recipe,
    with_ranges,
)
from dpfed.recipes.run import run
from dpfed.recipes.schema import to_toml
from dpfed.recipes.terms import read_terms, write_terms

COLUMNS = ("age", "lactate", "change")


def draft() -> Contract:
    mark = {"kind": "number", "range": [1, 2], "from_records": ["range"]}
    known = {"name": "sex", "kind": "category", "words": ["f", "m"]}
    marked: list[dict[str, Any]] = [{"name": name, **mark} for name in COLUMNS]
    label = {"column": "ill", "words": ["0", "1"]}
    return contract_of({"columns": [*marked, known], "label": label})


def ranges_of(folder: Path, records: int, epsilon: float) -> tuple[ProposedRange, ...]:
    rng = np.random.default_rng(3)
    columns = (
        rng.normal(60, 12, records),
        rng.lognormal(0.7, 0.6, records),
        rng.normal(0, 3, records),
    )
    lines = [
        f"{a:.0f},{b:.2f},{c:.2f},f,{i % 2}"
        for i, (a, b, c) in enumerate(zip(*columns, strict=True))
    ]
    path = folder / "table.csv"
    path.write_text("\n".join([",".join([*COLUMNS, "sex", "ill"]), *lines]) + "\n")
    privacy = {"epsilon": epsilon, "noise": "keyed"}
    recipe = ranges_recipe(draft(), str(path), privacy, None)
    recipe["data"]["partition"] = {"clients": 1}
    return proposed(run(recipe).answers)


def test_a_range_holds_its_column(tmp_path: Path) -> None:
    age, lactate, change = ranges_of(tmp_path, 4000, 2.0)
    assert all(each.sure for each in (age, lactate, change))
    assert 5 <= age.low <= 40 <= 80 <= age.high <= 200
    assert 0.05 <= lactate.low <= 1 <= 5 <= lactate.high <= 50
    assert -50 <= change.low <= -3 <= 3 <= change.high <= 50
    agreed = with_ranges(draft(), (age, lactate, change))
    assert agreed.drafted == ()
    assert agreed.column("age").range == (age.low, age.high)


def test_noise_that_leaves_nothing_is_said(tmp_path: Path) -> None:
    assert not any(each.sure for each in ranges_of(tmp_path, 40, 0.05))


def test_ends_are_one_two_or_five_times_a_power_of_ten(tmp_path: Path) -> None:
    for each in ranges_of(tmp_path, 4000, 2.0):
        for end in (each.low, each.high):
            digits = abs(end) / 10 ** math.floor(math.log10(abs(end))) if end else 1
            assert round(digits, 6) in (1, 2, 5)


def test_a_contract_without_a_mark_is_refused(tmp_path: Path) -> None:
    known = contract_of({"columns": [{"name": "age", "kind": "number", "range": [0, 1]}]})
    with pytest.raises(RecipeError, match="read off records"):
        ranges_recipe(known, "table.csv", {}, None)


def test_the_answers_that_a_run_left_propose_the_same(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("age,lactate,change,sex,ill\n" + "61,1.5,-2,f,1\n" * 300)
    recipe = ranges_recipe(draft(), str(path), {"epsilon": 2.0}, None)
    recipe["data"]["partition"] = {"clients": 1}
    result = run(recipe, out=tmp_path / "out")
    left = tmp_path / "out" / "answers.csv"
    assert proposed(answers_in(left, draft())) == proposed(result.answers)
    lines = left.read_text().splitlines(keepends=True)
    for broken in (lines[:-1], [lines[0].replace("low", "lo"), *lines[1:]], lines[:1]):
        left.write_text("".join(broken))
        with pytest.raises(DataError, match="quantiles of each range"):
            answers_in(left, draft())
    left.write_text("".join(lines).replace("lactate", "lactose"))
    with pytest.raises(DataError, match="quantiles of each range"):
        answers_in(left, draft())
    with pytest.raises(DataError, match="check the path"):
        answers_in(tmp_path / "none.csv", draft())


COSTS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "as it is": ({}, {}, "same"),
    "zero-out in replace-one": ({"adjacency": "zero-out"}, {}, "more"),
    "replace-one in zero-out": ({}, {"adjacency": "zero-out"}, "same"),
    "replace-one in add-remove": ({}, {"adjacency": "add-remove", "size": 90.0}, "none"),
    "persons in records, which may change their person": ({"unit": "group"}, {}, "none"),
    "persons in records, zero-out": (
        {"unit": "group", "adjacency": "zero-out"},
        {"adjacency": "zero-out"},
        "more",
    ),
    "records in persons": ({}, {"unit": "group"}, "none"),
    "own noise in a malicious server's": ({}, {"against": "malicious"}, "same"),
    "a secure sum in a malicious server's": (
        {"trust": "distributed"},
        {"against": "malicious", "trust": ["distributed"]},
        "none",
    ),
    "one colluder in two": (
        {"trust": "distributed"},
        {"colluders": 2, "trust": ["distributed"]},
        "none",
    ),
}


@pytest.mark.parametrize("case", COSTS)
def test_what_ranges_cost_an_owners_budget(tmp_path: Path, case: str) -> None:
    """Converted into the budget's own unit, adjacency and adversary, or without a bound."""
    from dpfed.silo.policy import load_policy
    from tests.silo.gates import Silo

    asked, held, expected = COSTS[case]
    secure = {"sum": {"name": "secure"}} if "trust" in asked else {}
    made = ranges_query(draft(), {"epsilon": 1.0, **asked}, "ranges-1") | secure
    (tmp_path / "query.toml").write_text(to_toml(made))
    text = write_terms(tmp_path / "query.toml", dataset="sepsis", sizes=[90.0] * 3, shape=[3])
    silo = Silo(tmp_path / "silo", 0)
    silo.write(**held)
    cost = load_policy(silo.policy).data["sepsis"].cost(read_terms(text))
    if expected == "none":
        assert cost == math.inf
    elif expected == "same":
        assert cost == pytest.approx(1.0, rel=1e-3)
    else:
        assert 1.9 < cost < 2.6
