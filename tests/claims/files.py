# SPDX-License-Identifier: Apache-2.0
"""From the committed files to figures: a method's mean in a cell, its lead, and what a claim is."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from dpfed_lab.jobs import diverged
from dpfed_lab.scores import ACCURACY
from dpfed_lab.significance import Gap, paired_gap

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "results"


def results_of(folder: str) -> Path:
    """Where results are kept: in the folder of their study, or in results/ if they are of none."""
    study = ROOT / "lab" / "studies" / folder / "results"
    return study if study.is_dir() else RESULTS / folder


@cache
def rows(folder: str, name: str = "final.csv") -> list[dict[str, str]]:
    with (results_of(folder) / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def seeds(folder: str, method: str, column: str = "accuracy", **cell: Any) -> dict[int, float]:
    """Seed -> percent, of a method in a cell; a cell's values as the file writes them.

    A run that diverged is in no figure.
    """
    found = {
        int(row["seed"]): 100 * float(row[column])
        for row in rows(folder)
        if row["method"] == method
        and all(row[key] == str(cell[key]) for key in cell)
        and not diverged(row)
    }
    assert found, f"no run of {method} in {folder} at {cell}"
    return found


def mean(folder: str, method: str, column: str = "accuracy", **cell: Any) -> float:
    return statistics.fmean(seeds(folder, method, column, **cell).values())


def table_row(folder: str, method: str, axis: str, values: Iterable[str]) -> tuple[float, ...]:
    """Mean and standard deviation at each value of an axis."""
    found = [seeds(folder, method, **{axis: value}).values() for value in values]
    return tuple(x for each in found for x in (statistics.fmean(each), statistics.stdev(each)))


def gap(folder: str, method: str, other: str = "DP-FedGD", **cell: Any) -> Gap:
    """A method less another one, paired by seed."""
    pair = paired_gap(seeds(folder, method, **cell), seeds(folder, other, **cell), ACCURACY)
    assert pair is not None
    return pair


def lead(folder: str, method: str, other: str = "DP-FedGD", **cell: Any) -> float:
    return gap(folder, method, other, **cell).mean


def significant(*gaps: Gap) -> None:
    assert all(each.significant for each in gaps)


def methods_of(folder: str, but: Iterable[str] = ()) -> list[str]:
    return [m for m in dict.fromkeys(row["method"] for row in rows(folder)) if m not in but]


def cells_of(folder: str, **only: tuple[str, ...]) -> list[dict[str, str]]:
    """Every cell of a folder whose values are among these."""
    (names,) = {tuple(row)[: tuple(row).index("method")] for row in rows(folder)}
    found = [{name: row[name] for name in names} for row in rows(folder)]
    kept = [cell for cell in found if all(cell[name] in only[name] for name in only)]
    return list({tuple(cell.values()): cell for cell in kept}.values())


def at_edges(folder: str, **only: str) -> list[dict[str, str]]:
    """The chosen settings that are the least or the largest that was tried."""
    chosen = rows(folder, "tables/settings.csv")
    return [
        row for row in chosen if row["at an edge"] and all(row[name] == only[name] for name in only)
    ]


def nine(folder: str, **cell: Any) -> list[float]:
    """The means of all methods but DP-FTRL."""
    return [mean(folder, m, **cell) for m in methods_of(folder, ("DP-FTRL",))]


def spread(folder: str, **cell: Any) -> float:
    return furthest(folder, methods_of(folder, ("DP-FTRL",)), **cell)


def furthest(folder: str, methods: Iterable[str], **cell: Any) -> float:
    """How far the best of these methods is from the last."""
    figures = [mean(folder, method, **cell) for method in methods]
    return max(figures) - min(figures)


def best_lead(folder: str, **cell: Any) -> float:
    return max(nine(folder, **cell)) - mean(folder, "DP-FedGD", **cell)


def ends(figures: Iterable[float]) -> tuple[float, float]:
    found = sorted(figures)
    return found[0], found[-1]


class Claim(NamedTuple):
    page: str
    text: str
    """With one gap of str.format for each figure."""
    figures: Callable[[], tuple[Any, ...]]


TUNED = ("DP-FedGD", "EMA-only", "DP-FedAdam")


def by_holm(folder: str) -> list[dict[str, str]]:
    """The differences of a folder that are significant after Holm's correction."""
    return [
        r
        for r in rows(folder, "tables/paired.csv")
        if r["p (Holm)"] and float(r["p (Holm)"]) < 0.05
    ]
