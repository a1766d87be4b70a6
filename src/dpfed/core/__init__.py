# SPDX-License-Identifier: Apache-2.0
"""What every other package builds on: the types of one round, and arithmetic.

All names that the author of a plug-in needs can be imported from here; none of them loads torch.
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
