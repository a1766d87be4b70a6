# SPDX-License-Identifier: Apache-2.0
"""Bugs to be found: each is the library's own Gaussian mechanism with one thing wrong.

None of them changes what is claimed: the plan still states the recipe's epsilon.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import msgspec

from dpfed.audit.finding import QUICK, Effort, Subject, subject
from dpfed.audit.statistics import Floats
from dpfed.core.chain import stateless
from dpfed.core.types import (
    UPDATE,
    Aggregate,
    BoundedSum,
    Rows,
    ServerOptimizer,
    State,
    Stream,
    Vector,
)
from dpfed.mechanisms.gaussian import Gaussian
from dpfed.recipes import schema as recipes
from dpfed.recipes.schema import Recipe


def small(rounds: int = 10, **privacy: Any) -> Recipe:
    """Five clients of 120 records each, 410 parameters."""
    return recipes.parse(
        {
            "name": "small",
            "rounds": rounds,
            "data": {
                "source": "synthetic",
                "options": {"records": 600, "features": 40, "classes": 10},
                "partition": {"name": "iid", "clients": 5},
            },
            "privacy": {"epsilon": 1.0, "delta": 1e-5, "clip": 1.0, **privacy},
            "server": [{"name": "sofim"}, {"name": "scale", "rate": 0.3}],
        }
    )


def target(recipe: Recipe | None = None, seed: int = 0, effort: Effort = QUICK) -> Subject:
    return subject(small() if recipe is None else recipe, None, seed, effort)


def with_mechanism(sound: Subject, kind: type[Gaussian], **options: Any) -> Subject:
    """The same subject, its mechanism of another class."""
    old: Any = sound.plan.update
    kept = {each.name: getattr(old, each.name) for each in fields(Gaussian)}
    channels = {UPDATE: kind(**{**kept, **options})}
    return replace(sound, plan=replace(sound.plan, channels=channels))


@dataclass(frozen=True)
class Quiet(Gaussian):
    """Only a part of the noise that is accounted for."""

    part: float = 0.5

    def _noise(self, size: int, rng: Stream) -> Floats:
        return rng.normal(size) * (self.std * self.part)


@dataclass(frozen=True)
class Patchy(Gaussian):
    """One coordinate has no noise."""

    def _noise(self, size: int, rng: Stream) -> Floats:
        noise = rng.normal(size) * self.std
        noise[0] = 0.0
        return noise


@dataclass(frozen=True)
class Unclipped(Gaussian):
    """Rows are added as they are, and said to be bounded."""

    def bounded(self, rows: Rows) -> BoundedSum:
        made = rows.clipped_sum(1e6 * self.clip)
        return BoundedSum(made.vector, self.clip, self.replace_bound)


@dataclass(frozen=True)
class Preconditioned(Gaussian):
    """The optimizer's preconditioner (s s^T + rho I)^-1 on the sum, and then the noise."""

    rho: float = 0.01

    def bounded(self, rows: Rows) -> BoundedSum:
        made = super().bounded(rows)
        vector = made.vector / (float(made.vector @ made.vector) + self.rho)
        return BoundedSum(vector, made.bound, made.replace_bound)


@dataclass(frozen=True)
class Forgetful(Gaussian):
    """Accounted for as if replacing one row moved a sum by C, where it is 2 C."""

    def noise_multiplier(self, shares: float | None = None) -> float:
        return 2 * super().noise_multiplier(shares)


def forgetful(sound: Subject) -> Subject:
    """Half the noise, since only half was thought to be needed; the plan still states epsilon 1."""
    return with_mechanism(sound, Forgetful, std=sound.plan.update.std / 2)


SEEN: list[Vector] = []
"""What the leaky mechanism tells the optimizer behind the plan's back."""


@dataclass(frozen=True)
class Telling(Gaussian):
    """Releases as it should, and tells the clear sum to the optimizer."""

    def bounded(self, rows: Rows) -> BoundedSum:
        made = super().bounded(rows)
        SEEN.append(made.vector.float())
        return made


def listening(sound: Subject) -> Subject:
    """The optimizer takes its curvature from sums in clear: a step before the noise."""

    def update(direction: Vector, state: State, _: Aggregate) -> tuple[Vector, State]:
        return direction / (1 + SEEN[-1].abs()), state

    told = with_mechanism(sound, Telling)
    server = ServerOptimizer(init=stateless, update=update)
    return replace(told, plan=replace(told.plan, server=server))


def repeated(sound: Subject) -> Subject:
    """All releases draw from one key."""

    class OneKey(type(sound.plan.noise)):  # type: ignore[misc]
        def stream(self, purpose: str, *fields: int | str) -> Any:
            return super().stream(purpose, 0)

    return replace(sound, plan=replace(sound.plan, noise=OneKey(3)))


def asked(recipe: Recipe, **sections: Any) -> Recipe:
    """A recipe with other sections."""
    return recipes.parse({**msgspec.to_builtins(recipe), **sections})


BUGS = {
    "half the noise": lambda sound: with_mechanism(sound, Quiet, part=0.5),
    "1/sqrt(20) of the noise": lambda sound: with_mechanism(sound, Quiet, part=1 / math.sqrt(20)),
    "2 % too little noise": lambda sound: with_mechanism(sound, Quiet, part=0.98),
    "no clip": lambda sound: with_mechanism(sound, Unclipped),
    "replace-one's factor forgotten": forgetful,
    "preconditioned before the noise": lambda sound: with_mechanism(sound, Preconditioned),
    "optimizer sees sums in clear": listening,
    "a coordinate without noise": lambda sound: with_mechanism(sound, Patchy),
    "one key for all releases": repeated,
}

__all__ = ["BUGS", "asked", "small", "target", "with_mechanism"]
