# SPDX-License-Identifier: Apache-2.0
"""The law of sensitivity on all kinds of questions together, and two bugs that it must find."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
import torch

from dpfed.client.questions import model
from dpfed.client.questions.columns import Column
from dpfed.client.questions.rows import joint_rows
from dpfed.client.statistics import statistics
from dpfed.core.errors import RecipeError
from dpfed.core.log import log
from dpfed.core.rows import MeanRows, group_sums
from dpfed.core.types import UPDATE, Adjacency, Unit
from dpfed.data.datasets import Records
from dpfed.data.readers import NOBODY
from tests.laws.neighbours import Effort
from tests.laws.sensitivity import MODELS, Case, model_for, plan_for
from tests.laws.survey import Survey, survey

COLUMNS: dict[str, Any] = {
    "a": {"at": 0, "low": 10, "high": 50},
    "b": {"at": 1, "low": 1, "high": 100, "log": True},
    "c": {"at": 2},
    "label": {"at": -1, "words": ["one", "two", "three"]},
    "event": {"at": -1, "words": ["no", "yes"]},
}
QUESTIONS: list[dict[str, Any]] = [
    {"name": "all", "kind": "count"},
    {"name": "some", "kind": "count", "where": {"a": [20, 50], "label": "two"}},
    {"name": "mean", "kind": "mean", "column": "a"},
    {"name": "mean b", "kind": "mean", "column": "b"},
    {"name": "bins", "kind": "histogram", "column": "a", "cells": 5},
    {"name": "words", "kind": "histogram", "column": "label"},
    {"name": "quantiles", "kind": "quantiles", "column": "b", "cells": 16},
    {"name": "table", "kind": "table", "column": "c", "cells": 2, "by": "label"},
    {"name": "curve", "kind": "survival", "time": "a", "event": "event", "times": [20, 30, 40]},
]
HALVES: list[dict[str, Any]] = [
    {"name": "low", "kind": "count", "where": {"a": [10, 30]}},
    {"name": "high", "kind": "count", "where": {"a": [30, 50]}},
]
"""A unit in the place of another reaches the bound: the clip covers up no bug."""


def cases(questions: list[dict[str, Any]], **only: Any) -> list[Case]:
    asked = (("questions", questions), ("columns", COLUMNS))
    units, adjacencies = (Unit.RECORD, Unit.GROUP), list(Adjacency)
    found = [
        Case("statistics", asked, unit, adjacency, "softmax")
        for unit, adjacency in itertools.product(units, adjacencies)
    ]
    return [case for case in found if all(getattr(case, k) == v for k, v in only.items())]


def searched(chosen: list[Case], effort: Effort) -> Survey:
    before, log.disabled = log.disabled, True  # hostile scenes make a client log tracebacks
    try:
        return survey(Survey(), [(case, plan_for(case)) for case in chosen], effort)
    finally:
        log.disabled = before


def test_halves_reach_their_bound() -> None:
    found = searched(cases(HALVES, adjacency=Adjacency.REPLACE_ONE), Effort(5, random=4, more=4))
    assert found.faults == []
    reached = {a: r for (_, a, each), r in found.somewhere().items() if each == UPDATE}
    assert reached[Adjacency.REPLACE_ONE] > 0.999


@pytest.mark.slow
def test_a_unit_moves_all_questions_together_by_at_most_what_is_priced() -> None:
    found = searched(cases(QUESTIONS), Effort(5, random=4, more=4))
    assert found.faults == []
    assert found.tried > 0
    for (unit, adjacency, channel), ratio in found.somewhere().items():
        if channel == UPDATE:
            assert 0.5 <= ratio <= 1, f"{unit} / {adjacency}: {ratio}"


def test_corners_of_each_kind_keep_and_reach_their_bounds() -> None:
    """Two records at any two corners, or one and none: question by question, exactly."""
    algorithm = statistics(QUESTIONS, msgspec.convert(COLUMNS, dict[str, Column]))
    assert algorithm.model is not None
    made = algorithm.model.around(None, lambda _: None, ())  # type: ignore[arg-type, return-value]
    x = torch.linspace(-1, 1, 65)[:, None].expand(65, 3).repeat(4, 1)
    x = torch.cat([x, torch.full((1, 3), float("nan"))])
    y = torch.cat([torch.arange(-1, 3).repeat_interleave(65), torch.tensor([-1])])
    rows = joint_rows(made.questions, made.columns, x, y)
    for question, part in zip(
        made.questions, torch.split(rows, [q.size for q in made.questions], dim=1), strict=True
    ):
        norms = part.norm(dim=1)
        assert norms.max() <= 1, question.name
        assert norms.max() >= 0.99, question.name
        apart = torch.cdist(part, part).max() * question.bound
        assert apart <= question.replace_bound, question.name
        assert apart >= 0.99 * question.replace_bound or question.name == "all", question.name


# ------------------------------------------------------------------------------------ planted bugs


def test_a_question_counted_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its row is as large as that of two questions, and the noise that of one."""

    def twice(*given: Any) -> torch.Tensor:
        made = joint_rows(*given)
        made[:, 0] *= 2
        return made

    monkeypatch.setattr(model, "joint_rows", twice)
    chosen = cases(HALVES, unit=Unit.RECORD, adjacency=Adjacency.REPLACE_ONE)
    assert searched(chosen, Effort(5, random=4, more=4)).faults


def test_a_person_with_many_rows_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person's rows are added up, so that who has many counts as often."""

    def added(self: MeanRows, most: int) -> Any:
        del most
        assert self.groups is not None
        yield group_sums(self.make(torch.arange(self.records)), self.groups)

    one, other = [[-0.5, 0, 0]] * 4, [[0.5, 0, 0]] * 4
    priced = plan_for(cases(HALVES, unit=Unit.GROUP)[0]).update.facts.replace_bound
    assert 0.99 * priced <= moved(one, other) <= priced
    monkeypatch.setattr(MeanRows, "_people", added)
    assert moved(one, other) > 1.4 * priced


def moved(one: list[list[float]], other: list[list[float]]) -> float:
    """How far the sum moves if a person's records are others."""
    plan = plan_for(cases(HALVES, unit=Unit.GROUP)[0])
    statistics_model = model_for(plan, MODELS["softmax"])
    sums = [
        statistics_model.problem(
            Records(torch.tensor(x), torch.zeros(len(x)).long(), torch.zeros(len(x)).long())
        )
        .rows(torch.zeros(2), Unit.GROUP)
        .clipped_sum(plan.update.clip)
        .vector
        for x in (one, other)
    ]
    return float((sums[0] - sums[1]).norm())


def test_a_record_without_a_person_counts_for_nobody() -> None:
    """It may be of somebody who has other records."""
    made = statistics(HALVES, msgspec.convert(COLUMNS, dict[str, Column])).model
    assert made is not None
    problem = made.around(None, lambda _: None, ()).problem(  # type: ignore[arg-type, return-value]
        Records(torch.full((3, 3), 0.5), torch.zeros(3).long(), torch.tensor([NOBODY, 4, NOBODY]))
    )
    low, high = problem.rows(torch.zeros(2), Unit.GROUP).clipped_sum(2.0).vector.tolist()
    assert (low, round(high, 5)) == (0.0, 1.0)


def test_a_client_is_no_unit() -> None:
    assert statistics().units == {Unit.RECORD, Unit.GROUP}


def test_a_draw_of_records_is_refused() -> None:
    assert not statistics().samples


def test_truncated_rows_are_priced_for_two_clips() -> None:
    assert statistics(truncates=True).channels[UPDATE].replace_bound is None


def test_no_question_is_refused() -> None:
    with pytest.raises(RecipeError, match="questions"):
        statistics(questions=[])
