# SPDX-License-Identifier: Apache-2.0
"""What a ledger refuses before it looks at any cost: repeats, and anything beyond the run's limits.

A refusal depends only on earlier entries, never on a record, and writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dpfed.accounting.ledger.balance import Balance, Reservation
from dpfed.accounting.ledger.conversions import LedgerKey
from dpfed.accounting.ledger.request import ChannelRequest, Request
from dpfed.core.errors import BudgetSpent, UnsoundPlan


def refuse_repeats(
    balance: Balance, key: LedgerKey, request: Request, parts: Iterable[str]
) -> None:
    """Refuse an attempt that was entered, on any of its channels.

    Args:
        balance: what was entered before.
        key: the key under which the releases are entered.
        request: what is about to be released.
        parts: the channels that are released on.
    """
    for channel in parts:
        at = request.round, request.attempt
        if (key.dataset, *request.run, *at, channel) in balance.seen:
            raise UnsoundPlan(
                f"round {at[0]}, attempt {at[1]} of training {request.training!r} is in the "
                f"ledger already, on {channel!r}; retry it as a new attempt, at full cost"
            )


def refuse_beyond(balance: Balance, key: LedgerKey, request: Request) -> None:
    """Refuse a client that takes part too soon after its last participation, or too often.

    Args:
        balance: what was entered before.
        key: the key under which the releases are entered.
        request: what is about to be released.
    """
    if request.participation is not None:
        taken = balance.attended.get((key.dataset, *request.run), {})
        request.participation.refuse_beyond(request.round, taken.values())


def check_left(
    reserve: Reservation | None, request: Request, parts: Mapping[str, ChannelRequest]
) -> None:
    """Refuse more releases than were reserved for the run.

    Args:
        reserve: the run's reservation; None if this request creates it.
        request: what is about to be released.
        parts: its channels.
    """
    for name, part in parts.items():
        left = reserve.left.get(name, 0) if reserve else part.planned
        if part.releases > left:
            raise BudgetSpent(
                f"training {request.training!r} has {left} releases on {name!r} left of what was "
                f"reserved, and round {request.round} needs {part.releases}; start another training"
            )


def refuse_restarted_noise(balance: Balance, key: LedgerKey, request: Request) -> None:
    """Refuse correlated noise that starts again in a run whose whole cost was reserved.

    Args:
        balance: what was entered before.
        key: the key under which the releases are entered.
        request: what is about to be released.
    """
    if not request.fresh or request.participation is not None:
        return
    for name, part in request.parts.items():
        if not part.mechanism.independent and balance.places.get((key.dataset, *request.run, name)):
            raise UnsoundPlan(
                f"the noise on {name!r} of training {request.training!r} must continue from its "
                f"stored state, which the reserved cost assumes, got none; start another training"
            )
