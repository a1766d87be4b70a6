# SPDX-License-Identifier: Apache-2.0
"""What the lab's tests share; they need nothing of the library's own tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The long suite runs only when asked for: scripts/test --long."""
    if config.getoption("-m"):
        return
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason="long suite: scripts/test --long"))


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data beside the checkout, or in the first place that DPFED_DATA names."""
    named = os.environ.get("DPFED_DATA", str(REPOSITORY.parent / "shared" / "data"))
    folder = Path(named.split(os.pathsep)[0])
    if not folder.is_dir():
        pytest.skip("no real data: set DPFED_DATA")
    return folder
