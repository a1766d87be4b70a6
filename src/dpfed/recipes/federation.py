# SPDX-License-Identifier: Apache-2.0
"""All clients of a simulated run: their records, divided, with model and evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from dpfed.core.errors import RecipeError
from dpfed.core.randomness import public_seed
from dpfed.core.types import Problem, Vector
from dpfed.data import datasets, partitions
from dpfed.data.contract import Contract
from dpfed.data.datasets import Dataset, Records
from dpfed.data.estimate import estimate
from dpfed.data.models import Model
from dpfed.data.partitions import Parts
from dpfed.data.screen import Screen
from dpfed.data.tables import FILE
from dpfed.recipes.model import build_model
from dpfed.recipes.query import ALGORITHM
from dpfed.recipes.schema import (
    DataRecipe,
    EvaluationKind,
    PartitionRecipe,
    Recipe,
)
from dpfed.recipes.screened import screened_dataset

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
    """All clients of a simulated run, with the model and the evaluation records."""

    model: Model
    clients: Sequence[Records]
    problems: Sequence[Problem]
    test: Records | None
    held: Sequence[Records]
    source: str
    goal: Vector | None = None
    """The parameters that an estimate is compared with: the non-private ones, or the true ones."""
    divided: str = ""
    """The column or files that define the clients, for the partition 'natural'; else empty."""
    screen: Screen | None = None
    """What the records' owner should look at; it never leaves the machine."""
    spread: float | None = None
    """How far public records lie from the mean that centers the clients' records, if any."""
    mean: torch.Tensor | None = None
    """That mean."""
    classes: int | None = None
    """How many there are; None if labels are numbers."""
    columns: tuple[str, ...] = ()
    """The columns of a table, one for each feature that was read."""
    target: str = ""
    """The column of labels."""
    contract: Contract | None = None
    """What tables are read by, if anything was agreed on."""
    shape: tuple[int, ...] = ()
    """Of a record's features as they are read; empty where gates read them."""


def evaluation_words(recipe: Recipe, silos: Federation) -> str:
    """How the report says that accuracy was measured."""
    kind = recipe.evaluation.kind
    unjudged = kind is EvaluationKind.TEST and silos.test is None
    return _WORDS[EvaluationKind.OFF if unjudged else kind]


def federation(recipe: Recipe, root: Path | None = None) -> Federation:
    """Load, divide, and give each client its problem."""
    dataset, found = screened_dataset(recipe, root)
    parts, apart = divide(recipe, dataset), list[torch.Tensor]()
    if recipe.evaluation.kind is EvaluationKind.EXACT:
        parts, apart = _held(recipe, dataset.train, parts)
    clients = [dataset.train.take(index) for index in parts]
    held = [dataset.train.take(index) for index in apart]
    model = build_model(recipe.model, dataset, recipe.seed)
    asks = recipe.client.get("name") == ALGORITHM  # its own model takes this one's place
    problems = [] if asks else [model.problem(records) for records in clients]
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
        screen=found,
        spread=dataset.spread,
        mean=dataset.mean,
        classes=dataset.classes,
        columns=dataset.table.features if dataset.table else (),
        target=dataset.table.label if dataset.table else "",
        contract=dataset.contract,
        shape=dataset.shape,
    )


def with_model(silos: Federation, model: Model) -> Federation:
    """The same clients with another model on their records."""
    if model is silos.model:
        return silos
    problems = [model.problem(records) for records in silos.clients]
    return replace(silos, model=model, problems=problems)


def _divided(recipe: Recipe, dataset: Dataset, clients: int) -> str:
    """How the partition 'natural' formed the clients: by silos, or by groups."""
    if _partition(recipe.data, dataset.train).name != "natural":
        return ""
    if dataset.train.silos is None:
        named = recipe.data.options.get("groups", "group")
        by = f"groups (the column {named!r}), not split"
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
    """Each client without its held-out records, and those records: the same for every seed.

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


def divide(recipe: Recipe, dataset: Dataset) -> Parts:
    """The indices of each client's part of the training records."""
    how = _partition(recipe.data, dataset.train)
    clients = 20 if how.clients is None and how.name != "natural" else how.clients
    return partitions.partition(how.name, dataset.train, clients, recipe.seed, **how.options)


def _partition(recipe: DataRecipe, records: Records) -> PartitionRecipe:
    """The recipe's partition; if it names none, records with silos are divided by silo."""
    if records.silos is not None and recipe.partition == PartitionRecipe():
        return PartitionRecipe(name="natural")
    return recipe.partition
