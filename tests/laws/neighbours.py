# SPDX-License-Identifier: Apache-2.0
"""Neighbouring data sets and hostile broadcasts, and a search for those that differ most.

A scene is what stays the same (the other records, the broadcasts) and one unit in two versions. At
record level a unit is one record, at group level a person with one to four records, at client level
all records of the client. Under replace-one the two versions are compared; otherwise one version
with its absence: under add-remove its records are gone, under zero-out they are there and add
nothing. The search begins with extremes, goes on at random, and then climbs: the scene with the
largest distance on a channel is changed a little, and the change is kept if the distance grew.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from dpfed.core.types import METRICS, Adjacency, Aggregate, Broadcast, Unit, Vector
from dpfed.core.vector import Layout
from dpfed.data.datasets import Records
from dpfed.data.models import Linear
from dpfed.data.modules import Network
from dpfed.training.plan import Plan
from tests.laws.sensitivity import (
    CLASSES,
    FEATURES,
    SLACK,
    Tape,
    Verdict,
    Watched,
    absent,
    compare,
    model_for,
)

Model = Linear | Network

OTHERS = torch.tensor([0, 0, 0, 0, 2, 3, 3, 4, 5, 5, 6]).repeat(4)
"""Who the other records belong to: persons of unequal size."""
MANY, FEW_OTHERS = 11, 5
"""How many other records there are; under a network fewer, which take their time."""
PERSON, PLACE = 1, 2
"""The unit's number, and where its records lie among the others."""


@dataclass(frozen=True, eq=False)
class Scene:
    """Other records, one unit in two versions, and what the server sends."""

    others: Records
    one: Records
    other: Records
    params: str | float | Vector = "sane"
    shared: str | float = "sane"
    """What is sent: a kind of ``HOSTILE``, a magnitude, or the vector itself."""
    rounds: tuple[int, ...] = (0, 1, 2)
    """In which rounds the broadcast is what ``params`` and ``shared`` say; else it is sane."""
    seed: int = 0
    swapped: bool = False
    """Whether the second version is the teacher."""


# ------------------------------------------------------------------------------------ broadcasts

HOSTILE: dict[str, Callable[[Vector, torch.Generator], Vector]] = {
    "sane": lambda v, g: v,
    "magnitudes": lambda v, g: _signs(v, g) * 10.0 ** (torch.rand(v.shape, generator=g) * 82 - 44),
    "one NaN": lambda v, g: _with(v, math.nan),
    "all NaN": lambda v, g: torch.full_like(v, math.nan),
    "one infinity": lambda v, g: _with(v, math.inf),
    "one 1e37": lambda v, g: _with(v * 1e-8, 1e37),
}
SERVERS = (
    "sane",
    "one NaN",
    "all NaN",
    "one infinity",
    0.0,
    1e-40,
    1e-30,
    1.0,
    "magnitudes",
    "one 1e37",
    1e6,
    1e18,
    3e38,
)
"""What a server sends: the last five make scores that are nothing but rounding."""


def sent(kind: str | float | Vector, usual: Vector, generator: torch.Generator) -> Vector:
    """A vector as a server of this kind sends it."""
    if isinstance(kind, str):
        return HOSTILE[kind](usual, generator).to(usual.dtype)
    if isinstance(kind, torch.Tensor):
        return kind
    return _signs(usual, generator) * kind


def _signs(like: Vector, generator: torch.Generator) -> Vector:
    return torch.randint(0, 2, like.shape, generator=generator).to(like.dtype) * 2 - 1


def _with(vector: Vector, value: float) -> Vector:
    changed = vector.clone()
    changed[:1] = value
    return changed


def opposite(layout: Layout) -> Vector:
    """Weights of some 1e18 on the first input of every layer, and as much below 0 on the second."""
    tensors = {name: torch.zeros(shape) for name, shape in layout.shapes.items()}
    for each in tensors.values():
        if each.dim() == 2:
            each[:, 0] = torch.linspace(1e18, -2e18, len(each))
            each[:, 1] = -each[:, 0]
    return layout.flatten(tensors)


def sane(plan: Plan, start: Vector) -> list[Broadcast]:
    """Plausible rounds: what the server half publishes after some means."""
    size = start.numel()
    optimizer, state = plan.optimizer, plan.optimizer.init(start)
    made = []
    for at in range(plan.rounds):
        params = start + torch.linspace(-1, 1, size) * at
        made.append(Broadcast(at, params, dict(optimizer.share(state))))
        means = {name: torch.linspace(0.1, 1, plan.size(name, size)) for name in plan.due(at)}
        lead = plan.due(at)[0]
        mean = means.pop(lead)
        seen = Aggregate(at, params, mean, 0.1, 1, means, 1, 1.0, lead)
        _, state = optimizer.update(mean.clone(), state, seen)
    return made


def broadcasts(usual: list[Broadcast], scene: Scene) -> list[Broadcast]:
    """The rounds as the scene's server sends them."""
    generator = torch.Generator().manual_seed(scene.seed)
    return [
        replace(
            each,
            params=sent(scene.params, each.params, generator),
            shared={name: sent(scene.shared, v, generator) for name, v in each.shared.items()},
        )
        if each.round in scene.rounds
        else each
        for each in usual
    ]


# --------------------------------------------------------------------------------------- records


@dataclass(eq=False)
class Draw:
    """Random records of one kind of model, for one unit."""

    unit: Unit
    integer: bool
    """Whether labels are classes."""
    classes: int
    generator: torch.Generator

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator)

    def whole(self, below: int) -> int:
        return int(torch.randint(0, below, (1,), generator=self.generator))

    def count(self) -> int:
        return 1 if self.unit is Unit.RECORD else 1 + self.whole(4)

    def labels(self, count: int) -> torch.Tensor:
        if self.integer:
            return torch.randint(0, self.classes, (count,), generator=self.generator)
        return torch.randint(0, 5, (count,), generator=self.generator).float()

    def bag(self, x: torch.Tensor, y: torch.Tensor | None = None) -> Records:
        return Records(x, self.labels(len(x)) if y is None else y)

    def powers(self, count: int) -> torch.Tensor:
        exponents = torch.rand(count, FEATURES, generator=self.generator) * 82 - 44
        return self.normal(count, FEATURES).sign() * 10.0**exponents


Pair = tuple[Records, Records]


def _opposite(draw: Draw, others: Records) -> Pair:
    x = draw.normal(draw.count(), FEATURES) * 1e4
    y = draw.labels(1).expand(len(x)).clone()
    return draw.bag(x, y), draw.bag(-x, y)


def _relabelled(draw: Draw, others: Records) -> Pair:
    x = draw.normal(1, FEATURES).expand(draw.count(), FEATURES) * 30
    y = torch.zeros_like(draw.labels(len(x)))
    return draw.bag(x, y), draw.bag(x, y + 1)


def _across(draw: Draw, others: Records) -> Pair:
    count, sizes = draw.count(), torch.eye(FEATURES) * 1e4
    y = draw.labels(count)
    return draw.bag(sizes[:1].repeat(count, 1), y), draw.bag(sizes[1:2].repeat(count, 1), y)


def _vanishing(draw: Draw, others: Records) -> Pair:
    x = draw.normal(draw.count(), FEATURES)
    return draw.bag(x * 1e4), draw.bag(x * math.nan)


def _float_ends(draw: Draw, others: Records) -> Pair:
    x = draw.normal(draw.count(), FEATURES).sign()
    return draw.bag(x * 1e-40), draw.bag(x * 3e38)


def _sparse(draw: Draw, others: Records) -> Pair:
    x = torch.zeros(draw.count(), FEATURES)
    x[:, draw.whole(FEATURES)] = 1e20
    return draw.bag(x), draw.bag(x * 1e30)


def _twin(draw: Draw, others: Records) -> Pair:
    return draw.bag(others.x[:1], others.y[:1]), draw.bag(-others.x[:1], others.y[:1])


def _magnitudes(draw: Draw, others: Records) -> Pair:
    return draw.bag(draw.powers(draw.count())), draw.bag(draw.powers(draw.count()))


def _zero(draw: Draw, others: Records) -> Pair:
    x = draw.normal(draw.count(), FEATURES)
    return draw.bag(x * 0), draw.bag(x * 1e8)


def _unknown(draw: Draw, others: Records) -> Pair:
    """Labels that no model has."""
    x = draw.normal(draw.count(), FEATURES) * 10
    y = draw.labels(len(x))
    strange = (CLASSES, -1, 2**62) if draw.integer else (-1.0, math.nan, math.inf)
    return draw.bag(x, y), draw.bag(x, torch.full_like(y, strange[draw.whole(3)]))


def _huge(draw: Draw, others: Records) -> Pair:
    x = draw.normal(draw.count(), FEATURES) * 10.0 ** (35 + 3 * float(draw.normal(1)))
    return draw.bag(x), draw.bag(-x)


def _random(draw: Draw, others: Records) -> Pair:
    x, z = draw.normal(draw.count(), FEATURES), draw.normal(draw.count(), FEATURES)
    size = 10.0 ** (draw.normal(2) * 2)
    return draw.bag(x * size[0]), draw.bag(z * size[1])


PAIRS = (
    _relabelled,
    _opposite,
    _across,
    _huge,
    _magnitudes,
    _zero,
    _vanishing,
    _float_ends,
    _sparse,
    _twin,
    _unknown,
)


def joined(scene: Scene, unit: Unit, version: Records | None) -> Records:
    """The data set with one version of the unit, or without it."""
    groups = torch.full((0 if version is None else len(version),), PERSON)
    mine = None if version is None else replace(version, groups=groups)
    if unit is Unit.CLIENT:
        assert mine is not None
        return mine
    rest, whose = scene.others, OTHERS[: len(scene.others)]
    parts = [(rest.x[:PLACE], rest.y[:PLACE], whose[:PLACE])]
    parts += [] if mine is None else [(mine.x, mine.y, groups)]
    parts += [(rest.x[PLACE:], rest.y[PLACE:], whose[PLACE:])]
    return Records(*map(torch.cat, zip(*parts, strict=True)))


# ---------------------------------------------------------------------------------------- search


@dataclass(frozen=True)
class Effort:
    """How many scenes are tried: of the extremes, at random, and climbing.

    ``more`` is how many times it climbs on while a channel is below half of its bound.
    """

    extreme: int
    random: int = 0
    climb: int = 0
    more: int = 0


@dataclass(eq=False)
class Search:
    """The largest distances found so far for one plan and model."""

    plan: Plan
    model: Model
    seed: int = 0
    best: dict[str, tuple[float, Scene]] = field(default_factory=dict)
    joint: float = 0.0
    tried: int = 0
    faults: dict[str, Scene] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)
        linear = isinstance(self.model, Linear)
        self.many = MANY if linear else FEW_OTHERS
        poisson = linear and self.model.link == "poisson"  # type: ignore[union-attr]
        classes = 2 if linear and self.model.layout.shapes["weight"][0] == 1 else CLASSES
        self.draw = Draw(self.plan.update.unit, not poisson, classes, self.generator)
        self.model = model_for(self.plan, self.model)
        self.start = torch.zeros(self.model.layout.size)
        if self.plan.client.model:  # from zeros, all rows are zero
            self.start = self.model.initial(0)
        self.usual, self.client = sane(self.plan, self.start), Watched(self.plan)
        scene = self._scene(_random, "sane", "sane", ())
        self._run(
            scene, scene.one, self.usual[:1]
        )  # a plan is rehearsed once: that is not compared

    def search(self, effort: Effort) -> Search:
        """All of it; ``faults`` says what was found."""
        for scene in self._extremes(effort.extreme):
            self.look_at(scene)
        for _ in range(effort.random):
            self.look_at(self._scene(_random))
        for _ in range(effort.climb):
            self._climb(0.99)
        for _ in range(effort.more):
            self._climb(0.5)
        return self

    def look_at(self, scene: Scene) -> Verdict:
        """One pair of neighbours: two runs, compared."""
        verdict = self._verdict(scene)
        self.tried += 1
        self.joint = max(self.joint, verdict.joint)
        for channel, ratio in verdict.ratios.items():
            if channel not in self.best or ratio > self.best[channel][0]:
                self.best[channel] = ratio, scene
        for fault in verdict.faults:
            self.faults.setdefault(fault, scene)
        return verdict

    def _verdict(self, scene: Scene) -> Verdict:
        orders, unit = broadcasts(self.usual, scene), self.plan.update.unit
        versions: list[Records | None] = [scene.one, scene.other]
        if self.plan.update.adjacency is Adjacency.ADD_REMOVE:
            versions[1] = None
        if self.plan.update.adjacency is Adjacency.ZERO_OUT:  # as many records, which add nothing
            nowhere = torch.full_like(scene.one.x, math.nan)
            versions[1] = None if unit is Unit.CLIENT else replace(scene.one, x=nowhere)
        if unit is Unit.CLIENT and versions[1] is None:
            first = self._run(scene, versions[0], orders)
            return compare(self.plan, first, absent(first), SLACK)
        if scene.swapped:
            versions.reverse()
        first = self._run(scene, versions[0], orders)
        second = self._run(scene, versions[1], orders, first)
        return compare(self.plan, first, second, SLACK)

    def _run(
        self,
        scene: Scene,
        version: Records | None,
        orders: list[Broadcast],
        teacher: Tape | None = None,
    ) -> Tape:
        records = joined(scene, self.plan.update.unit, version)
        return self.client.run(self.model.problem(records), orders, teacher)

    def cancels(self, count: int) -> Verdict:
        """So many other records, whose scores are nothing but the rounding of large terms.

        Two features of a record are equal, and their weights opposite: a score is 0, or what one
        product was rounded by, as the library adds up. That depends on how many records there are.
        """
        scene = self._scene(_random, "sane", "sane", (0, 1, 2))
        others = self.draw.bag(self.draw.normal(count, FEATURES))
        for records in (scene.one, scene.other, others):
            records.x[:, 1], records.x[:, 2:] = records.x[:, 0], 0.0
        return self.look_at(replace(scene, others=others, params=opposite(self.model.layout)))

    # ------------------------------------------------------------------------------- proposals

    def _scene(self, pair: Callable[[Draw, Records], Pair], *server: Any) -> Scene:
        others = self.draw.bag(self.draw.normal(self.many, FEATURES))
        flip, seed = self.draw.whole(2) == 1, self.draw.whole(2**31)
        scene = Scene(others, *pair(self.draw, others), seed=seed, swapped=flip)
        params, shared, rounds = server or self._server(scene)
        return replace(scene, params=params, shared=shared, rounds=rounds)

    def _extremes(self, count: int) -> Iterator[Scene]:
        """At zero, where no loss is flat, and where all are; then under servers of all kinds."""
        always = (0, 1, 2)
        kinds = itertools.chain(
            ((pair, self.start, "sane", always) for pair in PAIRS[:3]),
            [(_relabelled, "sane", "sane", always)],
            ((pair,) for pair in itertools.cycle(PAIRS)),
        )
        return (self._scene(*kind) for kind in itertools.islice(kinds, count))

    def _server(self, scene: Scene) -> tuple[str | float, str | float, tuple[int, ...]]:
        """Two times in five parameters at which the unit's scores are neither 0 nor saturated."""
        largest = float(scene.one.x.nan_to_num(1.0).abs().max().clamp(1e-37, 1e37))
        aimed = 10.0 ** (3 * float(torch.rand(1, generator=self.generator)) - 1) / largest
        params, shared = (SERVERS[self.draw.whole(len(SERVERS))] for _ in range(2))
        which = self.draw.whole(5)
        params = aimed if which < 2 else "sane" if which == 2 else params
        shared = "sane" if which == 3 else aimed if which == 1 else shared
        return params, shared, ((0, 1, 2), (0, 1, 2), (0,), (1,), (2,))[self.draw.whole(5)]

    def _climb(self, enough: float) -> None:
        """Change the best scene of a channel that is not at its bound; metrics cannot be."""
        low = [name for name, (r, _) in self.best.items() if r < enough and name != METRICS]
        if low:
            channel = low[self.draw.whole(len(low))]
            self.look_at(self._changed(self.best[channel][1]))

    def _changed(self, scene: Scene) -> Scene:
        which = self.draw.whole(6)
        if which == 0:
            params, shared, rounds = self._server(scene)
            return replace(scene, params=params, shared=shared, rounds=rounds)
        if which == 1:
            others = self.draw.bag(self.draw.normal(self.many, FEATURES))
            return replace(scene, others=others)
        if which in (2, 3):
            return replace(scene, one=self._moved(scene.one))
        return replace(scene, other=self._moved(scene.other))

    def _moved(self, version: Records) -> Records:
        """Features scaled and turned a little; labels drawn anew one time in four."""
        noise = self.draw.normal(*version.x.shape) * version.x.abs().nan_to_num(1.0).clamp(1e-3)
        x = (version.x + 0.3 * noise) * 10.0 ** (self.draw.normal(1) * 0.5)
        y = self.draw.labels(len(x)) if self.draw.whole(4) == 0 else version.y
        return self.draw.bag(x, y)
