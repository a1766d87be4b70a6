# SPDX-License-Identifier: Apache-2.0
"""Private statistics of a real table: one query at epsilon 0.5, and the same query 1,000 times.

    lab/studies/statistics/private_statistics.py --out lab/studies/statistics/results

The table is TCGA-BRCA's, 1,096 patients, ``tables/tcga-brca.csv`` in a folder of DPFED_DATA. Each kind
of question is asked once, all in one release (replace-one, delta 1e-5, one owner).

answers.png    one run, the first: what an owner would get
coverage.csv   for each number the exact answer, that of the first run with its interval, in how many of
               the 1,000 runs the interval held the exact one, the median width, and the least possible

Exact answers are made with NumPy from the file alone, after the contract's cuts. The least possible
width is that of the known noise alone, 2 z std, if all else in the answer were known: for a count that
of its own number; for mean, variance and curve that of their first-order terms; a quantile lies
between those of the public edges that a test of each alone cannot tell from it.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dpfed
from dpfed.client.questions.answers import Answer, Z
from dpfed.client.questions.cells import halved_sum
from dpfed.client.questions.model import Statistics
from dpfed.core.metric import KEPT
from dpfed.core.types import UPDATE
from dpfed.data.places import find_file
from dpfed.recipes.schema import load_recipe
from dpfed.recipes.session import Session, prepare

RUNS, EPSILON, CELLS = 1000, 0.5, 64
AGES, DAYS = (20.0, 90.0), (0.0, 9000.0)
TIMES = [365.0 * year for year in range(1, 11)]
STAGES = ("T1c", "T2", "T3", "another")
PARTS = (0.1, 0.25, 0.5, 0.75, 0.9)
CONTRACT = {
    "row": "one patient",
    "columns": [
        {"name": "age", "kind": "number", "range": AGES, "unit": "years"},
        {"name": "tumour", "kind": "category", "words": STAGES},
        {"name": "days", "kind": "number", "range": DAYS},
    ],
    "label": {"column": "death", "words": ["no", "yes"]},
}
ASK: list[dict[str, Any]] = [
    {"name": "deaths at 60 or more", "kind": "count", "where": {"age": [60, 90], "death": "yes"}},
    {"name": "age", "kind": "mean", "column": "age"},
    {"name": "tumour", "kind": "histogram", "column": "tumour"},
    {"name": "ages", "kind": "quantiles", "column": "age", "at": list(PARTS), "cells": CELLS},
    {"name": "tumour and death", "kind": "table", "column": "tumour", "by": "death"},
    {"name": "survival", "kind": "survival", "time": "days", "event": "death", "times": TIMES},
]
HEAD = [
    "question",
    "kind",
    "label",
    "exact",
    "first",
    "low",
    "high",
    "runs",
    "held",
    "median_width",
    "least_width",
]
Key = tuple[str, str]
Table = dict[str, NDArray[Any]]


def table() -> Table:
    """The table's columns."""
    with find_file("tables/tcga-brca.csv").open(newline="", encoding="utf-8") as file:
        records = list(csv.DictReader(file))
    stages = [
        next((word for word in STAGES[:-1] if float(each[f"ajcc_pathologic_t_{word}"])), "another")
        for each in records
    ]
    return {
        "age": np.array([float(each["age_at_index"]) for each in records]),
        "tumour": np.array(stages),
        "days": np.array([float(each["T"]) for each in records]),
        "death": np.array(["yes" if float(each["E"]) else "no" for each in records]),
    }


def exact(found: Table) -> dict[Key, float]:
    """Every answer without noise, by NumPy alone."""
    age, days = np.clip(found["age"], *AGES), np.clip(found["days"], *DAYS)
    tumour, died = found["tumour"], found["death"] == "yes"
    made: dict[Key, float] = {
        ("deaths at 60 or more", "count"): float(((age >= 60) & died).sum()),
        ("age", "mean"): float(age.mean()),
        ("age", "variance"): float(age.var()),
        ("age", "standard deviation"): float(age.std()),
    }
    for word in STAGES:
        made["tumour", word] = float((tumour == word).sum())
        for said, chosen in (("no", ~died), ("yes", died)):
            made["tumour and death", f"{word}, {said}"] = float(((tumour == word) & chosen).sum())
    for part in PARTS:
        made["ages", f"{part:g}"] = float(np.quantile(age, part, method="inverted_cdf"))
    curve, before = 1.0, -1.0
    for time in TIMES:  # an exit counts at the next of the public times
        at_risk = (days > before).sum() if before >= 0 else len(days)
        curve *= 1 - (died & (days > before) & (days <= time)).sum() / at_risk
        made["survival", f"{time:g}"] = float(curve)
        before = time
    return made


def least(session: Session, found: Table, truth: Mapping[Key, float]) -> dict[Key, float]:
    """The width of an interval of the noise alone, for each number."""
    plan, model = session.plan, session.federation.model
    assert isinstance(model, Statistics)
    units = plan.denominator(UPDATE)
    stds = {
        each.name: plan.noise_std(UPDATE) * units * each.bound / KEPT for each in model.questions
    }
    n, half = len(found["age"]), (AGES[1] - AGES[0]) / 2
    v = (np.clip(found["age"], *AGES) - sum(AGES) / 2) / half
    made: dict[Key, float] = {}
    for (name, label), value in truth.items():
        std, kind = stds[name], next(each["kind"] for each in ASK if each["name"] == name)
        if kind in ("count", "histogram", "table"):
            made[name, label] = Z * std + min(Z * std, value)
        elif kind == "mean":
            # noise of (count, sum, sum of squares), through the derivative of what is asked
            m, s = v.mean(), v.std()
            slope = {
                "mean": half * np.array([-m, 1, 0]),
                "variance": half**2 * np.array([m * m - s * s, -2 * m, 1]),
                "standard deviation": half / (2 * s) * np.array([m * m - s * s, -2 * m, 1]),
            }[label]
            made[name, label] = 2 * Z * std * float(np.linalg.norm(slope)) / n
        elif kind == "quantiles":
            made[name, label] = _between(np.clip(found["age"], *AGES), float(label), Z * std)
    made |= _curve(found, stds["survival"])
    return made


def _between(age: NDArray[Any], part: float, error: float) -> float:
    """Between the public edges that a test of each alone cannot tell from the quantile."""
    edges, C = np.linspace(*AGES, CELLS + 1), halved_sum(CELLS).double().numpy()
    tested = C - part * C[-1]
    counts = np.array([(age <= edge).sum() for edge in edges[1:]]) - part * len(age)
    unclear = np.flatnonzero(np.abs(counts) <= error * np.linalg.norm(tested, axis=1))
    below = int((counts < 0).sum())
    first, last = (unclear[0], unclear[-1] + 2) if len(unclear) else (below, below + 1)
    return float(edges[min(last, CELLS)] - edges[first])


def _curve(found: Table, std: float) -> dict[Key, float]:
    """First-order terms of the product, in the noisy numbers of exits after and before each time."""
    days, died = np.clip(found["days"], *DAYS), found["death"] == "yes"
    cells = len(TIMES) + 1
    C = halved_sum(cells).double().numpy()
    at = np.minimum(np.searchsorted(TIMES, days), cells - 1)
    made, slope, survival = {}, np.zeros(2 * cells), 1.0
    for j, time in enumerate(TIMES):
        later, after = C[cells - 1 - j], C[cells - 2 - j]
        risk, event = np.concatenate([later, later]), np.concatenate([later - after, 0 * later])
        n, d = float((at >= j).sum()), float((died & (at == j)).sum())
        survival *= 1 - d / n
        slope = slope - event / (n - d) + risk * d / (n * (n - d))
        error = Z * std * survival * float(np.linalg.norm(slope))
        made["survival", f"{time:g}"] = min(1.0, survival + error) - max(0.0, survival - error)
    return made


def asked(path: Path, seed: int) -> dict[str, Any]:
    """The query."""
    return {
        "name": "tcga-brca",
        "seed": seed,
        "data": {
            "source": str(path),
            "contract": CONTRACT,
            "partition": {"name": "iid", "clients": 1},
        },
        "privacy": {"epsilon": EPSILON, "noise": "keyed"},
        "ask": ASK,
    }


def by_label(answers: tuple[Answer, ...]) -> dict[Key, Any]:
    """Each number of the answers."""
    return {(answer.name, value.label): value for answer in answers for value in answer.values}


def main() -> None:
    """Write the answers of one run, and the coverage of many."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=RUNS)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    found = table()
    truth = exact(found)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tcga-brca.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows(
                [[*found], *zip(*found.values(), strict=True)]
            )
        first = dpfed.run(asked(path, 0), out=Path(folder) / "out")
        (given.out / "answers.png").write_bytes((Path(folder) / "out" / "answers.png").read_bytes())
        wanted = least(prepare(load_recipe(asked(path, 0))), found, truth)
        results = [by_label(dpfed.run(asked(path, seed)).answers) for seed in range(given.runs)]
    assert results[0].keys() == truth.keys()
    with (given.out / "coverage.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEAD)
        kinds = {each["name"]: each["kind"] for each in ASK}
        for (name, label), value in truth.items():
            each = [run[name, label] for run in results]
            held = sum(run.low - 1e-3 <= value <= run.high + 1e-3 for run in each)
            width = float(np.median([run.high - run.low for run in each]))
            one = [f"{number:.6g}" for number in (value, *each[0][1:])]
            least_width = f"{wanted[name, label]:.5g}"
            writer.writerow(
                [name, kinds[name], label, *one, len(each), held, f"{width:.5g}", least_width]
            )
    print(first.guarantee.sentence)


if __name__ == "__main__":
    main()
