# SPDX-License-Identifier: Apache-2.0
"""Where the real files are: $DPFED_DATA, else the directory shared/data beside the checkout."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def shared_data() -> Path:
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    path = Path(os.environ.get("DPFED_DATA", beside))
    if not path.is_dir():
        pytest.skip(f"no real data at {path}: set DPFED_DATA")
    return path


@pytest.fixture
def fashion_mnist() -> Path:
    path = Path(os.environ.get("DPFED_FASHION_MNIST", "/usr/share/datasets/fashion-mnist"))
    if not path.is_dir():
        pytest.skip(f"no Fashion-MNIST at {path}: apt-get install dataset-fashion-mnist")
    return path
