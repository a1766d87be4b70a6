# SPDX-License-Identifier: Apache-2.0
"""The fingerprint of a plan: what server and clients compare before they work together.

It covers clip, noise, unit, adjacency, trust, channels, sum, weights, sizes, rounds, delta and who
is asked; not the model, the optimizer or the noise's seed, which cost nothing.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpfed.training.plan import Plan


def fingerprint(plan: Plan) -> str:
    """A digest of what both sides must agree on."""
    channels = sorted((name, _stable(repr(m))) for name, m in plan.channels.items())
    declared = ", ".join(
        f"({name!r}, {_stable(repr(channel))})"
        for name, channel in sorted(plan.client.channels.items())
    )
    rest = (plan.client.sends_unmodified, repr(plan.sum), plan.weights.value,
            [float(size) for size in plan.nominal], plan.rounds, plan.delta, plan.colluders,
            plan.metrics_every, plan.loss_bound, plan.participation)  # fmt: skip
    facts = f"({channels!r}, [{declared}], {repr(rest)[1:]}"
    return hashlib.sha256(facts.encode()).hexdigest()


def _stable(text: str) -> str:
    """A repr with the names of version 0.1: checkpoints and clients of then still agree."""
    return text.replace("replace_bound=", "swap=").replace(", census=False)", ")")
