# SPDX-License-Identifier: Apache-2.0
"""Small networks for images whose output for a record depends on that record alone.

A recipe names one as ``model = {name = "network", factory = "dpfed.data.networks:groupnorm_cnn"}``.
GroupNorm takes BatchNorm's place: it normalises each record by its own statistics, so that one
record has one gradient (Wu and He 2018; DP-FedAdamW supplement 2026, appendix B.3, replaces its
layers likewise).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from dpfed.core.errors import RecipeError


def groupnorm_cnn(
    classes: int = 10,
    channels: Sequence[int] = (16, 32),
    inputs: int = 3,
    groups: int = 4,
    pool: int = 1,
    cells: int = 4,
) -> nn.Module:
    """Convolutions (3x3, stride 2) with GroupNorm and ReLU, then one linear layer.

    Each image is brought to mean 0 and variance 1 first, by its own pixels.

    Args:
        classes: how many scores come out.
        channels: the width of each convolution; each halves height and width.
        inputs: channels of an image, 1 or 3.
        groups: of each GroupNorm; must divide every width.
        pool: images are averaged over squares of this side first, at 1 / pool^2 of the cost.
        cells: the last map is averaged to cells x cells, which the linear layer reads.
    """
    sound = min(classes, inputs, groups, pool, cells, *channels) >= 1 and len(channels) > 0
    if not sound or any(width % groups for width in channels):
        raise RecipeError(
            f"channels are {tuple(channels)}, and each must be a multiple of {groups=}; "
            f"{classes=}, {inputs=}, {pool=} and {cells=} must be at least 1"
        )
    layers: list[nn.Module] = [nn.AvgPool2d(pool), nn.GroupNorm(1, inputs, affine=False)]
    for before, after in pairwise((inputs, *channels)):
        # No bias: GroupNorm takes any constant out again, and brings its own.
        layers += [
            nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False),
            nn.GroupNorm(groups, after),
            nn.ReLU(),
        ]
    head = nn.Linear(channels[-1] * cells**2, classes)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(cells), nn.Flatten(), head)
