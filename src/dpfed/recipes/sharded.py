# SPDX-License-Identifier: Apache-2.0
"""A recipe's train function on a client's records: the problem whose rows are those of shards.

The function is imported in a clean process (data/shard_process.py), never in this one.
"""

from __future__ import annotations

import msgspec

from dpfed.core.checks import refuse
from dpfed.core.errors import RecipeError
from dpfed.core.types import Problem
from dpfed.data.datasets import Records
from dpfed.data.models import Model
from dpfed.data.shard_process import CleanProcess, Limits, clean_process
from dpfed.data.shards import Cut, ShardedProblem, parameters_of
from dpfed.data.train_functions import CALL
from dpfed.recipes.schema import Recipe, TrainRecipe
from dpfed.training.plan import Plan


def sharded_problem(
    recipe: Recipe, plan: Plan, model: Model, records: Records, client: int
) -> ShardedProblem:
    """The problem of a train function in shards: its rows are theirs.

    Args:
        recipe: the run's configuration.
        plan: its plan, which says how many shards a client has.
        model: what is trained; metrics are its own.
        records: the client's.
        client: its index in the plan.
    """
    if isinstance(recipe.train, msgspec.UnsetType):
        raise refuse("train", "a table for rows of shards", "none", "name your train function")
    inner: Problem = model.problem(records)
    ids = records.groups if records.persons is None else records.persons
    return ShardedProblem(
        data=records,
        cut=Cut(plan.shards[client], recipe.seed),
        dimension=model.layout.size,
        pack=parameters_of(model.layout),
        process=process_of(recipe.train),
        limits=limits_of(recipe.train),
        persons=None if ids is None else ids.numpy(),
        model=inner,
        classes=max(2, _outputs(model)),
        declared=plan.nominal[client],
    )


def _outputs(model: Model) -> int:
    """How many outputs its last layer has: labels of made-up records are below that."""
    *_, last = model.layout.shapes.values()
    return last[0] if last else 1


def process_of(train: TrainRecipe) -> CleanProcess:
    """Where the recipe's shards run.

    Args:
        train: the recipe's table.
    """
    return clean_process(CALL, function_of(train))


def function_of(train: TrainRecipe) -> str:
    """The name of the recipe's function.

    Args:
        train: the recipe's table.
    """
    if train.function is None or ":" not in train.function:
        bound = "'package.module:function'"
        raise refuse("train.function", bound, train.function, "name your train function")
    return train.function


def limits_of(train: TrainRecipe) -> Limits:
    """What one shard may use.

    Args:
        train: the recipe's table.
    """
    if not 0.001 <= train.seconds <= 3600:
        raise refuse("train.seconds", "from 0.001 to 3600", train.seconds)
    if not 16 <= train.memory <= 1 << 20:
        raise RecipeError(
            f"train.memory must be from 16 to {1 << 20} MiB, got {train.memory}; change it"
        )
    return Limits(train.seconds, train.memory << 20)
