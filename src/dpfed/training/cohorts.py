# SPDX-License-Identifier: Apache-2.0
"""Which clients a plan asks in a round, and what part of all of them that is.

In an open population nobody is listed: a round has so many slots, and whoever is there takes one
(population.py, flower/slots.py). The divisor is the number of slots, filled or not: a public
constant, so how far a unit moves the mean does not depend on who came.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from dpfed.accounting.guarantee import Guarantee
from dpfed.core.participation import Participation
from dpfed.core.types import Trust

if TYPE_CHECKING:
    from dpfed.training.plan import Plan


def pattern_of(plan: Plan) -> Participation | None:
    """How often a client takes part at most, where that is priced; None is in every round."""
    found: Participation | None = getattr(plan.update, "participation", None)
    return found


def part_asked(plan: Plan) -> float:
    """The part of all clients, or of an open population's slots, that is expected in a round."""
    if plan.open:
        return 1.0
    if plan.pattern is not None:
        return 1 / plan.pattern.period(plan.rounds)
    return plan.participation.rate


def drawn_clients(plan: Plan, round: int, attempt: int) -> tuple[int, ...]:
    """Who is asked: all, a draw, or those whose turn it is, which is a bound and no draw.

    Of an open population these are slots: who takes them is known when the round begins.

    Args:
        plan: what is done.
        round: the round, from 0.
        attempt: the attempt at it, from 0.
    """
    everyone = tuple(range(len(plan.nominal)))
    if plan.open:
        return everyone  # the slots
    if plan.pattern is not None:
        return tuple(i for i in everyone if plan.pattern.asks(i, round, plan.rounds))
    kept = plan.participation.draw(len(everyone), plan.noise.stream("cohort", round, attempt))
    return everyone if kept is None else tuple(kept.nonzero().flatten().tolist())


def noise_level(plan: Plan, channel: str) -> float:
    """The noise level of a channel's mean if everyone takes part."""
    mechanism, clients = plan.channels[channel], float(len(plan.nominal))
    if plan.uneven:  # else each weight is 1
        clients = math.fsum(w * w for w in plan.cohort(channel).values())
    shares = plan.part_asked * clients
    added = 1 if mechanism.trust is Trust.CENTRAL else shares
    return mechanism.std * math.sqrt(added) / plan.denominator(channel)


def shares_hiding(weights: Iterable[float], colluders: int) -> float:
    """How many shares of noise protect the most exposed client of a sum from the colluders.

    A client of weight w faces the noise of all honest terms: sum of w_i^2 over w^2 shares.
    """
    squares = sorted((w * w for w in weights), reverse=True)
    worst = squares[0] if squares else 1.0
    # colluders do worst to the heaviest client by being the next heaviest ones
    honest = squares[:1] + squares[1 + colluders :]
    return max(1.0, math.fsum(honest) / worst)


def with_open_words(plan: Plan, found: Guarantee) -> Guarantee:
    """The guarantee with what it counts on in an open population, if the plan has one."""
    if not plan.open:
        return found
    said = (
        f"up to {len(plan.nominal)} of an open population are asked in a round, whoever is there "
        f"(which amplifies nothing, and is taken not to depend on anyone's data)"
    )
    return replace(found, draws=f"{found.draws}; {said}")


def longest_replies(plan: Plan) -> dict[str, float]:
    """How long a client's reply may be, in steps of its grid, where it is one row in clear.

    A device of an open population that sends more harms nobody's privacy, but would own the mean.
    """
    return {name: m.clip / m.step for name, m in plan.channels.items() if plan.open}


def size_of(plan: Plan, client: int) -> float:
    """A client's public size in units; in an open population all have the same."""
    return plan.nominal[0 if plan.open else client]
