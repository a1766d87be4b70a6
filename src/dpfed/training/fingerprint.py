# SPDX-License-Identifier: Apache-2.0
"""The fingerprint of a plan: what server and clients compare before they work together.

It covers clip, noise and its source, unit, adjacency, trust, channels, the client algorithm with
its options, metrics, sum, weights, sizes, rounds, spare attempts, delta, who is asked,
whether the population is open, the data's contract and blocks, and the wire format; not the model,
the optimizer or the noise's seed, which cost nothing.

| edge case                            | what happens                                            |
|--------------------------------------|---------------------------------------------------------|
| an algorithm that was made by hand   | it is known by its code's name: its options are not seen |
| a mechanism that is not installed    | its code counts, too: its representation may not tell it |
| a checkpoint of version 0.1          | resumes, by its ``legacy_fingerprint``                  |
| an option that 0.2 did not have      | counts only where it differs from what 0.2 did          |
"""

from __future__ import annotations

import hashlib

from dpfed.core.metric import Metric
from dpfed.core.registry import own_code_of
from dpfed.core.types import ClientAlgorithm, place_of
from dpfed.training.draft import Draft

WIRE_FORMAT = 2
"""Raise it if a message between server and clients changes: both sides must have the same."""

NEW_OPTIONS = (", moments='root'",)
"""What version 0.2 did not have in an algorithm's name: options, at values that do what it did."""


def fingerprint(plan: Draft) -> str:
    """A digest of what both sides must agree on."""
    facts = (
        WIRE_FORMAT,
        legacy_fingerprint(plan),
        plan.noise.source.value,
        _name_of(plan.client),
        plan.client.reuses_own_releases,
        plan.spare,
        *map(_metric, plan.metrics),
        *(("open",) if plan.open else ()),
        *((("contract", plan.contract),) if plan.contract else ()),
        *((("blocks", plan.blocks),) if plan.blocks else ()),
        *sorted({own_code_of("mechanisms", m) for m in plan.channels.values()} - {""}),
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _name_of(client: ClientAlgorithm) -> str:
    """How the registry built it; of one that was made by hand, where its code is."""
    name = client.made_by or place_of(client.work)
    for option in NEW_OPTIONS:
        name = name.replace(option, "")
    return name


def _metric(metric: Metric) -> tuple[object, ...]:
    """A metric's name with all of its options, and the bounds that the accounting uses."""
    known_by = metric.made_by or place_of(metric.row)
    return known_by, metric.size, metric.bound, metric.replace_bound


def legacy_fingerprint(plan: Draft) -> str:
    """The digest of version 0.1, which its checkpoints have."""
    channels = sorted((name, _stable(repr(m))) for name, m in plan.channels.items())
    declared = ", ".join(
        f"({name!r}, {_stable(repr(channel))})"
        for name, channel in sorted(plan.client.channels.items())
    )
    rest = (
        plan.client.sends_unmodified,
        repr(plan.sum),
        plan.weights.value,
        [float(size) for size in plan.nominal],
        plan.rounds,
        plan.delta,
        plan.colluders,
        plan.metrics_every,
        plan.loss_bound,
        plan.client_sampling,
    )
    facts = f"({channels!r}, [{declared}], {repr(rest)[1:]}"
    return hashlib.sha256(facts.encode()).hexdigest()


def _stable(text: str) -> str:
    """A repr with the names of version 0.1, without what it did not have and is left out."""
    text = text.replace("replace_bound=", "swap=").replace(", participation=None", "")
    text = text.replace("budget_fraction=", "share=")
    return text.replace(", census=False)", ")")
