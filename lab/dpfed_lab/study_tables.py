# SPDX-License-Identifier: Apache-2.0
"""The tables of a study, made from its stored runs: pure functions, rows in, a table out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from dpfed.accounting import gdp
from dpfed.recipes.schema import PrivacyRecipe
from dpfed_lab.jobs import Row
from dpfed_lab.scores import (
    ACCURACY,
    Scores,
    Settings,
    cell_of,
    cell_words,
    fewer_note,
    final_rows,
    number,
    scores,
    seeds_note,
    sentences,
)
from dpfed_lab.significance import mark, mark_note
from dpfed_lab.study import Cell, Contestant, Study, cells, tuned_cell
from dpfed_lab.sweep import (
    Entry,
    at_edges,
    entries_of,
    label_of,
    settings_for,
    tuning_cost,
)
from dpfed_lab.table import NOTHING, Number, Table, Value, best

# -------------------------------------------------------------------------------- accuracy, speed


def progress_table(study: Study, rows: Iterable[Row], cell: Cell) -> Table:
    """Accuracy at each measured round, one row per method (Nair et al. 2026, Table 3).

    Args:
        study: the study.
        rows: its stored runs.
        cell: the cell that the table is about.
    """
    found = scores(study, rows)
    rounds = found.rounds(cell)
    body = [(m.label, *(found.number(cell, m.label, r) for r in rounds)) for m in study.methods]
    return Table(
        title=f"{found.measure.label.capitalize()} by round: {cell_words(cell)}",
        columns=("method", *(f"round {r}" for r in rounds)),
        rows=tuple(body),
        note=sentences(seeds_note(study), fewer_note(found, [cell])),
        bold=frozenset(best(body, range(1, 1 + len(rounds)), found.measure.sign)),
    )


def final_table(study: Study, rows: Iterable[Row]) -> Table:
    """Methods by the first axis, at the last round; further axes are columns on the left."""
    found = scores(study, rows)
    fewer = fewer_note(found, (cell for cell, _ in cells(study)))
    note = sentences(seeds_note(study), mark_note(found), fewer)

    def value(cell: Cell, method: str) -> Value:
        figure = found.number(cell, method)
        return (
            replace(figure, mark=mark(found, cell, method))
            if isinstance(figure, Number)
            else figure
        )

    title = f"{found.measure.label.capitalize()} at the last round"
    return _by_first_axis(study, title, note, value, found.measure.sign)


def speed_table(study: Study, rows: Iterable[Row], share: float = 0.95) -> Table:
    """The first measured round at which the mean is that part of the baseline's final mean.

    A share of a loss would mean nothing, so a loss has to reach all of it.

    Args:
        study: the study, whose baseline is the goal.
        rows: its stored runs.
        share: the part of the baseline's final accuracy that has to be reached, above 0.
    """
    found = scores(study, rows)
    part = share if found.measure is ACCURACY else 1.0
    goals = {cell_words(cell): _goal(found, cell, part) for cell, _ in cells(study)}

    def reached(cell: Cell, method: str) -> Value:
        means = ((at, found.mean(cell, method, at)) for at in found.rounds(cell))
        there = (at for at, mean in means if _reaches(found, mean, goals[cell_words(cell)]))
        first = next(there, None)
        return NOTHING if first is None else Number(first, digits=0)

    words = "; ".join(
        f"{name}: {Number(goal, digits=found.measure.digits(goal))}"
        for name, goal in goals.items()
        if goal is not None
    )
    note = (
        f"To reach, {found.measure.label}: {words}. Measured every {study.final.every} rounds."
        if words
        else f"No {found.measure.name} of {study.baseline} to compare with."
    )
    of = "" if part == 1 else f"{100 * part:g} % of "
    title = f"Rounds to {of}the final {found.measure.name} of {study.baseline}"
    return _by_first_axis(study, title, note, reached, -1)


def _goal(found: Scores, cell: Cell, part: float) -> float | None:
    final = found.mean(cell, found.study.baseline)
    return None if final is None else part * final


def _reaches(found: Scores, mean: float | None, goal: float | None) -> bool:
    sign = found.measure.sign
    return mean is not None and goal is not None and sign * mean >= sign * goal


def _by_first_axis(
    study: Study, title: str, note: str, value: Callable[[Cell, str], Value], sign: int
) -> Table:
    """One row per method, one column per value of the first axis, blocks for the other axes."""
    others = study.axes[1:]
    blocks: dict[str, list[Cell]] = {}
    for cell, _ in cells(study):
        blocks.setdefault(cell_words({a.label: cell[a.label] for a in others}), []).append(cell)
    body: list[tuple[Value, ...]] = []
    bold: set[tuple[int, int]] = set()
    for block in blocks.values():
        left = [block[0][axis.label] for axis in others]
        part = [(*left, m.label, *(value(c, m.label) for c in block)) for m in study.methods]
        bold |= best(part, range(len(left) + 1, len(part[0])), sign, len(body))
        body += part
    first = [
        cell_words({a.label: c[a.label] for a in study.axes[:1]})
        for c in next(iter(blocks.values()))
    ]
    columns = (*(axis.label for axis in others), "method", *first)
    return Table(title=title, columns=columns, rows=tuple(body), note=note, bold=frozenset(bold))


# ------------------------------------------------------------------------------------------- silos


def silos_table(study: Study, rows: Iterable[Row]) -> Table:
    """If each silo judged by itself: the mean over silos, and the one that is served worst."""
    worst: dict[str, list[float]] = {}
    for row in final_rows(study, rows):
        figure = ACCURACY.value(row.get("worst_silo"))
        if figure is not None:
            worst.setdefault(label_of(cell_of(study, row), row["method"]), []).append(figure)
    found = scores(study, rows)
    body: list[tuple[Value, ...]] = []
    bold: set[tuple[int, int]] = set()
    for cell, _ in cells(study) if worst else ():
        part = [
            (
                *cell.values(),
                m.label,
                found.number(cell, m.label),
                number(worst.get(label_of(cell, m.label), []), ACCURACY),
            )
            for m in study.methods
        ]
        bold |= best(part, (len(cell) + 1, len(cell) + 2), 1, len(body))
        body += part
    columns = (*_axes(study), "method", "mean (%)", "worst silo (%)")
    note = (
        "Mean: over silos, each with the weight of its records. Worst: the silo with the lowest "
        f"accuracy, which need not be the same in every run. {seeds_note(study)}"
    )
    return Table(
        title="Accuracy on the silos' own records",
        columns=columns,
        rows=tuple(body),
        note=note,
        bold=frozenset(bold),
    )


# ---------------------------------------------------------------------------------------- settings


def _axes(study: Study) -> list[str]:
    return [axis.label for axis in study.axes]


def settings_table(study: Study, rows: Iterable[Row], settings: Settings) -> Table:
    """What was chosen, how it did on held-out records, and what the search would cost.

    Args:
        study: the study.
        rows: its stored final runs, which say what one run costs.
        settings: what a search has chosen, by cell and method, as in settings.json.
    """
    rows, body = list(rows), []
    measure = scores(study, rows).measure
    for cell, changes, method in entries_of(study):
        entry = settings.get(label_of(cell, method.label), {})
        chosen = settings_for(study, settings, cell, method.label)
        # where no table of settings is at hand, what the final runs say of themselves
        used = [row.get("set") for row in _runs_of(study, rows, cell, method)]
        words = setting_words(next(filter(None, [chosen, *used]), {}))
        validation, tried = measure.value(entry.get("validation")), int(entry.get("tried", 0))
        figures = [
            number([] if validation is None else [validation], measure),
            Number(tried, digits=0) if tried else NOTHING,
            _cost(tried, _cost_of_one(study, rows, (cell, changes, method))) if tried else NOTHING,
        ]
        edges = ", ".join(at_edges(method, chosen)) if tried else ""
        body.append((*cell.values(), method.label, words, *figures, edges or NOTHING))
    judged = "validation (%)" if measure is ACCURACY else f"validation {measure.label}"
    columns = (
        *_axes(study),
        "method",
        "setting",
        judged,
        "tried",
        "composed epsilon",
        "at an edge",
    )
    note = (
        "Composed epsilon: against a server that sees every run that was tried, for Gaussian "
        "releases, at the delta of one run; a setting that two grids share counts twice. The runs' "
        "own epsilon does not cover this search. At an edge: the value chosen is the least or the "
        "largest that was tried, so a better one may lie beyond."
    )
    note = sentences(note, *_borrowed(study))
    return Table("Settings, and what their search would cost", columns, tuple(body), note)


def _borrowed(study: Study) -> list[str]:
    """Which cells use the settings of another one."""
    lent: dict[str, list[str]] = {}
    for cell, _ in cells(study):
        if (lender := tuned_cell(study, cell)) != cell:
            lent.setdefault(cell_words(lender), []).append(cell_words(cell))
    return [
        f"Also used by {'; '.join(names)}: the settings of {lender}."
        for lender, names in lent.items()
    ]


def search_cost(
    study: Study, rows: Iterable[Row], settings: Settings, cell: Cell | None = None
) -> tuple[int, float | None]:
    """How many runs the search made, in a cell or in all, and their epsilon together.

    All of them looked at the same records. None if the epsilon of one of them is not known.

    Args:
        study: the study.
        rows: its stored final runs, which say what one run costs.
        settings: what a search has chosen and how many it has tried, by cell and method.
        cell: only the search in this cell; None means all cells together.
    """
    rows, runs, squares, deltas = list(rows), 0, 0.0, [0.0]
    for place, changes, method in entries_of(study):
        tried = int(settings.get(label_of(place, method.label), {}).get("tried", 0))
        if not tried or cell not in (None, place):
            continue
        epsilon, delta = _cost_of_one(study, rows, (place, changes, method)) or (math.nan, 0.0)
        runs += tried
        squares += tried * (gdp.mu_for(epsilon, delta) ** 2 if math.isfinite(epsilon) else epsilon)
        deltas.append(delta)
    if not runs or math.isnan(squares):
        return runs, None
    return runs, gdp.epsilon_for(max(deltas), math.sqrt(squares))


def _cost(tried: int, one: tuple[float, float] | None) -> Value:
    """The epsilon of all tried runs together; ``one`` is the epsilon and the delta of each."""
    if one is None:
        return NOTHING
    return Number(tuning_cost(tried, *one)) if math.isfinite(one[0]) else "no privacy"


def _cost_of_one(study: Study, rows: Iterable[Row], entry: Entry) -> tuple[float, float] | None:
    """Epsilon against the server and delta of one run: as the final runs say, or as asked for.

    Trials aim at the same epsilon. Where a study fixes the noise instead, those with fewer rounds
    cost less than this.
    """
    cell, axes, method = entry
    changes, base = {**method.set, **axes}, study.base.get("privacy", {})
    delta = changes.get("privacy.delta", base.get("delta", PrivacyRecipe().delta))
    spent = [row["epsilon_server"] for row in _runs_of(study, rows, cell, method)]
    epsilon = max(spent) if spent else changes.get("privacy.epsilon", base.get("epsilon"))
    return None if epsilon is None else (float(epsilon), float(delta))


def _runs_of(study: Study, rows: Iterable[Row], cell: Cell, method: Contestant) -> list[Row]:
    return [
        row
        for row in final_rows(study, rows)
        if row["method"] == method.label and all(str(row[a]) == v for a, v in cell.items())
    ]


def setting_words(chosen: Mapping[str, Any]) -> str:
    """A setting in one line."""
    texts = (f"{value:g}" if isinstance(value, float) else value for value in chosen.values())
    return ", ".join(f"{key} = {text}" for key, text in zip(chosen, texts, strict=True)) or NOTHING
