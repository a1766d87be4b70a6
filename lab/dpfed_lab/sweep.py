# SPDX-License-Identifier: Apache-2.0
"""Search and run: settings by cell and method on held-out training records, then the final runs.

Two-stage grids as in Nair et al. 2026, Table 2: a coarse one, then a fine one; the better of both
stages is kept. Or Optuna (TPE), with ``tune.trials`` trials for each cell and method. Every trial
is a job in the store: a killed sweep resumes where it was, and the same study gives the same table.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from dpfed.accounting import gdp
from dpfed.core.checks import refuse
from dpfed.core.errors import RecipeError
from dpfed.core.extras import require_extra
from dpfed.core.randomness import public_seed
from dpfed.core.registry import check_names
from dpfed.recipes.schema import Recipe
from dpfed_lab import study as studies
from dpfed_lab.jobs import (
    Begin,
    Job,
    Progress,
    Queue,
    Row,
    Store,
    diverged,
    job_pool,
    make_job,
    run_jobs,
)
from dpfed_lab.study import Cell, Changes, Contestant, Study, cells, tuned_cell

RUNS, SETTINGS = "runs.jsonl", "settings.json"

Settings = dict[str, dict[str, Any]]
"""Cell and method, as text -> what was chosen, its validation accuracy (or loss, where labels are
not classes), how many were tried."""


Entry = tuple[Cell, Changes, Contestant]


@dataclass(frozen=True)
class Part:
    """One of several equal parts of a sweep, such as 3/8: every eighth entry, from the third on.

    An entry is a cell that is searched, with a method; its final runs go with it. So no part waits
    for another one, and the division depends on nothing but the study.

    >>> Part.parse("2/3").of_list([*range(8)])
    [1, 4, 7]
    """

    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Part:
        """A part as it is written on the command line.

        Args:
            text: such as 3/8.
        """
        number, slash, count = text.partition("/")
        plain = slash and number.isdecimal() and count.isdecimal()
        if not (plain and 1 <= int(number) <= int(count) <= MAX_PARTS):
            bound = f"like 3/8: the third of eight parts, at most {MAX_PARTS}"
            raise refuse("part", bound, text, "number them from 1")
        return cls(int(number), int(count))

    def of_list(self, whole: list[Any]) -> list[Any]:
        """This part of a list."""
        return whole[self.number - 1 :: self.count]

    @property
    def folder(self) -> str:
        """The name of the folder in which it runs, inside of the sweep's own."""
        return f"part-{self.number}-of-{self.count}"

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


MAX_PARTS = 10_000
WHOLE = Part()


@dataclass(frozen=True)
class Workspace:
    """Where a study runs: its store, its data, its workers."""

    study: Study
    folder: Path
    root: Path | None = None
    workers: int | None = None
    watch: Progress | None = None
    begin: Begin | None = None
    part: Part = WHOLE
    """Of a sweep on several machines: what this one does."""

    @property
    def entries(self) -> list[Entry]:
        """The cells and methods that are searched here."""
        return self.part.of_list(entries_of(self.study))

    def has(self, cell: Cell, method: str) -> bool:
        """Whether a cell's method is run here: where its settings are searched."""
        name = label_of(tuned_cell(self.study, cell), method)
        return name in {label_of(each[0], each[2].label) for each in self.entries}

    def store(self) -> Store:
        """All finished runs of the folder."""
        return Store.open(self.folder / RUNS)

    def run(self, jobs: list[Job], store: Store) -> list[Row]:
        """Those that are not stored yet, over the pool."""
        return run_jobs(jobs, store, self.workers, self.watch, self.begin)


def label_of(cell: Cell, method: str) -> str:
    """The name of a cell's method in the table of settings."""
    return " | ".join([*(f"{axis} {value}" for axis, value in cell.items()), method])


# ---------------------------------------------------------------------------------------- search


def search(workspace: Workspace) -> Settings:
    """The best settings for each cell and method."""
    check_keys(workspace)
    return _by_optuna(workspace) if workspace.study.tune.trials else _by_grids(workspace)


def entries_of(study: Study) -> list[Entry]:
    """Every cell that is searched, the changes that it means, and each method in it."""
    return [(cell, base, m) for cell, base in cells(study, tuned_only=True) for m in study.methods]


def _by_grids(workspace: Workspace) -> Settings:
    """All coarse runs of all cells first, then all fine ones: the pool is never short of work."""
    store, entries = workspace.store(), workspace.entries
    tried: dict[str, list[Row]] = {}
    for stage in ("coarse", "fine"):
        jobs = [job for entry in entries for job in _grid(workspace, entry, stage)]
        for row in workspace.run(jobs, store):
            tried.setdefault(row["entry"], []).append(row)
    return {name: _best(rows) for name, rows in tried.items()}


def check_keys(workspace: Workspace) -> None:
    """Refuse a misspelt name: it would make every point invalid, and the method look bad."""
    for entry in workspace.entries:
        method = entry[2]
        first = [
            {key: values[0] for key, values in grid.items() if values}
            for grid in (method.coarse, method.fine)
        ]
        first.append(
            {key: how.get("choices", [how.get("low")])[0] for key, how in method.space.items()}
        )
        for point in first:
            _check_tables(trial(workspace, entry, point).recipe, method.label)


def _check_tables(recipe: Recipe, label: str) -> None:
    tables = [("client", recipe.client), *(("server", table) for table in recipe.server)]
    for kind, table in tables:
        try:
            check_names(kind, str(table["name"]), set(table) - {"name"})
        except RecipeError as error:
            raise RecipeError(f"{label}: {error}") from error


def _grid(workspace: Workspace, entry: Entry, stage: str) -> list[Job]:
    grid: dict[str, list[Any]] = getattr(entry[2], stage)
    if not grid and stage == "fine":
        return []
    points = (dict(zip(grid, values, strict=True)) for values in product(*grid.values()))
    return [trial(workspace, entry, point) for point in points]


def trial(workspace: Workspace, entry: Entry, point: Changes) -> Job:
    """A run that judges a setting: fewer rounds, its own seed, test records never touched.

    A method that sets its own rounds keeps them, and the study's kind of evaluation is the judge:
    for "test", held-out training records are in the test records' place.

    Args:
        workspace: where the study runs; its study says how settings are judged.
        entry: the cell, the changes that it means, and the method.
        point: the setting, as changes by dotted key; it overrides the cell's and the method's own.
    """
    cell, base, method = entry
    tune = workspace.study.tune
    rounds = method.set.get("rounds", tune.rounds)
    judged = {
        "rounds": rounds,
        "evaluation.every": rounds,
        **_seeded(workspace.study, tuning_seed(workspace.study, cell)),
        "data.validation": tune.validation,
    }
    labels = {"entry": label_of(cell, method.label), "point": point, "stage": "tuning"}
    changes = {**method.set, **base, **point, **judged}
    made = make_job(workspace.study.base, labels, changes, workspace.root, brief=True)
    if made.recipe.evaluation.kind == "off":
        raise RecipeError(
            f"{labels['entry']}: evaluation.kind must not be 'off', which judges no "
            "setting; use 'test'"
        )
    return made


def tuning_seed(study: Study, cell: Cell) -> int:
    """The seed of a cell's trials: all its methods share one, and no two cells do."""
    return public_seed(study.tune.seed, label_of(cell, "trials"))


def _seeded(study: Study, seed: int) -> Changes:
    """The run's seed, and whatever else the study draws anew with it."""
    return dict.fromkeys(("seed", *study.final.redraw), seed)


def _best(rows: list[Row]) -> dict[str, Any]:
    """The highest validation accuracy of a trial that did not diverge; the first wins a tie.

    Where all diverged, the first has to be taken: the final runs then say so.
    """
    top = max(rows, key=lambda row: (score(row), "refused" not in row))
    if "refused" in top:
        raise RecipeError(f"{top['entry']}: no setting that was tried is valid; {top['refused']}")
    figure = top["accuracy"] if top["accuracy"] is not None else top["loss"]
    return {"set": top["point"], "validation": figure, "tried": len(rows)}


def at_edges(method: Contestant, chosen: Changes) -> list[str]:
    """The searched keys whose chosen value is the least or the largest that was tried.

    A better one may lie beyond: the search should be widened there. Of two values each is an edge,
    and says nothing; nor do words and switches.

    Args:
        method: what was searched.
        chosen: the setting that won.
    """
    return [key for key, value in chosen.items() if value in _ends(method, key)]


def _ends(method: Contestant, key: str) -> tuple[Any, ...]:
    """The least and the largest of three or more numbers that were tried."""
    tried = sorted(
        {
            value
            for grid in (method.coarse, method.fine)
            for value in grid.get(key, ())
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
    )
    return (tried[0], tried[-1]) if len(tried) > 2 else ()


def score(row: Row) -> float:
    """What a trial is judged by: accuracy, or minus the loss where labels are not classes.

    A trial that diverged has the least score, whatever its accuracy: the final runs at its setting
    would diverge, too, and have no figure at all.
    """
    if "refused" in row or diverged(row):
        return -math.inf
    value: float = row["accuracy"] if row["accuracy"] is not None else -row["loss"]
    return value if math.isfinite(value) else -math.inf


def _by_optuna(workspace: Workspace) -> Settings:
    """One Optuna study per cell and method; they run side by side, each deterministic by itself."""
    with require_extra("search", "tune.trials", "optuna"):
        import optuna
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    entries, tune = workspace.entries, workspace.study.tune
    count = workspace.workers or os.cpu_count() or 1
    total = len(entries) * tune.trials
    if workspace.begin:  # which of them are stored shows as they are asked for
        workspace.begin(0, total)
    with job_pool(count) as pool, ThreadPoolExecutor(count) as threads:
        queue = Queue(pool, workspace.store(), total, workspace.watch)

        def ask(entry: Entry) -> tuple[str, dict[str, Any]]:
            sampler = optuna.samplers.TPESampler(seed=tuning_seed(workspace.study, entry[0]))
            search = optuna.create_study(direction="maximize", sampler=sampler)
            rows = []
            for _ in range(tune.trials):
                asked = search.ask()
                point = {key: _suggest(asked, key, how) for key, how in entry[2].space.items()}
                rows.append(queue.run(trial(workspace, entry, point)))
                search.tell(asked, max(-1e9, score(rows[-1])))
            return label_of(entry[0], entry[2].label), _best(rows)

        return dict(threads.map(ask, entries))


def _suggest(trial: Any, key: str, how: Mapping[str, Any]) -> Any:
    if "choices" in how:
        return trial.suggest_categorical(key, how["choices"])
    if how.get("integer"):
        return trial.suggest_int(key, how["low"], how["high"])
    return trial.suggest_float(key, how["low"], how["high"], log=how.get("log", False))


# ------------------------------------------------------------------------------------ final runs


def final(workspace: Workspace, settings: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """Every cell and method at its chosen setting, for each seed."""
    study = workspace.study
    jobs = []
    for (cell, base), method, seed in product(cells(study), study.methods, study.final.seeds):
        if not workspace.has(cell, method.label):
            continue
        chosen = settings_for(study, settings, cell, method.label)
        measured = {**_seeded(study, seed), "evaluation.every": study.final.every}
        labels = {**cell, "method": method.label, "seed": seed, "stage": "final", "set": chosen}
        changes = {**method.set, **base, **chosen, **measured}
        jobs.append(make_job(study.base, labels, changes, workspace.root, tuple(study.final.keep)))
    return workspace.run(jobs, workspace.store())


def settings_for(
    study: Study, settings: Mapping[str, Mapping[str, Any]], cell: Cell, method: str
) -> Changes:
    """What was chosen for a cell's method: searched, or fixed by the study.

    Args:
        study: the study, whose own settings are used where none were searched.
        settings: what a search has chosen, by cell and method, as in settings.json.
        cell: the cell; one that is not tuned uses the settings of another.
        method: the method's label.
    """
    name = label_of(tuned_cell(study, cell), method)
    if name in settings:
        return dict(settings[name]["set"])
    return dict(study.settings.get(method, {}))


def tuning_cost(runs: int, epsilon: float, delta: float) -> float:
    """The epsilon against a server that sees ``runs`` runs at ``epsilon`` each, composed.

    Args:
        runs: how many runs there are.
        epsilon: the epsilon of one run at ``delta``, for Gaussian releases.
        delta: the delta of one run, and of the answer.
    """
    return gdp.epsilon_for(delta, gdp.mu_for(epsilon, delta) * math.sqrt(runs))


# --------------------------------------------------------------- settings that were searched before


def stored_settings(name: str, study: Study, out: Path | None = None) -> Settings:
    """Settings that were searched into a folder, or come with the package, or are borrowed.

    Args:
        name: the study's name or path; one that comes with the package may have settings.
        study: the study itself; it borrows from the study that it is like.
        out: a folder whose settings.json comes first; None looks into none.
    """
    searched = [] if out is None else [out / SETTINGS]
    for path in (*searched, _settings_of(name)):
        if path.exists():
            found: Settings = json.loads(path.read_text(encoding="utf-8"))
            return found
    return _lent(study)


def _settings_of(name: str) -> Path:
    return studies.STUDIES / name / SETTINGS


def _lent(study: Study) -> Settings:
    """The settings of the study that this one is like, from the cell with the same axis values.

    Nothing was tried on this study's own records, so nothing is counted as tried.
    """
    if not study.like or not _settings_of(study.like).exists():
        return {}
    lender: Settings = json.loads(_settings_of(study.like).read_text(encoding="utf-8"))
    like = studies.load_study(study.like)
    lent: Settings = {}
    for cell, _, method in entries_of(study):
        shared = {axis.label: cell[axis.label] for axis in like.axes if axis.label in cell}
        if len(shared) == len(like.axes):
            key = label_of(studies.tuned_cell(like, shared), method.label)
            if key in lender:
                found = {"set": lender[key]["set"], "lent": study.like}
                lent[label_of(cell, method.label)] = found
    return lent


def check_settings(study: Study, settings: Settings, name: str, part: Part = WHOLE) -> None:
    """Refuse missing settings: a method would run at its plug-ins' defaults, and look bad.

    Args:
        study: the study.
        settings: what is known, by cell and method.
        name: the study's name or path, for the command in the error.
        part: what is run.
    """
    for cell, _, method in part.of_list(entries_of(study)):
        known = label_of(cell, method.label) in settings or method.label in study.settings
        if (method.coarse or method.space) and not known:
            raise RecipeError(
                f"no settings are known for {label_of(cell, method.label)!r}; search them first "
                f"with: dpfed sweep {name}"
            )
