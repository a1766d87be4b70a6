# SPDX-License-Identifier: Apache-2.0
"""Small trainings whose models are used: on a table of text, numbers and missing cells."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any

import dpfed

SCHEMA: dict[str, list[Any]] = {"age": [18, 100], "dose": [0, 10], "sex": ["f", "m"]}
WORDS = ["alive", "dead"]


def write_table(path: Path, records: int, seed: int = 0, test: float = 0.0) -> Path:
    """A table whose columns are not in the schema's order, with one column more."""
    draw = random.Random(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["sex", "note", "age", "dose", "outcome", "split"])
        for at in range(records):
            age, dose = draw.uniform(10, 110), draw.uniform(0, 10)
            ill = age / 50 + dose / 10 > draw.gauss(1.6, 0.2)
            split = "test" if at < test * records else "train"
            sex = draw.choice(["f", "m", "x"])
            table.writerow([sex, f"note {at}", f"{age:.3f}", f"{dose:.4f}", WORDS[ill], split])
    return path


def train(folder: Path, **sections: Any) -> dpfed.Result:
    """A run on such a table, with its bundle in out/model."""
    source = write_table(folder / "ward.csv", 500, test=0.3)
    data = {
        "source": str(source),
        "options": {"y": "outcome", "labels": WORDS},
        "schema": SCHEMA,
        "missing": "fill",
        "partition": {"clients": 3},
    }
    given = {"data": data, "privacy": {"epsilon": 20.0}, "rounds": 5, "method": "dp-fedauto"}
    return dpfed.run(**{**given, **sections}, out=folder / "out")
