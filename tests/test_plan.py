# SPDX-License-Identifier: Apache-2.0
"""From recipe to plan: calibrated, split over channels, refused where it would be unsound."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dpfed.data.problems import Linear, Network
from dpfed.errors import DataError, RecipeError, UnsoundPlan
from dpfed.plan import federation, make_plan, small_delta
from dpfed.recipe import parse
from dpfed.round import Plan
from dpfed.types import METRICS, UPDATE, Weights
from tests.conftest import make_records

SYNTHETIC = {"source": "synthetic", "options": {"records": 300, "features": 4, "classes": 3}}
CLIENTS = [make_records(30, seed=i) for i in range(4)]


def plan_of(**sections: Any) -> Plan:
    sections.setdefault("privacy", {"epsilon": 1.0})
    return make_plan(parse({"rounds": 7, **sections}), CLIENTS)


def test_the_plan_is_calibrated_to_its_promise() -> None:
    for privacy in (
        {"epsilon": 1.0},
        {"epsilon": 3.0, "adjacency": "zero-out", "clip": 4.0},
        {"epsilon": 0.5, "unit": "client"},
        {"epsilon": 2.0, "trust": "central"},
        {"epsilon": 2.0, "adjacency": "add-remove", "nominal": 25.0},
    ):
        promise = plan_of(privacy=privacy).promise()
        assert promise.epsilon <= privacy["epsilon"]
        assert promise.epsilon == pytest.approx(privacy["epsilon"], rel=1e-8)


def test_federated_evaluation_shares_the_budget() -> None:
    plan = plan_of(evaluation={"kind": "federated", "every": 3, "share": 0.2})
    assert plan.promise().epsilon == pytest.approx(1.0, rel=1e-8)
    costs = {n: plan.planned(n) * (m.clip / m.std) ** 2 for n, m in plan.channels.items()}
    assert costs[METRICS] / sum(costs.values()) == pytest.approx(0.2)
    assert plan.planned(METRICS) == 3


def test_a_noise_level_can_be_given_instead() -> None:
    plan = plan_of(privacy={"std_over_clip": 3.0, "clip": 2.0})
    assert plan.channels[UPDATE].std == 6.0


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"privacy": {}}, "give exactly one"),
        ({"privacy": {"epsilon": 1.0, "std_over_clip": 2.0}}, "give exactly one"),
        ({"privacy": {"mechanism": "clear", "epsilon": 1.0}}, "adds no noise"),
        ({"privacy": {"epsilon": math.nan}}, "epsilon is nan"),
        ({"privacy": {"epsilon": -1.0}}, r"epsilon is -1\.0"),
        ({"privacy": {"epsilon": 1.0, "delta": 0.0}}, r"delta is 0\.0"),
        ({"privacy": {"epsilon": 1.0, "clip": 0.0}}, r"clip is 0\.0"),
        ({"privacy": {"epsilon": 1.0, "adjacency": "add-remove"}}, "declare privacy.nominal"),
        ({"evaluation": {"kind": "peek"}}, "use one of"),
        ({"server": [{"rate": 1.0}]}, "has no name"),
        ({"client": {"name": "gradeint"}}, "did you mean 'gradient'"),
    ],
)
def test_mistakes_are_answered(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        plan_of(**sections)


def test_distributed_trust_is_refused_with_the_plain_sum() -> None:
    with pytest.raises(UnsoundPlan, match="must see only the sum"):
        plan_of(privacy={"epsilon": 1.0, "trust": "distributed"})


def test_nominal_sizes_count_units() -> None:
    assert plan_of().nominal == [30.0] * 4
    assert plan_of(privacy={"epsilon": 1.0, "unit": "group"}).nominal == [10.0] * 4
    assert plan_of(privacy={"epsilon": 1.0, "unit": "client"}).nominal == [1.0] * 4
    assert plan_of(privacy={"epsilon": 1.0, "nominal": 50}).nominal == [50.0] * 4


def test_weights_and_noise_are_the_recipes() -> None:
    plan = plan_of(privacy={"epsilon": 1.0, "weights": "average", "noise": "keyed"}, seed=5)
    assert plan.weights is Weights.AVERAGE
    assert plan.noise.seed == 5
    assert plan_of(seed=5).noise.seed is None


def test_a_delta_that_gives_a_unit_away_is_warned_about() -> None:
    assert small_delta(plan_of()) is None
    warning = small_delta(plan_of(privacy={"epsilon": 1.0, "delta": 0.01}))
    assert warning is not None
    assert "1 / 120" in warning


# ---------------------------------------------------------------------------------- federations


def test_a_federation_has_one_problem_per_client() -> None:
    silos = federation(parse({"data": {**SYNTHETIC, "partition": {"clients": 6}}}))
    assert len(silos.clients) == len(silos.problems) == 6
    assert sum(map(len, silos.clients)) == 300
    assert silos.test is not None
    assert isinstance(silos.model, Linear)
    assert silos.model.layout.size == 15


def test_the_same_seed_gives_the_same_federation() -> None:
    recipe = parse({"data": {**SYNTHETIC, "partition": {"name": "dirichlet", "clients": 3}}})
    one, other = federation(recipe), federation(recipe)
    for a, b in zip(one.clients, other.clients, strict=True):
        assert torch.equal(a.x, b.x)


def test_exact_evaluation_holds_records_out_at_each_client() -> None:
    tree = {"data": {**SYNTHETIC, "partition": {"clients": 3}}}
    silos = federation(parse({**tree, "evaluation": {"kind": "exact", "holdout": 0.25}}))
    assert [len(h) for h in silos.held] == [25, 25, 25]
    assert [len(c) for c in silos.clients] == [75, 75, 75]


def test_validation_takes_the_place_of_the_test_set() -> None:
    silos = federation(parse({"data": {**SYNTHETIC, "validation": 0.1}}))
    assert silos.test is not None
    assert len(silos.test) == 30
    assert sum(map(len, silos.clients)) == 270


def test_a_table_becomes_a_logistic_problem(tmp_path: Path) -> None:
    """Missing values, graded labels, long rows and a natural partition: heart disease in small."""
    x = np.random.default_rng(0).normal(size=(60, 3)) * 5
    x[3, 1] = np.nan
    np.savez(tmp_path / "heart.npz", x=x, y=np.arange(60) % 5, group=np.arange(60) // 20)
    data = {
        "source": "heart.npz", "fill_missing": 0.0, "positive_above": 0.0, "radius": 2.0,
        "partition": {"name": "natural"},
    }  # fmt: skip
    recipe = parse({"data": data, "model": {"name": "logistic"}})
    silos = federation(recipe, root=tmp_path)
    assert [len(records) for records in silos.clients] == [20, 20, 20]
    assert silos.model.layout.shapes == {"weight": (1, 3), "bias": (1,)}
    x = torch.cat([records.x for records in silos.clients])
    assert float(x.norm(dim=1).max()) <= 2.0
    assert set(torch.cat([records.y for records in silos.clients]).tolist()) == {0, 1}


def tiny(width: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 3))


def with_batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))


def test_a_network_comes_from_a_factory() -> None:
    factory = f"{__name__}:tiny"
    model = {"name": "network", "factory": factory, "options": {"width": 6}, "chunk": 8}
    silos = federation(parse({"data": SYNTHETIC, "model": model}))
    assert isinstance(silos.model, Network)
    assert silos.model.layout.size == 4 * 6 + 6 + 18 + 3
    assert silos.model.chunk == 8


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"name": "network"}, "needs factory"),
        ({"name": "network", "factory": "nowhere:thing"}, "cannot be imported"),
        ({"name": "network", "factory": f"{__name__}:absent"}, "cannot be imported"),
        ({"name": "network", "factory": f"{__name__}:with_batch_norm"}, "use GroupNorm"),
        ({"name": "network", "factory": f"{__name__}:tiny", "sampler": "x"}, "sampler is 'x'"),
        ({"name": "forest"}, "use softmax, logistic, poisson or network"),
    ],
)
def test_models_that_cannot_be_built_are_refused(model: dict[str, str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        federation(parse({"data": SYNTHETIC, "model": model}))


def test_missing_data_names_the_places_tried() -> None:
    with pytest.raises(DataError, match=r"absent\.npz"):
        federation(parse({"data": {"source": "absent.npz"}}))
