# SPDX-License-Identifier: Apache-2.0
"""A constant rate: theta_{t+1} = theta_t - eta G_t. Alone, it is DP-FedGD's server.

Nair et al. 2026, section 3.3.
"""

from __future__ import annotations

from dpfed.core import ServerOptimizer, rescale
from dpfed.core.checks import check_positive

PAPER = "McMahan et al. 2017; Nair et al. 2026 (DP-FedGD)"


def scale(rate: float = 1.0) -> ServerOptimizer:
    """Multiply the direction by a constant rate.

    Args:
        rate: the eta of the paper, above 0, in parameters per unit of the direction.

    Returns:
        a server optimizer without state.

    >>> import torch
    >>> from dpfed.core import Aggregate
    >>> G, optimizer = torch.tensor([3.0, 4.0]), scale(rate=0.5)
    >>> seen = Aggregate(round=0, params=torch.zeros(2), mean=G, std=0.1, clients=10)
    >>> optimizer.update(G, optimizer.init(seen.params), seen)[0]
    tensor([1.5000, 2.0000])
    """
    check_positive("scale", rate=rate)
    return rescale(rate)
