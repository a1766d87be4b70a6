# SPDX-License-Identifier: Apache-2.0
"""A run before it begins: what is done, by whom, in which rounds, and what it costs.

Both sides build the same ``Plan`` by themselves and compare its fingerprint. It refuses, when it is
built, whatever would make its guarantee untrue (soundness.py); ``round.py`` then walks it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from dpfed.accounting.event_tree import ChannelUse, RoundCounts, RoundKind, TrainingReleases
from dpfed.accounting.events import Json
from dpfed.accounting.guarantee import Guarantee, guarantee, strongest
from dpfed.core.chain import chain
from dpfed.core.metric import Metrics
from dpfed.core.participation import Participation
from dpfed.core.randomness import Noise
from dpfed.core.sampling import EVERYONE, Everyone, Sampling
from dpfed.core.sum_protocol import Signer, Sum, SumContext
from dpfed.core.types import (
    UPDATE,
    Broadcast,
    Channels,
    ClientAlgorithm,
    Mechanism,
    Nominal,
    ServerOptimizer,
    State,
    Trust,
    Unit,
    Weights,
    channels_due,
)
from dpfed.training import cohorts
from dpfed.training.fingerprint import fingerprint
from dpfed.training.metrics import with_metrics
from dpfed.training.soundness import refuse_unsound


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """All that a run does and what it costs, in one value. Refuses what would be unsound."""

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
    """What is measured where metrics have noise; none are correct and clipped loss."""
    participation: Sampling = EVERYONE
    """Which clients the server asks in a round: hidden from all but the server."""
    spare: int = 0
    """Attempts beyond the rounds that noise and delta are sized for; with 0 each costs a round."""
    open: bool = False
    """Whether nobody is listed: ``nominal`` has one slot for each device that a round asks."""

    def __post_init__(self) -> None:
        refuse_unsound(self)

    # -------------------------------------------------------------------------- the channels

    @cached_property
    def declared(self) -> Channels:
        """What leaves a client: the algorithm's channels, and metrics where they have noise."""
        return with_metrics(self)

    @property
    def update(self) -> Mechanism:
        """The mechanism of the update channel: its unit, adjacency and trust are the plan's."""
        return self.channels[UPDATE]

    def due(self, round: int) -> list[str]:
        """The channels on which a reply is due in a round; the first one leads."""
        return channels_due(self.declared, round)

    def evaluates(self, round: int) -> bool:
        """Whether the model is judged in a round: every k-th, and the last."""
        return (round + 1) % self.metrics_every == 0 or round + 1 == self.rounds

    def size(self, channel: str, dimension: int) -> int:
        """How long a channel's vectors are, for a model of so many parameters."""
        return self.declared[channel].size or dimension

    def mechanism_states(self, dimension: int) -> dict[str, State]:
        """The states that the channels' mechanisms start from."""
        return {n: m.init(self.size(n, dimension)) for n, m in self.channels.items()}

    def releases(self, channel: str, round: int) -> int:
        """How often a client uses a channel in a round."""
        return self.declared[channel].releases(round)

    @property
    def attempts(self) -> int:
        """How often a client is asked for releases at most."""
        return self.rounds + self.spare

    def planned(self, channel: str) -> int:
        """How many releases all rounds and spare attempts make on a channel."""
        return self.declared[channel].planned(self.rounds, self.spare)

    def expected(self, channel: str) -> float:
        """The part of all units that is expected in a release."""
        return 1.0 if self.declared[channel].census else self.update.sampling.rate

    def step(self, channel: str) -> float:
        """The grid of a channel; a derived one lies on that of the update."""
        return self.channels.get(channel, self.update).step

    # --------------------------------------------------------------------------- the clients

    @property
    def pattern(self) -> Participation | None:
        """How often a client takes part at most, where that is priced; None is in every round."""
        return cohorts.pattern_of(self)

    @property
    def part_asked(self) -> float:
        """The part of all clients that is expected in a round."""
        return cohorts.part_asked(self)

    def draw(self, round: int, attempt: int) -> tuple[int, ...]:
        """Which clients are asked in a round. The draw may be empty: none replaces it."""
        return cohorts.drawn_clients(self, round, attempt)

    def cohort(self, channel: str, drawn: Iterable[int] | None = None) -> dict[int, float]:
        """Those drawn (or all) with the public weight of their release in the total, at most 1."""
        clients = range(len(self.nominal)) if drawn is None else drawn
        if self._counts_alike(channel):
            return dict.fromkeys(clients, 1.0)
        least = min(self.nominal)
        return {client: least / self.nominal[client] for client in clients}

    def denominator(self, channel: str) -> float:
        """The public number that turns the weighted total into the mean."""
        part = self.part_asked * self.expected(channel)
        if self._counts_alike(channel):
            return math.fsum(self.nominal) * part
        return len(self.nominal) * min(self.nominal) * part

    def level(self, channel: str) -> float:
        """The noise level of a channel's mean if everyone takes part."""
        return cohorts.noise_level(self, channel)

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

    # ------------------------------------------------------------------------- what it costs

    def round_kind(self, round: int, shares: Mapping[str, float] | None = None) -> RoundKind:
        """What one attempt at a round releases.

        Args:
            round: the round, from 0.
            shares: shares of noise that hide a release from outsiders, by channel; 1 where it is
                left out.
        """
        known = shares or {}
        return tuple(
            ChannelUse(name, releases, known.get(name, 1.0))
            for name in self.channels
            if (releases := self.releases(name, round))
        )

    @cached_property
    def planned_rounds(self) -> RoundCounts:
        """All rounds if everyone takes part, and spare attempts: each the costliest there is."""
        everyone = isinstance(self.participation, Everyone)
        weights = {name: self.cohort(name).values() if everyone else () for name in self.channels}
        shares = {name: self.hidden_by(w) for name, w in weights.items()}
        counts = Counter(self.round_kind(at, shares) for at in range(self.rounds))
        if self.spare:
            most = {
                name: max(self.releases(name, at) for at in range(self.rounds))
                for name in self.channels
            }
            uses = (ChannelUse(name, many, shares[name]) for name, many in most.items() if many)
            counts[tuple(uses)] += self.spare
        return counts

    def released(self, counts: RoundCounts | None = None) -> TrainingReleases:
        """What the whole run releases, or what was released: the one tree that all costs are of.

        Args:
            counts: the attempts that were made, by kind; None is all that the plan makes.
        """
        rounds = self.planned_rounds if counts is None else counts
        return TrainingReleases(self.channels, rounds, self.amplified, self.pools)

    @cached_property
    def whole_event(self) -> Json:
        """The tree of the whole run against the strongest adversary, as the ledger counts it."""
        made = self.released()
        return made.event(strongest(made))

    def guarantee(self, counts: RoundCounts | None = None, rounds: int | None = None) -> Guarantee:
        """What the whole run is going to cost if everyone takes part, or what was released.

        Args:
            counts: the attempts that were made, by kind; None is all that the plan makes.
            rounds: how many rounds made them, for the sentence.
        """
        if counts is None:
            return self._planned_guarantee
        found = guarantee(
            self.released(counts),
            self.delta,
            self.noise.source,
            rounds=self.rounds if rounds is None else rounds,
            delta_reserved=self.delta_reserved,
            server=self.sum.adversary(self.colluders),
            colluders=self.colluders,
        )
        found = cohorts.with_open_words(self, found)
        # public weights round each term again, which exact arithmetic does not cover
        return replace(found, idealized=True) if self.uneven else found

    @cached_property
    def _planned_guarantee(self) -> Guarantee:
        """Computed once: every round is held to it, and PLD takes its time."""
        return self.guarantee(self.planned_rounds, self.rounds)

    @property
    def pools(self) -> bool:
        """Whether other clients' noise protects too: releases leave unmodified, none is reused."""
        return self.client.sends_unmodified and not self.client.reuses_own_releases

    @property
    def delta_reserved(self) -> float:
        """The part of delta that the sum's chance of failure takes: others drop out each time."""
        if self.update.trust is not Trust.DISTRIBUTED:
            return 0.0
        return self.attempts * self.sum.failure(len(self.nominal), self.colluders)

    @property
    def honest(self) -> int:
        """The least number of honest terms in whatever the sum shows."""
        return self.sum.honest(len(self.nominal), self.colluders)

    @property
    def amplified(self) -> Sampling:
        """The draw of clients, where it hides a unit; everyone, where it does not.

        It does where a client is the unit and the server adds the same noise, whoever takes part.
        A record's absence does not hide that the rest of its client is there, and under local
        trust the noise itself would show how many take part.
        """
        central = self.update.trust is Trust.CENTRAL and self.update.unit is Unit.CLIENT
        return self.participation if central else EVERYONE

    def hidden_by(self, weights: Iterable[float]) -> float:
        """How many shares of noise protect the most exposed client of a sum from the colluders."""
        return cohorts.shares_hiding(weights, self.colluders)

    # ------------------------------------------------------------------- what both agree on

    def sum_context(
        self, broadcast: Broadcast, client: int, signer: Signer | None = None
    ) -> SumContext:
        """What a client's messages in the sum are bound to, by its own knowledge.

        Args:
            broadcast: what the server published for the round.
            client: the client's index.
            signer: who the client is towards the others, where the sum asks for signatures.
        """
        return SumContext(
            client=client, clients=len(self.nominal), colluders=self.colluders,
            round=broadcast.round, attempt=broadcast.attempt, longest=cohorts.longest_replies(self),
            run=f"{broadcast.training}/{self.fingerprint()}", signer=signer,
        )  # fmt: skip

    def fingerprint(self) -> str:
        """A digest of what both sides must agree on. The noise's seed is not in it."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        return fingerprint(self)
