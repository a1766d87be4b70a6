# SPDX-License-Identifier: Apache-2.0
"""Random convolutions: features of sensor windows and other series, without any training.

Dempster et al. 2020 (ROCKET): how often a random kernel's output is positive. Kernels follow from a
fixed seed, so they are public, and each record is mapped on its own: no privacy is spent. To the
last bit: records are computed in whole blocks, each in one thread, several blocks at a time.

| edge case                          | what happens                                      |
|------------------------------------|---------------------------------------------------|
| a record is not [channels, time]   | refused                                           |
| a missing value (NaN)              | never positive: fill it first if it stands for 0  |
| the window is shorter than 65      | dilations that do not fit are left out            |
"""

from __future__ import annotations

import torch
from torch.nn.functional import conv1d

from dpfed.core.errors import DataError
from dpfed.core.vector import side_by_side
from dpfed.data._checks import bad_option
from dpfed.data.models import whole_blocks

KERNEL_LENGTH, DILATIONS, SEED = 9, (1, 2, 4, 8), 0
_BATCH_RECORDS = 64


def convolve(x: torch.Tensor, count: int) -> torch.Tensor:
    """``count`` features in [-1, 1] of each record [channels, time], float32 [m, count]."""
    if x.dim() != 3 or x.shape[2] < KERNEL_LENGTH:
        raise DataError(
            f"random convolutions need records [channels, time] of at least {KERNEL_LENGTH} steps, "
            f"got shape {tuple(x.shape[1:])}; use longer windows, or leave convolutions out"
        )
    fitting = [d for d in DILATIONS if d * (KERNEL_LENGTH - 1) < x.shape[2]]
    if count < len(fitting):
        raise bad_option("convolutions", f"at least {len(fitting)}", count, "256 is usual")
    generator = torch.Generator().manual_seed(SEED)
    sizes = [count // len(fitting) + (i < count % len(fitting)) for i in range(len(fitting))]
    parts = [
        _positive(
            x,
            torch.randn(size, x.shape[1], KERNEL_LENGTH, generator=generator),
            torch.randn(size, generator=generator),
            dilation,
        )
        for size, dilation in zip(sizes, fitting, strict=True)
    ]
    return torch.cat(parts, dim=1)


def _positive(
    x: torch.Tensor, kernels: torch.Tensor, shifts: torch.Tensor, dilation: int
) -> torch.Tensor:
    """2 * (share of positive outputs) - 1, some records at a time."""

    def shares(part: torch.Tensor) -> torch.Tensor:
        found = conv1d(whole_blocks(part, _BATCH_RECORDS), kernels, shifts, dilation=dilation)
        return (found > 0).float().mean(dim=2)[: len(part)]

    made: list[torch.Tensor] = []
    side_by_side(shares, torch.split(x, _BATCH_RECORDS), made.append)
    return torch.cat(made).mul_(2).sub_(1)
