# SPDX-License-Identifier: Apache-2.0
"""Which units take part in a release: a draw and its cost are defined in one place.

Guarantee: ``amplify`` accounts for exactly the draw that ``draw`` makes, and for no other.

    Everyone   every unit                                     the event itself
    Poisson    each unit on its own, with probability rate    PoissonSampledDpEvent

| edge case                               | what happens                                      |
|-----------------------------------------|---------------------------------------------------|
| nobody is drawn                         | the sum is empty, and the release is pure noise   |
| how many are drawn                      | shows nowhere: as many rows are computed whoever  |
|                                         | is drawn; see ``most_drawn``                      |
| a batch divided by its realised size    | cannot be: the divisor is rate x the public size  |
| a batch of a fixed size                 | cannot be: it is not a Poisson draw               |
| Poisson under replace-one               | priced by way of a zeroed unit: triangle.py       |
| the draw is known to the adversary      | not amplified: the plan decides who cannot see it |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from dpfed.core.checks import refuse
from dpfed.core.errors import BadRelease
from dpfed.core.types import Rows, Sampling, Stream

if TYPE_CHECKING:
    import torch
    from dp_accounting import DpEvent


@dataclass(frozen=True)
class Everyone:
    """Every unit takes part in every release: nothing is amplified."""

    rate: float = 1.0

    def __post_init__(self) -> None:
        if self.rate != 1.0:
            raise refuse("Everyone.rate", "1", self.rate, f"use Poisson({self.rate})")

    def draw(self, units: int, rng: Stream) -> torch.Tensor | None:
        """None: everyone takes part, without a draw."""
        del units, rng
        return None

    def amplify(self, event: DpEvent) -> DpEvent:
        """The event, unchanged: nobody is left out."""
        return event


EVERYONE = Everyone()


LEAST_RATE = 1e-6
"""The least rate of a draw: from 53 bits, a rate is met to 2^-53 (1.1e-16), above it if at all."""


@dataclass(frozen=True)
class Poisson:
    """Each unit takes part with probability ``rate``, independently of all others."""

    rate: float

    def __post_init__(self) -> None:
        if not LEAST_RATE <= self.rate <= 1:
            raise refuse(
                "a sampling rate (record_rate, client_rate)",
                f"from {LEAST_RATE:g} to 1",
                self.rate,
                "1 draws every unit",
            )

    def draw(self, units: int, rng: Stream) -> torch.Tensor:
        """One Bernoulli draw per unit, from 53 bits each: exact to a part in 10^9."""
        import torch

        uniform = (rng.words(units) >> 11) * 2.0**-53
        return torch.from_numpy(uniform < self.rate)

    def amplify(self, event: DpEvent) -> DpEvent:
        """The event on a Poisson sample."""
        from dp_accounting import PoissonSampledDpEvent

        return event if self.rate == 1 else PoissonSampledDpEvent(self.rate, event)


CHANCE_OF_MORE = 2.0**-128
"""How likely more units are drawn than ``most_drawn`` says, in one release."""


@lru_cache(maxsize=64)
def most_drawn(units: int, rate: float) -> int:
    """How many units a release computes, whoever is drawn: more are drawn with a tiny chance.

    Whoever sees how many were drawn faces a draw of a fixed size, which costs far more than a
    Poisson draw (zero-out: delta 7.7e-3 in the place of 2.1e-4). By Chernoff's bound k or more of
    n units are drawn with a chance of at most exp(-n KL(k / n, rate)); the plan takes what that
    may cost out of delta (training/draft.py).

    Args:
        units: how many there are.
        rate: the chance of each.

    >>> most_drawn(60_000, 0.1), most_drawn(10, 0.1)
    (6996, 10)
    """

    def unlikely(k: int) -> bool:
        part = k / units
        gone = (1 - part) * math.log((1 - part) / (1 - rate)) if part < 1 else 0.0
        return units * (part * math.log(part / rate) + gone) >= -math.log(CHANCE_OF_MORE)

    if rate == 1 or not units:
        return units
    few, many = math.ceil(units * rate), units
    while few < many:
        middle = (few + many) // 2
        few, many = (few, middle) if unlikely(middle + 1) else (middle + 1, many)
    return few


def drawn(rows: Rows, sampling: Sampling, rng: Stream) -> Rows:
    """The rows that take part in one release: drawn here, so that no algorithm can forget to.

    Args:
        rows: the rows of all units of the client. Sensitive.
        sampling: how units are drawn.
        rng: the random bits of this release; nothing is read if everyone takes part.
    """
    from dpfed.core.rows import Selectable

    if isinstance(sampling, Everyone):
        return rows
    if not isinstance(rows, Selectable):
        raise BadRelease(
            f"{type(rows).__name__} rows cannot be drawn from; set privacy.record_rate = 1"
        )
    kept = sampling.draw(rows.units, rng)
    return rows if kept is None else rows.select(kept, most_drawn(rows.units, sampling.rate))
