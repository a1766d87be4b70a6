# SPDX-License-Identifier: Apache-2.0
"""What the strongest adversary of a plan's trust model sees of one release.

    LOCAL        a client's release
    DISTRIBUTED  the sum of the honest clients' releases
    CENTRAL      a client's sum, after the server has added its noise

Guarantee: rows pass the plan's own PricedReleaser and mechanism, exactly as in a run. Each call
starts from the mechanism's first state, and no two calls have the same (round, client, attempt).

| edge case                                     | what happens                               |
|-----------------------------------------------|--------------------------------------------|
| a plan of one client, or of one round         | the other fields of the key change instead |
| a channel that is used in some rounds only    | only those rounds are used                 |
| sums of clients, or the server's own noise    | the client is always the first one         |
| no rows                                       | ``EmptyRows``: bounded by 0, of any length |
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch

from dpfed.core.types import UPDATE, Broadcast, Release, Rows, Total, Trust
from dpfed.training.plan import Plan
from dpfed.training.reply import ClientState, EmptyRows, PricedReleaser

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


class Call(NamedTuple):
    """Which release of a run this is; its noise is keyed by it."""

    round: int
    client: int
    attempt: int


def calls(plan: Plan, channel: str, count: int) -> Iterator[Call]:
    """Keys of releases; each differs from the one before in its client, round or attempt.

    Args:
        plan: the plan of the run.
        channel: the channel; only rounds that use it are named.
        count: how many keys, at least 0.
    """
    rounds = [at for at in range(plan.rounds) if plan.releases(channel, at)]
    # under other trust models, the noise that is seen is not one client's alone
    clients = len(plan.nominal) if plan.update.trust is Trust.LOCAL else 1
    steps = [(0, 1, 0)] * (clients > 1) + [(1, 0, 0)] * (len(rounds) > 1) + [(0, 0, 1)]
    at, client, attempt = 0, 0, 0
    for number in range(count):
        yield Call(rounds[at % len(rounds)], client % clients, attempt)
        step = steps[number % len(steps)]
        at, client, attempt = at + step[0], client + step[1], attempt + step[2]


def see(plan: Plan, rows: Rows, size: int, call: Call, channel: str = UPDATE) -> Floats:
    """The value of one release as the adversary sees it.

    Args:
        plan: the plan of the run.
        rows: the rows that the client releases.
        size: the number of coordinates of a row.
        call: which release of the run it is.
        channel: the channel on which the rows leave.
    """
    release = _release(plan, rows, size, call, channel)
    if plan.update.trust is Trust.CENTRAL:
        release = _finished(plan, release, size, call, channel)
    values = _values(release)
    for other in range(1, int(plan.update.shares)):
        beside = call._replace(client=(call.client + other) % len(plan.nominal))
        values += _values(_release(plan, EmptyRows(size), size, beside, channel))
    return values


def stated(plan: Plan, size: int, channel: str = UPDATE) -> float:
    """The standard deviation of the noise, as the ``std`` of a first release states it.

    Args:
        plan: the plan of the run.
        size: the number of coordinates of a release.
        channel: the channel of the release.
    """
    call = next(calls(plan, channel, 1))
    release = _release(plan, EmptyRows(size), size, call, channel)
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
