# SPDX-License-Identifier: Apache-2.0
"""Replies into the sum, several at a time as one by one: a test per line of round.py's table."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from dpfed.core.errors import ClientRefused
from dpfed.core.sum_protocol import Opened, StageReply, SumContext
from dpfed.core.types import UPDATE
from dpfed.sums.plain import Adder, Plain, plain
from dpfed.training import round as training_round
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


def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many answers each pass has added; 0 where it added none."""
    made: list[int] = []
    usual = Plain.add_many

    def counted(self: Plain, session: Adder, answers: Any) -> Adder | None:
        found = usual(self, session, answers)
        made.append(len(answers) if found is not None else 0)
        return found

    monkeypatch.setattr(Plain, "add_many", counted)
    return made


@pytest.mark.parametrize("order", range(4))
@pytest.mark.parametrize("most", [1, 150, 1 << 18])
def test_totals_and_refusals_are_those_of_one_by_one(
    order: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed = [*HOSTILE, *HONEST]
    mixed = [mixed[at] for at in np.random.default_rng(order).permutation(len(mixed))]
    monkeypatch.setattr(training_round, "BYTES_PER_PASS", 0)
    expected = taken(plain(), mixed)
    monkeypatch.setattr(training_round, "BYTES_PER_PASS", most)
    assert taken(plain(), mixed) == expected
    assert set(expected[2]) == {3, 7, 99, 8, 9, 10, 11, 12}


def test_small_answers_are_added_several_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made = calls(monkeypatch)
    monkeypatch.setattr(training_round, "BYTES_PER_PASS", 400)
    taken(plain(), HONEST)
    assert len(made) < len(HONEST) / 5
    assert all(made)


def test_a_large_answer_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is added before the next one is made."""
    session, added = begun(plain()), []

    def large() -> Iterator[tuple[int, StageReply]]:
        for client in range(3):
            added.append(len(session.clients))
            yield client, sent(client)

    monkeypatch.setattr(training_round, "BYTES_PER_PASS", 8)
    add_replies(plain(), session, large(), {}, logging.WARNING)
    assert added == [0, 1, 2]


def test_a_sum_of_ones_own_adds_by_its_own_method(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    @dataclass(frozen=True)
    class Watched(Plain):
        def add(self, session: Adder, client: int, messages: Mapping[str, bytes]) -> Adder:
            seen.append(client)
            return super().add(session, client, messages)

    made = calls(monkeypatch)
    assert taken(Watched(), HONEST) == taken(plain(), HONEST)
    assert seen == [client for client, _ in HONEST]
    assert sum(made) == len(HONEST)  # by the second one alone


def test_a_transport_that_breaks_off_is_heard() -> None:
    def broken() -> Iterator[tuple[int, StageReply]]:
        yield 0, sent(0)
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        add_replies(plain(), begun(plain()), broken(), {}, logging.WARNING)
