# SPDX-License-Identifier: Apache-2.0
"""The law "a unit moves what is handed to the mechanism by at most what is priced".

Teacher-forced: a run on one data set makes releases; a run on a neighbouring one, from the same
broadcasts, is handed the releases of the first in the place of its own. So all that was released
before is the same in both, and only the present sum differs: that is what one unit can do to it,
and what adaptive composition asks to be bounded. The clients run their own code (``make_reply``, a
``PricedReleaser``); the mechanism is wrapped, and its own clip and sum (``release`` under central
trust, where it adds nothing) say what is handed over.

The bound is read off the event that the mechanism is priced by, never off the clip:
distance <= mu(event of one release) std, and per round sum of (distance / std)^2 <= mu^2 of all
its releases on all channels together.

| what is compared                                    | it must be                               |
|-----------------------------------------------------|------------------------------------------|
| a release's sums, per channel                       | at most the priced distance apart        |
| all releases of a round, over their noise           | at most the mu of the round apart        |
| the replies, given the same releases                | equal to the bit: they are functions     |
| whether, and how often, the clients release         | the same                                 |
"""

from __future__ import annotations

import inspect
import itertools
import math
import types
import typing
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from dpfed.accounting.accountant import RELATIONS, GaussianAccountant
from dpfed.core import registry
from dpfed.core.errors import DpfedError
from dpfed.core.grid import narrow
from dpfed.core.types import (
    Adjacency,
    BoundedSum,
    Broadcast,
    Mechanism,
    Problem,
    Release,
    Reply,
    Rows,
    Trust,
    Unit,
)
from dpfed.data.datasets import Records
from dpfed.data.models import Linear
from dpfed.data.modules import Network, seeded
from dpfed.recipes.build import plan_for_clients, trained_model
from dpfed.recipes.schema import parse
from dpfed.training.plan import Plan
from dpfed.training.reply import ClientState, PricedReleaser, make_reply

FEATURES, CLASSES, ROUNDS, NOMINAL = 3, 3, 3, 8.0

MORE_ROUNDS = {"fedauto": 4}
"""Where three are refused."""

SLACK = 2.0**-40
"""Of the bound, for the rounding of the distance itself: the sum's is in the price."""


def network(sampler: str) -> Network:
    layers = (nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, CLASSES))
    return Network(seeded(lambda: nn.Sequential(*layers), 1), chunk=8, sampler=sampler)


class Cancelling(nn.Module):
    """Reads a record as two tokens, the second of which takes back nearly all of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = torch.stack([x, -x * (1 + 2.0**-12)], dim=1)
        out: torch.Tensor = self.layer(tokens).sum(dim=1)
        return out


MODELS: dict[str, Linear | Network] = {
    "softmax": Linear("softmax", FEATURES, CLASSES),
    "logistic": Linear("logistic", FEATURES),
    "poisson": Linear("poisson", FEATURES),
    "func": network("func"),
    "opacus": network("opacus"),
    "ghost": network("ghost"),
    "tokens": Network(seeded(Cancelling, 1), chunk=8, sampler="ghost"),
}
LINEAR = ("softmax", "logistic", "poisson")
NETWORKS = ("func", "opacus", "ghost", "tokens")


# ---------------------------------------------------------------------------------------- cases


@dataclass(frozen=True)
class Case:
    """One algorithm under one definition of a neighbour, on one kind of model."""

    algorithm: str
    options: tuple[tuple[str, Any], ...]
    unit: Unit
    adjacency: Adjacency
    model: str
    mechanism: str = "gaussian"
    clip: float = 1.0
    adaptive: bool = False

    def __str__(self) -> str:
        chosen = "".join(f" {key}={value}" for key, value in self.options if key not in FEW)
        chosen += " adaptive" if self.adaptive else ""
        parts = (f"{self.algorithm}{chosen}", self.unit, self.adjacency, self.model)
        return " / ".join([*parts, self.mechanism, f"clip {self.clip:g}"])


FEW = {"steps": 2, "start": 1, "rate": 1.0}
"""Options that only say how often, and how far: few steps, so that the law is quick, and long."""


def variants(name: str) -> Iterator[tuple[tuple[str, Any], ...]]:
    """The algorithm's defaults, and each other choice of an option that has a few."""
    factory = registry.find("client", name)
    hints, known = typing.get_type_hints(factory), inspect.signature(factory).parameters
    few = {key: value for key, value in FEW.items() if key in known}
    yield tuple(few.items())
    for key, parameter in known.items():
        for value in _choices(hints[key]):
            if value != parameter.default and key not in registry.FACTS["client"]:
                yield (*few.items(), (key, value))


def _choices(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) is typing.Literal:
        return typing.get_args(hint)
    parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return (True, False) if bool in parts else ()


def cases(
    name: str,
    models: Sequence[str],
    mechanism: str = "gaussian",
    clip: float = 1.0,
    most: int = 9,
    adaptive: bool = False,
) -> Iterator[tuple[Case, Plan | None]]:
    """All cases of an algorithm with their plans; None where the plan is refused.

    ``most`` is how many of its variants are taken: 1 has the defaults only.
    """
    chosen = itertools.islice(variants(name), most)
    for options, unit, adjacency, model in itertools.product(chosen, Unit, Adjacency, models):
        case = Case(name, options, unit, adjacency, model, mechanism, clip, adaptive)
        yield case, plan_or_none(case)


def plan_for(case: Case) -> Plan:
    """The plan, as a recipe makes it, with a metrics channel."""
    privacy: dict[str, Any] = {
        "unit": case.unit,
        "adjacency": case.adjacency,
        "mechanism": case.mechanism,
        "clip": case.clip,
        "std_over_clip": 1.0,
        "nominal": NOMINAL,
        "noise": "keyed",
    }
    privacy |= {"adaptive": {}} if case.adaptive else {}
    client = {"name": case.algorithm, **dict(case.options)}
    rounds = MORE_ROUNDS.get(case.algorithm, ROUNDS)
    tree = {
        "rounds": rounds,
        "client": client,
        "evaluation": {"kind": "federated", "every": rounds},
    }
    return plan_for_clients(parse({**tree, "privacy": privacy}), [NO_RECORDS], MODELS[case.model])


def model_for(plan: Plan, model: Linear | Network) -> Any:
    """What the plan trains: the model, or one that standardises its inputs."""
    return trained_model(parse({}), plan, model)


def plan_or_none(case: Case) -> Plan | None:
    """None where the plan is refused."""
    try:
        return plan_for(case)
    except DpfedError:
        return None


NO_RECORDS = Records(torch.zeros(1, FEATURES), torch.zeros(1, dtype=torch.int64))


# ------------------------------------------------------------------------------- what is handed


@dataclass(eq=False)
class Tape:
    """What a client handed to the mechanism: by round, channel and number, and what it got."""

    sums: dict[tuple[int, str, int], torch.Tensor] = field(default_factory=dict)
    made: dict[tuple[int, str, int], tuple[Release, Any]] = field(default_factory=dict)
    replies: dict[int, Reply] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    round: int = 0

    def forget(self, channel: str) -> None:
        """Drop what was noted on a channel in this round."""
        for key in [key for key in self.sums if key[:2] == (self.round, channel)]:
            del self.sums[key]
            self.made.pop(key, None)


@dataclass(frozen=True)
class Nobody:
    """Rows of no unit."""

    size: int

    def clipped_sum(self, clip: float) -> BoundedSum:
        return BoundedSum(torch.zeros(self.size), 0.0, 0.0)

    def clipped_rows(self, clip: float) -> Iterator[torch.Tensor]:
        return iter(())


class Recorder:
    """A mechanism that notes the sums that it is handed, and gives what a teacher got."""

    def __init__(self, mechanism: Any, channel: str, client: Watched) -> None:
        self._mechanism, self._channel, self._client = mechanism, channel, client
        self._silent = mechanism.with_facts(trust=Trust.CENTRAL)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mechanism, name)

    def init(self, size: int) -> Any:
        """A new door: what went through the last one in this round was dropped."""
        self._client.tape.forget(self._channel)
        return self._mechanism.init(size)

    def release(self, rows: Rows, state: Any, rng: Any) -> tuple[Release, Any]:
        tape, teacher = self._client.tape, self._client.teacher
        handed, _ = self._silent.release(rows, state, rng)
        total = handed.vector.double() * handed.step
        count = sum(key[:2] == (tape.round, self._channel) for key in tape.sums)
        at = tape.round, self._channel, count
        tape.sums[at] = total
        known = teacher is not None and at in teacher.made
        tape.made[at] = teacher.made[at] if known else self._noised(total, state, rng)  # type: ignore[union-attr]
        return tape.made[at]

    def _noised(self, total: torch.Tensor, state: Any, rng: Any) -> tuple[Release, Any]:
        """Noise by the mechanism itself: rows may be overwritten by a sum, so only one is made."""
        noise, state = self._mechanism.release(Nobody(total.numel()), state, rng)
        vector = noise.vector.long() + (total / noise.step).round().long()
        return Release(narrow(vector), noise.std, noise.step), state


class Watched:
    """A client whose mechanisms are recorded; its state is kept from round to round."""

    def __init__(self, plan: Plan) -> None:
        self.tape = Tape()
        self.teacher: Tape | None = None
        channels: Any = {name: Recorder(m, name, self) for name, m in plan.channels.items()}
        self.plan = replace(plan, channels=channels)

    def run(
        self, problem: Problem, broadcasts: list[Broadcast], teacher: Tape | None = None
    ) -> Tape:
        """All rounds, as its own code goes through them. What it refuses is noted."""
        self.tape, self.teacher, client = Tape(), teacher, ClientState(0, problem)
        for broadcast in broadcasts:
            at = self.tape.round = broadcast.round
            door = PricedReleaser(self.plan, broadcast, client)
            try:
                self.tape.replies[at], client = make_reply(self.plan, broadcast, client, door)
            except Exception as error:
                self.tape.refused[at] = type(error).__name__
                for channel in self.plan.channels:
                    self.tape.forget(channel)
        return self.tape


def absent(tape: Tape) -> Tape:
    """The rounds of a client that is not there: nothing is added on its behalf."""
    sums = {key: torch.zeros_like(total) for key, total in tape.sums.items()}
    return replace(tape, sums=sums)


# ------------------------------------------------------------------------------- how far apart


@lru_cache(maxsize=4096)
def mu_of(mechanism: Mechanism, releases: int) -> float:
    """What so many releases cost one who can subtract all other clients' noise."""
    accountant = GaussianAccountant(RELATIONS[mechanism.adjacency])
    accountant.compose(mechanism.event(releases, 1.0))
    return accountant.mu


def priced_distance(mechanism: Any) -> float:
    """How far one unit may move one release, by what the mechanism is priced at."""
    return mu_of(mechanism, 1) / math.sqrt(mechanism.squared_sensitivity(1)) * float(mechanism.std)


@dataclass(eq=False)
class Verdict:
    """How far apart two runs are, in units of what is priced; and what else is wrong."""

    ratios: dict[str, float] = field(default_factory=dict)
    joint: float = 0.0
    faults: list[str] = field(default_factory=list)


def compare(plan: Plan, one: Tape, other: Tape, slack: float) -> Verdict:
    """The distances of all sums of two runs over what is priced for them."""
    found = Verdict(faults=[*_differences(one, other), *_uncounted(plan, one)])
    spent: dict[int, float] = {}
    for key in one.sums.keys() & other.sums.keys():
        at, channel, _ = key
        mechanism: Any = plan.channels[channel]
        apart = float(torch.linalg.vector_norm(one.sums[key] - other.sums[key]))
        ratio = apart / priced_distance(mechanism)
        found.ratios[channel] = max(found.ratios.get(channel, 0.0), ratio)
        spent[at] = spent.get(at, 0.0) + (apart / mechanism.std) ** 2
        if not ratio <= 1 + slack:
            found.faults.append(f"on {channel!r} in round {at}: {ratio:.6g} of what is priced")
    for at, squared in spent.items():
        due = {name: plan.releases(name, at) for name in plan.channels}
        mu = math.hypot(*(mu_of(plan.channels[name], count) for name, count in due.items()))
        found.joint = max(found.joint, math.sqrt(squared) / mu)
        if not math.sqrt(squared) <= mu * (1 + slack):
            found.faults.append(f"all of round {at}: {math.sqrt(squared) / mu:.6g} of its price")
    return found


def _differences(one: Tape, other: Tape) -> Iterator[str]:
    """What may not differ at all between two runs that were handed the same releases."""
    if one.refused != other.refused:
        yield f"answers differ: {one.refused or 'all rounds'} and {other.refused or 'all rounds'}"
    elif one.sums.keys() != other.sums.keys():
        yield f"releases differ: {sorted(one.sums.keys() ^ other.sums.keys())}"
    for at in one.replies.keys() & other.replies.keys():
        if not _same(one.replies[at], other.replies[at]):
            yield f"the replies of round {at} differ, though the releases are the same"


def _uncounted(plan: Plan, tape: Tape) -> Iterator[str]:
    """Rounds with another number of releases than is priced: then nothing here would be true."""
    made = Counter((at, channel) for at, channel, _ in tape.sums)
    for at in tape.replies:
        for name in plan.channels:
            if made[at, name] != plan.releases(name, at):
                yield f"{made[at, name]} releases on {name!r} in round {at}"


def _same(one: Reply, other: Reply) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(one[name].vector, other[name].vector) for name in one
    )
