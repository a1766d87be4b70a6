# SPDX-License-Identifier: Apache-2.0
"""The model that the algorithm ``statistics`` brings: its parameters are the means of a joint row.

Nothing is fitted: after the only round the parameters are the noisy sums over the public number of
units, from which ``answers`` reads values and intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dpfed.client.questions.columns import Column
from dpfed.client.questions.rows import Question, joint_rows
from dpfed.core.errors import DataError
from dpfed.core.metric import joint_replace_bound, joint_size
from dpfed.core.rows import Dense, MeanRows
from dpfed.core.types import FeatureRange, OwnModel, Rows, Shapes, Unit, Vector
from dpfed.core.vector import Layout, one_thread
from dpfed.data.contract import Contract, Kind, Scale
from dpfed.data.datasets import Records
from dpfed.data.models import made_up, unit_ids
from dpfed.data.readers import NOBODY

ANSWERS = "answers"
"""The name of its only tensor."""


@dataclass(frozen=True)
class Statistics:
    """Questions about the columns of a table, as a model without anything to fit."""

    questions: tuple[Question, ...]
    columns: Mapping[str, Column]

    @property
    def layout(self) -> Layout:
        """One number for each number of the joint row."""
        return Layout({ANSWERS: (joint_size(self.questions),)}, trained_by="statistics")

    def initial(self, seed: int) -> Vector:
        """Zeros, in double precision: a count may have more digits than a float."""
        del seed
        return torch.zeros(self.layout.size, dtype=torch.float64)

    def problem(self, records: Records) -> StatisticsProblem:
        """The questions with one client's records."""
        return StatisticsProblem(self, records.x, records.y, records.groups)

    def judge(self, params: Vector, records: Records) -> tuple[torch.Tensor, torch.Tensor]:
        """Nothing is predicted: 0 for each record."""
        del params
        nothing = torch.zeros(len(records))
        return nothing, nothing


@dataclass(frozen=True, eq=False, repr=False)
class StatisticsProblem:
    """One client's records with the questions. Sensitive."""

    model: Statistics
    x: torch.Tensor
    y: torch.Tensor
    groups: torch.Tensor | None = None

    @property
    def dimension(self) -> int:
        """The length of the joint row."""
        return self.model.layout.size

    def made_up(self) -> StatisticsProblem:
        """The same on made-up records, on which a round is tried before it touches data."""
        x, y, groups = made_up(self.x, self.y, self.groups)
        return replace(self, x=x, y=y, groups=groups)

    @one_thread()
    def rows(self, params: Vector, unit: Unit) -> Rows:
        """Per unit, the mean of the joint row over its own records: whatever is broadcast."""
        del params
        asked, columns, groups = self.model.questions, self.model.columns, self.groups

        def make(index: torch.Tensor) -> torch.Tensor:
            made = joint_rows(asked, columns, self.x[index], self.y[index])
            if unit is Unit.GROUP and groups is not None:  # it may be of anybody with others
                made = torch.where((groups[index] == NOBODY)[:, None], 0.0, made)
            return made

        return MeanRows(
            make=make,
            records=len(self.x),
            size=self.dimension,
            groups=None if unit is Unit.RECORD else unit_ids(self.groups, unit, len(self.x)),
            distance=joint_replace_bound(asked),
        )

    def doubled(self) -> StatisticsProblem:
        """The same: rows are made in double precision anyway."""
        return self

    def gradient(self, params: Vector) -> Vector:
        """There is no loss."""
        raise DataError(f"statistics have no gradient at {len(params)} numbers; ask for rows")

    def metric_rows(self, params: Vector, unit: Unit, loss_bound: float) -> Rows:
        """Nothing is predicted, so that each unit's are zero."""
        del params, loss_bound
        groups = None if unit is Unit.RECORD else unit_ids(self.groups, unit, len(self.x))
        return Dense(torch.zeros(len(self.x), 2, dtype=torch.float64), groups)


def own_model(questions: Sequence[Question], columns: Mapping[str, Column]) -> OwnModel:
    """What generic code asks of it, by ``ClientAlgorithm.model``.

    Args:
        questions: as they were asked.
        columns: what is public of the columns.
    """
    made = Statistics(tuple(questions), columns)

    def around(
        model: Any, ranges: Callable[[int], FeatureRange], channels: Collection[str]
    ) -> Statistics:
        del model, ranges, channels
        return made

    def owns(shapes: Shapes) -> bool:
        return dict(shapes) == dict(made.layout.shapes)

    return OwnModel(owns=owns, around=around)


def columns_of(contract: Contract) -> dict[str, Column]:
    """What is public of each column by a data contract, and where its features are.

    Args:
        contract: what everybody reads their table by.

    >>> from dpfed.data.contract import contract_of
    >>> age = {"name": "age", "kind": "number", "range": [18, 100]}
    >>> columns_of(contract_of({"columns": [age]}))["age"].high
    100.0
    """
    found: dict[str, Column] = {}
    at = 0
    for each in contract.columns:
        low, high = each.range or (-1.0, 1.0)
        flag = each.kind is Kind.FLAG
        words = each.words or (("0", "1") if flag else ())
        log = each.scale is Scale.LOG
        found[each.name] = Column(at=at, low=low, high=high, words=words, log=log, flag=flag)
        at += len(each.features)
    if label := contract.label:
        low, high = label.range or (-1.0, 1.0)
        found[label.column] = Column(at=-1, low=low, high=high, words=label.words)
    return found
