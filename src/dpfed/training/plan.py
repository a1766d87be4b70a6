# SPDX-License-Identifier: Apache-2.0
"""A run before it begins: what is done, by whom, in which rounds, and what it costs.

Both sides build the same ``Plan`` by themselves and compare its fingerprint. It is a ``Draft``
(draft.py: what is done) that refuses, when it is built, whatever would make its guarantee untrue
(soundness.py); ``round.py`` then executes it.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from dpfed.accounting.event_tree import ChannelUse, RoundCounts, RoundKind, TrainingReleases
from dpfed.accounting.guarantee import Guarantee, guarantee, strongest
from dpfed.accounting.signal import Signal
from dpfed.core.dsse import Json
from dpfed.core.sampling import Everyone
from dpfed.core.sum_protocol import Signer, SumContext
from dpfed.core.types import Broadcast, place_of
from dpfed.core.vector import Layout
from dpfed.training.agreed import Agreed, agreed_of
from dpfed.training.draft import Draft
from dpfed.training.signal import signal_of
from dpfed.training.soundness import refuse_unsound


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan(Draft):
    """All that a run does and what it costs, in one value. Refuses what would be unsound.

    ``dpfed.flower.make_plan`` makes one from a recipe's fields and calibrates its noise.

    >>> from dpfed.flower import make_plan
    >>> plan = make_plan(clients=4, rounds=3, privacy={"epsilon": 2.0, "unit": "client"})
    >>> plan.rounds, plan.update.clip, round(plan.guarantee().epsilon, 3)
    (3, 1.0, 2.0)
    >>> plan.fingerprint() == make_plan(
    ...     clients=4, rounds=3, privacy={"epsilon": 2.0, "unit": "client"}
    ... ).fingerprint()
    True
    """

    def __post_init__(self) -> None:
        refuse_unsound(self)

    @cached_property
    def _identity(self) -> bytes:
        """What tells this very object from all others, in any process."""
        return secrets.token_bytes(16)

    def __reduce__(self) -> tuple[Any, ...]:
        """In a process that has it already, an unpickled plan is that one, with what it knows.

        Flower's simulation pickles an app for each message: the plan's cost would be computed, and
        its model rehearsed, for each of them.
        """
        identity = self._identity
        return _unpickled, (identity, type(self), dict(self.__dict__))

    # ------------------------------------------------------------------------- what it costs

    def round_kind(self, round: int, shares: Mapping[str, float] | None = None) -> RoundKind:
        """What one attempt at a round releases.

        Args:
            round: the round, from 0.
            shares: how many clients' noise an outsider cannot subtract from the total, by channel
                (``noise_shares``); 1 for channels not in it.
        """
        known = shares or {}
        return tuple(
            ChannelUse(name, releases, known.get(name, 1.0))
            for name in self.channels
            if (releases := self.releases(name, round))
        )

    def counts_after(
        self,
        counts: RoundCounts,
        round: int,
        weights: Mapping[str, Iterable[float]] | None = None,
    ) -> RoundCounts:
        """The attempts so far and one more.

        Args:
            counts: the attempts before it, by kind.
            round: the round that it is an attempt at, from 0.
            weights: the public weights of the clients in its totals, by channel; a channel that is
                left out is hidden from outsiders by one share of noise.
        """
        shares = {name: self.noise_shares(each) for name, each in (weights or {}).items()}
        kind = self.round_kind(round, shares)
        return {**counts, kind: counts.get(kind, 0) + 1}

    @cached_property
    def planned_rounds(self) -> RoundCounts:
        """All rounds if everyone takes part, and spare attempts: each the costliest there is."""
        everyone = isinstance(self.client_sampling, Everyone)
        weights = {name: self.cohort(name).values() if everyone else () for name in self.channels}
        shares = {name: self.noise_shares(w) for name, w in weights.items()}
        counts = Counter[RoundKind]()
        for first, many in self.round_kinds.values():
            counts[self.round_kind(first, shares)] += many
        if self.spare:
            most = {
                name: max(self.releases(name, at) for at, _ in self.round_kinds.values())
                for name in self.channels
            }
            uses = (ChannelUse(name, many, shares[name]) for name, many in most.items() if many)
            counts[tuple(uses)] += self.spare
        return counts

    def released(self, counts: RoundCounts | None = None) -> TrainingReleases:
        """The event tree from which all costs are computed: the whole run's, or of given attempts.

        Args:
            counts: the attempts that were made, by kind; None means all that the plan makes.
        """
        rounds = self.planned_rounds if counts is None else counts
        return TrainingReleases(self.channels, rounds, self.amplification, self.pools_noise)

    @cached_property
    def whole_event(self) -> Json:
        """The tree of the whole run against the strongest adversary, as the ledger counts it."""
        made = self.released()
        return made.event(strongest(made))

    def guarantee(self, counts: RoundCounts | None = None, rounds: int | None = None) -> Guarantee:
        """What the whole run guarantees if everyone takes part, or what was released so far.

        Args:
            counts: the attempts that were made, by kind; None means all that the plan makes.
            rounds: number of rounds, used in the guarantee's text.
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
        if self.open:
            said = (
                f"up to {len(self.nominal)} of an open population are asked in a round, whoever is "
                f"there (which amplifies nothing, and is taken not to depend on anyone's data)"
            )
            found = replace(found, draws=f"{found.draws}; {said}")
        found = replace(found, blocks=self.blocks)
        # public weights round each term again, which exact arithmetic does not cover
        return replace(found, idealized=True) if self.uneven else found

    @cached_property
    def _planned_guarantee(self) -> Guarantee:
        """Computed once: every round is held to it, and PLD takes its time."""
        return self.guarantee(self.planned_rounds, self.rounds)

    def _repr_html_(self) -> str:
        """As a notebook shows it: who does what how often, with the planned guarantee below."""
        from dpfed.core.html import html_table  # a gate has no notebook

        update = self.update
        rows = [
            ("rounds", f"{self.rounds}" + (f", and {self.spare} spare" if self.spare else "")),
            ("slots in a round" if self.open else "clients", len(self.nominal)),
            ("client", str(self.client.made_by or place_of(self.client.work))),
            ("protected", f"each {update.unit}, {update.adjacency}"),
            ("trust", update.trust),
            ("clip", f"{update.clip:g}"),
            ("noise of one share", f"{update.std:.4g} ({type(update).__name__})"),
            ("sum", type(self.sum).__name__),
        ]
        return html_table("Plan", (), rows, self.guarantee().sentence)

    # ------------------------------------------------------------------- what can be learned

    def signal_to_noise(self, model: Layout | int) -> Signal:
        """How long the longest possible update is beside the noise in it, over all rounds.

        It is an upper bound on what training sees, from public numbers alone: below a ratio of 0.15
        no model that was measured has learned anything worth having.

        Args:
            model: the layout of its parameters, or only how many there are.

        Returns:
            a value whose ``str`` is a sentence; its ``warning`` has ways out, or is None.

        >>> from dpfed.flower import make_plan
        >>> privacy = {"epsilon": 8.0, "unit": "client"}
        >>> plan = make_plan(clients=10, rounds=10, method="dp-fedavg", privacy=privacy)
        >>> found = plan.signal_to_noise(62_006)  # ten silos, a small convolutional network
        >>> round(found.ratio, 3), found.hopeless
        (0.011, True)
        """
        return signal_of(self, model)

    # ------------------------------------------------------------------- what both agree on

    def sum_context(
        self, broadcast: Broadcast, client: int, signer: Signer | None = None
    ) -> SumContext:
        """What a client's messages in the sum are bound to, by its own knowledge.

        Args:
            broadcast: what the server published for the round.
            client: the client's index.
            signer: who the client is towards the others, if the sum asks for signatures.
        """
        return SumContext(
            client=client,
            clients=len(self.nominal),
            colluders=self.colluders,
            round=broadcast.round,
            attempt=broadcast.attempt,
            # a longer reply harms nobody's privacy, but a device of an open population that sent it
            # would own the mean
            longest={name: m.clip / m.step for name, m in self.channels.items() if self.open},
            run=f"{broadcast.training}/{self.fingerprint()}",
            signer=signer,
        )

    def fingerprint(self) -> str:
        """A digest of what both sides must agree on. The noise's seed is not in it."""
        return self.agreed.fingerprint

    @cached_property
    def agreed(self) -> Agreed:
        """What both sides must agree on, as data."""
        return agreed_of(self)


_MAX_KEPT = 8  # plans of one process that were unpickled; a simulation has one
_unpickled_plans: dict[bytes, Plan] = {}


def _unpickled(identity: bytes, kind: type[Plan], fields: dict[str, Any]) -> Plan:
    """The plan of this identity: the one that this process has, or else a new one."""
    found = _unpickled_plans.get(identity)
    if found is None:
        found = kind.__new__(kind)  # it was checked when it was made
        found.__dict__.update(fields)
        while len(_unpickled_plans) >= _MAX_KEPT:
            _unpickled_plans.pop(next(iter(_unpickled_plans)))
        _unpickled_plans[identity] = found
    return found
