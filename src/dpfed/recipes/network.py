# SPDX-License-Identifier: Apache-2.0
"""The networks that a recipe names: a factory's module, or a pretrained model.

Nothing here is loaded for a linear model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dpfed.core.checks import refuse
from dpfed.core.randomness import public_seed
from dpfed.core.registry import installed_function, kept_object
from dpfed.data.losses import Loss, cross_entropy, loss_by_name
from dpfed.data.modules import Network, seeded
from dpfed.data.pretrained import TokenIds, image_model, text_model
from dpfed.recipes.schema import ModelRecipe


def build_network(recipe: ModelRecipe, classes: int | None, seed: int) -> Network:
    """The network, with the loss that fits its labels if the recipe names none.

    Args:
        recipe: the recipe's table ``model``, whose name is one of ``NETWORKS``.
        classes: how many there are; None if labels are numbers.
        seed: the run's seed, from which the initial weights follow.
    """
    if "@" in (recipe.factory or "") and isinstance(_given(recipe), Network):
        given: Network = _given(recipe)
        return given
    module = _MODULES[recipe.name](recipe, classes, seed)
    loss = _loss(recipe, classes)
    return Network(module, loss, chunk=recipe.chunk, sampler=recipe.sampler)


def _loss(recipe: ModelRecipe, classes: int | None) -> Loss:
    """The recipe's; else cross-entropy of classes, and the squared error of numbers."""
    if isinstance(recipe.loss, dict):
        options = dict(recipe.loss)
        return loss_by_name(str(options.pop("name", "")), **options)
    return loss_by_name("squared") if classes is None else cross_entropy


def _text(recipe: ModelRecipe, classes: int | None, seed: int) -> torch.nn.Module:
    """A pretrained text model on records of token numbers."""
    options = {"classes": classes, **recipe.options}
    source, padding = _source(options), int(options.pop("padding", 0))
    start = public_seed(seed, "module")
    return seeded(lambda: TokenIds(text_model(source, **options), padding), start)


def _image(recipe: ModelRecipe, classes: int | None, seed: int) -> torch.nn.Module:
    """A pretrained model of images."""
    options = {"classes": 1 if classes is None else classes, **recipe.options}
    source = _source(options)
    return seeded(lambda: image_model(source, **options), public_seed(seed, "module"))


def _source(options: dict[str, Any]) -> str:
    source = options.pop("source", None)
    if not isinstance(source, str):
        raise refuse("model.options.source", "a folder or a name on the hub", source, "name one")
    return source


def _module(recipe: ModelRecipe, classes: int | None, seed: int) -> torch.nn.Module:
    del classes  # the factory's own matter
    if "@" in (recipe.factory or ""):
        made = _given(recipe)
        if isinstance(made, torch.nn.Module):
            return made
        return seeded(lambda: made(**recipe.options), public_seed(seed, "module"))
    if ":" not in (recipe.factory or ""):
        bound = "'package.module:function' for model 'network'"
        raise refuse("model.factory", bound, recipe.factory, "name a function that makes a module")
    factory = installed_function("model.factory", str(recipe.factory))
    return seeded(lambda: factory(**recipe.options), public_seed(seed, "module"))


def _given(recipe: ModelRecipe) -> Any:
    """What the caller gave in the place of a name: a module, a Network, or a function."""
    return kept_object("model", str(recipe.factory))


_MODULES: dict[str, Callable[[ModelRecipe, int | None, int], torch.nn.Module]] = {
    "network": _module,
    "transformers": _text,
    "timm": _image,
}
