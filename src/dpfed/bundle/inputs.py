# SPDX-License-Identifier: Apache-2.0
"""From a table or an array to what the module takes: each record on its own, as in training.

| edge case                                     | what happens                                     |
|-----------------------------------------------|--------------------------------------------------|
| a column that the model needs is not there    | DataError, which names it                        |
| a column that it does not need                | not read                                         |
| columns in another order                      | taken by name                                    |
| a value that is missing, and no step fills it | NaN: the record has no prediction                |
| an array of another shape                     | DataError, with both shapes                      |
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpfed.bundle.description import (
    ArrayInput,
    Backbone,
    ColumnsInput,
    ContractInput,
    Convolutions,
    Description,
    Divide,
    Fill,
    Input,
    LimitNorm,
    SchemaInput,
    SetNorm,
    Step,
    Subtract,
)
from dpfed.core.errors import DataError
from dpfed.core.log import shown
from dpfed.data import datasets
from dpfed.data.datasets import Records

Cells = Mapping[str, Sequence[Any]]
"""A table: by column, one cell for each record."""


def columns_of(given: Input) -> tuple[str, ...]:
    """The columns that a model takes, in the order of its features; none if it takes arrays."""
    if isinstance(given, ContractInput):
        return tuple(column.name for column in given.contract.columns)
    return () if isinstance(given, ArrayInput) else tuple(given.columns)


def as_table(given: Any) -> Cells | None:
    """What was given as a table; None if it is an array.

    Args:
        given: a mapping, a list of mappings, or a table of pandas, polars or pyarrow.
    """
    if isinstance(given, Mapping):
        return given
    if isinstance(given, list | tuple) and given and isinstance(given[0], Mapping):
        return {name: [row.get(name) for row in given] for name in given[0]}
    names = getattr(given, "column_names", None)  # pyarrow
    if names is None:
        columns = getattr(given, "columns", None)
        names = None if columns is None else list(columns)
    if names is None:
        return None
    return _Lazy(given, {str(name): name for name in names})


class _Lazy(Mapping[str, Sequence[Any]]):
    """A table of another library, whose columns are read when they are asked for."""

    def __init__(self, table: Any, names: Mapping[str, Any]) -> None:
        self.table, self.names = table, names

    def __getitem__(self, name: str) -> Sequence[Any]:
        column = self.table[self.names[name]]
        cells: list[Any] = column.to_pylist() if hasattr(column, "to_pylist") else list(column)
        return [None if isinstance(each, float) and math.isnan(each) else each for each in cells]

    def __iter__(self) -> Any:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def check_columns(needed: Sequence[str], present: Sequence[str], where: str) -> None:
    """Refuse a table without a column that the model takes.

    Args:
        needed: the model's columns.
        present: the table's.
        where: what the error calls the table.
    """
    missing = [name for name in needed if name not in present]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        held = ", ".join(shown(str(name)) for name in list(present)[:20])
        raise DataError(
            f"{where} must have the model's column {shown(missing[0])!r}{more}, got {held}; map "
            f"the column that it is (--map, mapping=), or give a file that the model was made for"
        )


@dataclass(frozen=True, eq=False)
class Preparation:
    """How a model's input is made: columns first, then the steps that training took.

    ``weights`` is the caller's file for a backbone; None looks where backbones are looked for.
    """

    description: Description
    weights: Path | None = None

    def of_table(self, table: Cells, where: str = "the table") -> torch.Tensor:
        """Features of a table's records.

        Args:
            table: by column, one cell for each record.
            where: what an error calls it.
        """
        given = self.description.input
        if isinstance(given, ArrayInput):
            shape = tuple(given.shape)
            raise DataError(
                f"this model takes arrays of shape {shape}, got a table; give the features"
            )
        check_columns(columns_of(given), list(table), where)
        return self.steps(torch.from_numpy(_encoded(given, table)))

    def of_array(self, given: Any) -> torch.Tensor:
        """Features of arrays: of columns in the model's order, or of images."""
        x = _tensor(given)
        taken = self.description.input
        if isinstance(taken, ArrayInput):
            if any(isinstance(each, Backbone) for each in self.description.steps):
                return self.steps(x)
            wanted = tuple(taken.shape)
        else:
            wanted = (_width(taken),)
        if tuple(x.shape[1:]) != wanted:
            raise DataError(
                f"records must have the model's shape {wanted}, got {tuple(x.shape[1:])}; give "
                f"its {math.prod(wanted)} features, or a table with its columns"
            )
        return self.steps(x)

    def steps(self, x: torch.Tensor) -> torch.Tensor:
        """The steps after columns were read, in training's own order."""
        for step in self.description.steps:
            x = _step(step, x, self.weights)
        return x


def _tensor(given: Any) -> torch.Tensor:
    from dpfed.data.readers import feature_tensor

    if isinstance(given, torch.Tensor):
        given = given.detach().cpu().numpy()
    array = np.asarray(given)
    if array.ndim < 2:
        raise DataError(
            f"records must be rows of an array with two or more axes, got shape {array.shape}; "
            f"give x[None] for one record"
        )
    return feature_tensor(array)


def _width(given: ColumnsInput | SchemaInput | ContractInput) -> int:
    from dpfed.data.tables import is_range

    if isinstance(given, ContractInput):
        return given.contract.width
    if isinstance(given, ColumnsInput):
        return len(given.columns)
    return sum(1 if is_range(each) else len(each) for each in given.columns.values())


def _encoded(given: ColumnsInput | SchemaInput | ContractInput, table: Cells) -> Any:
    from dpfed.data import cells, tables

    if isinstance(given, ContractInput):
        return given.contract.encode(table)
    if isinstance(given, SchemaInput):
        return tables.encode_cells(table, given.columns)
    with np.errstate(over="ignore"):
        columns = [[cells.number(each) for each in table[name]] for name in given.columns]
        return np.array(columns, dtype=np.float32).T.copy()


def _step(step: Step, x: torch.Tensor, weights: Path | None) -> torch.Tensor:
    match step:
        case Subtract():
            return x - torch.tensor(_fitting(step.values, x))
        case Divide():
            return x / torch.tensor(_fitting(step.values, x))
        case Fill():
            return datasets.fill_missing(_records(x), step.value).x
        case SetNorm():
            return _by_row(x, lambda rows: datasets.set_norms(rows, step.norm))
        case LimitNorm():
            return _by_row(x, lambda rows: datasets.scale_rows(rows, step.norm))
        case Convolutions():
            from dpfed.data.convolutions import convolve

            return convolve(x, step.count)
    return _features(step, x, weights)


def _fitting(values: Sequence[float], x: torch.Tensor) -> Sequence[float]:
    if len(values) not in (1, x.shape[-1]):
        raise DataError(
            f"a step's constants must be 1 or {x.shape[-1]}, got {len(values)}; get the bundle "
            f"again"
        )
    return values


def _records(x: torch.Tensor) -> Records:
    return Records(x, torch.zeros(len(x), dtype=torch.int64))


def _by_row(x: torch.Tensor, change: Any) -> torch.Tensor:
    """Rows that are whole are changed; the others have no prediction anyway."""
    whole = x.flatten(1).isfinite().all(dim=1)
    made = x.clone()
    if bool(whole.any()):
        made[whole] = change(_records(x[whole])).x
    return made


def _features(step: Backbone, images: torch.Tensor, weights: Path | None) -> torch.Tensor:
    """Images under the frozen network that the model was trained behind."""
    from dpfed.data import backbones

    if step.weights:
        found = backbones.weights_digest(step.name, weights)
        if found != step.weights:
            raise DataError(
                f"the weights of {shown(step.name)} must be those of training (SHA-256 "
                f"{step.weights[:16]}...), got {found[:16]}...; give that file by weights"
            )
    return backbones.features(
        step.name, images, size=step.size, fit=step.fit, project=step.project, weights=weights
    )
