#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""CIFAR-10 at six widths, for the study of a model's size.

    DPFED_DATA=DATA lab/studies/dimension/dimension_features.py DIR [--train 12000] [--test 5000]

draws so many images of DATA/images/cifar10.npz, takes the 1,280 features that EfficientNet-Lite0
(trained on ImageNet) gives them at 96 px, which are kept in DIR/features/lite0.npz, and writes
DIR/features/lite0-64.npz, -128, -256, -512, -1280 and -2000:

    x_train (12000, k), y_train, x_test (5000, k), y_test

A row of 1,280 features is shifted to mean 0. Fewer columns are its products with random directions,
2,000 are the positive parts of such products. Then the row gets length 1. The directions come from
a seed and not from the data, and each row is made from itself alone: all of this is public, and
costs no privacy. Images are drawn by the same seed. Takes two to three minutes of one core.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpfed.data.backbones import features
from dpfed.data.datasets import load

NARROW, WIDE = (64, 128, 256, 512), 2000
SEED, BLOCK, PIXELS = 0, 5000, 96


def extracted(train: int, test: int) -> dict[str, np.ndarray]:
    """Features and labels of some images, drawn at random."""
    dataset, made = load("images/cifar10.npz"), dict[str, Any]()
    for part, count in (("train", train), ("test", test)):
        records = getattr(dataset, part)
        order = np.random.default_rng(SEED).permutation(len(records))[:count]
        kept = records.take(torch.from_numpy(order))
        found = features("efficientnet-lite0", kept.x, size=PIXELS, fit="resize")
        made |= {f"x_{part}": found.numpy().astype(np.float16), f"y_{part}": kept.y.numpy()}
    return made


def widths(inputs: int) -> dict[int, np.ndarray | None]:
    """Columns -> random directions [inputs, columns]; None keeps the row as it is."""
    found: dict[int, np.ndarray | None] = {inputs: None}
    for columns in (*NARROW, WIDE):
        rng = np.random.default_rng((SEED, columns))
        found[columns] = rng.standard_normal((inputs, columns), dtype=np.float32)
    return dict(sorted(found.items()))


def turned(x: np.ndarray, directions: np.ndarray | None) -> np.ndarray:
    """Rows of length 1 along these directions; of more than the inputs, the positive parts."""
    x = x.astype(np.float32)
    x = x - x.mean(axis=1, keepdims=True)
    made = x if directions is None else x @ directions
    if made.shape[1] > x.shape[1]:
        made = np.maximum(made, 0.0)
    made = made / np.maximum(np.linalg.norm(made, axis=1, keepdims=True), 1e-12)
    return np.asarray(made, dtype=np.float16)


def blocks(x: np.ndarray, directions: np.ndarray | None) -> np.ndarray:
    """The same for many rows, some at a time."""
    parts = [x[at : at + BLOCK] for at in range(0, len(x), BLOCK)]
    return np.concatenate([turned(part, directions) for part in parts])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dir", type=Path)
    parser.add_argument("--train", type=int, default=12_000, help="training images")
    parser.add_argument("--test", type=int, default=5_000, help="test images")
    asked = parser.parse_args()
    folder = asked.dir / "features"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "lite0.npz").exists():
        np.savez(folder / "lite0.npz", **extracted(asked.train, asked.test))  # type: ignore[arg-type]
    with np.load(folder / "lite0.npz") as file:
        found = dict(file)
    for columns, directions in widths(found["x_train"].shape[1]).items():
        made = {f"x_{part}": blocks(found[f"x_{part}"], directions) for part in ("train", "test")}
        np.savez(folder / f"lite0-{columns}.npz", **found | made)
        print(f"{columns:,} columns, {10 * columns + 10:,} parameters")


if __name__ == "__main__":
    main()
