# SPDX-License-Identifier: Apache-2.0
"""A factory of networks, as an owner would install it."""

from __future__ import annotations

import torch


def linear(width: int = 6) -> torch.nn.Module:
    """A factory of an installed package's, as a policy lists it."""
    return torch.nn.Linear(width, 3)
