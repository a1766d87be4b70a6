# SPDX-License-Identifier: Apache-2.0
"""What is yours: the images, the public backbone, and the plan that both sides agree on."""

from functools import cache

import torch
from dpfed import Plan
from dpfed.data.backbones import features
from dpfed.flower import Records, Standardised, make_plan, read_records
from flwr.app import Context

BACKBONE = {"backbone": "efficientnet-lite0", "backbone_size": 64, "backbone_fit": "resize"}
"""A frozen network, trained on public images: each image becomes 1,280 numbers, on its own."""

FEATURES, CLASSES = 1280, 4
ABOUT = {"classes": ["plain", "stripes", "columns", "checks"]}
"""What the trained model's folder says: YOUR CLASSES in words, in the order of the labels."""

MODEL = Standardised("softmax", FEATURES, CLASSES)
"""A linear model on the features; it standardises them, and has nothing to tune."""


def load_data(context: Context) -> Records:
    """YOUR IMAGES: those of this client. Its node names them, else they are made up.

    flower-supernode --node-config 'partition-id=0 data-path="/srv/images"': a folder with one folder
    per class, an .npz with x and y, MNIST's files, or hf:NAME with the extra dpfed[hub].
    """
    path = str(context.node_config.get("data-path", ""))
    return own(path) if path else made_up(1 + int(context.node_config["partition-id"]), 300)


def load_test() -> Records:
    """YOUR TEST IMAGES: public, or the server's own. They are not protected."""
    return made_up(seed=0, count=300)


def plan(context: Context) -> Plan:
    """The guarantee: each image, epsilon and delta of the run_config, over all rounds."""
    config = context.run_config
    privacy = {key: config[key] for key in ("epsilon", "delta", "unit", "trust")}
    return make_plan(
        clients=[float(size) for size in str(config["sizes"]).split()],
        layout=MODEL.layout,
        rounds=config["num-server-rounds"],
        privacy={**privacy, "spare_attempts": config["spare-attempts"]},
        sum={"name": "secure" if config["trust"] == "distributed" else "plain"},
    )


@cache  # once for each process: the backbone takes longer than a round
def own(path: str) -> Records:
    """The images under a path, as features."""
    return read_records(source=path, **BACKBONE)


@cache
def made_up(seed: int, count: int) -> Records:
    """Images of four textures with noise, as features: delete this once you have your own."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (count,), generator=draw)
    stripes = ((torch.arange(32) // 4) % 2).float()
    down, across = stripes.expand(32, 32).T, stripes.expand(32, 32)
    textures = torch.stack([torch.full((32, 32), 0.5), down, across, (down - across).abs()])
    noise = torch.randn(count, 3, 32, 32, generator=draw)
    x = (textures[y].unsqueeze(1) + 0.5 * noise).clamp(0, 1)
    return Records(features("efficientnet-lite0", x, size=64, fit="resize"), y)
