# SPDX-License-Identifier: Apache-2.0
"""What a client is about to release in a round, and what that costs: what it asks the ledger."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpfed.accounting import events
from dpfed.accounting.event_tree import gaussian_mu_squared, mechanism_event
from dpfed.accounting.guarantee import is_gaussian, mechanism_mu_squared
from dpfed.accounting.ledger.conversions import LedgerKey
from dpfed.core.dsse import Json
from dpfed.core.files import jsonable
from dpfed.core.participation import Participation
from dpfed.core.types import Mechanism


@dataclass(frozen=True)
class ChannelRequest:
    """One channel's releases in the next round, and in the whole run (``planned``)."""

    mechanism: Mechanism
    releases: int
    planned: int


@dataclass(frozen=True)
class Request:
    """All that one client is about to release in a round: entered as a whole, or not at all."""

    key: LedgerKey
    training: str
    client: int
    round: int
    attempt: int
    parts: Mapping[str, ChannelRequest]
    plan: str
    """The fingerprint of the training's plan: a training uses only one plan."""
    whole: Json
    """The event tree of everything the training releases, against the strongest adversary."""
    drawn: Json | None = None
    """If clients are drawn: the event of this round, all of its channels together."""
    covered: bool = True
    """Whether each row's norm is at most the replace bound that is accounted for."""
    fresh: bool = True
    """Whether correlated noise starts again with this round; then its cost starts again, too."""
    delta_reserved: float = 0.0
    """The part of delta that the run's secure sum reserves."""
    participation: Participation | None = None
    """How often the client takes part; None means in every round."""
    block: str = ""
    """The block that ``key`` is the account of; "" if the data has no blocks."""

    @property
    def run(self) -> tuple[str, int]:
        """The training, and the client."""
        return self.training, self.client

    @property
    def gaussian(self) -> float | None:
        """The squared mu of the whole training; None if it is not Gaussian, or infinite."""
        found = gaussian_mu_squared(self.whole, self.key.adjacency)
        return None if found is None or math.isinf(found) else found


def cost_of(part: ChannelRequest, releases: int, place: int = 0) -> dict[str, Any]:
    """The cost of some releases: "mu_squared" (None if not Gaussian) and "event", as in a row.

    Args:
        part: the channel.
        releases: how many releases, at least 0.
        place: how many earlier releases used this correlated noise, at least 0; if participation
            is limited, in how many rounds the client has taken part before.
    """
    mechanism, adjacency = part.mechanism, part.mechanism.adjacency
    if mechanism.participation is not None:
        limits = mechanism.participation
        cost = _taken_part(part, limits, place + releases) - _taken_part(part, limits, place)
        return {
            "mu_squared": max(0.0, cost),
            "event": events.gaussian_with_mu_squared(max(0.0, cost), adjacency),
        }
    if not is_gaussian(mechanism):
        event = mechanism_event(mechanism, releases, mechanism.shares)
        return {"mu_squared": None, "event": event}
    if mechanism.independent:
        multiplier = mechanism.noise_multiplier()  # type: ignore[attr-defined]  # is_gaussian checked it
        cost = mechanism_mu_squared(mechanism, releases)
        return {"mu_squared": cost, "event": events.gaussian_event(multiplier, releases)}
    ahead = mechanism_mu_squared(mechanism, place + releases)
    cost = (
        math.inf if math.isinf(ahead) else max(0.0, ahead - mechanism_mu_squared(mechanism, place))
    )
    return {"mu_squared": jsonable(cost), "event": events.gaussian_with_mu_squared(cost, adjacency)}


def _taken_part(part: ChannelRequest, limits: Participation, times: int) -> float:
    """The squared mu of the worst client that takes part ``times`` times, at most as allowed."""
    if not times:
        return 0.0
    fewer = Participation(min_separation=limits.min_separation, at_most=min(times, limits.at_most))
    return mechanism_mu_squared(part.mechanism.with_facts(participation=fewer), part.planned)


def round_costs(request: Request, places: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """What each row of a round costs, by channel.

    If clients are drawn, one draw serves the whole round: the first row carries the event of all
    channels together, and the other rows carry no event.

    Args:
        request: what is about to be released.
        places: for each channel that is released on, how many earlier releases used its noise.
    """
    if request.drawn is None:
        parts = {name: request.parts[name] for name in places}
        return {name: cost_of(part, part.releases, places[name]) for name, part in parts.items()}
    first = next(iter(places))
    joint = {"mu_squared": None, "event": request.drawn}
    return {name: joint if name == first else dict(_NO_COST) for name in places}


_NO_COST = {"mu_squared": 0.0, "event": {"kind": "NoOp"}}


def plan_cost(request: Request) -> dict[str, Any]:
    """The cost of the whole run."""
    return {"mu_squared": jsonable(request.gaussian), "event": request.whole}


def release_events(request: Request) -> dict[str, Json | None]:
    """The event of one release by channel; None if their costs differ, or cost is per round."""
    return {
        name: cost_of(part, 1)["event"]
        if part.mechanism.independent and request.drawn is None
        else None
        for name, part in request.parts.items()
    }
