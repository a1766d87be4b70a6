# SPDX-License-Identifier: Apache-2.0
"""A constant rate: theta_{t+1} = theta_t - eta G_t. Alone, it is DP-FedGD's server.

Nair et al. 2026, section 3.3.
"""

from __future__ import annotations

import math

from dpfed.core.chain import rescale
from dpfed.core.errors import RecipeError
from dpfed.core.types import ServerOptimizer

PAPER = "McMahan et al. 2017; Nair et al. 2026 (DP-FedGD)"


def scale(rate: float = 1.0) -> ServerOptimizer:
    """Multiply the direction by a constant rate."""
    if not 0 <= rate < math.inf:
        raise RecipeError(f"scale's rate is {rate}; give a number from 0 up, such as 0.3")
    return rescale(rate)
