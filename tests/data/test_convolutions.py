# SPDX-License-Identifier: Apache-2.0
"""Random convolutions: public kernels, one record at a time."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import conv1d

from dpfed.core.errors import DataError
from dpfed.data.convolutions import KERNEL_LENGTH, SEED, convolve


def windows(count: int = 7, channels: int = 3, steps: int = 40) -> torch.Tensor:
    return torch.randn(count, channels, steps, generator=torch.Generator().manual_seed(1))


def test_features_are_shares_of_positive_outputs() -> None:
    x = windows()
    kernels = torch.randn(2, 3, KERNEL_LENGTH, generator=(g := torch.Generator().manual_seed(SEED)))
    shifts = torch.randn(2, generator=g)
    first = 2 * (conv1d(x, kernels, shifts) > 0).float().mean(dim=2) - 1
    assert torch.equal(convolve(x, 6)[:, :2], first)  # 3 dilations fit into 40 steps


def test_each_record_is_mapped_on_its_own() -> None:
    x = windows()
    alone = torch.cat([convolve(row[None], 10) for row in x])
    assert torch.equal(convolve(x, 10), alone)
    assert convolve(x, 10).shape == (7, 10)
    assert convolve(x, 10).abs().max() <= 1


@pytest.mark.parametrize(
    ("shape", "count", "message"),
    [
        ((4, 12), 8, r"need records \[channels, time\]"),
        ((4, 2, 5), 8, "at least 9 steps"),
        ((4, 2, 128), 2, "at least 4, got 2; 256"),
    ],
)
def test_what_cannot_be_convolved_is_refused(shape, count, message) -> None:
    with pytest.raises(DataError, match=message):
        convolve(torch.zeros(shape), count)
