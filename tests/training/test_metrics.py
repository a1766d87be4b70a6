# SPDX-License-Identifier: Apache-2.0
"""Metrics that a plan names: through the one door, at the stated noise, into the history."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import dpfed
from dpfed.audit.client_laws import MODEL
from dpfed.core.errors import DataError, RecipeError, UnsoundPlan
from dpfed.core.metric import joint_bound, joint_replace_bound
from dpfed.core.registry import build
from dpfed.core.types import METRICS, UPDATE, Broadcast, Facts, Unit
from dpfed.data.datasets import Records
from dpfed.data.models import Linear
from dpfed.flower import make_plan as plan_by_sections
from dpfed.mechanisms.gaussian import gaussian
from dpfed.training.history import COLUMNS, columns_of
from dpfed.training.metrics import measured
from dpfed.training.plan import Plan
from dpfed.training.reply import ClientState, PricedReleaser, make_reply
from dpfed.training.round import run_round, start
from tests.helpers.records import make_records
from tests.helpers.rounds import SIZES, Wire, client_states, make_plan

CLASSES = {"classes": 3}
NAMED = (
    build("metrics", "accuracy", {}),
    build("metrics", "loss", {"bound": 3.0}),
    build("metrics", "recall", CLASSES),
    build("metrics", "auc", CLASSES),
)


def measuring(std: float, metrics: Any = NAMED, **changes: Any) -> Plan:
    noise = gaussian(Facts(joint_bound(metrics), replace_bound=joint_replace_bound(metrics)), std)
    channels = {UPDATE: gaussian(Facts(1.0), 2.0), METRICS: noise}
    return make_plan(**{"channels": channels, "metrics": metrics, **changes})


def figures(plan: Plan, attempt: int = 0, clients: Any = None) -> dict[str, float]:
    params = torch.linspace(-1, 1, MODEL.layout.size)
    state = replace(start(plan, params), attempt=attempt)
    people = client_states() if clients is None else clients
    _, result = run_round(plan, state, Wire(plan, people))
    return measured(result.aggregate, plan.loss_bound, plan.metrics)


@pytest.mark.long
def test_they_are_exact_without_noise_and_as_noisy_as_they_say() -> None:
    right, loss = [], []
    for i, size in enumerate(SIZES):
        correct, losses = MODEL.judge(
            torch.linspace(-1, 1, MODEL.layout.size), make_records(size, 4, 3, seed=i)
        )
        right.append(correct)
        loss.append(losses)
    exact = float(torch.cat(right).mean()), float(torch.cat(loss).clamp(max=3.0).mean())
    clean = figures(measuring(1e-6))
    assert (clean["accuracy"], clean["loss"]) == pytest.approx(exact, abs=1e-5)
    plan = measuring(0.5)
    found = [figures(plan, attempt) for attempt in range(150)]
    for name, value in zip(("accuracy", "loss"), exact, strict=True):
        values = torch.tensor([each[name] for each in found])
        stated = found[0][f"{name}_std"]
        assert float(values.std()) == pytest.approx(stated, rel=0.2)
        assert abs(float(values.mean()) - value) < 4 * stated / math.sqrt(150)


def test_who_is_missing_adds_no_noise() -> None:
    some = {i: state for i, state in client_states().items() if i < 2}
    all_of_them, two = figures(measuring(0.5)), figures(measuring(0.5), clients=some)
    assert two["accuracy_std"] / all_of_them["accuracy_std"] == pytest.approx(math.sqrt(2 / 3))


def test_a_reply_has_one_vector_of_public_length_and_no_count() -> None:
    plan, broadcast = measuring(0.5), Broadcast(0, torch.zeros(MODEL.layout.size))
    for i, state in client_states().items():
        reply, _ = make_reply(plan, broadcast, state, PricedReleaser(plan, broadcast, state))
        assert set(reply) == {UPDATE, METRICS}
        assert reply[METRICS].vector.shape == (sum(metric.size for metric in NAMED),), i


def test_a_person_with_many_records_counts_once() -> None:
    """Of two persons the one with 99 records is wrong: half is right, not one in a hundred."""
    x, y = torch.ones(100, 1), torch.zeros(100, dtype=torch.int64)
    y[0] = 1
    groups = torch.tensor([0] + [1] * 99)
    problem = Linear("logistic", 1).problem(Records(x, y, groups))
    params, metric = torch.tensor([5.0, 0.0]), build("metrics", "accuracy", {})
    for unit, rows in ((Unit.GROUP, [1.0, 0.0]), (Unit.CLIENT, [0.01])):
        assert problem.judged(params, unit, metric.row).flatten().tolist() == pytest.approx(rows)


# ------------------------------------------------------------------------- refused before data


def test_metrics_of_another_model_are_refused_before_data_is_touched() -> None:
    plan = measuring(0.5, (build("metrics", "auc", {}),))
    broadcast, state = Broadcast(0, torch.zeros(MODEL.layout.size)), client_states()[0]
    with pytest.raises(DataError, match="built for 2 classes"):
        make_reply(plan, broadcast, state, PricedReleaser(plan, broadcast, state))


def test_a_problem_that_cannot_be_judged_is_refused_before_data_is_touched() -> None:
    class Own:
        dimension = 3

    plan, broadcast = measuring(0.5), Broadcast(0, torch.zeros(3))
    state = ClientState(0, Own())  # type: ignore[arg-type]
    with pytest.raises(UnsoundPlan, match="got a Own"):
        make_reply(plan, broadcast, state, PricedReleaser(plan, broadcast, state))


def test_a_plan_refuses_metrics_that_its_noise_does_not_cover() -> None:
    short = gaussian(Facts(1.0), 2.0)
    with pytest.raises(UnsoundPlan, match=r"clip of 2 and a replace_bound of 2\.449"):
        measuring(0.5, channels={UPDATE: short, METRICS: short})
    cheap = gaussian(Facts(2.0, replace_bound=2.0), 2.0)
    with pytest.raises(UnsoundPlan, match="clip of 2 and a replace_bound"):
        measuring(0.5, channels={UPDATE: short, METRICS: cheap})
    with pytest.raises(UnsoundPlan, match="mechanism on 'metrics'"):
        measuring(0.5, channels={UPDATE: short})
    with pytest.raises(UnsoundPlan, match="numbers of different names"):
        measuring(0.5, NAMED[:1] * 2)
    for wrong in ({"bound": 0.0}, {"replace_bound": 0.5}, {"replace_bound": 1.5}, {"size": 0}):
        with pytest.raises(UnsoundPlan, match="replace_bound from it to"):
            make_plan(metrics=(NAMED[0]._replace(**wrong),))


@pytest.mark.parametrize(
    ("evaluation", "words"),
    [
        ({"kind": "test", "metrics": ["accuracy"]}, "left out for evaluation.kind 'test'"),
        ({"metrics": []}, "one or more metrics"),
        ({"metrics": ["recall", "balanced_accuracy"]}, "numbers of different names"),
        ({"metrics": ["acuracy"]}, "did you mean 'accuracy'"),
        ({"metrics": [{"name": "auc", "bin": 3}]}, "no option 'bin'; did you mean 'bins'"),
        ({"metrics": [{"bins": 3}]}, "a metric table must have a name"),
        ({"metrics": [{"name": "mae", "bound": -1.0}]}, r"mae.bound must be a finite number"),
    ],
)
def test_a_recipe_refuses_metrics_that_make_no_sense(
    evaluation: dict[str, Any], words: str
) -> None:
    sections = {"rounds": 2, "privacy": {"epsilon": 1.0}}
    with pytest.raises(RecipeError, match=words):
        plan_by_sections([100.0], **sections, evaluation={"kind": "federated", **evaluation})


# ------------------------------------------------------------------------------------- recipes


def test_the_channel_costs_its_share_whatever_is_measured() -> None:
    for metrics in (["accuracy"], ["accuracy", "auc", "recall", "perplexity"]):
        for adjacency in ("replace-one", "zero-out"):
            for mechanism in ("gaussian", "discrete_gaussian"):
                plan = plan_by_sections(
                    [100.0] * 3,
                    rounds=5,
                    privacy={"epsilon": 1.0, "adjacency": adjacency, "mechanism": mechanism},
                    evaluation={"kind": "federated", "metrics": metrics},
                )
                assert plan.guarantee().claims[0].epsilon == pytest.approx(1.0, rel=1e-3)


RECIPE: dict[str, Any] = {
    "rounds": 3,
    "data": {
        "source": "synthetic",
        "options": {"records": 600, "features": 4, "classes": 2},
        "partition": {"clients": 3},
    },
    "privacy": {"epsilon": 50.0, "noise": "keyed"},
    "evaluation": {"kind": "federated", "share": 0.5, "metrics": ["accuracy", "auc"]},
    "method": "dp-fedgd",
}


def test_numbers_are_in_the_history_and_in_all_files(tmp_path: Path) -> None:
    result = dpfed.run(RECIPE, out=tmp_path / "run", sinks=["csv"])
    named = ["accuracy_std", "auc", "auc_std"]
    assert list(result.history[-1]) == [*COLUMNS, *named]
    assert 0.5 < result.history[-1]["auc"] <= 1
    with (tmp_path / "run" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["auc"]) for row in rows] == [row["auc"] for row in result.history]
    assert result.accuracy == result.history[-1]["accuracy"]


def test_a_plan_that_names_none_has_the_columns_of_all() -> None:
    assert columns_of(make_plan()) == COLUMNS
