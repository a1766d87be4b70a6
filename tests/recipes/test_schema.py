# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpfed.core.errors import RecipeError
from dpfed.core.types import Adjacency, Trust, Unit
from dpfed.recipes.schema import Recipe, assign, dump_recipe, load_recipe, parse


def test_everything_has_a_default() -> None:
    recipe = parse({})
    assert recipe == Recipe()
    assert recipe.server == [{"name": "scale"}]


def test_what_is_dumped_is_read_back_as_the_same_recipe(tmp_path: Path) -> None:
    tree = {
        "seed": 3,
        "privacy": {"epsilon": 1, "unit": "group", "trust": "central", "adjacency": "zero-out"},
        "server": [{"name": "sofim", "rho": 2.0, "corrected": True}, {"name": "scale"}],
        "data": {"options": {"x": ["a", "b"]}, "partition": {"name": "natural"}},
    }
    recipe = parse(tree)
    assert (recipe.privacy.unit, recipe.privacy.trust) == (Unit.GROUP, Trust.CENTRAL)
    path = tmp_path / "recipe.toml"
    path.write_text(dump_recipe(recipe))
    assert load_recipe(path) == recipe


def test_every_recipe_of_the_repository_parses(repository: Path) -> None:
    found = sorted((repository / "examples" / "recipes").rglob("*.toml"))
    assert found
    for path in found:
        load_recipe(path)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"privacy": {"epsilom": 1}}, "did you mean 'epsilon'"),
        ({"rouns": 3}, "did you mean 'rounds'"),
        ({"rounds": "many"}, "rounds must be a whole number, got 'many'; correct it"),
        (
            {"privacy": {"trust": "lokal"}},
            "privacy.trust must be one of local, distributed, central, got 'lokal'; correct it",
        ),
        ({"server": {"name": "scale"}}, "server must be a list, got a dict of 1; correct it"),
    ],
)
def test_mistakes_are_answered_in_one_sentence(tree: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        parse(tree)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="cannot be read"):
        load_recipe(tmp_path / "absent.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("rounds = = 3")
    with pytest.raises(RecipeError, match="is not TOML"):
        load_recipe(broken)
    broken.write_bytes(b"\xff\xfe")
    with pytest.raises(RecipeError, match="is not TOML"):
        load_recipe(broken)


def test_overrides_reach_every_depth() -> None:
    base = {"server": [{"name": "sofim"}, {"name": "scale"}]}
    overrides = [
        "privacy.epsilon=5",
        "server.1.rate=0.25",
        "data.partition.options.alpha=0.1",
        "privacy.adjacency=zero-out",
        "name=my run",
        "server.0.corrected=true",
    ]
    recipe = load_recipe(base, overrides)
    assert recipe.privacy.epsilon == 5
    assert recipe.privacy.adjacency is Adjacency.ZERO_OUT
    assert recipe.server == [{"name": "sofim", "corrected": True}, {"name": "scale", "rate": 0.25}]
    assert recipe.data.partition.options == {"alpha": 0.1}
    assert recipe.name == "my run"
    assert base == {"server": [{"name": "sofim"}, {"name": "scale"}]}


@pytest.mark.parametrize("override", ["epsilon", "=3", "server.5.rate=1", "rounds.x=1"])
def test_overrides_that_set_nothing_are_refused(override: str) -> None:
    with pytest.raises(RecipeError, match="--set"):
        load_recipe({"rounds": 3, "server": [{"name": "scale"}]}, [override])


@given(st.text(max_size=30))
def test_no_override_crashes(text: str) -> None:
    with contextlib.suppress(RecipeError):
        assign({"server": [{}], "rounds": 3}, text)


# ------------------------------------------------------------------------------------- the default


@pytest.mark.parametrize(
    ("tree", "client", "rounds"),
    [
        ({}, "fedauto", 20),
        ({"rounds": 10, "privacy": {"epsilon": 1.0}}, "fedauto", 10),
        ({"model": {"name": "logistic"}}, "fedauto", 20),
        ({"privacy": {"mechanism": "discrete_gaussian"}}, "fedauto", 20),
        ({"method": "dp-fedauto"}, "fedauto", 20),
        ({"method": "dp-fedgd"}, "gradient", 70),
        ({"server": [{"name": "adam"}]}, "gradient", 70),
        ({"client": {"name": "fedavg"}}, "fedavg", 70),
        ({"model": {"name": "poisson"}}, "gradient", 70),
        ({"model": {"name": "network"}}, "gradient", 100),
        ({"model": {"name": "transformers"}}, "gradient", 70),
        ({"privacy": {"mechanism": "clear"}}, "gradient", 70),
        ({"privacy": {"weights": "average"}}, "gradient", 70),
        ({"evaluation": {"kind": "estimate"}}, "gradient", 70),
    ],
)
def test_a_recipe_without_a_method_has_the_default_where_it_can(
    tree: dict[str, Any], client: str, rounds: int
) -> None:
    recipe = load_recipe(tree)
    assert (recipe.client["name"], recipe.rounds) == (client, rounds)
    assert load_recipe(tomllib.loads(dump_recipe(recipe))) == recipe


def network(**tables: Any) -> Recipe:
    return load_recipe({"model": {"name": "network"}, **tables})


@pytest.mark.parametrize(
    ("privacy", "drawn"),
    [
        ({}, 0.1),
        ({"adjacency": "replace-one"}, 0.1),
        ({"adjacency": "zero-out"}, 0.1),
        ({"adjacency": "add-remove", "unit": "group", "epsilon": 8}, 0.1),
        ({"adjacency": "zero-out", "mechanism": "clear"}, 0.1),
        ({"adjacency": "zero-out", "record_rate": 0.3}, 0.3),
        ({"adjacency": "zero-out", "client_rate": 0.5}, 1.0),
        ({"adjacency": "zero-out", "epsilon": 100.0}, 1.0),
        ({"adjacency": "zero-out", "std_over_clip": 0.01}, 1.0),
    ],
)
def test_a_network_without_a_method_steps_by_adam_and_draws(
    privacy: dict[str, Any], drawn: float
) -> None:
    recipe = network(privacy=privacy)
    assert [link["name"] for link in recipe.server] == ["adam", "pace"]
    assert (recipe.rounds, recipe.privacy.record_rate, recipe.method) == (100, drawn, None)
    assert load_recipe(tomllib.loads(dump_recipe(recipe))) == recipe


def test_what_a_network_is_given_stays() -> None:
    assert network(rounds=30).rounds == 30
    assert network(method="dp-fedgd").server == [{"name": "scale"}]
    assert network(client={"name": "fedavg"}).server == [{"name": "scale"}]
    assert network(server=[{"name": "ema"}]).server == [{"name": "ema"}]
    for privacy in ({"unit": "client"}, {"mechanism": "tree"}):
        found = network(privacy=privacy)
        assert (found.server, found.rounds) == ([{"name": "scale"}], 70)


def test_a_module_in_the_place_of_a_model_has_the_default_of_networks() -> None:
    module = torch.nn.Linear(2, 2)
    assert load_recipe({"model": module}).server == network().server


def test_overrides_come_before_the_default() -> None:
    assert load_recipe({}, ["method=dp-fedavg"]).client == {"name": "fedavg"}
    assert load_recipe({}, ["privacy.mechanism=clear"]).client == {"name": "gradient"}


@pytest.mark.parametrize("override", ["method=dp-fedgd", 'method = "dp-fedgd"'])
def test_another_method_takes_its_own_tables(override: str) -> None:
    """Those of the recipe's method must not stay under the other's name."""
    recipe = load_recipe({"method": "dp-fedauto"}, [override])
    assert recipe == load_recipe({"method": "dp-fedgd"})


def test_a_table_that_is_none_is_refused_as_before() -> None:
    with pytest.raises(RecipeError, match="privacy must be a table"):
        load_recipe({"privacy": 3})
