# SPDX-License-Identifier: Apache-2.0
"""Small trainings whose models are used: on a table of text, numbers and missing cells."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any

import pytest
import torch

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


CONTRACT: dict[str, Any] = {
    "missing_words": ["?"],
    "columns": [
        {"name": "age", "kind": "number", "range": [18, 100], "unit": "years"},
        {"name": "dose", "kind": "number", "range": [0.1, 10], "scale": "log"},
        {"name": "sex", "kind": "category", "words": ["f", "m"]},
    ],
    "label": {"column": "outcome", "words": WORDS},
}


def write_messy(folder: Path) -> list[Path]:
    """Five files of one consortium, each in its own way; the last has no death."""
    order = ["sex", "note", "age", "dose", "outcome", "split"]
    made = []
    for at, (sign, columns) in enumerate(
        [
            (",", order),
            (";", order[::-1]),
            (",", order[1:] + order[:1]),
            ("\t", order),
            (";", order),
        ]
    ):
        whole = write_table(folder / "whole.csv", 120, seed=at, test=0.3)
        with whole.open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        rows = [row for row in rows if at < 4 or row["outcome"] == "alive"]
        for place, row in enumerate(rows):
            row["age"] = "?" if place % 11 == 3 else row["age"]
            row["dose"] = "" if place % 13 == 5 else row["dose"]
        made.append(folder / f"ward-{at}.csv")
        write_rows(made[-1], [*rows, *rows[:3]], columns, sign)
    whole.unlink()
    return made


def write_rows(path: Path, rows: list[dict[str, str]], columns: list[str], sign: str) -> None:
    """Rows as a .csv with these columns and this separator."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, columns, delimiter=sign, extrasaction="ignore")
        table.writeheader()
        table.writerows(rows)


def read_rows(path: Path) -> tuple[list[dict[str, str]], list[str], str]:
    """A .csv's rows, its columns and its separator."""
    text = path.read_text(encoding="utf-8").splitlines()
    sign = max(",;\t", key=text[0].count)
    rows = list(csv.DictReader(text, delimiter=sign))
    return rows, list(rows[0]), sign


TINY_WORDS, TINY_LENGTH = 13, 6
TINY_LORA: dict[str, Any] = {"r": 2, "target_modules": ["query", "value"]}


def tiny_encoder(folder: Path, seed: int = 0) -> Path:
    """A pretrained encoder of three classes, as its library saves it."""
    library = pytest.importorskip("transformers")
    pytest.importorskip("peft")
    torch.manual_seed(seed)
    config = library.BertConfig(
        vocab_size=TINY_WORDS,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=20,
        max_position_embeddings=TINY_LENGTH,
        num_labels=3,
    )
    library.BertForSequenceClassification(config).save_pretrained(folder)
    return folder
