# SPDX-License-Identifier: Apache-2.0
"""Train functions of JAX and XGBoost in shards, where these are installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpfed.data.shard_process import CleanProcess, Limits
from dpfed.data.train_functions import CALL, row_of
from tests.helpers import frameworks

pytestmark = pytest.mark.slow
LIMITS = Limits(seconds=30.0, memory=1 << 32)  # JAX compiles in each shard, in threads of its own


@pytest.mark.parametrize(("package", "outputs"), [("jax", 3), ("xgboost", 1)])
def test_its_rows_are_those_of_the_function(package: str, outputs: int) -> None:
    pytest.importorskip(package)
    random = np.random.default_rng(0)
    x = random.normal(size=(25, 4)).astype(np.float32)
    parameters = {
        "weight": random.normal(size=(outputs, 4)).astype(np.float32) / 10,
        "bias": np.zeros(outputs, np.float32),
    }
    y: Any = random.integers(0, 3, 25) if outputs > 1 else x[:, 0] + 0.1
    process = CleanProcess(CALL, f"tests.helpers.frameworks:by_{package}")
    try:
        given = {"parameters": parameters, "data": (x, y), "seed": 1}
        size = 5 * outputs
        assert process.try_out(given, size, LIMITS).row is not None
        rows = [process.run(given, size, LIMITS) for _ in range(2)]
    finally:
        process.close()
    assert rows[0].row is not None, rows[0].said
    assert rows[1].row is not None, rows[1].said
    assert rows[0].row.tobytes() == rows[1].row.tobytes()
    here = row_of(parameters, getattr(frameworks, f"by_{package}")(dict(parameters), (x, y)))
    assert np.allclose(rows[0].row, here, atol=1e-6)
    assert here.any()
