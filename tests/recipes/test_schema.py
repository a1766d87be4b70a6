# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import tomllib
from pathlib import Path
from typing import Any

import pytest
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
        ({"server": {"name": "scale"}}, "server must be a list, got {'name': 'scale'}; correct it"),
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
        ({"model": {"name": "network"}}, "gradient", 70),
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
