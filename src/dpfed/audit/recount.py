# SPDX-License-Identifier: Apache-2.0
"""What a run costs by an audit's own count: from the cohorts and noise draws that an engine made.

The engine runs the recipe's rounds on made-up records, with mechanisms that note who is in which
total, and how often noise was drawn. From these notes, and from how far a unit may move a sum, the
cost is computed a second time. Guarantee: neither the plan's tree of events nor a mechanism's own
accounting is used, except the sensitivity of correlated releases together
(``squared_sensitivity``), so a fault there is not repeated here:

    replace-one              a row v instead of another row, at worst -v: 2 clip
    add-remove, zero-out     a row, or none: clip
    clients drawn            channels that were never seen with different clients in a round share
                             a draw: their releases are one, of mu^2 = sum of (move / noise)^2
    records drawn            a draw for each release

The cost is computed by PLD for draws, and by the closed form for all else. How often clients are
drawn is what the plan says, or what was seen if that is surely more.

| edge case                                       | what happens                                  |
|-------------------------------------------------|-----------------------------------------------|
| rows known to be closer (matrices)              | the bound that the algorithm declares is used |
| no noise on a channel                           | infinite                                      |
| many clients and rounds                         | the first rounds are run; in the rest, the    |
|                                                 | plan's releases count, joined as was seen     |
| a round that is aborted                         | what was drawn for it counts                  |
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from scipy import stats

from dpfed.accounting import gdp
from dpfed.accounting.event_tree import GaussianRelease
from dpfed.audit.finding import ERROR_PROBABILITY, Finding, Subject, judged, skipped
from dpfed.core.randomness import Noise, public_seed
from dpfed.core.sampling import Everyone
from dpfed.core.types import (
    UPDATE,
    Adjacency,
    Mechanism,
    Problem,
    Release,
    Rows,
    State,
    Stream,
    Total,
    Trust,
)
from dpfed.training import inprocess
from dpfed.training.plan import Plan

NAME = "rounds"

MAX_CLIENT_ROUNDS = 4000
"""Clients times rounds that are run for the notes."""


@dataclass(frozen=True)
class RecordedRound:
    """What an engine did in one round, by channel."""

    cohorts: Mapping[str, frozenset[int]]
    """Who is in the total."""
    draws: Mapping[str, int]
    """How often noise was drawn that hides one client: by itself, or by the server."""


@dataclass(eq=False)
class _Notes:
    """What the mechanism of one channel was asked for in one round."""

    releases: int = 0
    totals: list[tuple[int, ...]] = field(default_factory=list)


class _RecordingMechanism:
    """A mechanism that notes what it is asked for."""

    def __init__(self, inner: Mechanism, notes: dict[str, _Notes], name: str) -> None:
        self._inner, self._notes, self._name = inner, notes, name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __repr__(self) -> str:
        return repr(self._inner)

    def release(self, rows: Rows, state: State, rng: Stream) -> tuple[Release, State]:
        """A client's release."""
        self._notes[self._name].releases += 1
        return self._inner.release(rows, state, rng)

    def finish(self, total: Total, state: State, rng: Stream) -> tuple[Release, State]:
        """A total, with the server's noise if it adds noise."""
        self._notes[self._name].totals.append(total.clients)
        return self._inner.finish(total, state, rng)


@lru_cache(maxsize=4)
def recorded(target: Subject) -> tuple[RecordedRound, ...]:
    """Run the engine on made-up records, and note what it does in each round."""
    plan, notes = target.plan, dict[str, _Notes]()
    channels: Mapping[str, Any] = {
        n: _RecordingMechanism(m, notes, n) for n, m in plan.channels.items()
    }
    # independent of the run's own draws, and of what other audits draw
    watched = replace(plan, channels=channels, noise=Noise(target.seed + 1))
    problems = [_made_up(problem) for problem in target.federation.problems]
    start = target.federation.model.initial(public_seed(target.recipe.seed, "model"))
    most = max(3, int(MAX_CLIENT_ROUNDS / max(1.0, plan.participation_rate * len(problems))))
    found: list[RecordedRound] = []
    notes.update({name: _Notes() for name in channels})
    for _ in inprocess.rounds(watched, problems, start):
        found.append(_round_of(plan, notes))
        notes.update({name: _Notes() for name in channels})
        if len(found) == min(most, plan.rounds):
            break
    return tuple(found)


def _made_up(problem: Problem) -> Problem:
    made = getattr(problem, "made_up", None)
    return made() if made else problem


def _round_of(plan: Plan, notes: Mapping[str, _Notes]) -> RecordedRound:
    cohorts, draws = {}, {}
    for name, seen in notes.items():
        inside = {client for total in seen.totals for client in total}
        if not seen.releases and not seen.totals:
            continue
        by_server = plan.channels[name].trust is Trust.CENTRAL
        each = math.ceil(seen.releases / max(1, len(inside))) if inside else 0
        cohorts[name] = frozenset(inside)
        draws[name] = max(len(seen.totals) if by_server else 0, each)
    return RecordedRound(cohorts, draws)


# ------------------------------------------------------------------------------------ the cost


def movement(plan: Plan, channel: str) -> float:
    """How far one unit may move a channel's sum; the noise must hide it."""
    clip, replaced = plan.channels[channel].clip, plan.update.adjacency is Adjacency.REPLACE_ONE
    declared = plan.declared[channel].replace_bound
    if replaced and declared is not None:
        return declared
    return 2 * clip if replaced else clip


def level(plan: Plan, channel: str) -> float:
    """The noise's standard deviation in what the strongest adversary sees of a release."""
    mechanism = plan.channels[channel]
    return mechanism.std * math.sqrt(mechanism.shares)


def is_drawn(plan: Plan) -> bool:
    """Whether units are drawn at random, so that no closed form holds."""
    draws = (*(m.sampling for m in plan.channels.values()), plan.amplification)
    return not all(isinstance(draw, Everyone) for draw in draws)


def squared_sensitivity(plan: Plan, channel: str, releases: int) -> float:
    """The number of independent releases that cost as much as these.

    Args:
        plan: the plan of the run.
        channel: the channel of the releases.
        releases: how many releases, from the first one on; at least 0.
    """
    mechanism = plan.channels[channel]
    return (
        mechanism.squared_sensitivity(releases)
        if isinstance(mechanism, GaussianRelease)
        else float(releases)
    )


def mu_with(plan: Plan, noise: Mapping[str, float], moves: Mapping[str, float]) -> float:
    """The mu of the whole run at these noise levels and movements, without sampling.

    Args:
        plan: the plan of the run.
        noise: the noise's standard deviation by channel; a 0 gives an infinite mu.
        moves: how far one unit moves the sum, by channel, in the same unit.
    """
    if not all(noise.values()):
        return math.inf
    squares = [
        squared_sensitivity(plan, name, plan.planned(name)) * (moves[name] / noise[name]) ** 2
        for name in noise
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
    if not all(levels.values()):
        return math.inf
    if not is_drawn(plan):
        return gdp.epsilon_for(target.delta, mu_with(plan, levels, moved))
    mus = {name: moved[name] / levels[name] for name in plan.channels}
    return _by_losses(target, _losses(target, mus))


def _losses(target: Subject, mus: Mapping[str, float]) -> Counter[tuple[float, float]]:
    """(mu, rate) of each draw with its releases -> how often the run makes such a one."""
    plan, seen = target.plan, recorded(target)
    made: Counter[tuple[float, float]] = Counter()
    rate = _client_rate(plan, seen)
    together = _same_draw(plan, seen)
    for draws in _all_rounds(plan, seen):
        if rate < 1:
            for group in together:
                square = math.fsum(draws.get(n, 0) * mus[n] ** 2 for n in group)
                if square:
                    made[math.sqrt(square), rate] += 1
            continue
        for name, count in draws.items():
            made[mus[name], plan.channels[name].sampling.rate] += count
    return made


def _all_rounds(plan: Plan, seen: tuple[RecordedRound, ...]) -> Iterable[Mapping[str, int]]:
    """Noise draws by channel for each round and spare attempt: as seen, else as planned."""
    yield from (each.draws for each in seen)
    planned = [{n: plan.releases(n, at) for n in plan.channels} for at in range(plan.rounds)]
    yield from planned[len(seen) :]
    most = {n: max(each[n] for each in planned) for n in plan.channels}
    yield from [most] * plan.spare


def _same_draw(plan: Plan, seen: tuple[RecordedRound, ...]) -> list[set[str]]:
    """Channels in groups that share a draw of clients, unless their draws were seen to differ."""
    groups: list[set[str]] = []
    for name in plan.channels:
        for group in groups:
            if all(_same_cohort(each, name, other) for other in group for each in seen):
                group.add(name)
                break
        else:
            groups.append({name})
    return groups


def _same_cohort(each: RecordedRound, one: str, other: str) -> bool:
    """Whether two channels had the same clients in a round, or one of them had none."""
    cohorts = each.cohorts
    return one not in cohorts or other not in cohorts or cohorts[one] == cohorts[other]


def _client_rate(plan: Plan, seen: tuple[RecordedRound, ...]) -> float:
    """The rate at which clients are drawn, if the draw is claimed to hide them."""
    stated = plan.amplification.rate
    if stated == 1:
        return 1.0
    inside = sum(len(each.cohorts.get(UPDATE, ())) for each in seen)
    chances = sum(UPDATE in each.cohorts for each in seen) * len(plan.nominal)
    surely = (
        float(stats.beta.ppf(ERROR_PROBABILITY, inside, chances - inside + 1)) if inside else 0.0
    )
    return max(stated, surely)


def _by_losses(target: Subject, made: Counter[tuple[float, float]]) -> float:
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as pld

    zeroed = target.plan.update.adjacency is Adjacency.ZERO_OUT
    relation = (
        NeighboringRelation.REPLACE_SPECIAL if zeroed else NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    total = None
    for (mu, rate), count in sorted(made.items()):
        one = pld.from_gaussian_mechanism(
            1 / mu,
            value_discretization_interval=1e-4,
            sampling_prob=rate,
            neighboring_relation=relation,
        )
        many = one.self_compose(count)
        total = many if total is None else total.compose(many)
    return float(total.get_epsilon_for_delta(target.delta)) if total else 0.0


def claimed_mu(target: Subject) -> float:
    """The mu that gives the claimed epsilon."""
    return gdp.mu_for(target.claimed, target.delta)


# ----------------------------------------------------------------------------------- the audit


def recount(target: Subject) -> Finding:
    """Compare the claimed epsilon with the cost of the cohorts and draws that an engine made."""
    plan, seen = target.plan, recorded(target)
    if plan.open:
        return skipped(NAME, target.claimed, "nobody is listed, so that no cohorts can be counted")
    counted = Counter[str]()
    for each in seen:
        counted.update(each.draws)
    planned = {n: sum(plan.releases(n, at) for at in range(len(seen))) for n in plan.channels}
    more = [
        f"{name}: {counted[name]} noise draws, {many} planned"
        for name, many in planned.items()
        if counted[name] > many
    ]
    epsilon = math.inf if more else epsilon_with(target) * (1 - _ROUNDING)
    groups = _same_draw(plan, seen)
    detail = "; ".join(more) or f"{len(seen)} rounds, {sum(counted.values())} noise draws"
    if plan.amplification.rate < 1:
        joined = ", ".join("+".join(sorted(group)) for group in groups)
        detail += f"; one draw of clients for {joined}"
    return judged(NAME, target.claimed, epsilon, "sees a draw counted twice", detail)


_ROUNDING = 1e-5  # of a composition in another order
