# SPDX-License-Identifier: Apache-2.0
"""One training whose bundle many tests read; those that change a file copy it first."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import dpfed
from tests.helpers.bundles import train


@pytest.fixture(scope="package")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dpfed.Result]:
    folder = tmp_path_factory.mktemp("trained")
    return folder, train(folder)


@pytest.fixture
def bundle(trained: tuple[Path, dpfed.Result], tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained[0] / "out/model", tmp_path / "model"))
