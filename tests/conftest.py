# SPDX-License-Identifier: Apache-2.0
"""What all tests share: small federations, and a seed-free way to make records."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from dpfed.data.datasets import Records
from dpfed.data.models import Linear

settings.register_profile(
    "ci", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ci")

REPOSITORY = Path(__file__).parent.parent
REAL_FLOWER = {
    "test_deploy.py",
    "test_deployment.py",
    "test_resume.py",
    "test_secure_deployment.py",
    "test_simulation.py",
}


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Flower's processes take turns; the long suite runs only when asked for: --long."""
    for item in items:
        if item.path.name in REAL_FLOWER:
            item.add_marker(pytest.mark.xdist_group("flower"))
    if config.getoption("-m"):
        return
    skip = pytest.mark.skip(reason="long suite: scripts/test --long")
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(skip)


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


def make_records(count: int, features: int = 5, classes: int = 3, seed: int = 0) -> Records:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, features, generator=generator)
    y = torch.randint(0, classes, (count,), generator=generator)
    return Records(x, y, torch.arange(count) // 3)


@pytest.fixture
def softmax() -> Linear:
    return Linear("softmax", features=5, outputs=3)
