# SPDX-License-Identifier: Apache-2.0
"""What a run costs at the noise and the movement that an audit measured, computed independently.

Guarantee: nothing of a mechanism's own accounting is used, except how much its releases cost
together (``worth``). How far a unit moves a sum is defined here a second time, from the meaning of
the adjacency, so that a factor forgotten in the library is not forgotten here as well.

    replace-one              a row v instead of another row, at worst -v: 2 clip
    add-remove, zero-out     a row, or none: clip

| edge case                                       | what happens                                  |
|-------------------------------------------------|-----------------------------------------------|
| rows known to be closer (matrices)              | the bound that the algorithm declares is used |
| units drawn at random                           | PLD, with an event that is made here          |
| no noise on a channel                           | infinite                                      |
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from dpfed.accounting import gdp
from dpfed.accounting.guarantee import GaussianRelease, price
from dpfed.audit.finding import Subject
from dpfed.core.sampling import Everyone
from dpfed.core.types import Adjacency
from dpfed.training.plan import Plan


def movement(plan: Plan, channel: str) -> float:
    """How far one unit may move a channel's sum; the noise must hide it."""
    clip, replaced = plan.channels[channel].clip, plan.update.adjacency is Adjacency.REPLACE_ONE
    declared = plan.declared[channel].replace_bound
    if replaced and declared is not None:
        return declared
    return 2 * clip if replaced else clip


def level(plan: Plan, channel: str) -> float:
    """The noise's standard deviation in what the strongest adversary named sees of a release."""
    mechanism = plan.channels[channel]
    return mechanism.std * math.sqrt(mechanism.shares)


def is_drawn(plan: Plan) -> bool:
    """Whether units are drawn at random, so that no closed form holds."""
    draws = (*(m.sampling for m in plan.channels.values()), plan.amplified)
    return not all(isinstance(draw, Everyone) for draw in draws)


def worth(plan: Plan, channel: str, releases: int) -> float:
    """How many independent releases cost as much.

    Args:
        plan: the plan of the run.
        channel: the channel of the releases.
        releases: how many releases, from the first one on; at least 0.
    """
    mechanism = plan.channels[channel]
    return mechanism.worth(releases) if isinstance(mechanism, GaussianRelease) else float(releases)


def mu_with(plan: Plan, noise: Mapping[str, float], moves: Mapping[str, float]) -> float:
    """The mu of the whole run at these noise levels and movements.

    Args:
        plan: the plan of the run.
        noise: the noise's standard deviation by channel; a 0 gives an infinite mu.
        moves: how far one unit moves the sum, by channel, in the same unit.
    """
    if not all(noise.values()):
        return math.inf
    squares = [
        worth(plan, name, plan.planned(name)) * (moves[name] / noise[name]) ** 2 for name in noise
    ]
    return math.sqrt(math.fsum(squares))


def epsilon_with(
    target: Subject,
    noise: Mapping[str, float] | None = None,
    moves: Mapping[str, float] | None = None,
) -> float:
    """The whole run's epsilon, with measured values instead of the plan's own.

    Args:
        target: the run under audit.
        noise: measured noise levels by channel; a channel that is not named has the plan's.
        moves: measured movements by channel; a channel that is not named has the plan's.
    """
    plan = target.plan
    levels = {name: level(plan, name) for name in plan.channels} | dict(noise or {})
    moved = {name: movement(plan, name) for name in plan.channels} | dict(moves or {})
    if is_drawn(plan):
        return _by_events(target, levels, moved)
    return gdp.epsilon_for(target.delta, mu_with(plan, levels, moved))


def _by_events(target: Subject, noise: Mapping[str, float], moves: Mapping[str, float]) -> float:
    import dp_accounting as dp

    plan = target.plan
    per_row = gdp.SENSITIVITY[plan.update.adjacency]  # takes back the accountant's own sensitivity
    if not all(noise.values()):
        return math.inf
    parts = []
    for name, mechanism in plan.channels.items():
        event = dp.GaussianDpEvent(noise[name] * per_row / moves[name])
        amplified = plan.amplified.amplify(mechanism.sampling.amplify(event))
        parts.append(dp.SelfComposedDpEvent(amplified, plan.planned(name)))
    return price(dp.ComposedDpEvent(parts), target.delta, plan.update.adjacency)[0]


def claimed_mu(target: Subject) -> float:
    """The mu that gives the claimed epsilon."""
    return gdp.mu_for(target.claimed, target.delta)
