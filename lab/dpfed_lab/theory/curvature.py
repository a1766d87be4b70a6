# SPDX-License-Identifier: Apache-2.0
"""The largest eigenvalue of a loss's Hessian: what rho would have to be like to stand for it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dpfed.core import Vector

STEP = 0.01
"""Length of the step between two gradients; they are in single precision."""
ITERATIONS = 30


def largest_eigenvalue(gradient: Callable[[Vector], Vector], params: Vector) -> float:
    """The largest eigenvalue of a loss's Hessian, by power iteration.

    A product with the Hessian is a difference of gradients, so that any model will do.

    Args:
        gradient: the loss's, at parameters.
        params: where.
    """
    start = torch.Generator().manual_seed(0)
    direction = torch.randn(len(params), generator=start, dtype=torch.float64)
    value = 0.0
    for _ in range(ITERATIONS):
        direction /= direction.norm()
        ahead, behind = (
            gradient((params.double() + sign * STEP * direction).to(params.dtype))
            for sign in (1, -1)
        )
        product = (ahead - behind) / (2 * STEP)
        value, direction = float(direction @ product), product
    return value
