# SPDX-License-Identifier: Apache-2.0
"""A unit moves the metrics that are handed to the mechanism by at most what is priced.

The law and its search are those of sensitivity.py: clients run their own code on neighbouring data,
under servers that send NaN, infinities and numbers of every size. Metrics are found by discovery.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from dpfed.core import registry
from dpfed.core.log import log
from dpfed.core.metric import Metric, ScoredRecords
from dpfed.core.types import METRICS, Adjacency, Mechanism, Unit
from dpfed.metrics import auc as auc_file
from dpfed.recipes.build import plan_for_clients
from dpfed.recipes.schema import parse
from dpfed.training.plan import Plan
from tests.laws.neighbours import Effort, Search
from tests.laws.sensitivity import CLASSES, MODELS, NO_RECORDS, NOMINAL, ROUNDS, mu_of

NAMES = registry.names("metrics")
NUMBERS = {"mae"}
"""Metrics of models that predict numbers."""


@pytest.fixture(autouse=True)
def no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "disabled", True)


DEFINITIONS = [
    each
    for each in itertools.product(Unit, Adjacency)
    if each != (Unit.CLIENT, Adjacency.ADD_REMOVE)  # refused: attacks/test_presence.py
]


def table(name: str, classes: int = CLASSES) -> dict[str, Any]:
    known = inspect.signature(registry.find("metrics", name)).parameters
    fitting = {"classes": classes, "tokens": 1}
    return {"name": name, **{key: value for key, value in fitting.items() if key in known}}


def plan_of(
    metrics: list[dict[str, Any]], unit: Unit, adjacency: Adjacency, model: str, **privacy: Any
) -> Plan:
    recipe = parse(
        {
            "rounds": ROUNDS,
            "client": {"name": "gradient"},
            "evaluation": {"kind": "federated", "metrics": metrics},
            "privacy": {
                "unit": unit,
                "adjacency": adjacency,
                "std_over_clip": 1.0,
                "nominal": NOMINAL,
                "noise": "keyed",
                **privacy,
            },
        }
    )
    return plan_for_clients(recipe, [NO_RECORDS], MODELS[model])


def searched(plan: Plan, model: str, effort: int = 9) -> Search:
    return Search(plan, MODELS[model]).search(Effort(effort))


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", NAMES)
def test_a_unit_moves_a_metric_by_at_most_what_is_priced(name: str) -> None:
    model = "poisson" if name in NUMBERS else "softmax"
    for unit, adjacency in DEFINITIONS:
        found = searched(plan_of([table(name)], unit, adjacency, model), model)
        assert not found.faults, (unit, adjacency)
        assert found.best[METRICS][0] > 0.5, (unit, adjacency)  # the law is not empty


@pytest.mark.sample(3)
@pytest.mark.parametrize("adjacency", Adjacency)
def test_several_at_once_are_priced_together(adjacency: Adjacency) -> None:
    several = [table(name) for name in ("accuracy", "auc", "perplexity", "recall")]
    for unit in (each for each, other in DEFINITIONS if other is adjacency):
        assert not searched(plan_of(several, unit, adjacency, "softmax"), "softmax").faults


CLASSIFIED = [name for name in NAMES if name not in NUMBERS]


def hold_with_network_and_integers(name: str, unit: Unit, adjacency: Adjacency) -> None:
    plan = plan_of([table(name)], unit, adjacency, "func", clip=1e-2)
    assert not searched(plan, "func", 6).faults
    exact = plan_of([table(name)], unit, adjacency, "softmax", mechanism="discrete_gaussian")
    assert not searched(exact, "softmax", 6).faults


@pytest.mark.sample(3)
@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSIFIED)
def test_networks_and_exact_integers_keep_the_law(name: str) -> None:
    """By turns: three of nine definitions of a neighbour, with each unit and adjacency once."""
    for at, (unit, adjacency) in enumerate(DEFINITIONS):
        if (at // 3 + at + CLASSIFIED.index(name)) % 3 == 0:
            hold_with_network_and_integers(name, unit, adjacency)


@pytest.mark.long  # the test above has a third of it
@pytest.mark.parametrize("name", CLASSIFIED)
def test_so_they_do_under_every_definition_of_a_neighbour(name: str) -> None:
    for unit, adjacency in DEFINITIONS:
        hold_with_network_and_integers(name, unit, adjacency)


def test_one_score_has_two_classes() -> None:
    for name in ("auc", "recall"):
        plan = plan_of([table(name, 2)], Unit.RECORD, Adjacency.REPLACE_ONE, "logistic")
        assert not searched(plan, "logistic").faults


# ------------------------------------------------------------------------------- planted bugs


def priced_as_one(plan: Plan) -> Plan:
    """Sensitivity 1 in the place of sqrt 2, where nothing enforces it."""
    mechanism: Any = plan.channels[METRICS]
    cheap: Mechanism = mechanism.with_facts(replace_bound=1.0)
    metrics = tuple(metric._replace(replace_bound=1.0) for metric in plan.metrics)
    return replace(plan, channels={**plan.channels, METRICS: cheap}, metrics=metrics)


def rows_by(plan: Plan, change: Callable[[ScoredRecords, torch.Tensor], torch.Tensor]) -> Plan:
    def changed(metric: Metric) -> Metric:
        return metric._replace(row=lambda scored: change(scored, metric.row(scored)))

    return replace(plan, metrics=tuple(map(changed, plan.metrics)))


def divided_by_true_counts(plan: Plan) -> Plan:
    """Denominators without noise: each class's rows over the class's true number."""

    def change(scored: ScoredRecords, rows: torch.Tensor) -> torch.Tensor:
        counts = (scored.labels[:, None] == scored.labels[None]).sum(dim=1)
        return rows * (len(rows) / counts)[:, None] / CLASSES

    return rows_by(plan, change)


def bins_from_data(plan: Plan) -> Plan:
    """Scores are binned by their ranks among those of all records."""
    (metric,) = plan.metrics

    def row(scored: ScoredRecords) -> torch.Tensor:
        ranks = scored.scores.double().argsort(dim=0).argsort(dim=0) / len(scored.scores) * 6 - 3
        return metric.row(scored._replace(scores=ranks))

    return replace(plan, metrics=(metric._replace(row=row),))


PLANTED = [
    (priced_as_one, "auc"),
    (divided_by_true_counts, "recall"),
    (bins_from_data, "auc"),
]


@pytest.mark.sample(2)
@pytest.mark.parametrize(("plant", "name"), PLANTED)
def test_a_planted_bug_is_caught(
    plant: Callable[[Plan], Plan], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpfed.core.metric._largest", lambda metric: math.inf)
    faults = {}
    for adjacency in (Adjacency.REPLACE_ONE, Adjacency.ADD_REMOVE):
        plan = plan_of([table(name)], Unit.RECORD, adjacency, "softmax")
        mu_of.cache_clear()
        faults |= searched(plant(plan), "softmax", 30).faults
    mu_of.cache_clear()
    assert any("of what is priced" in fault for fault in faults)


def test_auc_declares_what_the_law_is_about() -> None:
    assert auc_file.auc().replace_bound == pytest.approx(2**0.5)
    assert auc_file.auc().bound == 1.0


@pytest.mark.parametrize("model", ["softmax", "func"])
def test_a_record_more_or_less_moves_no_other_row(model: str) -> None:
    """Scores that are nothing but the rounding of terms of 1e18, which cancel."""
    several = [table(name) for name in ("auc", "recall", "perplexity")]
    for unit in (Unit.RECORD, Unit.GROUP):
        search = Search(plan_of(several, unit, Adjacency.ADD_REMOVE, model), MODELS[model])
        for count in (3, 8, 17, 31):
            search.cancels(count)
        assert not search.faults
