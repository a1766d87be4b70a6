# SPDX-License-Identifier: Apache-2.0
"""What the pages say of public features and of the studies that anyone can run."""

from __future__ import annotations

from tests.claims.files import rows


def probed(pixels: int, *features: str, data: str = "cifar10") -> tuple[float, ...]:
    """Percent, of linear probes without privacy."""
    found = {
        row["features"]: float(row["accuracy"])
        for row in rows("public-features", "probe.csv")
        if (row["data"], row["pixels"]) == (data, str(pixels))
    }
    return tuple(found[each] for each in features)


def probes() -> tuple[float, ...]:
    three = ("all", "classifier", "random")
    return (*probed(96, *three), *probed(128, *three), *probed(96, "pca"))
