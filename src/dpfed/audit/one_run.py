# SPDX-License-Identifier: Apache-2.0
"""One whole run with canaries in it: can their coins be guessed from what the adversary saw?

Steinke, Nasr, Jagielski 2023; with directions of gradients as canaries, as Andrew et al. 2023 do in
federated learning. Each of m canaries is a unit with a fixed direction v; a fair coin says whether
its row is v or -v (replace-one), or v or nothing. The recipe then runs on the real engine, all
rounds. A canary's score is what was seen along v, summed over rounds, less the clients' own sums,
which the adversary knows. The canaries with the highest scores are guessed to be in and those with
the lowest to be out; there is no guess for the others:

    P(v or more of r guesses right) is bounded under (epsilon, delta)-DP (statistics.chance_of)

What the adversary sees: each client's reply (LOCAL; recorded on its way into the sum), or the mean
(otherwise).

Guarantee: sound code is flagged with probability at most ERROR_PROBABILITY. The theorem does not
need independent scores, only fair coins. The number of guesses is fixed before the run.

| edge case                                           | what happens                             |
|-----------------------------------------------------|------------------------------------------|
| the unit is the client                              | each client is one canary: little power  |
| more canaries than a model has directions           | per client at most as many as parameters |
| an algorithm that divides by norms, or by its state | its clients' own sums are not subtracted |
| an algorithm that refuses canaries                  | skipped, with the reason                 |
| LOCAL trust with a sum that hides replies           | the adversary sees the mean              |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch

from dpfed.audit.finding import Finding, Subject, judged, skipped
from dpfed.audit.recount import claimed_mu, is_drawn
from dpfed.audit.statistics import Bits, Floats, chance_of, one_run_epsilon
from dpfed.core.errors import RoundAborted
from dpfed.core.log import log
from dpfed.core.metric import Judged, MetricRow
from dpfed.core.randomness import Noise, public_seed
from dpfed.core.rows import Dense, UnitRows, or_zero
from dpfed.core.sum_protocol import Messages, Session
from dpfed.core.types import UPDATE, Adjacency, BoundedSum, Problem, Rows, Trust, Unit, Vector
from dpfed.training import inprocess
from dpfed.training.plan import Plan

NAME = "one-run"

_CANARY_NORM_CLIPS = 4.0  # the norm of a canary's row
_MAX_DIRECTION_NUMBERS = 1 << 26  # in all canaries' directions together: a limit of memory
_GUESSED_FRACTIONS = (0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
"""Fractions of the canaries that may be guessed; which one is fixed before the run."""
_DEFAULT_GUESSED_FRACTION = 0.2
_NOISE_FRACTIONS = (
    0.9,
    0.8,
    0.7,
    0.6,
    0.5,
    0.45,
    0.4,
    0.35,
    0.3,
    0.25,
    0.22,
    0.2,
    0.17,
    0.15,
    0.12,
    0.1,
    0.07,
    0.05,
    0.03,
)

ERROR_PROBABILITY = 0.01
"""The probability of flagging sound code; delta times the canaries keeps it from being small."""


# ----------------------------------------------------------------------------- the canaries' rows


@dataclass(frozen=True, eq=False)
class RowsWithCanaries:
    """A client's rows and those of its canaries; each unit is clipped on its own."""

    inner: Any
    canaries: torch.Tensor

    @property
    def units(self) -> int:
        """The number of the client's units and its canaries."""
        return int(self.inner.units) + len(self.canaries)

    @property
    def matrix(self) -> torch.Tensor:
        """All rows as one matrix, for methods that accept nothing else."""
        return torch.cat(list(self.unit_rows())).to(self.canaries.dtype)

    def select(self, kept: torch.Tensor, room: int = 0) -> RowsWithCanaries:
        """The rows of the units in ``kept``, and rows of zeros."""
        own = int(self.inner.units)
        return RowsWithCanaries(
            self.inner.select(kept[:own], room), or_zero(kept[own:], self.canaries)
        )

    def clipped_sum(self, clip: float) -> BoundedSum:
        """The sum of the client's rows and its canaries'."""
        first, second = self.inner.clipped_sum(clip), Dense(self.canaries).clipped_sum(clip)
        bound, replace_bound = (
            max(first.bound, second.bound),
            max(first.replace_bound, second.replace_bound),
        )
        return BoundedSum(first.vector + second.vector, bound, replace_bound)

    def clipped_rows(self, clip: float) -> Iterator[torch.Tensor]:
        """The client's blocks of rows, then those of the canaries."""
        if isinstance(self.inner, UnitRows):
            yield from self.inner.clipped_rows(clip)
        yield from Dense(self.canaries).clipped_rows(clip)

    def unit_rows(self) -> Iterator[torch.Tensor]:
        """All rows, unclipped and in double precision."""
        yield from self.inner.unit_rows()
        yield self.canaries.double()


@dataclass(frozen=True, eq=False)
class CanaryProblem:
    """A client with canaries among its units; it records the sum of its own units."""

    inner: Problem
    canaries: torch.Tensor
    clip: float
    own: Vector
    """The sum of the client's own clipped rows over all rounds, updated in place."""
    made: bool = False
    """Whether rows are given as one matrix: some methods accept nothing else."""

    @property
    def dimension(self) -> int:
        """The number of the model's parameters."""
        return self.inner.dimension

    def rows(self, params: Vector, unit: Unit) -> Rows:
        """The client's rows with the canaries'; if the client is the unit, the canary alone."""
        if unit is Unit.CLIENT:
            return Dense(self.canaries)
        self.own.add_(self.inner.rows(params, unit).clipped_sum(self.clip).vector)
        rows = RowsWithCanaries(self.inner.rows(params, unit), self.canaries)
        return Dense(rows.matrix) if self.made else rows

    def gradient(self, params: Vector) -> Vector:
        """A long vector along the canary, for the local steps of a client that is the unit."""
        return self.canaries.sum(dim=0).to(params.dtype) * 1e3

    def metric_rows(self, params: Vector, unit: Unit, loss_bound: float) -> Rows:
        """The client's own rows."""
        return self.inner.metric_rows(params, unit, loss_bound)

    def judged(self, params: Vector, unit: Unit, row: MetricRow) -> torch.Tensor:
        """The client's own, if it can be judged by any row."""
        return cast(Judged, self.inner).judged(params, unit, row)


def canary_problem_kind(problem: Problem) -> type[CanaryProblem]:
    """A CanaryProblem that also has the problem's other kinds of rows, without canaries in them.

    Such as second derivatives, or the statistics of a model that an algorithm brings.
    """
    others = [
        name
        for name in dir(type(problem))
        if name.endswith("_rows") and not name.startswith("_") and not hasattr(CanaryProblem, name)
    ]
    return type(
        "CanaryProblemWithOtherRows", (CanaryProblem,), {name: _own_rows(name) for name in others}
    )


def _own_rows(name: str) -> Callable[..., Any]:
    return lambda planted, *args: getattr(planted.inner, name)(*args)


# -------------------------------------------------------------------------- what the adversary sees


@dataclass(frozen=True, eq=False)
class RecordingSum:
    """A sum that records each client's values on their way in."""

    inner: Any
    step: float
    heard: dict[int, Vector] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __repr__(self) -> str:
        return repr(self.inner)

    def add(self, session: Session, client: int, messages: Messages) -> Session:
        """Add as the sum does, and record the update."""
        after = self.inner.add(session, client, messages)
        if UPDATE in messages:
            size = self.heard[client].numel()
            kind = "<i4" if len(messages[UPDATE]) == 4 * size else "<i8"
            values = np.frombuffer(messages[UPDATE], dtype=kind).astype(np.float64) * self.step
            self.heard[client] += torch.from_numpy(values)
        return after


@dataclass(frozen=True, eq=False)
class Canaries:
    """The canaries' directions and coins, by client."""

    directions: tuple[torch.Tensor, ...]
    coins: tuple[torch.Tensor, ...]

    @property
    def count(self) -> int:
        """The number of canaries."""
        return sum(len(each) for each in self.coins)


def plant(target: Subject) -> Canaries:
    """Orthogonal directions within a client, and fair coins, from the audit's own seed."""
    plan, bits = target.plan, Noise(target.seed)
    clients, size = len(plan.nominal), plan.size(UPDATE, target.dimension)
    each = min(
        math.ceil(target.effort.canaries / clients),
        size,
        _MAX_DIRECTION_NUMBERS // (size * clients),
    )
    each = 1 if plan.update.unit is Unit.CLIENT else max(1, each)
    directions, coins = [], []
    for client in range(clients):
        normal = bits.stream("canaries", client).normal(size * each).reshape(size, each)
        directions.append(torch.linalg.qr(torch.from_numpy(normal))[0].T.contiguous())
        words = bits.stream("coins", client).words(each)
        coins.append(torch.from_numpy((words & np.uint64(1)).astype(bool)))
    return Canaries(tuple(directions), tuple(coins))


def guess_scores(target: Subject, canaries: Canaries, *, made: bool = False) -> Floats:
    """The score of each canary: what was seen along its direction in the run, minus what is known.

    Args:
        target: the run under audit.
        canaries: the directions and coins of each client's canaries.
        made: whether rows are given as one matrix, for methods that accept nothing else.
    """
    plan, silos = target.plan, target.federation
    size = plan.size(UPDATE, target.dimension)
    planted = [
        replace(_with_canaries(plan, problem, directions, coins, size), made=made)
        for problem, directions, coins in zip(
            silos.problems, canaries.directions, canaries.coins, strict=True
        )
    ]
    heard = {client: torch.zeros(size, dtype=torch.float64) for client in range(len(planted))}
    listening = RecordingSum(plan.sum, plan.step(UPDATE), heard)
    alone = plan.update.trust is Trust.LOCAL and not plan.sum.hides_terms
    running: Plan = replace(plan, sum=listening) if alone else plan
    start = silos.model.initial(public_seed(target.recipe.seed, "model"))
    means = torch.zeros(size, dtype=torch.float64)
    for _, result in inprocess.rounds(running, planted, start):
        if result.aggregate is not None and result.aggregate.lead == UPDATE:
            means += result.aggregate.mean.double() * plan.denominator(UPDATE)
    known = _known(plan, planted)
    if not alone:
        total = means - sum(known)
        return torch.cat([each @ total for each in canaries.directions]).numpy()
    pairs = zip(canaries.directions, heard.values(), known, strict=True)
    return torch.cat([each @ (seen - own) for each, seen, own in pairs]).numpy()


def _with_canaries(
    plan: Plan, problem: Problem, directions: torch.Tensor, coins: torch.Tensor, size: int
) -> CanaryProblem:
    other = -1.0 if plan.update.adjacency is Adjacency.REPLACE_ONE else 0.0
    signs = torch.where(coins, 1.0, other)[:, None]
    rows = (directions * signs * (_CANARY_NORM_CLIPS * plan.update.clip)).float()
    return canary_problem_kind(problem)(problem, rows, plan.update.clip, torch.zeros(size))


def _known(plan: Plan, planted: Sequence[CanaryProblem]) -> list[torch.Tensor]:
    """The clients' own sums; zeros where replies are not sums of releases."""
    part = plan.update.sampling.rate
    if math.isnan(plan.client.channels[UPDATE].noise):
        part = 0.0
    return [each.own.double() * part for each in planted]


# -------------------------------------------------------------------------------------- the guesses


def one_run(target: Subject) -> Finding:
    """Plant canaries, run, guess, and bound epsilon from the number of right guesses."""
    canaries = plant(target)
    mu = math.nan if is_drawn(target.plan) else claimed_mu(target)
    guesses, sees = plan_guesses(mu, canaries.count, target.claimed, target.delta)
    try:
        seen = _scores_of_run(target, canaries)
    except RoundAborted as error:
        return skipped(NAME, target.claimed, f"this method takes no canaries: {error}")
    coins = torch.cat(canaries.coins).numpy()
    right = right_guesses(seen, coins, guesses)
    found = one_run_epsilon(right, guesses, canaries.count, target.delta, ERROR_PROBABILITY)
    detail = (
        f"{canaries.count:,} canaries, {right} of {guesses} guesses right; as a Gaussian fit "
        f"(no bound) mu is about {estimated_mu(seen, coins):.3f}, claimed {mu:.3f}"
    )
    power = f"sees {sees:.2f} of the noise" if sees else "none: too few canaries"
    return judged(NAME, target.claimed, found, power, detail, sees)


def _scores_of_run(target: Subject, canaries: Canaries) -> Floats:
    """The scores; rows are given as one matrix only if the method refuses them otherwise."""
    before, log.disabled = log.disabled, True
    try:
        return guess_scores(target, canaries)
    except RoundAborted:
        return guess_scores(target, canaries, made=True)
    finally:
        log.disabled = before


def right_guesses(seen: Floats, coins: Bits, guesses: int) -> int:
    """How many guesses are right, if the highest scores are in and the lowest are out.

    Args:
        seen: the canaries' scores.
        coins: whether each canary is in.
        guesses: how many canaries to guess, half of them in; an odd number loses one.
    """
    order = np.argsort(seen, kind="stable")
    half = guesses // 2
    return int(coins[order[len(order) - half :]].sum() + (~coins[order[:half]]).sum())


def estimated_mu(seen: Floats, coins: Bits) -> float:
    """Andrew et al. 2023: the distance of the two groups' means, in standard deviations."""
    inside, outside = seen[coins], seen[~coins]
    if len(inside) < 2 or len(outside) < 2:
        return math.nan
    spread = math.sqrt((float(inside.var(ddof=1)) + float(outside.var(ddof=1))) / 2)
    return float(inside.mean() - outside.mean()) / spread if spread else math.inf


def needed(guesses: int, canaries: int, claimed: float, delta: float) -> int:
    """How many guesses must be right to refute the claim; ``guesses`` + 1 if none suffice.

    Args:
        guesses: how many guesses are made.
        canaries: how many canaries there are, at least as many.
        claimed: the epsilon to refute, at least 0.
        delta: its delta, at least 0.
    """
    low, high = 0, guesses + 1
    while high - low > 1:
        middle = (low + high) // 2
        refutes = chance_of(middle, guesses, canaries, claimed, delta) < ERROR_PROBABILITY
        low, high = (low, middle) if refutes else (middle, high)
    return high


def plan_guesses(mu: float, canaries: int, claimed: float, delta: float) -> tuple[int, float]:
    """How many guesses to make, and the part of the noise that they see, both by simulation.

    The part is the largest one at which ideal scores are flagged 19 times in 20. Where the claim
    has no mu (the part is NaN) or no number of guesses has power (0), a fifth is guessed.

    Args:
        mu: the mu of the claim, above 0; NaN if it has none.
        canaries: how many canaries there are.
        claimed: the epsilon of the claim, at least 0.
        delta: its delta, at least 0.
    """
    options = [max(2, 2 * int(part * canaries / 2)) for part in _GUESSED_FRACTIONS]
    usual = options[_GUESSED_FRACTIONS.index(_DEFAULT_GUESSED_FRACTION)]
    if math.isnan(mu):
        return usual, math.nan
    wanted = {count: needed(count, canaries, claimed, delta) for count in options}
    for part in _NOISE_FRACTIONS:
        flagged = _flagged(mu / part, canaries, wanted)
        best = max(options, key=lambda count: flagged[count])
        if flagged[best] >= 0.95:
            return best, part
    return usual, 0.0


def _flagged(mu: float, canaries: int, wanted: dict[int, int], tries: int = 40) -> dict[int, float]:
    """How often ideal scores of this mu are flagged, by the number of guesses."""
    bits, found = Noise(1), dict.fromkeys(wanted, 0.0)
    for number in range(tries):
        coins = (bits.stream("power", number).words(canaries) & np.uint64(1)).astype(bool)
        seen = bits.stream("scores", number).normal(canaries) + np.where(coins, mu / 2, -mu / 2)
        for count, least in wanted.items():
            found[count] += (right_guesses(seen, coins, count) >= least) / tries
    return found
