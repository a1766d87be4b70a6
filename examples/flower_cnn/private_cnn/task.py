# SPDX-License-Identifier: Apache-2.0
"""The model, the images and the plan."""

import torch
from flwr.app import Context
from torch import nn

from dpfed import Plan
from dpfed.data.datasets import Dataset, load
from dpfed.data.partitions import iid
from dpfed.flower import Network, make_plan


def make_model(channels: int, classes: int) -> nn.Module:
    """GroupNorm, not BatchNorm: a record's gradient must depend on that record alone."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(channels, 16, 5, stride=2),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.GroupNorm(4, 32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(128, classes),
    )


def network(dataset: Dataset) -> Network:
    """The model with per-image gradients by Opacus' grad samplers, 128 at a time."""
    model = make_model(dataset.train.x.shape[1], int(dataset.classes or 2))
    return Network(model, chunk=128, sampler="opacus")


def images(context: Context) -> Dataset:
    """The data set that the run_config names."""
    return load(str(context.run_config["data"]))


def parts(context: Context, dataset: Dataset) -> list[torch.Tensor]:
    """Which images belong to which client."""
    count = int(context.run_config["records"]) or len(dataset.train)
    records = dataset.train.take(torch.arange(count))
    return iid(records, int(context.run_config["num-clients"]), seed=0)


def plan(context: Context) -> Plan:
    """The guarantee: each image, over all rounds. Replace-one leaves sizes as they are: public."""
    config = context.run_config
    return make_plan(
        clients=[len(part) for part in parts(context, images(context))],
        rounds=config["num-server-rounds"],
        privacy={key: config[key] for key in ("epsilon", "delta", "clip")},
        server=[{"name": "ema"}, {"name": "scale", "rate": config["rate"]}],
    )
