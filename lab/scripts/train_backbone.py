#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A public backbone from scratch: ResNet-14, -20, -32 or VGG-16, trained on CIFAR-100.

    DPFED_DATA=DATA lab/scripts/train_backbone.py resnet20 --out DATA/weights/resnet20-cifar100.npz
    dpfed features images/cifar10.npz --backbone resnet20-cifar100 --out DATA/features/cifar10-resnet20.npz

reads DATA/images/cifar100.npz (``dpfed data get cifar100``), or another file by --images, and writes
the weights as ``dpfed.data.backbones`` reads them. CIFAR-100 is the public part of a transfer: never
train on the records that are to be protected. Plain SGD with momentum, a one-cycle rate, flips and
shifts; on a GPU if there is one. On a CPU 60 epochs take hours.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812 (PyTorch's own convention)

from dpfed.data.architectures import ResNet, Vgg16, resnet
from dpfed.data.backbones import CIFAR100_MEAN, CIFAR100_STD, to_rgb
from dpfed.data.datasets import Records, load

NETWORKS = {
    "resnet14": lambda: resnet(14),
    "resnet20": lambda: resnet(20),
    "resnet32": lambda: resnet(32),
    "vgg16": Vgg16,
}
SIDE, SHIFT = 32, 4
Network = ResNet | Vgg16


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("--out", type=Path, required=True, help="the .npz to write")
    parser.add_argument("--images", default="images/cifar100.npz")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rate", type=float, default=0.1, help="the largest one")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.manual_seed(asked.seed)
    dataset, device = load(asked.images), "cuda" if torch.cuda.is_available() else "cpu"
    if dataset.classes is None or dataset.classes > 100:
        parser.error(f"{asked.images} must have at most 100 classes, got {dataset.classes}")
    model = NETWORKS[asked.network]().to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    train(model, dataset.train, asked.epochs, asked.batch, asked.rate, device)
    if dataset.test is not None:
        print(f"test accuracy {100 * accuracy(model, dataset.test, device):.1f} %")
    write(model, asked.out)
    print(f"wrote {asked.out}: {asked.out.stat().st_size:,} bytes")


def train(
    model: Network, records: Records, epochs: int, batch: int, rate: float, device: str
) -> None:
    """SGD over whole batches; a data set that is smaller than one batch is one."""
    batch = min(batch, len(records))
    steps = len(records) // batch
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9, weight_decay=5e-4)
    pace = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=epochs * steps)
    for epoch in range(epochs):
        model.train()
        order, total = torch.randperm(len(records)), 0.0
        for index in order[: steps * batch].split(batch):  # type: ignore[no-untyped-call]
            x, y = moved(normal(records.x[index])), records.y[index]
            loss = F.cross_entropy(model.fc(model(x.to(device))), y.to(device), label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            pace.step()
            total += loss.item()
        print(f"epoch {epoch + 1} of {epochs}: loss {total / steps:.3f}", flush=True)


def normal(images: torch.Tensor) -> torch.Tensor:
    """As ``dpfed.data.backbones`` will give them to the network."""
    mean, std = (torch.tensor(each).view(1, 3, 1, 1) for each in (CIFAR100_MEAN, CIFAR100_STD))
    return (to_rgb(images, SIDE) - mean) / std


def moved(images: torch.Tensor) -> torch.Tensor:
    """Each image is flipped or not, and the batch shifted by up to SHIFT pixels."""
    flipped = torch.rand(len(images)) < 0.5
    images = torch.where(flipped.view(-1, 1, 1, 1), images.flip(-1), images)
    wide = F.pad(images, (SHIFT,) * 4)
    top, left = torch.randint(0, 2 * SHIFT + 1, (2,)).tolist()
    return wide[..., top : top + SIDE, left : left + SIDE]


@torch.no_grad()
def accuracy(model: Network, records: Records, device: str) -> float:
    model.eval()
    right = 0
    for index in torch.arange(len(records)).split(500):  # type: ignore[no-untyped-call]
        logits = model.fc(model(normal(records.x[index]).to(device)))
        right += int((logits.argmax(dim=1).cpu() == records.y[index]).sum())
    return right / len(records)


def write(model: Network, path: Path) -> None:
    """Parameters by name, without batch counters, which evaluation never reads."""
    state = model.state_dict()
    kept = {k: v.cpu().numpy() for k, v in state.items() if not k.endswith("num_batches_tracked")}
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **kept)


if __name__ == "__main__":
    main()
