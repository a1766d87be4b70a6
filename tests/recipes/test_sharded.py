# SPDX-License-Identifier: Apache-2.0
"""A train function in a recipe: plans that it may have, and a run in one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import dpfed
from dpfed.core.errors import DpfedError, RecipeError, UnsoundPlan
from dpfed.core.vector import Layout
from dpfed.flower import make_plan
from dpfed.recipes.schema import TrainRecipe, parse
from dpfed.recipes.sharded import function_of, limits_of

PRIVACY = {"epsilon": 2.0}
SIMULATION = "flower-simulation"
LAYOUT = Layout({"weight": (3, 4), "bias": (3,)})
TRAIN = {"function": "tests.helpers.train_functions:plain", "shards": 6}
DATA = {"options": {"records": 240, "features": 4, "classes": 3}, "partition": {"clients": 2}}


def plan(train: Any = TRAIN, sizes: Any = (120, 90), **sections: Any) -> Any:
    privacy = {**PRIVACY, **sections.pop("privacy", {})}
    return make_plan(list(sizes), LAYOUT, train=train, privacy=privacy, **sections)


def test_the_mean_is_that_of_all_shards_and_the_sentence_says_what_it_rests_on() -> None:
    made = plan({"shards": [6, 4]})
    assert made.denominator("update") == 10
    assert made.guarantee().epsilon == pytest.approx(2.0)
    said = "if the train function reads no data but its shard and leaves nothing outside its"
    assert said in str(made.guarantee())
    assert made.fingerprint() != plan({"shards": [4, 6]}).fingerprint()


def test_a_record_costs_what_it_costs_elsewhere() -> None:
    """Twice the clip under replace-one: the same noise as rows of records have."""
    rows = make_plan([120, 90], rounds=10, client="gradient", privacy={**PRIVACY, "clip": 0.5})
    assert plan(privacy={"clip": 0.5}).update.std == rows.update.std


def test_defaults_follow_from_public_sizes_and_epsilon() -> None:
    made = plan({}, sizes=(5000, 2500), privacy={"epsilon": 8.0})
    assert made.shards == (100, 50)
    assert plan({}, sizes=(5000, 2500), privacy={"epsilon": 0.1}).shards == (1250, 625)
    assert made.rounds == 10
    assert set(made.channels) == {"update", "count"}


def test_a_clip_that_is_given_stays_and_persons_have_one() -> None:
    for privacy in ({"clip": 0.5}, {"unit": "group"}):
        assert set(plan(privacy=privacy).channels) == {"update"}
    assert plan(privacy={"unit": "group"}).channels["update"].clip == 1.0


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"privacy": {"adjacency": "zero-out"}}, "replace-one"),
        ({"privacy": {"adjacency": "add-remove", "nominal": 100.0}}, "replace-one"),
        ({"privacy": {"unit": "client"}}, "privacy.unit"),
        ({"privacy": {"record_rate": 0.5}}, "record_rate"),
        ({"privacy": {"client_rate": 0.5, "trust": "central"}}, "client_rate"),
        ({"privacy": {"unit": "group", "adaptive": {}}}, "adaptive"),
        ({"train": {"shards": 0}}, "train.shards"),
        ({"train": {"shards": [6]}}, "train.shards"),
        ({"train": {"shards": 91}}, "public size"),
        ({"client": "fedauto"}, "own steps"),
        *(({"method": name}, ".") for name in ("dp-scaffold", "dp-fednew", "dp-localadamw")),
        *(({"method": name}, ".") for name in ("dp-fedadamw", "dp-fedfc", "adadps")),
    ],
)
def test_what_a_function_in_shards_cannot_have_is_refused(sections: Any, words: str) -> None:
    with pytest.raises((UnsoundPlan, RecipeError), match=words):
        plan(**{"train": TRAIN, **sections})


@pytest.mark.parametrize("name", ["dp-fedgd", "dp-fedadam", "dp-ftrl", "dp-fedsofim"])
def test_server_optimizers_and_their_noise_are_as_ever(name: str) -> None:
    made = make_plan([90] * 3, LAYOUT, method=name, train=TRAIN, rounds=4, privacy=PRIVACY)
    assert made.guarantee().epsilon <= 2.0 + 1e-9


@pytest.mark.parametrize("trust", ["local", "distributed", "central"])
def test_each_kind_of_trust(trust: str) -> None:
    total = {"name": "secure"} if trust == "distributed" else {"name": "plain"}
    made = plan(sizes=[100] * 10, sum=total, privacy={"trust": trust})
    assert made.guarantee().epsilon <= 2.0 + 1e-9


def test_functions_and_limits_are_checked() -> None:
    with pytest.raises(RecipeError, match=r"package\.module:function"):
        function_of(TrainRecipe(function="train"))
    with pytest.raises(RecipeError, match=r"from 0\.001"):
        limits_of(TrainRecipe(seconds=0.0))
    with pytest.raises(RecipeError, match="MiB"):
        limits_of(TrainRecipe(memory=1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("privacy", "total"),
    [
        ({}, {"name": "plain"}),
        pytest.param({"mechanism": "discrete_gaussian"}, {"name": "plain"}, marks=pytest.mark.long),
        pytest.param({"trust": "distributed"}, {"name": "secure"}, marks=pytest.mark.long),
    ],
)
def test_a_run_learns_and_states_its_guarantee(privacy: Any, total: Any) -> None:
    data = {"options": {"records": 3000, "features": 4, "classes": 3}}
    result = dpfed.run(
        data={**data, "holdout": 0.2, "partition": {"clients": 5}},
        train={**TRAIN, "shards": 20, "seconds": 5.0},
        privacy={"epsilon": 200.0, "noise": "keyed", **privacy},
        sum=total,
        rounds=4,
        evaluation={"kind": "federated"} if total["name"] == "plain" else {"kind": "test"},
    )
    assert "if the train function reads no data but its shard" in result.guarantee.sentence
    accuracy = result.history[-1]["accuracy"]
    assert accuracy is not None
    assert accuracy > 0.6
    assert np.isfinite(result.params).all()


@pytest.mark.long
@pytest.mark.slow
def test_a_function_that_never_works_costs_nothing(tmp_path: Any) -> None:
    ledger = {"dataset": "ward", "path": str(tmp_path / "ledger.sqlite")}
    train = {**TRAIN, "function": "tests.helpers.train_functions:too_many"}
    with pytest.raises(DpfedError, match="must return arrays of the shapes"):
        dpfed.run(data=DATA, train=train, privacy=PRIVACY, ledger=ledger, rounds=1)
    from dpfed.accounting.ledger.ledger import Ledger

    assert not list(Ledger(tmp_path / "ledger.sqlite").rows())


def test_a_recipe_names_one_function() -> None:
    assert parse({"train": TRAIN}).train.function == TRAIN["function"]  # type: ignore[union-attr]
    with pytest.raises(RecipeError, match="train"):
        parse({"train": {"shard": 3}})


@pytest.mark.long
def test_flowers_simulation_has_the_bits_of_one_process() -> None:
    """In CI behind gates (tests/silo/test_sharded_gate.py) and over a grid."""
    given: dict[str, Any] = {
        "data": DATA,
        "train": {**TRAIN, "seconds": 10.0},
        "privacy": {"epsilon": 8.0, "noise": "keyed"},
        "rounds": 2,
    }
    one, other = (dpfed.run(engine=engine, **given) for engine in ("in-process", SIMULATION))
    assert torch.equal(one.params, other.params)
