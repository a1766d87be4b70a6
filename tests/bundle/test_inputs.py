# SPDX-License-Identifier: Apache-2.0
"""From tables and arrays to features: the very ones that training had."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dpfed
from dpfed.bundle.inputs import as_table
from dpfed.recipes.federation import federation
from dpfed.recipes.schema import load_recipe
from tests.helpers.bundles import write_table

EVERY_STEP: list[dict[str, Any]] = [
    {"shift": 3.0, "scale": [1.0, 2.0]},
    {"fill_missing": 0.25, "norm": 2.0},
    {"missing": "fill", "radius": 0.5},
]


@pytest.mark.parametrize("steps", EVERY_STEP)
def test_features_are_those_of_training(steps: dict[str, Any], tmp_path: Path) -> None:
    path = write_table(tmp_path / "ward.csv", 60)
    text = path.read_text().splitlines()
    holed = [
        ",".join(["", *line.split(",")[1:]]) if at % 7 == 3 else line
        for at, line in enumerate(text)
    ]
    path.write_text("\n".join(holed) + "\n")
    data = {
        "source": str(path),
        "options": {"y": "outcome", "labels": ["alive", "dead"], "x": ["dose", "age"]},
        "partition": {"name": "iid", "clients": 1},
        **steps,
    }
    recipe = {"data": data, "privacy": {"epsilon": 9.0}, "rounds": 1, "method": "dp-fedgd"}
    dpfed.run(recipe, out=tmp_path / "out")
    model = dpfed.load(tmp_path / "out/model")
    records = federation(load_recipe(recipe)).clients[0]

    with path.open() as file:
        rows = list(csv.DictReader(file))
    made = model.features(rows)
    order = torch.argsort(made[:, 0])
    assert torch.equal(made[order], records.x[torch.argsort(records.x[:, 0])])


def test_what_is_a_table_and_what_is_not() -> None:
    assert as_table({"a": [1]}) == {"a": [1]}
    assert as_table([{"a": 1}, {"a": 2}]) == {"a": [1, 2]}
    assert as_table(np.zeros((2, 2))) is None
    assert as_table([[1, 2]]) is None


def test_a_frame_of_another_library_is_read_by_column() -> None:
    class Frame:
        columns = ("a", "b")

        def __getitem__(self, name: str) -> list[float]:
            return {"a": [1.0, float("nan")], "b": [2.0, 3.0]}[name]

    table = as_table(Frame())
    assert table is not None
    assert {name: list(table[name]) for name in table} == {"a": [1.0, None], "b": [2.0, 3.0]}


@pytest.mark.long
def test_images_behind_a_backbone_are_fed_as_images(tmp_path: Path) -> None:
    from dpfed.core.errors import DataError, DpfedError
    from dpfed.data.backbones import BACKBONES, weights_digest

    try:
        weights_digest("efficientnet-lite0")
    except DpfedError:
        pytest.skip(f"no weights of {BACKBONES[-1]}")
    draw = np.random.default_rng(0)
    x = draw.integers(0, 255, (24, 20, 20, 3), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", x=x, y=np.arange(24) % 2)
    data = {
        "source": str(tmp_path / "images.npz"),
        "backbone": "efficientnet-lite0",
        "backbone_size": 32,
        "backbone_fit": "resize",
        "backbone_project": 8,
        "norm": 10.0,
        "partition": {"clients": 1},
    }
    recipe = {"data": data, "privacy": {"epsilon": 9.0}, "rounds": 1, "method": "dp-fedgd"}
    dpfed.run(recipe, evaluation={"kind": "off"}, out=tmp_path / "out")
    model = dpfed.load(tmp_path / "out/model")
    made = model.features(x[:3])
    assert made.shape == (3, 8)
    records = federation(load_recipe(recipe)).clients[0]
    assert all((records.x - each).abs().sum(dim=1).min() < 1e-5 for each in made)
    own = tmp_path / "other.pth"
    own.write_bytes(b"other weights")
    with pytest.raises(DataError, match="must be those of training"):
        dpfed.load(tmp_path / "out/model", weights=own).predict(x[:1])
