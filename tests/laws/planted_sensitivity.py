# SPDX-License-Identifier: Apache-2.0
"""Bugs for the sensitivity law to find: each is an algorithm of this package with one thing wrong.

None of them sends anything but releases, and none changes what is claimed: a guarantee would still
be printed, and it would be untrue.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from dpfed.core import ghost, matrices
from dpfed.core.grid import pack
from dpfed.core.types import (
    UPDATE,
    Adjacency,
    BoundedSum,
    Broadcast,
    Problem,
    Release,
    Releaser,
    Reply,
    Rows,
    Unit,
    Vector,
)
from dpfed.mechanisms._noise import GaussianNoise
from dpfed.training.plan import Plan
from tests.laws.sensitivity import FEW, Case

Plant = Callable[[Plan, pytest.MonkeyPatch], Plan]


@dataclass(frozen=True)
class Bug:
    """What is wrong, and in which case it must be found."""

    plant: Plant
    case: Case

    def __str__(self) -> str:
        return f"{self.plant.__name__}-{self.case.algorithm}-{self.case.unit}"


def case(name: str, unit: Unit, adjacency: Adjacency, model: str = "softmax", **few: Any) -> Case:
    options = {key: value for key, value in FEW.items() if key in few.pop("takes", ())}
    return Case(name, tuple({**options, **few}.items()), unit, adjacency, model)


# -------------------------------------------------------------------------- what a bug is made of


class Altered:
    """Rows whose sum was altered, and that say nothing of it."""

    def __init__(self, rows: Rows, alter: Callable[[Rows, float], BoundedSum]) -> None:
        self._rows, self._alter = rows, alter

    def clipped_sum(self, clip: float) -> BoundedSum:
        return self._alter(self._rows, clip)


class Other:
    """A problem some of whose answers are another's."""

    def __init__(self, problem: Any, **answers: Any) -> None:
        self._problem = problem
        self.dimension = problem.dimension
        for name, answer in answers.items():
            setattr(self, name, answer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._problem, name)


def on_problems(plan: Plan, make: Callable[[Any], Problem]) -> Plan:
    """The plan whose algorithm is handed another problem."""
    work = plan.client.work

    def planted(broadcast: Broadcast, problem: Problem, state: Any, release: Releaser) -> Any:
        return work(broadcast, make(problem), state, release)

    return replace(plan, client=plan.client._replace(work=planted))


def on_rows(plan: Plan, alter: Callable[[Rows, float], BoundedSum], channel: str = UPDATE) -> Plan:
    """The plan whose algorithm releases altered rows on a channel."""
    work = plan.client.work

    def planted(broadcast: Broadcast, problem: Problem, state: Any, release: Releaser) -> Any:
        return work(broadcast, problem, state, _Door(release, alter, channel))

    return replace(plan, client=plan.client._replace(work=planted))


class _Door:
    def __init__(self, release: Releaser, alter: Any, channel: str) -> None:
        self.unit, self.nominal = release.unit, release.nominal
        self._release, self._alter, self._channel = release, alter, channel

    def __call__(self, rows: Rows, channel: str = UPDATE) -> Release:
        altered = Altered(rows, self._alter) if channel == self._channel else rows
        return self._release(altered, channel)


# ---------------------------------------------------------------------------------------- the bugs


def steps_on_clear_gradients(plan: Plan, patch: pytest.MonkeyPatch) -> Plan:
    """Local steps go along what was never released; what is sent are the releases themselves."""
    work = plan.client.work

    def planted(broadcast: Broadcast, problem: Problem, state: Any, release: Releaser) -> Any:
        made: list[Release] = []

        def walk(rows: Rows, channel: str = UPDATE) -> Release:
            clear = copy.deepcopy(rows).clipped_sum(100.0).vector
            made.append(release(rows, channel))
            step = made[-1].step
            return Release(pack(clear, step), made[-1].std, step)

        walk.unit, walk.nominal = release.unit, release.nominal  # type: ignore[attr-defined]
        work(broadcast, problem, state, walk)  # type: ignore[arg-type]
        reply: Reply = {name: made[-1] for name in plan.due(broadcast.round) if name != "metrics"}
        return reply, state

    return replace(plan, client=plan.client._replace(work=planted))


def state_in_clear(plan: Plan, patch: pytest.MonkeyPatch) -> Plan:
    """What is kept between rounds is the clear gradient, where it should be a release."""
    work = plan.client.work

    def planted(broadcast: Broadcast, problem: Problem, state: Any, release: Releaser) -> Any:
        reply, kept = work(broadcast, problem, state, release)
        return reply, kept._replace(c=problem.gradient(broadcast.params))

    return replace(plan, client=plan.client._replace(work=planted))


def records_for_persons(plan: Plan, patch: pytest.MonkeyPatch) -> Plan:
    """A row per record, where a row per person was guaranteed."""

    def make(problem: Problem) -> Any:
        return Other(problem, rows=lambda params, unit: problem.rows(params, Unit.RECORD))

    return on_problems(plan, make)


def no_clip(plan: Plan, patch: pytest.MonkeyPatch) -> Plan:
    """The clip is forgotten; the bound is stated all the same."""
    return on_rows(plan, lambda rows, clip: _stated(rows.clipped_sum(1e3 * clip).vector, clip))


def twice(plan: Plan, patch: pytest.MonkeyPatch) -> Plan:
    """A factor of 2 after the clip."""
    return on_rows(plan, lambda rows, clip: _stated(2 * rows.clipped_sum(clip).vector, clip))


def _stated(vector: Vector, clip: float) -> BoundedSum:
    return BoundedSum(vector, clip, 2 * clip)


def half_declared(plan: Plan, patch: pytest.MonkeyPatch) -> Plan:
    """The algorithm says 1 where replacing moves the sum by 2, and is believed."""

    def halved(rows: Rows, clip: float) -> BoundedSum:
        made = rows.clipped_sum(clip)
        return replace(made, replace_bound=made.replace_bound / 2)

    mechanism: Any = plan.update
    less = mechanism.with_facts(replace_bound=mechanism.replace_bound / 2)
    return replace(on_rows(plan, halved), channels={**plan.channels, UPDATE: less})


def half_priced(plan: Plan, patch: pytest.MonkeyPatch) -> Plan:
    """The mechanism itself takes half of the sensitivity."""
    honest = GaussianNoise.noise_multiplier

    def doubled(self: Any, shares: float | None = None) -> float:
        return 2 * honest(self, shares)

    patch.setattr(GaussianNoise, "noise_multiplier", doubled)
    return replace(plan)


def unscaled_triangle(plan: Plan, patch: pytest.MonkeyPatch) -> Plan:
    """Entries off the diagonal of a matrix count twice, where they count sqrt 2 times."""

    def wrong(matrix: torch.Tensor) -> Vector:
        rows, columns = torch.triu_indices(*matrix.shape)
        return torch.where(rows == columns, 1.0, 2.0) * matrix[rows, columns]

    patch.setattr(matrices, "to_triangle", wrong)
    return replace(plan)


def centred(plan: Plan, patch: pytest.MonkeyPatch) -> Plan:
    """Features are centred by the client's own mean, so that one record moves all rows."""

    def make(problem: Any) -> Any:
        mean = problem.x.nan_to_num(0.0).clamp(-1e3, 1e3).mean(dim=0)
        return replace(problem, x=problem.x - mean)

    return on_problems(plan, make)


def long_moments(plan: Plan, patch: pytest.MonkeyPatch) -> Plan:
    """Matrices twice as long as is priced."""
    return on_rows(plan, lambda rows, clip: _moment(2 * rows.clipped_sum(clip).vector), "second")


def moments_of_records(plan: Plan, patch: pytest.MonkeyPatch) -> Plan:
    """A matrix per record, where one per person was guaranteed."""

    def make(problem: Any) -> Any:
        def rows(params: Vector, unit: Unit) -> Any:
            return problem.moment_rows(params, Unit.RECORD)

        return Other(problem, moment_rows=rows)

    return on_problems(plan, make)


def moments_priced_as_removed(plan: Plan, patch: pytest.MonkeyPatch) -> Plan:
    """Replacing a matrix counts as 1, as removing it does."""

    def less(rows: Rows, clip: float) -> BoundedSum:
        return replace(rows.clipped_sum(clip), replace_bound=clip)

    mechanism: Any = plan.channels["second"]
    channels = {**plan.channels, "second": mechanism.with_facts(replace_bound=mechanism.clip)}
    return replace(on_rows(plan, less, "second"), channels=channels)


def _moment(vector: Vector) -> BoundedSum:
    return BoundedSum(vector, 1.0, math.sqrt(2))


def gram_norms_in_single_precision(plan: Plan, patch: pytest.MonkeyPatch) -> Plan:
    """Norms from Gram matrices as they come out, and no row is made: what cancels is lost."""

    def plain(self: Any, part: slice) -> ghost.Norms:
        left, right = self.left[part], self.right[part]
        products = torch.bmm(left, left.mT) * torch.bmm(right, right.mT)
        norms = products.sum(dim=(1, 2)).clamp(min=0.0).sqrt().double()
        return ghost.Norms(norms, norms)

    patch.setattr(ghost.Products, "_norms", plain)
    patch.setattr(ghost, "worth_making", lambda p, q, positions: False)  # no row is made
    return replace(plan)


_REPLACE, _ADD, _ZERO = Adjacency.REPLACE_ONE, Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT
BUGS = [
    Bug(steps_on_clear_gradients, case("fedavg", Unit.RECORD, _REPLACE, steps=2)),
    Bug(steps_on_clear_gradients, case("localadamw", Unit.GROUP, _ADD, steps=2, rate=1.0)),
    Bug(state_in_clear, case("scaffold", Unit.RECORD, _REPLACE, steps=2)),
    Bug(records_for_persons, case("gradient", Unit.GROUP, _REPLACE)),
    Bug(records_for_persons, case("fedfc", Unit.GROUP, _ADD)),
    Bug(no_clip, case("gradient", Unit.RECORD, _REPLACE)),
    Bug(no_clip, case("adadps", Unit.CLIENT, _ZERO)),
    Bug(twice, case("gradient", Unit.RECORD, _ADD)),
    Bug(twice, case("fedsam", Unit.GROUP, _REPLACE, steps=2)),
    Bug(half_declared, case("gradient", Unit.RECORD, _REPLACE)),
    Bug(half_declared, case("fednew", Unit.RECORD, _REPLACE)),
    Bug(half_priced, case("fedhybrid", Unit.RECORD, _REPLACE, start=1, steps=2)),
    Bug(unscaled_triangle, case("fedfc", Unit.RECORD, _ADD)),
    Bug(unscaled_triangle, case("fednewton", Unit.RECORD, _REPLACE, start=1, steps=2)),
    Bug(gram_norms_in_single_precision, case("gradient", Unit.RECORD, _REPLACE, model="tokens")),
    Bug(gram_norms_in_single_precision, case("fedavg", Unit.RECORD, _ADD, model="tokens", steps=2)),
    Bug(centred, case("gradient", Unit.RECORD, _REPLACE)),
    Bug(centred, case("fedauto", Unit.RECORD, _REPLACE)),
    Bug(records_for_persons, case("fedauto", Unit.GROUP, _ADD)),
    Bug(long_moments, case("fedauto", Unit.CLIENT, _ZERO)),
    Bug(moments_of_records, case("fedauto", Unit.GROUP, _ADD)),
    Bug(moments_priced_as_removed, case("fedauto", Unit.RECORD, _REPLACE)),
]
