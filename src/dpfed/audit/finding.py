# SPDX-License-Identifier: Apache-2.0
"""What is audited, and what an audit says: two small values.

Guarantee: a finding is flagged exactly where its lower bound of epsilon is above what is claimed; a
flaw whose cost has no bound counts as an infinite epsilon. Each audit is wrong about sound code
with probability at most ``ERROR_PROBABILITY`` (one_run: 1 %, in theory).

| edge case                                         | what happens                               |
|---------------------------------------------------|--------------------------------------------|
| a recipe that guarantees nothing ('clear')        | refused: there is no claim to audit        |
| the recipe's epsilon is below the plan's own claim| the smaller one is audited                 |
| an audit that does not apply                      | skipped, with the reason; never flagged    |
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from dpfed.core.errors import RecipeError
from dpfed.core.randomness import Noise
from dpfed.recipes.build import plan_for_clients, trained_model
from dpfed.recipes.federation import Federation, federation, with_model
from dpfed.recipes.schema import Recipe
from dpfed.training.plan import Plan

ERROR_PROBABILITY = 1e-3
"""The probability that one audit flags sound code."""


class Verdict(StrEnum):
    """What an audit found."""

    PASSED = "nothing found"
    FLAGGED = "FLAGGED"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Finding:
    """What one audit found, and what was claimed."""

    audit: str
    claimed: float
    """The epsilon claimed for the releases that this audit looks at."""
    found: float
    """A lower bound of the true epsilon; NaN if the audit measures something else."""
    power: str
    """What the audit would have found, in words."""
    verdict: Verdict
    detail: str
    sees: float = math.nan
    """It flags 19 times in 20 if at most this part of the noise is there; NaN: not measured."""


def judged(
    audit: str, claimed: float, found: float, power: str, detail: str, sees: float = math.nan
) -> Finding:
    """A finding that is flagged if the lower bound exceeds the claim by more than rounding.

    Args:
        audit: the audit's name.
        claimed: the epsilon that is claimed.
        found: a lower bound of the true epsilon; NaN is never flagged.
        power: what the audit would have found, in words.
        detail: what was measured, in words.
        sees: the part of the noise at which it flags 19 times in 20; NaN if that is not measured.
    """
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
    """The finding of an audit that does not apply.

    Args:
        audit: the audit's name.
        claimed: the epsilon that is claimed.
        why: the reason, in words.
    """
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
    """How many samples the audits take."""

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
    """The seed of the audit's own coins and directions."""
    effort: Effort = Effort()

    @property
    def claimed(self) -> float:
        """The epsilon against the strongest adversary, or the recipe's if that is smaller."""
        asked = self.recipe.privacy.epsilon
        guaranteed = self.plan.guarantee().claims[0].epsilon
        return guaranteed if asked is None else min(asked, guaranteed)

    @property
    def others(self) -> float:
        """The epsilon against those who get the model."""
        return min(self.claimed, self.plan.guarantee().claims[-1].epsilon)

    @property
    def delta(self) -> float:
        """Delta minus the part that a secure sum reserves for its own failure."""
        return self.plan.delta - self.plan.delta_reserved

    @property
    def dimension(self) -> int:
        """The number of the model's parameters."""
        return self.federation.model.layout.size


def subject(
    recipe: Recipe, root: Path | None = None, seed: int | None = None, effort: Effort | None = None
) -> Subject:
    """Load the data and calibrate the plan, as a run would.

    Args:
        recipe: what is audited; it must have noise.
        root: one more folder in which relative data paths are looked for; None is none.
        seed: keys the noise and the audit's own draws; None keeps the recipe's noise, and 0 keys
            the audit's draws.
        effort: how many samples the audits take; None means the default effort.
    """
    silos = federation(recipe, root)
    plan = plan_for_clients(recipe, silos.clients, silos.model)
    silos = with_model(silos, trained_model(recipe, plan, silos.model, silos.spread))
    if math.isinf(plan.guarantee().epsilon):
        raise RecipeError(
            "this recipe guarantees nothing, so there is nothing to audit; give it a mechanism "
            "with noise"
        )
    if seed is not None:
        plan = replace(plan, noise=Noise(seed))
    return Subject(
        recipe=recipe, plan=plan, federation=silos, seed=seed or 0, effort=effort or Effort()
    )
