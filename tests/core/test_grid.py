# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpfed.core.errors import BadRelease
from dpfed.core.grid import add_weighted, step_below, to_grid, to_values, truncated_sum


@given(st.floats(1e-30, 1e30), st.integers(0, 40))
def test_the_step_is_the_power_of_two_below(scale: float, bits: int) -> None:
    step = step_below(scale, bits)
    assert math.frexp(step)[0] == 0.5
    assert step <= scale / 2**bits < 2 * step


@given(st.lists(st.floats(-1e6, 1e6), min_size=1))
def test_rounding_is_to_the_nearest(values: list[float]) -> None:
    step = 2.0**-8
    grid = to_grid(np.array(values), step).double() * step
    assert float((grid - torch.tensor(values, dtype=torch.float64)).abs().max()) <= step / 2


def test_narrow_where_it_fits() -> None:
    assert to_grid(np.array([2.0**31 - 1]), 1.0).dtype == torch.int32
    assert to_grid(np.array([-(2.0**31) + 1]), 1.0).dtype == torch.int32
    assert to_grid(np.array([2.0**31]), 1.0).dtype == torch.int64
    assert to_grid(np.array([]), 1.0).shape == (0,)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2.0**62, -(2.0**62)])
def test_what_does_not_fit_is_refused(value: float) -> None:
    with pytest.raises(BadRelease, match="does not fit a grid"):
        to_grid(np.array([1.0, value]), 1.0)


@given(st.permutations(range(6)), st.floats(0.01, 1))
def test_a_weighted_total_is_the_same_in_any_order(order: list[int], weight: float) -> None:
    terms = np.random.default_rng(0).integers(-(2**30), 2**30, (6, 70_000)).astype(np.int32)
    totals = []
    for sequence in (range(6), order):
        total = np.zeros(70_000, np.int64)
        for index in sequence:
            add_weighted(total, terms[index], 1.0 if index % 2 else weight)
        totals.append(total)
    assert np.array_equal(*totals)


def test_to_values_keeps_the_models_type() -> None:
    integers = torch.tensor([1, -2, 2**40])
    for dtype in (torch.float32, torch.float64):
        values = to_values(integers, 0.5, like=torch.zeros(1, dtype=dtype))
        assert values.dtype == dtype
        assert values.tolist() == [0.5, -1.0, 2.0**39]


def test_ten_million_rows_are_added_exactly() -> None:
    """Beyond 2^53 floats leave out odd numbers: rows are added up some at a time."""
    count, steps = 5 * 2**21 + 1, 2**30 - 1
    row = torch.tensor([[float(steps)]], dtype=torch.float64)
    total = truncated_sum([row.expand(count, 1)], 1, 2.0**30, 1.0)
    assert total.tolist() == [count * steps]
