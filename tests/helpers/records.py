# SPDX-License-Identifier: Apache-2.0
"""Records made up of random numbers."""

from __future__ import annotations

import torch

from dpfed.data.datasets import Records


def make_records(count: int, features: int = 5, classes: int = 3, seed: int = 0) -> Records:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, features, generator=generator)
    y = torch.randint(0, classes, (count,), generator=generator)
    return Records(x, y, torch.arange(count) // 3)
