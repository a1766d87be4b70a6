# SPDX-License-Identifier: Apache-2.0
"""A data set of images as one of features: in memory, or once and for all as an .npz.

Extraction takes minutes where a training run takes seconds. ``write_features`` is made for the case
that many runs share it: what it writes is read by ``datasets.load`` like any other .npz, and needs
neither images nor weights.

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
from dpfed.data.backbones import features

if TYPE_CHECKING:
    from dpfed.data.datasets import Dataset, Records


def featurize(dataset: Dataset, backbone: str, **options: Any) -> Dataset:
    """The data set under a frozen public backbone: a map of each record on its own.

    ``options`` are those of ``backbones.features``.
    """
    return dataset.map(lambda records: replace(records, x=features(backbone, records.x, **options)))


def write_features(dataset: Dataset, path: Path, backbone: str, **options: Any) -> Dataset:
    """As ``featurize``, and into a file; nothing is left of it if extraction ends early."""
    if path.suffix != ".npz":
        raise DataError(f"{path.name!r} does not end in .npz, by which it would be read.")
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
    if not largest <= float(np.finfo(np.float16).max):
        raise DataError(f"Features run up to {largest:g}, too far for float16.")
    x = records.x.numpy().astype(np.float16)
    found = {"x": x, "y": records.y.numpy()}
    if records.groups is not None:
        found["group"] = records.groups.numpy()
    return {f"{name}_{part}": array for name, array in found.items()}
