# SPDX-License-Identifier: Apache-2.0
"""A budget, a key and requests for a ledger."""

from __future__ import annotations

import math
from typing import Any

from dpfed.accounting import events, gdp
from dpfed.accounting.event_tree import ChannelUse, TrainingReleases
from dpfed.accounting.guarantee import strongest
from dpfed.accounting.ledger.balance import Budget
from dpfed.accounting.ledger.conversions import LedgerKey
from dpfed.accounting.ledger.request import ChannelRequest, Request
from dpfed.core.sampling import Poisson
from dpfed.core.types import UPDATE, Adjacency, Facts
from dpfed.mechanisms.gaussian import gaussian

BUDGET = Budget(1.0, 1e-5)


B2 = gdp.mu_for(*BUDGET[:2]) ** 2


TENTH = gaussian(Facts(1.0), 2.0 / math.sqrt(B2 / 10))  # ten releases spend the budget


KEY = LedgerKey("adult")


DRAWN = gaussian(Facts(1.0, adjacency=Adjacency.ZERO_OUT), 4.0).with_sampling(Poisson(0.1))


ZERO = LedgerKey("adult", adjacency=Adjacency.ZERO_OUT)


def request(round: int = 0, **changes: Any) -> Request:
    options: dict[str, Any] = {
        "key": KEY,
        "training": "t",
        "client": 0,
        "round": round,
        "attempt": 0,
        "parts": {UPDATE: ChannelRequest(TENTH, 1, 10)},
        "plan": "p",
    }
    options |= changes
    if "whole" not in options:
        options["whole"] = whole_of(options["parts"])
    return Request(**options)


def whole_of(parts: dict[str, ChannelRequest]) -> events.Json:
    """The tree of trainings whose channels release in rounds of their own."""
    rounds = {(ChannelUse(name, 1),): part.planned for name, part in parts.items()}
    made = TrainingReleases({name: part.mechanism for name, part in parts.items()}, rounds)
    return made.event(strongest(made))
