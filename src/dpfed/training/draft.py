# SPDX-License-Identifier: Apache-2.0
"""What a run does, before it is checked: who is asked in which round, and what they release.

A ``Draft`` refuses nothing and computes no cost. ``soundness`` reads it to refuse what would make a
guarantee untrue, ``fingerprint`` to sum up what both sides agree on; a ``Plan`` (plan.py) is a
draft that was checked, with its cost.

An open population has no list of devices: a round has a fixed number of slots, which connected
devices fill (population.py, flower/slots.py). The divisor is the number of slots, filled or not: a
public constant, so how far a unit moves the mean does not depend on who came.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from dpfed.accounting.guarantee import MOST_DRAWN_EPSILON
from dpfed.core.chain import chain
from dpfed.core.metric import Metrics
from dpfed.core.participation import Participation
from dpfed.core.randomness import Noise
from dpfed.core.sampling import CHANCE_OF_MORE, EVERYONE, Everyone
from dpfed.core.sum_protocol import Sum
from dpfed.core.types import (
    METRICS,
    UPDATE,
    Channels,
    ClientAlgorithm,
    Mechanism,
    Nominal,
    Sampling,
    ServerOptimizer,
    State,
    Trust,
    Unit,
    Weights,
    channels_due,
)
from dpfed.training.metrics import metrics_channel


@dataclass(frozen=True, eq=False, kw_only=True)
class Draft:
    """What a run does, in one value; not checked."""

    client: ClientAlgorithm
    channels: Mapping[str, Mechanism]
    """The mechanism of every channel that is released on."""
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
    """In which rounds the model is judged: every k-th, and the last."""
    loss_bound: float = 5.0
    metrics: Metrics = ()
    """What is measured if metrics have noise; if empty: correct and clipped loss."""
    client_sampling: Sampling = EVERYONE
    """Which clients the server asks in a round: only the server may know."""
    spare: int = 0
    """Attempts beyond the rounds that noise and delta are sized for; with 0 each costs a round."""
    open: bool = False
    """Whether there is no list of devices: ``nominal`` has one entry per slot of a round."""
    contract: str = ""
    """The digest of the contract by which every client reads its table; "" if there is none."""
    blocks: tuple[str, ...] = ()
    """The blocks of arriving data whose units are used, by name; empty if all units are."""

    # -------------------------------------------------------------------------- the channels

    @cached_property
    def declared(self) -> Channels:
        """What leaves a client: the algorithm's channels, and metrics if they have noise."""
        if METRICS not in self.channels:
            return self.client.channels
        metrics = metrics_channel(
            self.rounds,
            self.metrics_every,
            metrics=self.metrics,
            truncates=self.channels[METRICS].exact,
        )
        return {**self.client.channels, METRICS: metrics}

    @property
    def update(self) -> Mechanism:
        """The mechanism of the update channel: its unit, adjacency and trust are the plan's."""
        return self.channels[UPDATE]

    def due(self, round: int) -> list[str]:
        """The channels on which a reply is due in a round; the first one leads."""
        return channels_due(self.declared, lambda name: self.releases(name, round))

    def evaluates(self, round: int) -> bool:
        """Whether the model is judged in a round: every k-th, and the last."""
        return (round + 1) % self.metrics_every == 0 or round + 1 == self.rounds

    def size(self, channel: str, dimension: int) -> int:
        """How long a channel's vectors are, for a model of ``dimension`` parameters."""
        return self.declared[channel].size or dimension

    def mechanism_states(self, dimension: int) -> dict[str, State]:
        """The states that the channels' mechanisms start from."""
        return {n: m.init(self.size(n, dimension)) for n, m in self.channels.items()}

    def releases(self, channel: str, round: int) -> int:
        """How often a client uses a channel in a round."""
        if 0 <= round < self.rounds:
            return self._releases[channel][round]
        return self.declared[channel].releases(round)

    @property
    def attempts(self) -> int:
        """How often a client is asked for releases at most."""
        return self.rounds + self.spare

    def planned(self, channel: str) -> int:
        """How many releases all rounds and spare attempts make on a channel."""
        return self._planned[channel]

    @cached_property
    def _releases(self) -> Mapping[str, tuple[int, ...]]:
        """By channel, how often it is used in each round: counted once, asked in every round."""
        return {n: each.releases_by_round(self.rounds) for n, each in self.declared.items()}

    @cached_property
    def round_kinds(self) -> Mapping[tuple[int, ...], tuple[int, int]]:
        """Releases by declared channel -> the first round that makes these, and how many do."""
        made = list(zip(*self._releases.values(), strict=True))
        first = dict(zip(reversed(made), range(len(made) - 1, -1, -1), strict=True))
        return {kind: (first[kind], many) for kind, many in Counter(made).items()}

    @cached_property
    def _planned(self) -> Mapping[str, int]:
        """By channel; counted once, since a client asks in each round."""
        return {n: each.planned(self.rounds, self.spare) for n, each in self.declared.items()}

    def sampling_rate(self, channel: str) -> float:
        """The fraction of a client's units that is expected in a release."""
        return 1.0 if self.declared[channel].census else self.update.sampling.rate

    def step(self, channel: str) -> float:
        """The grid of a channel; a derived one lies on that of the update."""
        return self.channels.get(channel, self.update).step

    # --------------------------------------------------------------------------- the clients

    @property
    def participation(self) -> Participation | None:
        """How often a client takes part at most, as the accounting assumes; None: every round."""
        return self.update.participation

    @property
    def participation_rate(self) -> float:
        """The fraction of all clients, or of an open population's slots, expected in a round."""
        if self.open:
            return 1.0
        if self.participation is not None:
            return 1 / self.participation.period(self.rounds)
        return self.client_sampling.rate

    def draw(self, round: int, attempt: int) -> tuple[int, ...]:
        """Which clients are asked: all, a draw, or those whose turn it is (a bound, not a draw).

        The draw may be empty, and is not repeated. Of an open population these are slots: who
        takes them is known when the round begins.

        Args:
            round: the round, from 0.
            attempt: the attempt at it, from 0.
        """
        everyone = range(len(self.nominal))  # no tuple of a population that is drawn from
        if self.open:
            return tuple(everyone)  # the slots
        if self.participation is not None:
            return tuple(i for i in everyone if self.participation.asks(i, round, self.rounds))
        stream = self.noise.stream("cohort", round, attempt)
        kept = self.client_sampling.draw(len(everyone), stream)
        return tuple(everyone if kept is None else kept.nonzero().flatten().tolist())

    def cohort(self, channel: str, drawn: Iterable[int] | None = None) -> dict[int, float]:
        """Those drawn (or all) with the public weight of their release in the total, at most 1."""
        clients = range(len(self.nominal)) if drawn is None else drawn
        if self._counts_alike(channel):
            return dict.fromkeys(clients, 1.0)
        least = min(self.nominal)
        return {client: least / self.nominal[client] for client in clients}

    def nominal_of(self, client: int) -> float:
        """A client's public size in units; in an open population all have the same."""
        return self.nominal[0 if self.open else client]

    def denominator(self, channel: str) -> float:
        """The public number that turns the weighted total into the mean."""
        expected = self.participation_rate * self.sampling_rate(channel)
        if self._counts_alike(channel):
            return math.fsum(self.nominal) * expected
        return len(self.nominal) * min(self.nominal) * expected

    def _counts_alike(self, channel: str) -> bool:
        return self.weights is Weights.SUM or self.declared[channel].census

    @property
    def uneven(self) -> bool:
        """Whether releases are added with weights of their own."""
        return self.weights is Weights.AVERAGE and len(set(self.nominal)) > 1

    # ---------------------------------------------------------------------------- the server

    @property
    def optimizer(self) -> ServerOptimizer:
        """The server's half of the algorithm, then the plan's own optimizer."""
        companion = self.client.companion
        return chain(companion, self.server) if companion else self.server

    # ----------------------------------------------------------------------------- the noise

    def noise_std(self, channel: str) -> float:
        """The standard deviation of a channel's mean if everyone takes part."""
        mechanism, clients = self.channels[channel], float(len(self.nominal))
        if self.uneven:  # else each weight is 1
            clients = math.fsum(w * w for w in self.cohort(channel).values())
        shares = 1 if mechanism.trust is Trust.CENTRAL else self.participation_rate * clients
        return mechanism.std * math.sqrt(shares) / self.denominator(channel)

    def noise_shares(self, weights: Iterable[float]) -> float:
        """How many clients' noise protects the most exposed client of a sum from the colluders.

        A client of weight w faces the noise of all honest terms: sum of w_i^2 over w^2 shares.
        """
        squares = sorted((w * w for w in weights), reverse=True)
        worst = squares[0] if squares else 1.0
        # colluders do worst to the heaviest client by being the next heaviest ones
        honest = squares[:1] + squares[1 + self.colluders :]
        return max(1.0, math.fsum(honest) / worst)

    @property
    def pools_noise(self) -> bool:
        """Whether other clients' noise protects too: releases leave unmodified, none is reused."""
        return self.client.sends_unmodified and not self.client.reuses_own_releases

    @property
    def amplification(self) -> Sampling:
        """The draw of clients if it hides a unit; everyone if it does not.

        It does if a client is the unit and the server adds the same noise, whoever takes part.
        A record's absence does not hide that the rest of its client is there, and under local
        trust the noise itself would show how many take part.
        """
        central = self.update.trust is Trust.CENTRAL and self.update.unit is Unit.CLIENT
        return self.client_sampling if central else EVERYONE

    @property
    def draw_is_secret(self) -> bool:
        """Whether the accounting relies on a secret client draw (amplification)."""
        return not isinstance(self.amplification, Everyone)

    @property
    def min_honest(self) -> int:
        """The least number of honest terms in any total that the sum shows."""
        return self.sum.min_honest(len(self.nominal), self.colluders)

    @property
    def delta_reserved(self) -> float:
        """The part of delta for what a release or a sum may show by a tiny chance.

        More units may be drawn than are computed whoever is drawn: two worlds that are (epsilon,
        delta)-close without it are apart by that chance times 1 + exp(epsilon) more. And a secure
        sum may fail: others drop out each time.
        """
        drawn = (name for name, each in self.channels.items() if each.sampling.rate != 1)
        shown = sum(map(self.planned, drawn)) * CHANCE_OF_MORE * (1 + math.exp(MOST_DRAWN_EPSILON))
        if self.update.trust is not Trust.DISTRIBUTED:
            return shown
        return shown + self.attempts * self.sum.failure(len(self.nominal), self.colluders)
