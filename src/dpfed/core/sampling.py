# SPDX-License-Identifier: Apache-2.0
"""Which units take part in a release: a draw and its cost are defined in one place.

Guarantee: ``amplify`` accounts for exactly the draw that ``draw`` makes, and for no other.

    Everyone   every unit                                     the event itself
    Poisson    each unit on its own, with probability rate    PoissonSampledDpEvent

| edge case                               | what happens                                      |
|-----------------------------------------|---------------------------------------------------|
| nobody is drawn                         | the sum is empty, and the release is pure noise   |
| a batch divided by its realised size    | cannot be: the divisor is rate x the public size  |
| a batch of a fixed size                 | cannot be: it is not a Poisson draw               |
| Poisson under replace-one               | Unpriceable: see accounting/guarantee.py          |
| the draw is known to the adversary      | not amplified: the plan decides who cannot see it |
"""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True)
class Poisson:
    """Each unit takes part with probability ``rate``, independently of all others."""

    rate: float

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise refuse(
                "a sampling rate (record_rate, client_rate)",
                "above 0 and at most 1",
                self.rate,
                "1 draws every unit",
            )

    def draw(self, units: int, rng: Stream) -> torch.Tensor:
        """One Bernoulli draw per unit, from 53 bits each: exact to a part in 10^16."""
        import torch

        uniform = (rng.words(units) >> 11) * 2.0**-53
        return torch.from_numpy(uniform < self.rate)

    def amplify(self, event: DpEvent) -> DpEvent:
        """The event on a Poisson sample."""
        from dp_accounting import PoissonSampledDpEvent

        return event if self.rate == 1 else PoissonSampledDpEvent(self.rate, event)


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
    return rows if kept is None else rows.select(kept)
