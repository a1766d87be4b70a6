# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch

from dpfed.core.errors import DataError
from dpfed.core.vector import BLOCK, Layout, blocks, dot, layout_of, one_thread, users_threads


def test_flatten_and_unflatten_are_inverse() -> None:
    tensors = {"weight": torch.randn(3, 2), "bias": torch.randn(3), "scalar": torch.randn(())}
    layout = layout_of(tensors)
    flat = layout.flatten(tensors)
    assert flat.shape == (layout.size,) == (10,)
    for name, tensor in layout.unflatten(flat).items():
        assert torch.equal(tensor, tensors[name])


def test_unflatten_gives_views() -> None:
    layout = Layout({"w": (2, 2)})
    flat = torch.zeros(4)
    layout.unflatten(flat)["w"][0, 1] = 5
    assert flat.tolist() == [0, 5, 0, 0]


def test_what_does_not_fit_is_refused() -> None:
    layout = Layout({"w": (2, 2)})
    with pytest.raises(DataError, match=r"must have shape \(4,\), got \(1,\)"):
        layout.unflatten(torch.zeros(1))
    for wrong in ({}, {"w": torch.zeros(4)}, {"w": torch.zeros(2, 2), "more": torch.zeros(1)}):
        with pytest.raises(DataError, match="do not fit"):
            layout.flatten(wrong)


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
def test_blocks_cover_everything_once(size: int) -> None:
    covered = [i for part in blocks(size) for i in range(part.start, part.stop)]
    assert covered == list(range(size))


def test_dot_is_the_inner_product() -> None:
    left, right = torch.randn(2, 2 * BLOCK + 5, dtype=torch.float64)
    assert dot(left, right) == pytest.approx(float(left @ right), rel=1e-12, abs=1e-9)


def test_a_users_function_has_the_threads_that_were_set() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with users_threads():
            assert torch.get_num_threads() == 3
        with one_thread(), one_thread():
            with users_threads():
                assert torch.get_num_threads() == 3
                torch.set_num_threads(2)  # of their own accord
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
