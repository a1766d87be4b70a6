# SPDX-License-Identifier: Apache-2.0
"""Whether a plan can learn at all: the longest possible signal beside the length of the noise.

A round's sum is at most as many clips long as it has rows, and that only if all rows agree. Each of
its d coordinates has noise of its own, so the noise is about sqrt(d) standard deviations long. A
server may average rounds as it likes: T rounds of independent noise make it sqrt(T) times shorter,
correlated noise C^-1 z makes it |C (1, ..., 1)| times shorter. With r rows, and noise of s clips in
each coordinate of a round's sum,

    ratio = r sqrt(S) / (s sqrt(d)),        S = T, or |C (1, ..., 1)|^2

For n clients of independent noise under replace-one that is r mu / (2 sqrt(n d)) under local trust,
and sqrt(n) times as much under the others: it follows from the guarantee, and neither clip nor
rounds change it.

Real rows agree less, so a training sees less. But noise has no direction, and what a model has to
find has: some learn at a ratio of 1. Where they begin was measured (docs/choose.md).
All of it is public: declared sizes, the model's shape, the noise.

| edge case                                        | what happens                                  |
|--------------------------------------------------|-----------------------------------------------|
| no noise                                         | an infinite ratio: nothing is warned about    |
| it is not known if the model is one linear layer | the smallest threshold: no false alarm        |
| correlated noise without ``squared_sensitivity`` | infinite, too: no bound is known              |
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpfed.core.types import Trust, Unit

LEAST = 0.1
"""The ratio below which no model that was measured learned anything worth having."""
LEAST_LINEAR = 0.15
"""The same for models that are known to be one linear layer."""
LEAST_NETWORK = 3.0
"""The ratio below which networks of several layers lost a good part of what they can learn."""
MIN_PARAMETERS = 10
"""Fewer parameters than this are no way out."""
_PLURALS = {Unit.RECORD: "records", Unit.GROUP: "persons", Unit.CLIENT: "clients"}


@dataclass(frozen=True, kw_only=True)
class Signal:
    """How long the longest possible update is beside the noise in it, over all rounds.

    ``str`` is a sentence; ``warning`` is another one if the plan has little hope.
    ``Plan.signal_to_noise`` makes one of a plan, ``dpfed calibrate --parameters`` prints one.

    Args:
        parameters: how many numbers have noise: the length of an update.
        rows: how many units are expected in the sum of a round; at most so many clips long is it.
        noise_std: the standard deviation of the noise in each coordinate of that sum, in clips.
        averaged: how many rounds of independent noise a server can average, or what correlated
            noise makes of it; infinite if that is not known.
        clients: how many add to the sum.
        unit: what a row stands for.
        trust: who adds the noise.
        one_layer: whether the model is one linear layer; None if nobody has said.

    >>> silos = Signal(parameters=62_006, rows=10, noise_std=12.0, averaged=10, clients=10)
    >>> round(silos.ratio, 3), silos.hopeless
    (0.011, True)
    >>> print(silos)
    over all rounds the noise in 62,006 parameters is 945 clips long, and the longest possible \
signal, 10 clients that agree, 10 clips: a ratio of 0.0106
    """

    parameters: int
    rows: float
    noise_std: float
    averaged: float = 1.0
    clients: int = 1
    unit: Unit = Unit.CLIENT
    trust: Trust = Trust.LOCAL
    one_layer: bool | None = None

    @property
    def noise(self) -> float:
        """The length of the noise in the mean over all rounds' sums, in clips."""
        return self.noise_std * math.sqrt(self.parameters / self.averaged)

    @property
    def ratio(self) -> float:
        """The longest possible signal over the length of the noise; infinite without noise."""
        return self.rows / self.noise if self.noise else math.inf

    @property
    def hopeless(self) -> bool:
        """Whether no model of this kind that was measured has learned at this ratio."""
        return self.ratio < (LEAST_LINEAR if self.one_layer else LEAST)

    @property
    def doubtful(self) -> bool:
        """Whether it is a network of several layers, and too little for one from scratch."""
        return self.one_layer is False and self.ratio < LEAST_NETWORK

    def __str__(self) -> str:
        """Both lengths and their ratio, in words."""
        units = _PLURALS[self.unit]
        return (
            f"over all rounds the noise in {self.parameters:,} parameters is {_short(self.noise)} "
            f"clips long, and the longest possible signal, {_short(self.rows)} {units} that agree, "
            f"{_short(self.rows)} clips: a ratio of {self.ratio:.3g}"
        )

    @property
    def _least(self) -> float:
        """The ratio without a warning."""
        if self.one_layer is None:
            return LEAST
        return LEAST_LINEAR if self.one_layer else LEAST_NETWORK

    @property
    def warning(self) -> str | None:
        """One sentence if there is little hope: why, and the ways out; else None."""
        if self.hopeless:
            head = f"this plan will learn next to nothing (a ratio of {self._least:g} is the least)"
        elif self.doubtful:
            head = (
                f"this network may learn little, in few rounds from scratch next to nothing (a "
                f"ratio of {self._least:g} is the least)"
            )
        else:
            return None
        *most, last = self._ways_out()
        return f"{head}: {self}; use {', '.join(most)}{' or ' if most else ''}{last}"

    def _ways_out(self) -> list[str]:
        """What would help, without what does not."""
        fewer = math.floor(self.parameters * (self.ratio / self._least) ** 2)
        found = [f"at most {fewer:,} parameters"] if fewer >= MIN_PARAMETERS else []
        if not self.one_layer:
            found.append("a frozen part with a small head")
        if self.unit is not Unit.RECORD:
            found.append("unit 'record'")
        if self.trust is Trust.LOCAL and self.clients > 1:
            gain = math.sqrt(self.clients)
            found.append(f"the secure sum (up to {gain:.2g} times the ratio)")
        return [*found, f"more {_PLURALS[self.unit]}", "a larger epsilon"]


def _short(length: float) -> str:
    """A number of clips or units with three digits at least, and all before the point."""
    return f"{length:,.0f}" if length >= 100 else f"{length:.3g}"
