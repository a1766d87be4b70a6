# SPDX-License-Identifier: Apache-2.0
"""Where Debian puts Fashion-MNIST."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def fashion_mnist() -> Path:
    path = Path(os.environ.get("DPFED_FASHION_MNIST", "/usr/share/datasets/fashion-mnist"))
    if not path.is_dir():
        pytest.skip(f"no Fashion-MNIST at {path}: apt-get install dataset-fashion-mnist")
    return path
