# SPDX-License-Identifier: Apache-2.0
"""How often a unit takes part: at most k times, and at least b rounds apart.

The accounting of correlated noise relies on it (mechanisms), the server chooses whom to ask by it
(``asks``), and each device refuses what exceeds it (``refuse_beyond``, in its own ledger's turn).
It is a bound, not a random draw: cohorts of a fixed size, refusals, and whoever happens to be
online give no privacy amplification.

| edge case                              | what happens                                        |
|----------------------------------------|-----------------------------------------------------|
| min_separation or at_most below 1      | refused when built                                  |
| at_most above what the rounds allow    | ``times`` is what the rounds allow                  |
| fewer clients than the period          | ``asks`` leaves some rounds without anybody         |
| a server that goes back to old rounds  | ``refuse_beyond``: not asked after the last one     |
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from dpfed.core.checks import check_at_least
from dpfed.core.errors import BudgetSpent, UnsoundPlan


class Participation(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A unit takes part at most ``at_most`` times, at least ``min_separation`` rounds apart."""

    min_separation: int
    """Minimum gap between two rounds of the same unit; 1 is every round."""
    at_most: int
    """In how many rounds of a training a unit takes part at most."""

    def __post_init__(self) -> None:
        check_at_least(1, "privacy.participation", min_separation=self.min_separation)
        check_at_least(1, "privacy.participation", at_most=self.at_most)

    def __str__(self) -> str:
        times = "once" if self.at_most == 1 else f"{self.at_most} times"
        return f"at most {times}, at least {self.min_separation} rounds apart"

    def times(self, rounds: int) -> int:
        """The most times that a unit can take part in ``rounds`` rounds."""
        return min(self.at_most, -(-rounds // self.min_separation))

    def within(self, rounds: int) -> Participation:
        """The same bound, with ``at_most`` lowered to what ``rounds`` rounds allow."""
        return Participation(min_separation=self.min_separation, at_most=max(1, self.times(rounds)))

    def period(self, rounds: int) -> int:
        """Rounds until the server asks a unit again: at most ``at_most`` times in all."""
        return max(self.min_separation, -(-rounds // self.at_most))

    def refuse_beyond(self, round: int, taken: Collection[int]) -> None:
        """A client's own rule: refuse a round too soon after its last one, or beyond ``at_most``.

        It depends only on when the client took part, never on a record; a refusal spends nothing.
        Rounds only go forward: a server reset to an older checkpoint is refused by all who took
        part.

        Args:
            round: the round that is asked for, from 0.
            taken: the rounds of all attempts that were entered before, sent or lost.
        """
        if len(taken) >= self.at_most:
            raise BudgetSpent(
                f"a client takes part {self}, got a request after {len(taken)} times; ask others"
            )
        if taken and round - max(taken) < self.min_separation:
            raise UnsoundPlan(
                f"a client takes part {self}, got round {round} after round {max(taken)}; ask it "
                f"from round {max(taken) + self.min_separation} on"
            )

    def allows(self, round: int, taken: Collection[int]) -> bool:
        """Whether a client would take part in a round that it has not entered.

        Args:
            round: the round that is asked for, from 0.
            taken: the rounds of all attempts that were entered before, sent or lost.
        """
        try:
            self.refuse_beyond(round, taken)
        except (BudgetSpent, UnsoundPlan):
            return False
        return True

    def asks(self, client: int, round: int, rounds: int) -> bool:
        """Whether the server asks a client in a round: clients take turns, in order of their index.

        Args:
            client: the client's index in the plan.
            round: the round, from 0.
            rounds: how many rounds the plan has.
        """
        period = self.period(rounds)
        return client % period == round % period
