# SPDX-License-Identifier: Apache-2.0
"""Replies into the sum: each is added, or refused alone, in whatever order they come."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pytest

from dpfed.core.errors import ClientRefused
from dpfed.core.sum_protocol import Opened, StageReply, SumContext
from dpfed.core.types import UPDATE
from dpfed.sums.plain import Adder, Plain, plain
from dpfed.training.round import add_replies

CLIENTS, SIZE = 50, 7
Answers = Sequence[tuple[int, StageReply]]


def begun(adder: Plain) -> Adder:
    cohort = {client: 1.0 + client % 3 for client in range(CLIENTS)}
    context = SumContext(0, CLIENTS, 0, 0, 0, "run")
    return adder.begin(None, {UPDATE: cohort}, {UPDATE: SIZE}, context)[0]


def sent(client: int) -> Mapping[str, bytes]:
    values = np.random.default_rng(client).integers(-(2**30), 2**30, SIZE)
    return {UPDATE: values.astype("<i8" if client % 2 else "<i4").tobytes()}


HOSTILE: Answers = [
    (3, {UPDATE: b"short"}),
    (7, sent(1)),
    (7, sent(2)),
    (99, sent(3)),
    (8, {}),
    (9, {UPDATE: (np.zeros(SIZE, "<i8") + 2**62).tobytes()}),
    (10, ClientRefused("LedgerError")),
    (11, {"other": b""}),
    (12, {UPDATE: sent(12)[UPDATE], "more": b""}),
]
HONEST: Answers = [(client, sent(client)) for client in range(13, CLIENTS)]


def taken(adder: Plain, answers: Answers) -> tuple[list[int], tuple[int, ...], dict[int, str]]:
    refused: dict[int, str] = {}
    after = adder.close(add_replies(adder, begun(adder), answers, refused, logging.WARNING))
    assert isinstance(after, Opened)
    total = after.totals[UPDATE]
    return total.vector.tolist(), total.clients, refused


@pytest.mark.parametrize("order", range(4))
def test_a_reply_that_is_refused_takes_no_other_with_it(order: int) -> None:
    mixed = [*HOSTILE, *HONEST]
    mixed = [mixed[at] for at in np.random.default_rng(order).permutation(len(mixed))]
    values, clients, refused = taken(plain(), mixed)
    first = next(reply[UPDATE] for client, reply in mixed if client == 7)  # type: ignore[index]
    honest = [(7, {UPDATE: first}), *HONEST]
    assert (values, clients) == taken(plain(), honest)[:2]
    assert clients == (7, *range(13, CLIENTS))
    assert set(refused) == {3, 7, 99, 8, 9, 10, 11, 12}


def test_a_reply_is_added_before_the_next_one_is_made() -> None:
    session, added = begun(plain()), []

    def replies() -> Iterator[tuple[int, StageReply]]:
        for client in range(3):
            added.append(len(session.clients))
            yield client, sent(client)

    add_replies(plain(), session, replies(), {}, logging.WARNING)
    assert added == [0, 1, 2]


def test_a_transport_that_breaks_off_is_heard() -> None:
    def broken() -> Iterator[tuple[int, StageReply]]:
        yield 0, sent(0)
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        add_replies(plain(), begun(plain()), broken(), {}, logging.WARNING)
