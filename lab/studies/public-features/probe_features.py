#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What features are worth without privacy: linear probes of EfficientNet-Lite0, by size and columns.

    DPFED_DATA=DATA lab/studies/public-features/probe_features.py DIR lab/studies/public-features/results/probe.csv

Of CIFAR-10 and Fashion-MNIST 6,000 training and 3,000 test images are drawn by a seed; their 1,280
features at 96 and 128 pixels are kept in DIR (about ten minutes of one core). Each line of the table
is the test accuracy of a softmax regression (L2 penalty 1e-3) on

    all         the 1,280 features
    classifier  64 columns along the backbone's own classifier, rows of norm 10: data.backbone_project
    random      64 random directions, rows of norm 10
    pca         the 64 leading components of the training rows: a statistic of private records, which
                is not offered, and shown for what it would give
    float       all images of Fashion-MNIST under "classifier", for comparison with
    byte        the file that comes with the package
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812 (PyTorch's own convention)

from dpfed.data import backbones
from dpfed.data.datasets import Dataset, Records, load, set_norms

BACKBONE, COLUMNS, NORM, PENALTY, SEED = "efficientnet-lite0", 64, 10.0, 1e-3, 0
SIZES = {"train": 6_000, "test": 3_000}
CACHE = Path("~/.cache/dpfed/features").expanduser()


def some(name: str, pixels: int, folder: Path) -> Dataset:
    """Images that a seed draws, as 1,280 features each; kept in the folder."""
    path = folder / f"{name}-{pixels}.npz"
    if not path.exists():
        made: dict[str, Any] = {}
        images = load(f"images/{name}.npz")
        for part, count in SIZES.items():
            records = getattr(images, part)
            order = np.random.default_rng(SEED).permutation(len(records))[:count]
            kept = records.take(torch.from_numpy(order))
            found = backbones.features(BACKBONE, kept.x, size=pixels, fit="resize")
            made |= {f"x_{part}": found.numpy().astype(np.float16), f"y_{part}": kept.y.numpy()}
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(path, **made)
    return load(path)


def probe(train: Records, test: Records) -> float:
    """Test accuracy of a softmax regression that is trained to the end, in percent."""
    x, tested = (torch.cat([r.x, torch.ones(len(r), 1)], dim=1).double() for r in (train, test))
    weight = torch.zeros(x.shape[1], 10, dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS([weight], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        solver.zero_grad()
        value = F.cross_entropy(x @ weight, train.y) + PENALTY * weight.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    solver.step(loss)  # type: ignore[no-untyped-call]
    return 100 * float(((tested @ weight).argmax(dim=1) == test.y).double().mean())


def turned(records: Records, directions: torch.Tensor, middle: torch.Tensor | float) -> Records:
    x = (records.x - middle) @ directions
    return set_norms(Records(x, records.y), NORM)


def lines(folder: Path) -> list[tuple[str, int, str, int, float]]:
    weights = backbones._find_weights(BACKBONE, None)
    own = backbones._directions(backbones._build(BACKBONE, weights), COLUMNS)
    drawn = np.random.default_rng((SEED, COLUMNS)).standard_normal((len(own), COLUMNS))
    found = []
    for name in ("cifar10", "fashion-mnist"):
        for pixels in (96, 128):
            data = some(name, pixels, folder)
            assert data.test is not None
            mean = data.train.x.mean(dim=0)
            parts = torch.linalg.svd((data.train.x - mean).double(), full_matrices=False)
            ways: dict[str, Any] = {
                "classifier": (own, 0.0),
                "random": (torch.from_numpy(drawn).float(), 0.0),
                "pca": (parts.Vh[:COLUMNS].T.float(), mean),
            }
            found.append((name, pixels, "all", data.train.x.shape[1], probe(data.train, data.test)))
            for way, (directions, middle) in ways.items():
                both = (turned(each, directions, middle) for each in (data.train, data.test))
                found.append((name, pixels, way, COLUMNS, probe(*both)))
    images, stored = load("images/fashion-mnist.npz"), load("dpfed:fashion-mnist")
    how: dict[str, Any] = {"size": 96, "fit": "resize", "project": COLUMNS, "cache": CACHE}
    exact = images.map(
        lambda r: set_norms(Records(backbones.features(BACKBONE, r.x, **how), r.y), NORM)
    )
    for way, data in (("float", exact), ("byte", stored)):
        assert data.test is not None
        found.append(("fashion-mnist", 96, way, COLUMNS, probe(data.train, data.test)))
    return found


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    out = Path(sys.argv[2])
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["data", "pixels", "features", "columns", "accuracy"])
        writer.writerows(
            (*facts, f"{accuracy:.2f}") for *facts, accuracy in lines(Path(sys.argv[1]))
        )


if __name__ == "__main__":
    main()
