# SPDX-License-Identifier: Apache-2.0
"""What the strongest adversary named sees of one release, through the plan's own door.

    LOCAL        a client's release
    DISTRIBUTED  the sum of the honest clients' releases
    CENTRAL      a client's sum, after the server has added its noise

Guarantee: rows pass the plan's Door and mechanism as in a run: nothing is imitated. Each call is
made from the mechanism's first state, with a (round, client, attempt) that no other call has.

| edge case                                     | what happens                               |
|-----------------------------------------------|--------------------------------------------|
| a plan of one client, or of one round         | the other fields of the key change instead |
| a channel that is used in some rounds only    | those are the rounds                       |
| sums of clients, or the server's own noise    | the client stays: its key is in each call  |
| no rows                                       | ``Nothing``: bounded by 0, fits any channel|
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from dpfed.core.types import UPDATE, BoundedSum, Broadcast, Release, Rows, Total, Trust
from dpfed.training.answer import ClientState, PricedReleaser
from dpfed.training.plan import Plan

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


class Call(NamedTuple):
    """Which release of a run it is: what its noise is keyed by."""

    round: int
    client: int
    attempt: int


@dataclass(frozen=True, eq=False)
class Nothing:
    """One unit that adds nothing."""

    size: int
    units: int = 1

    def select(self, kept: torch.Tensor) -> Nothing:
        """Drawn or not, it adds nothing."""
        del kept
        return self

    def clipped_sum(self, clip: float) -> BoundedSum:
        """Zero."""
        del clip
        return BoundedSum(torch.zeros(self.size), 0.0, 0.0)

    def clipped_rows(self, clip: float) -> Iterator[torch.Tensor]:
        """One row of zeros."""
        del clip
        return iter([torch.zeros(1, self.size, dtype=torch.float64)])


def calls(plan: Plan, channel: str, count: int) -> Iterator[Call]:
    """Keys of which each differs from the one before in one field: client, round and attempt."""
    rounds = [at for at in range(plan.rounds) if plan.releases(channel, at)]
    # only a release of one client alone has noise of that client alone
    clients = len(plan.nominal) if plan.update.trust is Trust.LOCAL else 1
    steps = [(0, 1, 0)] * (clients > 1) + [(1, 0, 0)] * (len(rounds) > 1) + [(0, 0, 1)]
    at, client, attempt = 0, 0, 0
    for number in range(count):
        yield Call(rounds[at % len(rounds)], client % clients, attempt)
        step = steps[number % len(steps)]
        at, client, attempt = at + step[0], client + step[1], attempt + step[2]


def see(plan: Plan, rows: Rows, size: int, call: Call, channel: str = UPDATE) -> Floats:
    """The value of one release as the adversary sees it."""
    release = _release(plan, rows, size, call, channel)
    if plan.update.trust is Trust.CENTRAL:
        release = _finished(plan, release, size, call, channel)
    values = _values(release)
    for other in range(1, int(plan.update.shares)):
        beside = call._replace(client=(call.client + other) % len(plan.nominal))
        values += _values(_release(plan, Nothing(size), size, beside, channel))
    return values


def stated(plan: Plan, size: int, channel: str = UPDATE) -> float:
    """The noise level that a first release states of itself."""
    call = next(calls(plan, channel, 1))
    release = _release(plan, Nothing(size), size, call, channel)
    central = plan.update.trust is Trust.CENTRAL
    return (_finished(plan, release, size, call, channel) if central else release).std


def _release(plan: Plan, rows: Rows, size: int, call: Call, channel: str) -> Release:
    broadcast = Broadcast(call.round, torch.zeros(size), attempt=call.attempt)
    return PricedReleaser(plan, broadcast, ClientState(call.client))(rows, channel)


def _values(release: Release) -> Floats:
    values: Floats = release.vector.double().numpy() * release.step
    return values


def _finished(plan: Plan, release: Release, size: int, call: Call, channel: str) -> Release:
    mechanism = plan.channels[channel]
    total = Total(release.vector.to(torch.int64).clone(), (call.client,), (1.0,))
    rng = plan.noise.stream("finish", call.round, call.attempt, channel)
    return mechanism.finish(total, plan.mechanism_states(size)[channel], rng)[0]
