# SPDX-License-Identifier: Apache-2.0
"""Who is asked when, and what a client refuses: one test per line of the table."""

from __future__ import annotations

import pytest

from dpfed.core.errors import BudgetSpent, RecipeError, UnsoundPlan
from dpfed.core.participation import Participation


def limits(b: int, k: int) -> Participation:
    return Participation(min_separation=b, at_most=k)


@pytest.mark.parametrize(("b", "k", "rounds"), [(1, 3, 10), (3, 2, 12), (5, 9, 11), (4, 3, 12)])
def test_the_servers_turns_keep_to_what_clients_agree_to(b: int, k: int, rounds: int) -> None:
    clients = 2 * limits(b, k).period(rounds) + 1
    asked = 0
    for client in range(clients):
        taken: list[int] = []
        for at in range(rounds):
            if limits(b, k).asks(client, at, rounds):
                limits(b, k).refuse_beyond(at, taken)  # refuses nothing that the server asks
                taken.append(at)
        asked += len(taken)
    period = limits(b, k).period(rounds)
    assert asked == pytest.approx(clients * rounds / period, abs=clients)


def test_too_early_too_often_and_back_are_refused() -> None:
    rule = limits(3, 2)
    rule.refuse_beyond(4, [])
    rule.refuse_beyond(7, [4])
    for early in (4, 5, 6, 0, 3):  # the same round, too early, and rounds that are over
        with pytest.raises(UnsoundPlan, match=r"round 4; ask.*round 7"):
            rule.refuse_beyond(early, [4])
    with pytest.raises(BudgetSpent, match=r"most 2 times,.*least 3 rounds"):
        rule.refuse_beyond(100, [4, 7])


def test_more_times_than_the_rounds_allow_are_those_that_they_allow() -> None:
    assert [limits(3, 5).times(n) for n in (0, 1, 3, 4, 12, 13, 100)] == [0, 1, 1, 2, 4, 5, 5]
    assert limits(3, 50).within(10) == limits(3, 4)


@pytest.mark.parametrize(("b", "k"), [(0, 1), (1, 0), (-2, 3)])
def test_counts_below_one_are_refused(b: int, k: int) -> None:
    with pytest.raises(RecipeError, match=r"privacy\.participation\..* at least 1, got"):
        limits(b, k)
