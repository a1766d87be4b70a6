# SPDX-License-Identifier: Apache-2.0
"""The terms of a run: what is done, by whom, in which rounds, and what it costs.

Both sides build the same ``Plan`` by themselves and compare its fingerprint. It refuses, when it
is built, whatever would make its promise untrue; ``round.py`` then walks it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

from dpfed.accounting.guarantee import Guarantee, Spent, delta_warning, guarantee
from dpfed.core.chain import chain
from dpfed.core.errors import UnsoundPlan
from dpfed.core.randomness import Noise
from dpfed.core.sampling import EVERYONE, Everyone, Fixed
from dpfed.core.types import (
    METRICS,
    UPDATE,
    Adjacency,
    ClientAlgorithm,
    Mechanism,
    Nominal,
    Sampling,
    ServerOptimizer,
    State,
    Sum,
    Trust,
    Unit,
    Weights,
)


@dataclass(frozen=True, eq=False)
class Plan:
    """All that a run does and what it costs, in one value. Refuses what would be unsound."""

    client: ClientAlgorithm
    channels: Mapping[str, Mechanism]
    sum: Sum
    server: ServerOptimizer
    nominal: Nominal
    """Public sizes in units, by client: declared at enrolment, never measured under add/remove."""
    rounds: int
    delta: float = 1e-5
    weights: Weights = Weights.SUM
    noise: Noise = field(default_factory=Noise)
    colluders: int = 1
    """How many clients pool what they know, the reader itself included."""
    metrics_every: int = 1
    """On which rounds the metrics channel, if there is one, is used: every k-th, and the last."""
    loss_bound: float = 5.0
    participation: Sampling = EVERYONE
    """Which clients the server asks in a round: hidden from all but the server."""

    def __post_init__(self) -> None:
        for complaint in (_wrong_numbers, _wrong_channels, _wrong_trust, _wrong_sampling):
            reason = complaint(self)
            if reason:
                raise UnsoundPlan(reason)

    @property
    def update(self) -> Mechanism:
        """The mechanism of the update channel: its unit, adjacency and trust are the plan's."""
        return self.channels[UPDATE]

    @property
    def optimizer(self) -> ServerOptimizer:
        """The server's half of the algorithm, then the plan's own optimizer."""
        companion = self.client.companion
        return chain(companion, self.server) if companion else self.server

    @property
    def pools(self) -> bool:
        """Whether other clients' noise protects too: releases leave unchanged, none is kept."""
        return self.client.unchanged and not self.client.keeps

    def due(self, round: int) -> list[str]:
        """The channels on which a reply is due in a round; the first one leads."""
        found = self.client.due(round)
        return [*found, METRICS] if METRICS in self.channels and self.evaluates(round) else found

    def evaluates(self, round: int) -> bool:
        """Whether the model is judged in a round: every k-th, and the last."""
        return (round + 1) % self.metrics_every == 0 or round + 1 == self.rounds

    def size(self, channel: str, dimension: int) -> int:
        """How long a channel's vectors are, for a model of so many parameters."""
        if channel == METRICS:
            return 2
        return self.client.channels[channel].size or dimension

    def mechanism_states(self, dimension: int) -> dict[str, State]:
        """The states that the channels' mechanisms start from."""
        return {n: m.init(self.size(n, dimension)) for n, m in self.channels.items()}

    def releases(self, channel: str, round: int) -> int:
        """How often a client uses a channel in a round."""
        if channel == METRICS:
            return int(self.evaluates(round))
        return self.client.channels[channel].releases(round)

    def planned(self, channel: str) -> int:
        """How many releases all rounds make on a channel."""
        if channel == METRICS:
            return sum(self.evaluates(at) for at in range(self.rounds))
        return self.client.channels[channel].planned(self.rounds)

    def cohort(self, channel: str, drawn: Iterable[int] | None = None) -> dict[int, float]:
        """Those drawn (or all) with the public weight of their release in the total, at most 1."""
        clients = range(len(self.nominal)) if drawn is None else drawn
        if self.weights is Weights.SUM or channel == METRICS:
            return dict.fromkeys(clients, 1.0)
        least = min(self.nominal)
        return {client: least / self.nominal[client] for client in clients}

    def draw(self, round: int, attempt: int) -> tuple[int, ...]:
        """Which clients are asked in a round. Nobody is a draw like any other."""
        everyone = tuple(range(len(self.nominal)))
        kept = self.participation.draw(len(everyone), self.noise.stream("cohort", round, attempt))
        return everyone if kept is None else tuple(i for i in everyone if bool(kept[i]))

    def expected(self, channel: str) -> float:
        """The part of all units that is expected in a release."""
        return 1.0 if channel == METRICS else self.update.sampling.rate

    def denominator(self, channel: str) -> float:
        """The public number that turns the weighted total into the mean."""
        part = self.participation.rate * self.expected(channel)
        if self.weights is Weights.SUM or channel == METRICS:
            return math.fsum(self.nominal) * part
        return len(self.nominal) * min(self.nominal) * part

    def step(self, channel: str) -> float:
        """The grid of a channel; a derived one lies on that of the update."""
        return self.channels.get(channel, self.update).step

    def promise(self) -> Guarantee:
        """What the whole run is going to cost if everyone takes part."""
        return self._promise

    @cached_property
    def _promise(self) -> Guarantee:
        """Priced once: every round is held to it, and PLD takes its time."""
        everyone = isinstance(self.participation, Everyone)
        books = {
            name: {
                self.hidden_by(self.cohort(name).values()) if everyone else 1.0: self.planned(name)
            }
            for name in self.channels
        }
        return self.guarantee(books, self.rounds)

    def guarantee(self, books: Books, rounds: int) -> Guarantee:
        """What the releases in the books cost."""
        spent = [self._spent(name, book) for name, book in books.items()]
        server = self.sum.adversary(self.colluders)
        found = guarantee(spent, self.delta, self.noise.source, rounds, self.lost, server)
        # public weights round each term again, which no exact price covers
        return replace(found, idealized=True) if self.uneven else found

    @property
    def uneven(self) -> bool:
        """Whether releases are added with weights of their own."""
        return self.weights is Weights.AVERAGE and len(set(self.nominal)) > 1

    @property
    def lost(self) -> float:
        """The part of delta that the sum's own chance of failure takes."""
        if self.update.trust is not Trust.DISTRIBUTED:
            return 0.0
        return self.sum.failure(len(self.nominal), self.colluders)

    @property
    def honest(self) -> int:
        """The least number of honest terms in whatever the sum shows."""
        return self.sum.honest(len(self.nominal), self.colluders)

    def surplus(self, clients: int) -> float:
        """How much more noise a total of so many has than the promise needs: 0.1 is 10 %."""
        if self.update.trust is not Trust.DISTRIBUTED or not clients or not self.update.std:
            return 0.0
        return math.sqrt(clients / self.update.shares) - 1

    def _spent(self, channel: str, book: Mapping[float, int]) -> Spent:
        mechanism = self.channels[channel]
        outside = book if self.pools and mechanism.independent else {}
        return Spent(mechanism, sum(book.values()), outside, self.amplified)

    @property
    def amplified(self) -> Sampling:
        """The draw of clients, where it hides a unit; everyone, where it does not.

        It does where a client is the unit and the server adds the same noise, whoever takes part.
        A record's absence does not hide that the rest of its client is there, and under local
        trust the noise itself would show how many take part.
        """
        central = self.update.trust is Trust.CENTRAL and self.update.unit is Unit.CLIENT
        return self.participation if central else EVERYONE

    def fingerprint(self) -> str:
        """A digest of what both sides must agree on. The noise's seed is not in it."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        channels = sorted((name, repr(m)) for name, m in self.channels.items())
        declared = sorted(self.client.channels.items())
        facts = (channels, declared, self.client.unchanged, repr(self.sum),
                 self.weights.value, [float(size) for size in self.nominal], self.rounds,
                 self.delta, self.colluders, self.metrics_every, self.loss_bound,
                 self.participation)  # fmt: skip
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    def hidden_by(self, weights: Iterable[float]) -> float:
        """How many shares of noise protect the most exposed client of a sum from the colluders.

        A client of weight w faces the noise of all honest terms: sum of w_i^2 over w^2 shares.
        """
        squares = sorted((w * w for w in weights), reverse=True)
        worst = squares[0] if squares else 1.0
        # colluders do worst to the heaviest client by being the next heaviest ones
        honest = squares[:1] + squares[1 + self.colluders :]
        return max(1.0, math.fsum(honest) / worst)


Books: TypeAlias = Mapping[str, Mapping[float, int]]
"""Channel -> (shares of noise that an outsider cannot subtract -> number of releases)."""


def small_delta(plan: Plan) -> str | None:
    """A warning where delta allows to give away a whole unit."""
    return delta_warning(plan.delta, math.fsum(plan.nominal))


def _wrong_numbers(plan: Plan) -> str | None:
    if not plan.nominal or not all(math.isfinite(n) and n > 0 for n in plan.nominal):
        return f"nominal sizes are {list(plan.nominal)[:5]}...; each client needs one above 0"
    for name, count in (("rounds", plan.rounds), ("evaluation.every", plan.metrics_every)):
        if count < 1:
            return f"{name} is {count}; give a whole number, at least 1"
    if plan.colluders < 1:
        return f"colluders is {plan.colluders}, but a reader always knows its own noise: at least 1"
    return None


def _wrong_channels(plan: Plan) -> str | None:
    wanted = {name for name, channel in plan.client.channels.items() if not channel.derived}
    if wanted != set(plan.channels) - {METRICS}:
        return f"the algorithm releases on {sorted(wanted)}, priced are {sorted(plan.channels)}"
    silent = [at for at in range(plan.rounds) if not plan.due(at)]
    if UPDATE not in wanted or silent or not plan.planned(UPDATE):
        return f"all {plan.rounds} rounds pass without a reply on 'update'; give it more rounds"
    kinds = {(m.unit, m.adjacency, m.trust) for m in plan.channels.values()}
    if len(kinds) != 1:
        return f"all channels must share unit, adjacency and trust, but they are {sorted(kinds)}"
    if plan.update.unit not in plan.client.units:
        units = sorted(plan.client.units)
        return f"the algorithm can protect {units}, not each {plan.update.unit}; change the unit"
    return None


def _wrong_trust(plan: Plan) -> str | None:
    trust = plan.update.trust
    if trust is Trust.DISTRIBUTED and not plan.sum.hides_terms:
        return (
            "under distributed trust the server must see only the sum, and this sum shows it each "
            "reply; set sum.name = 'secure', or use local trust"
        )
    if trust is not Trust.LOCAL and not plan.client.unchanged:
        return f"{trust} trust covers sums of unchanged releases only; use local trust"
    if trust is not Trust.LOCAL and plan.client.keeps:
        return (
            f"a client of this method builds its later replies on its own releases, and under "
            f"{trust} trust these are not private on their own; use local trust"
        )
    if trust is Trust.DISTRIBUTED and plan.uneven:
        return (
            f"silos have {min(plan.nominal):g} to {max(plan.nominal):g} units, and averaging "
            f"those of unequal size under distributed trust exposes the smallest; use "
            f"weights = 'sum'"
        )
    return _wrong_shares(plan) if trust is Trust.DISTRIBUTED else None


def _wrong_shares(plan: Plan) -> str | None:
    """The noise must be sized for what the sum lets through, and the total must not wrap."""
    counted = max(m.shares for m in plan.channels.values())
    if counted > plan.honest:
        return f"{counted:g} shares of noise are counted on, and {plan.honest} are sure; lower it"
    if plan.lost > plan.delta / 100:
        return f"the sum fails with chance {plan.lost:.2g}, over 1 % of delta; raise sum.survivors"
    for name, mechanism in plan.channels.items():
        noise = 12 * mechanism.std * math.sqrt(len(plan.nominal))
        largest = (math.fsum(plan.nominal) * mechanism.clip + noise) / mechanism.step
        if largest >= plan.sum.capacity():
            return (
                f"a total on {name!r} may reach {largest:.3g} steps, and wraps at "
                f"{plan.sum.capacity():.3g}; use sum.bits = 64"
            )
    return None


def _wrong_sampling(plan: Plan) -> str | None:
    draws = {name: m.sampling for name, m in plan.channels.items() if name != METRICS}
    if len(set(draws.values())) > 1:
        return f"all channels of an algorithm must be drawn alike, but they are {draws}"
    sampled = not isinstance(plan.update.sampling, Everyone)
    if sampled and plan.update.unit is Unit.CLIENT:
        return "a client is one unit: there are no records to draw; sample the clients instead"
    if sampled and not plan.client.samples:
        return "this method's releases are not sums over records; leave the record rate at 1"
    if plan.update.trust is Trust.DISTRIBUTED and not isinstance(plan.participation, Everyone):
        return "under distributed trust the shares of noise are sized for all; ask all clients"
    return _unpriced_draw(plan) if plan.update.std else None


def _unpriced_draw(plan: Plan) -> str | None:
    """A draw that no accountant here bounds."""
    draws = (plan.update.sampling, plan.amplified)
    if any(isinstance(draw, Fixed) for draw in draws):
        return "a batch of a fixed size is not a Poisson draw, and is not priced; use record_rate"
    drawn = any(not isinstance(draw, Everyone) for draw in draws)
    if drawn and plan.update.adjacency is Adjacency.REPLACE_ONE:
        rate = min(plan.update.sampling.rate, plan.amplified.rate)
        return (
            f"a Poisson draw with rate {rate:g} is not priced under replace-one, by RDP or "
            f"otherwise; use adjacency = 'zero-out' or 'add-remove', or a rate of 1"
        )
    return None
