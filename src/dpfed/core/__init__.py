# SPDX-License-Identifier: Apache-2.0
"""The ground that every other room stands on: the nouns of one round, and arithmetic.

What the author of a plug-in names is here in one place; none of it loads torch.
"""

from dpfed.core.chain import rescale, stateless
from dpfed.core.errors import DataError, RecipeError, UnsoundPlan
from dpfed.core.types import (
    UPDATE,
    Aggregate,
    Broadcast,
    Channel,
    ClientAlgorithm,
    Phase,
    Problem,
    Release,
    Releaser,
    Reply,
    ServerOptimizer,
    State,
    Unit,
    Vector,
)

__all__ = [
    "UPDATE", "Aggregate", "Broadcast", "Channel", "ClientAlgorithm", "DataError", "Phase",
    "Problem", "RecipeError", "Release", "Releaser", "Reply", "ServerOptimizer", "State", "Unit",
    "UnsoundPlan", "Vector", "rescale", "stateless",
]  # fmt: skip
