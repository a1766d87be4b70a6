# SPDX-License-Identifier: Apache-2.0
"""What a train function may return, and functions of other shapes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dpfed.data.train_functions import Delta, call, row_of
from tests.helpers import train_functions

BEFORE = {"weight": np.ones((2, 3), np.float32), "bias": np.zeros(2, np.float32)}
WEIGHT, BIAS = np.full((2, 3), 1.5), np.array([1.0, -1.0])
ROW = [*[-0.5] * 6, -1.0, 1.0]

RETURNED: dict[str, Any] = {
    "mapping": {"bias": BIAS, "weight": WEIGHT, "more": 3},
    "list": [WEIGHT, BIAS],
    "tensors": [torch.from_numpy(WEIGHT).requires_grad_(), torch.from_numpy(BIAS)],
    "flat": np.concatenate([WEIGHT.ravel(), BIAS]),
    "estimator": SimpleNamespace(coef_=WEIGHT, intercept_=BIAS),
    "delta": Delta({"weight": WEIGHT - 1, "bias": BIAS}),
    "flat delta": Delta(-np.array(ROW)),
}


@pytest.mark.parametrize("kind", RETURNED)
def test_parameters_or_a_delta_become_the_same_row(kind: str) -> None:
    assert row_of(BEFORE, RETURNED[kind]).tolist() == ROW


@pytest.mark.parametrize(
    "found", [None, [WEIGHT], [BIAS, WEIGHT], {"weight": WEIGHT}, np.zeros(9), "words", 3]
)
def test_anything_else_is_refused_with_the_shapes(found: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        row_of(BEFORE, found)


def test_a_function_cannot_change_what_it_is_compared_with() -> None:
    def in_place(parameters: Any, data: Any) -> Any:
        parameters["bias"] += data
        return parameters

    job = {"parameters": BEFORE, "data": 2.0}
    row = np.frombuffer(call(in_place, job))
    assert row[-2:].tolist() == [-2.0, -2.0]
    assert not BEFORE["bias"].any()


DATA = (
    np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32),
    np.arange(20) % 3,
)
START = {"weight": np.zeros((3, 4), np.float32), "bias": np.zeros(3, np.float32)}


@pytest.mark.parametrize("name", ["plain", "as_delta", "sgd", "adam", "sklearn", "looks_up"])
def test_each_shape_of_function_trains(name: str) -> None:
    row = row_of(START, getattr(train_functions, name)(dict(START), DATA))
    assert row.shape == (15,)
    assert np.isfinite(row).all()
    assert row.any()
