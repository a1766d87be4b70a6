#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""The ratio of signal to noise of the committed studies' cells, beside what was learned there.

    DPFED_DATA=FOLDER lab/studies/signal/runs.py [STUDY ...]

Each plan is built again from its study and the settings of its final runs, and asked for its
``signal_to_noise``. results/runs.csv has a line for each cell and method with a ratio below 10, and
the mean accuracy of its seeds. Cells of which DPFED_DATA lacks the data are named on stderr; runs
without an accuracy are left out.
"""

from __future__ import annotations

import csv
import gzip
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from dpfed.accounting.signal import Signal
from dpfed.core.errors import DpfedError
from dpfed.recipes.federation import Federation, federation
from dpfed.recipes.session import prepare
from dpfed_lab.jobs import make_job
from dpfed_lab.study import STUDIES, Study, cells, load_study, study_names

OUT = Path(__file__).parent / "results/runs.csv"
FACTS = ("clients", "unit", "trust", "units", "parameters")
COLUMNS = ("study", "cell", *FACTS, "method", "ratio", "accuracy")
MOST = 10.0
"""From this ratio on nothing is in question."""
Run = dict[str, Any]


class Loaded:
    """The last federation that was loaded: neighbouring cells share it."""

    def __init__(self) -> None:
        self.key = b""
        self.made: Federation | None = None

    def of(self, recipe: Any) -> Federation:
        """The federation of a recipe's data, model, evaluation and seed."""
        parts = (recipe.data, recipe.model, recipe.evaluation, recipe.seed)
        key = msgspec.json.encode(parts)
        if self.made is None or key != self.key:
            self.key, self.made = key, federation(recipe)
        return self.made


def final_runs(name: str) -> list[Run]:
    """The runs of a study's tables that have an accuracy."""
    path = STUDIES / name / "results/runs.jsonl.gz"
    if not path.exists():
        return []
    found = map(json.loads, gzip.decompress(path.read_bytes()).decode().splitlines())
    return [run for run in found if run.get("stage") == "final" and run.get("accuracy")]


def signal(study: Study, changes: dict[str, Any], run: Run, loaded: Loaded) -> Signal:
    """Of one cell and method, by the settings of a run of it."""
    methods = {each.label: each.set for each in study.methods}
    own = {**methods[run["method"]], **changes, **run["set"], "seed": run["seed"]}
    recipe = make_job(study.base, {}, own).recipe
    session = prepare(recipe, None, loaded.of(recipe))
    return session.plan.signal_to_noise(session.federation.model.layout)


def lines(name: str) -> Iterator[tuple[Any, ...]]:
    """One line for each cell and method of a study."""
    study, loaded, runs = load_study(name), Loaded(), final_runs(name)
    for cell, changes in cells(study):
        by_method = defaultdict(list)
        for run in runs:
            if all(run.get(label) == value for label, value in cell.items()):
                by_method[run["method"]].append(run)
        known = {each.label for each in study.methods}
        try:
            found = {
                method: (
                    signal(study, changes, same[0], loaded),
                    statistics.fmean(run["accuracy"] for run in same),
                )
                for method, same in by_method.items()
                if method in known
            }
        except DpfedError as error:
            print(f"{name}, {cell}: {error}", file=sys.stderr)
            continue
        for method, (seen, reached) in found.items():
            if seen.ratio < MOST:
                yield (
                    *(name, " / ".join(cell.values()), seen.clients, seen.unit, seen.trust),
                    *(f"{seen.rows:g}", seen.parameters, method),
                    *(f"{seen.ratio:.4g}", f"{reached:.4f}"),
                )


def main() -> None:
    made: list[tuple[Any, ...]] = []
    for name in sys.argv[1:] or study_names():
        made += lines(name)
    with OUT.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *made])


if __name__ == "__main__":
    main()
