# SPDX-License-Identifier: Apache-2.0
"""A search for the broadcasts and the records that move a release most, without gradients.

What is searched is all that a server, a recipe and a record choose: a pattern that most other
records have, some versions of one unit, features of norms from 1e-3 to 1e6, scores of the pattern
up to 40 apart, the parameters' other tensors, the vectors that are broadcast beside them, what was
released before in the same round, what a client kept from releases of earlier rounds, and options.
All of it but the options is one list of numbers, the genes; ``Attack`` changes a few of them at a
time and keeps what does not do worse: an evolution strategy with one parent, whose steps grow with
success. It starts several times, each time with other options (a tenth to ten times the defaults).

One half of the starts climbs towards an adjacency's bound. The other half climbs towards scenes in
which the sum is not what it is if the same records and broadcasts come in double precision: where a
bound that was proved for real numbers may fail, and which the way to the bound would never meet.

An algorithm's own code runs, in the types that a training uses; the mechanism's own clip and sum
(``release`` under central trust, where it adds nothing) say what is handed over, and the price is
read off the event (sensitivity.py). A scene hands over the same broadcast to the same client with
each of ``VERSIONS`` versions of the unit, without it, and with records that are not finite in its
place. Each comparison of two of them is an evaluation, of its adjacency.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from dpfed.core import registry
from dpfed.core.grid import narrow
from dpfed.core.types import METRICS, UPDATE, Adjacency, Broadcast, Release, Rows, Trust, Unit
from dpfed.data.datasets import Records
from dpfed.data.models import Linear
from dpfed.training.plan import Plan
from tests.laws.neighbours import Scene, joined, sane
from tests.laws.sensitivity import (
    CLASSES,
    FEATURES,
    MODELS,
    SLACK,
    Case,
    model_for,
    plan_or_none,
    priced_distance,
    variants,
)

OTHERS, PEOPLE = 20, 7
"""Other records, beside a record and beside a person; 8 units are declared (``NOMINAL``)."""
VERSIONS = 4
"""Of the unit, in one scene."""
STARTS = 6
SMALLEST, LARGEST = -3.0, 6.0
"""Decimal exponents of the norm of a record's features."""


# ---------------------------------------------------------------------------------------- cases


@dataclass(frozen=True)
class Target:
    """One algorithm with its choices, unit and model: its plans, by adjacency."""

    case: Case
    plans: dict[Adjacency, Plan] = field(compare=False)

    def __str__(self) -> str:
        return str(self.case).replace(f" / {self.case.adjacency}", "")

    @property
    def plan(self) -> Plan:
        """Any of them: an algorithm is not told the adjacency."""
        return next(iter(self.plans.values()))

    @property
    def states_bounds(self) -> bool:
        """Whether the algorithm has a bound of its own, in the place of the recipe's clip."""
        return any(channel.clip is not None for channel in self.plan.client.channels.values())

    def with_options(self) -> Target:
        """The same with each number among its options times 10^-1 to 10^1, if that is allowed."""
        parameters = inspect.signature(registry.find("client", self.case.algorithm)).parameters
        numbers = {n: p.default for n, p in parameters.items() if isinstance(p.default, float)}
        for _ in range(20):
            drawn = {n: v * 10.0 ** float(torch.rand(1) * 2 - 1) for n, v in numbers.items()}
            options = tuple({**drawn, **dict(self.case.options)}.items())
            for found in _target(replace(self.case, options=options)):
                if found.plans.keys() == self.plans.keys():
                    return found
        return self


def targets(model: str = "softmax") -> Iterator[Target]:
    """Every installed algorithm, with every choice of options and unit, and a clip that adapts.

    A choice that the plan makes for itself ("auto") is not searched twice.
    """
    seen = set()
    for name in registry.names("client"):
        for options, unit in itertools.product(variants(name), Unit):
            for found in _target(Case(name, options, unit, Adjacency.REPLACE_ONE, model)):
                if (made := (str(found.plan.client.made_by), unit)) not in seen:
                    seen.add(made)
                    yield found
    for unit in Unit:
        case = Case("gradient", (), unit, Adjacency.REPLACE_ONE, model, adaptive=True)
        yield from _target(case)


def _target(case: Case) -> Iterator[Target]:
    """None where every adjacency is refused."""
    found = {each: plan_or_none(replace(case, adjacency=each)) for each in Adjacency}
    plans = {each: plan for each, plan in found.items() if plan is not None}
    if plans:
        yield Target(case, plans)


# ---------------------------------------------------------------------------------------- genes


class Genes:
    """Numbers that are taken one after the other, each with a range."""

    def __init__(self, values: list[float]) -> None:
        self._values, self._at = values, 0

    def one(self) -> float:
        """The next one, about 0, of size 1."""
        self._at += 1
        while len(self._values) < self._at:  # genes that were never read are drawn when they are
            self._values.append(float(torch.randn(1)))
        return self._values[self._at - 1]

    def within(self, low: float, high: float) -> float:
        """In a range, drawn evenly."""
        return low + (high - low) * (1 + math.erf(self.one() / math.sqrt(2))) / 2

    def whole(self, below: int) -> int:
        return min(below - 1, int(self.within(0.0, float(below))))

    def vector(self, size: int) -> torch.Tensor:
        return torch.tensor([self.one() for _ in range(size)], dtype=torch.float64)

    def sized(self, shape: torch.Size | tuple[int, ...], low: float, high: float) -> torch.Tensor:
        """A tensor of some magnitude, between two powers of ten."""
        made = self.vector(math.prod(shape)).view(shape)
        return made * 10.0 ** self.within(low, high)


class Tape:
    """A door that notes what is handed over, and gives what the genes say was released."""

    def __init__(self, plan: Plan, genes: Genes) -> None:
        self.unit, self.nominal = plan.update.unit, plan.nominal[0]
        self.sums: dict[tuple[str, int], torch.Tensor] = {}
        self._plan, self._genes, self._made = plan, genes, dict[tuple[str, int], Release]()
        self._silent = {
            name: mechanism.with_facts(trust=Trust.CENTRAL)
            for name, mechanism in plan.channels.items()
        }

    def begin(self) -> None:
        """Another world: the same releases."""
        self.sums = {}

    def __call__(self, rows: Rows, channel: str = UPDATE) -> Release:
        mechanism = self._silent[channel]
        handed, _ = mechanism.release(rows, mechanism.init(0), None)  # type: ignore[arg-type]
        count = sum(name == channel for name, _ in self.sums)
        self.sums[channel, count] = handed.vector.double() * handed.step
        if (channel, count) not in self._made:
            size = handed.vector.numel()
            steps = self._genes.sized((size,), 0.0, 9.0).round_().long()
            self._made[channel, count] = Release(narrow(steps), mechanism.std, handed.step)
        return self._made[channel, count]


# ----------------------------------------------------------------------------------- one attack


Sums = dict[tuple[str, int], torch.Tensor]
"""What was handed over: by channel, and which of its releases."""


@dataclass(eq=False)
class Attack:
    """The best that was found against one target, by adjacency, as a part of what is priced."""

    target: Target
    seed: int = 0
    best: dict[Adjacency, float] = field(default_factory=dict)
    tried: Counter[Adjacency] = field(default_factory=Counter)
    faults: set[str] = field(default_factory=set)

    def search(self, evaluations: int) -> Attack:
        """So many evaluations of each adjacency, from several starts, each with its own goal."""
        scenes = -(-evaluations // (STARTS * VERSIONS))
        adjacencies = list(self.target.plans)
        with torch.random.fork_rng(devices=[]):
            for start in range(STARTS):
                torch.manual_seed(self.seed * 1000 + start)
                self._begin(self.target.with_options() if start else self.target)
                goal = adjacencies[start // 2 % len(adjacencies)] if start % 2 == 0 else None
                self._climb(goal, scenes)
        return self

    def _begin(self, target: Target) -> None:
        """What follows from the options."""
        self.case, self.plans, self.plan = target.case, target.plans, target.plan
        plain = MODELS[target.case.model]
        self.model: Any = model_for(self.plan, plain)
        self.outputs = plain.outputs if isinstance(plain, Linear) else CLASSES
        self.start = self.model.initial(0)
        self.usual = sane(self.plan, self.start)
        kinds = {tuple(sorted(self._due(at).items())): at for at in range(self.plan.rounds)}
        self.rounds = sorted(kinds.values())
        self.prices = {
            each: {name: priced_distance(m) for name, m in plan.channels.items()}
            for each, plan in self.plans.items()
        }

    def _due(self, at: int) -> dict[str, int]:
        return {n: self.plan.releases(n, at) for n in self.plan.channels if n != METRICS}

    def _climb(self, goal: Adjacency | None, scenes: int) -> None:
        """A fifth of them at random; then the best one's genes are changed, a few at a time."""
        first = max(1, scenes // 5)
        drawn: list[tuple[float, list[float]]] = []
        for _ in range(first):
            genes: list[float] = []
            drawn.append((self.look_at(genes, goal), genes))
        score, parent = max(drawn)
        step = 0.3
        for _ in range(scenes - first):
            changed = torch.rand(len(parent)) < (1.5 / len(parent) if torch.rand(1) < 0.7 else 0.3)
            child = (torch.tensor(parent) + torch.randn(len(parent)) * step * changed).tolist()
            found = self.look_at(child, goal)
            step = min(1.0, step * 1.5) if found > score else max(1e-4, step * 0.96)
            if found >= score:
                score, parent = found, child

    def look_at(self, values: list[float], goal: Adjacency | None) -> float:
        """How near one scene is to the goal; all ratios in it are noted."""
        genes = Genes(values)
        scene, versions, pattern = self._scene(genes)
        at = self.rounds[genes.whole(len(self.rounds))]
        broadcast = self._broadcast(genes, at, pattern)
        state, tape = self._state(genes, broadcast.params), Tape(self.plan, genes)

        def handed(version: Records | None, double: bool = False) -> Sums:
            tape.begin()
            problem = self.model.problem(joined(scene, self.case.unit, version))
            sent = _doubled(broadcast) if double else broadcast
            self.plan.client.work(sent, problem.doubled() if double else problem, state, tape)
            return tape.sums

        there = [handed(version) for version in versions]
        pairs = {Adjacency.REPLACE_ONE: list(itertools.combinations(there, 2))}
        if self.case.unit is Unit.CLIENT:  # nobody is there: nothing is added
            gone = zeroed = {key: torch.zeros_like(each) for key, each in there[0].items()}
        else:
            gone, zeroed = handed(None), handed(_nowhere(versions[0]))
        pairs[Adjacency.ADD_REMOVE] = [(each, gone) for each in there]
        pairs[Adjacency.ZERO_OUT] = [(each, zeroed) for each in there]
        ratios = {each: self._largest(each, pairs[each]) for each in self.plans}
        if goal is None:
            return self._ratio(next(iter(self.plans)), there[0], handed(versions[0], double=True))
        return ratios[goal]

    def _largest(self, adjacency: Adjacency, pairs: list[tuple[Sums, Sums]]) -> float:
        ratio = max(self._ratio(adjacency, *pair) for pair in pairs)
        self.tried[adjacency] += len(pairs)
        self.best[adjacency] = max(ratio, self.best.get(adjacency, 0.0))
        if not ratio <= 1 + SLACK:
            self.faults.add(f"{self.case} / {adjacency}: more than what is priced")
        return ratio

    def _ratio(self, adjacency: Adjacency, one: Sums, other: Sums) -> float:
        """The largest part of a price; infinite if releases differ in number, or are not finite."""
        if one.keys() != other.keys():
            return math.inf
        prices, found = self.prices[adjacency], 0.0
        for key in one:
            apart = float(torch.linalg.vector_norm(one[key] - other[key])) / prices[key[0]]
            found = max(found, apart if math.isfinite(apart) else math.inf)
        return found

    # --------------------------------------------------------------------------- genes to scenes

    def _records(self, genes: Genes, count: int) -> Records:
        norms = torch.tensor([10.0 ** genes.within(SMALLEST, LARGEST) for _ in range(count)])
        directions = torch.nn.functional.normalize(genes.vector(count * FEATURES).view(count, -1))
        labels = torch.tensor([genes.whole(max(2, self.outputs)) for _ in range(count)])
        return Records((directions * norms[:, None]).float(), labels)

    def _near(self, genes: Genes, pattern: Records, count: int) -> Records:
        """Records along the pattern or against it at other norms, or records of their own."""
        made = self._records(genes, count)
        if genes.one() < -0.5:
            return made
        sizes = made.x.norm(dim=1) / pattern.x.norm() if genes.one() > 0 else torch.ones(count)
        signs = 1.0 if genes.one() > -0.5 else -1.0
        return replace(made, x=pattern.x.expand(count, -1) * sizes[:, None] * signs)

    def _scene(self, genes: Genes) -> tuple[Scene, list[Records], Records]:
        """Some of the others are the pattern, the rest are one other record or have no features."""
        pattern, rest = self._records(genes, 1), self._records(genes, 1)
        others = PEOPLE if self.case.unit is Unit.GROUP else OTHERS
        alike, nothing = genes.whole(others + 1), genes.one() > 0
        x = torch.cat(
            [
                pattern.x.expand(alike, -1),
                (rest.x * (0.0 if nothing else 1.0)).expand(others - alike, -1),
            ]
        )
        y = torch.cat([pattern.y.expand(alike), rest.y.expand(others - alike)])
        count = 1 if self.case.unit is Unit.RECORD else 1 + genes.whole(3)
        made = [self._near(genes, pattern, count) for _ in range(VERSIONS)]
        return Scene(Records(x, y), made[0], made[1]), made, pattern

    def _broadcast(self, genes: Genes, at: int, pattern: Records) -> Broadcast:
        """Scores of the pattern as the genes say; all else of some magnitude."""
        parts = self.model.layout.unflatten(self.start)
        x = pattern.x[0].double()
        along = x / x.norm() if self.plan.client.model else x / x.square().sum()
        scores = self._scores(genes)
        sent = {}
        for name, value in parts.items():
            kept = genes.one() > 0
            other = value if kept else value + genes.sized(value.shape, -3.0, 3.0)
            sent[name] = torch.outer(scores, along) if name == "weight" else other
        params = self.model.layout.flatten({name: each.float() for name, each in sent.items()})
        shared = {n: self._sent(genes, v, along) for n, v in self.usual[at].shared.items()}
        return replace(self.usual[at], params=params, shared=shared)

    def _scores(self, genes: Genes) -> torch.Tensor:
        """Of the pattern: one output apart from all others, or each on its own."""
        scores = torch.tensor([genes.within(-20.0, 20.0) for _ in range(self.outputs)]).double()
        if genes.one() > -0.5:
            scores[1:] = scores[1:] * 0 - scores[0]
        return scores

    def _sent(self, genes: Genes, usual: torch.Tensor, along: torch.Tensor) -> torch.Tensor:
        """What is broadcast beside the parameters: in the pattern's direction, or in any."""
        magnitude, kind = 10.0 ** genes.within(-3.0, 6.0), genes.one()
        if kind > 1.5:
            return usual
        made = genes.vector(usual.numel())
        if kind > -0.5 and usual.numel() >= self.outputs * len(along):
            made = torch.outer(made[: self.outputs], along / along.norm()).flatten()
            made = torch.cat([made, made.new_zeros(usual.numel() - made.numel())])
        return (made * magnitude).view(usual.shape).to(usual)

    def _state(self, genes: Genes, params: torch.Tensor) -> Any:
        """What a client keeps of earlier releases; at the beginning, or of some magnitude."""
        state = self.plan.client.init(params)
        if not hasattr(state, "_fields") or genes.one() > 0:
            return state
        vectors = {n: v for n, v in state._asdict().items() if isinstance(v, torch.Tensor)}
        made = {n: genes.sized(v.shape, -3.0, 6.0).to(v) for n, v in vectors.items()}
        return state._replace(**made)


def _doubled(broadcast: Broadcast) -> Broadcast:
    shared = {name: each.double() for name, each in broadcast.shared.items()}
    return replace(broadcast, params=broadcast.params.double(), shared=shared)


def _nowhere(version: Records) -> Records:
    return replace(version, x=torch.full_like(version.x, math.nan))
