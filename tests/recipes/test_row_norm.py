# SPDX-License-Identifier: Apache-2.0
"""The norm of a row by public words, and the warning of a clip that is none."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import dpfed
from dpfed.data.contract import contract_of
from dpfed.recipes.row_norm import clip_warning, public_norm
from dpfed.recipes.schema import DataRecipe, load_recipe

CONTRACT = contract_of(
    {
        "columns": [
            {"name": "age", "kind": "number", "range": [0, 120]},
            {"name": "sex", "kind": "category", "words": ["f", "m", "x"]},
            {"name": "smoker", "kind": "flag"},
            {"name": "weight", "kind": "number", "range": [2, 300], "scale": "log"},
        ]
    }
)


@pytest.mark.parametrize(
    ("data", "norm"),
    [
        ({}, None),
        ({"low": 0.0}, None),
        ({"radius": 7.0}, 7.0),
        ({"norm": 3.0, "radius": 7.0}, 3.0),
        ({"low": 0.0, "high": 1.0}, 2.0),
        ({"low": -3.0, "high": 1.0}, 6.0),
        ({"low": [0.0, -2.0, 0.0, 0.0], "high": [1.0, 0.0, 2.0, 4.0]}, 5.0),
        ({"low": 0.0, "high": 1.0, "radius": 1.5}, 1.5),
        ({"contract": CONTRACT}, 2.0),
    ],
)
def test_the_norm_is_what_is_stated(data: dict[str, Any], norm: float | None) -> None:
    assert public_norm(DataRecipe(**data), 4) == norm


def test_no_row_of_a_contract_is_longer() -> None:
    """Whatever its cells are: ends, beyond them, unknown words, nothing."""
    cells = {
        "age": ["0", "120", "-1e9", "1e300", "", "old"],
        "sex": ["f", "m", "x", "y", "", "f"],
        "smoker": ["0", "1", "1", "true", "", "2"],
        "weight": ["2", "300", "0", "1e9", "", "-3"],
    }
    rows = CONTRACT.encode(cells)
    known = public_norm(DataRecipe(contract=CONTRACT), CONTRACT.width)
    assert known is not None
    assert np.nanmax(np.linalg.norm(rows, axis=1)) <= known * (1 + 1e-6)


def warned(*overrides: str, features: int | None = 4) -> str | None:
    tables = {"method": "dp-fedsofim", "data": {"low": 0.0, "high": 1.0}, "privacy": {"epsilon": 1}}
    return clip_warning(load_recipe(tables, overrides), features)


def test_a_clip_above_the_norm_is_warned_of() -> None:
    assert warned("privacy.clip=2") is None
    found = warned("privacy.clip=2.1") or ""
    assert "privacy.clip 2.1 is above 2, which no row is longer than" in found
    assert "set it from 0.667 to 1.33" in found
    printed = warned("method=dp-fedsofim-printed", "privacy.clip=2.1")
    assert printed == found


@pytest.mark.parametrize(
    "way",
    [
        "method=dp-fedadam",
        "server.0.rho=1.0",
        "server.0.preset=paper",
        "privacy.clip=1.9",
    ],
)
def test_what_reads_no_clip_is_not_warned_of(way: str) -> None:
    assert warned("privacy.clip=2.1", way) is None


def test_a_network_has_rows_of_another_length() -> None:
    assert warned("privacy.clip=2.1", features=None) is None


def test_an_adaptive_clip_is_warned_of_under_the_rule() -> None:
    assert "privacy.adaptive moves the clip" in (warned("privacy.adaptive={}") or "")
    assert warned("privacy.adaptive={}", "server.0.rho=1.0") is None


def test_a_run_says_it_before_it_spends_and_in_its_result(
    caplog: pytest.LogCaptureFixture,
) -> None:
    x = np.random.default_rng(0).uniform(size=(80, 4)).astype("f4")
    data = {
        "source": (x, (x[:, 0] > 0.5).astype(int)),
        "holdout": 0.25,
        "partition": {"clients": 4},
        "low": 0.0,
        "high": 1.0,
    }
    privacy = {"epsilon": 2.0, "clip": 8.0}
    result = dpfed.run(method="dp-fedsofim", data=data, privacy=privacy, rounds=2)
    (found,) = (each for each in result.warnings if "privacy.clip" in each)
    assert found in [record.getMessage() for record in caplog.records]
    assert math.isfinite(result.accuracy)
