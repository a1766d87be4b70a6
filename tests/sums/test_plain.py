# SPDX-License-Identifier: Apache-2.0
"""The plain sum's schema; what a round does with refusals is in test_round.py."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpfed.core.errors import BadReply
from dpfed.core.sum_protocol import Aborted, Opened, SumContext
from dpfed.core.types import METRICS, UPDATE, Release, Total
from dpfed.sums.plain import Adder, plain

CONTEXT = SumContext(0, 2, 0, 0, 0, "run")


def message(values: list[int], dtype: torch.dtype = torch.int32) -> bytes:
    release = Release(torch.tensor(values, dtype=dtype), std=1.0, step=1.0)
    return plain().reply("reply", {UPDATE: b""}, {UPDATE: release}, b"", CONTEXT)[0][UPDATE]


def begun(cohort: dict[int, float], size: int) -> Adder:
    return plain().begin(None, {UPDATE: cohort}, {UPDATE: size}, CONTEXT)[0]


def add(session: Adder, client: int, data: bytes) -> Adder:
    return plain().add(session, client, {UPDATE: data})


def opened(session: Adder) -> Total:
    result = plain().close(session)
    assert isinstance(result, Opened)
    return result.totals[UPDATE]


def test_both_widths_add_up() -> None:
    session = begun({0: 1.0, 1: 1.0}, 3)
    session = add(session, 1, message([1, 2, 3]))
    total = opened(add(session, 0, message([2**40, -2, 0], torch.int64)))
    assert total.vector.tolist() == [2**40 + 1, 0, 3]
    assert (total.clients, total.weights) == ((0, 1), (1.0, 1.0))


def test_a_release_weighs_as_much_as_float32() -> None:
    assert len(message([5] * 1000)) == 4000


def test_public_weights_scale_the_terms() -> None:
    session = begun({0: 0.5, 1: 1.0}, 2)
    session = add(session, 0, message([10, -7]))
    total = opened(add(session, 1, message([1, 1])))
    assert total.vector.tolist() == [6, -3]  # -3.5 rounds to even, -4


@pytest.mark.parametrize("length", [0, 4, 11, 13, 16, 25])
def test_a_message_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(BadReply, match=f"3 integers of 4 or 8 bytes, got {length} bytes;"):
        add(begun({0: 1.0}, 3), 0, bytes(length))


def test_a_reply_that_is_wrong_on_one_channel_counts_on_none() -> None:
    cohorts = {UPDATE: {0: 1.0}, METRICS: {0: 1.0}}
    session, requests = plain().begin(None, cohorts, {UPDATE: 1, METRICS: 2}, CONTEXT)
    assert requests.messages == {UPDATE: {0: b""}, METRICS: {0: b""}}
    with pytest.raises(BadReply, match="2 integers of 4 or 8 bytes, got 4 bytes;"):
        plain().add(session, 0, {UPDATE: message([5]), METRICS: message([5])})
    assert session.channels[UPDATE].total.tolist() == [0]
    with pytest.raises(BadReply, match=r"\['metrics', 'update'\], got \['update'\]"):
        plain().add(session, 0, {UPDATE: message([5])})


def test_a_client_counts_once_and_a_stranger_not_at_all() -> None:
    """The server's noise hides one term of each client, not two."""
    session = add(begun({0: 1.0, 1: 1.0}, 2), 0, message([3, 4]))
    for client in (0, 2):
        with pytest.raises(BadReply, match=f"client {client} is not expected, or has answered"):
            add(session, client, message([5, 6]))
    total = opened(session)
    assert (total.vector.tolist(), total.clients) == ([3, 4], (0,))


def test_nothing_can_wrap_the_total() -> None:
    cohort = dict.fromkeys(range(1000), 1.0)
    session = begun(cohort, 1)
    most = int(session.channels[UPDATE].limit)
    for value in (most, -most):
        session = add(begun(cohort, 1), 0, message([value], torch.int64))
    for value in (most + 2, -most - 2, 2**63 - 1, -(2**63)):
        with pytest.raises(BadReply, match=r"most 4\.61e\+15, so that no sum"):
            add(session, 1, np.array([value]).tobytes())
    assert most * 1000 < 2**63


def test_a_row_in_clear_may_not_be_longer_than_the_clip() -> None:
    context = SumContext(0, 5, 0, 0, 0, "run", longest={UPDATE: 100.0})
    session, _ = plain().begin(None, {UPDATE: {0: 1.0, 1: 1.0}}, {UPDATE: 3}, context)
    with pytest.raises(BadReply, match="at most as long as the clip"):
        add(session, 0, message([90, 90, 0]))
    assert opened(add(session, 1, message([60, 60, 0]))).vector.tolist() == [60, 60, 0]


def test_an_empty_round_is_aborted_and_a_wrong_stage_refused() -> None:
    assert plain().close(begun({0: 1.0}, 3)) == Aborted("no client answered")
    with pytest.raises(BadReply, match="stage, 'reply' with a release, got 'keys'"):
        plain().reply("keys", {UPDATE: b""}, None, b"", CONTEXT)
