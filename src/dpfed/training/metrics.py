# SPDX-License-Identifier: Apache-2.0
"""The metrics channel: (correct, loss / bound) of every unit, a point of the unit square.

It is a channel like any other: clients release it with noise, and the plan accounts for it.
"""

from __future__ import annotations

import math

from dpfed.core.types import METRICS, Aggregate, Channel, Phase


def metrics_channel(rounds: int, every: int, share: float | None = None) -> Channel:
    """The channel of (correct, loss / bound) of every unit: a point of the unit square.

    Args:
        rounds: how many rounds the run has.
        every: it is used in every k-th round, and in the last.
        share: the part of the squared mu that it may use.
    """
    judged = ((at + 1) % every == 0 or at + 1 == rounds for at in range(rounds))
    phases = tuple(Phase(1, int(due)) for due in judged) if every > 1 else (Phase(None, 1),)
    return Channel(phases, size=2, clip=math.sqrt(2), share=share, census=True)


def measured(seen: Aggregate | None, loss_bound: float) -> dict[str, float]:
    """Accuracy and loss by the metrics channel, of the model that the round began with."""
    if seen is None or METRICS not in seen.public:
        return {}
    correct, loss = seen.public[METRICS].tolist()  # noise may leave the range
    return {"accuracy": min(1.0, max(0.0, correct)), "loss": max(0.0, loss * loss_bound)}
