# SPDX-License-Identifier: Apache-2.0
"""A training as one tree of events: kinds of rounds, what each releases, and who is drawn for it.

    training
      SelfComposed(n, round)                 n attempts of one kind
        PoissonSampled(rate, Gaussian)       clients are drawn: once, for all channels of the round
        Composed(release, release, ...)      they are not: one release after the other
          PoissonSampled(rate, Gaussian)     records are drawn: again for each release
      Gaussian                               a channel over all rounds: its noise is correlated, or
                                             a unit takes part in a limited number of rounds

Under replace-one a tree with a draw stands whole below a mark, ``ThroughZero``: its figure is that
of a unit that is zeroed, and then replaced (triangle.py). All leaves below the mark, undrawn ones
too, have zero-out's multiplier, std / clip. A reader that does not know the mark refuses the tree:
the figure without it would be half.

Guarantee, calibration, ledger and guarantee.json all read this tree; the audit does not
(audit/recount.py). A draw of clients stands above the channels of its round, since one draw serves
all of them: who is drawn moves all of its releases. Gaussian releases of one round are together one
Gaussian release with the multiplier

    z = 1 / sqrt(sum over releases of 1 / z_c^2),

and that is what the draw amplifies. Amplifying each channel separately understates epsilon, since
one draw of clients is not two independent ones (8.00 was printed where 17.77 was true).

The tree is JSON (events.py), so that making it loads no accountant. Besides what dp_accounting
needs, nodes say which channel they are; readers may ignore that.

| edge case                                        | what happens                                  |
|--------------------------------------------------|-----------------------------------------------|
| no releases                                      | an empty composition, which costs nothing     |
| a release in clear                               | NonPrivate                                    |
| clients are drawn, and noise is correlated       | Unpriceable: no accountant bounds that        |
| clients are drawn, and records in them as well   | Unpriceable: a unit has one draw              |
| clients are drawn, and a channel is not Gaussian | accounted for if it is the only release       |
| a mechanism of another package, not Gaussian     | its own event for all of its releases         |
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from dpfed.accounting import events, gdp
from dpfed.core.dsse import Json, canonical_json
from dpfed.core.errors import Unpriceable
from dpfed.core.sampling import EVERYONE, Everyone
from dpfed.core.types import Adjacency, Mechanism, Sampling


@runtime_checkable
class GaussianRelease(Protocol):
    """A mechanism whose releases are plain Gaussian: the closed form holds."""

    def noise_multiplier(self, shares: float | None = None) -> float:
        """The noise's standard deviation over the bound of a row."""

    def squared_sensitivity(self, releases: int) -> float:
        """The squared sensitivity of the first releases together, over that of one release."""


class ChannelUse(NamedTuple):
    """What one attempt at a round releases on one channel."""

    channel: str
    releases: int
    shares: float = 1.0
    """Shares of noise in the sum that an outsider cannot subtract."""


RoundKind: TypeAlias = tuple[ChannelUse, ...]
"""Everything that one attempt at a round releases; equal for attempts that release the same."""

RoundCounts: TypeAlias = Mapping[RoundKind, int]
"""Kind of round -> number of attempts of that kind."""

Facing: TypeAlias = Callable[[ChannelUse], float]
"""How many shares of noise an adversary cannot subtract from the releases of a channel."""


@dataclass(frozen=True, eq=False)
class TrainingReleases:
    """What a training releases, or has released.

    >>> from dpfed.mechanisms.gaussian import gaussian
    >>> kind = (ChannelUse("update", releases=1),)
    >>> made = TrainingReleases({"update": gaussian(std=20.0)}, {kind: 100})
    >>> round(gaussian_mu_squared(made.event(lambda use: 1.0), Adjacency.REPLACE_ONE), 3)
    1.0
    """

    channels: Mapping[str, Mechanism]
    rounds: RoundCounts
    draw: Sampling = EVERYONE
    """The draw of clients that hides a unit from the adversary; everyone if none does."""
    pooled: bool = True
    """Whether the noise of other clients hides a unit, too: releases are sent unmodified."""

    def event(self, facing: Facing) -> Json:
        """The event tree against an adversary who cannot subtract the shares that ``facing`` gives.

        Args:
            facing: the number of shares for each use of a channel.
        """
        if not any(is_drawn_replacement(m, self.draw) for m in self.channels.values()):
            return self._tree(facing)
        by_zeroing = {name: in_zero_out(m) for name, m in self.channels.items()}
        return events.through_zero(replace(self, channels=by_zeroing)._tree(facing))

    def _tree(self, facing: Facing) -> Json:
        found: dict[bytes, tuple[Json, int]] = {}
        sequences: dict[tuple[str, float], int] = {}
        for kind, attempts in self.rounds.items():
            fresh: list[tuple[ChannelUse, float]] = []
            for use in kind:
                shares = facing(use)
                if _is_accounted_by_round(self.channels[use.channel]):
                    fresh += [(use, shares)] if use.releases else []
                else:
                    key = (use.channel, shares)
                    sequences[key] = sequences.get(key, 0) + use.releases * attempts
            if fresh:
                event = self._round(fresh)
                text = canonical_json(event)
                found[text] = (event, found.get(text, (event, 0))[1] + attempts)
        rounds = [
            events.times(event, count) for _, (event, count) in sorted(found.items()) if count
        ]
        together = [
            self._sequence(channel, shares, releases)
            for (channel, shares), releases in sorted(sequences.items())
            if releases
        ]
        return events.composed([*rounds, *together])

    def _round(self, uses: list[tuple[ChannelUse, float]]) -> Json:
        """One attempt at a round."""
        if not isinstance(self.draw, Everyone):
            return self._drawn_round(uses)
        return events.composed([self._releases(use, shares) for use, shares in uses])

    def _releases(self, use: ChannelUse, shares: float) -> Json:
        mechanism = self.channels[use.channel]
        one = _gaussian(_multiplier(mechanism, shares), channel=use.channel)
        return events.times(_amplified(mechanism.sampling, one), use.releases)

    def _drawn_round(self, uses: list[tuple[ChannelUse, float]]) -> Json:
        """All releases of a round under the one draw of clients that they share."""
        for use, _ in uses:
            if not isinstance(self.channels[use.channel].sampling, Everyone):
                raise Unpriceable(
                    f"channel {use.channel!r} draws units inside a round for which clients are "
                    f"drawn, and a unit has one draw; set privacy.record_rate = 1"
                )
        multipliers = {use.channel: _multiplier(self.channels[use.channel], h) for use, h in uses}
        if not all(multipliers.values()):
            return {"kind": "NonPrivate"}
        # scaled by the least of them, or squares of small or large multipliers leave the floats
        least = min(multipliers.values())
        squares = [use.releases * (least / multipliers[use.channel]) ** 2 for use, _ in uses]
        joint = _gaussian(least / math.sqrt(math.fsum(squares)), combines=multipliers)
        return _amplified(self.draw, joint)

    def _sequence(self, channel: str, shares: float, releases: int) -> Json:
        """All releases of a channel together."""
        mechanism = self.channels[channel]
        if not isinstance(self.draw, Everyone) and mechanism.std:
            return self._drawn_sequence(channel, shares, releases)
        everyone = isinstance(mechanism.sampling, Everyone)
        if not (isinstance(mechanism, GaussianRelease) and everyone):
            return events.to_json(mechanism.event(releases, shares))
        squared = mechanism.squared_sensitivity(releases)
        if squared in {0, math.inf}:
            return {"kind": "NonPrivate" if squared else "NoOp"}
        one = mechanism.noise_multiplier(shares)
        return _gaussian(one / math.sqrt(squared), channel=channel, releases=releases)

    def _drawn_sequence(self, channel: str, shares: float, releases: int) -> Json:
        mechanism = self.channels[channel]
        if not mechanism.independent or len(self.channels) > 1 or self._several_in_a_round(channel):
            raise Unpriceable(
                f"{type(mechanism).__name__} has releases that are not independent and Gaussian, "
                f"which no accountant here bounds where one draw of clients serves several of "
                f"them; use mechanism 'gaussian', or ask all clients"
            )
        one = events.to_json(mechanism.event(1, shares))
        return events.times(_amplified(self.draw, events.once(one)), releases)

    def _several_in_a_round(self, channel: str) -> bool:
        return any(u.channel == channel and u.releases > 1 for kind in self.rounds for u in kind)


def is_drawn_replacement(mechanism: Mechanism, draw: Sampling = EVERYONE) -> bool:
    """Whether a priced draw is to hide which of two units is in the data: triangle.py prices it.

    Args:
        mechanism: of one channel.
        draw: the draw of clients; it counts if it amplifies.
    """
    drawn = mechanism.sampling.rate != 1 or draw.rate != 1
    return drawn and mechanism.adjacency is Adjacency.REPLACE_ONE and mechanism.std > 0


def in_zero_out(mechanism: Mechanism) -> Mechanism:
    """The mechanism as zero-out prices it: a unit that is zeroed moves a sum by the clip."""
    return mechanism.with_facts(adjacency=Adjacency.ZERO_OUT)


def mechanism_event(mechanism: Mechanism, releases: int, shares: float | None = None) -> Json:
    """The cost of a mechanism's first releases.

    Args:
        mechanism: of one channel.
        releases: how many, at least 0.
        shares: how many shares of noise hide a unit; None means the mechanism's own number.
    """
    if not is_drawn_replacement(mechanism):
        return events.to_json(mechanism.event(releases, shares))
    return events.through_zero(events.to_json(in_zero_out(mechanism).event(releases, shares)))


def _is_accounted_by_round(mechanism: Mechanism) -> bool:
    """Whether the cost of each round stands alone: fresh Gaussian noise, whoever takes part."""
    fresh = mechanism.independent and isinstance(mechanism, GaussianRelease)
    return fresh and mechanism.participation is None and mechanism.std > 0


def _amplified(draw: Sampling, one: Json) -> Json:
    """The event, amplified by a draw of units."""
    if isinstance(draw, Everyone):
        return one
    made = events.to_json(draw.amplify(events.from_json(one)))
    return {**made, "event": one} if "event" in made else made  # with its notes


def _multiplier(mechanism: Mechanism, shares: float) -> float:
    assert isinstance(mechanism, GaussianRelease)  # noqa: S101 (tells mypy what was seen)
    return mechanism.noise_multiplier(shares)


def _gaussian(noise_multiplier: float, **notes: object) -> Json:
    if noise_multiplier == 0:
        return {"kind": "NonPrivate"}
    if not math.isfinite(noise_multiplier):
        raise Unpriceable(
            f"noise must be a finite number of clips, got {noise_multiplier}; use less of it, or a "
            f"larger clip"
        )
    return {"kind": "Gaussian", "noise_multiplier": noise_multiplier, **notes}


def gaussian_leaves(event: Json) -> Counter[tuple[float, float]] | None:
    """(Noise multiplier, sampling rate) -> how often; None if any release is not of this kind.

    A release in clear has the multiplier 0.

    Args:
        event: a tree without a mark.
    """
    leaves: Counter[tuple[float, float]] = Counter()

    def walk(node: Json, count: int) -> bool:
        match node:
            case {"kind": "Gaussian", "noise_multiplier": z}:
                leaves[z, 1.0] += count
            case {"kind": "PoissonSampled", "rate": rate, "event": {"kind": "Gaussian"} as one}:
                leaves[one["noise_multiplier"], rate] += count
            case {"kind": "SelfComposed", "count": more, "event": one}:
                return walk(one, count * more)
            case {"kind": "Composed", "events": parts}:
                return all(walk(part, count) for part in parts)
            case {"kind": "NonPrivate"}:
                leaves[0.0, 1.0] += count
            case {"kind": "NoOp"}:
                pass
            case _:
                return False
        return True

    return leaves if walk(events.checked(event), 1) else None


def gaussian_mu_squared(event: Json, adjacency: Adjacency) -> float | None:
    """The squared mu of a tree of Gaussian releases; None if it has anything else.

    Args:
        event: the tree.
        adjacency: what neighbouring data sets are; it sets the sensitivity.
    """
    leaves = gaussian_leaves(event)
    if leaves is None or any(rate != 1 for _, rate in leaves):
        return None
    return math.fsum(gdp.mu_squared(z, count, adjacency) for (z, _), count in leaves.items())
