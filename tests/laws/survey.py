# SPDX-License-Identifier: Apache-2.0
"""A search for neighbours in many cases, added up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dpfed.core.types import Adjacency, Unit
from dpfed.training.plan import Plan
from tests.laws.neighbours import Effort, Search
from tests.laws.sensitivity import MODELS, Case

Key = tuple[str, Unit, Adjacency, str, str]
"""Algorithm, unit, adjacency, channel, model."""


@dataclass(eq=False)
class Survey:
    """What a search over many cases found."""

    largest: dict[Key, float] = field(default_factory=dict)
    joint: float = 0.0
    tried: int = 0
    refused: int = 0
    """Combinations that the plan refuses."""
    faults: list[str] = field(default_factory=list)

    def add(self, case: Case, found: Search) -> None:
        for channel, (ratio, _) in found.best.items():
            key = (case.algorithm, case.unit, case.adjacency, channel, case.model)
            self.largest[key] = max(ratio, self.largest.get(key, 0.0))
        self.joint, self.tried = max(self.joint, found.joint), self.tried + found.tried
        self.faults += [f"{case}: {fault}" for fault in found.faults]

    def somewhere(self) -> dict[tuple[Unit, Adjacency, str], float]:
        """The largest ratio by unit, adjacency and channel, over all models."""
        best: dict[tuple[Unit, Adjacency, str], float] = {}
        for (_, unit, adjacency, channel, _), ratio in self.largest.items():
            best[unit, adjacency, channel] = max(ratio, best.get((unit, adjacency, channel), 0.0))
        return best


def survey(
    found: Survey, chosen: Iterable[tuple[Case, Plan | None]], effort: Effort, seed: int = 0
) -> Survey:
    """Search in all cases; those that are refused are counted."""
    for at, (case, plan) in enumerate(chosen):
        if plan is None:
            found.refused += 1
        else:
            found.add(case, Search(plan, MODELS[case.model], seed + at).search(effort))
    return found
