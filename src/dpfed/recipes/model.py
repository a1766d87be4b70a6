# SPDX-License-Identifier: Apache-2.0
"""The model that a recipe names, for records of a public shape: nothing of the records is read."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpfed.core.checks import refuse
from dpfed.core.errors import RecipeError
from dpfed.data.datasets import Dataset
from dpfed.data.models import Linear, Model
from dpfed.recipes.schema import ModelRecipe

NETWORKS = ("network", "transformers", "timm")
"""Models that are torch modules (network.py); the others are linear."""


def build_model(recipe: ModelRecipe, dataset: Dataset, seed: int = 0) -> Model:
    """The model that the recipe names, sized for the data set.

    Args:
        recipe: the recipe's table ``model``.
        dataset: the data set, which gives the number of features and classes.
        seed: the run's seed, from which a network's initial weights follow.
    """
    return sized_model(recipe, dataset.train.x.shape[1:], dataset.classes, seed)


def sized_model(
    recipe: ModelRecipe, shape: Sequence[int], classes: int | None, seed: int = 0
) -> Model:
    """The model that the recipe names, for records of this shape.

    Args:
        recipe: the recipe's table ``model``.
        shape: of a record's features.
        classes: how many there are; None if labels are numbers.
        seed: the run's seed, from which a network's initial weights follow.
    """
    features = math.prod(shape)
    if recipe.name in NETWORKS:
        refuse_start(recipe, f"model.name {recipe.name!r}, whose own code makes its start")
        from dpfed.recipes.network import build_network

        return build_network(recipe, classes, seed)
    if recipe.name == "softmax":
        if classes is None:
            raise RecipeError(
                "model.name 'softmax' needs class labels, got numbers; set it to 'logistic', "
                "'poisson' or 'network'"
            )
        return Linear("softmax", features, classes, bias=recipe.bias, start=recipe.start)
    if recipe.name in {"logistic", "poisson"}:
        return Linear(recipe.name, features, 1, bias=recipe.bias, start=recipe.start)
    raise refuse(
        "model.name", ", ".join(("softmax", "logistic", "poisson", *NETWORKS)), recipe.name
    )


def refuse_start(recipe: ModelRecipe, where: str) -> None:
    """Refuse a start that would not be used.

    Args:
        recipe: the recipe's table ``model``.
        where: what makes a start of its own.
    """
    if recipe.start != ModelRecipe().start:
        raise refuse("model.start", f"left out with {where}", recipe.start, "leave it out")


def is_loaded(recipe: ModelRecipe) -> bool:
    """Whether a model is made by code or files of others, and not of its sizes alone.

    Args:
        recipe: the recipe's table ``model``.
    """
    return recipe.name in NETWORKS or recipe.factory is not None
