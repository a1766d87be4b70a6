# SPDX-License-Identifier: Apache-2.0
"""What the runs of a study reached, by cell, method, seed and round.

Accuracy is given in percent as mean ± sample standard deviation over seeds. Where a study has no
classes, its loss takes that place, and less is better. A seed that is missing or diverged is left
out of the mean and named in the note: a mean over fewer seeds is never shown as if it were over
all.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpfed_lab.jobs import Row, diverged
from dpfed_lab.study import Cell, Study, cells
from dpfed_lab.sweep import label_of, settings_for
from dpfed_lab.table import NOTHING, Number, Value

Settings = Mapping[str, Mapping[str, Any]]
"""The content of settings.json: cell and method -> set, validation, tried."""


@dataclass(frozen=True)
class Measure:
    """What the runs of a study are judged by."""

    key: str
    """The key in a stored run."""
    name: str
    label: str
    scale: float
    sign: int
    """+1 if more is better, -1 if less is."""
    decimals: int | None
    """None: four significant figures, since losses have no scale of their own."""
    unit: str = ""
    """The unit of a difference."""

    def value(self, raw: Any) -> float | None:
        """A stored figure as the tables show it; None if there is none."""
        return self.scale * float(raw) if _finite(raw) else None

    def digits(self, *figures: float) -> int:
        """Decimals for the largest of these figures."""
        if self.decimals is not None:
            return self.decimals
        largest = max(map(abs, figures), default=0.0)
        return max(0, 3 - math.floor(math.log10(largest))) if largest else 3

    def wide(self, figures: Sequence[float]) -> bool:
        """Whether figures need a logarithmic axis: losses over more than a decade."""
        if self.decimals is not None or not figures or min(figures) <= 0:
            return False
        return max(figures) / min(figures) > 10


ACCURACY = Measure(
    key="accuracy",
    name="accuracy",
    label="accuracy (%)",
    scale=100.0,
    sign=1,
    decimals=2,
    unit="points",
)
LOSS = Measure(key="loss", name="loss", label="loss", scale=1.0, sign=-1, decimals=None)

BySeed = dict[int, float]


def _finite(raw: Any) -> bool:
    return raw is not None and math.isfinite(raw)


def cell_words(cell: Mapping[str, str]) -> str:
    """A cell's name in titles."""
    glue = "; " if any("," in value for value in cell.values()) else ", "
    return glue.join(f"{axis} {value}" for axis, value in cell.items()) or "all runs"


def final_rows(study: Study, rows: Iterable[Row], settings: Settings | None = None) -> list[Row]:
    """The final runs that the study asks for, one per cell, method and seed.

    A folder may also hold runs of other seeds, of a miniature, or at settings that a later search
    replaced. Among runs of the same name, the one that was stored last counts.

    Args:
        study: the study.
        rows: stored runs of any kind.
        settings: the settings that a run must have used; None takes runs at any settings.
    """
    asked = {
        _name(cell, method.label, seed): (cell, base, method)
        for cell, base in cells(study)
        for method in study.methods
        for seed in study.final.seeds
    }
    found: dict[str, Row] = {}
    for row in rows:
        name = _name(cell_of(study, row), row.get("method"), row.get("seed"))
        if row.get("stage") != "final" or name not in asked:
            continue
        cell, base, method = asked[name]
        used = row.get("set") or {}
        rounds = {**method.set, **base, **used}.get("rounds", study.base.get("rounds"))
        chosen = settings_for(study, settings, cell, method.label) if settings else {}
        if rounds in (None, row["rounds"]) and chosen in ({}, used):
            found[name] = row
    return [found[name] for name in asked if name in found]


def cell_of(study: Study, row: Row) -> Cell:
    """The cell that a run belongs to."""
    return {axis.label: str(row.get(axis.label)) for axis in study.axes}


def _name(cell: Cell, method: Any, seed: Any) -> str:
    return label_of(cell, f"{method} seed {seed}")


@dataclass(frozen=True)
class Scores:
    """What the runs reached: by cell and method, seed, and round."""

    study: Study
    measure: Measure
    runs: Mapping[str, Mapping[int, Mapping[int, float]]]

    def at(self, cell: Cell, method: str, round: int | None = None) -> BySeed:
        """Seed -> figure at a round; without one, at the end."""
        runs = self.runs.get(label_of(cell, method), {})
        wanted = {seed: max(by, default=0) if round is None else round for seed, by in runs.items()}
        return {seed: by[wanted[seed]] for seed, by in runs.items() if wanted[seed] in by}

    def rounds(self, cell: Cell) -> list[int]:
        """The rounds at which anything was measured in a cell."""
        runs = (self.runs.get(label_of(cell, m.label), {}) for m in self.study.methods)
        return sorted({at for by_seed in runs for by in by_seed.values() for at in by})

    def number(self, cell: Cell, method: str, round: int | None = None) -> Value:
        """Mean ± std over the seeds that have a figure."""
        values = list(self.at(cell, method, round).values())
        return number(values, self.measure)

    def mean(self, cell: Cell, method: str, round: int | None = None) -> float | None:
        """The mean over seeds, if there is any."""
        values = self.at(cell, method, round)
        return statistics.fmean(values.values()) if values else None

    def fewer(self, cell: Cell) -> list[str]:
        """Methods that have fewer seeds than the study asks for, in words."""
        wanted = len(self.study.final.seeds)
        have = {m.label: len(self.at(cell, m.label)) for m in self.study.methods}
        return [f"{name} ({count} of {wanted})" for name, count in have.items() if count < wanted]


def scores(study: Study, rows: Iterable[Row]) -> Scores:
    """The final runs as figures; accuracy if any run has one, or else the loss."""
    found = final_rows(study, rows)
    classes = any(_finite(row["accuracy"]) for row in found) or not found
    measure = ACCURACY if classes else replace(LOSS, name=study.loss, label=study.loss)
    runs: dict[str, dict[int, dict[int, float]]] = {}
    for row in found:
        name = label_of(cell_of(study, row), row["method"])
        runs.setdefault(name, {})[row["seed"]] = _by_round(row, measure)
    return Scores(study, measure, runs)


def _by_round(row: Row, measure: Measure) -> dict[int, float]:
    """By round; a run that diverged has no figure: its earlier rounds would flatter it."""
    last = None if diverged(row) else measure.value(row[measure.key])
    if last is None:
        return {}
    # by_round has the loss only where there is no accuracy
    same = measure is ACCURACY or row["accuracy"] is None
    measured = row.get("by_round") or {} if same else {}
    values = {int(at): measure.value(raw) for at, raw in measured.items()}
    return {**{r: v for r, v in sorted(values.items()) if v is not None}, row["rounds"]: last}


def number(values: Sequence[float], measure: Measure) -> Value:
    """Mean ± std of figures, if there are any."""
    if not values:
        return NOTHING
    mean = statistics.fmean(values)
    return Number(mean, std(values), measure.digits(mean))


def std(values: Sequence[float]) -> float | None:
    """The sample standard deviation; None of a single figure."""
    return statistics.stdev(values) if len(values) > 1 else None


def seeds_note(study: Study) -> str:
    """What the figure after ± is."""
    count = len(study.final.seeds)
    if count == 1:
        return "One seed, so no standard deviation."
    return f"Mean ± sample standard deviation over {count} seeds."


def fewer_note(found: Scores, where: Iterable[Cell]) -> str:
    """Which means are over fewer seeds than asked for, in which cells."""
    parts = [
        f"{cell_words(cell)}: {', '.join(found.fewer(cell))}" for cell in where if found.fewer(cell)
    ]
    return f"Fewer seeds than asked for: {'; '.join(parts)}." if parts else ""


def sentences(*parts: str) -> str:
    """Those that say something, as one text."""
    return " ".join(part for part in parts if part)
