# SPDX-License-Identifier: Apache-2.0
"""From a recipe's table ``data`` to one owner's records: loaded, and prepared one by one.

Every step reads one record at a time or is fixed in advance, so none of it costs privacy. What is
held out, and when, so that a search never sees a test record:

    data.holdout            the test set, cut off first, the same one for every seed
    evaluation "exact"      each client's own test records, the same ones for every seed
    data.validation         a part of what is left, by the run's seed, judged in their place
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dpfed.core.checks import refuse
from dpfed.core.errors import RecipeError
from dpfed.data import datasets
from dpfed.data.contract import Contract
from dpfed.data.datasets import Dataset, Records
from dpfed.data.readers import Public
from dpfed.recipes.schema import DataRecipe, EvaluationKind, Missing, Recipe, with_contract


def load_dataset(whole: Recipe, root: Path | None, public: Public | None = None) -> Dataset:
    """The data set, with every per-record step that the recipe asks for.

    Args:
        whole: the recipe.
        root: where a relative source is looked up, after the working directory.
        public: what a gate's policy says of the labels; None sees it from the records.
    """
    return split_and_clean(whole, load_features(whole.data, root, public))


def load_features(recipe: DataRecipe, root: Path | None, public: Public | None = None) -> Dataset:
    """The first half of ``load_dataset``: the source's records, with their features mapped.

    What a recipe does not ask for (a backbone, convolutions) is not imported, so that a gate
    without it need not be reviewed for it.

    Args:
        recipe: the recipe's table ``data``.
        root: where a relative source is looked up, after the working directory.
        public: what a gate's policy says of the labels; None sees it from the records.
    """
    recipe = with_contract(recipe, root)
    given = {**_read_by(recipe), **recipe.options}
    dataset = datasets.load(recipe.source, root=root, public=public, **given)
    dataset = replace(dataset, shape=tuple(dataset.train.x.shape[1:]))
    if recipe.backbone:
        from dpfed.recipes.features import extract_features

        dataset = extract_features(recipe, dataset, root)
    if recipe.convolutions:
        from dpfed.data.convolutions import convolve

        dataset = dataset.map(lambda r: replace(r, x=convolve(r.x, recipe.convolutions)))
    if recipe.center:
        dataset = datasets.center(dataset, recipe.center, root=root)
    if recipe.shift != [] or recipe.scale != []:
        dataset = dataset.map(partial(_standardised, recipe))
    return dataset


def _read_by(recipe: DataRecipe) -> dict[str, Any]:
    """What tables are read by: a contract and the owner's mapping, or a schema."""
    if isinstance(recipe.contract, Contract):
        return {"contract": recipe.contract, "mapping": recipe.mapping}
    return {"schema": recipe.schema}


def split_and_clean(whole: Recipe, dataset: Dataset) -> Dataset:
    """The second half of ``load_dataset``: labels, what is held out, missing values and norms."""
    recipe, at_clients = whole.data, whole.evaluation.kind is EvaluationKind.EXACT
    if recipe.positive_above is not None:
        dataset = datasets.binary(dataset, recipe.positive_above)
    if recipe.holdout:  # before the seed's own split: no search may ever see these records
        dataset = _split(dataset, recipe.holdout, 0, recipe.by_group)
    if recipe.validation and not at_clients:
        dataset = _split(dataset, recipe.validation, whole.seed, recipe.by_group)
    return dataset.map(partial(_clean, recipe))


def _split(dataset: Dataset, fraction: float, seed: int, by_group: bool) -> Dataset:
    """A part of the training records takes the place of the test set."""
    train, held = datasets.holdout(dataset.train, fraction, seed, by_group)
    return replace(dataset, train=train, test=held)


def decided_missing(recipe: DataRecipe) -> Missing | None:
    """The owner's decision about missing values, if there is one."""
    if recipe.missing is Missing.DROP and recipe.fill_missing is not None:
        raise RecipeError(
            f"data.missing = 'drop' and data.fill_missing = {recipe.fill_missing:g} contradict "
            f"each other; choose one"
        )
    if recipe.fill_missing is not None:
        return Missing.FILL
    return recipe.missing


def _clean(recipe: DataRecipe, records: Records) -> Records:
    if decided_missing(recipe) is Missing.FILL:
        records = datasets.fill_missing(records, recipe.fill_missing or 0.0)
    if recipe.norm is not None:
        records = datasets.set_norms(records, recipe.norm)
    return records if recipe.radius is None else datasets.scale_rows(records, recipe.radius)


def _standardised(recipe: DataRecipe, records: Records) -> Records:
    """(x - shift) / scale, by constants that were fixed in advance."""
    x = records.x
    shift, scale = (_constants(recipe, name, x.shape[-1]) for name in ("shift", "scale"))
    if 0 in scale:
        raise refuse("data.scale", "without 0", recipe.scale, "use 1 to leave a feature as it is")
    shifted = x - torch.tensor(shift) if shift else x
    scaled = shifted / torch.tensor(scale) if scale else shifted
    return replace(records, x=scaled)


def _constants(recipe: DataRecipe, name: str, features: int) -> list[float]:
    """One number for all features, or one for each; empty if none is given."""
    values: float | list[float] = getattr(recipe, name)
    if not isinstance(values, list):
        return [values]
    if len(values) not in (0, features):
        raise RecipeError(
            f"data.{name} must be one number for all features, or a list of {features}, got a list "
            f"of {len(values)}; give one for each"
        )
    return values
