# SPDX-License-Identifier: Apache-2.0
"""Train functions of frameworks that dpfed does not need, as docs/shards.md has them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np


def by_jax(parameters: dict[str, Any], data: Any) -> Any:
    """Five gradient steps: whatever turns into NumPy arrays may be returned."""
    import jax

    x, y = data

    def loss(p: Any) -> Any:
        scores = jax.nn.log_softmax(x @ p["weight"].T + p["bias"])
        return -scores[np.arange(len(y)), y].mean()

    for _ in range(5):
        slope = jax.grad(loss)(parameters)
        parameters = jax.tree.map(lambda p, g: p - 0.1 * g, parameters, slope)
    return parameters


def by_xgboost(parameters: dict[str, Any], data: Any) -> Any:
    """One round of the linear booster; its weights are those of the features, then the bias."""
    import xgboost

    x, y = data
    options = {"booster": "gblinear", "objective": "reg:squarederror", "base_score": 0.0}
    records = xgboost.DMatrix(x, label=y, nthread=1)
    start = xgboost.train({**options, "nthread": 1}, records, num_boost_round=0)
    saved = json.loads(start.save_raw("json"))
    saved["learner"]["gradient_booster"]["model"]["weights"] = np.concatenate(
        [parameters["weight"].ravel(), parameters["bias"].ravel()]
    ).tolist()
    before = xgboost.Booster(options, model_file=bytearray(json.dumps(saved).encode()))
    after = xgboost.train({**options, "nthread": 1}, records, 1, xgb_model=before)
    saved = json.loads(after.save_raw("json"))
    whole = np.array(saved["learner"]["gradient_booster"]["model"]["weights"])
    return whole.astype(np.float64)  # one flat array, in the order of the parameters
