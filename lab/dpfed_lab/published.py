# SPDX-License-Identifier: Apache-2.0
"""A paper's printed figures beside ours.

``studies/NAME/paper.csv`` has a column for each axis that the paper varies, then method, round,
accuracy in percent, and std where it is printed. Axes that it does not name are at their first
value. Absolute figures depend on what we do not share with a paper (its features, its split), so
the table also has both leads over the baseline, which can be compared.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpfed.core.errors import RecipeError
from dpfed_lab.jobs import Row
from dpfed_lab.scores import Scores, cell_words, scores, seeds_note, sentences
from dpfed_lab.significance import gap
from dpfed_lab.study import Cell, Study
from dpfed_lab.table import NOTHING, Number, Table, Value

PAPER = "paper.csv"
"""In a study's folder."""

COLUMNS = ("method", "round", "accuracy", "std")


@dataclass(frozen=True)
class Printed:
    """One figure of a paper, in the cell of the study that it belongs to."""

    cell: Cell
    method: str
    round: int
    accuracy: Number


@dataclass(frozen=True)
class Paper:
    """All printed figures, and the axes that the paper varies."""

    axes: tuple[str, ...]
    figures: tuple[Printed, ...]

    def ends(self) -> set[int]:
        """The first and the last printed round."""
        rounds = [each.round for each in self.figures]
        return {min(rounds), max(rounds)} if rounds else set()


def read_paper(path: Path, study: Study) -> Paper:
    """A paper.csv, checked against the study."""
    with path.open(encoding="utf-8", newline="") as file:
        lines = csv.DictReader(file)
        named = tuple(lines.fieldnames or ())
        _check(path, study, named)
        axes = tuple(name for name in named if name not in COLUMNS)
        return Paper(axes, tuple(_printed(path, study, axes, line) for line in lines))


def _check(path: Path, study: Study, named: Sequence[str]) -> None:
    known = {axis.label for axis in study.axes}
    if missing := set(COLUMNS) - {"std"} - set(named):
        raise RecipeError(
            f"{path.name} must have the columns method, round and accuracy, got "
            f"{', '.join(named) or 'none'}; add {', '.join(sorted(missing))}"
        )
    if odd := set(named) - set(COLUMNS) - known:
        words = ", ".join(sorted(known)) or "none"
        raise RecipeError(
            f"{path.name} must have no columns but {', '.join(COLUMNS)} and the study's axes "
            f"({words}), got {', '.join(sorted(odd))}; rename or drop them"
        )


def _printed(path: Path, study: Study, axes: Sequence[str], line: Mapping[str, str]) -> Printed:
    cell = {
        axis.label: line[axis.label] if axis.label in axes else next(iter(axis.options()))
        for axis in study.axes
    }
    try:
        spread = float(line["std"]) if line.get("std") else None
        figure = Number(float(line["accuracy"]), spread)
        return Printed(cell, line["method"], int(line["round"]), figure)
    except ValueError as error:
        raise RecipeError(
            f"{path.name} must have numbers for round, accuracy and std, got {dict(line)}; correct "
            f"that line"
        ) from error


def side_by_side(
    study: Study, rows: Iterable[Row], paper: Paper, rounds: Iterable[int] | None = None
) -> Table:
    """Theirs, ours, the difference, and both leads over the baseline.

    Where we have no run at a round, nothing is compared.

    Args:
        study: the study that our runs belong to.
        rows: our runs.
        paper: the printed figures.
        rounds: the rounds to show; None is the first and the last that are printed.
    """
    found, asked = scores(study, rows), set(paper.ends() if rounds is None else rounds)
    figures = [each for each in paper.figures if each.round in asked]
    theirs = {(cell_words(p.cell), p.method, p.round): p.accuracy for p in figures}
    body = [
        (*(p.cell[axis] for axis in paper.axes), *_line(found, p, theirs))
        for p in sorted(figures, key=lambda p: _place(study, p))
    ]
    leads = (f"theirs less {study.baseline}", f"ours less {study.baseline}")
    columns = (*paper.axes, "method", "round", "theirs", "ours", "difference", *leads)
    rest = {
        axis.label: next(iter(axis.options()))
        for axis in study.axes
        if axis.label not in paper.axes
    }
    note = sentences(
        seeds_note(study),
        f"Ours at {cell_words(rest)}." if rest else "",
        "Difference: ours less theirs, in points. Absolute figures depend on the features; what "
        f"compares is the lead over {study.baseline} (ours paired by seed).",
    )
    return Table("Published figures beside ours, accuracy (%)", columns, tuple(body), note)


def _line(
    found: Scores, printed: Printed, theirs: Mapping[tuple[str, str, int], Number]
) -> tuple[Value, ...]:
    cell, method, at, figure = printed.cell, printed.method, printed.round, printed.accuracy
    ours, other = found.number(cell, method, at), found.study.baseline
    apart = Number(ours.mean - figure.mean) if isinstance(ours, Number) else NOTHING
    their_lead: Value = NOTHING
    our_lead: Value = NOTHING
    if method != other:
        base, pair = theirs.get((cell_words(cell), other, at)), gap(found, cell, method, other, at)
        their_lead = NOTHING if base is None else Number(figure.mean - base.mean)
        our_lead = NOTHING if pair is None else Number(pair.mean, pair.std)
    return method, Number(at, digits=0), figure, ours, apart, their_lead, our_lead


def _place(study: Study, printed: Printed) -> tuple[object, ...]:
    """In the study's order; what the study does not have comes last."""
    labels = [method.label for method in study.methods]
    axes = (_at(printed.cell[axis.label], list(axis.options())) for axis in study.axes)
    return (*axes, _at(printed.method, labels), printed.round)


def _at(name: str, known: list[str]) -> tuple[int, str]:
    return (known.index(name) if name in known else len(known), name)
