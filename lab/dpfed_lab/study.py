# SPDX-License-Identifier: Apache-2.0
"""A study: one base recipe, the axes that its cells differ in, the methods compared in each cell.

    [base]                          a recipe, as for ``dpfed run``
    [[axes]]                        label, and key + values, or choices (name -> changes)
    [[methods]]                     label, set (changes), and what is tuned: coarse and fine grids,
                                    or space (key -> low, high, log) for Optuna
    [tune]                          rounds, seed and the part held out for validation
    [final]                         seeds, and what is measured how often

Changes are dotted keys with values, as ``--set`` takes them. A study is searched by sweep.py; what
was chosen is a table of settings, by cell and method, that later runs reuse.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from dpfed.core.checks import refuse
from dpfed.core.errors import RecipeError

Changes = dict[str, Any]


def _beside(name: str) -> Path:
    """The path of a folder: inside the package if installed from a wheel, next to it in a clone."""
    installed = Path(__file__).parent / name
    return installed if installed.exists() else installed.parent.parent / name


STUDIES, PAPERS = _beside("studies"), _beside("papers")
"""One folder per study, and the papers' other tables."""
STUDY = "study.toml"

BASELINE = "DP-FedGD"

TAKEN = frozenset(
    {
        "key",
        "method",
        "seed",
        "stage",
        "set",
        "entry",
        "point",
        "accuracy",
        "loss",
        "worst_silo",
        "by_round",
        "epsilon_server",
        "epsilon_others",
        "guarantee",
        "data",
        "evaluation",
        "seconds",
        "rounds",
        "correct",
        "tested",
        "refused",
    }
)
"""The columns of a run: no axis may have one of these names."""


class _Section(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    pass


class Axis(_Section, frozen=True):
    """One dimension of the table."""

    label: str
    """The column's name."""
    key: str | None = None
    """The recipe's dotted key that varies."""
    values: list[Any] = []
    """Its values."""
    choices: dict[str, Changes] = {}
    """Named changes by dotted key, instead of key and values."""
    tuned: bool = True
    """Whether settings are searched for every value, or only the first."""
    borrow: dict[str, str] = {}
    """Values that use the settings of another value."""

    def options(self) -> dict[str, Changes]:
        """Name -> changes."""
        if self.key is None:
            return self.choices
        return {
            f"{value:g}" if _number(value) else str(value): {self.key: value}
            for value in self.values
        }


class Contestant(_Section, frozen=True):
    """One method of a study."""

    label: str
    """The method's name in tables."""
    set: Changes = {}
    """The changes by dotted key that define it; a cell's take precedence."""
    coarse: dict[str, list[Any]] = {}
    """Values by key; every combination is tried."""
    fine: dict[str, list[Any]] = {}
    """A second grid, tried as well."""
    space: dict[str, dict[str, Any]] = {}
    """For Optuna, by key: low, high, log, integer; or choices."""


class Tuning(_Section, frozen=True):
    """How settings are judged: on held-out training records; test records are never touched."""

    rounds: int = 50
    """Rounds of a tuning run, unless the method sets its own."""
    seed: int = 1000
    """The number from which the seeds of tuning runs are derived, one for each cell."""
    validation: float = 0.1
    """The part of the training records used to judge."""
    trials: int = 0
    """Optuna trials per cell and method; 0 means grids."""


class Final(_Section, frozen=True):
    """The runs that the tables are made of."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """One run each, for every cell and method."""
    every: int = 10
    """How many rounds lie between two measurements."""
    redraw: list[str] = []
    """Dotted keys that get the seed, too, such as data.options.seed of generated records."""
    keep: list[str] = []
    """"correct" stores which test records were right, for McNemar's test."""


class Study(_Section, frozen=True):
    """See the file's docstring."""

    title: str
    """The report's title."""
    base: dict[str, Any]
    """The recipe that all runs share."""
    methods: list[Contestant]
    """The methods to compare."""
    like: str = ""
    """Another study, whose tables and settings fill what this one lacks."""
    axes: list[Axis] = []
    """What varies between cells."""
    about: str = ""
    """An introduction to the tables."""
    source: str = ""
    """Where the data comes from."""
    tune: Tuning = Tuning()
    """How settings are judged."""
    final: Final = Final()
    """The runs that the tables are made of."""
    baseline: str = BASELINE
    """The method that the others are compared with; the first one if there is no DP-FedGD."""
    loss: str = "loss"
    """The name of the loss in tables, if there are no classes."""
    settings: dict[str, Changes] = {}
    """Fixed settings by method, if nothing is searched."""


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def study_names() -> list[str]:
    """The studies that come with the package."""
    return sorted(path.parent.name for path in STUDIES.glob(f"*/{STUDY}"))


def path_of(source: str | Path) -> Path:
    """The path of a study's file, given the study's name or that path."""
    return STUDIES / source / STUDY if str(source) in study_names() else Path(source)


def name_of(source: str | Path) -> str:
    """A study's name: its folder's name if the file is study.toml, otherwise the file's."""
    path = path_of(source)
    return path.resolve().parent.name if path.name == STUDY else path.stem


def load_study(source: str | Path) -> Study:
    """A study by name, or from a TOML file."""
    try:
        return _checked(msgspec.convert(_tree(source), Study))
    except OSError as error:
        known = ", ".join(study_names())
        bound = f"the path of a TOML file or one of {known}"
        raise refuse("study", bound, str(source), "'dpfed reproduce' lists them") from error
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise RecipeError(
            f"study {str(source)!r} cannot be read ({error}); correct that place"
        ) from error


def _checked(study: Study) -> Study:
    """Refuse an axis named like a run's column, an unused grid or space, an unknown baseline."""
    taken = sorted({axis.label for axis in study.axes} & TAKEN)
    if taken:
        raise RecipeError(
            f"axes.label must not be {taken[0]!r}, which is a column of every run; rename that axis"
        )
    _refuse_unsearched(study)
    labels = [method.label for method in study.methods]
    if study.baseline in labels or not labels:
        return study
    if study.baseline == BASELINE:
        return msgspec.structs.replace(study, baseline=labels[0])
    raise refuse("baseline", f"one of {', '.join(labels)}", study.baseline, "name a method's label")


def _refuse_unsearched(study: Study) -> None:
    """Refuse a grid if Optuna searches, or a space without trials: neither would be searched."""
    trials = study.tune.trials
    for method in study.methods:
        if trials and not method.space and (method.coarse or method.fine):
            bound, way = "0 for grids", "set it, or give it a space"
        elif not trials and method.space and not (method.coarse or method.fine):
            bound, way = "at least 1 for a space", "set it, or give it a grid"
        else:
            continue
        raise refuse("tune.trials", f"{bound}, as {method.label!r} has", trials, way)


def _tree(source: str | Path) -> dict[str, Any]:
    """A study's tables, merged over the tables of the study named by ``like``."""
    tree = tomllib.loads(path_of(source).read_text(encoding="utf-8"))
    return _over(_tree(tree["like"]), tree) if tree.get("like") else tree


def _over(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge tables; anything else, also a list or an empty table, replaces what was there."""
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and value and isinstance(merged.get(key), dict)
        merged[key] = _over(merged[key], value) if both else value
    return merged


Cell = dict[str, str]


def cells(study: Study, tuned_only: bool = False) -> Iterator[tuple[Cell, Changes]]:
    """Every combination of the axes' values, with its changes to the recipe."""
    options = [axis.options() for axis in study.axes]
    if tuned_only:
        options = [_searched(axis) for axis in study.axes]
    for chosen in product(*(each.items() for each in options)):
        labels = {axis.label: name for axis, (name, _) in zip(study.axes, chosen, strict=True)}
        yield labels, _merged(changes for _, changes in chosen)


def _searched(axis: Axis) -> dict[str, Changes]:
    """The values for which settings are searched."""
    own = {name: changes for name, changes in axis.options().items() if name not in axis.borrow}
    return own if axis.tuned else dict(list(own.items())[:1])


def tuned_cell(study: Study, cell: Cell) -> Cell:
    """The cell whose settings a cell uses."""
    return {axis.label: _lender(axis, cell[axis.label]) for axis in study.axes}


def _lender(axis: Axis, value: str) -> str:
    return axis.borrow.get(value, value) if axis.tuned else next(iter(_searched(axis)))


def _merged(parts: Iterator[Mapping[str, Any]]) -> Changes:
    merged: Changes = {}
    for part in parts:
        merged.update(part)
    return merged
