# SPDX-License-Identifier: Apache-2.0
"""Does one unit move a release further than was accounted for? Hostile rows under the same noise.

A row goes through the plan's PricedReleaser among other rows, and then another row in its place.
Both releases have the same noise, so their difference is what the unit moved, up to a grid step.
The epsilon of that movement under the stated noise is computed independently (recount.py). It is
too large if the clip is missing, if a step comes before the noise, or if a factor of replace-one
was forgotten.

Guarantee: the audit is deterministic; sound code is never flagged.

| edge case                                     | what happens                                   |
|-----------------------------------------------|------------------------------------------------|
| rows of norm 1e-6 to 1e30 clips               | all tried, alone and beside others             |
| a row with a NaN or an infinity               | must count for nothing: tried against zeros    |
| a release is refused                          | skipped for that row: nothing left the client  |
| units drawn at random                         | every unit is drawn: only the clip is tested   |
| replace-one: a row against its opposite       | 2 clip; otherwise a row against zeros, 1 clip  |
| a method that bounds its rows itself (fednew) | skipped: it would refuse the audit's rows      |
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from dpfed.audit.adversary_view import calls, see
from dpfed.audit.finding import Finding, Subject, judged, skipped
from dpfed.audit.recount import epsilon_with, movement
from dpfed.core.errors import BadRelease
from dpfed.core.randomness import Noise
from dpfed.core.rows import Dense
from dpfed.core.sampling import EVERYONE, Everyone
from dpfed.core.types import UPDATE, Adjacency
from dpfed.training.plan import Plan

if TYPE_CHECKING:
    pass

NAME = "clip"

NORMS = (1e-6, 1e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 1e3, 1e30)
"""The norms of hostile rows, in clips; a step before the noise may enlarge short ones."""

_MAX_COORDINATES = 64  # coordinates: rows need not be as long as the model to be clipped


def clip(target: Subject) -> Finding:
    """The epsilon of the largest movement by a hostile row, under the noise that is stated."""
    plan = _keyed(target)
    if plan.client.channels[UPDATE].replace_bound is not None:
        return skipped(NAME, target.claimed, "this method bounds its rows itself, by other means")
    size = plan.client.channels[UPDATE].size or min(_MAX_COORDINATES, target.dimension)
    moved, norm = max(
        (_movement_by_norm(plan, size, norm, base), norm) for norm in NORMS for base in (0, 8)
    )
    spoiled = max(_movement_by_value(plan, size, value) for value in (math.nan, math.inf))
    epsilon = epsilon_with(target, moves={UPDATE: max(moved, spoiled)})
    bound = movement(plan, UPDATE)
    detail = (
        f"hostile rows move a release by {moved / bound:.6f} of the bound {bound:g} "
        f"(at norm {norm:g} clips), a row of NaN or infinity by {spoiled / bound:.3g}"
    )
    power = f"sees a movement {200 * _slack(plan, size) / bound:.1g} % too far"
    return judged(NAME, target.claimed, epsilon, power, detail)


def _keyed(target: Subject) -> Plan:
    """The plan with noise that can be drawn twice, and without a draw of units."""
    plan = replace(target.plan, noise=Noise(target.seed))
    if isinstance(plan.update.sampling, Everyone):
        return plan
    channels = {name: m.with_sampling(EVERYONE) for name, m in plan.channels.items()}
    return replace(plan, channels=channels)


def _movement_by_norm(plan: Plan, size: int, norm: float, base: int) -> float:
    """How far a row whose norm is ``norm`` clips moves a release, from the worst neighbour."""
    row = _directions(plan, size, 1)[0] * (norm * plan.update.clip)
    other = -row if plan.update.adjacency is Adjacency.REPLACE_ONE else torch.zeros_like(row)
    return _apart(plan, size, row, other, base)


def _movement_by_value(plan: Plan, size: int, value: float) -> float:
    """How far a row with one such value (NaN, infinity) moves a release, from zeros."""
    row = _directions(plan, size, 1)[0]
    row[size // 2] = value
    return _apart(plan, size, row, torch.zeros_like(row), base=8)


def _apart(plan: Plan, size: int, row: torch.Tensor, other: torch.Tensor, base: int) -> float:
    """The distance of two releases under the same noise, minus what the grid may add to it."""
    beside, call = _directions(plan, size, base) * plan.update.clip, next(calls(plan, UPDATE, 1))
    try:
        first, second = (
            see(plan, Dense(torch.cat([beside, each[None]])), size, call) for each in (row, other)
        )
    except BadRelease:
        return 0.0
    return max(0.0, float(np.linalg.norm(first - second)) - _slack(plan, size))


def _slack(plan: Plan, size: int) -> float:
    """What rounding two releases to the grid may add: one step in each coordinate."""
    return plan.update.step * math.sqrt(size) + 1e-9 * plan.update.clip


def _directions(plan: Plan, size: int, count: int) -> torch.Tensor:
    """Rows of norm 1 in random directions that depend only on the noise's seed."""
    made = torch.from_numpy(plan.noise.stream("hostile", count).normal(count * size))
    return torch.nn.functional.normalize(made.view(count, size), dim=1)
