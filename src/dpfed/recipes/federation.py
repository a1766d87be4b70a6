# SPDX-License-Identifier: Apache-2.0
"""A recipe's clients: records are loaded, prepared one by one, divided; model and evaluation.

What is held out, and when, so that a search never sees a test record:

    data.holdout            the test set, cut off first, the same one for every seed
    evaluation "exact"      each client's own test records, the same ones for every seed
    data.validation         a part of what is left, by the run's seed, judged in their place
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import torch

from dpfed.core.checks import refuse
from dpfed.core.errors import RecipeError
from dpfed.core.log import log
from dpfed.core.randomness import derive
from dpfed.core.types import Problem, Vector
from dpfed.data import datasets, partitions
from dpfed.data.convolutions import convolve
from dpfed.data.datasets import Dataset, Records
from dpfed.data.estimate import estimate
from dpfed.data.featurize import featurize
from dpfed.data.losses import Loss, cross_entropy, loss_by_name
from dpfed.data.models import Linear, Model
from dpfed.data.modules import Network, seeded
from dpfed.data.partitions import Parts
from dpfed.data.pretrained import TokenIds, image_model, text_model
from dpfed.data.readers import Public
from dpfed.data.screen import Screen, screen
from dpfed.data.tables import FILE
from dpfed.recipes.schema import (
    DataRecipe,
    EvaluationKind,
    Missing,
    ModelRecipe,
    PartitionRecipe,
    Recipe,
    parse,
)

_WORDS = {
    EvaluationKind.TEST: "on test records that the server holds",
    EvaluationKind.FEDERATED: "on the clients' records, through the metrics channel, which has "
    "noise",
    EvaluationKind.EXACT: "on records held out at the clients, in clear: not covered by the "
    "guarantee",
    EvaluationKind.ESTIMATE: "squared distance to the estimate from all records, in clear: not "
    "covered by the guarantee",
    EvaluationKind.TRUTH: "squared distance to the parameters that the records were made from",
    EvaluationKind.OFF: "not measured",
}


@dataclass(frozen=True, eq=False)
class Federation:
    """All clients of a simulated run, with the model and the records that judge it."""

    model: Model
    clients: Sequence[Records]
    problems: Sequence[Problem]
    test: Records | None
    held: Sequence[Records]
    source: str
    goal: Vector | None = None
    """What an estimate is compared with: the non-private one, or the truth of generated records."""
    divided: str = ""
    """By which column or files the clients came about, where they are natural ones."""
    screen: Screen | None = None
    """What the records' owner should look at; it never leaves the machine."""
    spread: float | None = None
    """How far public records lie from the mean that centers the clients', where there is one."""


def evaluation_words(recipe: Recipe, silos: Federation) -> str:
    """How the report says that accuracy was measured."""
    kind = recipe.evaluation.kind
    unjudged = kind is EvaluationKind.TEST and silos.test is None
    return _WORDS[EvaluationKind.OFF if unjudged else kind]


def federation(recipe: Recipe, root: Path | None = None) -> Federation:
    """Load, divide, and give each client its problem."""
    dataset = load_dataset(recipe, root)
    parts, apart = divide(recipe, dataset), list[torch.Tensor]()
    if recipe.evaluation.kind is EvaluationKind.EXACT:
        parts, apart = _held(recipe, dataset.train, parts)
    clients = [dataset.train.take(index) for index in parts]
    held = [dataset.train.take(index) for index in apart]
    model = build_model(recipe.model, dataset, recipe.seed)
    problems = [model.problem(records) for records in clients]
    goal = _goal(recipe.evaluation.kind, model, dataset)
    return Federation(
        model=model,
        clients=clients,
        problems=problems,
        test=dataset.test,
        held=held,
        source=dataset.source,
        goal=goal,
        divided=_divided(recipe, dataset, len(parts)),
        screen=dataset.screen,
        spread=dataset.spread,
    )


def with_model(silos: Federation, model: Model) -> Federation:
    """The same clients with another model on their records."""
    if model is silos.model:
        return silos
    problems = [model.problem(records) for records in silos.clients]
    return replace(silos, model=model, problems=problems)


def _divided(recipe: Recipe, dataset: Dataset, clients: int) -> str:
    """By what the partition 'natural' made the clients: silos, or groups."""
    if _partition(recipe.data, dataset.train).name != "natural":
        return ""
    if dataset.train.silos is None:
        named = recipe.data.options.get("groups", "group")
        by = f"groups (the column {named!r}), whole"
    elif dataset.table is not None and dataset.table.silo == FILE:
        by = "files, each a silo"
    else:
        by = f"silos (the column {recipe.data.options.get('silo')!r})"
    return f"{clients} clients, by {by}"


def _goal(kind: EvaluationKind, model: Model, dataset: Dataset) -> Vector | None:
    if kind is EvaluationKind.ESTIMATE:
        return estimate(model, dataset.train)
    if kind is not EvaluationKind.TRUTH:
        return None
    if dataset.truth is None:
        raise RecipeError(
            "evaluation.kind 'truth' needs records that were made from known parameters, and these "
            "were not; use 'estimate', or set data.options.kind = 'glm'"
        )
    return dataset.truth


def _held(whole: Recipe, records: Records, parts: Parts) -> tuple[Parts, Parts]:
    """Each client without its own test records, and these: the same ones for every seed.

    With ``data.validation``, a part of the rest is held out instead: no search sees the others.
    """
    by_group = whole.data.by_group
    # seeds of their own: the partition's would hold out the records of one client
    seed = public_seed(0, "holdout")
    away = datasets.held_out(records, whole.evaluation.holdout, seed, by_group)
    kept, held = _apart(parts, away)
    if whole.data.validation:
        seed = public_seed(whole.seed, "validation")
        away = datasets.held_out(records, whole.data.validation, seed, by_group)
        kept, held = _apart(kept, away)
    if not all(len(part) for part in kept):
        empty = next(i for i, part in enumerate(kept) if not len(part))
        raise RecipeError(
            f"client {empty} has no record left to train on at evaluation.holdout = "
            f"{whole.evaluation.holdout:g}; lower it, or set data.by_group = false"
        )
    return kept, held


def _apart(parts: Parts, away: torch.Tensor) -> tuple[Parts, Parts]:
    return [part[~away[part]] for part in parts], [part[away[part]] for part in parts]


def load_dataset(whole: Recipe, root: Path | None, public: Public | None = None) -> Dataset:
    """The data set, with every per-record step that the recipe asks for.

    Args:
        whole: the recipe.
        root: where a relative source is looked up, after the working directory.
        public: what a gate's policy says of the labels; None sees it from the records.
    """
    recipe, at_clients = whole.data, whole.evaluation.kind is EvaluationKind.EXACT
    schema = None if isinstance(recipe.schema, msgspec.UnsetType) else recipe.schema
    given = {"schema": schema, **recipe.options}
    dataset = datasets.load(recipe.source, root=root, public=public, **given)
    if recipe.backbone:
        dataset = _featurize(recipe, dataset, root)
    if recipe.convolutions:
        dataset = dataset.map(lambda r: replace(r, x=convolve(r.x, recipe.convolutions)))
    if recipe.center:
        dataset = datasets.center(dataset, recipe.center, root=root)
    if recipe.shift or recipe.scale:
        dataset = dataset.map(partial(_standardised, recipe))
    dataset = replace(dataset, screen=screen(dataset, _decided(recipe)))
    if recipe.positive_above is not None:
        dataset = datasets.binary(dataset, recipe.positive_above)
    if recipe.holdout:  # before the seed's own split: no search may ever see these records
        dataset = _split(dataset, recipe.holdout, 0, recipe.by_group)
    if recipe.validation and not at_clients:
        dataset = _split(dataset, recipe.validation, whole.seed, recipe.by_group)
    return dataset.map(partial(_clean, recipe))


def read_records(**data: Any) -> Records:
    """One silo's own records, by the keys of a recipe's table ``data``: for an app of one's own.

    A relative source is looked for in the folders that $DPFED_DATA names on this host. What to look
    at in the records is logged here, and sent to nobody.

    Args:
        **data: source, options, schema, missing, shift, scale, and so on.
    """
    dataset = load_dataset(parse({"data": data}), None)
    for sentence in dataset.screen.findings() if dataset.screen else ():
        log.warning("data: %s", sentence)
    return dataset.train


def _split(dataset: Dataset, fraction: float, seed: int, by_group: bool) -> Dataset:
    """A part of the training records takes the place of the test set."""
    train, held = datasets.holdout(dataset.train, fraction, seed, by_group)
    return replace(dataset, train=train, test=held)


def _decided(recipe: DataRecipe) -> Missing | None:
    """What the owner has decided about missing values, if anything."""
    if recipe.missing is Missing.DROP and recipe.fill_missing is not None:
        raise RecipeError(
            f"data.missing = 'drop' and data.fill_missing = {recipe.fill_missing:g} contradict "
            f"each other; choose one"
        )
    if recipe.fill_missing is not None:
        return Missing.FILL
    return None if isinstance(recipe.missing, msgspec.UnsetType) else recipe.missing


def _clean(recipe: DataRecipe, records: Records) -> Records:
    if _decided(recipe) is Missing.FILL:
        records = datasets.fill_missing(records, recipe.fill_missing or 0.0)
    if not isinstance(recipe.norm, msgspec.UnsetType):
        records = datasets.set_norms(records, recipe.norm)
    return records if recipe.radius is None else datasets.scale_rows(records, recipe.radius)


def _standardised(recipe: DataRecipe, records: Records) -> Records:
    """(x - shift) / scale, by constants that were fixed in advance."""
    x = records.x
    for name in ("shift", "scale"):
        values = getattr(recipe, name)
        if values and len(values) != x.shape[-1]:
            raise RecipeError(
                f"data.{name} must be one number per feature, {x.shape[-1]} in all, got "
                f"{len(values)}; give one for each"
            )
    if 0 in recipe.scale:
        raise refuse("data.scale", "without 0", recipe.scale, "use 1 to leave a feature as it is")
    shifted = x - torch.tensor(recipe.shift) if recipe.shift else x
    scaled = shifted / torch.tensor(recipe.scale) if recipe.scale else shifted
    return replace(records, x=scaled)


def cache_features(
    recipe: DataRecipe, root: Path | None, watch: Callable[[int, int], None] | None = None
) -> None:
    """Extract features into the recipe's cache, where it has one: loading then only reads them.

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

    _featurize(recipe, dataset, root, added)


def _featurize(
    recipe: DataRecipe,
    dataset: Dataset,
    root: Path | None,
    watch: Callable[[int], None] | None = None,
) -> Dataset:
    """Images become features of a public backbone: a map of each record on its own."""
    weights, project = recipe.backbone_weights, recipe.backbone_project
    where = None if weights is None else datasets.find_file(weights, root)
    cache = None if recipe.backbone_cache is None else Path(recipe.backbone_cache).expanduser()
    return featurize(
        dataset,
        str(recipe.backbone),
        size=recipe.backbone_size,
        fit=recipe.backbone_fit,
        project=0 if isinstance(project, msgspec.UnsetType) else project,
        weights=where,
        cache=cache,
        watch=watch,
    )


def divide(recipe: Recipe, dataset: Dataset) -> Parts:
    """The indices of each client's part of the training records."""
    how = _partition(recipe.data, dataset.train)
    clients = 20 if how.clients is None and how.name != "natural" else how.clients
    return partitions.partition(how.name, dataset.train, clients, recipe.seed, **how.options)


def _partition(recipe: DataRecipe, records: Records) -> PartitionRecipe:
    """The recipe's; records that name their silos keep to them if it says nothing."""
    if records.silos is not None and recipe.partition == PartitionRecipe():
        return PartitionRecipe(name="natural")
    return recipe.partition


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
    if recipe.name in _MODULES:
        module = _MODULES[recipe.name](recipe, classes, seed)
        loss = _loss(recipe, classes)
        return Network(module, loss, chunk=recipe.chunk, sampler=recipe.sampler)
    if recipe.name == "softmax":
        if classes is None:
            raise RecipeError(
                "model.name 'softmax' needs class labels, got numbers; set it to 'logistic', "
                "'poisson' or 'network'"
            )
        return Linear("softmax", features, classes, recipe.bias)
    if recipe.name in {"logistic", "poisson"}:
        return Linear(recipe.name, features, 1, recipe.bias)
    raise refuse(
        "model.name", ", ".join(("softmax", "logistic", "poisson", *_MODULES)), recipe.name
    )


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
    if ":" not in (recipe.factory or ""):
        bound = "'package.module:function' for model 'network'"
        raise refuse("model.factory", bound, recipe.factory, "name a function that makes a module")
    factory = installed("model.factory", str(recipe.factory))
    return seeded(lambda: factory(**recipe.options), public_seed(seed, "module"))


def installed(label: str, function: str) -> Any:
    """A function of this installation.

    Args:
        label: where it is named, for the error.
        function: as package.module:function.
    """
    where, _, name = function.partition(":")
    try:
        return getattr(import_module(where), name)
    except (ImportError, AttributeError) as error:
        raise RecipeError(
            f"{label} {function!r} cannot be imported ({error}); correct it, or install its package"
        ) from error


_MODULES: dict[str, Callable[[ModelRecipe, int | None, int], torch.nn.Module]] = {
    "network": _module,
    "transformers": _text,
    "timm": _image,
}


PRETRAINED = ("transformers", "timm")
"""Models whose weights and code come from a folder or a library, by ``options.source``."""


def is_loaded(recipe: ModelRecipe) -> bool:
    """Whether a model is made by code or files of others, and not of its sizes alone.

    Args:
        recipe: the recipe's table ``model``.
    """
    return recipe.name in _MODULES or recipe.factory is not None


def public_seed(seed: int, purpose: str) -> int:
    """A seed for what is public (model start, partitions), apart from the noise's keys."""
    return int.from_bytes(derive(seed, purpose)[:4], "big")
