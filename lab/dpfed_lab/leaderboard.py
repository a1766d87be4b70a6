# SPDX-License-Identifier: Apache-2.0
"""All final runs of a folder of studies as one board: method x data set x epsilon x trust.

The boards are values; leaderboard_page.py writes them as HTML and Markdown. They are made from each
study's study.toml, settings.json and final.csv; nothing is run. A board has the lines that can be
compared: the same records, division into clients, model, unit, adjacency, delta and trust. Lines
whose settings were searched on the same records stand apart from those whose settings cost nothing.

| what is found | what becomes of it |
|---|---|
| the best mean of a column that has two or more | best, in bold |
| the paired 95 % t interval of best less a line, over the seeds that both have, has 0 in it | "≈" |
| a seed without a finite figure, or with a loss above DIVERGED | "n of m diverged", no mean |
| the same figures, seed by seed, in two studies | one line with two links |
| a study whose final runs have one seed, or with withdrawn.md in its folder | left out and listed |
| a study of noise levels, where methods have different epsilons | left out and listed |
"""

from __future__ import annotations

import csv
import json
import math
import os
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from dpfed.core.errors import RecipeError
from dpfed.recipes.schema import Recipe
from dpfed_lab import study as studies
from dpfed_lab.jobs import diverged, make_job
from dpfed_lab.scores import ACCURACY, LOSS, BySeed, Measure, Settings, std
from dpfed_lab.significance import paired_gap
from dpfed_lab.study import Cell, Changes, Contestant, Study, cells, tuned_cell
from dpfed_lab.sweep import SETTINGS, label_of, settings_for
from dpfed_lab.table import NOTHING, Number, Value

WITHIN = "≈"
"""Beside a figure that the seeds cannot tell from the best of its column."""

WITHDRAWN = "withdrawn.md"
"""In a study's folder: why its figures are not to be used."""

NO_PRIVACY = "no privacy"

NAMES = {
    "a9a": "Adult",
    "cifar10": "CIFAR-10",
    "cifar10-resnet14": "CIFAR-10, ResNet-14 features",
    "covid-radiography": "Chest X-rays",
    "credit-default": "Credit default",
    "fashion-mnist": "Fashion-MNIST",
    "har": "Human activity",
    "heart-disease": "Heart disease",
    "malaria": "Malaria cells",
    "medical": "Medical Abstracts",
    "mnist": "MNIST",
    "mnist-resnet14": "MNIST, ResNet-14 features",
    "pneumoniamnist": "PneumoniaMNIST",
    "sst2": "SST-2",
    "synthetic": "Synthetic",
}
"""Name of a data set's file -> its name on boards; others are called by the file's name."""

_DEVELOPMENT = {"Adult", "Chest X-rays", "CIFAR-10", "Fashion-MNIST", "Malaria cells"}
MADE_ON = dict.fromkeys(("dp-fedauto", "dp-fedsofim", "dp-fedsofim-printed"), _DEVELOPMENT)
"""Method -> the data sets that its constants were chosen on: untuned means less there."""

PLACE = (
    "data.",
    "model.",
    "evaluation.",
    "sum",
    "privacy.epsilon",
    "privacy.mechanism",
    "privacy.trust",
    "privacy.unit",
    "privacy.delta",
    "privacy.weights",
)
"""Keys of a recipe that say where a line stands; an axis without any is part of its method."""


@dataclass(frozen=True)
class Task:
    """What the lines of one board have in common."""

    records: str
    details: str
    trust: str
    measure: Measure
    identity: str
    """All that a figure depends on except the method: two boards may read alike and differ here."""


@dataclass(frozen=True)
class BoardLine:
    """One method of one study on one task, over epsilons."""

    task: Task
    name: str
    """The method's name in recipes."""
    method: str
    """The method's name in its study."""
    how: str
    """Rounds, centring, weights."""
    tuned: bool
    """Whether its settings were searched on these records."""
    settings: str
    """Where they come from."""
    studies: tuple[str, ...]
    figures: Mapping[str, BySeed]
    """Epsilon -> seed -> figure, as shown."""
    lost: Mapping[str, int]
    """Epsilon -> how many seeds diverged."""

    @property
    def at_home(self) -> bool:
        """Whether the method's own constants were chosen on these records."""
        return self.task.records in MADE_ON.get(self.name, ())

    def mean(self, epsilon: str) -> float | None:
        """The mean over seeds; None if there is none, or if one of them diverged."""
        values = self.figures.get(epsilon, {})
        return None if self.lost.get(epsilon) or not values else statistics.fmean(values.values())


@dataclass(frozen=True)
class Board:
    """The lines on one task that are ranked together, best first."""

    task: Task
    tuned: bool
    epsilons: tuple[str, ...]
    lines: tuple[BoardLine, ...]

    def best(self, epsilon: str) -> BoardLine | None:
        """The line with the best mean; None if fewer than two have a mean."""
        known = [line for line in self.lines if line.mean(epsilon) is not None]
        sign = self.task.measure.sign
        if len(known) < 2:
            return None
        return max(known, key=lambda line: sign * (line.mean(epsilon) or 0.0))

    def value(self, line: BoardLine, epsilon: str) -> Value:
        """What stands in a line's column."""
        values = list(line.figures.get(epsilon, {}).values())
        lost, mean = line.lost.get(epsilon, 0), line.mean(epsilon)
        if lost:
            return f"{lost} of {lost + len(values)} diverged"
        if mean is None:
            return NOTHING
        mark = WITHIN if self.within_noise(line, epsilon) else ""
        return Number(mean, std(values), self.task.measure.digits(mean), mark)

    def within_noise(self, line: BoardLine, epsilon: str) -> bool:
        """Whether the paired interval of the best less this line, which is not the best, has 0."""
        best = self.best(epsilon)
        if best is None or line is best or line.mean(epsilon) is None:
            return False
        pair = paired_gap(best.figures[epsilon], line.figures[epsilon], self.task.measure)
        return pair is not None and pair.std is not None and not pair.significant


# ------------------------------------------------------------------------------ from files to lines


@dataclass(frozen=True)
class Found:
    """All boards, what their studies are about, and the folders that have none, each with why."""

    boards: tuple[Board, ...]
    about: Mapping[str, str]
    left_out: Mapping[str, str]
    links: Mapping[str, str]
    """Study -> its folder, as the page links to it."""


def collect(results: Path, page: Path | None = None) -> Found:
    """The boards of all studies in a folder.

    Args:
        results: a folder with one folder per study: as ``dpfed sweep`` writes it, or with those
            files in its ``results``, as in the folders of the studies that come with the package.
        page: the folder that the page is for, which its links start from; None is ``results``.
    """
    folders = _folders(results)
    left_out = {name: why for name, folder in folders.items() if (why := _why_not(folder))}
    kept = {name: folder for name, folder in folders.items() if name not in left_out}
    lines = [line for name, folder in kept.items() for line in _lines(name, folder)]
    if not lines:
        raise RecipeError(
            f"results must hold folders with study.toml and final.csv, got {str(results)!r}; "
            "name the folder that 'dpfed sweep' or 'dpfed reproduce' wrote its studies into"
        )
    about = {name: _about(folder) for name, folder in kept.items()}
    top = page or results
    links = {
        n: f"{Path(os.path.relpath(folder, top)).as_posix()}/" for n, folder in folders.items()
    }
    return Found(tuple(_boards(_merged(lines))), about, left_out, links)


def _folders(results: Path) -> dict[str, Path]:
    """Study -> the folder with its final runs."""
    inside = sorted(results.glob("*/results/study.toml"))
    if inside:
        return {path.parents[1].name: path.parent for path in inside}
    return {path.parent.name: path.parent for path in sorted(results.glob("*/study.toml"))}


def _about(folder: Path) -> str:
    study = studies.load_study(folder / "study.toml")
    return f"{study.title}. {study.about}".strip()


def _why_not(folder: Path) -> str:
    """Why a folder has no line; nothing if it has."""
    if (folder / WITHDRAWN).exists():
        return " ".join((folder / WITHDRAWN).read_text(encoding="utf-8").split())
    if not (folder / "final.csv").exists():
        return "no final runs"
    if len({row["seed"] for row in _rows(folder)}) < 2:
        return "one seed, so nothing says how far its figures move by chance"
    axes = studies.load_study(folder / "study.toml").axes
    if any(axis.key == "privacy.std_over_clip" for axis in axes):
        return "at one noise multiplier, where its methods have different epsilons"
    return ""


def _rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "final.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _lines(name: str, folder: Path) -> Iterator[BoardLine]:
    """A study's methods, one line for each task and variant."""
    study = studies.load_study(folder / "study.toml")
    path = folder / SETTINGS
    settings = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    runs: dict[str, list[dict[str, str]]] = {}
    for row in _rows(folder):
        cell = {axis.label: row[axis.label] for axis in study.axes}
        runs.setdefault(label_of(cell, row["method"]), []).append(row)
    measure = ACCURACY if any(r["accuracy"] for rows in runs.values() for r in rows) else LOSS
    found: dict[tuple[Any, ...], BoardLine] = {}
    for cell, changes in cells(study):
        for method in study.methods:
            rows = runs.get(label_of(cell, method.label), [])
            line = _line(name, study, settings, (cell, changes, method), rows, measure)
            key = (line.task.identity, line.method, line.how, line.tuned)
            found[key] = _joined(found[key], line) if key in found else line
    yield from (line for line in found.values() if line.figures)


def _line(
    source: str,
    study: Study,
    settings: Settings,
    entry: tuple[Cell, Changes, Contestant],
    rows: Iterable[Mapping[str, str]],
    measure: Measure,
) -> BoardLine:
    """One cell's method, at its one epsilon."""
    cell, changes, method = entry
    chosen = settings_for(study, settings, cell, method.label)
    recipe = make_job(study.base, {}, {**method.set, **changes, **chosen}).recipe
    tuned, words = _settings_words(study, settings, cell, method, recipe)
    rows = list(rows)
    kept = {
        int(row["seed"]): measure.value(float(row[measure.key]))
        for row in rows
        if not diverged(row)
    }
    figures = {seed: value for seed, value in kept.items() if value is not None}
    epsilon = NO_PRIVACY if recipe.privacy.mechanism == "clear" else f"{recipe.privacy.epsilon:g}"
    name = str(method.set.get("method") or recipe.method or method.label)
    return BoardLine(
        task=_task(recipe, measure),
        name=name,
        method=_method_words(name, method.label, _variant(study, cell)),
        how=_how(recipe),
        tuned=tuned,
        settings=words,
        studies=(source,),
        figures={epsilon: figures} if rows else {},
        lost={epsilon: len(rows) - len(figures)} if len(figures) < len(rows) else {},
    )


def _joined(one: BoardLine, other: BoardLine) -> BoardLine:
    """The same line at further epsilons."""
    words = one.settings if other.settings in one.settings else f"{one.settings}; {other.settings}"
    return replace(
        one,
        settings=words,
        figures={**one.figures, **other.figures},
        lost={**one.lost, **other.lost},
    )


def _merged(lines: Iterable[BoardLine]) -> list[BoardLine]:
    """Runs that two studies share are one line: the same figures for every seed and epsilon."""
    found: dict[str, BoardLine] = {}
    for line in lines:
        figures = {epsilon: dict(values) for epsilon, values in line.figures.items()}
        key = json.dumps([line.task.identity, line.method, line.how, line.tuned, figures])
        twin = found.get(key)
        both = (*twin.studies, *line.studies) if twin else line.studies
        found[key] = replace(twin or line, studies=both)
    return list(found.values())


def _boards(lines: list[BoardLine]) -> Iterator[Board]:
    """The boards by data set, details and trust; tuned before untuned."""
    groups: dict[tuple[str, str, str, str, bool], list[BoardLine]] = {}
    for line in lines:
        p = line.task
        key = (p.records, p.details, p.trust, p.identity, not line.tuned)
        groups.setdefault(key, []).append(line)
    for key in sorted(groups):
        group = groups[key]
        epsilons = sorted({epsilon for line in group for epsilon in line.figures}, key=_size)
        board = Board(group[0].task, group[0].tuned, tuple(epsilons), tuple(group))
        yield replace(board, lines=tuple(sorted(group, key=lambda line: _behind(board, line))))


def _size(epsilon: str) -> float:
    return math.inf if epsilon == NO_PRIVACY else float(epsilon)


def _behind(board: Board, line: BoardLine) -> tuple[float, str]:
    """How far a line is behind the best of a column, on average over its columns."""
    behind = []
    for epsilon in board.epsilons:
        best, mean = board.best(epsilon), line.mean(epsilon)
        top = None if best is None else best.mean(epsilon)
        if mean is not None and top is not None:
            behind.append(board.task.measure.sign * (top - mean))
    return (statistics.fmean(behind) if behind else math.inf, line.method)


# ------------------------------------------------------------------------------- what a recipe says


def _task(recipe: Recipe, measure: Measure) -> Task:
    tree = msgspec.to_builtins(recipe)
    data = {key: value for key, value in tree["data"].items() if key != "center"}
    privacy = {key: tree["privacy"].get(key) for key in ("unit", "adjacency", "delta", "trust")}
    parts = [data, tree["model"], tree["evaluation"].get("kind"), privacy, measure.key]
    return Task(
        records=_records_of(recipe),
        details=", ".join(_details(recipe)),
        trust=str(recipe.privacy.trust),
        measure=measure,
        identity=json.dumps(parts, sort_keys=True),
    )


def _records_of(recipe: Recipe) -> str:
    source = recipe.data.source
    stem = Path(source if isinstance(source, str) else source[0]).stem
    return NAMES.get(stem, stem)


def _details(recipe: Recipe) -> Iterator[str]:
    """Whatever else makes a task another one, in words."""
    part, privacy = recipe.data.partition, recipe.privacy
    if recipe.data.source == "synthetic":
        yield from (f"{key} {value}" for key, value in recipe.data.options.items())
    if recipe.data.positive_above is not None:
        yield "two classes"
    clients = "" if part.clients is None else f"{part.clients} clients, "
    kind = {"natural": "as collected", "iid": "at random"}.get(part.name, part.name.capitalize())
    yield clients + " ".join(
        [kind, *(f"{value:g}" for value in part.options.values() if isinstance(value, int | float))]
    )
    if recipe.evaluation.kind == "exact":
        yield "judged on each client's own records"
    yield f"one {privacy.unit} protected ({privacy.adjacency}, delta {privacy.delta:.2g})"


def _how(recipe: Recipe) -> str:
    parts = [f"{recipe.rounds} rounds"]
    parts += ["centred"] if recipe.data.center else []
    parts += ["average"] if recipe.privacy.weights == "average" else []
    return ", ".join(parts)


def _variant(study: Study, cell: Cell) -> list[str]:
    """Values of the axes that are part of a method, such as a rate."""
    return [
        f"{axis.label} {cell[axis.label]}"
        for axis in study.axes
        if not any(key.startswith(PLACE) for key in axis.options()[cell[axis.label]])
    ]


def _method_words(name: str, label: str, variant: list[str]) -> str:
    """The study's label; with the method's own name where the label does not have it."""
    plain = name.lower().removeprefix("dp-").replace("-", "")
    known = plain in label.lower().replace("-", "")
    return ", ".join([label if known else f"{name}: {label}", *variant])


def _settings_words(
    study: Study, settings: Settings, cell: Cell, method: Contestant, recipe: Recipe
) -> tuple[bool, str]:
    """Whether settings were searched on the line's own records, and where they come from."""
    lender = tuned_cell(study, cell)
    entry = settings.get(label_of(lender, method.label), {})
    source = recipe.data.source
    if other := entry.get("lent"):
        here = source in _sources(other)
        return here, f"lent by {other}" + (", same records" if here else "")
    tried = int(entry.get("tried", 0))
    if tried < 2:  # one run is a look, not a choice
        return False, "fixed" if method.set.keys() - {"method", "rounds"} else "defaults"
    changes = next(changes for each, changes in cells(study) if each == lender)
    searched = make_job(study.base, {}, {**method.set, **changes}).recipe.data.source
    return searched == source, f"{tried} tried" + ("" if lender == cell else " at another cell")


@cache
def _sources(name: str) -> frozenset[str]:
    """The records that a study of the package looks at; none for a study that is not known."""
    if name not in studies.study_names():
        return frozenset()
    study = studies.load_study(name)
    base = study.base.get("data", {}).get("source", "synthetic")
    return frozenset(str(changes.get("data.source", base)) for _, changes in cells(study))
