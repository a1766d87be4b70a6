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
STUDIES = Path(__file__).parent / "studies"

TAKEN = frozenset(
    {
        "key", "method", "seed", "stage", "set", "entry", "point", "accuracy", "loss", "worst_silo",
        "by_round", "epsilon_server", "epsilon_others", "guarantee", "data", "evaluation",
        "seconds", "rounds", "correct", "tested", "refused",
    }
)  # fmt: skip
"""The columns of a run: no axis may have one of these names."""


class _Section(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    pass


class Axis(_Section, frozen=True):
    """One dimension of the table."""

    label: str
    """The column's name."""
    key: str | None = None
    """The dotted key of the recipe that the values are for."""
    values: list[Any] = []
    """The values, with key."""
    choices: dict[str, Changes] = {}
    """Name -> changes by dotted key, instead of key and values."""
    tuned: bool = True
    """Whether settings are searched for each value, or only for the first."""
    borrow: dict[str, str] = {}
    """Values that take the settings of another one: value -> that one."""

    def options(self) -> dict[str, Changes]:
        """Name -> changes."""
        if self.key is None:
            return self.choices
        return {f"{value:g}" if _number(value) else str(value): {self.key: value}
                for value in self.values}  # fmt: skip


class Contestant(_Section, frozen=True):
    """One method of a study."""

    label: str
    """The method's name in tables."""
    set: Changes = {}
    """Changes by dotted key that make it; a cell's own win."""
    coarse: dict[str, list[Any]] = {}
    """Key -> values: every combination is tried."""
    fine: dict[str, list[Any]] = {}
    """A second grid, tried as well."""
    space: dict[str, dict[str, Any]] = {}
    """For Optuna: key -> low, high, log, integer; or choices."""


class Tuning(_Section, frozen=True):
    """How settings are judged: on held-out training records; test records are never touched."""

    rounds: int = 50
    """Of a tuning run; a method that sets its own rounds keeps them."""
    seed: int = 1000
    """Of all tuning runs."""
    validation: float = 0.1
    """The part of the training records that judges."""
    trials: int = 0
    """Above 0: so many Optuna trials per cell and method, instead of grids."""


class Final(_Section, frozen=True):
    """The runs that the tables are made of."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """One run each, for every cell and method."""
    every: int = 10
    """Rounds between two measurements."""
    keep: list[str] = []
    """Of a run: "correct" stores which test records were right, for McNemar's test."""


class Study(_Section, frozen=True):
    """See the file's docstring."""

    title: str
    """Of the report."""
    base: dict[str, Any]
    """The recipe that all runs share."""
    methods: list[Contestant]
    """Who is compared."""
    like: str = ""
    """Another study, whose tables and settings are used where this one has none."""
    axes: list[Axis] = []
    """What the cells differ in."""
    about: str = ""
    """What a reader must know before the tables."""
    source: str = ""
    """Where the data comes from."""
    tune: Tuning = Tuning()
    """How settings are judged."""
    final: Final = Final()
    """The runs that the tables are made of."""
    baseline: str = "DP-FedGD"
    """Whose final accuracy the others' speed is measured against."""
    loss: str = "loss"
    """What the loss is called, where there are no classes."""
    settings: dict[str, Changes] = {}
    """Settings by method, where nothing is searched: what the paper or a convention fixes."""


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def study_names() -> list[str]:
    """The studies that come with the package."""
    return sorted(path.stem for path in STUDIES.glob("*.toml"))


def path_of(source: str | Path) -> Path:
    """Where a study is: by its name, or its own file."""
    return STUDIES / f"{source}.toml" if str(source) in study_names() else Path(source)


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
    """Refuse an axis with the name of a run's own column, which would overwrite it."""
    taken = sorted({axis.label for axis in study.axes} & TAKEN)
    if taken:
        raise RecipeError(
            f"axes.label must not be {taken[0]!r}, which is a column of every run; rename that axis"
        )
    return study


def _tree(source: str | Path) -> dict[str, Any]:
    """A study's tables, over those of the study that it is like."""
    tree = tomllib.loads(path_of(source).read_text(encoding="utf-8"))
    return _over(_tree(tree["like"]), tree) if tree.get("like") else tree


def _over(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Tables are merged; anything else, lists and empty tables too, replaces what was there."""
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and value and isinstance(merged.get(key), dict)
        merged[key] = _over(merged[key], value) if both else value
    return merged


Cell = dict[str, str]


def cells(study: Study, tuned_only: bool = False) -> Iterator[tuple[Cell, Changes]]:
    """Every combination of the axes' values, with the changes that it means."""
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
