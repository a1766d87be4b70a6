# SPDX-License-Identifier: Apache-2.0
"""What is audited, and what an audit says: two small values.

Guarantee: a finding is flagged exactly where its lower bound of epsilon is above what is claimed; a
flaw that has no price has an infinite one. Each audit is wrong about sound code with probability
at most ``ERROR`` (one_run: 1 %, in theory).

| edge case                                         | what happens                               |
|---------------------------------------------------|--------------------------------------------|
| a recipe that promises nothing ('clear')          | refused: there is no claim to audit        |
| the recipe's epsilon is below the plan's own claim| the smaller one is held against the run    |
| an audit that does not apply                      | skipped, with the reason; never flagged    |
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from dpfed.core.errors import RecipeError
from dpfed.core.randomness import Noise
from dpfed.recipes.build import plan_for_clients
from dpfed.recipes.federation import Federation, federation
from dpfed.recipes.schema import Recipe
from dpfed.training.plan import Plan

ERROR = 1e-3
"""The chance that one audit flags code that is sound."""


class Verdict(StrEnum):
    """What an audit found."""

    PASSED = "nothing found"
    FLAGGED = "FLAGGED"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Finding:
    """One audit's answer."""

    audit: str
    claimed: float
    """The epsilon that is claimed, for what this audit looks at."""
    found: float
    """A lower bound of the true epsilon; NaN where the audit speaks of something else."""
    power: str
    """What it would have seen, in words."""
    verdict: Verdict
    detail: str
    sees: float = math.nan
    """Flags 19 times in 20 where at most this part of the noise is there; NaN: not about that."""


def judged(
    audit: str, claimed: float, found: float, power: str, detail: str, sees: float = math.nan
) -> Finding:
    """Flagged where the lower bound is above the claim, by more than prices are rounded."""
    flagged = found > claimed * (1 + 1e-6)
    verdict = Verdict.FLAGGED if flagged else Verdict.PASSED
    return Finding(
        audit=audit,
        claimed=claimed,
        found=found,
        power=power,
        verdict=verdict,
        detail=detail,
        sees=sees,
    )


def skipped(audit: str, claimed: float, why: str) -> Finding:
    """An audit that has nothing to say here."""
    return Finding(
        audit=audit,
        claimed=claimed,
        found=math.nan,
        power="none",
        verdict=Verdict.SKIPPED,
        detail=why,
    )


@dataclass(frozen=True, eq=False)
class Effort:
    """How hard to look."""

    samples: int = 1_000_000
    """Coordinates of noise, over all releases."""
    pairs: int = 200_000
    """Runs in each of the two worlds."""
    canaries: int = 2_000


QUICK = Effort(samples=200_000, pairs=10_000, canaries=650)


@dataclass(frozen=True, eq=False)
class Subject:
    """A run under audit: its plan, its clients, its claims."""

    recipe: Recipe
    plan: Plan
    federation: Federation
    seed: int = 0
    """Of the audit's own coins and directions."""
    effort: Effort = Effort()

    @property
    def claimed(self) -> float:
        """The epsilon held against it: the promise to the strongest adversary, or the recipe's."""
        asked = self.recipe.privacy.epsilon
        promised = self.plan.guarantee().claims[0].epsilon
        return promised if asked is None else min(asked, promised)

    @property
    def others(self) -> float:
        """The epsilon against whoever gets the model."""
        return min(self.claimed, self.plan.guarantee().claims[-1].epsilon)

    @property
    def delta(self) -> float:
        """What is left of delta after a secure sum's own chance of failure."""
        return self.plan.delta - self.plan.delta_reserved

    @property
    def dimension(self) -> int:
        """The number of the model's parameters."""
        return self.federation.model.layout.size


def subject(
    recipe: Recipe, root: Path | None = None, seed: int | None = None, effort: Effort | None = None
) -> Subject:
    """Load the data and calibrate the plan, as a run would; a seed makes the noise repeatable."""
    silos = federation(recipe, root)
    plan = plan_for_clients(recipe, silos.clients, silos.model)
    if math.isinf(plan.guarantee().epsilon):
        raise RecipeError("this recipe promises nothing, so there is nothing to audit; add noise")
    if seed is not None:
        plan = replace(plan, noise=Noise(seed))
    return Subject(
        recipe=recipe, plan=plan, federation=silos, seed=seed or 0, effort=effort or Effort()
    )
