# SPDX-License-Identifier: Apache-2.0
"""A data set of images as one of features: in memory, or once and for all as an .npz.

Extraction takes minutes, a training run seconds. ``write_features`` extracts once for many runs:
``datasets.load`` reads its file like any other .npz, and needs neither images nor weights.

================ =================================================================================
x_train, x_test  float16 [m, f]: half the size, and each value is off by at most 2^-11 of itself
y_train, y_test  as they were
group_train, ... where there are groups
about            what the features were made of, and by which backbone: for people, not for code
================ =================================================================================

The file holds features of private images: it is readable by its owner only.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfed.core.errors import DataError
from dpfed.data._checks import bad_option
from dpfed.data.backbones import features

if TYPE_CHECKING:
    from dpfed.data.datasets import Dataset, Records


def featurize(dataset: Dataset, backbone: str, **options: Any) -> Dataset:
    """The data set under a frozen public backbone: a map of each record on its own.

    Args:
        dataset: images.
        backbone: a name as ``backbones.features`` takes it.
        **options: those of ``backbones.features``: size, fit, weights, cache, batch, watch.
    """
    return dataset.map(lambda records: replace(records, x=features(backbone, records.x, **options)))


def write_features(dataset: Dataset, path: Path, backbone: str, **options: Any) -> Dataset:
    """As ``featurize``, and into a file; nothing is left of it if extraction ends early.

    Args:
        dataset: images.
        path: the file to write, which ends in .npz; one that is there is replaced.
        backbone: a name as ``backbones.features`` takes it.
        **options: those of ``backbones.features``: size, fit, weights, cache, batch, watch.
    """
    if path.suffix != ".npz":
        raise bad_option("the features' file", "named *.npz", path.name, f"use {path.stem}.npz")
    made = featurize(dataset, backbone, **options)
    arrays = _arrays("train", made.train)
    if made.test is not None:
        arrays |= _arrays("test", made.test)
    size = {k: options[k] for k in ("size", "fit") if options.get(k) is not None}
    words = " ".join(f"{key} {value}" for key, value in size.items())
    arrays["about"] = np.array(f"{dataset.source}, {backbone} {words}".rstrip())
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".partial")
    with os.fdopen(handle, "wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    Path(temporary).replace(path)
    return made


def _arrays(part: str, records: Records) -> dict[str, Any]:
    largest = float(records.x.abs().max())
    limit = float(np.finfo(np.float16).max)
    if not largest <= limit:
        raise DataError(
            f"features must be at most {limit:g} for float16, got {largest:g}; "
            "use another backbone, or set data.backbone, which keeps float32"
        )
    x = records.x.numpy().astype(np.float16)
    found = {"x": x, "y": records.y.numpy()}
    if records.groups is not None:
        found["group"] = records.groups.numpy()
    return {f"{name}_{part}": array for name, array in found.items()}
