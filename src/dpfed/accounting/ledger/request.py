# SPDX-License-Identifier: Apache-2.0
"""What a client is about to release in a round, and what that costs: the ledger's question."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dpfed.accounting.guarantee import Spent, event_of, is_gaussian, mechanism_mu_squared
from dpfed.accounting.ledger import events
from dpfed.accounting.ledger.conversions import LedgerKey
from dpfed.core.files import jsonable
from dpfed.core.participation import Participation
from dpfed.core.sampling import EVERYONE, Sampling
from dpfed.core.types import Mechanism


@dataclass(frozen=True)
class Part:
    """One channel's releases in the next round, and in the whole run (``planned``)."""

    mechanism: Mechanism
    releases: int
    planned: int
    participation: Sampling = EVERYONE


@dataclass(frozen=True)
class Request:
    """All that one client is about to release in a round: entered as a whole, or not at all."""

    key: LedgerKey
    training: str
    client: int
    round: int
    attempt: int
    parts: Mapping[str, Part]
    plan: str
    """The fingerprint of the training's plan: a training keeps to one."""
    covered: bool = True
    """Whether each row's norm is at most the distance that replacing a unit is priced for."""
    fresh: bool = True
    """Whether correlated noise begins anew with this round; its cost then does so, too."""
    delta_reserved: float = 0.0
    """The part of delta that the run's secure sum reserves."""
    participation: Participation | None = None
    """How often the client takes part; None is in every round."""

    @property
    def run(self) -> tuple[str, int]:
        """The training, and the client."""
        return self.training, self.client


def cost_of(part: Part, releases: int, place: int = 0) -> dict[str, Any]:
    """The cost of some releases: "mu_squared" (None if not Gaussian) and "event", as in a row.

    Args:
        part: the channel: its mechanism, and its draw of clients.
        releases: how many releases, at least 0.
        place: how many releases the same correlated noise has made before, at least 0; under
            participation, how often the client has taken part.
    """
    mechanism, adjacency = part.mechanism, part.mechanism.adjacency
    if getattr(mechanism, "participation", None) is not None:
        cost = _taken_part(part, place + releases) - _taken_part(part, place)
        return {"mu_squared": max(0.0, cost), "event": events.worth_of(max(0.0, cost), adjacency)}
    if not is_gaussian(mechanism, part.participation):
        spent = Spent(mechanism, releases, {}, part.participation)
        event = events.to_json(event_of(spent, releases, mechanism.shares))
        return {"mu_squared": None, "event": event}
    if mechanism.independent:
        multiplier = mechanism.noise_multiplier()  # type: ignore[attr-defined]  # is_gaussian saw it
        cost = mechanism_mu_squared(mechanism, releases)
        return {"mu_squared": cost, "event": events.gaussian_event(multiplier, releases)}
    ahead = mechanism_mu_squared(mechanism, place + releases)
    cost = (
        math.inf if math.isinf(ahead) else max(0.0, ahead - mechanism_mu_squared(mechanism, place))
    )
    return {"mu_squared": jsonable(cost), "event": events.worth_of(cost, adjacency)}


def _taken_part(part: Part, times: int) -> float:
    """The squared mu of the worst client that takes part so often, or as often as it may."""
    limits: Participation = part.mechanism.participation  # type: ignore[attr-defined]
    if not times:
        return 0.0
    fewer = Participation(min_separation=limits.min_separation, at_most=min(times, limits.at_most))
    mechanism = replace(part.mechanism, participation=fewer)  # type: ignore[type-var]
    return mechanism_mu_squared(mechanism, part.planned)


def plan_cost(request: Request) -> dict[str, Any]:
    """The cost of the whole run."""
    costs = [cost_of(part, part.planned) for part in request.parts.values() if part.planned]
    known = [cost["mu_squared"] for cost in costs]
    total = None if None in known else math.fsum(map(float, known))
    event = events.composed([cost["event"] for cost in costs])
    return {"mu_squared": jsonable(total), "event": event}


def release_event(part: Part) -> events.Json | None:
    """The event of one release; None where noise is correlated, and releases cost unalike."""
    return cost_of(part, 1)["event"] if part.mechanism.independent else None
