# SPDX-License-Identifier: Apache-2.0
"""One owner's records by the keys of a recipe, and what is said of them on the owner's machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpfed.recipes.records import load_dataset
from dpfed.recipes.schema import parse
from dpfed.recipes.screened import read_records, screened_dataset


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Twelve records; the second column is the same number in each."""
    x = np.stack([np.arange(12.0), np.full(12, 7.0)], axis=1)
    path = tmp_path / "silo.npz"
    np.savez(path, x=x, y=np.arange(12) % 2)
    return path


def test_the_records_are_those_of_a_recipe_and_the_screen_comes_beside(table: Path) -> None:
    recipe = parse({"data": {"source": str(table), "shift": [1.0, 0.0], "scale": [2.0, 1.0]}})
    plain = load_dataset(recipe, None)
    screened, found = screened_dataset(recipe, None)
    assert screened.train.x.tolist() == plain.train.x.tolist()
    assert screened.train.x[:, 0].tolist() == [(each - 1) / 2 for each in range(12)]
    assert any("one value" in each for each in found.findings())


def test_an_app_reads_its_records_and_the_owner_is_told(
    table: Path, caplog: pytest.LogCaptureFixture
) -> None:
    records = read_records(source=str(table))
    assert len(records) == 12
    assert "data:" in caplog.text
