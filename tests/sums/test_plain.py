# SPDX-License-Identifier: Apache-2.0
"""The plain sum's schema; what a round does with refusals is in test_round.py."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpfed.errors import BadReply
from dpfed.sums.plain import plain
from dpfed.types import Aborted, Release, Total


def message(values: list[int], dtype: torch.dtype = torch.int32) -> bytes:
    release = Release(torch.tensor(values, dtype=dtype), std=1.0, step=1.0)
    return plain().answer("reply", b"", release, None)[0]


def test_both_widths_add_up() -> None:
    sum = plain()
    session = sum.begin({0: 1.0, 1: 1.0}, round=0, size=3)
    session = sum.add(session, 1, message([1, 2, 3]))
    session = sum.add(session, 0, message([2**40, -2, 0], torch.int64))
    total = sum.close(session)
    assert isinstance(total, Total)
    assert total.vector.tolist() == [2**40 + 1, 0, 3]
    assert (total.clients, total.weights) == ((0, 1), (1.0, 1.0))


def test_a_release_weighs_as_much_as_float32() -> None:
    assert len(message([5] * 1000)) == 4000


def test_public_weights_scale_the_terms() -> None:
    sum = plain()
    session = sum.begin({0: 0.5, 1: 1.0}, round=0, size=2)
    session = sum.add(session, 0, message([10, -7]))
    session = sum.add(session, 1, message([1, 1]))
    total = sum.close(session)
    assert isinstance(total, Total)
    assert total.vector.tolist() == [6, -3]  # -3.5 rounds to even, -4


@pytest.mark.parametrize("length", [0, 4, 11, 13, 16, 25])
def test_a_message_of_another_length_is_refused(length: int) -> None:
    sum = plain()
    with pytest.raises(BadReply, match=f"of {length} bytes, where 3 integers"):
        sum.add(sum.begin({0: 1.0}, 0, 3), 0, bytes(length))


def test_nothing_can_wrap_the_total() -> None:
    sum = plain()
    cohort = dict.fromkeys(range(1000), 1.0)
    session = sum.begin(cohort, 0, 1)
    most = int(session.limit)
    for value in (most, -most):
        session = sum.add(sum.begin(cohort, 0, 1), 0, message([value], torch.int64))
    for value in (most + 2, -most - 2, 2**63 - 1, -(2**63)):
        with pytest.raises(BadReply, match="could wrap"):
            sum.add(session, 1, np.array([value]).tobytes())
    assert most * 1000 < 2**63


def test_an_empty_round_is_aborted_and_a_wrong_stage_refused() -> None:
    sum = plain()
    assert sum.close(sum.begin({0: 1.0}, 0, 3)) == Aborted("no client answered")
    with pytest.raises(BadReply, match="one stage"):
        sum.answer("keys", b"", None, None)
