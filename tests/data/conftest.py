# SPDX-License-Identifier: Apache-2.0
"""Fashion-MNIST's test images, where Debian puts them."""

import gzip
import os
from pathlib import Path

import pytest
import torch


@pytest.fixture
def fashion_mnist() -> torch.Tensor:
    """[10000, 1, 28, 28], from 0 to 1."""
    path = Path(os.environ.get("DPFED_FASHION_MNIST", "/usr/share/datasets/fashion-mnist"))
    if not path.is_dir():
        pytest.skip(f"no Fashion-MNIST at {path}: apt-get install dataset-fashion-mnist")
    raw = gzip.decompress((path / "t10k-images-idx3-ubyte.gz").read_bytes())
    return torch.tensor(list(raw[16:])).view(10_000, 1, 28, 28) / 255
