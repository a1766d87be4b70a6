# SPDX-License-Identifier: Apache-2.0
"""What an encoding is worth: three tables, four encodings of each, two trusts, five seeds.

    lab/studies/encoding/encoding.py --out lab/studies/encoding/results

The default method, untuned, at epsilon 1 for each record (replace-one, delta 1e-5); a fifth of the
records is held out, the same ones for every seed. Encodings, each one step more than the one above:

    as they are   numbers as the file has them; 0 for a missing one
    ranges        a contract that calls every column a number, with its public range
    categories    ... and columns of codes categories, columns of 0 and 1 flags
    log           ... and long tails on a logarithmic scale

Ranges are round numbers around what the data sets' public descriptions say. Set DPFED_DATA to the
folder that has ``tables/credit-default.npz``, ``heart-disease.npz`` and ``tcga-brca.csv``. The third
table comes with its words spread over columns of 0 and 1; they are put together again as codes.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import dpfed
from dpfed.data.datasets import Records
from dpfed.data.places import find_file
from dpfed.recipes.result import Result
from dpfed.recipes.schema import parse
from dpfed.recipes.session import prepare

SEEDS = range(5)
TRUSTS = {"local": {}, "distributed": {"sum": {"name": "secure"}}}
ENCODINGS = ("as they are", "ranges", "categories", "log")


@dataclass(frozen=True)
class Table:
    """A data set: its cells, and what is public of its columns."""

    name: str
    header: list[str]
    rows: list[list[str]]
    ranges: dict[str, tuple[float, float]]
    codes: dict[str, list[str]]
    tails: dict[str, tuple[float, float]]
    """The range on the logarithmic scale, of columns with long tails."""
    label: str
    words: list[str]
    clients: int = 4
    silo: str = ""

    def contract(self, encoding: str) -> dict[str, Any]:
        """The contract of an encoding."""
        return {
            "columns": [self.column(name, encoding) for name in self.ranges],
            "label": {"column": self.label, "words": self.words},
        }

    def column(self, name: str, encoding: str) -> dict[str, Any]:
        """A column as an encoding has it."""
        if encoding != "ranges" and name in self.codes:
            words = self.codes[name]
            return {"name": name, "kind": "flag" if len(words) == 2 else "category", "words": words}
        if encoding == "log" and name in self.tails:
            return {"name": name, "kind": "number", "range": self.tails[name], "scale": "log"}
        return {"name": name, "kind": "number", "range": self.ranges[name]}


def cell(value: float) -> str:
    """A number as a file has it; nothing for a missing one."""
    return "" if np.isnan(value) else f"{value:.10g}"


def credit() -> Table:
    """Default of credit cards in Taiwan: amounts in dollars, codes of months of delay."""
    data = np.load(find_file("tables/credit-default.npz"))
    header = [str(name) for name in data["columns"]]
    rows = [
        [*map(cell, map(float, x)), str(int(y))] for x, y in zip(data["x"], data["y"], strict=True)
    ]
    bills = [name for name in header if name.startswith("BILL")]
    paid = [name for name in header if name.startswith("PAY_AMT")]
    delays = [name for name in header if name.startswith("PAY_") and name not in paid]
    ranges = dict.fromkeys(header, (0.0, 1e6))
    ranges |= dict.fromkeys(bills, (-100_000.0, 1e6)) | dict.fromkeys(delays, (-2.0, 8.0))
    ranges |= {"SEX": (1, 2), "EDUCATION": (0, 6), "MARRIAGE": (0, 3), "AGE": (20, 80)}
    codes = {"SEX": ["1", "2"]}
    codes |= {"EDUCATION": list("123456"), "MARRIAGE": list("0123")}
    codes |= {name: [str(month) for month in range(-2, 9)] for name in delays}
    tails = {"LIMIT_BAL": (1e4, 1e6)}
    tails |= dict.fromkeys(bills, (100.0, 1e6)) | dict.fromkeys(paid, (100.0, 1e6))
    return Table(
        "credit default", [*header, "y"], rows, ranges, codes, tails, "y", ["0", "1"], clients=10
    )


def heart() -> Table:
    """Heart disease at four hospitals: ward figures, codes of findings, many missing."""
    data = np.load(find_file("tables/heart-disease.npz"))
    header = [str(name) for name in data["columns"]]
    rows = [
        [*map(cell, map(float, x)), str(int(y > 0)), str(data["group_names"][group])]
        for x, y, group in zip(data["x"], data["y"], data["group"], strict=True)
    ]
    ranges = {
        "age": (20.0, 80.0),
        "sex": (0.0, 1.0),
        "cp": (1.0, 4.0),
        "trestbps": (80.0, 200.0),
        "chol": (0.0, 600.0),
        "fbs": (0.0, 1.0),
        "restecg": (0.0, 2.0),
        "thalach": (60.0, 210.0),
        "exang": (0.0, 1.0),
        "oldpeak": (-3.0, 7.0),
        "slope": (1.0, 3.0),
        "ca": (0.0, 3.0),
        "thal": (3.0, 7.0),
    }
    codes = {"sex": ["0", "1"], "fbs": ["0", "1"], "exang": ["0", "1"], "cp": list("1234")}
    codes |= {"restecg": list("012"), "slope": list("123"), "ca": list("0123"), "thal": list("367")}
    tails = {"chol": (80.0, 600.0), "oldpeak": (0.1, 7.0)}
    whole = [*header, "y", "hospital"]
    return Table(
        "heart disease", whole, rows, ranges, codes, tails, "y", ["0", "1"], silo="hospital"
    )


GROUPS = {
    "race": "race_",
    "nodes": "ajcc_pathologic_n_",
    "stage": "ajcc_pathologic_stage_",
    "tumour": "ajcc_pathologic_t_",
    "edition": "ajcc_staging_system_edition_",
    "diagnosis": "primary_diagnosis_",
    "treated": "treatment_or_therapy_",
    "ethnicity": "ethnicity_",
}


def breast() -> Table:
    """Breast cancer (TCGA): whether a patient's death is on record; columns as codes again."""
    with find_file("tables/tcga-brca.csv").open(newline="", encoding="utf-8") as file:
        records = list(csv.DictReader(file))
    held = {
        name: [each for each in records[0] if each.startswith(start)]
        for name, start in GROUPS.items()
    }
    rows = []
    for record in records:
        found = [
            str(next((at for at, each in enumerate(columns, 1) if float(record[each])), 0))
            for columns in held.values()
        ]
        rows.append([record["age_at_index"], *found, record["T"], str(int(float(record["E"])))])
    ranges = {"age": (20.0, 90.0), **{n: (0.0, float(len(held[n]))) for n in held}}
    ranges["days"] = (0.0, 9000.0)
    codes = {name: [str(at) for at in range(len(held[name]) + 1)] for name in held}
    header = ["age", *held, "days", "y"]
    tails = {"days": (30.0, 9000.0)}
    return Table("breast cancer", header, rows, ranges, codes, tails, "y", ["0", "1"])


def recipe(table: Table, path: Path, encoding: str, trust: str, seed: int) -> dict[str, Any]:
    """The run of one cell."""
    options: dict[str, Any] = {"silo": table.silo} if table.silo else {}
    data: dict[str, Any] = {"source": str(path), "holdout": 0.2}
    if encoding == "as they are":
        options |= {"x": list(table.ranges), "y": table.label, "classes": 2}
        data["missing"] = "fill"
    else:
        data["contract"] = table.contract(encoding)
    if not table.silo:
        data["partition"] = {"name": "iid", "clients": table.clients}
    return {
        "seed": seed,
        "data": {**data, "options": options},
        "privacy": {"epsilon": 1.0, "trust": trust, "noise": "keyed"},
        "evaluation": {"kind": "off"},
        **TRUSTS[trust],
    }


def auc(scores: torch.Tensor, y: torch.Tensor) -> float:
    """How often a record of class 1 scores above one of class 0; ties count half."""
    order = torch.unique(scores, return_inverse=True)[1].double()
    sizes = torch.bincount(order.long()).double()
    ranks = (sizes.cumsum(0) - (sizes - 1) / 2)[order.long()]
    ones = (y == 1).sum().double()
    zeros = (y == 0).sum().double()
    return float((ranks[y == 1].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def judged(result: Result, test: Records) -> tuple[float, float]:
    """AUC and accuracy on the held-out records; a score is how likely class 1 is."""
    correct, _ = result.model.judge(result.params, test)
    _, loss = result.model.judge(result.params, replace(test, y=torch.ones_like(test.y)))
    return auc(-loss, test.y), float(correct.double().mean())


def cells(tables: list[Table]) -> Iterator[dict[str, Any]]:
    """Every run, with what it reached."""
    with tempfile.TemporaryDirectory() as folder:
        for table in tables:
            path = Path(folder) / f"{table.name.replace(' ', '-')}.csv"
            with path.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([table.header, *table.rows])
            for encoding in ENCODINGS:
                tree = recipe(table, path, encoding, "local", 0)
                test = prepare(parse(tree)).federation.test  # the same one for every seed
                assert test is not None
                yield from _runs(table, path, encoding, test)


def _runs(table: Table, path: Path, encoding: str, test: Records) -> Iterator[dict[str, Any]]:
    for trust in TRUSTS:
        for seed in SEEDS:
            found, correct = judged(dpfed.run(recipe(table, path, encoding, trust, seed)), test)
            yield {
                "set": table.name,
                "encoding": encoding,
                "trust": trust,
                "seed": seed,
                "auc": f"{found:.4f}",
                "accuracy": f"{correct:.4f}",
            }


def main() -> None:
    """Write final.csv, a row for each run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    with (out / "final.csv").open("w", newline="", encoding="utf-8") as file:
        writer = None
        for row in cells([heart(), breast(), credit()]):
            writer = writer or csv.DictWriter(file, list(row), lineterminator="\n")
            if not file.tell():
                writer.writeheader()
            writer.writerow(row)
            file.flush()


if __name__ == "__main__":
    main()
