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

from dpfed.client._standardised import Standardised
from dpfed.core.errors import DataError, RecipeError, UnsoundPlan
from dpfed.core.types import METRICS, UPDATE, Weights
from dpfed.data.models import Linear
from dpfed.data.modules import Network
from dpfed.recipes.build import plan_for_clients
from dpfed.recipes.federation import federation
from dpfed.recipes.run import run
from dpfed.recipes.schema import load_recipe, parse
from dpfed.recipes.session import prepare
from dpfed.training.plan import Plan
from dpfed.training.soundness import small_delta
from tests.helpers.records import make_records

SYNTHETIC = {"source": "synthetic", "options": {"records": 300, "features": 4, "classes": 3}}
CLIENTS = [make_records(30, seed=i) for i in range(4)]


def plan_of(**sections: Any) -> Plan:
    sections.setdefault("privacy", {"epsilon": 1.0})
    return plan_for_clients(parse({"rounds": 7, **sections}), CLIENTS)


def test_the_plan_is_calibrated_to_its_guarantee() -> None:
    for privacy in (
        {"epsilon": 1.0},
        {"epsilon": 3.0, "adjacency": "zero-out", "clip": 4.0},
        {"epsilon": 0.5, "unit": "client"},
        {"epsilon": 2.0, "trust": "central"},
        {"epsilon": 2.0, "adjacency": "add-remove", "nominal": 25.0},
    ):
        promise = plan_of(privacy=privacy).guarantee()
        assert promise.epsilon <= privacy["epsilon"]
        assert promise.epsilon == pytest.approx(privacy["epsilon"], rel=1e-8)


def test_federated_evaluation_shares_the_budget() -> None:
    plan = plan_of(evaluation={"kind": "federated", "every": 3, "share": 0.2})
    assert plan.guarantee().epsilon == pytest.approx(1.0, rel=1e-8)
    costs = {n: plan.planned(n) * (m.clip / m.std) ** 2 for n, m in plan.channels.items()}
    assert costs[METRICS] / sum(costs.values()) == pytest.approx(0.2)
    assert plan.planned(METRICS) == 3


def test_a_noise_level_can_be_given_instead() -> None:
    plan = plan_of(privacy={"std_over_clip": 3.0, "clip": 2.0})
    assert plan.channels[UPDATE].std == 6.0


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"privacy": {}}, "exactly one of .* must be given, got None and None; give one"),
        (
            {"privacy": {"epsilon": 1.0, "std_over_clip": 2.0}},
            r"exactly one of .*, got 1\.0 and 2\.0; give",
        ),
        ({"privacy": {"mechanism": "clear", "epsilon": 1.0}}, "adds no noise"),
        ({"privacy": {"epsilon": math.nan}}, "epsilon must be a finite number above 0, got nan; "),
        ({"privacy": {"epsilon": -1.0}}, r"epsilon must be a finite number above 0, got -1\.0; "),
        (
            {"privacy": {"epsilon": 1.0, "delta": 0.0}},
            r"delta must be at least 1e-300 and below 1, got 0\.0; ",
        ),
        ({"privacy": {"epsilon": 1.0, "clip": 0.0}}, r"clip must be .* above 0, got 0\.0"),
        ({"privacy": {"epsilon": 1.0, "adjacency": "add-remove"}}, "declare privacy.nominal"),
        ({"evaluation": {"kind": "peek"}}, "kind must be one of test, .*, got 'peek'; "),
        ({"server": [{"rate": 1.0}]}, "a server table must have a name, and has none; add one"),
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
    assert sum(map(len, silos.held)) == 75
    assert min(map(len, silos.held)) > 10
    assert [len(c) + len(h) for c, h in zip(silos.clients, silos.held, strict=True)] == [100] * 3


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
        "source": "heart.npz",
        "fill_missing": 0.0,
        "positive_above": 0.0,
        "radius": 2.0,
        "partition": {"name": "natural"},
    }
    recipe = parse({"data": data, "model": {"name": "logistic"}})
    silos = federation(recipe, root=tmp_path)
    assert [len(records) for records in silos.clients] == [20, 20, 20]
    assert silos.model.layout.shapes == {"weight": (1, 3), "bias": (1,)}
    x = torch.cat([records.x for records in silos.clients])
    assert float(x.norm(dim=1).max()) <= 2.0
    assert set(torch.cat([records.y for records in silos.clients]).tolist()) == {0, 1}


@pytest.mark.parametrize(
    ("given", "center", "radius"),
    [
        ({}, 0.0, 3**0.5),
        ({"center": "public.npz"}, 0.0, 2.0),
        ({"center": "public.npz", "radius": 5.0}, 0.0, 5.0),
        ({"low": 0.0, "high": 2.0}, 1.0, 3**0.5),
    ],
)
def test_a_standardiser_begins_with_what_is_public(
    tmp_path: Path, given: dict[str, Any], center: float, radius: float
) -> None:
    """Ranges, the rows' radius, public records' spread, or a size of 1 for each feature."""
    x = np.random.default_rng(0).normal(size=(60, 3))
    np.savez(tmp_path / "private.npz", x=x, y=np.arange(60) % 2)
    np.savez(tmp_path / "public.npz", x=[[1.0, 0, 0], [5.0, 0, 0]], y=[0, 1])
    tree = {"data": {"source": "private.npz", **given}, "privacy": {"epsilon": 1.0}}
    model = prepare(load_recipe(tree), tmp_path).federation.model
    assert isinstance(model, Standardised)
    parts = model.layout.unflatten(model.initial(0))
    assert parts["center"].tolist() == [center] * 3
    assert 1 / float(parts["transform"].view(-1)[0]) == pytest.approx(radius)


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
        ({"name": "network"}, r"model\.factory must be 'package\.module:function'.*, got None; "),
        (
            {"name": "network", "factory": "nowhere:thing"},
            "'nowhere:thing' cannot be imported .*; ",
        ),
        ({"name": "network", "factory": f"{__name__}:absent"}, "cannot be imported"),
        ({"name": "network", "factory": f"{__name__}:with_batch_norm"}, "use GroupNorm"),
        (
            {"name": "network", "factory": f"{__name__}:tiny", "sampler": "x"},
            "sampler must be 'auto', 'ghost', 'func', 'opacus', 'alone', got 'x'; ",
        ),
        (
            {"name": "forest"},
            "must be softmax, logistic, poisson, network, transformers, timm, got 'forest'",
        ),
    ],
)
def test_models_that_cannot_be_built_are_refused(model: dict[str, str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        federation(parse({"data": SYNTHETIC, "model": model}))


def test_missing_data_names_the_places_tried() -> None:
    with pytest.raises(DataError, match=r"absent\.npz"):
        federation(parse({"data": {"source": "absent.npz"}}))


def _groups(tmp_path: Path) -> str:
    """40 records of 8 persons."""
    rng = np.random.default_rng(0)
    path = tmp_path / "groups.npz"
    x, y = rng.normal(size=(40, 3)), rng.integers(0, 2, 40)
    np.savez(path, x=x, y=y, group=np.arange(40) % 8)
    return str(path)


def test_the_test_part_is_cut_off_first_and_the_same_for_every_seed(tmp_path: Path) -> None:
    data = {"source": _groups(tmp_path), "holdout": 0.25, "partition": {"clients": 2}}
    tests = [federation(parse({"seed": seed, "data": data})).test for seed in (0, 7)]
    searched = federation(parse({"seed": 1000, "data": {**data, "validation": 0.2}}))
    first, second = tests
    assert first is not None
    assert second is not None
    assert torch.equal(first.x, second.x)
    assert len(first) == 10
    seen = torch.cat([client.x for client in searched.clients] + [searched.test.x])  # type: ignore[union-attr]
    assert len(seen) == 30
    assert not torch.isin(first.x[:, 0], seen[:, 0]).any()


def test_whole_groups_are_held_out(tmp_path: Path) -> None:
    data = {"source": _groups(tmp_path), "holdout": 0.25, "by_group": True}
    silos = federation(parse({"data": {**data, "partition": {"name": "natural"}}}))
    assert silos.test is not None
    assert silos.test.groups is not None
    trained = {int(g) for client in silos.clients for g in client.groups}  # type: ignore[union-attr]
    held = set(silos.test.groups.tolist())
    assert len(held) == 2
    assert len(trained) == 6
    assert not held & trained


def test_a_search_never_sees_a_clients_own_test_records(tmp_path: Path) -> None:
    tree = {
        "data": {"source": _groups(tmp_path), "partition": {"name": "natural", "clients": 2}},
        "evaluation": {"kind": "exact", "holdout": 0.25},
    }
    final = [federation(parse({**tree, "seed": seed})).held for seed in (0, 1)]
    tree["data"]["validation"] = 0.2
    searched = federation(parse({**tree, "seed": 1000}))
    tested = [torch.cat([part.x for part in held])[:, 0].sort().values for held in final]
    seen = torch.cat([part.x for part in (*searched.clients, *searched.held)])[:, 0]
    assert torch.equal(*tested)
    assert len(tested[0]) == 10
    assert len(seen) == 30
    assert not torch.isin(tested[0], seen).any()


def test_a_client_that_would_keep_nothing_is_refused(tmp_path: Path) -> None:
    data = {"source": _groups(tmp_path), "by_group": True, "partition": {"name": "natural"}}
    tree = {"data": data, "evaluation": {"kind": "exact", "holdout": 0.25}}
    with pytest.raises(RecipeError, match=r"train on at.*= 0\.25"):
        federation(parse(tree))


def test_features_are_shifted_and_scaled_by_public_constants(tmp_path: Path) -> None:
    data = {"source": _groups(tmp_path), "partition": {"clients": 1}}
    plain = federation(parse({"data": data})).clients[0].x
    moved = {**data, "shift": [1.0, 0.0, -1.0], "scale": [2.0, 1.0, 0.5]}
    made = federation(parse({"data": moved})).clients[0].x
    expected = (plain - torch.tensor([1.0, 0.0, -1.0])) / torch.tensor([2.0, 1.0, 0.5])
    assert torch.allclose(made, expected)
    with pytest.raises(
        RecipeError, match=r"data\.shift must be one number.*list of 3, got.*list of 2"
    ):
        federation(parse({"data": {**data, "shift": [1.0, 2.0]}}))
    with pytest.raises(RecipeError, match=r"data\.scale must be without 0, .*; use 1 to leave"):
        federation(parse({"data": {**data, "scale": [1.0, 0.0, 1.0]}}))


def test_one_public_constant_serves_all_features(tmp_path: Path) -> None:
    data = {"source": _groups(tmp_path), "partition": {"clients": 1}}
    each = federation(parse({"data": {**data, "shift": [0.5] * 3, "scale": [3.0] * 3}}))
    one = federation(parse({"data": {**data, "shift": 0.5, "scale": 3.0}}))
    assert torch.equal(one.clients[0].x, each.clients[0].x), "to the last bit"
    with pytest.raises(RecipeError, match=r"data\.scale must be without 0, got 0"):
        federation(parse({"data": {**data, "scale": 0.0}}))


def test_an_estimate_is_judged_by_its_distance_to_the_one_from_all_records(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(400, 2))
    y = (rng.random(400) < 1 / (1 + np.exp(-x @ [1.0, -1.0]))).astype(int)
    np.savez(tmp_path / "t.npz", x=x, y=y)
    data = {"source": str(tmp_path / "t.npz"), "partition": {"clients": 4}}
    tree = {
        "data": data,
        "model": {"name": "logistic"},
        "evaluation": {"kind": "estimate"},
        "privacy": {"mechanism": "clear", "clip": 100.0},
        "rounds": 60,
        "server": [{"name": "scale", "rate": 4.0}],
    }
    result = run(tree)
    assert result.history[0]["accuracy"] is None
    assert result.history[-1]["loss"] < 1e-6 < result.history[0]["loss"]
    assert "not covered" in result.evaluation
    with pytest.raises(RecipeError, match="many or none"):
        federation(parse({**tree, "model": {"name": "softmax"}}))
    with pytest.raises(RecipeError, match="use 'estimate'"):
        federation(parse({**tree, "evaluation": {"kind": "truth"}}))
