# SPDX-License-Identifier: Apache-2.0
"""Sensitivities and errors under participation, against jax_privacy 2.0.0 on 20 settings.

``participation_jax_privacy.json`` has its figures, ``participation_jax_privacy.py`` makes them. Its
``toeplitz.minsep_sensitivity_squared`` says what our banded and blt cost, and
``get_sensitivity_banded`` the same of the dense matrix; ``banded.minsep_sensitivity_squared`` is
for columns of norm 1, which a Toeplitz C has but for the last ones.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfed.core.participation import Participation
from dpfed.core.types import Adjacency, Facts, Trust, Unit
from dpfed.mechanisms._toeplitz import buffered, prefix_errors
from dpfed.mechanisms.banded import banded
from dpfed.mechanisms.blt import blt

ORACLE = json.loads((Path(__file__).parent / "participation_jax_privacy.json").read_text())


def named(row: dict[str, Any]) -> str:
    return f"n={row['n']}-b={row['b']}-k={row['k']}"


def devices(row: dict[str, Any]) -> Facts:
    limits = Participation(min_separation=row["b"], at_most=row["k"])
    return Facts(
        unit=Unit.CLIENT,
        trust=Trust.CENTRAL,
        adjacency=Adjacency.ZERO_OUT,
        participation=limits,
    )


def test_the_oracle_is_the_version_it_says() -> None:
    assert ORACLE["versions"]["jax-privacy"] == "2.0.0"
    assert len({named(row) for row in ORACLE["rows"]}) == 20


@pytest.mark.parametrize("row", ORACLE["rows"], ids=named)
def test_banded_costs_what_jax_privacy_says(row: dict[str, Any]) -> None:
    column = ORACLE["root"][: min(row["b"], 64)]
    ours = banded(devices(row), coefficients=column).squared_sensitivity(row["n"])
    assert ours == pytest.approx(row["toeplitz"], rel=1e-9)
    if "dense" in row:
        assert ours == pytest.approx(row["dense"], rel=1e-9)
    whole = (row["k"] - 1) * row["b"] + len(column) <= row["n"]
    if whole:  # then no column of the pattern is cut off
        norm = math.fsum(value * value for value in column)
        assert ours / norm == pytest.approx(row["banded"], rel=1e-9)


@pytest.mark.parametrize("row", ORACLE["rows"], ids=named)
def test_blt_costs_what_jax_privacy_says_of_its_coefficients(row: dict[str, Any]) -> None:
    decays, scales = ORACLE["buffers"]
    ours = blt(devices(row), decays=decays, scales=scales).squared_sensitivity(row["n"])
    assert ours == pytest.approx(row["blt"], rel=1e-9)
    if "dense_blt_bound" in row:
        assert ours <= row["dense_blt_bound"] * (1 + 1e-9)


@pytest.mark.parametrize("row", ORACLE["rows"], ids=named)
def test_errors_are_jax_privacys(row: dict[str, Any]) -> None:
    n, (decays, scales) = row["n"], ORACLE["buffers"]
    columns = {
        "toeplitz_errors": np.array(ORACLE["root"][: min(row["b"], 64)]),
        "blt_errors": buffered(decays, scales, n),
    }
    for name, column in columns.items():
        found = prefix_errors(column, n)
        assert float(found.mean()) == pytest.approx(row[name]["mean"], rel=1e-9)
        assert float(found[-1]) == pytest.approx(row[name]["last"], rel=1e-9)


@pytest.mark.slow  # searches, some seconds at n = 2000
@pytest.mark.parametrize("row", ORACLE["best"], ids=named)
def test_our_best_matrices_are_as_good_as_its_own(row: dict[str, Any]) -> None:
    """To four digits: ours are rounded, so that both sides of a training find the same ones."""
    n = row["n"]
    bands = banded(devices(row), rounds=n)
    assert bands.coefficients is not None
    made: dict[str, Any] = {"banded": (bands, np.array(bands.coefficients))}
    if "blt" in row:
        smooth = blt(devices(row), rounds=n)
        made["blt"] = smooth, buffered(smooth.decays, smooth.scales, n)
    for name, (mechanism, column) in made.items():
        ours = math.sqrt(float(prefix_errors(column, n).mean()) * mechanism.squared_sensitivity(n))
        assert ours == pytest.approx(row[name]["mean"], rel=1e-4)
