# SPDX-License-Identifier: Apache-2.0
"""Ranges by private quantiles hold nearly all values, and say so where noise leaves nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfed.core.errors import RecipeError
from dpfed.data.contract import Contract, contract_of
from dpfed.recipes.ranges import ProposedRange, proposed, ranges_recipe, with_ranges
from dpfed.recipes.run import run

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
