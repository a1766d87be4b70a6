# SPDX-License-Identifier: Apache-2.0
"""Hospitals with one contract, and with files of their own making."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any

from dpfed.data.contract import Contract, contract_of
from dpfed.recipes.schema import to_toml
from dpfed.recipes.terms import Terms, read_terms, write_terms

RECORDS = 60
CONTRACT: dict[str, Any] = {
    "row": "one admission",
    "person": "patient",
    "columns": [
        {"name": "age", "kind": "number", "range": [20, 100], "unit": "years"},
        {"name": "weight", "kind": "number", "range": [40, 160], "unit": "kg"},
        {"name": "sex", "kind": "category", "words": ["f", "m"]},
        {"name": "smoker", "kind": "flag", "words": ["no", "yes"]},
    ],
    "label": {"column": "outcome", "words": ["alive", "dead"]},
}
WIDTH, CLASSES = 5, 2
NAMES = ["age", "weight", "sex", "smoker", "outcome", "patient"]
Record = dict[str, str]


def contract(**changes: Any) -> Contract:
    return contract_of({**CONTRACT, **changes})


def records(hospital: int) -> list[Record]:
    """As the contract has them."""
    drawn = random.Random(hospital)
    return [
        {
            "age": str(drawn.randint(25, 95)),
            "weight": str(drawn.randint(45, 150)),
            "sex": drawn.choice("fm"),
            "smoker": drawn.choice(["no", "yes", ""]),
            "outcome": drawn.choice(["alive", "dead"]),
            "patient": f"p{at // 2}",
        }
        for at in range(RECORDS)
    ]


def write_ward(
    path: Path, found: list[Record], names: list[str] | None = None, separator: str = ","
) -> Path:
    """A file with these columns, in this order."""
    header = names or list(found[0])
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=separator, lineterminator="\n")
        writer.writerow(header)
        writer.writerows([record[name] for name in header] for record in found)
    return path


def data_of(path: Path, agreed: dict[str, Any] | None = None, **load: Any) -> dict[str, Any]:
    """A policy's keys for a file that is read by a contract."""
    read_by = {"source": str(path), "contract": CONTRACT if agreed is None else agreed, **load}
    return {"load": read_by, "shape": [WIDTH], "classes": CLASSES}


def ward_terms(
    folder: Path, silos: int = 4, agreed: dict[str, Any] | None = None, **changes: Any
) -> Terms:
    """Terms with a contract, as a recipe's ``data.contract`` gives it to them."""
    recipe = {
        "name": "wards",
        "method": "dp-fedgd",
        "rounds": 3,
        "seed": 7,
        "privacy": {"epsilon": 2.0, "noise": "keyed"},
        "evaluation": {"kind": "off"},
        "data": {"contract": CONTRACT if agreed is None else agreed},
        **changes,
    }
    path = folder / "recipe.toml"
    path.write_text(to_toml(recipe))
    text = write_terms(path, dataset="sepsis", sizes=[float(RECORDS)] * silos)
    (folder / "terms.toml").write_text(text)
    return read_terms(text)
