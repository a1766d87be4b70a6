# SPDX-License-Identifier: Apache-2.0
"""What every other package builds on: the types of one round, and arithmetic.

Plug-ins build on the names below, which load no torch, and on the modules types, chain, errors,
checks, log, vector and testing; client algorithms also on rows, adaptive_rows, clipping, matrices
and grid, mechanisms on grid, sampling and participation, sums on grid and sum_protocol, metrics on
metric. The rest is for dpfed itself.
"""

from dpfed.core.chain import rescale, stateless
from dpfed.core.errors import DataError, RecipeError, UnsoundPlan
from dpfed.core.types import (
    UPDATE,
    Aggregate,
    Broadcast,
    Channel,
    ClientAlgorithm,
    Facts,
    FeatureRange,
    OwnModel,
    Phase,
    PlanNeeds,
    Problem,
    Release,
    Releaser,
    Reply,
    ServerOptimizer,
    State,
    Unit,
    Vector,
    Weights,
)

__all__ = [
    "UPDATE",
    "Aggregate",
    "Broadcast",
    "Channel",
    "ClientAlgorithm",
    "DataError",
    "Facts",
    "FeatureRange",
    "OwnModel",
    "Phase",
    "PlanNeeds",
    "Problem",
    "RecipeError",
    "Release",
    "Releaser",
    "Reply",
    "ServerOptimizer",
    "State",
    "Unit",
    "UnsoundPlan",
    "Vector",
    "Weights",
    "rescale",
    "stateless",
]
