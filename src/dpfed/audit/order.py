# SPDX-License-Identifier: Apache-2.0
"""Noise first, optimizer second: is a step a function of releases, and of nothing else?

The real engine runs one round twice: on the recipe's clients, and with their data exchanged, so
that every client works on another client's data. In the second run each mechanism still sees those
rows, but returns the releases of the first run. If the results differ, data has left a client by
another way than the PricedReleaser. In the first run, bit for bit:

    the total is the sum of the releases (where these are sent unmodified)
    the optimizer's mean is the finished total over a public number
    the step is the optimizer's, of that mean

Guarantee: the audit is deterministic; sound code is never flagged. The epsilon of a flaw is
infinite, since nothing bounds data that bypasses the noise.

| edge case                                  | what happens                                       |
|--------------------------------------------|----------------------------------------------------|
| one client                                 | its rows are negated instead                       |
| CENTRAL: the server sees sums in clear     | only the finished sums are repeated                |
| an optimizer that keeps a state            | the first step is compared: it starts from init    |
| a client's reply that adds data to releases| differs in the second run: flagged                 |
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch

from dpfed.audit.finding import Finding, Subject, judged
from dpfed.core.grid import add_weighted, to_values
from dpfed.core.randomness import Noise, public_seed
from dpfed.core.rows import Dense
from dpfed.core.types import (
    Mechanism,
    Problem,
    Release,
    Rows,
    State,
    Stream,
    Total,
    Trust,
    Unit,
    Vector,
)
from dpfed.training import inprocess
from dpfed.training.plan import Plan
from dpfed.training.round import RoundResult, ServerState

NAME = "order"


@dataclass(eq=False)
class Tape:
    """What the mechanism of one channel returned in one round, in order."""

    releases: list[Release] = field(default_factory=list)
    totals: list[Total] = field(default_factory=list)
    finished: list[Release] = field(default_factory=list)


Tapes = Mapping[str, Tape]


class RecordingMechanism:
    """A mechanism that records a tape; if there is one to replay, it returns that instead."""

    def __init__(self, inner: Mechanism, tape: Tape, replay: Tape | None) -> None:
        self._inner, self._tape, self._replay = inner, tape, replay

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __repr__(self) -> str:
        return repr(self._inner)

    def release(self, rows: Rows, state: State, rng: Stream) -> tuple[Release, State]:
        """The mechanism's own release, or the next one of the tape to replay."""
        made, state = self._inner.release(rows, state, rng)
        if self._replay is not None and self._inner.trust is not Trust.CENTRAL:
            made = self._replay.releases[len(self._tape.releases)]
        self._tape.releases.append(made)
        return made, state

    def finish(self, total: Total, state: State, rng: Stream) -> tuple[Release, State]:
        """The finished total, or the next one of the tape to replay."""
        self._tape.totals.append(replace(total, vector=total.vector.clone()))
        made, state = self._inner.finish(total, state, rng)
        if self._replay is not None:
            made = self._replay.finished[len(self._tape.finished)]
        self._tape.finished.append(replace(made, vector=made.vector.clone()))
        return made, state


@dataclass(frozen=True, eq=False)
class NegatedProblem:
    """A client whose rows are the negative of its own."""

    inner: Problem

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def rows(self, params: Vector, unit: Unit) -> Rows:
        """One row: minus the sum of the client's clipped rows."""
        return Dense(-self.inner.rows(params, unit).clipped_sum(1.0).vector[None])

    def gradient(self, params: Vector) -> Vector:
        """The negative mean gradient."""
        return -self.inner.gradient(params)


def order(target: Subject) -> Finding:
    """Run a round and its replay, and say what does not follow from the releases."""
    silos = target.federation
    plan = replace(target.plan, noise=Noise(target.seed))  # the same clients are asked twice
    start = silos.model.initial(public_seed(target.recipe.seed, "model"))
    first, second = ({name: Tape() for name in plan.channels} for _ in range(2))
    state, result = _run_round(plan, silos.problems, start, first, None)
    moved = (*silos.problems[1:], silos.problems[0])
    others = moved if len(moved) > 1 else (cast("Problem", NegatedProblem(moved[0])),)
    replayed, _ = _run_round(plan, others, start, second, first)
    flaws = _flaws(plan, start, state, result, first)
    if not torch.equal(state.params, replayed.params):
        flaws.append("equal releases of other data give another step")
    detail = "; ".join(flaws) or "the step follows from the releases, bit for bit"
    found = math.inf if flaws else math.nan
    return judged(NAME, target.claimed, found, "sees one bit past the noise", detail)


def _run_round(
    plan: Plan, problems: Sequence[Problem], start: Vector, tapes: Tapes, replay: Tapes | None
) -> tuple[ServerState, RoundResult]:
    channels: Mapping[str, Any] = {
        name: RecordingMechanism(mechanism, tapes[name], None if replay is None else replay[name])
        for name, mechanism in plan.channels.items()
    }
    return next(iter(inprocess.rounds(replace(plan, channels=channels), problems, start)))


def _flaws(
    plan: Plan, start: Vector, state: ServerState, result: RoundResult, tapes: Tapes
) -> list[str]:
    """What does not hold bit for bit in the first run."""
    seen = result.aggregate
    if seen is None or not tapes[seen.lead].finished:
        return ["the round has no aggregate"]
    tape, flaws = tapes[seen.lead], list[str]()
    if plan.client.sends_unmodified and not torch.equal(
        _sum(plan, tape, seen.lead, result.clients), tape.totals[0].vector
    ):
        flaws.append("the total is not the sum of the releases")
    divisor = plan.denominator(seen.lead)
    mean = to_values(tape.finished[0].vector, tape.finished[0].step / divisor, like=start)
    if not torch.equal(mean, seen.mean):
        flaws.append("the optimizer's mean is not the total over a public number")
    optimizer = plan.optimizer
    direction = optimizer.update(seen.mean.clone(), optimizer.init(start), seen)[0]
    if not torch.equal(start - direction, state.params):
        flaws.append("the step is not the optimizer's, of the mean that it was given")
    return flaws


def _sum(plan: Plan, tape: Tape, channel: str, clients: Sequence[int]) -> Vector:
    """The releases of a channel, added up with their public weights."""
    total = np.zeros(tape.totals[0].vector.numel(), np.int64)
    cohort = plan.cohort(channel, clients)
    for client, release in zip(clients, tape.releases, strict=True):
        add_weighted(total, release.vector.numpy(), cohort[client])
    return torch.from_numpy(total)
