# SPDX-License-Identifier: Apache-2.0
"""Images as features of a public backbone, as a recipe's table ``data`` asks for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dpfed.data import datasets
from dpfed.data.datasets import Dataset
from dpfed.data.featurize import featurize
from dpfed.data.places import find_file
from dpfed.recipes.schema import DataRecipe


def extract_features(
    recipe: DataRecipe,
    dataset: Dataset,
    root: Path | None,
    watch: Callable[[int], None] | None = None,
) -> Dataset:
    """Images become features of a public backbone: a map of each record on its own.

    Args:
        recipe: the table ``data``, which names the backbone.
        dataset: the images.
        root: where relative weights are looked up, after the working directory.
        watch: called with the number of images, after each part.
    """
    weights, project = recipe.backbone_weights, recipe.backbone_project
    where = None if weights is None else find_file(weights, root)
    cache = None if recipe.backbone_cache is None else Path(recipe.backbone_cache).expanduser()
    return featurize(
        dataset,
        str(recipe.backbone),
        size=recipe.backbone_size,
        fit=recipe.backbone_fit,
        project=project or 0,
        weights=where,
        cache=cache,
        watch=watch,
    )


def cache_features(
    recipe: DataRecipe, root: Path | None, watch: Callable[[int, int], None] | None = None
) -> None:
    """Extract features into the recipe's cache, if it has one: loading then only reads them.

    Args:
        recipe: the table ``data``.
        root: where a relative source is looked up, after the working directory.
        watch: called with (images so far, all of them).
    """
    if not recipe.backbone or recipe.backbone_cache is None:
        return
    dataset = datasets.load(recipe.source, root=root, **recipe.options)
    total = len(dataset.train) + (0 if dataset.test is None else len(dataset.test))
    done = 0

    def added(images: int) -> None:
        nonlocal done
        done += images
        if watch:
            watch(done, total)

    extract_features(recipe, dataset, root, added)
