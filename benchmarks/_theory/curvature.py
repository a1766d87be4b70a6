# SPDX-License-Identifier: Apache-2.0
"""The largest eigenvalue of a loss's Hessian: what rho would have to be like to stand for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dpfed.core import Vector
from dpfed.core.types import Problem

STEP = 0.01
"""Length of the step between two gradients; they are in single precision."""
ITERATIONS = 30


def largest_eigenvalue(problems: Sequence[Problem], params: Vector) -> float:
    """Of the Hessian of the mean over clients of their mean losses, by power iteration.

    A product with the Hessian is a difference of gradients, so that any model will do.

    Args:
        problems: one for each client.
        params: where.
    """
    start = torch.Generator().manual_seed(0)
    direction = torch.randn(len(params), generator=start, dtype=torch.float64)
    value = 0.0
    for _ in range(ITERATIONS):
        direction /= direction.norm()
        product = _product(problems, params, direction)
        value, direction = float(direction @ product), product
    return value


def _product(problems: Sequence[Problem], params: Vector, direction: Vector) -> Vector:
    moved = [(params.double() + sign * STEP * direction).to(params.dtype) for sign in (1, -1)]
    ahead, behind = (
        torch.stack([each.gradient(at).double() for each in problems]).mean(0) for at in moved
    )
    return (ahead - behind) / (2 * STEP)
