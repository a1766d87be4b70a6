# SPDX-License-Identifier: Apache-2.0
"""Small networks whose output for a record depends on that record alone.

A recipe names one as ``model = {name = "network", factory = "dpfed.data.networks:groupnorm_cnn"}``.
GroupNorm takes BatchNorm's place: it normalises each record by its own statistics, so that one
record has one gradient (Wu and He 2018; DP-FedAdamW supplement 2026, appendix B.3, replaces its
layers likewise).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from dpfed.core.checks import check_at_least, refuse


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
        classes: how many scores come out, at least 1.
        channels: the width of each convolution; each halves height and width.
        inputs: channels of an image: 1 for grey, 3 for RGB.
        groups: of each GroupNorm, at least 1; must divide every width.
        pool: images are averaged over squares of this side first, at 1 / pool^2 of the cost.
        cells: the last map is averaged to cells x cells, which the linear layer reads.
    """
    counts = {"classes": classes, "inputs": inputs, "groups": groups, "pool": pool, "cells": cells}
    check_at_least(1, "groupnorm_cnn", **counts)
    if not len(channels) or any(width < 1 or width % groups for width in channels):
        bound = f"one or more positive multiples of groups = {groups}"
        raise refuse("groupnorm_cnn.channels", bound, tuple(channels), "change channels or groups")
    layers: list[nn.Module] = [nn.AvgPool2d(pool), nn.GroupNorm(1, inputs, affine=False)]
    for before, after in pairwise((inputs, *channels)):
        # No bias: GroupNorm removes any constant, and has a bias of its own.
        layers += [
            nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False),
            nn.GroupNorm(groups, after),
            nn.ReLU(),
        ]
    head = nn.Linear(channels[-1] * cells**2, classes)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(cells), nn.Flatten(), head)


def mlp(features: int, classes: int = 2, width: int = 64) -> nn.Module:
    """One hidden layer with tanh, for the columns of a table or for frozen features.

    Args:
        features: how many numbers a record has, at least 1.
        classes: how many scores come out, at least 1.
        width: of the hidden layer, at least 1.
    """
    check_at_least(1, "mlp", features=features, classes=classes, width=width)
    return nn.Sequential(nn.Linear(features, width), nn.Tanh(), nn.Linear(width, classes))
